"""A script that runs as an identity reads and changes nothing of others, whatever it calls with whatever arguments."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

import holdfast
from holdfast.interfaces.scripting.functions import type_names
from holdfast.scripts import Sandbox
from tests.interfaces.scripting.cases import ScriptClerk

SECRET = "S3CR3T-of-another"
STEPS: dict[str, list[list[Any]]] = {
    "IdentityView": [],
    "Thread": [["thread", ["owned"]]],
    "State": [["state", ["agent:other"]]],
    "Sessions": [["sessions", []]],
    "Artifacts": [["artifacts", []]],
    "Agents": [["agents", []]],
    "Steps": [["agents", []], ["steps", ["other"]]],
    "Timers": [["agents", []], ["timers", ["other"]]],
    "Topic": [["sharing", []], ["topic", ["shared"]]],
    "Requests": [["sharing", []], ["requests", ["shared"]]],
    "Pipeline": [["sharing", []], ["pipeline", ["shared", ["first"]]]],
    "Document": [["sharing", []], ["document", ["shared"]]],
    "Timeline": [["timeline", []]],
}
"""Paths of objects from the store."""

VALUES: list[Any] = [
    *(
        "owned",
        "agent:other",
        "agent:me",
        "key",
        "other",
        "shared",
        "HEAD",
        "*",
        "",
        0,
        1,
        -1,
        None,
        ["key"],
        {"key": 1},
    ),
    *({"limit": 5}, {"prefix": ""}, {"kinds": ["all"]}, {"scope": "agent:other"}, {"key": "key"}, {"nested": True}),
    *({"at": "HEAD"}, {"to": "agent:me"}, {"owner": "agent:me"}, {"state": {"a": 1}}, {"$bytes": "AAE="}),
    *({"$script": ["handle", [0, [["state", ["agent:other"]]]]]}, {"$script": ["operator", "Increment", [1]]}),
]


def fill(store: holdfast.Store) -> str:
    """Store secrets of another identity. Returns the id of a session."""
    store.thread("owned").put({"text": SECRET})
    store.state("agent:other")["key"] = SECRET
    agent = store.agents.create(ScriptClerk, "other")
    agent.conversation.append(SECRET)
    agent.flush()
    session = store.sessions.start(metadata={"note": SECRET})
    session.state["key"] = SECRET
    store.artifacts.register(SECRET.encode())
    store.sharing.topic("shared").publish(SECRET)
    store.sharing.document("shared").edit(lambda _: {"text": SECRET})
    store.sharing.requests("shared").ask(SECRET)
    store.sharing.pipeline("shared", ["first"]).put(SECRET)
    return session.id


def contents(store: holdfast.Store, session: str) -> list[Any]:
    """What others have."""
    state, sharing = store.state("agent:other"), store.sharing
    return [
        store.thread("owned").get().id,
        [(each.key, each.value, each.version) for each in state.list_items()],
        list(store.agents.restore("other", ScriptClerk).conversation),
        store.agents.load("other").status,
        store.sessions.get(session).status,
        [each.size for each in store.artifacts.list() if each.size == len(SECRET)],
        sharing.topic("shared").count(),
        sharing.document("shared").read().value,
        sharing.requests("shared").pending(),
        sharing.pipeline("shared", ["first"]).stats(),
    ]


@pytest.mark.parametrize("rounds", [2, pytest.param(40, marks=pytest.mark.nightly)])
def test_an_identity_reaches_nothing_of_others(rounds: int) -> None:
    chance = random.Random(rounds)
    with holdfast.open("memory://") as store, Sandbox("lua", store.as_identity("agent:me"), timeout=60) as sandbox:
        session = fill(store)
        before = contents(store, session)
        codes = set()
        for _ in range(rounds):
            for name, steps in STEPS.items():
                for function in type_names(name)["functions"]:
                    arguments = chance.choices(VALUES, k=chance.randrange(4))
                    message = json.dumps([[0, steps], function, arguments]).encode()
                    kind, answer = sandbox._execute(message, 0.01)
                    assert SECRET.encode() not in answer, message
                    assert b"UzNDUjNULW" not in answer, message  # in base64
                    codes.add(kind if kind == "R" else json.loads(answer)["code"])
        assert contents(store, session) == before
        assert {"R", "denied", "not-found", "invalid"} <= codes
        with Sandbox("lua", store) as owner:  # which finds it everywhere
            for call in (b'[[0,[["thread",["owned"]]]],"get",[]]', b'[[0,[["state",["agent:other"]]]],"get",["key"]]'):
                assert SECRET.encode() in owner._execute(call, 5.0)[1]
