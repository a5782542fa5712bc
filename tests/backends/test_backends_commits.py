"""Shared commits: who leads, who is answered, and what interruptions leave behind."""

from __future__ import annotations

import asyncio
import gc
import random
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast.backends.interface import Batch, Create, Row
from holdfast.backends.runtime.group_commit import CommitQueue, Outcome
from holdfast.backends.runtime.threads import WorkerThread
from holdfast.backends.tables import NODES
from holdfast.errors import TransientError, UnavailableError

ROOT = Path(__file__).resolve().parents[2]

WAIT = 120.0
"""Seconds after which something hangs."""


class Recorder:
    """A commit function that notes its groups, and can be held up."""

    def __init__(self) -> None:
        self.groups: list[list[Batch]] = []
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Event()
        self.answer: Callable[[Batch], Outcome] = lambda batch: None

    def __call__(self, batches: list[Batch], outcomes: list[Outcome]) -> None:
        self.entered.set()
        assert self.gate.wait(WAIT)
        self.groups.append(batches)
        outcomes.extend(self.answer(batch) for batch in batches)

    @property
    def committed(self) -> list[Batch]:
        return [batch for group in self.groups for batch in group]


def named(name: str, size: int = 0) -> Batch:
    return (Create(NODES, Row(("t", name, 0, b""), (), bytes(size))),)


def threads(*functions: Callable[[], object]) -> list[threading.Thread]:
    started = [threading.Thread(target=function) for function in functions]
    for thread in started:
        thread.start()
    return started


def join(started: list[threading.Thread]) -> None:
    for thread in started:
        thread.join(WAIT)
        assert not thread.is_alive()


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + WAIT
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
def queue(recorder: Recorder) -> Iterator[CommitQueue]:
    queue = CommitQueue(recorder, "somewhere")
    yield queue
    queue.close()


def test_alone_one_commits_in_ones_own_thread(queue: CommitQueue, recorder: Recorder) -> None:
    before = threading.active_count()
    recorder.answer = lambda batch: 7
    assert queue.submit(named("a")).wait() == 7
    assert recorder.groups == [[named("a")]]
    assert threading.active_count() == before


def test_a_ticket_is_not_queued_before_it_is_awaited(queue: CommitQueue, recorder: Recorder) -> None:
    queue.submit(named("a"))
    queue.drain()
    assert recorder.committed == [()]


def test_what_came_meanwhile_is_one_group(queue: CommitQueue, recorder: Recorder) -> None:
    recorder.gate.clear()
    started = threads(queue.submit(named("first")).wait)
    assert recorder.entered.wait(WAIT)
    started += threads(*(queue.submit(named(f"{n}")).wait for n in range(5)))
    until(lambda: len(queue._queued) == 5)
    recorder.gate.set()
    join(started)
    assert [len(group) for group in recorder.groups] == [1, 5]


def test_a_group_has_limits(queue: CommitQueue, recorder: Recorder) -> None:
    recorder.gate.clear()
    started = threads(queue.submit(named("first")).wait)
    assert recorder.entered.wait(WAIT)
    for n in range(5):  # one after another, for their order
        started += threads(queue.submit(named(f"{n}", 3 << 20)).wait)
        until(lambda n=n: len(queue._queued) == n + 1)  # type: ignore[misc]
    recorder.gate.set()
    join(started)
    assert [len(group) for group in recorder.groups] == [1, 2, 2, 1]


def test_many_small_batches_are_several_groups(recorder: Recorder) -> None:
    async def main() -> None:
        queue = CommitQueue(recorder)
        recorder.gate.clear()
        futures = [queue.submit(named(f"{n}")).watch() for n in range(2_500)]
        recorder.gate.set()
        assert await asyncio.gather(*futures) == [None] * 2_500
        queue.close()

    asyncio.run(main())
    assert max(len(group) for group in recorder.groups) == 1_000
    assert [batch for batch in recorder.committed if batch] == [named(f"{n}") for n in range(2_500)]


@pytest.mark.parametrize(
    "error", [TransientError("no", where="there", hint="wait"), RuntimeError("bug")], ids=["own", "bug"]
)
def test_an_error_of_the_group_is_everybodys(queue: CommitQueue, recorder: Recorder, error: Exception) -> None:
    caught: list[Exception] = []

    def wait(name: str) -> None:
        try:
            queue.submit(named(name)).wait()
        except Exception as found:
            caught.append(found)

    def fail(batch: Batch) -> Outcome:
        if batch == named("first"):
            return None
        raise error

    recorder.answer = fail
    recorder.gate.clear()
    started = threads(lambda: wait("first"))
    assert recorder.entered.wait(WAIT)
    started += threads(lambda: wait("a"), lambda: wait("b"))
    until(lambda: len(queue._queued) == 2)
    recorder.gate.set()
    join(started)
    assert [str(found) for found in caught] == [str(error)] * 2
    assert all(type(found) is type(error) for found in caught)
    recorder.answer = lambda batch: None
    assert queue.submit(named("c")).wait() is None


def test_an_error_of_one_batch_is_not_the_others(queue: CommitQueue, recorder: Recorder) -> None:
    recorder.answer = lambda batch: TransientError("mine") if batch == named("bad") else 3

    async def main() -> list[object]:
        return await asyncio.gather(
            *(queue.submit(named(name)).watch() for name in ("good", "bad", "fine")), return_exceptions=True
        )

    good, bad, fine = asyncio.run(main())
    assert (good, fine) == (3, 3)
    assert isinstance(bad, TransientError)
    with pytest.raises(TransientError):
        queue.submit(named("bad")).wait()


def test_tasks_and_threads_share_groups(queue: CommitQueue, recorder: Recorder) -> None:
    done: list[str] = []

    def sync() -> None:
        for n in range(50):
            assert queue.submit(named(f"sync {n}")).wait() is None
            done.append(f"sync {n}")

    async def task(k: int) -> None:
        for n in range(20):
            assert await queue.submit(named(f"{k} {n}")).watch() is None
            done.append(f"{k} {n}")

    async def main() -> None:
        await asyncio.gather(*(task(k) for k in range(16)))

    join(threads(sync, sync, lambda: asyncio.run(main()), lambda: asyncio.run(main())))
    assert len(done) == 2 * 50 + 2 * 16 * 20
    assert len(recorder.committed) == len(done)


def test_a_cancelled_task_leaves_its_batch_and_the_others(queue: CommitQueue, recorder: Recorder) -> None:
    async def main() -> None:
        recorder.gate.clear()
        first = queue.submit(named("first")).watch()
        await asyncio.to_thread(recorder.entered.wait, WAIT)
        second, third = queue.submit(named("second")).watch(), queue.submit(named("third")).watch()
        second.cancel()
        recorder.gate.set()
        assert await first is None
        assert await third is None

    asyncio.run(main())
    assert recorder.committed == [named("first"), named("second"), named("third")]


def test_tasks_of_one_turn_of_a_loop_are_one_group(queue: CommitQueue, recorder: Recorder) -> None:
    async def task(number: int) -> None:
        for turn in range(3):
            await queue.submit(named(f"{turn} {number}")).watch()

    async def main() -> None:
        await asyncio.gather(*(task(number) for number in range(64)))

    asyncio.run(main())
    assert recorder.groups == [[named(f"{turn} {number}") for number in range(64)] for turn in range(3)]


def test_a_thread_that_keeps_its_loop_from_running_can_save(queue: CommitQueue, recorder: Recorder) -> None:
    async def main() -> None:
        first = queue.submit(named("task")).watch()
        assert queue.submit(named("call")).wait() is None
        assert await first is None

    asyncio.run(main())
    assert recorder.committed == [named("task"), named("call")]


@pytest.mark.parametrize("after", ["thread", "loop", "close"])
def test_a_loop_that_stopped_in_the_middle_of_a_turn_holds_up_nobody(recorder: Recorder, after: str) -> None:
    queue = CommitQueue(recorder, "here")
    stopped = asyncio.new_event_loop()

    def submit() -> None:
        queue.submit(named("first")).watch()
        stopped.stop()

    async def main() -> None:
        assert await queue.submit(named("second")).watch() is None

    stopped.call_soon(submit)
    stopped.run_forever()
    assert recorder.groups == []
    if after == "thread":
        assert queue.submit(named("second")).wait() is None
    elif after == "loop":
        asyncio.run(main())
    queue.close()
    stopped.close()
    committed = [batch for batch in recorder.committed if batch]
    assert committed == [named("first")] + [named("second")] * (after != "close")


def test_a_loop_that_ended_is_not_missed(queue: CommitQueue, recorder: Recorder) -> None:
    async def give_up() -> None:
        recorder.gate.clear()
        queue.submit(named("a")).watch().cancel()

    asyncio.run(give_up())
    recorder.gate.set()
    assert queue.submit(named("b")).wait() is None
    assert recorder.committed == [named("a"), named("b")]


def test_a_loop_that_refuses_is_heard_of(queue: CommitQueue) -> None:
    class Refusing:
        def call_soon_threadsafe(self, *_: object) -> None:
            raise RuntimeError("not now")

        def is_closed(self) -> bool:
            return False

    ticket = queue.submit(named("a"))
    ticket.loop = Refusing()  # type: ignore[assignment]
    queue._group, queue._outcomes = (ticket,), [None]
    with pytest.raises(RuntimeError, match="not now"):
        queue._deliver_outcomes()
    queue._group = ()


@pytest.mark.parametrize("made", [False, True], ids=["not made", "made"])
def test_a_leader_who_is_interrupted_leaves_the_others_served(made: bool) -> None:
    """The batches of the group that he committed, or did not get to commit, are answered rightly, and once."""
    committed: list[Batch] = []
    entered, gate = threading.Event(), threading.Event()

    def commit(batches: list[Batch], outcomes: list[Outcome]) -> None:
        if batches == [named("first")]:
            entered.set()
            assert gate.wait(WAIT)
        if threading.current_thread() is victim and not interrupted:
            interrupted.append(len(batches))
            if made:
                committed.extend(batches)
                outcomes.extend(None for _ in batches)
            raise KeyboardInterrupt
        committed.extend(batches)
        outcomes.extend(None for _ in batches)

    interrupted: list[int] = []
    answers: dict[str, object] = {}
    queue = CommitQueue(commit)

    def wait(name: str) -> None:
        try:
            answers[name] = queue.submit(named(name)).wait()
        except KeyboardInterrupt:
            answers[name] = "interrupted"

    victim = threading.Thread(target=wait, args=("victim",))
    started = threads(lambda: wait("first"))
    assert entered.wait(WAIT)
    victim.start()
    until(lambda: len(queue._queued) == 1)
    started += threads(lambda: wait("a"))
    until(lambda: len(queue._queued) == 2)
    started += threads(lambda: wait("b"))
    until(lambda: len(queue._queued) == 3)
    gate.set()
    join([*started, victim])
    assert interrupted == [3]
    assert answers == {"first": None, "victim": "interrupted", "a": None, "b": None}
    others = [named("first"), named("a"), named("b")]
    assert committed == ([named("first"), named("victim"), named("a"), named("b")] if made else others)
    assert queue._leader is None
    queue.close()


def test_the_worker_survives_whatever_breaks_off(recorder: Recorder) -> None:
    queue = CommitQueue(recorder, "here")

    def leave(_: Batch) -> Outcome:
        raise SystemExit(1)

    async def main() -> None:
        recorder.answer = leave
        with pytest.raises(UnavailableError, match="SystemExit"):
            await queue.submit(named("a")).watch()
        recorder.answer = lambda batch: None
        assert await queue.submit(named("b")).watch() is None

    asyncio.run(main())
    queue.close()


@pytest.mark.nightly
@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no timers that signal here")
def test_signals_at_any_moment_leave_no_ticket_unanswered() -> None:
    """In a process of its own: what measures coverage would be interrupted too, and does not survive it."""
    script = "from tests.backends.test_backends_commits import storm; storm()"
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=True, timeout=300)


def storm() -> None:
    """The main thread is interrupted hundreds of times, leading or waiting, while others and tasks commit."""
    log: list[list[Batch]] = []
    acknowledged: list[Batch] = []
    lost: list[Batch] = []
    stop = threading.Event()

    def commit(batches: list[Batch], outcomes: list[Outcome]) -> None:
        try:
            outcomes.extend(None for _ in batches)
            time.sleep(0.0001)
            log.append(batches)  # the moment of the commit
        except BaseException:
            if not (log and log[-1] is batches):
                outcomes.clear()
            raise

    queue = CommitQueue(commit)

    def work(k: int) -> None:
        n = 0
        while not stop.is_set():
            n += 1
            assert queue.submit(named(f"{k} {n}")).wait() is None
            acknowledged.append(named(f"{k} {n}"))

    async def tasks() -> None:
        async def task(k: int) -> None:
            n = 0
            while not stop.is_set():
                n += 1
                assert await queue.submit(named(f"task {k} {n}")).watch() is None
                acknowledged.append(named(f"task {k} {n}"))

        await asyncio.gather(*(task(k) for k in range(4)))

    class Interrupt(BaseException):
        pass

    armed = False

    def interrupt(*_: object) -> None:
        nonlocal armed
        if armed:
            armed = False  # another must not come in the middle of this one
            raise Interrupt

    previous = signal.signal(signal.SIGALRM, interrupt)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(0.0005)
    started = threads(lambda: work(1), lambda: work(2), lambda: asyncio.run(tasks()))
    interrupts = 0
    end = time.monotonic() + 1.5
    n = 0
    try:
        while time.monotonic() < end or (interrupts <= 50 and time.monotonic() < end + 120):
            n += 1
            ticket = queue.submit(named(f"main {n}"))
            # Once each time: a machine that is slower than the timer would never get anywhere.
            signal.setitimer(signal.ITIMER_REAL, random.uniform(0.00005, 0.002))
            try:
                armed = True
                assert ticket.wait() is None
                armed = False
                acknowledged.append(ticket.batch)
            except Interrupt:
                armed = False
                interrupts += 1
                lost.append(ticket.batch)
    finally:
        armed = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
        stop.set()
        join(started)
        sys.setswitchinterval(interval)
    queue.close()
    assert interrupts > 50
    committed = Counter(batch for group in log for batch in group)
    assert all(committed[batch] == 1 for batch in acknowledged)
    assert all(committed[batch] <= 1 for batch in lost)
    assert queue._leader is None


def test_closing_waits_for_what_is_queued(recorder: Recorder) -> None:
    queue = CommitQueue(recorder, "here")
    recorder.gate.clear()
    started = threads(queue.submit(named("a")).wait)
    assert recorder.entered.wait(WAIT)
    started += threads(queue.submit(named("b")).wait)
    until(lambda: len(queue._queued) == 1)
    started += threads(queue.close)
    until(lambda: queue._closed)
    with pytest.raises(UnavailableError, match="closed"):
        queue.submit(named("c")).wait()
    recorder.gate.set()
    join(started)
    assert [batch for batch in recorder.committed if batch] == [named("a"), named("b")]
    queue.close()


def test_after_closing_tasks_are_refused_too(recorder: Recorder) -> None:
    queue = CommitQueue(recorder, "here")
    queue.close()

    async def main() -> None:
        with pytest.raises(UnavailableError, match="closed"):
            queue.submit(named("c")).watch()

    asyncio.run(main())


def test_the_worker_ends_with_a_queue_that_nobody_closed(recorder: Recorder) -> None:
    def use() -> tuple[WorkerThread, weakref.ref[CommitQueue]]:
        queue = CommitQueue(recorder)

        async def main() -> None:
            await queue.submit(named("a")).watch()

        asyncio.run(main())
        until(lambda: queue._leader is None)
        assert queue._worker is not None
        return queue._worker._thread, weakref.ref(queue)

    worker, reference = use()
    gc.collect()
    until(lambda: reference() is None)
    worker.join(WAIT)
    assert not worker.is_alive()
