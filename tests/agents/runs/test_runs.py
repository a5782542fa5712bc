"""Runs: submitted, listed, cancelled, retried, queued behind each other, and removed with their threads."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Store
from holdfast.agents.runs.record import Run
from holdfast.backends.interface import Scan
from holdfast.backends.runtime.drivers import run
from holdfast.backends.tables import JOBS, JOURNAL, REFS
from holdfast.encryption import Encryption, LocalKeys, generate_key
from holdfast.errors import ConflictError, InvalidError, NotFoundError, OutcomeUnknownError


@pytest.fixture(params=["memory", "sqlite", "file", "encrypted"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    url = {"memory": "memory://", "file": f"file://{tmp_path / 'dir'}"}.get(request.param, f"sqlite:///{tmp_path}/a.db")
    options: dict[str, Any] = {}
    if request.param == "encrypted":
        options["encryption"] = Encryption(LocalKeys(generate_key()), hide_names=True)
    with holdfast.open(url, **options) as opened:
        yield opened


@holdfast.step
def double(number: int) -> int:
    return 2 * number


@holdfast.workflow
def add(one: int, other: int = 1) -> int:
    return double(one) + double(other)


def rows_of_runs(store: Store) -> list[Any]:
    """All rows that are about runs."""
    queries = [Scan(JOBS, ()), Scan(JOURNAL, ()), Scan(REFS, ())]
    jobs, beats, refs = run(store._handle.engine.context.backend.read(queries))
    return [*(row for row in jobs if "run" in str(row.columns[0])), *beats, *(r for r in refs if r.key[2] == "lease")]


@holdfast.workflow
def note(run: str) -> str:
    return f"after {run}"


@holdfast.workflow
def fail() -> None:
    raise ValueError("no")


def following(store: Store) -> list[Any]:
    """What runs of `note` were given, the first one first."""
    return [each.input[0] for each in store.runs.list(graph="note")][::-1]


def test_what_follows_a_run_is_submitted_with_its_end(store: Store) -> None:
    made = [store.runs.submit(None, graph=graph, attempts=1, then=note) for graph in (fail, "elsewhere")]
    good = store.runs.submit(None, [1, 2], graph=add, then="note")
    store.runs.submit(None, [1, 2], graph=add)  # nothing follows this one
    worker = store.worker(add, fail)
    worker.run_due()
    assert sorted(following(store)) == sorted([made[0].id, good.id])
    store.runs.cancel(made[1].id)
    assert following(store)[-1] == made[1].id
    store.runs.cancel(made[1].id)
    assert len(following(store)) == 3  # it was over
    store.runs.retry(made[0].id)
    worker.run_due()
    assert following(store)[-1] == made[0].id  # it has ended once more
    store.worker(note).run_due()
    done = store.runs.list(graph="note")
    assert [each.result for each in done] == [f"after {each.input[0]}" for each in done]
    assert all(each.thread.startswith("note-") for each in done)
    first = store.runs.submit("busy", graph="elsewhere", then=note)
    store.runs.submit("busy", graph="elsewhere", on_busy="replace")
    assert following(store)[-1] == first.id


def test_a_run_is_done_by_a_worker_and_is_listed(store: Store) -> None:
    submitted = store.runs.submit(None, [1, 2], graph=add)
    assert (submitted.state, submitted.graph, submitted.input) == ("queued", "add", [1, 2])
    assert [each.id for each in store.runs.list(state="queued")] == [submitted.id]
    store.worker(add).run_due()
    done = store.runs.get(submitted.id)
    assert (done.state, done.result, done.attempts, done.is_over) == ("done", 6, 1, True)
    assert [(each.key, each.state, each.result) for each in store.runs.steps(done.id)] == [
        ("000001 double", "done", 2),
        ("000002 double", "done", 4),
    ]
    assert store.runs.list(state="queued") == []
    assert [each.name for each in store.runs.follow(done.id)] == ["000001 double", "000002 double", ""]


def test_arguments_may_have_names_and_other_graphs_are_left_to_others(store: Store) -> None:
    named = store.runs.submit("t", {"one": 1, "other": 3}, graph="add")
    other = store.runs.submit("u", None, graph="unknown")
    store.worker(add).run_due()
    assert store.runs.get(named.id).result == 8
    assert store.runs.get(other.id).state == "queued"


def test_runs_of_a_thread_are_done_one_after_another(store: Store) -> None:
    first, second, third = (store.runs.submit("t", [number], graph=add) for number in range(3))
    with pytest.raises(ConflictError, match="not over"):
        store.runs.submit("t", [9], graph=add, on_busy="refuse")
    assert store.runs.cancel(second.id).state == "cancelled"
    ended: list[str] = []
    store.worker(add, on_end=lambda each: ended.append(each.id)).run_due()
    assert ended == [first.id, third.id]
    assert [each.state for each in store.runs.list(thread="t")] == ["done", "cancelled", "done"]


def test_a_busy_thread_may_have_its_runs_replaced(store: Store) -> None:
    olds = [store.runs.submit("t", [number], graph=add) for number in range(2)]
    new = store.runs.submit("t", [5], graph=add, on_busy="replace")
    assert [store.runs.get(each.id).state for each in (*olds, new)] == ["cancelled", "cancelled", "queued"]
    store.worker(add).run_due()
    assert store.runs.get(new.id).result == 12


def test_a_run_with_the_same_idempotency_key_is_submitted_once(store: Store) -> None:
    one = store.runs.submit("t", [1], graph=add, idempotency_key="order-1")
    assert store.runs.submit("t", [1], graph=add, idempotency_key="order-1").id == one.id
    with pytest.raises(ConflictError, match="idempotency"):
        store.runs.submit("t", [2], graph=add, idempotency_key="order-1")
    assert len(store.runs.list()) == 1


def test_a_run_without_a_thread_is_submitted_once_with_its_key(store: Store) -> None:
    one = store.runs.submit(None, [1], graph=add, idempotency_key="order-1")
    assert store.runs.submit(None, [1], graph=add, idempotency_key="order-1") == one
    store.worker(add).run_due()
    assert store.runs.submit(None, [1], graph=add, idempotency_key="order-1").state == "done"
    with pytest.raises(ConflictError, match="idempotency"):
        store.runs.submit(None, [2], graph=add, idempotency_key="order-1")
    assert len(store.runs.list()) == 1


def test_long_keys_of_steps_are_told_apart(store: Store) -> None:
    @holdfast.step(key=lambda prefix, number: f"{prefix}{number}")
    def count(prefix: str, number: int) -> int:
        return number

    @holdfast.workflow
    def counting(prefix: str) -> list[int]:
        return [count(prefix, number) for number in range(3)]

    fits = store.runs.submit(None, ["x" * 199], graph=counting)
    too_long = store.runs.submit(None, ["x" * 200], graph=counting, attempts=1)
    store.worker(counting).run_due()
    assert store.runs.get(fits.id).result == [0, 1, 2]
    assert [each.key for each in store.runs.steps(fits.id)] == [f"count/{'x' * 199}{number}" for number in range(3)]
    assert "1 to 200 characters" in store.runs.get(too_long.id).error


def test_a_run_for_later_is_not_begun_now(store: Store) -> None:
    later = store.runs.submit(None, [1], graph=add, when="1h")
    store.worker(add).run_due()
    assert store.runs.get(later.id).state == "queued"
    assert store.runs.cancel(later.id).state == "cancelled"


def test_pages_of_runs_follow_each_other(store: Store) -> None:
    ids = [store.runs.submit(f"t{number}", [number], graph=add).id for number in range(5)]
    page = store.runs.list(limit=2)
    assert [each.id for each in page] == ids[:2:-1]
    assert [each.id for each in page.all()] == ids[::-1]


def test_the_runs_of_a_thread_and_in_a_state_are_listed_in_pages(store: Store) -> None:
    ids = [store.runs.submit(thread, [number], graph=add).id for number in range(5) for thread in ("t", "u")]
    store.worker(add).run_due()
    waits = [store.runs.submit(thread, [9], graph=add, when="1h").id for thread in ("t", "u", "t")]
    of_thread = [each for number, each in enumerate(ids) if number % 2 == 0]
    first = store.runs.list(thread="t", limit=4)
    assert [each.id for each in first] == [waits[2], waits[0], of_thread[4], of_thread[3]]
    assert [each.id for each in first.all()] == [waits[2], waits[0], *of_thread[::-1]]
    assert [each.id for each in store.runs.list(thread="t", state="done", limit=2).all()] == of_thread[::-1]
    assert [each.id for each in store.runs.list(state="queued", limit=1).all()] == waits[::-1]
    assert (store.runs.list(thread="none"), store.runs.list(thread="t", graph="other")) == ([], [])
    assert store.runs.list(graph="add", state="running") == []


def test_what_leads_to_runs_goes_with_their_thread(store: Store) -> None:
    store.runs.submit("t", [1], graph=add, idempotency_key="k")
    store.worker(add).run_due()
    store.runs.submit("t", [2], graph=add, idempotency_key="l")
    assert rows_of_runs(store)
    store.thread("t").delete()
    assert rows_of_runs(store) == []
    assert store.runs.list() == []


def test_nothing_is_left_of_a_run_that_is_deleted(store: Store) -> None:
    done = store.runs.submit("t", [1], graph=add, idempotency_key="k")
    with pytest.raises(ConflictError, match="queued"):
        store.runs.delete(done.id)
    store.worker(add).run_due()
    assert store.runs.delete(done.id)
    assert not store.runs.delete(done.id)
    assert rows_of_runs(store) == []


def test_a_run_that_fails_is_attempted_again_and_then_failed(store: Store) -> None:
    calls: list[int] = []

    @holdfast.workflow
    def breaks(number: int) -> None:
        calls.append(double(number))
        raise ValueError("no luck")

    failing, ended = store.runs.submit(None, [1], graph=breaks, attempts=2), list[Run]()
    with store.worker(breaks, on_end=ended.append):
        failed = store.runs.wait(failing.id, timeout=50)
    assert [(each.state, each.failures, each.error) for each in ended] == [
        ("queued", 1, "ValueError: no luck"),
        ("failed", 2, "ValueError: no luck"),
    ]
    assert ended[0].due is not None
    assert ended[0].due > ended[0].created
    assert (failed.state, failed.attempts, calls) == ("failed", 2, [2, 2])
    store.runs.retry(failing.id)
    assert store.runs.get(failing.id).state == "queued"
    with pytest.raises(ConflictError, match="queued"):
        store.runs.retry(failing.id)


def test_a_changed_order_of_steps_is_noticed(store: Store) -> None:
    @holdfast.step
    def triple(number: int) -> int:
        return 3 * number

    @holdfast.workflow(name="changing")
    def before(number: int) -> int:
        double(number)
        raise ValueError("later")

    @holdfast.workflow(name="changing")
    def after(number: int) -> int:
        return triple(number)

    changed = store.runs.submit(None, [1], graph="changing", attempts=1)
    store.worker(before).run_due()
    store.runs.retry(changed.id)
    store.worker(after).run_due()
    failed = store.runs.get(changed.id)
    assert (failed.state, failed.error_code) == ("failed", "step-order")
    store.runs.retry(changed.id)
    store.worker(before).run_due()
    assert store.runs.get(changed.id).error == "ValueError: later"


def test_a_step_with_an_unknown_outcome_is_resolved_by_hand(store: Store) -> None:
    calls: list[str] = []

    @holdfast.step
    def charge(order: str) -> str:
        calls.append(order)
        raise OutcomeUnknownError("no answer")

    @holdfast.workflow
    def sell(order: str) -> str:
        return charge(order)

    unknown = store.runs.submit(None, ["o-1"], graph=sell, attempts=1)
    store.worker(sell).run_due()
    store.runs.retry(unknown.id)
    store.worker(sell).run_due()
    failed = store.runs.get(unknown.id)
    assert (failed.state, failed.error_code, calls) == ("failed", "step-outcome-unknown", ["o-1"])
    (step,) = store.runs.steps(unknown.id)
    assert step.state == "unknown"
    store.runs.resolve(unknown.id, step.key, result="paid")
    store.runs.retry(unknown.id)
    store.worker(sell).run_due()
    assert (store.runs.get(unknown.id).result, calls) == ("paid", ["o-1"])


def test_errors_of_steps_are_recorded_and_raised_again(store: Store) -> None:
    calls: list[int] = []

    @holdfast.step(retry=holdfast.agents.Retry(1, backoff=0))
    def fetch(number: int) -> int:
        calls.append(number)
        raise KeyError(number)

    @holdfast.workflow
    def careful(number: int) -> str:
        caught = ""
        try:
            fetch(number)
        except KeyError as error:
            caught = repr(error)
        if len(calls) == 2:
            calls.append(0)
            raise ValueError("once")
        return caught

    run_ = store.runs.submit(None, [7], graph=careful, attempts=1)
    store.worker(careful).run_due()
    store.runs.retry(run_.id)
    store.worker(careful).run_due()
    assert (store.runs.get(run_.id).result, calls) == ("KeyError(7)", [7, 7, 0])


def test_runs_are_submitted_by_the_clock(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db") as store:
        store.jobs.add("sums", "submit", settings={"graph": "add", "input": {"one": 1}, "thread": "t"})
        done = store.jobs.run("sums")
        (run_,) = store.runs.list()
        assert done.summary == f"run {run_.id}"
        store.worker(add).run_due()
        assert store.runs.get(run_.id).result == 4
        with pytest.raises(InvalidError, match="graph"):
            store.jobs.add("other", "submit")


def test_functions_are_just_called_outside_of_a_run() -> None:
    assert add(1, other=2) == 6


def test_wrong_calls_are_refused(store: Store) -> None:
    with pytest.raises(NotFoundError):
        store.runs.get("abc")
    with pytest.raises(InvalidError):
        store.runs.get("../abc")
    with pytest.raises(InvalidError):
        store.runs.list(state="asleep")
    with pytest.raises(InvalidError):
        store.worker()
    with pytest.raises(InvalidError):
        store.worker(print)
    with pytest.raises(InvalidError):
        store.runs.submit("t", [1], graph=add, on_busy="wait")  # type: ignore[arg-type]
    assert not hasattr(store.as_identity(agent="a"), "worker")  # only the owner of a store works


def test_an_input_that_is_no_list_of_arguments_is_refused(store: Store) -> None:
    wrong = [store.runs.submit(None, each, graph=add).id for each in ("12", 5)]
    store.worker(add).run_due()
    for id in wrong:
        found = store.runs.get(id)
        assert (found.state, found.error_code, found.attempts) == ("failed", "run-input", 1)


def test_an_async_store_has_the_same(tmp_path: Path) -> None:
    @holdfast.step
    async def later(number: int) -> int:
        await asyncio.sleep(0)
        return number + 1

    @holdfast.workflow
    async def gather(number: int) -> list[int]:
        return list(await asyncio.gather(later(number), later(number + 1)))

    async def work() -> None:
        async with await holdfast.aopen(tmp_path / "a.db") as store, store.worker(gather, add):
            one = await store.runs.submit(None, [1], graph=gather)
            two = await store.runs.submit(None, [1], graph=add)
            assert (await store.runs.wait(one.id, timeout=30)).result == [2, 3]
            assert [each.kind async for each in store.runs.follow(two.id, timeout=30)] == ["step", "step", "done"]

    asyncio.run(work())


def test_a_run_for_later_holds_up_none_that_is_due_now(store: Store) -> None:
    latest, later = (store.runs.submit("t", [number], graph=add, when=f"{number}h") for number in (2, 1))
    now = store.runs.submit("t", [3], graph=add)
    ended: list[str] = []
    worker = store.worker(add, on_end=lambda each: ended.append(each.id))
    worker.run_due()
    assert ended == [now.id]
    assert [store.runs.get(each.id).state for each in (latest, later)] == ["queued", "queued"]
    store.runs.cancel(later.id)
    store.runs.cancel(latest.id)
    assert store.runs.submit("t", [4], graph=add, on_busy="refuse").state == "queued"


def test_a_step_whose_result_cannot_be_stored_has_failed(store: Store) -> None:
    calls: list[int] = []

    @holdfast.step
    def unstorable() -> object:
        calls.append(1)
        return object()

    @holdfast.workflow
    def use() -> None:
        unstorable()

    id = store.runs.submit(None, [], graph=use).id
    store.worker(use).run_due()
    assert (store.runs.get(id).state, store.runs.get(id).error_code, calls) == ("failed", "step-result", [1])
    assert [each.state for each in store.runs.steps(id)] == ["failed"]
