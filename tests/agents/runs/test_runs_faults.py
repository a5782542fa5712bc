"""Faults around runs: other work in the way, two who take over, steps and events out of order, a store that does not
answer."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver

import holdfast
from holdfast import Store
from holdfast.agents.runs.table import HeldRun, RunTable
from holdfast.backends.runtime.drivers import run
from holdfast.errors import ConflictError, InvalidError, OutcomeUnknownError, TransientError
from holdfast.langgraph import HoldfastSaver
from tests.agents.runs.graphs import Log, asking, chain, logging_nodes


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with holdfast.open(tmp_path / "a.db") as opened:
        yield opened


@holdfast.workflow
def nothing() -> None:
    """A workflow that does nothing."""


def test_runs_that_a_worker_cannot_begin_are_not_in_the_way(store: Store) -> None:
    for number in range(30):
        store.runs.submit(f"other-{number}", None, graph="of another worker")
    held = [store.thread(f"held-{number}") for number in range(30)]
    for each in held:
        store.runs.submit(each.name, None, graph=nothing)
    last = store.runs.submit("last", None, graph=nothing)
    claims = [each.running() for each in held]
    for claim in claims:
        claim.__enter__()
    worker, deadline = store.worker(nothing, look_every=30), time.monotonic() + 30
    while store.runs.get(last.id).state != "done" and time.monotonic() < deadline:
        worker.run_due()
    assert store.runs.get(last.id).state == "done"
    assert len(store.runs.list(state="queued")) == 60
    for claim in claims:
        claim.__exit__(None, None, None)
    store.worker(nothing).run_due()
    assert len(store.runs.list(state="queued", graph="nothing")) == 0


def test_of_two_who_take_a_run_over_one_has_it(store: Store) -> None:
    store.runs.submit("t", None, graph=nothing)
    table = RunTable(store._handle)
    (due,) = run(table.look(["nothing"], 8, "")).due
    assert run(table.begin(due, 0.01, "", is_graph=False)) is not None
    time.sleep(0.02)
    (busy,) = run(table.look(["nothing"], 8, "")).busy
    first = run(table.begin(busy, 30, "", is_graph=False))
    assert isinstance(first, HeldRun)
    assert run(table.begin(busy, 30, "", is_graph=False)) is None  # as it was found before the other took it
    assert run(table.finish(first, "done")).state == "done"


def test_a_run_that_replaces_others_does_not_end_what_a_program_does(store: Store) -> None:
    with store.thread("t").running():
        store.runs.submit("t", None, graph=nothing)
        store.runs.submit("t", None, graph=nothing, on_busy="replace")
        store.worker(nothing).run_due()
        assert [each.state for each in store.runs.list(thread="t")] == ["queued", "cancelled"]
        with pytest.raises(ConflictError):
            store.thread("t").running().__enter__()


def test_steps_of_nodes_are_not_taken_for_those_of_others(store: Store) -> None:
    sent, failing = list[str](), [True]

    @holdfast.step
    def send(text: str) -> int:
        sent.append(text)
        return len(sent)

    def first(state: Log) -> dict[str, Any]:
        return {"log": [f"{send('hello')} {send('again')}"]}

    def second(state: Log) -> dict[str, Any]:
        number = send("hello")
        if failing:
            failing.clear()
            raise ValueError("once")
        return {"log": [str(number)]}

    run_ = store.runs.submit("t", {"log": []}, graph="chain", attempts=1)
    worker = store.worker(chain(first, second))
    worker.run_due()
    assert store.runs.get(run_.id).state == "failed"
    store.runs.retry(run_.id)
    worker.run_due()
    assert store.runs.get(run_.id).state == "done"
    assert sent == ["hello", "again", "hello"]
    assert store.thread("t").get().state["log"] == ["1 2", "3"]
    events = store.runs.events(run_.id)
    assert [each.kind for each in events] == ["checkpoint"] * 3 + ["failed", "checkpoint", "done"]


def test_a_client_that_was_cut_misses_no_step_that_ended_out_of_order(tmp_path: Path) -> None:
    async def work() -> None:
        go_on = asyncio.Event()

        @holdfast.step
        async def each(number: int) -> int:
            if not number:
                await go_on.wait()
            return number

        @holdfast.workflow
        async def both() -> list[int]:
            return list(await asyncio.gather(each(0), each(1)))

        async with await holdfast.aopen(tmp_path / "a.db") as store, store.worker(both):
            run_ = await store.runs.submit(None, None, graph=both)
            events = store.runs.follow(run_.id, timeout=30).__aiter__()
            early = await anext(events)
            assert early.name == "000002 each"
            go_on.set()
            assert (await store.runs.wait(run_.id, timeout=30)).result == [0, 1]
            late = [event.name async for event in store.runs.follow(run_.id, after=early.id)]
            assert late == ["000001 each", ""]
            whole = [event async for event in store.runs.follow(run_.id)]
            assert [event.name for event in whole] == ["000002 each", *late]

    asyncio.run(work())


def test_what_a_run_came_to_before_stays_among_its_events(store: Store) -> None:
    worker = store.worker(asking())
    run_ = store.runs.submit("t", {"log": []}, graph="asking")
    worker.run_due()
    seen = list(store.runs.events(run_.id))
    assert seen[-1].kind == "waiting"
    store.runs.answer(run_.id, "this")
    worker.run_due()
    seen += store.runs.events(run_.id, after=seen[-1].id)
    whole = store.runs.events(run_.id)
    assert whole == seen
    assert [each.kind for each in whole] == [*["checkpoint"] * 3, "waiting", *["checkpoint"] * 2, "done"]
    for number, event in enumerate(whole):
        assert store.runs.events(run_.id, after=event.id) == whole[number + 1 :]


def test_a_retry_after_another_run_of_the_thread_starts_with_its_input(store: Store) -> None:
    failing = [True]

    def around(name: str) -> None:
        if failing and name == "n1":
            failing.clear()
            raise ValueError("once")

    worker = store.worker(chain(*logging_nodes(2, around)))
    failed = store.runs.submit("t", {"log": ["first"]}, graph="chain", attempts=1)
    other = store.runs.submit("t", {"log": ["second"]}, graph="chain")
    worker.run_due()
    assert [store.runs.get(each.id).state for each in (failed, other)] == ["failed", "done"]
    store.runs.retry(failed.id)
    worker.run_due()
    assert store.runs.get(failed.id).state == "done"
    log = store.thread("t").get().state["log"]
    assert log == ["first", "n0", "second", "n0", "n1", "first", "n0", "n1"]
    names = [each.name for each in store.runs.events(failed.id) if each.kind == "checkpoint"]
    others = {each.name for each in store.runs.events(other.id) if each.kind == "checkpoint"}
    assert others.isdisjoint(names)
    assert len(names) == 3 + 4


def test_a_retry_after_a_change_by_hand_goes_on(store: Store) -> None:
    failing, ran = [True], list[str]()

    def around(name: str) -> None:
        ran.append(name)
        if failing and name == "n1":
            raise ValueError("once")

    graph = chain(*logging_nodes(2, around)).copy(update={"checkpointer": HoldfastSaver(store)})
    failed = store.runs.submit("t", {"log": ["in"]}, graph="chain", attempts=1)
    store.worker(graph).run_due()
    graph.update_state({"configurable": {"thread_id": "t"}}, {"log": ["mended"]}, as_node="n0")
    failing.clear()
    store.runs.retry(failed.id)
    store.worker(graph).run_due()
    assert ran == ["n0", "n1", "n1"]
    assert store.thread("t").get().state["log"] == ["in", "n0", "mended", "n1"]


def test_a_store_that_does_not_answer_is_no_failure_of_the_run(store: Store) -> None:
    problems = [TransientError("the server is restarted"), TransientError("and again")]

    @holdfast.workflow
    def visits() -> str:
        if problems:
            raise problems.pop()
        return "done"

    run_ = store.runs.submit(None, None, graph=visits, attempts=1)
    with store.worker(visits):
        ended = store.runs.wait(run_.id, timeout=30)
    assert (ended.state, ended.failures, ended.attempts) == ("done", 0, 3)


def test_the_result_of_a_step_is_recorded_when_the_store_answers_again(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, context, failing = list[int](), type(store._handle.engine.context), list[BaseException]()
    original = context.apply

    @holdfast.step
    def charge() -> str:
        calls.append(1)
        failing.extend([OutcomeUnknownError("no answer"), TransientError("restarting")])
        return "paid"

    @holdfast.workflow
    def pays() -> str:
        return charge()

    async def apply(self: Any, batch: Any) -> int | None:
        if failing:
            if len(failing) == 2:  # it was stored, and the answer was lost
                await original(self, batch)
            raise failing.pop(0)
        return await original(self, batch)

    monkeypatch.setattr(context, "apply", apply)
    run_ = store.runs.submit(None, None, graph=pays, attempts=1)
    store.worker(pays).run_due()
    assert (store.runs.get(run_.id).result, calls, failing) == ("paid", [1], [])
    assert [each.kind for each in store.runs.events(run_.id)] == ["step", "done"]


def test_an_idempotency_key_is_of_one_thread(store: Store) -> None:
    store.runs.submit("t", None, graph=nothing, idempotency_key="k")
    with pytest.raises(ConflictError, match="idempotency"):
        store.runs.submit("u", None, graph=nothing, idempotency_key="k")
    anywhere = store.runs.submit(None, None, graph=nothing, idempotency_key="l")
    assert store.runs.submit(None, None, graph=nothing, idempotency_key="l").id == anywhere.id


def test_a_graph_that_saves_elsewhere_is_refused(store: Store, tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "other.db") as other:
        for saver in (InMemorySaver(), HoldfastSaver(other)):
            with pytest.raises(InvalidError, match="elsewhere"):
                store.worker(chain(*logging_nodes(1)).copy(update={"checkpointer": saver}))


def test_a_run_is_handed_over_between_two_steps_of_a_node(store: Store) -> None:
    reached, go_on, done = threading.Event(), threading.Event(), list[int]()

    @holdfast.step
    def act(number: int) -> None:
        done.append(number)
        reached.set()
        assert go_on.wait(30)

    def node(state: Log) -> dict[str, Any]:
        act(1)
        act(2)
        return {"log": ["acted"]}

    graph = chain(*logging_nodes(1), node)
    run_ = store.runs.submit("t", {"log": []}, graph="chain")
    worker = store.worker(graph).start()
    assert reached.wait(30)
    worker.stop(wait=False)
    go_on.set()
    worker.stop()
    left = store.runs.get(run_.id)
    assert (left.state, left.failures, done) == ("queued", 0, [1])
    assert store.thread("t").status().status == "unfinished"
    store.worker(graph).run_due()
    assert (store.runs.get(run_.id).state, done) == ("done", [1, 2])


def test_code_that_exits_does_not_take_its_worker_along(store: Store) -> None:
    @holdfast.workflow
    def leaves() -> None:
        raise SystemExit(3)

    run_ = store.runs.submit(None, None, graph=leaves, attempts=1)
    store.worker(leaves).run_due()
    assert store.runs.get(run_.id).error == "SystemExit: 3"
