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

from holdfast.backends.runtime.background import TaskWork, ThreadWork
from holdfast.backends.runtime.drivers import arun, run
from holdfast.backends.runtime.threads import WorkerThread
from holdfast.engine.types import Progress
from holdfast.errors import (
    ConflictError,
    CorruptError,
    HoldfastError,
    NotFoundError,
    TransientError,
)
from holdfast.maintenance.jobs.builtin import CREDENTIALS, JobTypes
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

    def _is_over(self) -> bool:
        raise NotImplementedError

    async def round(self) -> float:
        """Run the jobs that are due, one after another. Returns the seconds until the next check."""
        try:
            if not self._has_default and CREDENTIALS in self._table.kinds:
                await self._table.add_default()
                self._has_default = True
            for job in await self._table.due():
                if self._is_over():
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
                self._table, job.name, only_due=True, progress=self._progress, stopping=self._is_over, life=self._life
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


class JobRunner(ThreadWork, _RunnerBase):
    """Runs jobs in a thread: this one with `work`, or one of its own with `start` or a `with` block."""

    name, title, log = "holdfast-jobs", "runner of jobs", _log

    def _prepare(self) -> None:
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
            while not self._is_over():
                pause = run(self.round())
                while pause > 0 and not self._is_over():
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
        while working.is_set() and not self._is_over():
            with suppress(Empty):
                self._timers_wakeup.get(timeout=run(self.fire_timers()))

    def run_due(self) -> None:
        """Run what is due now."""
        run(self.fire_timers())
        run(self.round())

    def _wake(self) -> None:
        self._wakeup.put(None)
        self._timers_wakeup.put(None)


class AsyncJobRunner(TaskWork, _RunnerBase):
    """Runs jobs in a task: `await runner.work()`, or an `async with` block."""

    name, title = "holdfast-jobs", "runner of jobs"

    async def work(self) -> None:
        """Run jobs when they are due, until `stop`. Timers have a task of their own: a job may take hours."""
        timers = asyncio.create_task(self._work_on_timers(), name="holdfast-timers")
        try:
            while not self._is_over():
                await self._nap(await arun(self.round()))
        finally:
            timers.cancel()
            await asyncio.wait([timers])

    async def _work_on_timers(self) -> None:
        while not self._is_over():
            await self._nap(await arun(self.fire_timers()))

    async def _nap(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._woken.wait()
