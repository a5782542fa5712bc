"""Work that goes on in the background of a program: in a thread, or in a task of asyncio, from `start` to `stop`."""

from __future__ import annotations

import asyncio
import logging
import threading
from functools import cached_property
from typing import ClassVar, Self

from holdfast.backends.runtime.threads import WorkerThread
from holdfast.errors import InvalidError


class ThreadWork:
    """Works in a thread: this one with `work`, or one of its own with `start` or a `with` block."""

    name: ClassVar[str]
    """The name of the thread."""
    title: ClassVar[str]
    """What people call it."""
    log: ClassVar[logging.Logger]
    _stopped: bool
    _thread: WorkerThread | None = None
    _failure: BaseException | None = None

    def work(self) -> None:
        """Work until `stop`, or until the program ends."""
        raise NotImplementedError

    def _wake(self) -> None:
        """Have `work` look whether it is over. A signal handler may call it."""
        raise NotImplementedError

    def start(self) -> Self:
        """Work in a thread of its own. It ends with `stop`, and when the program does."""
        if self._thread is not None:
            raise InvalidError(f"the {self.title} is running already")
        self._stopped = False
        self._thread = WorkerThread(self.name, self._work_in_thread, daemon=False)
        return self

    def stop(self, *, wait: bool = True) -> None:
        """Stop: what is being done ends before its next step, and is gone on with later. Without `wait` this returns at
        once, as a signal handler must. An error of the thread is raised."""
        self._stopped = True
        self._wake()
        thread = self._thread
        if wait and thread is not None and not thread.is_current:
            thread.join()
            self._thread = None
            failure, self._failure = self._failure, None
            if failure is not None:
                raise failure

    def _is_over(self) -> bool:
        # Python waits for this thread at the end of the program, so it must notice that.
        return self._stopped or not threading.main_thread().is_alive()

    def _work_in_thread(self) -> None:
        try:
            self.work()
        except BaseException as error:  # noqa: BLE001 - stop() raises it
            self.log.error("the %s ended: %s", self.title, error)
            self._failure = error

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.stop()


class TaskWork:
    """Works in a task: `await work()`, or in an `async with` block."""

    name: ClassVar[str]
    """The name of the task."""
    title: ClassVar[str]
    """What people call it."""
    _stopped: bool
    _task: asyncio.Task[None] | None = None

    @cached_property
    def _woken(self) -> asyncio.Event:
        return asyncio.Event()

    async def work(self) -> None:
        """Work until `stop`."""
        raise NotImplementedError

    def start(self) -> Self:
        """Work in a new task."""
        if self._task is not None:
            raise InvalidError(f"the {self.title} is running already")
        self._stopped = False
        self._woken.clear()
        self._task = asyncio.get_running_loop().create_task(self.work(), name=self.name)
        return self

    async def stop(self) -> None:
        """Stop: what is being done ends before its next step, and is gone on with later."""
        self._stopped = True
        self._woken.set()
        task, self._task = self._task, None
        if task is not None:
            await task

    def _is_over(self) -> bool:
        return self._stopped

    async def __aenter__(self) -> Self:
        return self.start()

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        await self.stop()
