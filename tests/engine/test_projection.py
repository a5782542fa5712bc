"""Readable rows say what the log says, whatever was done to it."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import tempfile
import threading
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from langgraph.graph import START, MessagesState, StateGraph

import holdfast
from holdfast.backends.interface import Backend, Batch, Capabilities, Delete, Put, Row, Scan
from holdfast.backends.memory import MemoryBackend
from holdfast.backends.runtime.drivers import run
from holdfast.backends.tables import (
    BEHIND,
    CONVERSATION_HISTORY,
    HEADS,
    METADATA,
    READABLE,
    STATE_VALUES,
    STEPS,
    JsonText,
)
from holdfast.backends.wrappers import Wrapper
from holdfast.engine.copy.within_store import LineCopier
from holdfast.engine.row_format import Line
from holdfast.errors import ConfigError
from holdfast.langgraph import HoldfastSaver
from holdfast.store.store import Store
from tests.damaged import flipped
from tests.engine.lines import KINDS, Clock, backend
from tests.engine.pruned import dropping_ids, prune
from tests.engine.rows import check_rows, made_again, rows_of, showing, thread_rows_of
from tests.engine.test_histories import Thread, perform, scripts
from tests.servers.places import DURABLE, place
from tests.support.counting import CountingBackend
from tests.support.nightly import by_day, examples, mostly_nightly


@pytest.mark.parametrize("kind", KINDS)
@given(script=scripts(), fold_every=st.sampled_from([1, 3, 32]), cache=st.sampled_from([0, 20_000, 1 << 24]))
@settings(max_examples=examples(20))
def test_rows_are_what_the_log_says(kind: str, script: list[tuple[str, Any]], fold_every: int, cache: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        on = backend(kind, Path(folder))
        thread = Thread(showing(on, fold_every=fold_every, cache_bytes=cache))
        for action, (state, chance) in script:
            perform(thread, action, state, chance)
            check_rows(on, fold_every=fold_every)
        thread.check()
        run(on.close())


@given(script=scripts(), bits=st.integers(0, (1 << 30) - 1))
@settings(max_examples=examples(20))
def test_rows_follow_a_prune(script: list[tuple[str, Any]], bits: int) -> None:
    on = MemoryBackend()
    thread = Thread(showing(on, fold_every=3))
    for action, (state, chance) in script:
        perform(thread, action, state, chance)
    gone = [id for place, id in enumerate(sorted(thread.saved)) if bits >> place & 1]
    prune(thread.store, dropping_ids(*gone))
    check_rows(on, fold_every=3)
    if len(gone) < len(thread.saved):
        thread.store.thread("t").put({"messages": ["on it goes"]}, id="9999")
        check_rows(on, fold_every=3)


# What is shown ----------------------------------------------------------------------------------------------------


def test_messages_of_all_kinds_are_told_one_by_one() -> None:
    on = MemoryBackend()
    said: list[Any] = [
        SystemMessage("be brief"),
        HumanMessage("what is\0 it?", name="ann", id="1"),
        AIMessage(
            [{"type": "text", "text": "let me"}, {"type": "text", "text": "see"}],
            tool_calls=[{"name": "look", "args": {"at": 1}, "id": "c"}],
        ),
        ToolMessage("a cat", tool_call_id="c"),
        {"role": "assistant", "content": "a cat"},
        {"role": "assistant", "content": None, "tool_calls": []},
    ]
    made = showing(on).thread("t").put({"talk": said, "messages": ["one", "two"], "plan": [{"role": 1}], "empty": []})
    rows = rows_of(on)
    talk = [rows["conversation_history"]["t", "talk", place] for place in range(6)]
    assert [(row["role"], row["name"], row["content"]) for row in talk] == [
        ("system", "", "be brief"),
        ("user", "ann", "what is\ufffd it?"),
        ("assistant", "", "let me\nsee"),
        ("tool", "", "a cat"),
        ("assistant", "", "a cat"),
        ("assistant", "", ""),
    ]
    assert talk[2]["message"]["tool_calls"][0]["args"] == {"at": 1}
    assert {row["checkpoint"] for row in talk} == {made.id}
    assert [row["content"] for key, row in rows["conversation_history"].items() if key[1] == "messages"] == [
        "one",
        "two",
    ]
    values = {key[1]: (row["kind"], row["items"], row["value"]) for key, row in rows["state_values"].items()}
    assert values == {
        "talk": ("conversation", 6, None),
        "messages": ("conversation", 2, None),
        "plan": ("value", 0, [{"role": 1}]),
        "empty": ("value", 0, []),
    }


@pytest.mark.parametrize("project", [True, "follow"])
def test_the_records_of_the_store_have_no_rows(project: bool | Literal["follow"]) -> None:
    def fill(store: Store) -> None:
        store.thread("t").put({"n": 1}, metadata={"subject": "u-1"})
        store.state(agent="a")["k"] = 1
        store.sessions.start("s", on_end="keep").state["k"] = 1
        store.artifacts.register(b"x", id="x")
        store.erasure.erase("u-2")
        store.access.freeze("user:u-3", reason="stolen")

    shown, on = {"t", "␞agent:a", "␞session:s"}, MemoryBackend()
    store = showing(on, project=project)
    fill(store)
    store.maintenance.project()
    assert {str(key[0]) for rows in rows_of(on).values() for key in rows} == shown
    assert run(on.read([Scan(BEHIND, ())])) == [[]]
    assert store.maintenance.verify(kinds="all", level="decode").findings == []
    # Those that are there already are removed.
    head = run(on.read([Scan(HEADS, ())]))[0][0]
    for again in (False, True):
        value = Row(("", "␞erasures", "key"), ("value", 0, "", "", JsonText('"k"')))
        run(on.apply([Put(HEADS, head._replace(key=("", "␞erasures"))), Put(STATE_VALUES, value)]))
        assert [each.thread for each in store.maintenance.verify(kinds="all", level="decode").findings] == ["␞erasures"]
        store.maintenance.project(again=again)
        assert {str(key[0]) for rows in rows_of(on).values() for key in rows} == shown


def test_values_that_databases_refuse_are_shown_in_another_way() -> None:
    on = MemoryBackend()
    deep: Any = ()
    for n in range(80):
        deep = (deep,) if n == 40 else [deep]
    state = {
        "numbers": [2**63, -(2**63), float("nan"), float("inf"), 1.5],
        "text\0": "a\0b",
        "keys": {"\0": 1, 2: "two", ("t",): None},
        "lone": "\ud800",
        "deep": deep,
        "n" * 3000: 1,
        "__internal__": 1,
    }
    showing(on).thread("t").put(state, metadata={"k\0": "v\0", "big": "x" * 100_000, "l" * 2000: 1})
    rows = rows_of(on)
    values = {str(key[1]): row["value"] for key, row in rows["state_values"].items()}
    assert values["numbers"] == [str(2**63), -(2**63), "NaN", "Infinity", 1.5]
    assert values["keys"]["\ufffd"] == 1
    assert "\0" not in json.dumps(values)
    levels, tree = 0, values["deep"]
    while isinstance(tree, list):
        levels, tree = levels + 1, tree[0] if tree else None
    assert (levels, tree) == (64, "nested too deeply")
    assert [name for name in values if name.startswith("text")] != ["text\0"]
    assert [len(name.encode()) <= 256 for name in values] == [True] * len(values)
    assert not any(name.startswith("__") for name in values)
    (changed,) = [row["changed"] for row in rows["transitions"].values()]
    assert "__internal__" not in changed
    metadata = {str(key[2]): row["value"] for key, row in rows["metadata"].items()}
    assert metadata["big"] is None
    assert [len(name.encode()) <= 256 for name in metadata] == [True] * 3


def test_a_large_value_is_left_out_until_it_is_set_anew() -> None:
    on = MemoryBackend()
    store = showing(on)
    store.thread("t").put({"large": {str(n): "v" * 100 for n in range(1000)}, "small": {"a": 1}})
    assert rows_of(on)["state_values"]["t", "large"]["kind"] == "left out"
    store.thread("t").update({("large", "0"): "changed"}, remove=[("large", str(n)) for n in range(1, 1000)])
    row = rows_of(on)["state_values"]["t", "large"]
    assert (row["kind"], row["checkpoint"]) == ("left out", store.thread("t").get().id)
    store.thread("t").update({"large": "small"})
    assert rows_of(on)["state_values"]["t", "large"]["value"] == "small"


def test_a_large_message_is_told_in_part() -> None:
    on = MemoryBackend()
    store = showing(on)
    store.thread("t").put({"messages": [HumanMessage("x" * 200_000), HumanMessage("y")]})
    store.thread("t").update(
        {"messages": [HumanMessage("x" * 200_000), HumanMessage("y"), HumanMessage("z" * 100_000)]}
    )
    rows = rows_of(on)["conversation_history"]
    assert [len(rows["t", "messages", place]["content"]) for place in range(3)] == [65536, 1, 65536]
    assert [rows["t", "messages", place]["message"] is None for place in range(3)] == [True, False, True]
    check_rows(on)


def test_messages_that_are_too_many_for_a_batch_are_left_out() -> None:
    on = MemoryBackend()
    store = showing(on)
    said = [HumanMessage(f"{n} {'x' * 50_000}") for n in range(200)]
    store.thread("t").put({"messages": said, "few": said[:3]})
    rows = rows_of(on)
    kinds = {key[1]: (row["kind"], row["items"]) for key, row in rows["state_values"].items()}
    assert kinds == {"messages": ("left out", 0), "few": ("conversation", 3)}
    assert len(rows["conversation_history"]) == 3
    store.thread("t").put({"messages": said, "few": said})
    assert rows_of(on)["state_values"]["t", "few"]["kind"] == "left out"
    assert not rows_of(on)["conversation_history"]
    check_rows(on)


# What it costs ----------------------------------------------------------------------------------------------------


class Watching(Wrapper):
    """Remembers the batches."""

    def __init__(self, inner: Backend) -> None:
        super().__init__(inner)
        self.batches: list[Batch] = []

    async def apply(self, batch: Batch) -> int | None:
        self.batches.append(batch)
        return await self.inner.apply(batch)


@pytest.mark.parametrize("how", ["put", "update"])
def test_a_step_of_a_long_chat_writes_and_reads_no_more_than_one_of_a_short_one(how: str) -> None:
    costs, long = {}, by_day(2000, 600)
    for length in (10, long):
        watching = Watching(MemoryBackend())
        counting = CountingBackend(watching)
        store = showing(counting, cache_bytes=64 << 20)
        said: list[BaseMessage] = [HumanMessage(f"message {n}", id=str(n)) for n in range(length)]
        store.thread("t").put({"messages": said, "other": 1})
        for turn in range(40):  # past the next fold
            said.append(AIMessage(f"answer {turn}"))
            counting.reset()
            watching.batches.clear()
            if how == "put":
                store.thread("t").put({"messages": said, "other": 1})
            else:
                store.thread("t").update({"messages": said})
        made = [change for batch in watching.batches for change in batch]
        shown = [change.space.name for change in made if change.space in READABLE]
        costs[length] = (shown, counting.reads)
    assert costs[10] == costs[long]
    assert costs[10][0] == ["transitions", "conversation_history", "state_values", "heads", "heads"]
    assert costs[10][1] == 0


def test_without_rows_nothing_is_written_or_read_for_them() -> None:
    watching = Watching(MemoryBackend())
    store = showing(watching, project=False)
    store.thread("t").put({"messages": ["a"]}, metadata={"k": 1})
    store.thread("t").put({"messages": ["a", "b"]})
    assert not any(change.space in READABLE for batch in watching.batches for change in batch)
    assert not any(rows_of(watching.inner).values())


# Others at work ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", ["on top", "branches"])
def test_writers_at_once_leave_the_right_rows(kind: str, how: str, tmp_path: Path) -> None:
    on = backend(kind, tmp_path)
    stores = [showing(on, clock=Clock()) for _ in range(3)]  # each with a memory of its own
    first = stores[0].thread("t").put({"messages": ["start"]})
    failed: list[BaseException] = []

    def write(writer: int) -> None:
        store, parent = stores[writer], first.id
        try:
            for n in range(15):
                said = [f"{writer} says {m}" for m in range(n)]
                state = {"messages": ["start", *said], f"of {writer}": n}
                parent = (
                    store.thread("t").put(state, metadata={"n": n}, parent=parent if how == "branches" else None).id
                )
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=write, args=(writer,)) for writer in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert len(rows_of(on)["transitions"]) == 46
    assert rows_of(on)["heads"][("t",)]["checkpoint"] == stores[0].thread("t").get().id
    check_rows(on)
    run(on.close())


def test_tasks_at_once_leave_the_right_rows(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/a.db"

    async def main() -> None:
        async with holdfast.aopen(url, project=True) as store:
            await asyncio.gather(*(store.thread("t").put({"messages": [f"{n}"], f"of {n}": n}) for n in range(30)))

    asyncio.run(main())
    on = backend_at(url)
    assert len(rows_of(on)["transitions"]) == 30
    check_rows(on)
    run(on.close())


def backend_at(url: str) -> Backend:
    return holdfast.open(url)._engine.context.stored


def test_rows_are_made_when_they_are_first_wanted() -> None:
    on = MemoryBackend()
    without = showing(on, project=False, fold_every=3)
    for n in range(20):
        without.thread("t").put({"messages": [HumanMessage(str(m)) for m in range(n)]}, metadata={"n": n})
    without.thread("t").put({"messages": []}, parent=without.thread("t").log()[10].id)
    store = showing(on, fold_every=3)
    store.thread("t").put({"messages": ["now"]})
    assert len(rows_of(on)["transitions"]) == 22
    check_rows(on, fold_every=3)


def test_a_writer_who_makes_no_rows_is_made_up_for() -> None:
    on = MemoryBackend()
    store, without = showing(on), showing(on, project=False)
    store.thread("t").put({"messages": ["a"]})
    without.thread("t").put({"messages": ["a", "b"]})
    store.thread("t").put({"messages": ["a", "b", "c"]})
    check_rows(on)


@pytest.mark.nightly
def test_making_up_for_a_writer_who_makes_no_rows_costs_what_is_missing() -> None:
    costs = {}
    for length in (10, 500):
        counting = CountingBackend(MemoryBackend())
        store, without = showing(counting), showing(counting.inner, project=False)
        for n in range(length):
            store.thread("t").put({"messages": ["a"], "n": n})
        for n in range(3):
            without.thread("t").put({"messages": ["a"], "n": -n})
        counting.reset()
        store.thread("t").put({"messages": ["a", "b"], "n": 0})
        costs[length] = counting.rows_read["steps"]
        check_rows(counting.inner)
    assert costs[500] <= costs[10] + 32  # up to the last folded state


@pytest.mark.parametrize("many", [1, 50])
def test_checkpoints_that_lack_rows_are_found_wherever_they_are(many: int) -> None:
    on = MemoryBackend()
    store, without = showing(on), showing(on, project=False)
    store.thread("t").put({"n": 1}, id="1", metadata={"n": 1})
    aside = "1"
    for n in range(many):
        aside = without.thread("t").put({"n": 2}, id=f"2{n:02}", parent=aside).id
    store.thread("t").put({"n": 3}, id="3", parent="1")
    assert store.maintenance.project() == 1
    check_rows(on)
    without.thread("t").put({"n": 4}, id="2", parent="1", metadata={"n": 4})
    without.thread("t").put({"n": 5}, id="2", metadata={"n": 5})
    assert store.maintenance.project() == 1
    check_rows(on)
    assert store.maintenance.project() == 0


def damage(on: Backend, thread: str, number: int) -> None:
    """Alter a step."""
    row = run(on.read([Scan(STEPS, ("", thread))]))[0][number]
    run(on.apply([Put(STEPS, row._replace(body=flipped(row.body)))]))


def test_what_was_damaged_long_ago_is_told_in_part() -> None:
    on = MemoryBackend()
    without = showing(on, project=False, fold_every=2)
    for n in range(6):
        without.thread("t").put({"n": n}, metadata={"n": n})
    damage(on, "t", 0)
    store = showing(on, fold_every=2)
    made = [store.thread("t").put({"n": n}).id for n in (7, 8)]
    rows = rows_of(on)
    assert rows["heads"][("t",)]["checkpoint"] == made[-1]
    assert rows["state_values"]["t", "n"]["value"] == 8
    assert [row["changed"] for row in rows["transitions"].values()] == [None, *([["n"]] * 7)]
    assert len(rows["metadata"]) == 5


def test_a_damaged_thread_can_be_saved_to_and_is_shown_when_it_is_whole() -> None:
    on = MemoryBackend()
    without = showing(on, project=False, fold_every=2)
    for n in range(5):
        without.thread("t").put({"n": n}, id=str(n))
    damage(on, "t", 4)
    store = showing(on, fold_every=2)
    store.thread("t").put({"n": 5}, id="5", parent="2")
    assert store.thread("t").get().state == {"n": 5}
    assert not rows_of(on)["heads"]
    assert list(rows_of(on)["transitions"]) == [("t", str(n)) for n in range(6)]
    store.thread("t").put({"n": 6}, id="6")
    assert rows_of(on)["state_values"]["t", "n"]["value"] == 6


def test_a_transaction_of_many_steps_is_shown_whole() -> None:
    on = MemoryBackend()
    store = showing(on)
    store.thread("t").put({"messages": [HumanMessage(str(n)) for n in range(50)]})
    with store.transaction() as together:
        for n in range(5):
            said = [HumanMessage(str(m)) for m in range(n, 52 + n)]
            together.put("t", {"messages": said, "n": n, f"only {n}": n}, metadata={"n": n})
            together.put("u", {"messages": said})
    check_rows(on)
    assert {row["checkpoint"] for key, row in rows_of(on)["conversation_history"].items() if key[0] == "u"}


# Following --------------------------------------------------------------------------------------------------------


def test_rows_go_with_their_thread() -> None:
    on = MemoryBackend()
    store = showing(on)
    for thread in ("t", "u"):
        store.thread(thread).put({"messages": ["a"], "n": 1}, metadata={"k": 1})
    store.thread("t").delete()
    assert {key[0] for rows in thread_rows_of(on).values() for key in rows} == {"u"}
    store.thread("t").put({"messages": ["b"]})
    check_rows(on)


def test_rows_come_with_a_copy() -> None:
    on = MemoryBackend()
    store = showing(on)
    store.thread("t").put({"messages": ["a"], "n": 1}, metadata={"k": 1})
    run(LineCopier(store._engine).copy({Line("", "t"): Line("", "copy")}))
    assert rows_of(on)["state_values"]["copy", "n"]["value"] == 1
    check_rows(on)


def test_a_prune_by_one_who_makes_no_rows_takes_them_along() -> None:
    on = MemoryBackend()
    store = showing(on)
    ids = [store.thread("t").put({"messages": [f"secret {n}"]}, metadata={"n": n}).id for n in range(4)]
    prune(showing(on, project=False), dropping_ids(*ids[2:]))
    rows = rows_of(on)
    assert {key[1] for key in rows["transitions"]} == {key[1] for key in rows["metadata"]} == set(ids[:2])
    assert [rows[name] for name in ("heads", "conversation_history", "state_values")] == [{}] * 3
    store.thread("t").put({"messages": ["more"]})
    check_rows(on)


# Asking for it ----------------------------------------------------------------------------------------------------


def test_rows_are_made_for_all_threads_and_again_where_it_ended() -> None:
    on = MemoryBackend()
    without, store = showing(on, project=False), showing(on)
    for n in range(5):
        without.thread(f"t{n}").put({"messages": ["a"]})
    seen: list[tuple[str, int]] = []

    def stop(name: str, number: int) -> None:
        seen.append((name, number))
        if number == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.maintenance.project(progress=stop)
    assert [key[0] for key in rows_of(on)["heads"]] == ["t0", "t1"]
    assert store.maintenance.project(progress=lambda name, number: seen.append((name, number))) == 3
    assert seen[2:] == [(f"t{n}", n + 1) for n in range(5)]
    assert store.maintenance.project() == 0
    assert store.maintenance.project(after="t2", again=True) == 2
    check_rows(on)


def test_damaged_rows_are_made_anew() -> None:
    on = MemoryBackend()
    store = showing(on)
    store.thread("t").put({"n": 1, "messages": ["a", "b"]}, metadata={"k": 1})
    store.thread("t").put({"n": 2, "messages": ["a", "b"]}, metadata={"k": 1})
    run(on.apply([Delete(CONVERSATION_HISTORY, ()), Delete(METADATA, ())]))
    assert store.maintenance.project() == 0
    assert store.maintenance.project(again=True) == 1
    assert rows_of(on) == made_again(on) | {"heads": rows_of(on)["heads"]}
    bogus = ("", "", "", "", "zzzz", "", "", "", "", 1, "", 9)
    run(on.apply([Put(HEADS, Row(("", "t"), bogus)), Delete(STATE_VALUES, ("", "t", "n"))]))
    assert store.maintenance.project() == 1
    check_rows(on)


def test_whether_rows_are_made_is_the_stores_to_say_unless_one_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def capabilities(self: MemoryBackend) -> Capabilities:
        return Capabilities(durable=False, shared=False, max_body=1 << 30, max_batch=1 << 31, projected=True)

    assert not holdfast.open("memory://")._engine.projector.on
    assert holdfast.open("memory://", project=True)._engine.projector.on
    monkeypatch.setattr(MemoryBackend, "capabilities", property(capabilities))
    assert holdfast.open("memory://")._engine.projector.on
    assert not holdfast.open("memory://", project=False)._engine.projector.on
    with pytest.raises(ConfigError, match="project must be True, False"):
        holdfast.open("memory://", project="yes")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="opened without readable rows"):
        holdfast.open("memory://", project=False).maintenance.project()


def test_sqlite_answers_questions_about_them(tmp_path: Path) -> None:
    with holdfast.open(f"sqlite:///{tmp_path}/a.db", project=True) as store:
        store.thread("t").put(
            {"plan": {"steps": [1, 2, 3]}, "messages": [HumanMessage("hi")]}, metadata={"user": "ann"}
        )
    with sqlite3.connect(tmp_path / "a.db") as connection:
        (count,) = connection.execute(
            "SELECT json_array_length(value, '$.steps') FROM state_values WHERE channel = 'plan'"
        )
        (said,) = connection.execute("SELECT role, content FROM conversation_history WHERE thread = 't'")
        (who,) = connection.execute("SELECT checkpoint FROM metadata WHERE key = 'user' AND value ->> '$' = 'ann'")
    connection.close()
    assert (count, said) == ((3,), ("user", "hi"))
    assert who[0]


# On every store, and under LangGraph ------------------------------------------------------------------------------


@pytest.mark.nightly
@pytest.mark.parametrize("kind", mostly_nightly(DURABLE, daily=["sqlite", "postgres", "mongodb"]))
def test_rows_are_right_in_every_store(kind: str, tmp_path: Path) -> None:
    on = backend_at(place(kind, tmp_path))
    store = showing(on, fold_every=4)
    said: list[Any] = []
    ids: list[str] = []
    for n in range(12):
        said = [*said[n == 7 :], HumanMessage(f"number {n}", id=str(n)), {"role": "assistant", "content": "é\0😀"}]
        state = {"messages": said, "numbers": [n, 2**63 - 1, 2**70, 1.5, None, True], "plan": {"a.b": {"$c": n}}}
        ids.append(store.thread("t").put(state, metadata={"n": n, "who": "ann"}).id)
    store.thread("t").update({"messages": said[:5], "large": "x" * 70_000}, remove=["plan"])
    store.thread("t").fork("side", at=ids[3])
    store.thread("t").put({"messages": ["aside"]}, branch="side")
    check_rows(on, fold_every=4)
    again = showing(on, fold_every=4)
    again.thread("t").put({"messages": [*said, "main again"]}, parent=ids[-1])
    check_rows(on, fold_every=4)
    prune(again, dropping_ids(*ids[2:9]))
    check_rows(on, fold_every=4)
    again.thread("t").put({"revised": True}, id=ids[10])
    check_rows(on, fold_every=4)
    assert again.maintenance.project(again=True) == 1
    check_rows(on, fold_every=4)
    again.thread("t").delete()
    assert not any(thread_rows_of(on).values())
    run(on.close())


def test_a_graph_is_shown(tmp_path: Path) -> None:
    def answer(state: MessagesState) -> dict[str, Any]:
        return {"messages": [AIMessage(f"you said {state['messages'][-1].content}")]}

    builder = StateGraph(MessagesState)
    builder.add_node("answer", answer)
    builder.add_edge(START, "answer")
    with HoldfastSaver.from_conn_string(f"sqlite:///{tmp_path}/a.db", project=True) as saver:
        graph = builder.compile(checkpointer=saver)
        config: Any = {"configurable": {"thread_id": "t"}}
        for text in ("one", "two"):
            graph.invoke({"messages": [HumanMessage(text)]}, config)
        on = saver.store._handle.engine.context.stored
        rows = rows_of(on)
        said = [(row["role"], row["content"]) for row in rows["conversation_history"].values()]
        assert said == [("user", "one"), ("assistant", "you said one"), ("user", "two"), ("assistant", "you said two")]
        assert not any(str(key[1]).startswith("__") for key in rows["state_values"])
        assert {row["value"] for key, row in rows["metadata"].items() if key[2] == "source"} == {"input", "loop"}
        assert len(rows["transitions"]) == 6
        check_rows(on)
        saver.prune(["t"])
        assert len(thread_rows_of(on)["transitions"]) == 1
        check_rows(on)
        saver.copy_thread("t", "u")
        check_rows(on)
        saver.delete_thread("t")
        assert {key[0] for told in thread_rows_of(on).values() for key in told} == {"u"}
