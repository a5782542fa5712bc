"""Saves of one thread at the same time, in one process: they do not race, and none depends on another one's luck."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from holdfast.backends.interface import Backend, Batch, BlockingCall
from holdfast.backends.memory import MemoryBackend
from holdfast.backends.registry import backend_for
from holdfast.backends.runtime.drivers import run
from holdfast.backends.wrappers import Wrapper
from holdfast.engine import append_queue
from holdfast.engine.context import EngineContext
from holdfast.engine.engine import Engine
from holdfast.errors import ConflictError, NotFoundError, QuotaError, TransientError
from holdfast.store.store import AsyncStore, Store
from tests.servers.places import COMPOSED, KINDS, place
from tests.support.counting import CountingBackend
from tests.support.nightly import mostly_nightly

MANY = 80
LATE = 60
"""Seconds after which a test gives up."""


class Gate(Wrapper):
    """Stops the first change after it was closed, until it is opened again; then does what `after` says."""

    def __init__(self, inner: Backend) -> None:
        super().__init__(inner)
        self._open = threading.Event()
        self.reached = threading.Event()
        self.applied: list[int] = []
        """How many steps each batch had."""
        self.before: Callable[[], None] | None = None
        self.after: Callable[[], None] | None = None
        self._closed = False

    def close_gate(self) -> None:
        self._closed = True
        self._open.clear()
        self.reached.clear()

    def open_gate(self) -> None:
        self._open.set()

    async def apply(self, batch: Batch) -> int | None:
        before, after = None, None
        if batch and self._closed:
            self._closed = False
            self.reached.set()
            await BlockingCall(lambda: self._open.wait(LATE))
        elif len(batch) > 2:
            before, self.before = self.before, None
            after, self.after = self.after, None
        if before is not None:
            before()
        refused = await self.inner.apply(batch)
        if refused is None and batch:
            self.applied.append(sum(change.space.name == "steps" for change in batch))
        if after is not None:
            after()
        return refused


class Stores:
    """A sync and an async store on one engine, behind a gate."""

    def __init__(self) -> None:
        self.gate = Gate(run(MemoryBackend.open("memory://")))
        engine = Engine(EngineContext(self.gate))
        self.sync, self.tasks = Store(engine, ""), AsyncStore(engine, "")
        self.queue: Any = engine.writer._queue
        self.sync.thread("t").put({"n": -1})
        self.gate.applied.clear()

    def waiting(self) -> int:
        queues = list(self.queue._queues.values())
        return len(queues[0].waiting) if queues else 0

    def numbers(self) -> list[Any]:
        """The states in the log, the oldest first; the log has no branches."""
        thread = self.sync.thread("t")
        entries = [*thread.log(limit=1000)][::-1]
        assert len({entry.branch for entry in entries}) == 1
        assert [entry.parent for entry in entries[1:]] == [entry.id for entry in entries[:-1]]
        assert not self.queue._queues  # and nobody was forgotten
        return [thread.get(at=entry.id).state["n"] for entry in entries][1:]


@pytest.fixture
def stores() -> Iterator[Stores]:
    stores = Stores()
    yield stores
    stores.gate.open_gate()
    run(stores.gate.close())


class Threads:
    """Calls in threads of their own, each of which is queued before the next one starts."""

    def __init__(self, stores: Stores) -> None:
        self._stores = stores
        self._pool = ThreadPoolExecutor(32)
        self.calls: list[Any] = []

    def start(self, call: Callable[[], Any]) -> None:
        before = self._stores.waiting()
        self.calls.append(self._pool.submit(call))
        until(lambda: self._stores.waiting() > before or self.calls[-1].done())
        assert self._stores.waiting() > before, self.calls[-1].exception()

    def lead(self, call: Callable[[], Any]) -> None:
        """Start a call that gets as far as the gate."""
        self._stores.gate.close_gate()
        self.calls.append(self._pool.submit(call))
        assert self._stores.gate.reached.wait(LATE)

    def outcomes(self) -> list[Any]:
        found = [call.exception(LATE) or call.result() for call in self.calls]
        self._pool.shutdown()
        return found


def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition that another thread makes true."""
    pause = threading.Event()
    for _ in range(LATE * 1000):
        if condition():
            return
        pause.wait(0.001)
    pytest.fail("it never came to that")


async def until_async(condition: Callable[[], bool]) -> None:
    for _ in range(LATE * 1000):
        if condition():
            return
        await asyncio.sleep(0.001)
    pytest.fail("it never came to that")


def put(stores: Stores, number: int, **more: Any) -> Callable[[], Any]:
    return lambda: stores.sync.thread("t").put({"n": number}, **more)


# Cost -----------------------------------------------------------------------------------------------------------


@pytest.mark.nightly
@pytest.mark.parametrize("kind", mostly_nightly((*KINDS, *COMPOSED), daily=["sqlite", "file", "postgres"]))
@pytest.mark.parametrize("by", ["threads", "tasks"])
def test_many_saves_of_one_thread_cost_no_more_than_one_after_another(kind: str, by: str, tmp_path: Path) -> None:
    url = place(kind, tmp_path)
    backend = CountingBackend(run(backend_for(url).open(url)))
    engine = Engine(EngineContext(backend, project=backend.capabilities.projected))
    store = Store(engine, "")
    try:
        store.thread(by).put({"n": -1})
        backend.reset()
        if by == "threads":
            start = threading.Barrier(MANY)

            def save(number: int) -> None:
                start.wait()
                store.thread(by).put({"n": number})

            with ThreadPoolExecutor(MANY) as pool:
                list(pool.map(save, range(MANY)))
        else:
            asyncio.run(_save_by_tasks(AsyncStore(engine, ""), by))
        applies, refused = backend.applies, backend.refused
        numbers = [store.thread(by).get(at=entry.id).state["n"] for entry in store.thread(by).log(limit=1000)]
    finally:
        store.close()
    assert sorted(numbers) == list(range(-1, MANY))
    assert refused <= MANY // 10  # a save may be slower than the queue has patience for
    assert applies <= MANY + refused
    if kind != "memory":  # there, nothing takes long enough to wait for
        assert applies < MANY
    if by == "tasks" and not refused:
        assert numbers[::-1] == list(range(-1, MANY))  # in the order of the calls


async def _save_by_tasks(store: AsyncStore, thread: str) -> None:
    await asyncio.gather(*(store.thread(thread).put({"n": number}) for number in range(MANY)))


def test_saves_that_wait_are_one_batch(stores: Stores) -> None:
    threads = Threads(stores)
    threads.lead(put(stores, 0))
    for number in range(1, 20):
        threads.start(put(stores, number))
    stores.gate.open_gate()
    saved = [each.id for each in threads.outcomes()]
    assert stores.numbers() == list(range(20))
    assert [entry.id for entry in stores.sync.thread("t").log(limit=20)][::-1] == saved  # each got its own
    assert stores.gate.applied == [1, 19]


def test_updates_are_chained_each_on_the_state_before(stores: Stores) -> None:
    threads = Threads(stores)
    threads.lead(put(stores, 0))
    for number in range(1, 9):
        threads.start(partial(stores.sync.thread("t").update, {f"key {number}": number}))
    threads.start(lambda: stores.sync.thread("t").update({"n": 9}))
    stores.gate.open_gate()
    threads.outcomes()
    assert stores.gate.applied == [1, 9]
    assert stores.sync.thread("t").get().state == {"n": 9, **{f"key {number}": number for number in range(1, 9)}}


def test_large_saves_are_not_chained(stores: Stores) -> None:
    threads = Threads(stores)
    threads.lead(put(stores, 0))
    for number in range(1, 5):
        large = os.urandom(700_000)
        threads.start(partial(stores.sync.thread("t").put, {"n": number, "large": large}))
    stores.gate.open_gate()
    threads.outcomes()
    assert stores.numbers() == list(range(5))
    assert stores.gate.applied == [1] * 5


def test_the_same_large_value_twice_is_written_once(stores: Stores) -> None:
    values = [os.urandom(200_000), os.urandom(200_000)]
    threads = Threads(stores)
    threads.lead(put(stores, 0))
    for number in range(1, 5):
        value = values[number % 2]
        threads.start(partial(stores.sync.thread("t").put, {"n": number, "value": value}))
    stores.gate.open_gate()
    threads.outcomes()
    assert stores.numbers() == list(range(5))
    assert stores.sync.thread("t").get().state["value"] == values[0]
    assert not stores.sync.maintenance.verify().findings


# What is not chained --------------------------------------------------------------------------------------------


def test_saves_after_one_named_parent_still_branch(stores: Stores) -> None:
    parent = stores.sync.thread("t").get().id
    threads = Threads(stores)
    threads.lead(put(stores, 0))
    with ThreadPoolExecutor(2) as pool:  # neither waits for the one that is in progress
        saved = list(pool.map(lambda number: stores.sync.thread("t").put({"n": number}, parent=parent), (1, 2)))
    stores.gate.open_gate()
    threads.outcomes()
    assert [each.parent for each in saved] == [parent, parent]
    assert saved[0].branch != saved[1].branch


def test_saves_to_several_branches_are_not_mixed(stores: Stores) -> None:
    stores.sync.thread("t").fork("other")
    threads = Threads(stores)
    threads.lead(put(stores, 0))
    for number in range(1, 7):
        threads.start(put(stores, number, branch="other" if number % 3 == 0 else None))
    stores.gate.open_gate()
    saved = threads.outcomes()
    branches = [each.branch for each in saved]
    other = stores.sync.thread("t").get(at=saved[6].id).branch
    assert branches[3] == branches[6] == other


# Errors ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [1, 3, 5])
def test_an_error_of_one_save_is_only_its_own(stores: Stores, bad: int) -> None:
    stores.sync.thread("t").tag("taken")
    threads = Threads(stores)
    threads.lead(put(stores, 0))
    for number in range(1, 6):
        threads.start(put(stores, number, **({"tag": "taken"} if number == bad else {"labels": ["same"]})))
    threads.start(lambda: stores.sync.thread("t").update({"none.such[7]": 1}))
    stores.gate.open_gate()
    outcomes = threads.outcomes()
    assert isinstance(outcomes[bad], ConflictError)
    assert isinstance(outcomes[6], NotFoundError)
    assert stores.numbers() == [number for number in range(6) if number != bad]


def test_a_failure_of_the_store_is_that_of_all(stores: Stores) -> None:
    threads = Threads(stores)
    threads.lead(put(stores, 0))
    for number in range(1, 6):
        threads.start(put(stores, number))

    def fail() -> None:
        raise TransientError("the disk is full")

    stores.gate.before = fail
    stores.gate.open_gate()
    first, *others = threads.outcomes()
    assert first.id
    assert all(isinstance(error, TransientError) for error in others)
    assert len(set(map(id, others))) == len(others)  # each has a traceback of its own
    assert stores.numbers() == [0]
    put(stores, 7)()
    assert stores.numbers() == [0, 7]


def test_a_batch_that_is_refused_as_a_whole_is_tried_in_part(stores: Stores) -> None:
    """As with a quota that has room for some of them."""
    threads = Threads(stores)
    threads.lead(put(stores, 0))
    for number in range(1, 6):
        threads.start(put(stores, number))

    def refuse() -> None:
        raise QuotaError("there is no room for so much")

    stores.gate.before = refuse
    stores.gate.open_gate()
    assert all(each.id for each in threads.outcomes())
    assert stores.numbers() == list(range(6))
    assert stores.gate.applied == [1, 1, 4]


@pytest.mark.parametrize("applied", [True, False])
def test_a_leader_that_is_interrupted_harms_only_itself(stores: Stores, applied: bool) -> None:
    """Whether or not its batch was stored: those who follow are saved once."""
    threads = Threads(stores)
    threads.lead(put(stores, 0))
    for number in range(1, 8):
        threads.start(put(stores, number))
    struck = []

    def interrupt() -> None:
        struck.append(True)
        raise KeyboardInterrupt

    if applied:
        stores.gate.after = interrupt
    else:
        stores.gate.before = interrupt
    stores.gate.open_gate()
    outcomes = threads.outcomes()
    assert struck
    assert isinstance(outcomes[1], KeyboardInterrupt)
    numbers = stores.numbers()
    assert sorted(numbers) == [number for number in range(8) if applied or number != 1]
    by_id = {entry.id: entry for entry in stores.sync.thread("t").log(limit=100)}
    assert [stores.sync.thread("t").get(at=outcomes[number].id).state["n"] for number in range(2, 8)] == list(
        range(2, 8)
    )
    assert len(by_id) == len(numbers) + 1


def test_a_task_that_is_cancelled_harms_only_itself(stores: Stores) -> None:
    async def main() -> None:
        stores.gate.close_gate()
        tasks = [asyncio.create_task(stores.tasks.thread("t").put({"n": 0}))]
        await until_async(stores.gate.reached.is_set)
        for number in range(1, 8):
            tasks.append(asyncio.create_task(stores.tasks.thread("t").put({"n": number})))
        await until_async(lambda: stores.waiting() == 7)
        tasks[0].cancel()  # leads
        tasks[1].cancel()  # waits, and would lead next
        tasks[5].cancel()  # would follow
        await asyncio.gather(tasks[0], return_exceptions=True)
        stores.gate.open_gate()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        assert [isinstance(each, asyncio.CancelledError) for each in outcomes] == [
            number in (0, 1, 5) for number in range(8)
        ]

    asyncio.run(main())
    numbers = stores.numbers()
    assert [number for number in numbers if number] == [2, 3, 4, 6, 7]


# Nobody waits for who makes no progress ---------------------------------------------------------------------------


def test_a_call_that_blocks_the_event_loop_does_not_wait_for_its_tasks(stores: Stores) -> None:
    async def main() -> None:
        stores.gate.close_gate()
        task = asyncio.create_task(stores.tasks.thread("t").put({"n": 0}))
        await until_async(stores.gate.reached.is_set)
        stores.sync.thread("t").put({"n": 1})  # in the loop: the task cannot go on meanwhile
        stores.gate.open_gate()
        await task

    asyncio.run(main())
    assert stores.numbers() == [1, 0]


def test_a_task_of_a_stopped_loop_does_not_stop_others(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(append_queue, "_PATIENCE", 0.05)
    loop = asyncio.new_event_loop()
    stores.gate.close_gate()
    task = loop.create_task(stores.tasks.thread("t").put({"n": 0}))
    loop.run_until_complete(until_async(stores.gate.reached.is_set))
    with ThreadPoolExecutor(2) as pool:  # the loop does not run: its task keeps the lead
        for call in [pool.submit(put(stores, number)) for number in (1, 2)]:
            call.result(LATE)
    stores.gate.open_gate()
    loop.run_until_complete(task)
    loop.close()
    *others, last = stores.numbers()
    assert (sorted(others), last) == ([1, 2], 0)


def test_tasks_of_two_loops_and_threads_take_turns(stores: Stores) -> None:
    def by_tasks(first: int) -> None:
        async def main() -> None:
            await asyncio.gather(*(stores.tasks.thread("t").put({"n": first + number}) for number in range(MANY)))

        asyncio.run(main())

    with ThreadPoolExecutor(12) as pool:
        calls = [pool.submit(by_tasks, 1000), pool.submit(by_tasks, 2000)]
        calls += [pool.submit(put(stores, number)) for number in range(MANY)]
        for call in calls:
            call.result(LATE)
    numbers = stores.numbers()
    assert sorted(numbers) == [*range(MANY), *range(1000, 1000 + MANY), *range(2000, 2000 + MANY)]
    for first in (1000, 2000):
        own = [number for number in numbers if first <= number < first + MANY]
        assert own == sorted(own)
    assert len(stores.gate.applied) < 3 * MANY


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_does_not_wait_for_threads_of_its_parent(stores: Stores) -> None:
    threads = Threads(stores)
    threads.lead(put(stores, 0))
    assert stores.queue._queues
    stores.queue.reinit_locks()  # as after a fork
    assert stores.sync.thread("t").put({"n": 1}).id
    stores.gate.open_gate()
    threads.outcomes()
    assert stores.numbers() == [1, 0]
