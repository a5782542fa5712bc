"""Threads that work in the background: one, one that calls a function from time to time, and a pool."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeAlias

Task: TypeAlias = Callable[[], None]


class WorkerThread:
    """A running thread. A daemon, so that what hangs in it does not keep the program from ending, unless it must end
    in order."""

    def __init__(self, name: str, work: Callable[..., object], *arguments: Any, daemon: bool = True) -> None:
        self._thread = threading.Thread(target=work, args=arguments, name=name, daemon=daemon)
        self._thread.start()

    @property
    def is_current(self) -> bool:
        """Whether the caller runs in this thread."""
        return threading.current_thread() is self._thread

    def is_alive(self) -> bool:
        """Return whether the thread has not ended."""
        return self._thread.is_alive()

    def join(self, timeout: float | None = None) -> None:
        """Wait until the thread ends, for some seconds or as long as it takes. Does nothing in the thread itself."""
        if not self.is_current:
            self._thread.join(timeout)


class Ticker:
    """Calls a function every so many seconds in a thread, until it is stopped or the function returns False."""

    def __init__(self, name: str, seconds: float, tick: Callable[[], bool], *, daemon: bool = True) -> None:
        self._stopped = threading.Event()
        self._thread = WorkerThread(name, _run_ticks, self._stopped, seconds, tick, daemon=daemon)

    def stop(self) -> None:
        """Stop, and wait for a call in progress."""
        self._stopped.set()
        self._thread.join()


def _run_ticks(stopped: threading.Event, seconds: float, tick: Callable[[], bool]) -> None:
    while not stopped.wait(seconds) and tick():
        pass


class WorkerPool:
    """Threads that are started on demand. Their tasks raise nothing."""

    def __init__(self, name: str, most: int) -> None:
        self._name = name
        self._max_threads = most
        self.reinit_locks()
        weakref.finalize(self, _end, self._queue, self._threads)

    def reinit_locks(self) -> None:
        """Reinitialize in a forked child, which has none of the threads."""
        self._lock = threading.Lock()
        self._queue: SimpleQueue[Task | None] = SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._threads: list[WorkerThread] = []

    def start(self, task: Task) -> None:
        """Run a task in the next free thread."""
        if not self._idle.acquire(blocking=False):
            with self._lock:
                if len(self._threads) < self._max_threads:
                    self._threads.append(WorkerThread(self._name, _work, self._queue, self._idle))
        self._queue.put(task)

    def close(self) -> None:
        """End the threads when their tasks are done. Some may never be."""
        with self._lock:
            _end(self._queue, self._threads)
            self._threads.clear()


def _end(queue: SimpleQueue[Task | None], threads: list[WorkerThread]) -> None:
    for _ in threads:
        queue.put(None)


def _work(queue: SimpleQueue[Task | None], idle: threading.Semaphore) -> None:
    while (task := queue.get()) is not None:
        task()
        del task  # what it holds is not kept until the next one comes
        idle.release()
