"""Runs the jobs of a store when they are due.

::

    with Runner(store):       # in a thread of this program; `async with AsyncRunner(store)` as a task
        ...
    Runner(store).work()      # in this thread, until stop(); `holdfast jobs work` is this

Any number of runners may work on one store, in any number of processes: each time a job is due, one runs it. Times that
were missed while none worked are made up for once. What a runner that was killed had begun is run again by another,
after a minute without a sign of life.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Self

from holdfast.backends.runtime.drivers import arun, run
from holdfast.errors import ConflictError, CorruptError, InvalidError, NotFoundError, TransientError
from holdfast.maintenance.jobs.execution import LIFE, JobNotDue, RunEnd, run_job
from holdfast.maintenance.jobs.jobs import Job, JobRun, JobTable, Tell
from holdfast.maintenance.jobs.registry import JobTypes
from holdfast.maintenance.jobs.types import JobHost

LOOK_EVERY = 15.0
"""After how many seconds at most a runner looks again which jobs there are. Others may have changed them, and clocks be
set."""

_NAP = 0.5

_log = logging.getLogger("holdfast.jobs")

OnRun = Callable[[Job, JobRun], None]


class _Work:
    """What runners do, whichever way they wait."""

    def __init__(
        self,
        store: JobHost,
        kinds: JobTypes | None = None,
        *,
        look_every: float = LOOK_EVERY,
        life: float = LIFE,
        on_run: OnRun | None = None,
        progress: Tell | None = None,
    ) -> None:
        """A runner for a store's jobs, those of its tenant. `kinds` are the kinds of jobs that this program knows; jobs
        of others are left to other runners.

        `life` is after how many seconds without a sign of life a runner is taken for dead: all runners of a store agree
        on it. `on_run` is called after each run, `progress` while a job runs.
        """
        if not look_every > 0 or not life > 0:
            raise InvalidError("look_every and life are numbers of seconds")
        self._book = JobTable(store, kinds)
        self._look_every = look_every
        self._life = life
        self._on_run = on_run
        self._progress = progress
        self._stopped = False
        self._prepare()

    def _prepare(self) -> None:
        """Make what it takes to wait."""

    def _stopping(self) -> bool:
        return self._stopped

    async def round(self) -> float:
        """Run what is due, one after another. Returns for how many seconds there is nothing to do."""
        try:
            for job in await self._book.due():
                if self._stopping():
                    break
                await self._run(job)
            return await self._pause()
        except TransientError as error:
            _log.warning("the jobs could not be looked at, and are again in %g s: %s", self._look_every, error)
            return self._look_every

    async def _run(self, job: Job) -> None:
        try:
            ended = await run_job(
                self._book, job.name, only_due=True, tell=self._progress, stopping=self._stopping, life=self._life
            )
        except (JobNotDue, NotFoundError):
            return  # or it was removed meanwhile
        except CorruptError as error:
            _log.warning("the job %s is left out: %s", job.name, error)
            return
        except ConflictError as conflict:
            if conflict.code == "lease-lost":
                _log.warning("%s", conflict)
            return  # another runs it
        _note(ended)
        if self._on_run is not None:
            self._on_run(ended.job, ended.run)

    async def _pause(self) -> float:
        now = self._book.ground.clock()
        due = [job.due_ns for job in await self._book.sound() if job.due_ns and not job.paused]
        # One that is due and was not run is another's: to be looked at again, but not at once.
        ahead = [time - now for time in due if time > now]
        return min(self._look_every, min(ahead, default=10**18) / 1e9)


def _note(ended: RunEnd) -> None:
    name, outcome = ended.job.name, ended.run.outcome
    if outcome == "failed":
        # A failure that is no error of the library is a mistake in the job: where it happened is wanted.
        wanted = ended.error if ended.run.code == "internal" else None
        _log.error("job %s failed: %s", name, ended.run.error, exc_info=wanted)
    elif outcome == "findings":
        _log.warning("job %s: %s", name, ended.run.summary)
    else:
        _log.info("job %s: %s %s", name, outcome, ended.run.summary)


class JobRunner(_Work):
    """Runs jobs in a thread: this one with `work`, or one of its own with `start` or a `with` block."""

    def _prepare(self) -> None:
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None
        self._bell: SimpleQueue[None] = SimpleQueue()

    def work(self) -> None:
        """Run what is due, until `stop`, or until the program ends."""
        while not self._stopping():
            pause = run(self.round())
            while pause > 0 and not self._stopping():
                try:
                    # A queue and not an event: it may be rung from a signal handler.
                    self._bell.get(timeout=min(pause, _NAP))
                except Empty:
                    pause -= _NAP

    def run_due(self) -> None:
        """Run what is due now."""
        run(self.round())

    def start(self) -> Self:
        """Work in a thread of its own. It ends with `stop`, and when the program does: then between two steps of a job,
        which is run again by the next runner."""
        if self._thread is not None:
            raise InvalidError("this runner works already")
        self._stopped = False
        self._thread = threading.Thread(target=self._work_in_thread, name="holdfast-jobs")
        self._thread.start()
        return self

    def stop(self, *, wait: bool = True) -> None:
        """End: a job that runs is asked to stop between two of its steps. Without `wait` this only asks, as a signal
        handler may. What the thread failed with, if it did, is raised."""
        self._stopped = True
        self._bell.put(None)
        thread = self._thread
        if wait and thread is not None and thread is not threading.current_thread():
            thread.join()
            self._thread = None
            failure, self._failure = self._failure, None
            if failure is not None:
                raise failure

    def _work_in_thread(self) -> None:
        try:
            self.work()
        except BaseException as error:  # noqa: BLE001 - there is nobody above a thread; raised by stop()
            _log.error("the runner of jobs ended: %s", error)
            self._failure = error

    def _stopping(self) -> bool:
        # A thread that is no daemon is waited for at the end of the program: it must see that the end came.
        return self._stopped or not threading.main_thread().is_alive()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.stop()


class AsyncJobRunner(_Work):
    """Runs jobs in a task: `await runner.work()`, or an `async with` block."""

    def _prepare(self) -> None:
        self._task: asyncio.Task[None] | None = None
        self._woken = asyncio.Event()

    async def work(self) -> None:
        """Run what is due, until `stop`."""
        while not self._stopping():
            pause = await arun(self.round())
            if not self._stopping():
                try:
                    async with asyncio.timeout(pause):
                        await self._woken.wait()
                except TimeoutError:
                    continue

    def start(self) -> Self:
        """Work in a task of its own."""
        if self._task is not None:
            raise InvalidError("this runner works already")
        self._stopped = False
        self._woken.clear()
        self._task = asyncio.get_running_loop().create_task(self.work(), name="holdfast-jobs")
        return self

    async def stop(self) -> None:
        """End: a job that runs is asked to stop between two of its steps."""
        self._stopped = True
        self._woken.set()
        task, self._task = self._task, None
        if task is not None:
            await task

    async def __aenter__(self) -> Self:
        return self.start()

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        await self.stop()
