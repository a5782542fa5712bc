"""Threads of LangGraph's other savers: imported, exported, taken over, refused."""

from __future__ import annotations

import asyncio
import pickle
import sqlite3
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import pytest
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Command, interrupt
from typing_extensions import TypedDict

import holdfast
from holdfast.errors import ConfigError, ConflictError, DeniedError, InvalidError, NotFoundError, UnsupportedError
from holdfast.interfaces.langgraph.databases import estimate, export_database, import_database, open_peer
from holdfast.langgraph import HoldfastSaver, export_threads, import_threads
from tests.interfaces.cli import kit
from tests.servers import places
from tests.support.kills import kill_at_write, run_in_child


class Chat(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]


def think(state: Chat) -> Any:
    return {"messages": [AIMessage(f"thinking of {state['messages'][-1].content}")]}


def ask(state: Chat) -> Any:
    return {"messages": [HumanMessage(interrupt("Go on?"))]}


def graph_on(saver: BaseCheckpointSaver[Any]) -> Any:
    """A graph with a subgraph that keeps its state, and a question."""
    inner = StateGraph(Chat).add_node("think", think).add_edge(START, "think").compile(checkpointer=True)
    builder = StateGraph(Chat).add_node("inner", inner).add_node("ask", ask)
    return builder.add_edge(START, "inner").add_edge("inner", "ask").compile(checkpointer=saver)


def config(thread: str) -> RunnableConfig:
    return {"configurable": {"thread_id": thread}}


def use(saver: BaseCheckpointSaver[Any], threads: int = 3) -> None:
    """Make threads with answers, a fork, and questions that wait."""
    graph = graph_on(saver)
    for number in range(threads):
        graph.invoke({"messages": [HumanMessage("kelp")]}, config(f"t{number}"))
        if number % 2:
            graph.invoke(Command(resume="yes"), config(f"t{number}"))
    past = next(each for each in graph.get_state_history(config("t0")) if each.next == ("inner",))
    graph.invoke(None, graph.update_state(past.config, {"messages": [HumanMessage("rock")]}))


def check_equal(a: BaseCheckpointSaver[Any], b: BaseCheckpointSaver[Any]) -> int:
    """Compare two savers, without the comparison of the import. Returns the number of checkpoints."""
    theirs = list(a.list(None))
    assert len(theirs) == len(list(b.list(None)))
    for each in theirs:
        found = b.get_tuple(each.config)
        assert found is not None
        assert (found.checkpoint, found.metadata) == (each.checkpoint, each.metadata)
        assert found.parent_config == each.parent_config
        assert sorted(map(repr, found.pending_writes or ())) == sorted(map(repr, each.pending_writes or ()))
    return len(theirs)


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """A database of LangGraph's SqliteSaver."""
    with SqliteSaver.from_conn_string(str(tmp_path / "old.sqlite")) as old:
        use(old)
    return tmp_path / "old.sqlite"


def test_a_database_is_imported_and_exported_back(database: Path, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    with open_peer(str(database)) as old, holdfast.open(tmp_path / "new.db") as store:
        report = import_threads(old, store, progress=lambda done, total, _: seen.append((done, total)))
        count = check_equal(old, HoldfastSaver(store))
        assert (report.threads, report.checkpoints, report.skipped) == (3, count, 0)
        assert seen == [(number, count) for number in range(1, count + 1)]
        again = import_threads(old, store)
        assert (again.checkpoints, again.skipped) == (0, count)
        assert store.maintenance.verify().ok
        assert graph_on(HoldfastSaver(store)).get_state(config("t0")).next == ("ask",)
        with SqliteSaver.from_conn_string(str(tmp_path / "back.sqlite")) as back:
            back.setup()
            assert export_threads(store, back, threads=["t1"]) < export_threads(store, back) == count
            check_equal(old, back)
            assert graph_on(back).invoke(Command(resume="yes"), config("t0"))["messages"][-1].content == "yes"


@pytest.mark.nightly
def test_savers_of_postgresql_and_in_memory_are_imported(tmp_path: Path) -> None:
    memory = InMemorySaver()
    use(memory)
    with holdfast.open(tmp_path / "memory.db") as store:
        import_threads(memory, store)
        check_equal(memory, HoldfastSaver(store))
    url = places.place("postgres", tmp_path)
    with PostgresSaver.from_conn_string(url) as old, holdfast.open(tmp_path / "postgres.db") as store:
        old.setup()
        use(old)
        import_threads(old, store)
        check_equal(old, HoldfastSaver(store))
        assert import_database(store, url).checkpoints == 0
        assert estimate(url).after > 0
    back_url = places.place("postgres", tmp_path / "back")
    done = kit.run("export", back_url, "--to", "langgraph", store=str(tmp_path / "memory.db"))
    assert done.code == 0, done.err
    with PostgresSaver.from_conn_string(back_url) as back:
        check_equal(memory, back)
    with holdfast.open(tmp_path / "memory.db") as store, pytest.raises(ConflictError, match="has checkpoints already"):
        export_database(store, back_url, [])


def test_threads_are_taken_over_as_they_are_touched(database: Path, tmp_path: Path) -> None:
    with SqliteSaver.from_conn_string(str(database)) as old, holdfast.open(tmp_path / "new.db") as store:
        saver = HoldfastSaver(store, fallback=old)
        graph = graph_on(saver)
        assert [info.thread for info in store.threads()] == []
        assert graph.invoke(Command(resume="yes"), config("t0"))["messages"][-1].content == "yes"
        assert {info.thread.partition("␟")[0] for info in store.threads()} == {"t0"}
        assert len(list(saver.list(config("t0")))) > len(list(old.list(config("t0"))))
        graph.invoke({"messages": [HumanMessage("new")]}, config("new"))

        async def touch() -> Any:
            return await graph_on(saver).aget_state(config("t1"))

        assert len(asyncio.run(touch()).values["messages"]) == 3
        assert {info.thread.partition("␟")[0] for info in store.threads()} == {"t0", "t1", "new"}


def test_what_is_deleted_does_not_come_back_from_an_old_saver(database: Path, tmp_path: Path) -> None:
    with SqliteSaver.from_conn_string(str(database)) as old, holdfast.open(tmp_path / "new.db") as store:
        saver = HoldfastSaver(store, fallback=old)
        with ThreadPoolExecutor(4) as pool:
            assert all(pool.map(saver.get_tuple, [config("t1")] * 8))
        saver.delete_thread("t0")
        saver.prune(["t1"], strategy="delete")
        bob = HoldfastSaver(store.as_identity(user="bob"), fallback=old)
        for each in (saver, HoldfastSaver(store, fallback=old)):
            assert [each.get_tuple(config(name)) for name in ("t0", "t1")] == [None, None]
        saver.copy_thread("t2", "t3")
        assert len(list(saver.list(config("t3")))) == len(list(old.list(config("t2")))) > 1
        with pytest.raises(DeniedError):
            bob.delete_thread("t2")
        assert old.get_tuple(config("t2")), "who may not delete a thread does not delete it there"
        saver.prune(["t2"])
        assert len(list(saver.list({"configurable": {"thread_id": "t2", "checkpoint_ns": ""}}))) == 1


def test_an_old_saver_for_asyncio_is_refused_at_once(tmp_path: Path) -> None:
    async def use_async() -> None:
        async with AsyncSqliteSaver.from_conn_string(str(tmp_path / "old.sqlite")) as old:
            with pytest.raises(InvalidError, match="sync programs"):
                HoldfastSaver.from_conn_string("memory://", fallback=old)

    asyncio.run(use_async())


def test_pickles_and_unknown_classes_are_refused(database: Path, tmp_path: Path) -> None:
    with closing(sqlite3.connect(database)) as connection, connection:
        value = JsonPlusSerializer().dumps_typed({"deep": [Odd("x")]})
        connection.execute("UPDATE writes SET type = ?, value = ? WHERE rowid = 1", value)
    with holdfast.open(tmp_path / "new.db") as store:
        with pytest.raises(UnsupportedError, match="Odd, which is not allowed") as refused:
            import_database(store, str(database))
        assert refused.value.code == "class-refused"
        assert Odd.made == 1, "nothing was made of what the database names"
        import_database(store, str(database), allow=[f"{__name__}:Odd"])
        assert Odd.made > 1
        with closing(sqlite3.connect(database)) as connection, connection:
            connection.execute("UPDATE writes SET type = 'pickle', value = ? WHERE rowid = 1", (pickle.dumps(1),))
        with pytest.raises(ConfigError) as pickled:
            import_database(store, str(database))
        assert pickled.value.code == "pickle-refused"
        unsafe = InMemorySaver(serde=JsonPlusSerializer(pickle_fallback=True))
        for attempt in (lambda: import_threads(unsafe, store), lambda: HoldfastSaver(store, fallback=unsafe)):
            with pytest.raises(ConfigError, match="pickle"):
                attempt()


@dataclass
class Odd:
    """A class of an application's own."""

    name: str
    made: ClassVar[int] = 0

    def __post_init__(self) -> None:
        Odd.made += 1


def test_graphs_go_on_after_the_interchange_format(tmp_path: Path) -> None:
    file = tmp_path / "graphs.jsonl"
    with holdfast.open(tmp_path / "a.db") as store, holdfast.open(tmp_path / "b.db") as other:
        use(HoldfastSaver(store))
        store.maintenance.export(file, format="jsonl")
        other.maintenance.import_(file, format="jsonl")
        assert check_equal(HoldfastSaver(store), HoldfastSaver(other)) > 20
        assert [info.status for info in other.threads()] == [info.status for info in store.threads()]
        for each in (store, other):
            graph = graph_on(HoldfastSaver(each))
            assert graph.get_state(config("t2")).next == ("ask",)
            assert graph.invoke(Command(resume="on"), config("t2"))["messages"][-1].content == "on"
            past = next(each for each in graph.get_state_history(config("t1")) if each.next == ("inner",))
            assert graph.invoke(None, past.config)["__interrupt__"]


def test_an_import_over_another_history_is_no_success(database: Path, tmp_path: Path) -> None:
    with open_peer(str(database)) as old, holdfast.open(tmp_path / "new.db") as store:
        import_threads(old, store, threads=["t1"])
        latest = old.get_tuple(config("t1"))
        assert latest is not None
        HoldfastSaver(store).put_writes(latest.config, [("messages", [])], "another task")
        with pytest.raises(ConflictError, match="another history"):
            import_threads(old, store, threads=["t1"])
        with pytest.raises(NotFoundError, match="no such thread"):
            import_threads(old, store, threads=["none"])


def test_what_cannot_be_imported_is_said(database: Path, tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "new.db") as store:
        (tmp_path / "text.txt").write_text("no database")
        with pytest.raises(InvalidError, match="not a database of LangGraph"):
            import_database(store, str(tmp_path / "text.txt"))

        async def import_async() -> None:
            async with AsyncSqliteSaver.from_conn_string(str(database)) as saver:
                import_threads(saver, store)

        with pytest.raises(InvalidError, match="sync programs"):
            asyncio.run(import_async())
    with pytest.raises(ConfigError, match="LangGraph's SqliteSaver") as foreign:
        holdfast.open(database)
    assert "holdfast import --from langgraph" in str(foreign.value)


def test_the_commands(database: Path, tmp_path: Path) -> None:
    store, back = str(tmp_path / "new.db"), str(tmp_path / "back.sqlite")
    assert "checkpoints of 3 threads" in kit.run("estimate", database).out
    assert not Path(store).exists()
    assert "of 3 threads" in kit.run("import", "--from", "langgraph", str(database), store=store).out
    assert "were there already" in kit.run("import", "--from", "langgraph", str(database), store=store).out
    assert "checkpoints" in kit.run("export", back, "--to", "langgraph", store=store).out
    with open_peer(str(database)) as old, open_peer(back) as new:
        check_equal(old, new)
    with holdfast.open(store) as opened, pytest.raises(ConflictError):
        export_database(opened, back, [])


@pytest.mark.nightly
@pytest.mark.skipif(sys.platform == "win32", reason="there is no fork")
def test_an_import_that_is_killed_goes_on(database: Path, tmp_path: Path) -> None:
    url, killed = str(tmp_path / "new.db"), 0
    for number, moment in zip([1, 2, 3, 5, 8, 13, 4, 6, 7, 2], _moments(), strict=False):

        def work(_: Any, number: int = number, moment: Any = moment) -> None:
            kill_at_write(number, moment)
            with holdfast.open(url) as store:
                import_database(store, str(database))

        killed += run_in_child(work)[1]
    assert killed >= 8
    with open_peer(str(database)) as old, holdfast.open(url) as store:
        import_threads(old, store)
        check_equal(old, HoldfastSaver(store))
        assert store.maintenance.verify().ok


def _moments() -> Iterator[str]:
    while True:
        yield from ("before", "during", "after")
