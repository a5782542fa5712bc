"""Names of lines that are not threads: no call that takes the name of a thread reads or changes them."""

from __future__ import annotations

import asyncio
import atexit
import inspect
import io
import tempfile
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.types import Interrupt

import holdfast
from holdfast import AsyncStore, Retention, Store, Thread
from holdfast.backends.interface import Scan
from holdfast.backends.runtime.drivers import run
from holdfast.backends.tables import TABLES
from holdfast.errors import HoldfastError, InvalidError
from holdfast.langgraph import HoldfastSaver
from holdfast.savers import AutoCheckpointer, CheckpointableMixin, Checkpointer, CheckpointStore
from holdfast.store.backups import Backups
from holdfast.store.maintenance import Maintenance
from holdfast.store.store import Transaction
from tests.interfaces.cli import kit
from tests.support.nightly import by_day

RESERVED = ["␞access", "␞audit", "␞sessions", "␞artifacts", "␞hooks", "␞agent:a", "␞agents:notes", "␞session:s1", "␞"]

Call = Callable[[Store, str], object]


def config(thread: str) -> Any:
    return {"configurable": {"thread_id": thread, "checkpoint_ns": ""}}


def in_transaction(store: Store, change: Callable[[Transaction], object]) -> None:
    with store.transaction() as together:
        change(together)


async def listed(pages: Any) -> None:
    async for _ in await pages:
        pass


def archive(store: Store) -> io.BytesIO:
    file = io.BytesIO()
    store.maintenance.export(file, threads=["chat"])
    return io.BytesIO(file.getvalue())


@cache
def repository() -> Path:
    """A repository with a backup of a thread."""
    folder = tempfile.TemporaryDirectory()
    atexit.register(folder.cleanup)
    with holdfast.open("memory://") as store:
        store.thread("chat").put({"x": 1})
        store.backups(folder.name).create()
    return Path(folder.name)


def restored(name: str) -> object:
    with holdfast.open("memory://") as new:
        return new.backups(repository()).restore(threads=[name])


def attached(store: Store, name: str) -> object:
    class Agent(CheckpointableMixin):
        pass

    return Agent().attach(store, name).checkpoint()


def by_job(kind: str, **settings: Any) -> Call:
    return lambda store, name: store.jobs.add("j", kind, settings={**settings, "threads": [name]}, replace=True)


def of_thread(name: str, *arguments: Any, **named: Any) -> Call:
    return lambda store, thread: getattr(store.thread(thread), name)(*arguments, **named)


CALLS: dict[str, Call] = {
    "Store.put": lambda store, name: store.thread(name).put({"x": 1}),
    "Store.get": lambda store, name: store.thread(name).get(),
    "Store.update": lambda store, name: store.thread(name).update({"x": 1}),
    "Store.log": lambda store, name: store.thread(name).log(),
    "Store.delete": lambda store, name: store.thread(name).delete(),
    "Store.thread": lambda store, name: store.thread(name),
    "Maintenance.copy_to": lambda store, name: store.maintenance.copy_to("memory://", threads=[name]),
    "Maintenance.export": lambda store, name: store.maintenance.export(io.BytesIO(), threads=[name]),
    "Maintenance.export as states": lambda store, name: store.maintenance.export(
        io.BytesIO(), threads=[name], format="json"
    ),
    "Maintenance.import_": lambda store, name: store.maintenance.import_(archive(store), threads=[name]),
    "Maintenance.import_ as": lambda store, name: store.maintenance.import_(
        archive(store), threads=["chat"], as_thread=name
    ),
    "Backups.restore": lambda _, name: restored(name),
    "Backups.restore as": lambda store, name: store.backups(repository()).restore(threads=["chat"], as_thread=name),
    "Thread.diff": lambda store, name: store.thread("chat").diff(other=name),
    "Thread.answer": of_thread("answer", "yes"),
    "Thread.blame": of_thread("blame", "x"),
    "Thread.branches": of_thread("branches"),
    "Thread.delete": of_thread("delete"),
    "Thread.delete_branch": of_thread("delete_branch", "draft", force=True),
    "Thread.fork": of_thread("fork", "other"),
    "Thread.get": of_thread("get", lazy=True),
    "Thread.history": of_thread("history", "x"),
    "Thread.expire": of_thread("expire", ttl="1d"),
    "Thread.expires": of_thread("expires"),
    "Thread.hold": of_thread("hold", reason="r"),
    "Thread.holds": of_thread("holds"),
    "Thread.info": of_thread("info"),
    "Thread.label": of_thread("label", "l"),
    "Thread.labels": of_thread("labels"),
    "Thread.log": of_thread("log"),
    "Thread.pending_writes": of_thread("pending_writes"),
    "Thread.owner": of_thread("owner"),
    "Thread.merge": of_thread("merge", "draft"),
    "Thread.pin": of_thread("pin"),
    "Thread.running": lambda store, name: store.thread(name).running().__enter__(),
    "Thread.status": of_thread("status"),
    "Thread.pins": of_thread("pins"),
    "Thread.put": of_thread("put", {"x": 2}),
    "Thread.release": of_thread("release"),
    "Thread.rename_branch": of_thread("rename_branch", "draft", "new"),
    "Thread.find": of_thread("find"),
    "Thread.restore": of_thread("restore", "HEAD"),
    "Thread.switch": of_thread("switch", "draft"),
    "Thread.tag": of_thread("tag", "t"),
    "Thread.tags": of_thread("tags"),
    "Thread.unlabel": of_thread("unlabel", "mine"),
    "Thread.unpin": of_thread("unpin", "mine"),
    "Thread.untag": of_thread("untag", "mine"),
    "Thread.update": of_thread("update", {"x": 1}),
    "Thread.append": of_thread("append", "items", 1),
    "Thread.increment": of_thread("increment", "x"),
    "Thread.add_to_set": of_thread("add_to_set", "names", 1),
    "Thread.max": of_thread("max", "x", 1),
    "Transaction.get": lambda store, name: in_transaction(store, lambda together: together.get(name)),
    "Transaction.put": lambda store, name: in_transaction(store, lambda together: together.put(name, {"x": 1})),
    "Transaction.update": lambda store, name: in_transaction(store, lambda together: together.update(name, {"x": 1})),
    "AutoCheckpointer": lambda store, name: AutoCheckpointer(store, name, lambda: {"x": 1}).save(),
    "CheckpointableMixin.attach": attached,
    "Maintenance.prune": lambda store, name: store.maintenance.prune(name, Retention(keep_latest=True)),
    "Maintenance.verify": lambda store, name: store.maintenance.verify(name),
    "Maintenance.heads": lambda store, name: store.maintenance.heads(name),
    "Maintenance.repair": lambda store, name: store.maintenance.repair(thread=name),
    "Maintenance.quarantine": lambda store, name: store.maintenance.quarantine(name),
    "Maintenance.compact": lambda store, name: store.maintenance.compact(name),
    "Maintenance.delete": lambda store, name: store.maintenance.delete([name]),
    "Checkpointer.put": lambda store, name: Checkpointer(store).put(name, {"x": 1}),
    "Checkpointer.put_writes": lambda store, name: Checkpointer(store).put_writes(name, "i", [("c", 1)], task_id="t"),
    "Checkpointer.get_tuple": lambda store, name: Checkpointer(store).get_tuple(name),
    "Checkpointer.list": lambda store, name: Checkpointer(store).list(name),
    "Checkpointer.delete_thread": lambda store, name: Checkpointer(store).delete_thread(name),
    "CheckpointStore.save": lambda store, name: run(CheckpointStore(store).save(name, {}, id="1", stamp="s")),
    "CheckpointStore.read_recorded": lambda store, name: run(CheckpointStore(store).read_recorded(name, ["1"])),
    "CheckpointStore.read_bookkeeping": lambda store, name: run(CheckpointStore(store).read_bookkeeping(name, "1")),
    "CheckpointStore.put_writes": lambda store, name: run(
        CheckpointStore(store).put_writes(name, "1", [(0, "c", 1)], task_id="t")
    ),
    "CheckpointStore.get": lambda store, name: run(CheckpointStore(store).get(name)),
    "CheckpointStore.list_checkpoints": lambda store, name: run(
        listed(CheckpointStore(store).list_checkpoints([name]))
    ),
    "CheckpointStore.channel_writes": lambda store, name: run(CheckpointStore(store).channel_writes(name, None, ["c"])),
    "CheckpointStore.namespaces": lambda store, name: run(CheckpointStore(store).namespaces(name)),
    "CheckpointStore.copy": lambda store, name: run(CheckpointStore(store).copy(name, "copy")),
    "CheckpointStore.copy to": lambda store, name: run(CheckpointStore(store).copy("none", name)),
    "CheckpointStore.keep_latest": lambda store, name: run(CheckpointStore(store).keep_latest(name)),
    "CheckpointStore.delete": lambda store, name: run(CheckpointStore(store).delete(name)),
    "HoldfastSaver.put": lambda store, name: HoldfastSaver(store).put(config(name), empty_checkpoint(), {}, {}),
    "HoldfastSaver.put_writes": lambda store, name: HoldfastSaver(store).put_writes(
        {"configurable": {**config(name)["configurable"], "checkpoint_id": "1"}}, [("c", 1)], "t"
    ),
    "HoldfastSaver.get": lambda store, name: HoldfastSaver(store).get(config(name)),
    "HoldfastSaver.get_tuple": lambda store, name: HoldfastSaver(store).get_tuple(config(name)),
    "HoldfastSaver.get_delta_channel_history": lambda store, name: HoldfastSaver(store).get_delta_channel_history(
        config=config(name), channels=["c"]
    ),
    "HoldfastSaver.run": lambda store, name: HoldfastSaver(store, recover="graph").run(config(name)).__enter__(),
    "HoldfastSaver.list": lambda store, name: list(HoldfastSaver(store).list(config(name))),
    "HoldfastSaver.copy_thread": lambda store, name: HoldfastSaver(store).copy_thread(name, "copy"),
    "HoldfastSaver.copy_thread to": lambda store, name: HoldfastSaver(store).copy_thread("none", name),
    "HoldfastSaver.prune": lambda store, name: HoldfastSaver(store).prune([name]),
    "HoldfastSaver.delete_thread": lambda store, name: HoldfastSaver(store).delete_thread(name),
    "a prune job": by_job("prune", keep_last=1),
    "a verify job": by_job("verify"),
}
"""A call for every public name that takes the name of a thread."""

TAKES = {
    "thread",
    "threads",
    "as_thread",
    "thread_id",
    "thread_ids",
    "source_thread_id",
    "target_thread_id",
    "config",
    "other",
}
NOT_NAMES = {"Maintenance.set_quota"}
"""A number of threads."""


def taking() -> Iterator[str]:
    """The public names of what takes the name of a thread."""
    classes = (Store, Backups, Maintenance, Transaction, Checkpointer, CheckpointStore, HoldfastSaver)
    for each in classes:
        for name, member in inspect.getmembers(each, callable):
            if not name.startswith("_") and TAKES & set(inspect.signature(member).parameters):
                yield f"{each.__name__}.{name}"
    yield from (f"Thread.{name}" for name, _ in inspect.getmembers(Thread, callable) if not name.startswith("_"))


def prepare(store: Store) -> Store:
    """A store with a line of every kind, and a thread with what the calls expect."""
    store.thread("chat").put({"x": 1}, tag="mine", labels=["mine"])
    thread = store.thread("chat")
    thread.pin("mine")
    thread.hold(reason="first")
    thread.fork("draft")
    store.thread("chat").put({"x": 1, "y": 2}, branch="draft")
    thread.switch("main")
    writer = store.as_identity(agent="a", read_window=0)
    writer.state(agent="a")["plan"] = "secret"
    with pytest.raises(HoldfastError):
        writer.state(agent="b").get("plan")
    store.access.grant("agent:b", "read", "agent:a")
    store.sessions.start("s1")
    store.state(session="s1")["k"] = 1
    store.artifacts.register(b"content", id="report")
    return store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with holdfast.open(f"sqlite:///{tmp_path}/store.db") as opened:
        yield prepare(opened)


def rows(store: Store) -> list[Any]:
    """All rows but those of the audit, which has records of exports."""
    found = run(store._engine.context.backend.read([Scan(table, ()) for table in TABLES]))
    return [[row for row in page if "␞audit" not in row.key] for page in found]


def test_every_public_call_is_tried() -> None:
    tried = {name.split(" ")[0] for name in CALLS}
    sync = {name for name in taking() if not name.startswith("HoldfastSaver.a")}
    assert sync - tried == NOT_NAMES, "add a call that takes the name of a thread"


def test_no_call_takes_the_name_of_another_line(store: Store, subtests: pytest.Subtests) -> None:
    before = rows(store)
    for name, call in CALLS.items():
        with subtests.test(call=name):
            for line in RESERVED:
                with pytest.raises(InvalidError, match="cannot start with ␞"):
                    call(store, line)
            assert rows(store) == before


def test_the_empty_name_is_that_of_no_thread(store: Store, subtests: pytest.Subtests) -> None:
    """It belongs to the whole store."""
    before = rows(store)
    for name in ("Store.put", "Maintenance.import_ as", "Backups.restore", "Backups.restore as"):
        with subtests.test(call=name), pytest.raises(InvalidError, match="empty|no name"):
            CALLS[name](store, "")
        assert rows(store) == before


@pytest.mark.nightly
def test_each_call_works_with_a_thread(tmp_path: Path, subtests: pytest.Subtests) -> None:
    """The control: with the name of a thread, the same calls pass the check of names."""
    free = {
        "Thread.delete",
        "Store.delete",
        "Maintenance.delete",
        "Checkpointer.delete_thread",
        "CheckpointStore.delete",
    }
    free |= {"HoldfastSaver.delete_thread", "CheckpointStore.keep_latest", "HoldfastSaver.prune", "Maintenance.prune"}
    free |= {"Thread.delete_branch"}
    targets = {
        "Maintenance.import_ as",
        "Backups.restore as",
        "CheckpointStore.copy to",
        "HoldfastSaver.copy_thread to",
    }
    for name, call in list(CALLS.items())[:: by_day(1, 3)]:
        with subtests.test(call=name), holdfast.open("memory://") as fresh:
            prepare(fresh)
            if name in free:
                fresh.thread("chat").release()
                fresh.thread("chat").unpin("mine")
            if name == "Thread.answer":
                asked = [(-3, "__interrupt__", Interrupt("sure?", id="question"))]
                head = fresh.thread("chat").put({"x": 2}).id
                run(CheckpointStore(fresh).put_writes("chat", head, asked, task_id="task", status="waiting"))
            call(fresh, "new" if name in targets else "chat")


def test_the_calls_of_an_async_store_take_none_either() -> None:
    async def tries() -> None:
        async with await holdfast.aopen("memory://") as store:
            assert isinstance(store, AsyncStore)
            await store.state(agent="a").set("plan", "secret")
            with pytest.raises(InvalidError, match="cannot start with ␞"):
                store.thread("␞agent:a")
            saver = HoldfastSaver(store)
            with pytest.raises(InvalidError, match="cannot start with ␞"):
                await saver.aget_tuple(config("␞agent:a"))
            with pytest.raises(InvalidError, match="cannot start with ␞"):
                await saver.adelete_thread("␞agent:a")
            assert await store.state(agent="a").get("plan") == "secret"
            assert await saver.aget_tuple(config("chat")) is None

    asyncio.run(tries())


COMMANDS = [
    *(["log"], ["show"], ["diff"], ["blame", "x"], ["branch"], ["tag"], ["label"], ["pin"], ["verify"]),
    *(["hold", "-m", "r"], ["delete", "--yes"], ["prune", "--keep-last", "1", "--yes"], ["repair", "--yes"]),
    *(["undo"], ["export", "{file}"], ["copy", "{file}.db"]),
]
"""Commands that take the name of a thread, as the first or the last argument."""


def test_nor_does_a_command(tmp_path: Path, subtests: pytest.Subtests) -> None:
    url = f"sqlite:///{tmp_path}/store.db"
    hf = partial(kit.run, store=url)
    with holdfast.open(url) as store:
        prepare(store).thread("chat").release()
        before = rows(store)
    for name, *options in COMMANDS:
        rest = [each.format(file=tmp_path / "x") for each in options]
        with subtests.test(command=name):
            for line in RESERVED[::4]:
                result = hf(*([name, *rest, line] if name in ("export", "copy") else [name, line, *rest]))
                assert result.code != 0
                assert "cannot start with ␞" in result.err
    with holdfast.open(url) as store:
        assert rows(store) == before
    for name, *options in COMMANDS[:9]:
        assert hf(name, "chat", *options).code == 0, "the control: with the name of a thread they work"


# Lines of other kinds -----------------------------------------------------------------------------------------------


def fill(store: Store) -> Store:
    for n in range(4):
        store.thread("chat").put({"n": n})
        store.state(agent="a")["n"] = n
        store.state(session="s1")["n"] = n
    store.access.grant("agent:b", "read", "agent:a")
    return store


def pruned(store: Store, *names: str, **options: Any) -> dict[str, int]:
    """Which lines were pruned, and how many steps of each."""
    report = store.maintenance.prune(list(names) or None, Retention(keep_latest=True), **options)
    return {each.thread: each.dropped for each in report.threads}


def test_pruning_is_of_threads_unless_other_kinds_are_named() -> None:
    with holdfast.open("memory://") as store:
        fill(store)
        assert pruned(store) == {"chat": 3}
        assert len(store.state(agent="a").history()) == 4
        assert pruned(store, kinds="session") == {"␞session:s1": 3}
        assert pruned(store, "agent:a", kinds="scope", dry_run=True) == {"␞agent:a": 3}
        assert pruned(store, prefix="agent:", kinds=["scope", "session"]) == {"␞agent:a": 3}
        assert pruned(store, prefix="agent:", kinds="thread") == {}
        assert pruned(store, kinds="all") == {}, "all have one step, and rights are not pruned"
        fill(store)
        assert set(pruned(store, kinds="all")) == {"chat", "␞agent:a", "␞session:s1"}, "not the rights"
        with pytest.raises(InvalidError, match="are not pruned"):
            pruned(store, "access", kinds="access")
        with pytest.raises(InvalidError, match="no line of kind scope"):
            pruned(store, "access", kinds="scope")
        with pytest.raises(InvalidError, match="of one kind"):
            pruned(store, "agent:a", kinds=["scope", "session"])
        with pytest.raises(InvalidError, match="the kind of lines must be thread, agent"):
            pruned(store, kinds="threads")
        with pytest.raises(InvalidError, match="no kind"):
            pruned(store, kinds=[])


def test_verification_export_and_statistics_take_kinds() -> None:
    with holdfast.open("memory://") as store:
        fill(store)
        report = store.maintenance.verify()
        assert (report.threads, report.scopes, report.sessions, report.system) == (1, 1, 1, 1)
        report = store.maintenance.verify(kinds=["scope", "access"])
        assert (report.threads, report.scopes, report.sessions, report.system) == (0, 1, 0, 1)
        report = store.maintenance.verify("agent:a", kinds="scope")
        assert (report.scopes, report.lines) == (1, 1)
        assert set(store.maintenance.heads().threads) == {"chat", "␞agent:a", "␞session:s1", "␞access"}
        assert set(store.maintenance.heads(kinds="access").threads) == {"␞access"}
        assert set(store.maintenance.heads("agent:a", kinds="scope").threads) == {"␞agent:a"}
        assert store.maintenance.export(io.BytesIO()).threads == 1
        assert store.maintenance.export(io.BytesIO(), kinds="all").threads == 5  # with the record of the export before
        assert store.maintenance.export(io.BytesIO(), threads=["session:s1"], kinds="session").threads == 1
        every, some = store.status(), store.status(kinds=["scope"])
        assert (every.threads, every.scopes, every.system) == (1, 2, 2)
        assert (some.threads, some.scopes, some.system, some.complete) == (0, 1, 0, True)


def test_a_line_of_another_kind_is_held_and_released() -> None:
    with holdfast.open("memory://") as store:
        fill(store)
        store.maintenance.hold("agent:a", kind="scope", reason="a dispute")
        assert [(each.thread, each.reason) for each in store.maintenance.holds()] == [("␞agent:a", "a dispute")]
        assert store.maintenance.prune(kinds="scope", keep_latest=True).problems
        store.maintenance.release("agent:a", kind="scope")
        assert not store.maintenance.prune(kinds="scope", keep_latest=True).problems


def test_commands_take_kinds(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/store.db"
    hf = partial(kit.run, store=url)
    with holdfast.open(url) as store:
        fill(store)
    assert "3 checkpoints of 1 thread would be removed" in hf("prune", "--all", "--keep-last", "1", "--dry-run").out
    assert hf("prune", "agent:a", "--kind", "scope", "--keep-last", "1", "--yes").code == 0
    with holdfast.open(url) as store:
        assert (len(store.thread("chat").log()), len(store.state(agent="a").history())) == (4, 1)
    (record,) = hf("verify", "--json", "--kind", "access", "--kind", "session").records
    assert (record["threads"], record["sessions"], record["system"]) == (0, 1, 1)
    assert "Exported 5 threads" in hf("export", f"{tmp_path}/all.gz", "--kind", "all").out
    assert "Exported 1 thread" in hf("export", f"{tmp_path}/threads.gz").out
    (record,) = hf("status", "--json", "--all").records
    assert (record["scopes"], record["steps"]) == (2, 4), "all are counted, and threads are read"
    (record,) = hf("status", "--json", "--all", "--kind", "session").records
    assert (record["threads"], record["scopes"], record["steps"]) == (0, 1, 4)
    assert hf("hold", "agent:a", "--kind", "scope", "-m", "a dispute").code == 0
    assert "a dispute" in hf("hold").out
