"""Threads for hooks: daemons, so that a hook that hangs does not keep the program from ending."""

from __future__ import annotations

import asyncio
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


class LoopThread:
    """An event loop in a thread, for async hooks of sync programs. Started on demand."""

    def __init__(self) -> None:
        self.reinit_locks()

    def reinit_locks(self) -> None:
        """Reinitialize in a forked child."""
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def loop(self) -> asyncio.AbstractEventLoop:
        """Return the loop."""
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=_run_loop, args=(self._loop,), name="holdfast-hook-loop", daemon=True
                )
                self._thread.start()
            return self._loop

    def close(self) -> None:
        """Cancel what is still running, and end the loop."""
        with self._lock:
            loop, thread, self._loop, self._thread = self._loop, self._thread, None, None
        if loop is not None and thread is not None:
            loop.call_soon_threadsafe(loop.stop)
            if thread is not threading.current_thread():
                thread.join(1.0)


def _run_loop(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    loop.run_forever()
    left = asyncio.all_tasks(loop)
    for task in left:
        task.cancel()
    if left:
        loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
    loop.close()
