"""Every field that a user can fill, in an encrypted store: those that raw bytes show are those that the guide lists."""

from __future__ import annotations

import re
import threading
from pathlib import Path
from typing import Any, TypedDict

import pytest

import holdfast
from holdfast.access import Policy
from holdfast.agents import PersistentAgent
from holdfast.backends.registry import backend_for
from holdfast.backends.runtime.drivers import run
from holdfast.encryption import Encryption, LocalKeys
from holdfast.engine.namespaces import thread_name
from holdfast.schemas import Schema
from holdfast.store.checkpointer import Checkpointer
from holdfast.store.store import Store
from tests.security.encryption.planted import contents_of, find_planted, rows_of
from tests.servers.places import place
from tests.support.nightly import mostly_nightly

_GUIDE = Path(__file__).parents[3] / "docs" / "guides" / "encryption.md"

NAMES: dict[str, tuple[str, ...]] = {
    "tenants": ("tenant",),
    "threads": ("thread",),
    "namespaces": ("namespace",),
    "scopes": ("agent scope", "user scope", "custom scope"),
    "agents": ("agent",),
    "sessions": ("session", "session user"),
    "identities": ("identity",),
    "topics and the like": ("topic", "requests", "pipeline", "document"),
    "subscribers": ("subscriber",),
    "tags": ("tag",),
    "labels": ("label",),
    "tasks": ("task",),
    "jobs": ("job",),
    "hooks with pending calls": ("durable hook",),
    "artifacts": ("artifact",),
}
"""What the guide calls names, and the fields that each word is about."""

IDS = ("checkpoint id",)
"""The fields that the guide calls ids."""

SEALED = (
    *("value", "state key", "message", "metadata key", "metadata value", "large", "channel", "written", "branch"),
    *("pin reason", "hold reason", "scope key", "scope value", "agent field", "step key", "step result", "signal"),
    *("artifact type", "artifact producer", "artifact name", "artifact metadata", "artifact content", "used key"),
    *("session metadata", "published", "asked", "item", "edited", "stage", "hook", "hook note"),
    *(
        "correlation",
        "role",
        "group",
        "grant keys",
        "token name",
        "schema",
        "schema form",
        "schema field",
        "schema threads",
        "job setting",
        "subject",
    ),
)
"""All other fields."""


def word(field: str) -> str:
    return f"planted{field.replace(' ', '')}q"


class Clerk(PersistentAgent, name="tests: clear fields"):
    note: str = ""


def fill(store: Store, searched: threading.Event) -> set[str]:
    """Plant a word in every field. Returns the fields. A call of a hook is pending until all was searched."""
    used: set[str] = set()

    def plant(field: str) -> str:
        used.add(field)
        return word(field)

    def note(call: Any) -> None:
        call.note(said=plant("hook note"))

    def wait(change: Any) -> None:
        searched.wait(60)

    store.hooks.before("state.*", name=plant("hook"))(note)
    thread = store.thread(plant("thread"))
    with holdfast.correlation(plant("correlation")):
        thread.put(
            {plant("state key"): plant("value"), "messages": [{"role": "user", "content": plant("message")}]},
            metadata={plant("metadata key"): plant("metadata value")},
            id=plant("checkpoint id"),
        )
    thread.put({"large": plant("large") * 20_000})
    store.thread(thread_name(word("thread"), plant("namespace"))).put({"n": 1})
    Checkpointer(store).put_writes(
        word("thread"), thread.get().id, [(plant("channel"), plant("written"))], task_id=plant("task")
    )
    thread.fork(plant("branch"))
    thread.tag(plant("tag"))
    thread.label(plant("label"))
    thread.pin(reason=plant("pin reason"))
    thread.hold(reason=plant("hold reason"))
    store.state(agent=plant("agent scope"))[plant("scope key")] = plant("scope value")
    store.state(user=plant("user scope"))["k"] = 1
    store.state(f"custom:{plant('custom scope')}")["k"] = 1
    agent = Clerk().attach(store, plant("agent"))
    agent.start()
    agent.note = plant("agent field")
    agent.once(plant("step key"), lambda: plant("step result"))
    store.agents.signal(word("agent"), plant("signal"), 1)
    agent.stop()
    store.artifacts.register(
        plant("artifact content").encode() * 3000,
        id=plant("artifact"),
        type=plant("artifact type"),
        producer=plant("artifact producer"),
        name=plant("artifact name"),
        metadata={"about": plant("artifact metadata")},
    )
    with store.artifacts.using(word("artifact")):
        store.state(agent="maker")[plant("used key")] = 1
        store.thread("made").put({"n": 1})
    assert [each.id for each in store.artifacts.list(type=word("artifact type"))] == [word("artifact")]
    assert [each.id for each in store.artifacts.list(producer=word("artifact producer"))] == [word("artifact")]
    assert [each.key for each in store.artifacts.of("agent:maker")] == [word("used key")]
    assert len(store.artifacts.of("agent:maker", word("used key"), version=1)) == 1
    assert {each.key for each in store.artifacts.changes(word("artifact"))} > {word("used key")}
    store.sessions.start(plant("session"), user=plant("session user"), metadata={"about": plant("session metadata")})
    topic = store.sharing.topic(plant("topic"))
    topic.subscribe(plant("subscriber"))
    topic.publish(plant("published"))
    store.sharing.requests(plant("requests")).ask(plant("asked"))
    store.sharing.pipeline(plant("pipeline"), stages=[plant("stage")]).put(plant("item"))
    store.sharing.document(plant("document")).edit(lambda _: plant("edited"))
    store.access.join(f"group:{plant('group')}", "agent:b")
    store.access.define_role(plant("role"), Policy().allow("read", "agent:*"))
    store.access.grant("agent:b", "read", "agent:a", keys=plant("grant keys"))
    store.access.issue_token("agent:b", name=plant("token name"))
    store.as_identity(agent=plant("identity")).state(agent=word("identity"))["k"] = 1
    form = TypedDict(plant("schema form"), {plant("schema field"): int})  # type: ignore[misc]
    store.schemas.attach(Schema(plant("schema"), "1.0.0", form), threads=plant("schema threads"))
    store.jobs.add(plant("job"), "compact", settings={"prefix": plant("job setting")})
    store.erasure.set_subject(plant("subject"), "made")
    store.hooks.after("state.*", name=plant("durable hook"), durable=True, budget=90)(wait)
    store.state(agent="a")["k"] = 2
    used.add("tenant")
    return used


def guide_names(*, hidden: bool) -> set[str]:
    """The names that the guide lists as in the clear: in general, and where names are hidden."""
    pattern = r"^- In the clear stay names of (.*?);" if hidden else r"^- \*\*names\*\*: of (.*), unless you \[hide"
    (listed,) = re.findall(pattern, _GUIDE.read_text(encoding="utf-8"), re.MULTILINE)
    return set(re.split(r", | and (?!the like)", listed))


def search(url: str, folder: Path, words: dict[str, list[str]]) -> set[str]:
    """Return which words are in the raw bytes of a store."""
    raw = run(backend_for(url).open(url))
    try:
        return find_planted(words, (*rows_of(raw), *contents_of(folder)))
    finally:
        run(raw.close())


@pytest.mark.parametrize("hidden", [False, True], ids=["names", "hidden"])
@pytest.mark.parametrize(
    "kind", mostly_nightly(["sqlite", "file", "postgres", "mongodb", "redis", "s3"], daily=["sqlite", "file"])
)
def test_what_is_in_the_clear_is_what_the_guide_lists(kind: str, hidden: bool, tmp_path: Path) -> None:
    url = place(kind, tmp_path)
    encryption = Encryption(LocalKeys(b"c" * 32), hide_names=hidden)
    searched = threading.Event()
    with holdfast.open(url, tenant=word("tenant"), encryption=encryption) as store:
        try:
            fields = fill(store, searched)
            found = search(url, tmp_path, {field: [word(field)] for field in fields})
        finally:
            searched.set()
    assert fields == {*SEALED, *IDS, *(field for some in NAMES.values() for field in some)}
    clear = {field for field in fields if word(field) in found}
    assert clear - set(IDS) == {field for name in guide_names(hidden=hidden) for field in NAMES[name]}
    assert clear >= set(IDS)
    assert guide_names(hidden=False) == set(NAMES)
