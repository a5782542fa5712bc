"""Graphs that a program runs itself, with a saver that says by which name workers go on with them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from contextvars import copy_context
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from langgraph.types import Command

import holdfast
from holdfast import Store
from holdfast.agents.runs.program_runs import ProgramRuns
from holdfast.backends.runtime.drivers import run
from holdfast.errors import ClaimLostError, ConfigError, ConflictError, DeniedError
from holdfast.langgraph import HoldfastSaver
from tests.agents.runs.graphs import Log, asking, chain, logging_nodes
from tests.agents.runs.test_workers_kills import NO_KILL, left_over
from tests.support.kills import kill, run_in_child

CONFIG: Any = {"configurable": {"thread_id": "t"}}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with holdfast.open(tmp_path / "a.db") as opened:
        yield opened


def saved_by(graph: Any, store: Any, **options: Any) -> Any:
    options = {"recover": "support"} | options
    return graph.copy(update={"checkpointer": HoldfastSaver(store, **options)})


def kill_at(place: str) -> Callable[[str], None]:
    def around(name: str) -> None:
        if name == place:
            kill()

    return around


@NO_KILL
@pytest.mark.parametrize("in_block", [False, True])
def test_a_worker_goes_on_with_what_a_killed_program_ran(tmp_path: Path, in_block: bool) -> None:
    path = tmp_path / "a.db"

    def program(report: Callable[[str], None]) -> None:
        with holdfast.open(path) as store:
            graph = saved_by(chain(*logging_nodes(3, kill_at("n1"))), store)
            if in_block:
                with graph.checkpointer.run(CONFIG):
                    graph.invoke({"log": ["in"]}, CONFIG, durability="sync")
            graph.invoke({"log": ["in"]}, CONFIG, durability="sync")

    assert run_in_child(program)[1]
    with holdfast.open(path) as store:
        ran: list[str] = []
        store.worker(support=chain(*logging_nodes(3, ran.append))).run_due()
        assert ran == ["n1", "n2"]
        assert store.thread("t").get().state["log"] == ["in", "n0", "n1", "n2"]
        (done,) = store.runs.list()
        assert (done.graph, done.state, done.attempts) == ("support", "done", 2)
    assert left_over(path) == []


@NO_KILL
def test_a_thread_of_a_saver_that_names_no_graph_is_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "a.db"

    def program(report: Callable[[str], None]) -> None:
        with holdfast.open(path) as store:
            graph = saved_by(chain(*logging_nodes(3, kill_at("n1"))), store, recover=None)
            graph.invoke({"log": ["in"]}, CONFIG, durability="sync")

    assert run_in_child(program)[1]
    with holdfast.open(path) as store:
        before = [each.id for each in store.thread("t").log()]
        store.worker(support=chain(*logging_nodes(3))).run_due()
        assert [each.id for each in store.thread("t").log()] == before
        assert store.runs.list() == []


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
def test_nothing_is_left_of_a_run_that_its_program_ended(store: Store, tmp_path: Path, durability: Any) -> None:
    held: list[str] = []

    def around(name: str) -> None:
        held.extend(each.state for each in store.runs.list())

    graph = saved_by(chain(*logging_nodes(3, around)), store)
    for number in range(3):
        graph.invoke({"log": [str(number)]}, CONFIG, durability=durability)
        assert store.runs.list() == []
        assert store.thread("t").status().status == "done"
    assert set(held) <= {"running"}
    assert bool(held) is (durability != "exit")
    assert len(store.thread("t").branches()) == 1
    assert left_over(tmp_path / "a.db") == []


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
def test_a_question_of_a_graph_that_a_program_ran_is_answered_by_anybody(store: Store, durability: Any) -> None:
    graph = saved_by(asking(), store)
    graph.invoke({"log": []}, CONFIG, durability=durability)
    (waiting,) = store.runs.list(state="waiting")
    assert store.thread("t").status().status == "waiting"
    store.runs.answer(waiting.id, "a worker")
    store.worker(support=asking()).run_due()
    assert store.runs.get(waiting.id).state == "done"
    assert store.thread("t").get().state["log"] == ["n0", "answered a worker", "n1"]
    graph.invoke({"log": []}, CONFIG, durability=durability)
    assert [each.state for each in store.runs.list()] == ["waiting", "done"]
    graph.invoke(Command(resume="the program"), CONFIG, durability=durability)
    assert [each.state for each in store.runs.list()] == ["done"]
    assert store.thread("t").get().state["log"][3:] == ["n0", "answered the program", "n1"]


def test_a_question_of_a_thread_without_a_run_is_answered_by_a_run(store: Store) -> None:
    graph = saved_by(asking(), store, recover=None)
    graph.invoke({"log": []}, CONFIG)
    answered = store.runs.submit("t", Command(resume="later"), graph="support")
    store.worker(support=asking()).run_due()
    assert store.runs.get(answered.id).state == "done"
    assert store.thread("t").get().state["log"] == ["n0", "answered later", "n1"]


def test_a_program_that_tries_again_itself_leaves_no_failed_run(store: Store) -> None:
    failing = [1, 2]

    def around(name: str) -> None:
        if failing and name == "n1":
            raise ValueError(failing.pop())

    graph = saved_by(chain(*logging_nodes(2, around)), store)
    given: Any = {"log": []}
    while failing:
        with pytest.raises(ValueError, match="1|2"):
            graph.invoke(given, CONFIG)
        given = None
        assert [each.state for each in store.runs.list()] == ["failed"]
    graph.invoke(None, CONFIG)
    assert store.runs.list() == []
    assert store.thread("t").get().state["log"] == ["n0", "n1"]


def test_a_graph_that_fails_leaves_a_run_that_is_retried(store: Store) -> None:
    failing = [True]

    def around(name: str) -> None:
        if failing and name == "n1":
            raise ValueError("once")

    graph = saved_by(chain(*logging_nodes(2, around)), store)
    with pytest.raises(ValueError, match="once"):
        graph.invoke({"log": []}, CONFIG)
    (failed,) = store.runs.list()
    assert (failed.state, failed.error) == ("failed", "ValueError('once')")
    failing.clear()
    store.runs.retry(failed.id)
    store.worker(support=chain(*logging_nodes(2, around))).run_due()
    assert store.runs.get(failed.id).state == "done"
    assert store.thread("t").get().state["log"] == ["n0", "n1"]


def test_a_program_that_was_presumed_dead_stores_nothing(store: Store) -> None:
    reached, go_on, errors = threading.Event(), threading.Event(), list[Exception]()

    def around(name: str) -> None:
        if name == "n1":
            reached.set()
            assert go_on.wait(30)

    def program() -> None:
        try:
            graph.invoke({"log": ["in"]}, CONFIG, durability="sync")
        except ClaimLostError as error:
            errors.append(error)

    graph = saved_by(chain(*logging_nodes(3, around)), store, lease=0.5)
    thread = threading.Thread(target=program)
    thread.start()
    assert reached.wait(30)
    beats = store._handle.engine.context.heartbeats
    assert len(beats._held) == 1
    for beat in list(beats._held):
        beats.remove(beat)  # as if the process had been stopped
    (run_,) = store.runs.list()
    with store.worker(support=chain(*logging_nodes(3)), lease=0.5):
        assert store.runs.wait(run_.id, timeout=30).state == "done"
    steps = [each.id for each in store.thread("t").log()]
    go_on.set()
    thread.join(30)
    assert len(errors) == 1
    assert [each.id for each in store.thread("t").log()] == steps
    assert len(store.thread("t").branches()) == 1


def save(store: Store, runs: ProgramRuns, checkpoint: str, status: str = "running", **options: Any) -> None:
    """Save as a saver does: here, a checkpoint that begins a run."""

    async def action() -> None:
        store.state(agent="a").set("last", checkpoint)

    options = {"is_checkpoint": True, "begins": True} | options
    run(runs.save("t", action, checkpoint, status=status, **options))


def test_a_question_that_is_stored_while_its_run_is_begun_ends_it(store: Store) -> None:
    runs = ProgramRuns(store._handle, "support", 30)

    async def ask() -> None:  # the checkpoint at which it asks, and which begins the run, is saved in between
        beginning = threading.Thread(target=save, args=(store, runs, "c1"))
        beginning.start()
        beginning.join()
        assert [each.state for each in store.runs.list()] == ["running"]
        store.state(agent="a").set("asked", True)

    run(runs.save("t", ask, "c1", is_checkpoint=False, begins=False, status="waiting"))
    assert store.state(agent="a").get("asked") is True
    assert [each.state for each in store.runs.list()] == ["waiting"]


def test_a_lost_run_is_not_begun_again_by_what_its_graph_does_still(store: Store) -> None:
    runs, lost, anew = ProgramRuns(store._handle, "support", 30), copy_context(), copy_context()
    lost.run(runs.note_invocation, "t")
    lost.run(save, store, runs, "c1")
    (begun,) = store.runs.list()
    store.runs.cancel(begun.id)
    for number in range(3):
        with pytest.raises(ClaimLostError):
            lost.run(save, store, runs, f"c{number}")
    copy_context().run(runs.note_invocation, "t")  # that somebody else reads the thread changes nothing
    with pytest.raises(ClaimLostError):
        lost.run(save, store, runs, "c2")
    assert store.state(agent="a").get("last") == "c1"
    assert [each.state for each in store.runs.list()] == ["cancelled"]
    anew.run(runs.note_invocation, "t")
    anew.run(save, store, runs, "c3")
    for begins in (True, False):
        with pytest.raises(ClaimLostError):
            lost.run(partial(save, store, runs, "c2", begins=begins))
    anew.run(save, store, runs, "c4", "done")
    assert store.state(agent="a").get("last") == "c4"
    assert store.runs.list(state="running") == []


def test_a_program_runs_a_thread_again_whose_run_was_cancelled(store: Store) -> None:
    cancels = [True]

    def around(name: str) -> None:
        if name == "n1" and cancels:
            cancels.clear()
            (running,) = store.runs.list(state="running")
            store.runs.cancel(running.id)
            assert graph.get_state(CONFIG).values["log"] == ["in", "n0"]  # a node that looks invokes nothing

    graph = saved_by(chain(*logging_nodes(3, around)), store)
    with pytest.raises(ClaimLostError):
        graph.invoke({"log": ["in"]}, CONFIG, durability="sync")
    assert store.thread("t").get().state["log"] == ["in", "n0"]
    assert [each.state for each in store.runs.list()] == ["cancelled"]
    graph.invoke(None, CONFIG, durability="sync")
    assert store.thread("t").get().state["log"] == ["in", "n0", "n1", "n2"]
    assert [each.state for each in store.runs.list()] == ["cancelled"]


def test_a_block_covers_what_nodes_store_and_hands_over_what_was_interrupted(store: Store) -> None:
    lost: list[str] = []

    def around(name: str) -> None:
        if name == "n1" and not lost:
            (run_,) = store.runs.list(state="running")
            store.runs.cancel(run_.id)
            try:
                store.state(agent="a").set("k", 1)
            except ClaimLostError:
                lost.append("state")
            raise KeyboardInterrupt

    graph = saved_by(chain(*logging_nodes(2, around)), store)
    with pytest.raises(KeyboardInterrupt), graph.checkpointer.run(CONFIG):
        graph.invoke({"log": []}, CONFIG)
    assert lost == ["state"]

    class Stop(BaseException):
        pass

    def stop() -> None:
        with graph.checkpointer.run(CONFIG):
            for _ in graph.stream({"log": ["again"]}, CONFIG, durability="sync"):
                raise Stop

    with pytest.raises(Stop):
        stop()
    (left,) = store.runs.list(state="queued")
    store.worker(support=graph).run_due()
    assert store.runs.get(left.id).state == "done"
    assert store.thread("t").get().state["log"][-2:] == ["n0", "n1"]


def test_a_block_that_ends_at_a_breakpoint_waits(store: Store) -> None:
    graph = saved_by(chain(*logging_nodes(2)), store).copy(update={"interrupt_before_nodes": ["n1"]})
    with graph.checkpointer.run(CONFIG):
        graph.invoke({"log": []}, CONFIG)
    (waiting,) = store.runs.list()
    store.worker(support=chain(*logging_nodes(2))).run_due()
    assert store.runs.get(waiting.id).state == "waiting"
    with graph.checkpointer.run(CONFIG):
        graph.invoke(None, CONFIG)
    assert store.runs.list() == []
    assert store.thread("t").get().state["log"] == ["n0", "n1"]


def test_two_programs_do_not_run_a_thread_at_once(store: Store, tmp_path: Path) -> None:
    reached, go_on = threading.Event(), threading.Event()

    def around(name: str) -> None:
        reached.set()
        assert go_on.wait(30)

    graph = saved_by(chain(*logging_nodes(1, around)), store)
    # The thread is claimed with the first checkpoint, which is otherwise saved beside the first node.
    kept = {"durability": "sync"}
    thread = threading.Thread(target=graph.invoke, args=({"log": []}, CONFIG), kwargs=kept, daemon=True)
    thread.start()
    assert reached.wait(30)
    with holdfast.open(tmp_path / "a.db") as second:
        other = saved_by(chain(*logging_nodes(1)), second)
        with pytest.raises(ConflictError, match="in progress"):
            other.invoke({"log": []}, CONFIG)
        with pytest.raises(ConflictError, match="in progress"), other.checkpointer.run(CONFIG):
            pass
        queued = second.runs.submit("t", {"log": ["worker"]}, graph="support")
        second.worker(support=other).run_due()
        assert second.runs.get(queued.id).state == "queued"
        go_on.set()
        thread.join(30)
        second.worker(support=other).run_due()
        assert second.runs.get(queued.id).state == "done"
    assert store.thread("t").get().state["log"] == ["n0", "worker", "n0"]


def test_asyncio_has_the_same(tmp_path: Path) -> None:
    async def work() -> None:
        async with await holdfast.aopen(tmp_path / "a.db") as store:
            seen: list[str] = []

            async def n0(state: Any) -> dict[str, Any]:
                seen.extend([each.state for each in await store.runs.list()])
                return {"log": ["n0"]}

            graph = saved_by(chain(n0, *logging_nodes(1)[:0], name="aio"), store)
            await graph.ainvoke({"log": []}, CONFIG, durability="sync")
            async with graph.checkpointer.run(CONFIG):
                await graph.ainvoke({"log": []}, CONFIG, durability="sync")
            assert seen == ["running", "running"]
            assert await store.runs.list() == []

    asyncio.run(work())
    assert left_over(tmp_path / "a.db") == []


def test_wrong_calls_are_refused(store: Store) -> None:
    with pytest.raises(ConfigError, match="recover"):
        HoldfastSaver(store).run(CONFIG)
    with pytest.raises(DeniedError):
        HoldfastSaver(store.as_identity(agent="a"), recover="support")


@pytest.mark.parametrize("is_block", [False, True])
def test_steps_in_a_graph_that_a_program_runs_are_recorded(store: Store, is_block: bool) -> None:
    calls: list[str] = []

    @holdfast.step
    def outer(name: str) -> str:
        calls.append(name)
        return inner(name)

    @holdfast.step
    def inner(name: str) -> str:
        return f"did {name}"

    is_broken = [True]

    def work(state: Log) -> dict[str, Any]:
        found = outer("n")
        if is_broken[0]:
            raise ValueError("broken")
        return {"log": [found]}

    graph = saved_by(chain(work), store)
    block: Any = graph.checkpointer.run(CONFIG) if is_block else nullcontext()
    with pytest.raises(ValueError, match="broken"), block:
        graph.invoke({"log": []}, CONFIG)
    (failed,) = store.runs.list()
    steps = [(each.name, each.state, each.result) for each in store.runs.steps(failed.id)]
    assert steps == [("outer", "done", "did n")]
    is_broken[0] = False
    store.runs.retry(failed.id)
    store.worker(support=chain(work)).run_due()
    assert (store.runs.get(failed.id).state, calls) == ("done", ["n"])


def test_a_submitted_run_that_a_program_finishes_stays_with_its_key(store: Store) -> None:
    id = store.runs.submit("t", {"log": []}, graph="support", idempotency_key="order").id
    store.worker(support=asking()).run_due()
    saved_by(asking(), store).invoke(Command(resume="yes"), CONFIG)
    assert store.runs.get(id).state == "done"
    assert store.runs.submit("t", {"log": []}, graph="support", idempotency_key="order").id == id


def test_an_end_that_is_stored_two_checkpoints_early_ends_the_run(store: Store) -> None:
    runs = ProgramRuns(store._handle, "support", 30.0)

    async def store_nothing() -> None:
        pass

    for checkpoint, is_checkpoint, status in (("2", False, "waiting"), ("1", True, None), ("2", True, None)):
        run(runs.save("t", store_nothing, checkpoint, is_checkpoint=is_checkpoint, begins=is_checkpoint, status=status))
    assert [each.state for each in store.runs.list()] == ["waiting"]
