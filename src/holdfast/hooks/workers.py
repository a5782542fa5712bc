"""Threads for hooks: daemons, so that a hook that hangs does not keep the program from ending."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from queue import SimpleQueue

Task = Callable[[], None]


class WorkerThreads:
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
        self._threads: list[threading.Thread] = []

    def start(self, task: Task) -> None:
        """Run a task in the next free thread."""
        if not self._idle.acquire(blocking=False):
            with self._lock:
                if len(self._threads) < self._max_threads:
                    arguments = (self._queue, self._idle)
                    thread = threading.Thread(target=_work, args=arguments, name=self._name, daemon=True)
                    self._threads.append(thread)
                    thread.start()
        self._queue.put(task)

    def close(self) -> None:
        """End the threads when their tasks are done. Some may never be."""
        with self._lock:
            _end(self._queue, self._threads)
            self._threads.clear()


def _end(queue: SimpleQueue[Task | None], threads: list[threading.Thread]) -> None:
    for _ in threads:
        queue.put(None)


def _work(queue: SimpleQueue[Task | None], idle: threading.Semaphore) -> None:
    while (task := queue.get()) is not None:
        task()
        del task  # what it holds is not kept until the next one comes
        idle.release()
