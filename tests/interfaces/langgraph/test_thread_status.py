"""The status of threads of real graphs: how they ended or stopped, in every list, and across other features."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.errors import GraphRecursionError
from langgraph.types import Command
from msgspec.structs import force_setattr

import holdfast
from holdfast.backends.interface import Put
from holdfast.backends.runtime.drivers import run
from holdfast.backends.tables import WRITES
from holdfast.encryption import Encryption, LocalKeys, generate_key
from holdfast.engine.model.steps import PendingWriteRow
from holdfast.engine.row_format import Line
from holdfast.engine.thread_status import FAILED, STATES, WAITING, ThreadState, run_claim
from holdfast.errors import ConflictError, DeniedError, HoldfastError, InvalidError, NotFoundError, TransientError
from holdfast.langgraph import HoldfastSaver
from holdfast.store.store import Store
from tests.interfaces.langgraph.status_graphs import PaymentError, build

NO_KILL = pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGKILL")


@pytest.fixture
def store(tmp_path: Path) -> Any:
    with holdfast.open(tmp_path / "a.db") as opened:
        yield opened


def play(store: Any, kind: str, value: Any = None, *, thread: str = "", **options: Any) -> None:
    """Run a graph on a thread of the name of its kind."""
    graph = build(kind).compile(checkpointer=HoldfastSaver(store), **options)
    config: RunnableConfig = {"configurable": {"thread_id": thread or kind}, "recursion_limit": 6}
    graph.invoke({"log": []} if value is None else value, config)


def status(store: Store, thread: str) -> str:
    """Return the status of a thread, which is the same wherever it is asked for."""
    found = store.thread(thread).status().status
    assert store.thread(thread).info().status == found
    assert {each.thread: each.status for each in store.threads()}[thread] == found
    for each in STATES:
        assert (thread in [info.thread for info in store.threads(status=each)]) is (each == found), each
    return found


@pytest.mark.parametrize("is_backed_up", [True, False])
def test_a_moment_before_an_answer_does_not_have_it(store: Store, is_backed_up: bool, tmp_path: Path) -> None:
    backups = store.backups(tmp_path / "backups")
    play(store, "chain")
    backups.create()
    play(store, "asks")
    if is_backed_up:
        backups.create()
    moment = datetime.now(UTC)
    for answer in ("yes", "indeed"):
        play(store, "asks", Command(resume=answer))
    assert status(store, "asks") == "done"
    backups.create()
    with holdfast.open(tmp_path / "restored.db") as restored:
        assert restored.backups(tmp_path / "backups").restore(moment).exact
        assert status(restored, "asks") == "waiting"
        assert {each.channel for each in restored.thread("asks").pending_writes()} == {"__interrupt__"}
        for answer in ("no", "not at all"):
            play(restored, "asks", Command(resume=answer))
        assert restored.thread("asks").get().state["log"][-2:] == ["no", "not at all"]


@pytest.mark.parametrize("is_backed_up", [True, False])
def test_a_moment_before_an_answer_that_no_checkpoint_followed(
    store: Store, is_backed_up: bool, tmp_path: Path
) -> None:
    """As of a process that was killed as soon as it had stored the answer."""
    backups = store.backups(tmp_path / "backups")
    play(store, "chain")
    backups.create()
    play(store, "asks")
    if is_backed_up:
        backups.create()
    moment = datetime.now(UTC)
    config: RunnableConfig = {"configurable": {"thread_id": "asks", "checkpoint_ns": ""}}
    config["configurable"]["checkpoint_id"] = store.thread("asks").get().id
    HoldfastSaver(store).put_writes(config, [("__resume__", "yes")], "00000000-0000-0000-0000-000000000000")
    assert status(store, "asks") == "unfinished"
    backups.create()
    with holdfast.open(tmp_path / "restored.db") as restored:
        assert restored.backups(tmp_path / "backups").restore(moment).exact
        assert status(restored, "asks") == "waiting"


@pytest.mark.parametrize("kind", ["chain", "joins", "defers", "sends", "subgraph"])
def test_a_graph_that_reached_its_end_is_done(store: Store, kind: str) -> None:
    play(store, kind)
    assert status(store, kind) == "done"
    play(store, kind)
    assert status(store, kind) == "done"


def test_an_async_graph_that_reached_its_end_is_done(store: Store) -> None:
    graph = build("sends").compile(checkpointer=HoldfastSaver(store))
    asyncio.run(graph.ainvoke({"log": []}, {"configurable": {"thread_id": "async"}}))
    assert status(store, "async") == "done"


@pytest.mark.parametrize(
    ("kind", "node", "error", "message"),
    [
        ("fails", "first", "PaymentError", "the card of ada@example.com was refused"),
        ("refuses", "first", "ValueError", "it's 'late'"),
        ("send-fails", "sent", "ValueError", "it's 'late'"),
    ],
)
def test_an_error_is_told_with_its_node_class_and_message(
    store: Store, kind: str, node: str, error: str, message: str
) -> None:
    with pytest.raises((PaymentError, ValueError)):
        play(store, kind)
    assert status(store, kind) == "failed"
    found = store.thread(kind).status()
    assert (found.node, found.error, found.message) == (node, error, message)
    assert found.since is not None
    assert found.checkpoint == store.thread(kind).get().id


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
@pytest.mark.parametrize("kind", ["asks", "subgraph-asks"])
def test_a_question_waits_until_it_is_answered(store: Store, kind: str, durability: Any) -> None:
    graph = build(kind).compile(checkpointer=HoldfastSaver(store))
    config: Any = {"configurable": {"thread_id": kind}}
    graph.invoke({"log": []}, config, durability=durability)
    assert status(store, kind) == "waiting"
    (question,) = store.thread(kind).status().questions
    assert question.value == {"ask": "May ada@example.com be paid?"}
    assert question.node == ("first" if kind == "asks" else "child")
    graph.invoke(Command(resume="yes"), config, durability=durability)
    assert status(store, kind) == "waiting"
    assert [each.value for each in store.thread(kind).status().questions] == ["Really?"]
    graph.invoke(Command(resume={store.thread(kind).status().questions[0].id: "yes"}), config, durability=durability)
    assert status(store, kind) == "done"


def test_a_run_in_which_a_task_failed_has_failed_whatever_others_ask(store: Store) -> None:
    with pytest.raises(ValueError, match="late"):
        play(store, "one-asks-one-fails")
    assert status(store, "one-asks-one-fails") == "failed"


@pytest.mark.parametrize("elsewhere", [False, True], ids=["here", "in another process"])
def test_a_run_in_which_the_failed_task_succeeds_waits_for_what_others_ask(
    store: Store, tmp_path: Path, elsewhere: bool
) -> None:
    graph, config = build("one-asks-one-recovers"), {"configurable": {"thread_id": "t"}}  # one node for both runs
    with pytest.raises(ValueError, match="late"):
        graph.compile(checkpointer=HoldfastSaver(store)).invoke({"log": []}, config)
    assert status(store, "t") == "failed"
    if elsewhere:
        with holdfast.open(tmp_path / "a.db") as other:
            graph.compile(checkpointer=HoldfastSaver(other)).invoke(None, config)
    else:
        graph.compile(checkpointer=HoldfastSaver(store)).invoke(None, config)
    assert status(store, "t") == "waiting"
    assert [each.value for each in store.thread("t").status().questions] == [{"ask": "May ada@example.com be paid?"}]


def test_a_status_that_was_not_stored_is_stored_when_the_writes_are_repeated(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = build("asks").compile(checkpointer=HoldfastSaver(store))
    config: Any = {"configurable": {"thread_id": "t"}}
    graph.invoke({"log": []}, config, interrupt_before=["first"])
    context, lines = store._handle.engine.context, store._handle.engine.lines
    apply, refused = context.backend.apply, [0]

    async def refuse_once(batch: Any) -> Any:
        if any(isinstance(each, Put) and str(each.row.columns[0]).startswith("waiting ") for each in batch):
            refused[0] += 1
            if refused[0] == 1:  # another process has changed the line, and then the store does not answer
                monkeypatch.setattr(lines, "load_tip", fail)
                return 0
        return await apply(batch)

    async def fail(_: Any) -> Any:
        raise TransientError("the store does not answer")

    monkeypatch.setattr(context.backend, "apply", refuse_once)
    with pytest.raises(TransientError):
        graph.invoke(None, config)
    monkeypatch.undo()
    graph.invoke(None, config)
    assert status(store, "t") == "waiting"


@pytest.mark.parametrize("last", [WAITING, FAILED])
def test_a_run_has_failed_whichever_of_two_tasks_is_stored_last(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, last: ThreadState
) -> None:
    engine, line = store._handle.engine, Line("", "t")
    step = store.thread("t").put({"log": []}).id
    apply, struck = engine.context.backend.apply, [0]
    first = FAILED if last == WAITING else WAITING

    def write(status: ThreadState) -> Coroutine[Any, Any, None]:
        return engine.writes.put(line, step, [PendingWriteRow("", status, 0, "c", b"\x01")], status)

    async def apply_first(batch: Any) -> Any:
        """Store the write of the other task before this one, which has been prepared."""
        if not struck[0]:
            struck[0] = 1
            await write(first)
        return await apply(batch)

    monkeypatch.setattr(engine.context.backend, "apply", apply_first)
    run(write(last))
    assert struck == [1]
    assert status(store, "t") == "failed"
    with holdfast.open(tmp_path / "a.db") as other:
        assert status(other, "t") == "failed"


@pytest.mark.parametrize("kind", ["breaks", "joins"])
def test_a_graph_at_a_breakpoint_is_unfinished_and_done_when_it_went_on(store: Store, kind: str) -> None:
    play(store, kind, interrupt_before=["second"])
    assert status(store, kind) == "unfinished"
    build(kind).compile(checkpointer=HoldfastSaver(store)).invoke(None, {"configurable": {"thread_id": kind}})
    assert status(store, kind) == "done"


def test_a_graph_that_reached_the_recursion_limit_is_unfinished(store: Store) -> None:
    with pytest.raises(GraphRecursionError):
        play(store, "loops")
    assert status(store, "loops") == "unfinished"


@NO_KILL
def test_a_graph_that_was_killed_is_unfinished_and_not_running(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    command = [sys.executable, "-m", "tests.interfaces.langgraph.status_graphs", str(path)]
    killed = subprocess.run(command, check=False, timeout=60, capture_output=True)
    assert killed.returncode == -9, killed.stderr
    with holdfast.open(path) as store:
        assert status(store, "killed") == "unfinished"
        with store.thread("killed").running():
            assert status(store, "killed") == "running"


def test_a_claim_without_a_sign_of_life_makes_no_thread_run(tmp_path: Path) -> None:
    clock = [1_000 * 10**9]
    with holdfast.open(tmp_path / "a.db") as store:
        context = store._handle.engine.context
        play(store, "breaks", interrupt_before=["second"])
        force_setattr(context, "clock", lambda: clock[0])
        with store.thread("breaks").running():
            assert status(store, "breaks") == "running"
            with pytest.raises(ConflictError), store.thread("breaks").running():
                pass
            clock[0] += 31 * 10**9
            assert status(store, "breaks") == "unfinished"


def test_a_thread_without_a_graph_is_idle_and_runs_under_a_lease(store: Store) -> None:
    store.thread("plain").put({"a": 1})
    assert status(store, "plain") == "idle"
    with store.thread("plain").running():
        assert status(store, "plain") == "running"
    assert status(store, "plain") == "idle"
    with pytest.raises(NotFoundError):
        store.thread("none").status()
    with pytest.raises(InvalidError):
        store.threads(status="asleep")  # type: ignore[arg-type]


def test_a_sign_of_life_leaves_the_token_of_a_claim_as_it_is(store: Store) -> None:
    store.thread("t").put({})
    other = run_claim(store._handle.engine.context, store.thread("t")._line)
    with store.thread("t").running() as held:
        condition = held._claim.condition()
        token = run(store._handle.engine.context.backend.changes()).token
        run(held._claim.beat())
        assert run(store._handle.engine.context.backend.changes(token)).lines == []
        assert run(store._handle.engine.context.backend.apply([condition])) is None
        with pytest.raises(ConflictError):
            run(other.acquire())
    assert status(store, "t") == "idle"
    run(other.acquire())


def test_a_run_that_is_cancelled_as_it_begins_has_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        async with await holdfast.aopen(tmp_path / "a.db") as store:
            await store.thread("t").put({})
            context = store._handle.engine.context
            apply = context.backend.apply
            task = asyncio.create_task(store.thread("t").running().__aenter__())
            acquired: list[Any] = []

            async def cancelling(batch: Any) -> Any:
                if not acquired and any(
                    isinstance(each, Put) and each.row.key[2:4] == ("lease", "run") for each in batch
                ):
                    acquired.append(batch)
                    task.cancel()
                return await apply(batch)

            monkeypatch.setattr(context.backend, "apply", cancelling)
            with pytest.raises(asyncio.CancelledError):
                await task
            assert acquired
            assert (await store.thread("t").status()).status == "idle"

    asyncio.run(work())


def test_a_thread_that_others_changed_is_running_under_a_lease_too(store: Store) -> None:
    play(store, "chain")
    with store.transaction() as together:
        together.put("chain", {"log": [1]})
    assert status(store, "chain") == "idle"
    with store.thread("chain").running():
        assert status(store, "chain") == "running"


def test_an_async_store_tells_the_same(tmp_path: Path) -> None:
    async def work() -> None:
        async with await holdfast.aopen(tmp_path / "a.db") as store:
            graph = build("asks").compile(checkpointer=HoldfastSaver(store))
            await graph.ainvoke({"log": []}, {"configurable": {"thread_id": "t"}})
            assert (await store.thread("t").status()).status == "waiting"
            assert [each.thread for each in await store.threads(status="waiting")] == ["t"]
            await store.thread("u").put({})
            async with store.thread("u").running():
                assert (await store.thread("u").status()).status == "running"

    asyncio.run(work())


def test_the_row_is_written_only_when_the_status_changes(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []
    context = store._handle.engine.context
    apply = context.backend.apply

    async def counting(batch: Any) -> Any:
        failed = await apply(batch)
        rows = [each.row for each in batch if isinstance(each, Put) and each.row.key[2:3] == ("status",)]
        written.extend(str(row.columns[0]).split(" ")[0] for row in rows if failed is None)
        return failed

    monkeypatch.setattr(context.backend, "apply", counting)
    play(store, "chain")
    assert written == ["unfinished", "done"]
    play(store, "chain")
    assert written == ["unfinished", "done"] * 2
    store.thread("plain").put({"a": 1})
    assert written == ["unfinished", "done"] * 2


def test_an_answer_that_is_stored_after_the_end_of_the_run_changes_nothing(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    play(store, "asks")
    play(store, "asks", Command(resume="yes"))
    context, ended, held = store._handle.engine.context, threading.Event(), []
    apply = context.backend.apply

    async def late(batch: Any) -> Any:
        marks = [each.row.columns[0] for each in batch if isinstance(each, Put) and each.row.key[2:3] == ("status",)]
        if any(str(mark).startswith("unfinished ") for mark in marks) and any(each.space is WRITES for each in batch):
            held.append(ended.wait(30))
        failed = await apply(batch)
        if failed is None and any(str(mark).startswith("done ") for mark in marks):
            ended.set()
        return failed

    monkeypatch.setattr(context.backend, "apply", late)
    play(store, "asks", Command(resume="yes"))
    assert held == [True]  # the answer was stored when the graph had reached its end
    assert status(store, "asks") == "done"


def test_a_thread_that_was_done_runs_again_under_a_lease(store: Store) -> None:
    play(store, "chain")
    with store.thread("chain").running():
        assert status(store, "chain") == "running"
        play(store, "chain")
    assert status(store, "chain") == "done"


@pytest.mark.parametrize("durability", ["sync", "exit"])
def test_a_namespace_has_no_status_of_its_own(store: Store, durability: Any) -> None:
    graph = build("subgraph-asks").compile(checkpointer=HoldfastSaver(store))
    graph.invoke({"log": []}, {"configurable": {"thread_id": "above"}}, durability=durability)
    (below,) = [each.thread for each in store.threads() if each.thread != "above"]
    assert status(store, "above") == "waiting"
    assert status(store, below) == "idle"


# Crossings --------------------------------------------------------------------------------------------------------


def test_head_that_moves_has_the_status_of_the_branch_it_is_on(store: Store) -> None:
    play(store, "asks")
    thread = store.thread("asks")
    thread.fork("other", at="HEAD~1")
    thread.switch("main")
    found = status(store, "asks")
    assert found in ("unfinished", "waiting")
    thread.restore(0)
    assert status(store, "asks") == "unfinished"
    play(store, "chain")
    middle = store.thread("chain").log()[1]
    store.thread("chain").restore(middle.id)
    assert status(store, "chain") == "unfinished"
    store.thread("chain").update({"log": [7]})
    assert status(store, "chain") == "unfinished"


def test_copies_exports_backups_and_archives_have_the_status(store: Store, tmp_path: Path) -> None:
    play(store, "asks")
    HoldfastSaver(store).copy_thread("asks", "copied")
    assert status(store, "copied") == "waiting"
    assert [each.value for each in store.thread("copied").status().questions] == [
        {"ask": "May ada@example.com be paid?"}
    ]
    with holdfast.open(tmp_path / "b.db") as other:
        store.maintenance.copy_to(other)
        assert status(other, "asks") == "waiting"
    store.maintenance.export(tmp_path / "export.hfx", threads=["asks"])
    with holdfast.open(tmp_path / "c.db") as other:
        other.maintenance.import_(tmp_path / "export.hfx")
        assert status(other, "asks") == "waiting"
    store.backups(tmp_path / "backups").create()
    play(store, "asks", Command(resume="yes"))
    play(store, "asks", Command(resume="yes"))
    assert status(store, "asks") == "done"
    with holdfast.open(tmp_path / "d.db") as other:
        other.backups(tmp_path / "backups").restore()
        assert status(other, "asks") == "waiting"


def roll_back(store: Store, folder: Path) -> None:
    backups = store.backups(folder / "backups")
    backups.create()
    for _ in range(2):
        play(store, "asks", Command(resume="yes"))
    backups.restore(in_place=True)


def change_together(store: Store, folder: Path) -> None:
    with store.transaction() as transaction:
        transaction.update("asks", {"log": [1]})


def delete_a_run(store: Store, folder: Path) -> None:
    graph = build("chain").compile(checkpointer=HoldfastSaver(store))
    graph.update_state({"configurable": {"thread_id": "asks"}, "metadata": {"run_id": "r1"}}, {"log": [1]}, "first")
    HoldfastSaver(store).delete_for_runs(["r1"])


def repair_from_newer(store: Store, folder: Path) -> None:
    with holdfast.open(folder / "newer.db") as newer:
        store.maintenance.copy_to(newer)
        play(newer, "asks", Command(resume="yes"))
        play(newer, "asks", Command(resume="yes"))
        store.maintenance.repair(newer, thread="asks")


@pytest.mark.parametrize(
    ("move", "found"),
    [
        (roll_back, "unfinished"),
        (change_together, "unfinished"),
        (delete_a_run, "unfinished"),
        (repair_from_newer, "done"),
    ],
)
def test_what_moves_head_without_a_run_stores_the_status_again(
    store: Store, tmp_path: Path, move: Callable[[Store, Path], None], found: str
) -> None:
    play(store, "asks")
    move(store, tmp_path)
    assert status(store, "asks") == found


def test_a_moment_is_restored_with_its_status(store: Store, tmp_path: Path) -> None:
    backups = store.backups(tmp_path / "backups")
    play(store, "chain", thread="t")
    backups.create()
    moment = store.thread("t").get().time
    play(store, "asks", thread="t")
    backups.create()
    moments: list[dict[str, Any]] = [{"backup": moment}, {"threads": ["t"], "at": "HEAD~2"}]
    for number, options in enumerate(moments):
        with holdfast.open(tmp_path / f"then{number}.db") as then:
            then.backups(tmp_path / "backups").restore(**options)
            assert status(then, "t") == "done"


def test_a_pruned_thread_keeps_its_status_and_a_deleted_one_has_none(store: Store) -> None:
    play(store, "asks")
    HoldfastSaver(store).prune(["asks"])
    assert status(store, "asks") == "waiting"
    assert store.thread("asks").status().questions
    store.thread("asks").delete()
    assert list(store.threads(status="waiting")) == []
    store.thread("asks").put({"a": 1})
    assert status(store, "asks") == "idle"


@pytest.mark.parametrize("hide_names", [False, True])
def test_an_encrypted_store_hides_the_status_and_finds_those_that_wait(tmp_path: Path, hide_names: bool) -> None:
    encryption = Encryption(LocalKeys(generate_key()), hide_names=hide_names)
    with holdfast.open(tmp_path / "a.db", encryption=encryption) as store:
        play(store, "asks")
        play(store, "chain")
        assert status(store, "asks") == "waiting"
        assert status(store, "chain") == "done"
        assert store.thread("asks").status().questions[0].value == {"ask": "May ada@example.com be paid?"}
        checkpoint = store.thread("asks").get().id
    data = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert checkpoint.encode() in data
    assert f"waiting {checkpoint}".encode() not in data
    assert b"ada@example.com" not in data


def test_erasure_reaches_the_question(store: Store) -> None:
    play(store, "asks")
    store.erasure.set_subject("ada", "asks")
    store.erasure.erase("ada")
    with pytest.raises(NotFoundError):
        store.thread("asks").status()
    assert list(store.threads(status="waiting")) == []


def test_an_identity_sees_the_status_of_what_it_may_read(store: Store) -> None:
    ada = store.as_identity(agent="ada")
    play(ada, "asks", thread="hers")
    play(store, "asks", thread="ours")
    assert [each.thread for each in ada.threads(status="waiting")] == ["hers"]
    assert ada.thread("hers").status().status == "waiting"
    with pytest.raises((DeniedError, NotFoundError)):
        ada.thread("ours").status()


def test_a_verified_store_is_sound(store: Store) -> None:
    play(store, "asks")
    play(store, "chain")
    assert store.maintenance.verify().ok
    with pytest.raises(HoldfastError):
        store.thread("").status()
