"""Pipelines: an item is in one place, whatever happens, and is handed on once."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import astuple

from holdfast.backends.interface import Delete, Expect
from holdfast.backends.memory import MemoryBackend
from holdfast.engine.trace_context import correlation, current
from holdfast.errors import ConflictError, DeniedError, InvalidError, NotFoundError
from holdfast.state.sharing.pipeline import Pipeline, PipelineTask
from holdfast.store.store import Store
from tests.state.kit import Beats, Clock, awaited, store_on
from tests.support.interference import InterferingBackend
from tests.support.nightly import examples

STAGES = ["fetch", "parse", "store"]


def taken(pipeline: Pipeline, stage: str, **options: Any) -> PipelineTask:
    task = pipeline.take(stage, **options)
    assert task is not None
    return task


def test_items_go_through_all_stages_in_order(store: Store) -> None:
    pipeline = store.sharing.pipeline("ingest", stages=STAGES)
    first = pipeline.put("a")
    more = pipeline.put_many(["b", "c"])
    assert [first, *more] == sorted({first, *more})
    assert pipeline.work("fetch", str.upper, timeout=0) == 3
    task = taken(pipeline, "parse")
    assert (task.id, task.stage, task.value, task.tries) == (first, "parse", "A", 1)
    pipeline.done(task)
    assert taken(pipeline, "store").value == "A"


def test_results(store: Store) -> None:
    pipeline = store.sharing.pipeline("ingest", STAGES)
    ids = pipeline.put_many(range(5))
    for stage in STAGES:
        assert pipeline.work(stage, lambda value: value + 1, timeout=0) == 5
    results = pipeline.results(limit=3)
    assert [(each.id, each.value) for each in results] == list(zip(ids[:3], [3, 4, 5], strict=True))
    assert [each.value for each in pipeline.results(cursor=results.next)] == [6, 7]
    assert list(results.all()) == pipeline.results()
    assert astuple(pipeline.stats()) == (dict.fromkeys(STAGES, 0), dict.fromkeys(STAGES, 0), 0, 5)
    assert pipeline.forget(ids[:3]) == 3
    assert pipeline.forget(ids[:3]) == 0
    assert [each.value for each in pipeline.results()] == [6, 7]


def test_one_who_was_taken_for_dead_hands_on_nothing(store: Store, clock: Clock) -> None:
    pipeline = store.sharing.pipeline("ingest", STAGES)
    pipeline.put("a")
    dead = taken(pipeline, "fetch", lease=10)
    clock.sleep(9)
    pipeline.extend(dead, 10)
    clock.sleep(9)
    assert pipeline.take("fetch") is None
    assert pipeline.stats().working["fetch"] == 1
    clock.sleep(1)
    other = taken(pipeline, "fetch")
    assert (other.id, other.tries) == (dead.id, 2)
    for late in (lambda: pipeline.done(dead, 1), lambda: pipeline.fail(dead), lambda: pipeline.extend(dead)):
        with pytest.raises(ConflictError) as caught:
            late()
        assert caught.value.code == "lease-lost"
    pipeline.done(other, "once")
    with pytest.raises(ConflictError):
        pipeline.done(other, "twice")
    assert pipeline.stats().waiting == {"fetch": 0, "parse": 1, "store": 0}


def test_tries_have_a_limit_and_dead_items_can_be_tried_again(store: Store, clock: Clock) -> None:
    pipeline = store.sharing.pipeline("ingest", STAGES, tries=2)
    with correlation("run-7"):
        id = pipeline.put({"page": 1})
    assert pipeline.fail(taken(pipeline, "fetch"), ValueError("no"))
    assert not pipeline.fail(taken(pipeline, "fetch"), "again")
    (dead,) = pipeline.dead()
    assert (dead.id, dead.stage, dead.value, dead.error, dead.tries) == (id, "fetch", {"page": 1}, "again", 2)
    assert dead.time.timestamp() == clock.now / 1e9
    pipeline.requeue(id)
    assert pipeline.stats().dead == 0
    with pytest.raises(NotFoundError):
        pipeline.requeue(id)
    task = taken(pipeline, "fetch", lease=1)
    assert (task.tries, task.value, task.correlation) == (1, {"page": 1}, "run-7")
    clock.sleep(2)
    taken(pipeline, "fetch", lease=1)
    clock.sleep(2)
    assert pipeline.take("fetch") is None  # both workers died
    assert [each.error for each in pipeline.dead()] == ["its worker died"]
    assert pipeline.forget([id]) == 1
    pipeline.put("x")
    assert not pipeline.fail(taken(pipeline, "fetch"), "useless", retry=False)
    pipeline.put("y")
    assert not pipeline.fail(taken(pipeline, "fetch"), "useless", retry=False)
    assert list(pipeline.dead(limit=1).all()) == pipeline.dead()


def test_items_for_later(store: Store, clock: Clock) -> None:
    pipeline = store.sharing.pipeline("ingest", STAGES)
    pipeline.put("late", delay=10)
    pipeline.put("soon")
    assert pipeline.stats().waiting["fetch"] == 2
    task = taken(pipeline, "fetch")
    assert task.value == "soon"
    assert pipeline.fail(task, delay=60)
    assert pipeline.take("fetch") is None
    clock.sleep(10)
    assert taken(pipeline, "fetch").value == "late"
    clock.sleep(50)
    again = taken(pipeline, "fetch")
    assert (again.value, again.tries) == ("soon", 2)


def test_a_handler_that_raises_is_called_again_later(store: Store, clock: Clock) -> None:
    pipeline = store.sharing.pipeline("ingest", ["only"], tries=3)
    pipeline.put(1)
    seen: list[int] = []

    def handler(value: int) -> Any:
        seen.append(value)
        if len(seen) == 1:
            raise RuntimeError("no")
        return threading.Lock() if len(seen) == 2 else "ok"

    assert pipeline.work("only", handler, timeout=0) == 0
    for number, pause in enumerate((1, 2), 1):
        clock.sleep(pause - 0.001)
        assert pipeline.work("only", handler, timeout=0) == 0
        assert len(seen) == number
        clock.sleep(0.001)
        pipeline.work("only", handler, timeout=0)
        assert len(seen) == number + 1
    assert [result.value for result in pipeline.results()] == ["ok"]


def test_a_handler_runs_with_the_item_as_its_cause(store: Store) -> None:
    pipeline, seen = store.sharing.pipeline("ingest", ["only"]), list[Any]()
    with correlation("run-7"):
        id = pipeline.put(1)
    pipeline.work("only", lambda _: seen.append((current().correlation, current().cause)), limit=1)
    assert seen == [("run-7", id)]
    assert list(map(astuple, pipeline.results())) == [(id, None, "run-7")]


def test_a_handler_at_work_for_long_keeps_its_item(store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline = store.sharing.pipeline("ingest", ["only"])
    pipeline.put(1)
    beats = Beats(monkeypatch)

    def slow(_: int) -> Any:
        for _ in range(3):
            clock.sleep(0.02)
            beats.wait()
        return pipeline.take("only")

    assert pipeline.work("only", slow, lease=0.03, timeout=0) == 1
    assert pipeline.results()[0].value is None


def test_one_who_lost_its_item_goes_on_with_the_next(store: Store, clock: Clock) -> None:
    pipeline = store.sharing.pipeline("ingest", ["only"])
    pipeline.put_many([1, 2])

    def handler(value: int) -> int:
        if value == 1 and clock.now < 1_700_000_050 * 10**9:
            clock.sleep(100)
            pipeline.done(taken(pipeline, "only"), "by another")
        return value

    assert pipeline.work("only", handler, timeout=0) == 1
    assert [each.value for each in pipeline.results()] == ["by another", 2]


def test_the_stages_are_the_same_for_all(store: Store) -> None:
    store.sharing.pipeline("ingest", STAGES).put(1)
    with pytest.raises(ConflictError, match="fetch, parse, store"):
        store.sharing.pipeline("ingest", ["fetch"]).put(1)
    pipeline = store.sharing.pipeline("ingest", STAGES)
    with pytest.raises(InvalidError, match="no stage"):
        pipeline.take("nowhere")
    for stages in ([], ["a", "a"], ["a/b"], "abc"):
        with pytest.raises(InvalidError):
            store.sharing.pipeline("x", stages)
    with pytest.raises(InvalidError, match="attempts must be at least 1"):
        store.sharing.pipeline("x", ["a"], tries=0)
    with pytest.raises(InvalidError, match="number of items must be"):
        pipeline.put_many([])
    with pytest.raises(InvalidError, match="lease"):
        pipeline.take("fetch", lease=0)
    task = taken(pipeline, "fetch")
    with pytest.raises(InvalidError, match="take"):
        store.sharing.pipeline("other", STAGES).done(task)
    assert "fetch" in repr(task)
    assert "ingest" in repr(pipeline)


@pytest.mark.nightly
def test_a_step_costs_the_same_however_much_went_through_before() -> None:
    watched = InterferingBackend()
    store = store_on(watched, Clock(), cache_bytes=8 << 20)
    pipeline = store.sharing.pipeline("ingest", ["a", "b"])

    def bytes_written() -> int:
        watched.batches.clear()
        ids = pipeline.put_many(range(10))
        for stage in ("a", "b"):
            assert pipeline.work(stage, lambda value: value, timeout=0) == 10
        pipeline.forget(ids)
        return sum(
            len(change.row.body)
            for batch in watched.batches
            for change in batch
            if not isinstance(change, Delete | Expect)
        )

    early = [bytes_written() for _ in range(4)]
    for _ in range(6):
        bytes_written()
    assert bytes_written() < 2 * max(early)


def test_the_history_can_be_trimmed_and_what_is_there_stays(store: Store) -> None:
    pipeline, requests = store.sharing.pipeline("ingest", ["a", "b"]), store.sharing.requests("planner")
    assert pipeline.trim() == requests.trim() == 0
    pipeline.put_many(range(20))
    pipeline.work("a", str, timeout=0, limit=10)
    held = taken(pipeline, "a")
    before = pipeline.stats()
    assert pipeline.trim(keep=5) == 17
    assert pipeline.trim(keep=5) == 0
    assert pipeline.stats() == before
    pipeline.done(held)
    assert pipeline.work("b", str, timeout=0) == 11
    id = requests.ask(1)
    requests.ask(2)
    assert requests.trim(keep=0) == 1
    assert requests.serve(str, timeout=0) == 2
    assert requests.wait(id) == "1"
    assert not store.maintenance.verify().findings
    with pytest.raises(DeniedError):
        store.as_identity(agent="x").sharing.pipeline("ingest", ["a", "b"]).trim()


@settings(max_examples=examples(25))
@given(data=st.data())
def test_every_item_is_in_one_place(data: st.DataObject) -> None:
    """Workers take, hand on, fail, die and come back in any order."""
    clock = Clock()
    backend = MemoryBackend()
    pipelines = [store_on(backend, clock).sharing.pipeline("p", ["a", "b"], tries=2) for _ in range(2)]
    held: list[PipelineTask] = []
    put = 0
    handed: Counter[tuple[str, str]] = Counter()
    for _ in range(data.draw(st.integers(1, 30))):
        pipeline = data.draw(st.sampled_from(pipelines))
        action = data.draw(st.sampled_from(["put", "take", "take", "done", "fail", "sleep"]))
        if action == "put":
            pipeline.put(put)
            put += 1
        elif action == "take":
            task = pipeline.take(data.draw(st.sampled_from("ab")), lease=10)
            held += [task] if task is not None else []
        elif action == "sleep":
            clock.sleep(data.draw(st.sampled_from([1, 11])))
        elif held:
            task = data.draw(st.sampled_from(held))
            try:
                if action == "done":
                    pipeline.done(task, task.value)
                    handed[task.id, task.stage] += 1
                else:
                    pipeline.fail(task)
            except ConflictError:
                pass
        waiting, working, dead, results = astuple(pipelines[0].stats())
        assert sum(waiting.values()) + sum(working.values()) + dead + results == put
        assert results == sum(stage == "b" for _, stage in handed)
    assert set(handed.values()) <= {1}


def test_for_asyncio(store: Store) -> None:
    async def main() -> None:
        pipeline = awaited(store).sharing.pipeline("ingest", ["a", "b"], tries=1)
        ids = await pipeline.put_many(range(3))

        async def handler(value: int) -> int:
            await asyncio.sleep(0.001)
            if value == 1:
                raise ValueError("one")
            return value + 10

        assert await pipeline.work("a", handler, timeout=0) == 2
        assert await pipeline.work("b", handler, timeout=0, limit=1) == 1
        assert [each.value for each in await pipeline.results()] == [20]
        assert [each.id for each in await pipeline.dead()] == [ids[1]]

    asyncio.run(main())


def test_another_conflict_is_not_taken_for_a_lost_lease(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline = store.sharing.pipeline("ingest", ["a"])
    pipeline.put(1)

    async def refused(*_: Any) -> None:
        raise ConflictError("others were first 1000 times")

    monkeypatch.setattr("holdfast.state.sharing.work_queue.check_claim", refused)
    with pytest.raises(ConflictError, match="1000"):
        pipeline.work("a", str, timeout=0)
