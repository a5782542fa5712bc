"""Calls between threads and event loops: how often a loop is woken, and that no call gets lost."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from holdfast.backends.runtime.loop_thread import LoopThread, inbox_of

WAIT = 60.0


class Wakes:
    """Counts how often a loop is woken by other threads."""

    def __init__(self, loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        wake = loop.call_soon_threadsafe

        def counted(*arguments: Any) -> asyncio.Handle:
            self.count += 1
            return wake(*arguments)

        monkeypatch.setattr(loop, "call_soon_threadsafe", counted)


def test_calls_of_one_turn_wake_the_other_loop_once(monkeypatch: pytest.MonkeyPatch) -> None:
    other = LoopThread("other")
    wakes = Wakes(other.loop, monkeypatch)
    made: list[int] = []
    done = threading.Event()

    def call(number: int) -> None:
        made.append(number)
        if len(made) == 50:
            done.set()

    async def task(number: int) -> None:
        inbox = inbox_of(other.loop)
        inbox.add(lambda: call(number))
        inbox_of(asyncio.get_running_loop()).wake_after_turn(inbox)

    async def main() -> None:
        await asyncio.gather(*map(task, range(50)))

    asyncio.run(main())
    assert done.wait(WAIT)
    assert made == list(range(50))
    assert wakes.count == 1
    other.stop()


def test_no_call_of_many_threads_gets_lost() -> None:
    other = LoopThread("other")
    inbox = inbox_of(other.loop)
    made: list[int] = []
    done = threading.Event()

    def call(number: int) -> None:
        made.append(number)
        if len(made) == 8 * 500:
            done.set()

    def work(first: int) -> None:
        for number in range(first, first + 500):
            inbox.add(lambda number=number: call(number))  # type: ignore[misc]
            inbox.wake()

    threads = [threading.Thread(target=work, args=(500 * each,)) for each in range(8)]
    for thread in threads:
        thread.start()
    assert done.wait(WAIT)
    assert sorted(made) == list(range(8 * 500))
    for thread in threads:
        thread.join()
    other.stop()


def test_a_loop_that_was_closed_makes_no_calls() -> None:
    closed = asyncio.new_event_loop()
    inbox = inbox_of(closed)
    made: list[str] = []
    inbox.add(lambda: made.append("a"))
    closed.close()
    inbox.wake()
    inbox.wake()
    assert made == []


def test_a_wake_up_that_a_signal_interrupted_is_not_taken_for_done(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.new_event_loop()
    inbox, called = inbox_of(loop), list[int]()

    def interrupt(_: object) -> None:
        raise KeyboardInterrupt

    inbox.add(lambda: called.append(1))
    with monkeypatch.context() as patch:
        patch.setattr(loop, "call_soon_threadsafe", interrupt)
        with pytest.raises(KeyboardInterrupt):
            inbox.wake()
    inbox.add(lambda: called.append(2))
    inbox.wake()
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    assert called == [1, 2]
