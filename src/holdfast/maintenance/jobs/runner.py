"""Runners: run the jobs of a store when they are due.

::

    with JobRunner(store):       # in a thread of this program; `async with AsyncJobRunner(store)` as a task
        ...
    JobRunner(store).work()      # in this thread, until stop(); `holdfast jobs work` is this

Any number of runners may work on one store, in any number of processes: each time a job is due, one of them runs it.
Times that were missed while no runner worked are made up once. A job whose runner was killed is run again by another,
after a minute without a sign of life.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Self

from holdfast.backends.runtime.drivers import arun, run
from holdfast.backends.runtime.threads import WorkerThread
from holdfast.engine.types import Progress
from holdfast.errors import (
    ConflictError,
    CorruptError,
    HoldfastError,
    InvalidError,
    NotFoundError,
    TransientError,
)
from holdfast.maintenance.jobs.builtin import JobTypes
from holdfast.maintenance.jobs.execution import LIFE, JobNotDue, RunEnd, run_job
from holdfast.maintenance.jobs.job import Job, JobRun
from holdfast.maintenance.jobs.jobs import JobTable
from holdfast.maintenance.jobs.types import JobHost
from holdfast.time_parser import Duration, parse_seconds

LOOK_EVERY = 15.0
"""The longest time in seconds between two checks of the jobs, which others may have changed."""

TIMERS_EVERY = 0.5
"""The longest time in seconds between two checks of the timers of agents, which others may have set."""

_SHORTEST = 0.01

_LONGEST_NAP = 0.5
"""The longest time in seconds in which the end of the program is not noticed."""

_log = logging.getLogger("holdfast.jobs")

OnRun = Callable[[Job, JobRun], None]


class _RunnerBase:
    """The part of runners that does not wait."""

    def __init__(
        self,
        store: JobHost,
        kinds: JobTypes | None = None,
        *,
        look_every: Duration = LOOK_EVERY,
        timers_every: Duration = TIMERS_EVERY,
        life: Duration = LIFE,
        on_run: OnRun | None = None,
        progress: Progress | None = None,
    ) -> None:
        """A runner for the jobs of a store's tenant. `kinds` are the types of jobs that this program knows; jobs of
        other types are left to other runners.

        Signals of agents' timers are delivered also while a job runs; timers are checked at least every `timers_every`
        seconds.
        `life` is the time without a sign of life after which a runner is presumed dead; it must be the same for all
        runners of a store. `on_run` is called after each run, `progress` while a job runs.
        """
        self._table = JobTable(store, kinds)
        self._look_every = parse_seconds(look_every, "look_every", positive=True)
        self._timers_every = parse_seconds(timers_every, "timers_every", positive=True)
        self._life = parse_seconds(life, "life", positive=True)
        self._on_run = on_run
        self._progress = progress
        self._stopped = False
        self._timers_problem = ""
        self._has_default = False
        """Whether the store has the job that every store has."""
        self._prepare()

    def _prepare(self) -> None:
        """Create what the runner waits with."""

    def _stopping(self) -> bool:
        return self._stopped

    async def round(self) -> float:
        """Run the jobs that are due, one after another. Returns the seconds until the next check."""
        try:
            if not self._has_default:
                await self._table.add_default()
                self._has_default = True
            for job in await self._table.due():
                if self._stopping():
                    break
                await self._run(job)
            return await self._pause()
        except TransientError as error:
            _log.warning("the jobs could not be read; the next attempt is in %g s: %s", self._look_every, error)
            return self._look_every

    async def fire_timers(self) -> float:
        """Deliver the timers that are due. Returns the seconds until the next check of timers."""
        from holdfast.agents.steps.timers import fire_timers, next_due  # most programs have no timers

        handle = self._table.store
        try:
            await fire_timers(handle)
            due = await next_due(handle)
        except HoldfastError as error:
            if str(error) != self._timers_problem:  # once, since runners look often
                _log.warning("the timers could not be read or delivered: %s", error)
            self._timers_problem = str(error)
            return self._timers_every
        self._timers_problem = ""
        ahead = self._timers_every if due is None else (due - handle.now()) / 1e9
        return max(min(ahead, self._timers_every), _SHORTEST)

    async def _run(self, job: Job) -> None:
        try:
            end = await run_job(
                self._table, job.name, only_due=True, progress=self._progress, stopping=self._stopping, life=self._life
            )
        except (JobNotDue, NotFoundError):
            return  # another ran it, or it was removed
        except CorruptError as error:
            _log.warning("the job %s is skipped: %s", job.name, error)
            return
        except ConflictError as conflict:
            if conflict.code == "lease-lost":
                _log.warning("%s", conflict)
            return  # another runs it
        _log_end(end)
        if self._on_run is not None:
            self._on_run(end.job, end.run)

    async def _pause(self) -> float:
        now = self._table.context.clock()
        due = [job.due_ns for job in await self._table.readable() if job.due_ns and not job.paused]
        # A job that is due and was not run belongs to another runner.
        ahead = [time - now for time in due if time > now]
        return min(self._look_every, min(ahead, default=10**18) / 1e9)


def _log_end(end: RunEnd) -> None:
    name, outcome = end.job.name, end.run.outcome
    if outcome == "failed":
        # Any other error than one of this library is a bug in the job: log its traceback.
        error = end.error if end.run.code == "internal" else None
        _log.error("job %s failed: %s", name, end.run.error, exc_info=error)
    elif outcome == "findings":
        _log.warning("job %s: %s", name, end.run.summary)
    else:
        _log.info("job %s: %s %s", name, outcome, end.run.summary)


class JobRunner(_RunnerBase):
    """Runs jobs in a thread: this one with `work`, or one of its own with `start` or a `with` block."""

    def _prepare(self) -> None:
        self._thread: WorkerThread | None = None
        self._failure: BaseException | None = None
        # Queues and not events: they may be rung from a signal handler.
        self._wakeup: SimpleQueue[None] = SimpleQueue()
        self._timers_wakeup: SimpleQueue[None] = SimpleQueue()

    def work(self) -> None:
        """Run jobs when they are due, until `stop`, or until the program ends. Timers have a thread of their own: a job
        may take hours."""
        working = threading.Event()
        working.set()
        timers = WorkerThread("holdfast-timers", self._work_on_timers, working, daemon=False)
        try:
            while not self._stopping():
                pause = run(self.round())
                while pause > 0 and not self._stopping():
                    nap = min(pause, _LONGEST_NAP)
                    try:
                        self._wakeup.get(timeout=nap)
                    except Empty:
                        pause -= nap
        finally:
            working.clear()
            self._timers_wakeup.put(None)
            timers.join()

    def _work_on_timers(self, working: threading.Event) -> None:
        while working.is_set() and not self._stopping():
            with suppress(Empty):
                self._timers_wakeup.get(timeout=run(self.fire_timers()))

    def run_due(self) -> None:
        """Run what is due now."""
        run(self.fire_timers())
        run(self.round())

    def start(self) -> Self:
        """Work in a thread of its own. It ends with `stop`, and when the program does: then between two steps of a job,
        which is run again by the next runner."""
        if self._thread is not None:
            raise InvalidError("this runner is running already")
        self._stopped = False
        self._thread = WorkerThread("holdfast-jobs", self._work_in_thread, daemon=False)
        return self

    def stop(self, *, wait: bool = True) -> None:
        """Stop; a running job stops between two of its steps. Without `wait` this returns at once, as a signal handler
        must. An error of the thread is raised."""
        self._stopped = True
        self._wakeup.put(None)
        self._timers_wakeup.put(None)
        thread = self._thread
        if wait and thread is not None and not thread.is_current:
            thread.join()
            self._thread = None
            failure, self._failure = self._failure, None
            if failure is not None:
                raise failure

    def _work_in_thread(self) -> None:
        try:
            self.work()
        except BaseException as error:  # noqa: BLE001 - stop() raises it
            _log.error("the runner of jobs ended: %s", error)
            self._failure = error

    def _stopping(self) -> bool:
        # Python waits for this thread at the end of the program, so it must notice that.
        return self._stopped or not threading.main_thread().is_alive()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.stop()


class AsyncJobRunner(_RunnerBase):
    """Runs jobs in a task: `await runner.work()`, or an `async with` block."""

    def _prepare(self) -> None:
        self._task: asyncio.Task[None] | None = None
        self._woken = asyncio.Event()

    async def work(self) -> None:
        """Run jobs when they are due, until `stop`. Timers have a task of their own: a job may take hours."""
        timers = asyncio.create_task(self._work_on_timers(), name="holdfast-timers")
        try:
            while not self._stopping():
                await self._nap(await arun(self.round()))
        finally:
            timers.cancel()
            await asyncio.wait([timers])

    async def _work_on_timers(self) -> None:
        while not self._stopping():
            await self._nap(await arun(self.fire_timers()))

    async def _nap(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._woken.wait()

    def start(self) -> Self:
        """Work in a new task."""
        if self._task is not None:
            raise InvalidError("this runner is running already")
        self._stopped = False
        self._woken.clear()
        self._task = asyncio.get_running_loop().create_task(self.work(), name="holdfast-jobs")
        return self

    async def stop(self) -> None:
        """Stop; a running job stops between two of its steps."""
        self._stopped = True
        self._woken.set()
        task, self._task = self._task, None
        if task is not None:
            await task

    async def __aenter__(self) -> Self:
        return self.start()

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        await self.stop()
