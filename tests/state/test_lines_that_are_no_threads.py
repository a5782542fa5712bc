"""The rest of the house with lines that hold state: no thread is made of them, and all upkeep knows them."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

import holdfast
from holdfast import Store
from holdfast.backends.interface import Delete, Get, Put, Row, Scan
from holdfast.backends.runtime.drivers import run
from holdfast.backends.tables import EVENTS, LINES, LINKS, STATE_VALUES, STEPS, TABLES, TRANSITIONS, WORDS
from holdfast.engine.checked_rows import CHECKSUMS
from holdfast.engine.integrity.findings import FindingCode
from holdfast.engine.row_format import Line, event_body
from holdfast.errors import InvalidError, NotFoundError
from holdfast.langgraph import HoldfastSaver
from holdfast.store.checkpointer import Checkpointer
from tests.damaged import flipped

LINE = "␞agent:a"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with holdfast.open(f"sqlite:///{tmp_path}/store.db", project=True) as opened:
        yield opened


def filled(store: Store) -> Store:
    """A store with threads on both sides of the state, in the order of names."""
    store.thread("chat").put({"text": "plain words"})
    store.thread("漢").put({"text": "words"})
    state = store.state(agent="a")
    state["plan"] = {"text": "secret words", "n": 1}
    state.set("later", "x", ttl=1000)
    state["__dunder"] = [1, 2]
    state["big"] = "much " * 50_000
    store.state(agent="a␟b")["other"] = 1
    return store


def rows(store: Store, space: Any, line: str = LINE) -> list[Row]:
    return run(store._engine.context.backend.read([Scan(space, (store.tenant, line))]))[0]


# Threads ------------------------------------------------------------------------------------------------------------


def test_state_is_no_thread(store: Store) -> None:
    filled(store)
    assert [thread.thread for thread in store.threads()] == ["chat", "漢"]
    assert [thread.thread for thread in store.threads(limit=1)] == ["chat"]
    assert [thread.thread for thread in store.threads(cursor="chat", limit=1)] == ["漢"]
    assert [thread.thread for thread in store.threads(cursor=LINE)] == ["漢"]
    assert store.threads(prefix="␞") == []
    assert store.status().threads == 2
    assert [match.thread for match in store.search("words")] == ["漢", "chat"]
    assert store.search("thread:␞agent:a") == []
    assert [thread.thread for thread in store.threads(where="words")] == ["chat", "漢"]


def test_nor_in_the_index_of_words(store: Store) -> None:
    filled(store)
    store.maintenance.build_index()
    store.state(agent="a")["plan"] = {"text": "secret words again"}
    assert rows(store, WORDS) == []
    assert [match.thread for match in store.search("secret")] == []
    store.maintenance.prune("agent:a", kinds="scope", keep_last=1)
    assert store.maintenance.verify(level="decode").findings == []


CHANGES: list[Callable[[Store], object]] = [
    lambda store: store.thread(LINE).put({"plan": 1}),
    lambda store: store.thread(LINE).update({"plan": 1}),
    lambda store: store.thread(LINE).restore(at=0),
    lambda store: store.thread(LINE).fork("b"),
    lambda store: store.thread(LINE).merge("HEAD~1"),
    lambda store: store.thread(LINE).switch("main"),
    lambda store: store.thread(LINE).rename_branch("main", "x"),
    lambda store: store.thread(LINE).delete_branch("main"),
    lambda store: store.thread("␞anything").put({}),
    lambda store: Checkpointer(store).put(LINE, {"plan": 1}),
    lambda store: Checkpointer(store).put_writes(LINE, "id", [("c", 1)], task_id="t"),
    lambda store: HoldfastSaver(store).get_tuple({"configurable": {"thread_id": LINE}}),
    lambda store: HoldfastSaver(store).delete_thread(LINE),
    lambda store: HoldfastSaver(store).copy_thread("chat", LINE),
]


def test_it_is_not_changed_as_a_thread_is(store: Store, subtests: pytest.Subtests) -> None:
    filled(store)
    before = store.state(agent="a").history()
    for number, act in enumerate(CHANGES):
        with subtests.test(number=number):
            with pytest.raises(InvalidError, match="cannot start with ␞"):
                act(store)
            with pytest.raises(InvalidError, match="cannot start with ␞"), store.transaction() as together:
                together.put(LINE, {})
            assert store.state(agent="a").history() == before


def test_a_saver_lists_no_state(store: Store) -> None:
    filled(store)
    HoldfastSaver(store).put({"configurable": {"thread_id": "t", "checkpoint_ns": ""}}, _checkpoint(), {}, {})
    assert {each.config["configurable"]["thread_id"] for each in HoldfastSaver(store).list(None)} >= {"t"}
    assert LINE not in {each.config["configurable"]["thread_id"] for each in HoldfastSaver(store).list(None)}


def _checkpoint() -> Any:
    from langgraph.checkpoint.base import empty_checkpoint

    return empty_checkpoint()


# Upkeep -------------------------------------------------------------------------------------------------------------


def test_it_is_copied_with_its_events_and_links(store: Store, tmp_path: Path) -> None:
    filled(store)
    link = Row((store.tenant, LINE, "artifact", "x", "y"), (5, "z"))
    run(store._engine.context.backend.apply([Put(LINKS, link)]))
    store.maintenance.copy_to(f"sqlite:///{tmp_path}/copy.db")
    with holdfast.open(f"sqlite:///{tmp_path}/copy.db") as copy:
        assert rows(copy, EVENTS) == rows(store, EVENTS)
        assert len(rows(copy, EVENTS)) == 4
        assert rows(copy, LINKS) == [link]
        assert dict(copy.state(agent="a")) == dict(store.state(agent="a"))
        copied = copy.state(agent="a").watch(cursor="").poll()
        assert [each.key for each in copied] == ["plan", "later", "__dunder", "big"]
    store.state(agent="a")["more"] = 1
    store.maintenance.copy_to(f"sqlite:///{tmp_path}/copy.db")
    with holdfast.open(f"sqlite:///{tmp_path}/copy.db") as copy:
        assert rows(copy, EVENTS) == rows(store, EVENTS)


def test_it_is_exported_and_imported_with_its_events_and_links(store: Store) -> None:
    filled(store)
    run(store._engine.context.backend.apply([Put(LINKS, Row((store.tenant, LINE, "artifact", "x", "y"), (5, "z")))]))
    file = io.BytesIO()
    store.maintenance.export(file, kinds="all")
    file.seek(0)
    with holdfast.open("memory://") as other:
        other.maintenance.import_(file)
        assert rows(other, EVENTS) == rows(store, EVENTS)
        assert rows(other, LINKS) == rows(store, LINKS)
        assert dict(other.state(agent="a")) == dict(store.state(agent="a"))
        assert other.maintenance.verify().findings == []
        other.state(agent="a")["goes"] = "on"
        file.seek(0)
        with pytest.raises(InvalidError, match="cannot start with ␞"):
            other.maintenance.import_(file, threads=["chat"], as_thread="␞agent:x")
        file.seek(0)
        with pytest.raises(InvalidError, match="its own name"):
            other.maintenance.import_(file, threads=["agent:a"], kinds="scope", as_thread="chat")


def test_pruning_keeps_the_events_and_what_is_kept_can_be_read(store: Store) -> None:
    state = store.state(agent="a")
    for n in range(10):
        state["n"] = n
    state.patch("p", {"x": 1})
    events = rows(store, EVENTS)
    store.maintenance.prune("agent:a", kinds="scope", keep_last=2)
    assert rows(store, EVENTS) == events
    assert len(events) == 11
    assert state.at(11) == {"n": 9, "p": {"x": 1}}
    assert state.get_at("n", 10) == 9
    assert state.item("n").version == 10
    with pytest.raises(NotFoundError):
        state.at(3)
    assert [past.version for past in state.history("n")] == [10]
    assert state.set("n", "more", expected=10) == 12
    assert store.maintenance.verify(level="decode").findings == []


def test_a_damaged_event_is_found_and_repaired(store: Store, tmp_path: Path) -> None:
    filled(store)
    (event, *_) = rows(store, EVENTS)
    body = event_body(store._engine.context.codec.pack({"a": 1}))
    whole = event._replace(body=body)
    run(store._engine.context.backend.apply([Put(EVENTS, whole)]))
    assert store.maintenance.verify().findings == []
    store.maintenance.copy_to(f"sqlite:///{tmp_path}/copy.db")
    spoilt = CHECKSUMS.encode(EVENTS, whole)
    run(store._engine.context.stored.apply([Put(EVENTS, spoilt._replace(body=flipped(spoilt.body)))]))
    (finding,) = store.maintenance.verify().findings
    assert (finding.code, finding.thread, finding.space) == (FindingCode.DAMAGED_EVENT, LINE, "events")
    store.maintenance.repair(f"sqlite:///{tmp_path}/copy.db")
    assert store.maintenance.verify().findings == []
    assert whole in rows(store, EVENTS)


def test_a_damaged_event_goes_to_quarantine_where_nobody_has_another(store: Store) -> None:
    filled(store)
    (event, *rest) = rows(store, EVENTS)
    run(store._engine.context.backend.apply([Put(EVENTS, event._replace(body=b"not what was written"))]))
    store.maintenance.repair()
    assert store.maintenance.verify().findings == []
    assert rows(store, EVENTS) == rest
    assert [each.space for each in store.maintenance.quarantine()] == ["events"]
    assert store.state(agent="a")["plan"] == {"text": "secret words", "n": 1}


def test_events_and_links_of_a_line_that_is_gone_are_orphans(store: Store) -> None:
    filled(store)
    backend = store._engine.context.backend
    run(backend.apply([Put(LINKS, Row((store.tenant, "␞artifacts", "k", "x", "y"), (5, "z")))]))
    gone = [space for space in TABLES if space is not EVENTS]
    run(backend.apply([Delete(space, (store.tenant, LINE)) for space in gone]))
    store._engine.context.cache.clear()
    assert {finding.thread for finding in store.maintenance.verify().findings} == {LINE, "␞artifacts"}
    assert {each.thread for each in store.maintenance.sweep_orphans(dry_run=True).found} == {LINE, "␞artifacts"}
    store.maintenance.sweep_orphans(grace="0s")
    assert rows(store, EVENTS) == []
    assert rows(store, LINKS, "␞artifacts") == []


def test_orphans_leave_state_alone(store: Store) -> None:
    filled(store)
    before = {space.name: rows(store, space) for space in (EVENTS, LINES)}
    assert store.maintenance.sweep_orphans(grace="0s").found == []
    assert {space.name: rows(store, space) for space in (EVENTS, LINES)} == before


# Readable rows ------------------------------------------------------------------------------------------------------


def test_readable_rows_say_what_the_keys_hold(store: Store) -> None:
    filled(store)
    state = store.state(agent="a")
    state.patch("plan", {"n": 2})
    state["talk"] = [{"role": "user", "content": "hello"}]
    state["talk"] = [{"role": "user", "content": "hello"}, {"role": "user", "content": "again"}]
    del state["later"]
    values = {str(row.key[2]): row.columns for row in rows(store, STATE_VALUES)}
    assert {key: columns[0] for key, columns in values.items()} == {
        "plan": "value",
        "big": "left out",
        "talk": "value",
    }
    assert values["plan"][4] == '{"text":"secret words","n":2}'
    ids = {str(row.columns[0]) for row in rows(store, STEPS)}
    assert {str(columns[2]) for columns in values.values()} <= ids
    assert {str(row.key[2]) for row in rows(store, TRANSITIONS)} == ids
    assert store.maintenance.verify(level="decode").findings == []
    before = [rows(store, space) for space in (STATE_VALUES, TRANSITIONS)]
    store.maintenance.project(again=True)
    assert [rows(store, space) for space in (STATE_VALUES, TRANSITIONS)] == before


def test_readable_rows_cost_no_more_in_a_large_scope() -> None:
    with holdfast.open("memory://", project=True) as store:
        state = store.state(agent="a")
        state.batch({f"key {n}": n for n in range(2000)})
        reads: list[Any] = []
        backend = store._engine.context.backend
        read = backend.read

        async def counted(queries: Any) -> Any:
            found = await read(queries)
            reads.append(sum(map(len, found)))
            return found

        backend.read = counted  # type: ignore[method-assign]
        store._engine.context.cache.drop(("rows", Line(store.tenant, LINE)))
        state["key 7"] = "new"
        assert sum(reads) < 20
        (row,) = run(read([Get(STATE_VALUES, [(store.tenant, LINE, "key 7")])]))[0]
        assert row.columns[4] == '"new"'


# Other tools --------------------------------------------------------------------------------------------------------


def test_the_view_of_threads_shows_no_state(store: Store, tmp_path: Path) -> None:
    filled(store)
    connection = apsw.Connection(f"{tmp_path}/store.db", flags=apsw.SQLITE_OPEN_READONLY)
    assert sorted(name for (name,) in connection.execute("SELECT thread FROM threads")) == ["chat", "漢"]
    connection.close()
