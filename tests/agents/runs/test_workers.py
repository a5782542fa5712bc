"""Workers run graphs from their checkpoints; what a run stores is on the condition of its claim."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from langgraph.graph import END, START, StateGraph

import holdfast
from holdfast import Store
from holdfast.backends.runtime.drivers import run
from holdfast.backends.sqlite.backend import SQLiteBackend
from holdfast.errors import ClaimLostError, InvalidError
from tests.agents.runs.graphs import Log, asking, chain, logging_nodes


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with holdfast.open(tmp_path / "a.db") as opened:
        yield opened


def test_a_graph_is_run_and_its_checkpoints_are_followed(store: Store) -> None:
    graph = chain(*logging_nodes(3))
    run_ = store.runs.submit("chat-1", {"log": ["in"]}, graph="chain")
    store.worker(graph).run_due()
    assert store.runs.get(run_.id).state == "done"
    assert store.thread("chat-1").get().state["log"] == ["in", "n0", "n1", "n2"]
    assert store.thread("chat-1").status().status == "done"
    events = list(store.runs.follow(run_.id))
    stored = [each.id for each in store.thread("chat-1").log()][::-1]
    assert [each.name for each in events] == [*stored, ""]
    for number, event in enumerate(events):  # wherever the stream was cut
        assert list(store.runs.follow(run_.id, after=event.id)) == events[number + 1 :]
    second = store.runs.submit("chat-1", {"log": ["again"]}, graph="chain")
    store.worker(graph).run_due()
    assert list(store.runs.follow(run_.id)) == events
    assert len(list(store.runs.follow(second.id))) == len(events)


def test_a_question_is_answered_and_the_run_goes_on(store: Store) -> None:
    worker = store.worker(asking())
    run_ = store.runs.submit("chat", {"log": []}, graph="asking")
    behind = store.runs.submit("chat", {"log": []}, graph="asking")
    worker.run_due()
    assert store.runs.get(run_.id).state == "waiting"
    assert store.thread("chat").status().questions[0].value == "which?"
    store.runs.answer(run_.id, "this")
    worker.run_due()
    assert store.runs.get(run_.id).state == "done"
    assert store.runs.get(behind.id).state == "waiting"  # it had its turn, and asks, too
    assert store.thread("chat").get().state["log"] == ["n0", "answered this", "n1", "n0"]
    events = [each.kind for each in store.runs.follow(run_.id)]
    assert events.count("checkpoint") == 5
    assert events[-1] == "done"


def test_a_graph_that_failed_goes_on_where_it_stopped(store: Store) -> None:
    ran: list[str] = []

    def around(name: str) -> None:
        ran.append(name)
        if ran.count("n1") == 1 and name == "n1":
            raise ValueError("not yet")

    run_ = store.runs.submit("t", {"log": []}, graph="chain", attempts=2)
    with store.worker(chain(*logging_nodes(3, around))):
        assert store.runs.wait(run_.id, timeout=30).state == "done"
    assert ran == ["n0", "n1", "n1", "n2"]
    assert store.thread("t").get().state["log"] == ["n0", "n1", "n2"]


class Stopped:
    """A place in a run where it waits until the test goes on."""

    def __init__(self) -> None:
        self.reached, self.go_on = threading.Event(), threading.Event()

    def __call__(self, name: str) -> None:
        if name == "n1":
            self.reached.set()
            assert self.go_on.wait(30)


@pytest.mark.parametrize("cancels", [True, False])
def test_a_run_whose_claim_is_gone_stores_nothing(store: Store, cancels: bool) -> None:
    stopped, errors = Stopped(), list[str]()

    def effects(state: Log) -> dict[str, Any]:
        stopped("n1")
        acts: dict[str, Callable[[], object]] = {
            "thread": lambda: store.thread("other").put({"a": 1}),
            "state": lambda: store.state(agent="a").set("k", 1),
            "step": lambda: keep(1),
            "agent step": lambda: store.agents.steps("desk").list(),
        }
        for name, act in acts.items():
            try:
                act()
            except ClaimLostError:
                errors.append(name)
        return {"log": ["effects"]}

    @holdfast.step(key="k")
    def keep(number: int) -> int:
        return number

    inner = chain(*logging_nodes(1), effects, name="inner")
    builder: Any = StateGraph(Log)
    builder.add_node("inner", inner)
    builder.add_edge(START, "inner")
    builder.add_edge("inner", END)
    outer = builder.compile(name="outer")
    run_ = store.runs.submit("t", {"log": []}, graph="outer")
    with store.worker(outer, lease=1):
        assert stopped.reached.wait(30)
        before = [each.id for each in store.thread("t").log()]
        if cancels:
            store.runs.cancel(run_.id)
        stopped.go_on.set()
        store.runs.wait(run_.id, timeout=30)
    after = [each.id for each in store.thread("t").log()]
    assert (after == before) is cancels
    assert errors == (["thread", "state", "step"] if cancels else [])
    assert bool(store.threads(prefix="other")) is not cancels
    assert store.runs.get(run_.id).state == ("cancelled" if cancels else "done")


def test_a_run_without_a_sign_of_life_is_taken_over(store: Store) -> None:
    """As if the process had been stopped for a while: its claim lapses, and what it stores then is refused."""
    stopped = Stopped()
    run_ = store.runs.submit("t", {"log": []}, graph="chain")
    sleepy = store.worker(chain(*logging_nodes(3, stopped)), lease=0.6).start()
    assert stopped.reached.wait(30)
    (held,) = sleepy._active.values()
    for beat in list(store._handle.engine.context.heartbeats._held):
        store._handle.engine.context.heartbeats.remove(beat)
    with holdfast.open(store._handle.engine.context.backend.url) as other:
        with other.worker(chain(*logging_nodes(3)), lease=0.6):
            done = other.runs.wait(run_.id, timeout=30)
        assert (done.state, done.attempts) == ("done", 2)
        steps = [each.id for each in other.thread("t").log()]
        stopped.go_on.set()
        sleepy.stop()
        assert held.claim.is_lost
        assert [each.id for each in other.thread("t").log()] == steps
        assert len(other.thread("t").branches()) == 1
        assert other.thread("t").get().state["log"] == ["n0", "n1", "n2"]


def test_a_worker_that_stops_hands_over_at_a_step(store: Store) -> None:
    stopped = Stopped()
    run_ = store.runs.submit("t", {"log": []}, graph="chain")
    worker = store.worker(chain(*logging_nodes(3, stopped))).start()
    assert stopped.reached.wait(30)
    worker.stop(wait=False)
    stopped.go_on.set()
    worker.stop()
    left = store.runs.get(run_.id)
    assert (left.state, left.failures) == ("queued", 0)
    ran: list[str] = []
    store.worker(chain(*logging_nodes(3, ran.append))).run_due()
    assert ran == ["n2"]
    assert store.thread("t").get().state["log"] == ["n0", "n1", "n2"]


def test_a_thread_that_a_program_runs_is_left_alone(store: Store) -> None:
    run_ = store.runs.submit("t", {"log": []}, graph="chain")
    with store.thread("t").running():
        store.worker(chain(*logging_nodes(1))).run_due()
        assert store.runs.get(run_.id).state == "queued"
    store.worker(chain(*logging_nodes(1))).run_due()
    assert store.runs.get(run_.id).state == "done"


def test_a_worker_does_no_more_of_a_graph_than_its_limit(store: Store) -> None:
    now, most, lock = 0, 0, threading.Lock()

    def around(name: str) -> None:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        time.sleep(0.05)
        with lock:
            now -= 1

    ids = [store.runs.submit(f"t{number}", {"log": []}, graph="chain").id for number in range(4)]
    with store.worker(chain(*logging_nodes(1, around)), concurrency=4, limits={"chain": 1}):
        assert {store.runs.wait(id, timeout=30).state for id in ids} == {"done"}
    assert most == 1


def test_an_async_worker_runs_graphs_and_is_cut_off_likewise(tmp_path: Path) -> None:
    async def work() -> None:
        reached, go_on = asyncio.Event(), asyncio.Event()

        async def n1(state: Log) -> dict[str, Any]:
            reached.set()
            await go_on.wait()
            return {"log": ["n1"]}

        async def n0(state: Log) -> dict[str, Any]:
            return {"log": ["n0"]}

        async with await holdfast.aopen(tmp_path / "a.db") as store:
            async with store.worker(chain(n0, n1, name="aio")):
                one = await store.runs.submit("t", {"log": []}, graph="aio")
                await asyncio.wait_for(reached.wait(), 30)
                await store.runs.cancel(one.id)
                before = len(await store.thread("t").log())
                go_on.set()
                two = await store.runs.submit("u", {"log": []}, graph="aio")
                assert (await store.runs.wait(two.id, timeout=30)).state == "done"
            assert (await store.thread("u").get()).state["log"] == ["n0", "n1"]
            assert len(await store.thread("t").log()) == before
            assert (await store.runs.get(one.id)).state == "cancelled"

    asyncio.run(work())


def test_a_run_of_another_store_is_not_bound_to_the_claim(store: Store, tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "other.db") as other, holdfast.open("memory://") as third:

        def around(name: str) -> None:
            other.thread("x").put({"a": 1})
            third.thread("x").put({"a": 1})

        run_ = store.runs.submit("t", {"log": []}, graph="chain")
        store.worker(chain(*logging_nodes(1, around))).run_due()
        assert store.runs.get(run_.id).state == "done"
        assert other.thread("x").get().state == third.thread("x").get().state == {"a": 1}


def test_runs_stay_out_of_copies_of_their_thread(store: Store, tmp_path: Path) -> None:
    run_ = store.runs.submit("t", {"log": []}, graph="chain")
    store.worker(chain(*logging_nodes(1))).run_due()
    with holdfast.open(tmp_path / "copy.db") as copy:
        store.maintenance.copy_to(copy)
        assert copy.thread("t").get().state == store.thread("t").get().state
        assert copy.runs.list() == []
    assert store.runs.get(run_.id).state == "done"
    assert store.maintenance.verify().found == 0


def test_claims_leave_no_trace_in_the_feed_while_they_are_held(store: Store) -> None:
    stopped, backend = Stopped(), store._handle.engine.context.backend
    store.runs.submit("t", {"log": []}, graph="chain")
    with store.worker(chain(*logging_nodes(2, stopped)), lease=0.3):
        assert stopped.reached.wait(30)
        token = run(backend.changes()).token
        (held,) = (each for each in store._handle.engine.context.heartbeats._held)
        due = held.due
        deadline = time.monotonic() + 30
        while held.due == due and time.monotonic() < deadline:  # a sign of life
            time.sleep(0.01)
        assert held.due != due
        assert run(backend.changes(token)).lines == []
        stopped.go_on.set()


def test_what_a_worker_could_never_do_is_refused(store: Store) -> None:
    graph = chain(*logging_nodes(1))
    refused: list[dict[str, Any]] = [{"concurrency": 0}, {"limits": {"other": 1}}, {"limits": {"chain": 0}}]
    for options in refused:
        with pytest.raises(InvalidError):
            store.worker(graph, **options)
    submitted: list[dict[str, Any]] = [{"graph": ""}, {"graph": "chain", "attempts": 0}]
    for arguments in submitted:
        with pytest.raises(InvalidError):
            store.runs.submit("t", None, **arguments)
    with pytest.raises(InvalidError, match="cursor"):
        store.runs.list(cursor="zz")


def test_what_is_asked_of_the_store_from_submit_to_start_and_by_an_idle_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is a round trip to a server. By the clock, an idle worker looks once in `look_every`, which is a second, and
    once in ten seconds for what waits: 1.1 requests a second."""
    asked, submitted, at_start = list[str](), list[str](), list[list[str]]()
    for name in ("read", "apply"):
        original = getattr(SQLiteBackend, name)

        async def counted(self: SQLiteBackend, *args: Any, _name: str = name, _original: Any = original) -> Any:
            asked.append(_name)
            return await _original(self, *args)

        monkeypatch.setattr(SQLiteBackend, name, counted)

    @holdfast.workflow
    def note() -> None:
        at_start.append(asked[:])

    with holdfast.open(tmp_path / "a.db") as store:
        worker = store.worker(note)
        for number in range(2):  # the first one fills caches
            asked.clear()
            store.runs.submit(None, graph=note, idempotency_key=f"note-{number}")
            submitted = asked[:]
            asked.clear()
            worker.run_due()
        assert submitted == ["apply"]
        assert at_start[-1] == ["read", "read", "read", "apply"]  # for what waits, for what is due, the run, its claim
        asked.clear()
        store.runs.submit("t", graph=note, idempotency_key="note-t", when="1h")
        assert asked == ["read", "apply"]
        asked.clear()
        assert [run(worker.look()) for _ in range(20)] == [1.0] * 20
        assert asked == ["read"] * 20
