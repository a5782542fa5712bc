"""Backends around backends: what wrappers pass on, count, and make fail."""

from __future__ import annotations

import asyncio
import time

import pytest

from holdfast.backends.conformance.rows import row_of, step
from holdfast.backends.conformance.suite import SyncConformance, WrapperConformance
from holdfast.backends.interface import Create, Delete, Ensure, Expect, Get, Put, Scan
from holdfast.backends.memory import MemoryBackend
from holdfast.backends.runtime.drivers import arun, run
from holdfast.backends.tables import LINES, NODES, STEPS
from holdfast.backends.wrappers import Wrapper
from holdfast.errors import ConfigError, TransientError, UnavailableError
from holdfast.testing import Stores
from tests.support.counting import CountingBackend
from tests.support.faults import Fault, Faults, acknowledgement_lost


@pytest.mark.no_cover  # the parts are measured where they are tested by themselves
class TestWrapperConforms(WrapperConformance):
    """All wrappers at once, none of which should be noticed."""

    lacks = frozenset({"durable", "shared", "times"})

    @pytest.fixture
    def stores(self) -> Stores:
        return Stores("memory://", wrap=lambda backend: Wrapper(CountingBackend(Faults(backend))))


@pytest.mark.nightly
@pytest.mark.no_cover
class TestWrapperConformsInFull(SyncConformance):
    lacks = TestWrapperConforms.lacks
    stores = TestWrapperConforms.stores


@pytest.mark.parametrize("kind", [Wrapper, CountingBackend, Faults])
def test_a_wrapper_has_no_url_of_its_own(kind: type[Wrapper]) -> None:
    with pytest.raises(ConfigError, match=f"{kind.__name__} cannot be opened"):
        run(kind.open("memory://"))


# Faults


def busy() -> TransientError:
    return TransientError("the store is busy")


def store(*plan: Fault) -> Faults:
    faults = Faults(MemoryBackend(), plan)
    assert run(faults.inner.apply([Create(STEPS, step(0))])) is None
    return faults


def count(faults: Faults) -> int:
    return len(run(faults.inner.read([Scan(STEPS, ())]))[0])


def test_the_nth_read_fails() -> None:
    faults = store(Fault("read", 2, busy))
    query = [Get(STEPS, [step(0).key])]
    assert len(run(faults.read(query))[0]) == 1
    with pytest.raises(TransientError, match="busy"):
        run(faults.read(query))
    assert len(run(faults.read(query))[0]) == 1
    assert (faults.reads, faults.applies) == (3, 0)


def test_a_batch_that_fails_before_is_not_made() -> None:
    faults = store(Fault("apply", 1, busy))
    with pytest.raises(TransientError):
        run(faults.apply([Create(STEPS, step(1))]))
    assert count(faults) == 1
    assert run(faults.apply([Create(STEPS, step(1))])) is None
    assert count(faults) == 2


def test_a_batch_whose_acknowledgement_is_lost_is_made() -> None:
    faults = store(acknowledgement_lost(2))
    assert run(faults.apply([])) is None
    with pytest.raises(UnavailableError, match="acknowledgement was lost"):
        run(faults.apply([Create(STEPS, step(1))]))
    assert count(faults) == 2
    assert run(faults.apply([Create(STEPS, step(1))])) == 0


def test_a_read_may_fail_after_it_was_done() -> None:
    faults = store(Fault("read", 1, busy, "after"))
    with pytest.raises(TransientError):
        run(faults.read([]))


def test_a_fault_may_last() -> None:
    faults = store(Fault("apply", 2, busy, times=3))
    outcomes = []
    for _ in range(6):
        try:
            outcomes.append(run(faults.apply([])))
        except TransientError:
            outcomes.append(-1)
    assert outcomes == [None, -1, -1, -1, None, None]


def test_a_call_may_be_delayed() -> None:
    faults = store(Fault("apply", 1, delay=0.05), Fault("read", 1, delay=0.05, when="after"))
    started = time.monotonic()
    assert run(faults.apply([Create(STEPS, step(1))])) is None
    assert time.monotonic() - started >= 0.05
    assert count(faults) == 2
    started = time.monotonic()
    assert run(faults.read([Scan(STEPS, ())])) != []
    assert time.monotonic() - started >= 0.05


def test_a_delay_lets_other_tasks_run() -> None:
    faults = store(Fault("apply", 1, delay=0.2))

    async def main() -> list[str]:
        done: list[str] = []

        async def note(name: str) -> None:
            await arun(faults.apply([]))
            done.append(name)

        slow = asyncio.create_task(note("slow"))
        await asyncio.sleep(0.02)
        await note("quick")
        await slow
        return done

    assert asyncio.run(main()) == ["quick", "slow"]


# Counting


def test_calls_rows_and_bytes_are_counted() -> None:
    counting = CountingBackend(MemoryBackend())
    line = row_of(LINES, "é", "li", body=b"12345")
    nodes = [row_of(NODES, "t", "l", 7, b"abc", body=b"12"), row_of(NODES, "t", "l", 8, b"", body=b"")]
    assert run(counting.apply([Create(LINES, line), *(Put(NODES, node) for node in nodes)])) is None
    assert run(counting.apply([Create(LINES, line), Put(NODES, nodes[0])])) == 0
    assert run(counting.apply([Ensure(LINES, line), Delete(NODES, ()), Expect(NODES, nodes[0].key, None)])) is None
    assert (counting.applies, counting.refused) == (3, 1)
    assert counting.rows_written == {"lines": 2, "nodes": 2}
    assert counting.bytes_written == {"lines": 2 * (2 + 2 + 5), "nodes": (2 + 3 + 2) + 2}
    assert (counting.reads, counting.queries) == (0, 0)

    run(counting.read([Scan(LINES, ()), Get(LINES, [line.key]), Scan(NODES, ())]))
    run(counting.read([]))
    assert (counting.reads, counting.queries) == (2, 3)
    assert counting.rows_read == {"lines": 2, "nodes": 0}
    assert counting.bytes_read == {"lines": 18, "nodes": 0}
    assert counting.rows_read["steps"] == 0


def test_counting_starts_again() -> None:
    counting = CountingBackend(MemoryBackend())
    assert run(counting.apply([Create(STEPS, step(0))])) is None
    run(counting.read([Scan(STEPS, ())]))
    counting.reset()
    assert (counting.reads, counting.queries, counting.applies, counting.refused) == (0, 0, 0, 0)
    assert counting.rows_read == counting.rows_written == counting.bytes_read == counting.bytes_written == {}
