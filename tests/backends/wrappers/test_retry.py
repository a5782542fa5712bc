"""Trying again, and the breaker."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from holdfast.backends.conformance.rows import step
from holdfast.backends.interface import Create, Get
from holdfast.backends.memory import MemoryBackend
from holdfast.backends.runtime.drivers import arun, run
from holdfast.backends.tables import STEPS
from holdfast.backends.wrappers.retry import RetryBackend
from holdfast.errors import CorruptError, HoldfastError, OutcomeUnknownError, TransientError, UnavailableError
from tests.backends.wrappers.pairs import Clock, Held
from tests.support.faults import Fault, Faults

QUERY = [Get(STEPS, [step().key])]


def busy() -> TransientError:
    return TransientError("the store is busy")


def retry(*plan: Fault, attempts: int = 5, breaker: int = 100, rest: float = 5.0) -> tuple[RetryBackend, Faults]:
    faults = Faults(MemoryBackend(), plan)
    return RetryBackend(faults, attempts=attempts, pause=0.001, breaker=breaker, rest=rest), faults


@pytest.mark.parametrize("drive", ["sync", "async"])
def test_what_failed_for_the_moment_is_tried_again(drive: str) -> None:
    store, faults = retry(Fault("apply", 1, busy, times=3), Fault("read", 1, busy, times=4))

    async def use() -> None:
        assert await store.apply([Create(STEPS, step())]) is None
        assert await store.read(QUERY) == [[step()]]

    run(use()) if drive == "sync" else asyncio.run(arun(use()))
    assert (faults.applies, faults.reads) == (4, 5)
    assert run(store.status()) == {
        "retried": 7,
        "breaker": "closed",
        "breaker_opened": 0,
        "failures_in_a_row": 0,
    }


def test_attempts_are_bounded() -> None:
    store, faults = retry(Fault("read", 1, busy, times=50), attempts=3)
    with pytest.raises(TransientError, match="busy"):
        run(store.read(QUERY))
    assert faults.reads == 3


def test_time_is_bounded() -> None:
    faults = Faults(MemoryBackend(), [Fault("read", 1, busy, times=1000)])
    store = RetryBackend(faults, attempts=1000, pause=0.05, deadline=0.2, breaker=1000)
    with pytest.raises(TransientError, match="busy"):
        run(store.read(QUERY))
    assert 1 <= faults.reads <= 10


@pytest.mark.parametrize(
    "error", [OutcomeUnknownError("perhaps"), UnavailableError("closed"), CorruptError("bytes"), KeyError("bug")]
)
def test_nothing_else_is_tried_again(error: Exception) -> None:
    def fail() -> HoldfastError:
        raise error

    store, faults = retry(Fault("apply", 1, fail, "after"))
    with pytest.raises(type(error)):
        run(store.apply([Create(STEPS, step())]))
    assert faults.applies == 1


def test_a_refusal_is_an_answer() -> None:
    store, faults = retry()
    assert run(store.apply([Create(STEPS, step())])) is None
    assert run(store.apply([Create(STEPS, step())])) == 0
    assert faults.applies == 2


def test_a_store_that_keeps_failing_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr("holdfast.backends.wrappers.retry.time", clock)
    store, faults = retry(Fault("read", 1, busy, times=6), attempts=1, breaker=3, rest=0.1)
    for _ in range(3):
        with pytest.raises(TransientError, match="busy"):
            run(store.read(QUERY))
    for _ in range(5):
        with pytest.raises(TransientError, match=r"breaker is open, next try in 0\.\d s"):
            run(store.read(QUERY))
    assert faults.reads == 3, "the store was not left alone"
    assert run(store.status())["breaker"] == "open"
    clock.now += 0.11
    with pytest.raises(TransientError, match="busy"):
        run(store.read(QUERY))
    with pytest.raises(TransientError, match="breaker is open"):
        run(store.read(QUERY))
    assert faults.reads == 4, "one trial each time"
    faults.plan.clear()
    clock.now += 0.11
    assert run(store.read(QUERY)) == [[]]
    assert run(store.status())["breaker"] == "closed"
    assert run(store.status())["breaker_opened"] == 1


def failed_once() -> tuple[RetryBackend, Faults, Held]:
    """A store whose breaker is open, and lets the next one try; and that holds it up."""
    held = Held(MemoryBackend())
    faults = Faults(held, [Fault("read", 1, busy)])
    store = RetryBackend(faults, attempts=1, pause=0.001, breaker=1, rest=0.0)
    with pytest.raises(TransientError):
        run(store.read(QUERY))
    held.gate.clear()
    return store, faults, held


def test_one_call_at_a_time_is_let_through_to_try() -> None:
    store, faults, held = failed_once()
    barrier = threading.Barrier(4)
    left = threading.Semaphore(0)

    def ask(_: int) -> str:
        barrier.wait()
        try:
            run(store.read(QUERY))
        except TransientError as error:
            left.release()
            return "open" if "breaker" in str(error) else "busy"
        return "answered"

    with ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(ask, n) for n in range(4)]
        for _ in range(3):
            assert left.acquire(timeout=100)
        held.gate.set()
        assert sorted(each.result() for each in asked) == ["answered", "open", "open", "open"]
    assert faults.reads == 2


def test_a_trial_that_nobody_waits_for_leaves_the_breaker_usable() -> None:
    store, _, held = failed_once()

    async def main() -> None:
        trial = asyncio.create_task(arun(store.read(QUERY)))
        while not held.reached.is_set():
            await asyncio.sleep(0.001)
        trial.cancel()
        with pytest.raises(asyncio.CancelledError):
            await trial
        held.gate.set()
        assert await arun(store.read(QUERY)) == [[]]

    asyncio.run(main())
