"""The agents of a store: create, save, load, list, compare, export and delete them."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import holdfast
from holdfast.agents.storage.agent_line import Delta
from holdfast.agents.storage.listing import AgentInfo
from holdfast.backends.interface import Get, Put, Query, Row, Scan
from holdfast.backends.memory import MemoryBackend
from holdfast.backends.runtime.drivers import run
from holdfast.backends.tables import NODES, OBJECTS, STEPS
from holdfast.backends.wrappers import Wrapper
from holdfast.engine.guard import UNCONDITIONAL
from holdfast.engine.model.operations import Set
from holdfast.errors import ConflictError, DeniedError, InvalidError, NotFoundError, UnsupportedError
from holdfast.store.store import Store
from tests.agents.greeters import AsyncGreeter, Greeter, aopened, opened
from tests.state.kit import SECOND, Clock
from tests.support.interference import InterferingBackend

START = datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)


def filled(store: Store, *names: str) -> dict[str, Greeter]:
    return {name: store.agents.create(Greeter, name, greeting="Hi") for name in names}


def ids(found: list[AgentInfo]) -> list[str]:
    return [each.id for each in found]


# Making, saving, loading --------------------------------------------------------------------------------------------


def test_an_agent_is_created_by_class_or_by_name_and_once() -> None:
    store = opened(MemoryBackend())
    agent = store.agents.create(Greeter, "a", greeting="Hi")
    assert (agent.version, agent.status, agent.configuration) == (1, "created", {"greeting": "Hi"})
    assert type(store.agents.create("tests: greeter", "b")) is Greeter
    with pytest.raises(ConflictError, match="already an agent with this id") as caught:
        store.agents.create(Greeter, "a")
    assert caught.value.code == "agent-exists"
    with pytest.raises(NotFoundError, match="is not registered as an agent class"):
        store.agents.create(dict, "c")
    with pytest.raises(NotFoundError, match="registered as 'nobody'"):
        store.agents.create("nobody", "c")
    assert [each.kind for each in store.agents.history("a")] == ["create"]
    assert store.agents.exists("a")
    assert not store.agents.exists("c")


def test_an_agent_is_loaded_as_it_was() -> None:
    clock = Clock()
    store = opened(MemoryBackend(), clock)
    agent = store.agents.create(Greeter, "a")
    for number in range(1, 5):
        clock.sleep(10)
        agent.count = number
        agent.save()
    assert [store.agents.load("a", version=version).fields["count"] for version in range(1, 6)] == [0, 1, 2, 3, 4]
    assert store.agents.load("a", at=START + timedelta(seconds=25)).fields["count"] == 2
    third = store.agents.load("a", version=3)
    assert store.agents.load("a", at=third.checkpoint) == third
    assert (third.updated, third.created) == (START + timedelta(seconds=20), START)
    for version in (0, 6, -1):
        with pytest.raises(NotFoundError, match="no version"):
            store.agents.load("a", version=version)
    with pytest.raises(NotFoundError, match="no such agent"):
        store.agents.load("nobody")
    with pytest.raises(InvalidError, match="not both"):
        store.agents.load("a", version=1, at=START)


def test_a_handle_is_not_attached_under_another_id() -> None:
    store = opened(MemoryBackend())
    with pytest.raises(InvalidError, match="is already attached"):
        store.agents.attach(store.agents.attach(_Plain(), "b", kind=_plain()), "c", kind=_plain())


class _Plain:
    """Has nothing."""


def _plain() -> Any:
    return holdfast.agents.AgentBuilder("tests: plain").fields("x").build(_Plain)


def test_messages_are_read_by_themselves() -> None:
    store = opened(MemoryBackend())
    agent = store.agents.create(Greeter, "a")
    for name in ("Ada", "Bob", "Eve"):
        agent.greet(name)
        agent.save()
    said = ["Hello, Ada (0)", "Hello, Bob (1)", "Hello, Eve (2)"]
    assert [each["content"] for each in store.agents.messages("a")] == said
    assert [each["content"] for each in store.agents.messages("a", -1)] == said[-1:]
    assert [each["content"] for each in store.agents.messages("a", 0, 2)] == said[:2]
    assert [each["content"] for each in store.agents.messages("a", version=2)] == said[:1]
    assert store.agents.messages("a", version=1) == []
    assert store.agents.load("a").messages == 3


# Lists --------------------------------------------------------------------------------------------------------------


def test_lists_are_filtered_and_come_in_pages() -> None:
    clock = Clock()
    store = opened(MemoryBackend(), clock)
    agents = filled(store, "a", "b/1", "b/2", "c%", "d")
    clock.now = (1_700_000_000 + 60) * SECOND
    agents["b/1"].metadata.update(team="red", size=3)
    agents["b/1"].start()
    agents["b/2"].metadata.update(team="blue", tags={"x"})
    agents["b/2"].transition("work")
    agents["d"].greet("Ada")
    agents["d"].stop()
    listed = store.agents.list
    assert ids(listed()) == ["a", "b/1", "b/2", "c%", "d"]
    assert ids(listed(limit=2)) == ["a", "b/1"]
    assert ids(listed(cursor="b/1", limit=2)) == ["b/2", "c%"]
    assert list(listed(limit=2).all()) == listed()
    assert list(listed(since=START + timedelta(seconds=1), limit=1).all()) == listed(since=START + timedelta(seconds=1))
    assert ids(listed(cursor="c%")) == ["d"]
    assert ids(listed(prefix="b/")) == ["b/1", "b/2"]
    assert ids(listed(prefix="c%")) == ["c%"]
    assert ids(listed(status="running")) == ["b/1"]
    assert ids(listed(state="busy")) == ["b/2"]
    assert ids(listed(kind=Greeter)) == ids(listed(kind="tests: greeter")) == ids(listed())
    assert ids(listed(kind="other")) == []
    assert ids(listed(metadata={"team": "red"})) == ["b/1"]
    assert ids(listed(metadata={"team": "red", "size": 4})) == []
    assert ids(listed(metadata={"tags": {"x"}})) == ["b/2"]
    assert ids(listed(since=START + timedelta(seconds=1))) == ["b/1", "b/2", "d"]
    assert ids(listed(until=START + timedelta(seconds=1))) == ["a", "c%"]
    assert ids(listed(since=START.astimezone().replace(tzinfo=None) + timedelta(seconds=1))) == ["b/1", "b/2", "d"]
    assert ids(listed(limit=0)) == []
    (last,) = listed(cursor="c%")
    assert last == AgentInfo(
        "d", "tests: greeter", "stopped", "idle", 2, START, START + timedelta(seconds=60), 1, {}, False
    )
    with pytest.raises(InvalidError, match="the status must be one of"):
        listed(status="asleep")  # type: ignore[arg-type]
    assert ids(listed(since=f"{(START + timedelta(seconds=1)).isoformat()}")) == ["b/1", "b/2", "d"]
    with pytest.raises(InvalidError, match="'soon' is not a time"):
        listed(since="soon")


def test_metadata_that_is_too_large_to_be_shown_is_found_all_the_same() -> None:
    store = opened(MemoryBackend())
    agent = store.agents.create(Greeter, "a")
    agent.metadata.update(text="x" * 10_000, team="red")
    agent.save()
    assert ids(store.agents.list(metadata={"team": "red"})) == ["a"]
    assert "x" * 100 not in str(store.agents.load("a").notes)


class Reads(Wrapper):
    """Counts what is read."""

    def __init__(self) -> None:
        super().__init__(MemoryBackend())
        self.queries: list[Query] = []

    async def read(self, queries: Any) -> list[list[Row]]:
        self.queries += queries
        return await super().read(queries)


def test_a_list_reads_no_states() -> None:
    backend = Reads()
    store = opened(backend)
    for number in range(30):
        agent = store.agents.create(Greeter, f"a{number:02}")
        agent.notes = {"text": "x" * 1000}
        agent.save()
    fresh = opened(backend)
    backend.queries.clear()
    assert len(fresh.agents.list()) == 30
    assert len(backend.queries) == 31
    for query in backend.queries:
        assert query.space not in (NODES, OBJECTS)
        assert isinstance(query, Scan)
        assert not query.bodies or query.space.name == "lines"
    assert not [each for each in backend.queries if isinstance(each, Get)]


def test_a_list_shows_what_is_damaged() -> None:
    backend = MemoryBackend()
    filled(opened(backend), "a", "b")
    (rows,) = run(backend.read([Scan(STEPS, ("", "␞agents:a"))]))
    columns = list(rows[0].columns)
    columns[6] = "{no JSON"
    run(backend.apply([Put(STEPS, Row(rows[0].key, tuple(columns), rows[0].body))]))
    assert [(each.id, each.damaged) for each in opened(backend).agents.list()] == [("a", True), ("b", False)]


# History, differences -----------------------------------------------------------------------------------------------


def test_history_tells_of_every_step() -> None:
    store = opened(MemoryBackend())
    agent = store.agents.create(Greeter, "a")
    with holdfast.correlation("mine"):
        agent.start()
        agent.transition("work")
    agent.greet("Ada")
    agent.stop()
    found = store.agents.history("a")
    assert [(each.version, each.kind, each.status, each.state) for each in found] == [
        (4, "lifecycle", "stopped", "busy"),
        (3, "transition", "running", "busy"),
        (2, "lifecycle", "running", "idle"),
        (1, "create", "created", "idle"),
    ]
    assert [each.correlation == "mine" for each in found] == [False, True, True, False]
    assert found[0].messages == 1
    assert store.agents.history("a", limit=2) == found[:2]
    assert store.agents.history("a", cursor=found[1].id) == found[2:]
    assert list(store.agents.history("a", limit=1).all()) == found


def test_what_differs_between_versions() -> None:
    store = opened(MemoryBackend())
    agent = store.agents.create(Greeter, "a")
    agent.count = 1
    agent.save()
    agent.count = 2
    agent.save()
    changed = store.agents.diff("a").changes
    assert [(each.path, each.old, each.new) for each in changed] == [(("fields", "count"), 1, 2)]
    assert [each.old for each in store.agents.diff("a", 1, 3).changes] == [0]
    first, third = store.agents.load("a", version=1), store.agents.load("a")
    assert store.agents.diff("a", first.checkpoint, third.checkpoint).changes == store.agents.diff("a", 1).changes


# Documents ----------------------------------------------------------------------------------------------------------


def test_an_agent_is_exported_and_imported() -> None:
    store, other = opened(MemoryBackend()), opened(MemoryBackend())
    agent = store.agents.create(Greeter, "a", greeting="Hi")
    agent.greet("Ada")
    agent.notes["when"] = START
    agent.transition("work")
    document = json.loads(json.dumps(store.agents.export("a")))
    assert (document["id"], document["version"]) == ("a", 2)
    record = other.agents.import_(document)
    assert (record.id, record.version, record.messages, record.state) == ("a", 1, 1, "busy")
    assert other.agents.messages("a") == store.agents.messages("a")
    twin, original = other.agents.restore("a"), store.agents.restore("a")
    assert twin.notes == {"when": START}
    assert twin.greet("Bob") == original.greet("Bob")
    assert store.agents.import_(document, id="b").id == "b"
    with pytest.raises(ConflictError, match="already an agent with this id"):
        store.agents.import_(document)
    assert store.agents.export("a", version=1)["version"] == 1
    assert [each.kind for each in other.agents.history("a")] == ["import"]


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"holdfast": "thread"}, InvalidError),
        ({"format": 99}, UnsupportedError),
        ({"state": []}, InvalidError),
        ({"state": {"class": "x"}}, InvalidError),
        ({"id": "../x"}, InvalidError),
        ({"id": None}, InvalidError),
    ],
    ids=["kind", "format", "list", "incomplete", "path", "none"],
)
def test_what_is_no_document_is_refused(change: dict[str, Any], error: type[Exception]) -> None:
    store = opened(MemoryBackend())
    document = store.agents.export(filled(store, "a")["a"].id)
    with pytest.raises(error):
        opened(MemoryBackend()).agents.import_({**document, **change})
    with pytest.raises(InvalidError):
        store.agents.import_({**document, "state": {**document["state"], "conversation": {}}}, id="b")
    with pytest.raises(InvalidError):
        store.agents.import_({**document, "state": {**document["state"], "counts": 3}}, id="b")
    with pytest.raises(InvalidError):
        store.agents.import_("text")  # type: ignore[arg-type]
    assert ids(store.agents.list()) == ["a"]


# Deleting -----------------------------------------------------------------------------------------------------------


def test_what_is_imported_rolled_back_or_resolved_is_listed_as_it_is() -> None:
    store = opened(MemoryBackend())
    for id, metadata in (("small", {"team": "docs"}), ("large", {"team": "docs", "text": "x" * 5000})):
        agent = Greeter().attach(store, id)
        agent.metadata.update(metadata)
        agent.greet("Ada")
        agent.start()
        store.agents.import_(store.agents.export(id), id=f"{id} too")
        store.agents.rollback(id, 1)
        for shown in store.agents.list(metadata={"team": "docs"}, prefix=id):
            assert (shown.messages, shown.metadata) == (1, metadata)
        for each in (id, f"{id} too"):
            notes = store.agents.load(each).notes
            assert ("metadata" in notes, "large" in notes) == (id == "small", id == "large")
    assert len(store.agents.list(metadata={"team": "docs"})) == 4


@pytest.mark.parametrize("counts", [{"tokens": "x"}, {"tokens": -1}, {"tokens": None}], ids=["text", "less", "none"])
def test_counts_that_are_none_are_refused(counts: dict[str, Any]) -> None:
    store = opened(MemoryBackend())
    store.agents.create(Greeter, "a")
    document = store.agents.export("a")
    document["state"]["counts"] = counts
    with pytest.raises(InvalidError, match="not the state of an agent"):
        store.agents.import_(document, id="b")


@pytest.mark.parametrize("change", [{"kind": 5}, {"time": "today"}, {"more": 1}], ids=["kind", "time", "more"])
def test_what_is_under_way_is_what_an_agent_saves(change: dict[str, Any]) -> None:
    store = opened(MemoryBackend())
    store.agents.create(Greeter, "a")
    document, codec = store.agents.export("a"), store._handle.codec
    pending = {"kind": "transition", "trigger": "t", "source": "s", "target": "t", "time": START, **change}
    document["state"]["pending"] = codec.to_json(pending)
    with pytest.raises(InvalidError, match="the pending change cannot be read"):
        store.agents.import_(document, id="b")
    assert not store.agents.exists("b")


def test_what_hooks_make_of_an_import_is_what_is_saved() -> None:
    store = opened(MemoryBackend())
    store.agents.create(Greeter, "a")

    @store.hooks.before("agent.create")
    def named(call: Any) -> Any:
        return {**call.value, "metadata": {"team": "hooks"}}

    store.agents.import_(store.agents.export("a"), id="b")
    assert ids(store.agents.list(metadata={"team": "hooks"})) == ["b"]


def test_what_is_done_with_an_agent_is_in_the_audit_of_its_scope() -> None:
    store = opened(MemoryBackend())
    for id in ("a", "x/y"):
        agent = store.agents.create(Greeter, id)
        agent.start()
        agent.transition("work")
        store.state(agent=id).set("k", 1)
        found = store.audit.query(scope=agent.persister.line.scope)
        assert {each.kind for each in found} == {"agent", "lifecycle", "transition", "change"}
        assert {each.scope for each in found} == {str(agent.persister.line.scope)}
        count = len(found)
        store.agents.delete(id)
        assert len(store.audit.query(scope=agent.persister.line.scope)) == count + 1
    assert store.audit.verify().ok
    assert not [each for each in store.audit.query(limit=100) if each.scope.startswith("agents:")]


def test_a_version_that_was_pruned_is_told_in_terms_of_agents() -> None:
    store = opened(MemoryBackend())
    agent = store.agents.create(Greeter, "a")
    first = store.agents.load("a").checkpoint
    for _ in range(5):
        agent.save()
    store.maintenance.prune(kinds="agent", keep_last=1)
    for asked in ({"version": 2}, {"at": first}, {"at": START - timedelta(days=1)}):
        with pytest.raises(NotFoundError) as caught:
            store.agents.load("a", **asked)
        assert "agents:" not in str(caught.value)
        assert "store.agents.history('a')" in caught.value.hint
        assert "agent 'a'" in str(caught.value)


def test_an_agent_is_deleted_and_the_audit_keeps_what_it_tells() -> None:
    store = opened(MemoryBackend())
    agent = store.agents.create(Greeter, "a")
    agent.start()
    store.state(agent="a")["plan"] = 1
    store.agents.delete("a")
    assert not store.agents.exists("a")
    assert store.state(agent="a")["plan"] == 1
    told = [(each.kind, each.action) for each in store.audit.query(limit=100)]
    assert ("agent", "create") in told
    assert ("lifecycle", "start") in told
    assert ("change", "remove") in told
    assert store.maintenance.verify().findings == []
    assert store.audit.verify().findings == []
    with pytest.raises(NotFoundError):
        store.agents.delete("a")
    with pytest.raises(ConflictError) as caught:
        agent.save()
    assert caught.value.code == "agent-conflict"
    assert store.agents.create(Greeter, "a").version == 1


def test_what_is_held_is_not_deleted() -> None:
    store = opened(MemoryBackend())
    filled(store, "a")
    store.maintenance.hold("a", kind="agent", reason="a dispute")
    with pytest.raises(DeniedError, match="a dispute"):
        store.agents.delete("a")
    assert store.agents.exists("a")
    store.maintenance.release("a", kind="agent")
    store.agents.delete("a")


def test_the_same_for_asyncio() -> None:
    async def main() -> None:
        store = aopened(MemoryBackend())
        agent = await store.agents.create(AsyncGreeter, "a")
        agent.count = 3
        assert await agent.save() == 2
        assert (await store.agents.load("a")).fields["count"] == 3
        assert ids(await store.agents.list()) == ["a"]
        assert await store.agents.exists("a")
        document = await store.agents.export("a")
        await store.agents.delete("a")
        assert (await store.agents.import_(document)).fields["count"] == 3
        assert len(await store.agents.history("a")) == 1

    asyncio.run(main())


# What is no agent ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("channel", "value", "what"),
    [
        ("status", "asleep", "there is no status 'asleep'"),
        ("fields", [1], "the fields of the agent is list, not dict"),
        ("pending", {"kind": "x", "nonsense": 1}, "the pending change cannot be read"),
        ("class", None, "the class of the agent is NoneType"),
    ],
    ids=["status", "fields", "pending", "class"],
)
def test_a_line_that_is_no_agents_is_said_to_be_corrupt(channel: str, value: Any, what: str) -> None:
    store = opened(MemoryBackend())
    agent = filled(store, "a")["a"]
    line, point = agent.persister.line, agent.persister.point
    delta = Delta({channel: Set(store._engine.context.codec.pack(value))})
    run(line.save(line.build_request("save", delta, point, {}, [], UNCONDITIONAL)))
    with pytest.raises(holdfast.errors.CorruptError, match=what):
        store.agents.load("a")
    assert store.agents.restore("a", on_corrupt="last-good").version == 2


def test_a_channel_that_is_missing_is_corrupt_too() -> None:
    store = opened(MemoryBackend())
    agent = filled(store, "a")["a"]
    line, point = agent.persister.line, agent.persister.point
    run(line.save(line.build_request("save", Delta(removed=["context"]), point, {}, [], UNCONDITIONAL)))
    with pytest.raises(holdfast.errors.CorruptError, match="the agent has no context"):
        store.agents.load("a")


def test_an_agent_that_is_saved_while_it_is_deleted_is_gone_or_there() -> None:
    backend = InterferingBackend()
    store, other = opened(backend), opened(backend)
    agent = store.agents.create(Greeter, "a")
    agent.greet("Ada")
    with backend.interfere(agent.save):
        other.agents.delete("a")
    assert not store.agents.exists("a")
    again = store.agents.create(Greeter, "a")
    with pytest.raises(ConflictError), backend.interfere(lambda: other.agents.delete("a")):
        again.save()
    assert not store.agents.exists("a")


def test_every_name_can_be_had_from_the_package() -> None:
    from holdfast import agents

    assert dir(agents) == sorted(vars(agents)["__all__"])
    for name in vars(agents)["__all__"]:
        assert getattr(agents, name) is not None
    with pytest.raises(AttributeError, match=r"module 'holdfast\.agents' has no attribute 'nonsense'"):
        agents.nonsense  # type: ignore[attr-defined]  # noqa: B018
