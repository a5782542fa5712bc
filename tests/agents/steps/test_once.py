"""Durable steps: a recorded result is returned, and the function is not run again."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

import holdfast
from holdfast import Store
from holdfast.agents import AsyncPersistentAgent, Retry
from holdfast.agents.steps.records import RETRY, StepRecord
from holdfast.agents.steps.runs import read_run
from holdfast.backends.interface import Batch
from holdfast.backends.memory import MemoryBackend
from holdfast.backends.runtime.drivers import run
from holdfast.engine.namespaces import steps_of
from holdfast.errors import (
    DeniedError,
    HandlerError,
    InvalidError,
    NotFoundError,
    OutcomeUnknownError,
    UnavailableError,
    UnsupportedError,
)
from tests.agents.steps.desk import ID, Desk, desk_of
from tests.maintenance.kit import Clock, awaited, timed


class AsyncDesk(AsyncPersistentAgent, name="tests: async desk"):
    """The asyncio form of `Desk`."""


class PowerCut(BaseException):
    """Ends a step as the end of its process would, but for the lease."""


class Charge:
    """A function that counts its calls."""

    def __init__(self, *outcomes: BaseException | None) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.keys: list[str] = []
        self._outcomes = list(outcomes)

    def __call__(self, *args: Any, idempotency_key: str) -> list[Any]:
        self.calls.append(args)
        self.keys.append(idempotency_key)
        outcome = self._outcomes.pop(0) if self._outcomes else None
        if outcome is not None:
            raise outcome
        return ["paid", *args]


@pytest.fixture
def store() -> Iterator[Store]:
    with holdfast.open("memory:") as opened:
        yield opened


@pytest.fixture
def desk(store: Store) -> Desk:
    return desk_of(store)


def told(call: Callable[[], object]) -> str:
    with pytest.raises(holdfast.errors.HoldfastError) as raised:
        call()
    return raised.value.code


def test_a_result_is_returned_again_also_to_another_process_and_after_a_rollback(store: Store, desk: Desk) -> None:
    charge = Charge()
    assert desk.once("charge-42", charge, 42) == ["paid", 42]
    desk.context["more"] = 1
    desk.save()
    desk.rollback(1)
    assert desk.once("charge-42", charge, 42) == ["paid", 42]
    assert store.agents.restore(ID, Desk).once("charge-42", charge, 42) == ["paid", 42]
    assert charge.calls == [(42,)]
    record = desk.steps.get("charge-42")
    assert (record.state, record.attempts, record.agent_version) == ("done", 1, 1)
    assert charge.keys == [record.idempotency_key]
    assert desk.once("charge-43", charge, 43) == ["paid", 43], "another step"
    assert len(set(charge.keys)) == 2


def test_other_arguments_are_an_error_and_equal_ones_are_not(desk: Desk) -> None:
    charge = Charge()
    desk.once("order", charge, {"a": 1, "b": {"x", "y"}}, (1, 2))
    desk.once("order", charge, {"b": {"y", "x"}, "a": 1}, [1, 2])
    for others in ([{"a": 2, "b": {"x", "y"}}, (1, 2)], [{"a": 1, "b": {"x"}}, (1, 2)], [1], []):
        assert told(partial(desk.once, "order", charge, *others)) == "step-arguments"
    assert told(lambda: desk.once("lock", charge, threading.Lock())) == "invalid"
    assert len(charge.calls) == 1
    with pytest.raises(NotFoundError):
        desk.steps.get("lock")


def test_decorators(desk: Desk) -> None:
    calls = []

    @desk.once(lambda order: f"charge-{order}", retry=1)
    def charge(order: int) -> int:
        calls.append(order)
        return -order

    @desk.once("greet")
    def greet() -> str:
        calls.append(0)
        return "hello"

    assert [charge(1), charge(2), charge(1), greet(), greet()] == [-1, -2, -1, "hello", "hello"]
    assert calls == [1, 2, 0]
    assert charge.__name__ == "charge"


def test_errors_are_retried_recorded_and_raised_again(desk: Desk) -> None:
    twice = Charge(ValueError("busy"), ValueError("busy"))
    assert desk.once("twice", twice, retry=Retry(2, backoff=0.001)) == ["paid"]
    assert (len(twice.keys), len(set(twice.keys))) == (3, 1), "all attempts have one key"
    final = Charge(KeyError("no such account"), None)
    for _ in range(2):
        with pytest.raises(KeyError, match="no such account"):
            desk.once("final", final, retry=5, final=LookupError)
    assert len(final.calls) == 1
    assert desk.steps.get("final").error_kind == "KeyError"
    every = Charge(*[ValueError(str(number)) for number in range(9)])
    for _ in range(2):
        with pytest.raises(ValueError, match="^1$"):
            desk.once("every", every, retry=Retry(1, backoff=0))
    assert len(every.calls) == 2
    assert desk.steps.resolve("every", retry=True).state == "waiting"
    with pytest.raises(ValueError, match="^2$"):
        desk.once("every", every)


def test_an_error_whose_class_is_unknown_is_a_typed_one(desk: Desk) -> None:
    class Local(Exception):
        pass

    charge = Charge(Local("declined"))
    with pytest.raises(Local):
        desk.once("local", charge)
    with pytest.raises(HandlerError, match="declined") as raised:
        desk.once("local", charge)
    assert (raised.value.code, raised.value.kind) == ("step-failed", "Local")


def test_a_result_that_cannot_be_stored_fails_the_step_which_is_not_run_again(desk: Desk) -> None:
    calls = []

    def lock() -> Any:
        calls.append(1)
        return threading.Lock()

    for _ in range(2):
        assert told(lambda: desk.once("lock", lock)) == "step-result"
    assert calls == [1]


def test_an_unknown_outcome_is_reported_and_resolved_by_policy(desk: Desk) -> None:
    cut = Charge(*[PowerCut() for _ in range(5)])
    for key in ("raised", "retried", "decided", "refused", "asked"):
        with pytest.raises(PowerCut):
            desk.once(key, cut, 1)
        assert desk.steps.get(key).state == "running"
    for _ in range(2):
        with pytest.raises(OutcomeUnknownError) as raised:
            desk.once("raised", cut, 1)
        assert raised.value.code == "step-outcome-unknown"
    assert len(cut.calls) == 5
    assert desk.once("retried", cut, 1, on_unknown="retry") == ["paid", 1]
    assert cut.keys[-1] == cut.keys[1], "it has the key of the first attempt"
    seen: list[StepRecord] = []

    def decide(record: StepRecord) -> Any:
        seen.append(record)
        return ["paid", "according to the bank"]

    assert desk.once("decided", cut, 1, on_unknown=decide) == ["paid", "according to the bank"]
    assert desk.once("decided", cut, 1) == ["paid", "according to the bank"]
    assert [each.idempotency_key for each in seen] == [cut.keys[2]]
    assert desk.once("asked", cut, 1, on_unknown=lambda _: RETRY) == ["paid", 1]
    with pytest.raises(ZeroDivisionError):
        desk.once("refused", cut, 1, on_unknown=lambda _: 1 // 0)
    assert told(lambda: desk.once("refused", cut, 1)) == "step-outcome-unknown"
    assert {each.key: each.resolved for each in desk.steps.list()} == {
        "asked": "retry",
        "decided": "decided",
        "raised": "",
        "refused": "",
        "retried": "retry",
    }


def test_a_function_that_does_not_know_itself_leaves_its_outcome_unknown(desk: Desk) -> None:
    charge = Charge(OutcomeUnknownError("the bank did not answer"))
    with pytest.raises(OutcomeUnknownError, match="the bank did not answer"):
        desk.once("charge", charge, retry=3)
    assert told(lambda: desk.once("charge", charge, retry=3)) == "step-outcome-unknown"
    assert len(charge.calls) == 1


def test_resolved_by_hand(store: Store, desk: Desk) -> None:
    cut, steps = Charge(*[PowerCut() for _ in range(3)]), store.agents.steps(ID)
    for key in "abc":
        with pytest.raises(PowerCut):
            desk.once(key, cut)
    assert steps.resolve("a", result=None).resolved == "by hand"
    steps.resolve("b", error=ValueError("declined"))
    steps.resolve("c", retry=True)
    assert desk.once("a", cut) is None
    with pytest.raises(ValueError, match="declined"):
        desk.once("b", cut)
    assert len(cut.calls) == 3
    assert desk.once("c", cut) == ["paid"]
    assert told(lambda: steps.resolve("c", result=1)) == "step-done"
    assert told(lambda: steps.resolve("none", result=1)) == "not-found"
    assert told(lambda: steps.resolve("a")) == "invalid"
    assert told(lambda: steps.resolve("a", result=1, retry=True)) == "invalid"

    def resolve_meanwhile() -> str:
        return told(lambda: steps.resolve("running", result=1))

    assert desk.once("running", resolve_meanwhile) == "under-way"


def test_of_many_threads_one_runs_and_all_get_its_result(store: Store) -> None:
    desk_of(store)
    inside, others = threading.Event(), threading.Barrier(4)
    charge, results = Charge(), list[Any]()

    def slow(*, idempotency_key: str) -> Any:
        inside.set()
        others.wait(10)  # until all others have asked, or are about to
        return charge(idempotency_key=idempotency_key)

    def ask() -> None:
        agent = desk_of(store)
        if inside.is_set():
            others.wait(10)
        results.append(agent.once("charge", slow, lease=2))

    first = threading.Thread(target=ask)
    first.start()
    assert inside.wait(10)
    rest = [threading.Thread(target=ask) for _ in range(3)]
    for each in rest:
        each.start()
    for each in (first, *rest):
        each.join(20)
    assert results == [["paid"]] * 4
    assert len(charge.calls) == 1


def test_a_step_that_takes_longer_than_its_lease_is_not_presumed_dead(store: Store, desk: Desk) -> None:
    ended, calls = threading.Event(), []

    def slow() -> str:
        calls.append(1)
        ended.wait(0.9)
        return "slow"

    runner = threading.Thread(target=lambda: desk.once("slow", slow, lease=0.3))
    runner.start()
    while not calls:
        ended.wait(0.01)
    assert desk_of(store).once("slow", slow, lease=0.3, on_unknown="retry") == "slow"
    runner.join()
    assert calls == [1]


def test_asyncio() -> None:
    asyncio.run(_use_asyncio())


async def _use_asyncio() -> None:
    calls = []

    async def charge(order: int) -> int:
        calls.append(order)
        await asyncio.sleep(0)
        return -order

    async with await holdfast.aopen("memory:") as store:
        desk = AsyncDesk().attach(store, "a")
        await desk.save()
        same = await asyncio.gather(*(desk.once("charge-1", charge, 1, lease=1) for _ in range(3)))
        assert (same, calls) == ([-1, -1, -1], [1])
        assert await desk.once("plain", abs, -3) == 3

        @desk.once(lambda order: f"charge-{order}")
        async def decorated(order: int) -> int:
            return await charge(order)

        assert [await decorated(2), await decorated(2)] == [-2, -2]
        assert calls == [1, 2]
        waiting = asyncio.create_task(desk.wait_for("approved", timeout=20))
        await asyncio.sleep(0)
        assert await store.agents.signal("a", "approved", {"by": "Ada"})
        got = await waiting
        assert got is not None
        assert got.value == {"by": "Ada"}
        assert await desk.sleep(0.01, key="nap")
        assert await desk.steps.version("new-pricing") == 1
        task = asyncio.create_task(desk.once("cut", asyncio.sleep, 60))
        while not [each for each in await desk.steps.list() if each.key == "cut"]:
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises(OutcomeUnknownError):
            await desk.once("cut", asyncio.sleep, 60)


def test_wrong_calls_run_nothing(desk: Desk) -> None:
    charge = Charge()

    async def later() -> None:
        raise AssertionError

    once: Any = desk.once
    wrong: list[Callable[[], object]] = [
        lambda: once("", charge),
        lambda: once("a/b", charge),
        lambda: once("x" * 500, charge),
        lambda: once("k", "no function"),
        lambda: once("k", later),
        lambda: once("k", charge, retry=-1),
        lambda: once("k", charge, retry="many"),
        lambda: once("k", charge, final=("ValueError",)),
        lambda: once("k", charge, final=(PowerCut,)),
        lambda: once("k", charge, on_unknown="guess"),
        lambda: once("k", charge, lease=0),
        lambda: once("k", None, 1),
        lambda: once(7, charge),
        lambda: Retry(3, factor=0),
    ]
    for each in wrong:
        assert told(each) == "invalid"
    assert (charge.calls, list(desk.steps.list())) == ([], [])


def test_a_step_does_not_wait_for_itself_and_other_steps_may_be_inside(desk: Desk) -> None:
    def outer() -> list[Any]:
        return [desk.once("inner", abs, -1), told(lambda: desk.once("outer", outer))]

    assert desk.once("outer", outer) == [1, "invalid"]


def test_versions_of_the_code(store: Store) -> None:
    desk, charge = desk_of(store, "new"), Charge()
    desk.once("a", charge)
    assert desk.steps.version("new-pricing") == 1, "it runs for the first time"
    assert desk_of(store, "new").steps.version("new-pricing", 2) == 1, "it is recorded"
    desk_of(store, "old").once("a", charge)
    old = desk_of(store, "old")  # it was deployed again
    assert old.steps.version("new-pricing") == 0
    old.once("a", charge)
    assert old.steps.version("new-pricing") == 0
    assert old.steps.version("newer") == 1, "it has passed no step yet that is after this one"
    with pytest.raises(UnsupportedError) as raised:
        old.steps.version("new-pricing", 3, oldest=1)
    assert raised.value.code == "step-version"


def test_steps_are_deleted_with_the_agent_and_listed_in_pages(store: Store, desk: Desk) -> None:
    for number in range(5):
        desk.once(f"k{number}", Charge(), number)
    page = desk.steps.list(limit=2)
    assert ([each.key for each in page], [each.key for each in page.all()]) == (
        ["k0", "k1"],
        ["k0", "k1", "k2", "k3", "k4"],
    )
    assert store.maintenance.verify(level="decode").findings == []
    store.agents.delete(ID)
    assert list(store.agents.steps(ID).list()) == []
    charge = Charge()
    assert desk_of(store).once("k1", charge, 1) == ["paid", 1]
    assert len(charge.calls) == 1


def test_steps_are_erased_with_their_agent(store: Store) -> None:
    for id, subject in (("a", "u-1"), ("b/c", "u-1"), ("d", "u-2")):
        desk = desk_of(store, id)
        desk.metadata["subject"] = subject
        desk.save()
        desk.once("charge", Charge(), "of a person")
        assert desk.steps._line.line == steps_of(desk.persister.line.line)
    store.erasure.erase("u-1")
    left = {id: [each.key for each in store.agents.steps(id).list()] for id in ("a", "b/c", "d")}
    assert left == {"a": [], "b/c": [], "d": ["charge"]}


def test_only_who_may_write_the_agent_has_steps_and_a_grant_of_signals_is_enough_for_those(store: Store) -> None:
    desk_of(store, "mine")
    mine, other = store.as_identity(agent="mine"), store.as_identity(agent="other")
    Desk().attach(mine, "mine").once("a", Charge())
    for use in (
        lambda: other.agents.steps("mine").list(),
        lambda: other.agents.signal("mine", "approved"),
        lambda: other.agents.steps("mine").resolve("a", retry=True),
        lambda: other.agents.timers("mine").set("t", "1h"),
    ):
        with pytest.raises(DeniedError):
            use()
    mine.grant("agent:other", ["write"], agent="mine", custom="steps/main", keys="signal")
    assert other.agents.signal("mine", "approved", 1)
    with pytest.raises(DeniedError):
        other.agents.steps("mine").list()
    got = Desk().attach(mine, "mine").wait_for("approved")
    assert got is not None
    assert (got.value, got.actor) == (1, "agent:other")


def test_an_agent_that_is_not_attached_says_so() -> None:
    with pytest.raises(InvalidError, match="not attached"):
        Desk().once("a", Charge())


# Processes that are presumed dead, and live ----------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["nothing", "raise", "retry", "by hand"])
def test_a_process_that_was_presumed_dead_records_its_result_unless_another_resolved_the_step(
    ending: str, store: Store, desk: Desk
) -> None:
    """As after a sleep of the machine: its lease is gone, and another process came."""

    def other() -> None:
        again = desk_of(store)
        if ending == "raise":
            assert told(lambda: again.once("charge", slow, lease=0.01)) == "step-outcome-unknown"
        elif ending == "retry":
            assert again.once("charge", second, on_unknown="retry") == "second"
        elif ending == "by hand":
            again.steps.resolve("charge", result="according to the bank")

    def second() -> str:
        return "second"

    def slow() -> str:
        line = desk.steps._line
        attempt = run(read_run(line, "charge"))
        assert attempt is not None
        run(attempt.release())
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        return "first"

    second.__qualname__ = slow.__qualname__  # the same step in another process
    if ending in ("nothing", "raise"):
        assert desk.once("charge", slow) == "first"
        assert desk_of(store).once("charge", slow) == "first"
    else:
        assert told(lambda: desk.once("charge", slow)) == "lease-lost"
        assert desk.once("charge", slow) in ("second", "according to the bank")


@pytest.mark.parametrize("hours", [-1, 1])
def test_a_clock_that_is_set_does_not_make_a_live_process_dead(hours: int) -> None:
    clock, backend = Clock(), MemoryBackend()
    desk, calls, ended = desk_of(timed(clock, backend)), list[int](), threading.Event()

    def slow() -> str:
        calls.append(1)
        clock.now += hours * 3600 * 10**9
        begun.set()
        ended.wait(0.5)
        return "slow"

    begun = threading.Event()
    runner = threading.Thread(target=lambda: desk.once("slow", slow, lease=0.3))
    runner.start()
    assert begun.wait(10)
    assert desk_of(timed(clock, backend)).once("slow", slow, on_unknown="retry") == "slow"
    runner.join()
    assert calls == [1]


class Silent(MemoryBackend):
    """A store that cannot be reached for a while."""

    silent = False
    refused = 0

    async def apply(self, batch: Batch) -> int | None:
        if self.silent:
            self.refused += 1
            raise UnavailableError("the server cannot be reached")
        return await super().apply(batch)


@pytest.mark.parametrize("is_async", [False, True])
def test_a_lease_that_cannot_be_renewed_does_not_change_the_outcome(is_async: bool) -> None:
    backend, calls = Silent(), list[int]()
    store = timed(Clock(), backend)

    def begin() -> None:
        calls.append(1)
        backend.silent = True

    def charge() -> str:
        begin()
        while not backend.refused:
            threading.Event().wait(0.01)
        backend.silent = False
        return "paid"

    async def charge_later() -> str:
        begin()
        while not backend.refused:
            await asyncio.sleep(0.01)
        backend.silent = False
        return "paid"

    async def use() -> Any:
        desk = AsyncDesk().attach(awaited(store), "a")
        await desk.save()
        return await desk.once("charge", charge_later, retry=3, lease=0.1)

    desk_of(store)
    found = asyncio.run(use()) if is_async else desk_of(store).once("charge", charge, retry=3, lease=0.1)
    assert (found, calls) == ("paid", [1])


def test_a_result_that_cannot_be_recorded_now_leaves_the_outcome_unknown(store: Store) -> None:
    backend = Silent()
    desk = desk_of(timed(Clock(), backend))

    def charge() -> str:
        backend.silent = True
        return "paid"

    assert told(lambda: desk.once("charge", charge)) == "step-outcome-unknown"
    backend.silent = False
    assert desk.steps.get("charge").state == "running"


def test_a_task_that_is_cancelled_after_the_function_ended_records_the_result() -> None:
    async def use(turns: int) -> str:
        """Cancel the task so many turns of the event loop after the function has ended. Returns what is recorded."""
        calls = []

        async def charge() -> str:
            calls.append(1)
            loop, task = asyncio.get_running_loop(), waiting

            def cancel(left: int) -> None:
                task.cancel() if not left else loop.call_soon(cancel, left - 1)

            cancel(turns)
            return "paid"

        async with await holdfast.aopen("memory:") as store:
            desk = AsyncDesk().attach(store, "a")
            await desk.save()
            waiting = asyncio.create_task(desk.once("charge", charge, lease=5))
            with suppress(asyncio.CancelledError):
                await waiting
            assert (await desk.steps.get("charge")).state == "done"
            assert await desk.once("charge", charge) == "paid"
            assert calls == [1]
            return "cancelled" if waiting.cancelled() else "returned"

    seen = [asyncio.run(use(turns)) for turns in range(12)]
    assert set(seen) == {"cancelled", "returned"}, "the moments are before, between and after"


# Names and rights ------------------------------------------------------------------------------------------------


def test_two_spellings_of_one_text_are_one_step(desk: Desk) -> None:
    charge = Charge()
    assert desk.once("caf\u00e9", charge) == desk.once("cafe\u0301", charge) == ["paid"]
    assert len(charge.calls) == 1
    assert desk.steps.get("cafe\u0301").attempts == 1
    assert desk.steps.version("new") == 1


def test_who_may_write_but_not_read_steps_gets_no_result(store: Store) -> None:
    desk_of(store, "mine").once("secret", Charge(), 1)
    store.agents.signal("mine", "s", "secret")
    other = store.as_identity(agent="other")
    store.access.grant("agent:other", ["write"], agent="mine", custom="steps/main")
    with pytest.raises(DeniedError):
        other.agents.steps("mine").once("secret", Charge(), 1)
    store.access.grant("agent:other", ["read"], agent="mine", custom="steps/main")
    assert other.agents.steps("mine").once("secret", Charge(), 1) == ["paid", 1]


def test_a_version_is_that_of_the_whole_past_and_not_of_what_runs_now(store: Store) -> None:
    desk = desk_of(store, "new")
    assert desk.once("outer", lambda: desk.steps.version("nested")) == 1, "its own step is no past"
    uses: list[Callable[[Desk], object]] = [lambda d: d.sleep(0.001, key="nap"), lambda d: d.wait_for("s", key="w")]
    for number, use in enumerate(uses):
        old = desk_of(store, f"old-{number}")
        store.agents.signal(f"old-{number}", "s")
        use(old)
        old = desk_of(store, f"old-{number}")  # it was deployed again
        assert old.steps.version("before it") == 0
        use(old)
        assert old.steps.version("after it") == 1
