"""Nothing of another's is had through any public function, and every try is in the audit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from holdfast.agents import (
    AgentHandle,
    Agents,
    AsyncAgentHandle,
    AsyncAgents,
    AsyncConversation,
    AsyncPersistentAgent,
    Conversation,
    PersistentAgent,
)
from holdfast.errors import DeniedError, InvalidError
from holdfast.state.api import StateTransaction
from holdfast.state.artifacts.api import Artifacts, AsyncArtifacts
from holdfast.state.scope_state import AsyncState, State
from holdfast.state.sessions.api import AsyncSession, AsyncSessions, Session, Sessions
from holdfast.state.sharing.api import AsyncSharing, Sharing
from holdfast.state.sharing.documents import AsyncDocument, Document
from holdfast.state.sharing.pipeline import AsyncPipeline, Pipeline
from holdfast.state.sharing.requests import AsyncRequests, Requests
from holdfast.state.sharing.subscription import AsyncSubscription, Subscription
from holdfast.state.sharing.topic import AsyncTopic, Topic
from holdfast.state.transactions import AsyncTransactionState, TransactionState
from holdfast.state.watcher import AsyncWatch, Watch
from holdfast.store.erasure import AsyncIdentityErasure, IdentityErasure
from holdfast.store.identity_view import AsyncIdentityView, IdentityView
from holdfast.store.sensitive import AsyncIdentitySensitive, IdentitySensitive
from tests.security.probes import HARMLESS, PROBES, QUIET, Probe, spy
from tests.security.world import KEY, SECRET, World, done

KINDS: dict[str, tuple[type, ...]] = {
    "acting": (IdentityView, AsyncIdentityView),
    "state": (State, AsyncState),
    "transaction": (StateTransaction,),
    "state in a transaction": (TransactionState, AsyncTransactionState),
    "watch": (Watch, AsyncWatch),
    "sharing": (Sharing, AsyncSharing),
    "topic": (Topic, AsyncTopic),
    "subscription": (Subscription, AsyncSubscription),
    "requests": (Requests, AsyncRequests),
    "pipeline": (Pipeline, AsyncPipeline),
    "document": (Document, AsyncDocument),
    "sessions": (Sessions, AsyncSessions),
    "session": (Session, AsyncSession),
    "artifacts": (Artifacts, AsyncArtifacts),
    "agents": (Agents, AsyncAgents),
    "agent": (PersistentAgent, AsyncPersistentAgent),
    "kept": (AgentHandle, AsyncAgentHandle),
    "conversation": (Conversation, AsyncConversation),
    "sensitive": (IdentitySensitive, AsyncIdentitySensitive),
    "erasure": (IdentityErasure, AsyncIdentityErasure),
}

_DUNDERS = [
    "__getitem__",
    "__setitem__",
    "__delitem__",
    "__contains__",
    "__iter__",
    "__len__",
    "__eq__",
    "__call__",
    "__next__",
    "__aiter__",
    "__anext__",
    "__enter__",
    "__aenter__",
]


_CONTROLS = {chr(code) for code in (*range(32), *range(127, 160), 0x2028, 0x2029, *range(0xD800, 0xE000))}


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.close()


def public(cls: type) -> set[str]:
    """The names through which a class can be used."""
    found = {name for name in dir(cls) if not name.startswith("_")}
    own = [vars(each) for each in cls.__mro__ if each is not object]
    return found | {name for name in _DUNDERS if any(each.get(name) is not None for each in own)}


def known(kind: str) -> set[str]:
    return {*PROBES[kind], *QUIET.get(kind, ()), *HARMLESS.get(kind, ())}


def test_every_public_name_is_probed(subtests: pytest.Subtests) -> None:
    for kind, classes in KINDS.items():
        for cls in classes:
            with subtests.test(cls.__name__):
                assert public(cls) - known(kind) == set(), "say in tests/security/probes.py how it is probed"


def test_a_function_that_nobody_thought_of_is_found() -> None:
    class Leaky(State):
        def peek(self) -> None:
            """Not probed."""

    assert public(Leaky) - known("state") == {"peek"}


def test_nothing_leads_back_to_the_store(world: World) -> None:
    for acting in (world.intruder, world.aintruder):
        for name in (
            "engine",
            "tenant",
            "put",
            "get",
            "log",
            "access",
            "audit",
            "as_identity",
            "hooks",
            "delete",
        ):
            assert not hasattr(acting, name)


def has(kind: str, name: str, acting: object) -> bool:
    """Whether the sync or the async form has the name."""
    forms = KINDS[kind]
    form = forms[-1] if isinstance(acting, AsyncIdentityView) else forms[0]
    return name in public(form) or name == "scope"


@pytest.mark.parametrize("kind", KINDS)
def test_a_stranger_gets_nothing(world: World, kind: str, subtests: pytest.Subtests) -> None:
    given = world.store.access.grant("agent:intruder", ["read", "write"], "agent:victim")  # a stale one: revoked since
    world.store.access.revoke(given)
    before = world.heads()
    for name, probe in PROBES[kind].items():
        with subtests.test(name):
            for acting in (world.intruder, world.aintruder):
                if has(kind, name, acting):
                    tried(world, probe, acting)
            assert world.heads() == before
            assert world.store.state(agent="victim")[KEY] == SECRET
            assert not (world.folder / "stolen").exists()
    assert world.store.audit.verify().ok


def tried(world: World, probe: Probe, acting: IdentityView | AsyncIdentityView) -> None:
    """See that a probe is denied, and that it is in the audit."""
    count = len(world.tries())
    with pytest.raises((DeniedError, LookupError)) as caught:
        done(lambda act: probe(world, act), acting)
    assert SECRET not in str(caught.value)
    assert len(world.tries()) > count, "the try is not in the audit"


def test_what_is_shown_to_a_stranger_has_nothing_of_it(world: World, subtests: pytest.Subtests) -> None:
    for kind, probes in QUIET.items():
        for name, probe in probes.items():
            with subtests.test(f"{kind}-{name}"):
                for acting in (world.intruder, world.aintruder):
                    if has(kind, name, acting):
                        shown = repr(done(partial(probe, world), acting))
                        assert SECRET not in shown
                        assert "victim" not in shown
    assert world.store.state(agent="victim")[KEY] == SECRET


# Names ------------------------------------------------------------------------------------------------------------

HOSTILE = {
    "traversal": "intruder/../victim",
    "backslashes": "intruder\\..\\victim",
    "absolute": "/victim",
    "quoted slash": "intruder%2F..%2Fvictim",
    "quoted part": "intruder%2Fagent:victim",
    "delimiter": "intruder/agent:victim",
    "colon": "agent:victim",
    "mark": "␞agent:victim",
    "look-alike": "vіctim",
    "full width": "ｖictim",
    "joiner": "vic\u200dtim",
    "direction": "\u202emitciv",
    "prefix": "victi",
    "longer": "victim2",
    "capital": "Victim",
    "space": "victim ",
    "nul": "victim\0",
    "newline": "victim\n",
    "tab": "intruder\tvictim",
    "surrogate": "victim\ud800",
    "long": "victim" * 1700,
    "empty": "",
    "dot": ".",
    "star": "*",
    "stars": "**",
}


def test_no_name_stands_for_anothers(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for what, name in HOSTILE.items():
        with subtests.test(what), closing(World(tmp_path)) as world:
            check_others(world, name)


def check_others(world: World, name: str) -> None:
    """See that a name gives nothing of another's."""
    before = world.heads()
    uses: list[Any] = [
        lambda act: act.state(agent=name).get(KEY),
        lambda act: act.state(f"agent:{name}").get(KEY),
        lambda act: act.state(name).get(KEY),
        lambda act: act.state(agent="intruder", custom=name, user=name).get(KEY),
        lambda act: act.state(agent="victim").get(name),
        lambda act: act.state(agent="victim").set(name, "taken"),
        lambda act: act.grant("agent:intruder", ["read", "write"], f"agent:{name}"),
        lambda act: act.sharing.topic(name, agent="victim").read(),
        lambda act: act.agents.load(name),
        lambda act: act.agents.delete(name),
        lambda act: act.agents.attach(spy(act), name).save(),
    ]
    for acting in (world.intruder, world.aintruder):
        for use in uses:
            tried = len(world.tries())
            with pytest.raises((DeniedError, InvalidError)):
                done(use, acting)
            tries = world.tries()
            assert len(tries) > tried, "the try is not in the audit"
            assert all(len(each.scope) <= 1024 and not _CONTROLS & set(each.scope + each.key) for each in tries)
    assert world.heads() == before


def test_no_name_below_ones_own_is_anothers(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for what, name in HOSTILE.items():
        with subtests.test(what), closing(World(tmp_path)) as world:
            check_own(world, name)


def check_own(world: World, name: str) -> None:
    """See that a name below one's own changes nothing of another's."""
    before = world.store.state(agent="victim").list_items()
    for use in (
        lambda act: act.state(agent="intruder", custom=name).set(KEY, "mine"),
        lambda act: act.state(f"agent:intruder/custom:{name}").set(KEY, "mine"),
        lambda act: act.state(agent="intruder").set(name, "mine"),
    ):
        try:
            done(use, world.intruder)
        except (InvalidError, DeniedError):
            continue
    assert world.store.state(agent="victim").list_items() == before
    for line in world.heads():
        assert "intruder" in line or "mine" not in repr(
            world.store.audit.query(actor="agent:intruder", scope=None, key=line)
        )
