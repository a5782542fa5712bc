"""One run of a job, under a lease. Its start and its end are recorded.

A thread renews the lease, so that others do not presume the runner dead during a long call into the store. Before each
access to the store the run checks whether it still has the lease, and whether it is to stop.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import socket
import threading
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from holdfast.backends.interface import BlockingCall, Suspension
from holdfast.backends.runtime.drivers import drive, run
from holdfast.backends.runtime.threads import Ticker
from holdfast.engine.leases import Lease
from holdfast.engine.types import Progress
from holdfast.errors import ConflictError, HoldfastError, InvalidError, TransientError
from holdfast.maintenance.jobs.job import Job, JobRun, retry_after
from holdfast.maintenance.jobs.jobs import JobTable
from holdfast.maintenance.jobs.types import JobResult, JobType
from holdfast.security.handle import HasHandle

T = TypeVar("T")

LIFE = 60.0
"""The seconds for which the lease of a job is valid without renewal."""

_MAX_TEXT = 2000
"""The number of characters of a summary or an error that are stored."""

_MAX_MARK = 32_000


class JobStopped(BaseException):
    """The job is to end here. Not an `Exception`, so that the error handling of a job does not catch it."""


@dataclass(frozen=True, slots=True)
class RunEnd:
    """The end of a run."""

    job: Job
    run: JobRun
    error: Exception | None = None


class JobNotDue(Exception):
    """The job is not due: another runner ran it, or it was changed."""


async def run_job(
    table: JobTable,
    name: str,
    *,
    only_due: bool,
    progress: Progress | None = None,
    stopping: Callable[[], bool] = bool,
    life: float = LIFE,
) -> RunEnd:
    """Run a job. `ConflictError` if another runner does; `JobNotDue` if `only_due`, and it is not."""
    lease = Lease(table.context, table.line, f"job {name}", life)
    await table.get(name)
    holder = LeaseHolder(lease, life, stopping)
    try:
        await lease.acquire()
        job = await _start(table, name, lease, only_due)
        execution = JobExecution(job, table.host._for_jobs(), holder, progress)
        holder.after_renewal = lambda: run(_store_mark(table, execution))
        with holder:
            outcome, error = await _work(table, execution)
        table.context.metrics.count("job_runs_total", job.kind, outcome.outcome)
        return await _end(table, execution, outcome, error)
    finally:
        holder.end()
        if not holder.lost:
            await lease.release()


async def _start(table: JobTable, name: str, lease: Lease, only_due: bool) -> Job:
    """Record the start of the run."""
    while True:
        job = await table.get(name)
        now = table.context.clock()
        if only_due and (job.paused or not 0 < job.due_ns <= now):
            raise JobNotDue
        new = JobRun(started_ns=now, by=f"{socket.gethostname()} {os.getpid()}")
        runs = tuple(_mark_killed(run, now) for run in job.runs)
        started = job.changed(runs=(new, *runs))
        # A read may be stale; the conditions are not.
        failed = await table.context.backend.apply([lease.condition(), job.unchanged(), started.put()])
        if failed is None:
            return started
        if failed == 0:
            raise _lost(name)


def _mark_killed(run: JobRun, now: int) -> JobRun:
    """Mark a run without an end as killed: its process is dead, since its lease was free."""
    return msgspec.structs.replace(run, outcome="killed", ended_ns=now) if run.outcome == "running" else run


async def _work(table: JobTable, execution: JobExecution) -> tuple[JobRun, Exception | None]:
    """Do the work. The exception of a signal or of a cancelled task is recorded and raised."""
    start = execution.job.runs[0]
    error: Exception | None = None
    fields: dict[str, Any]
    try:
        kind = table.kinds.get(execution.job.kind)
        kind.check(execution.settings)
        fields = _result(await _call(kind, execution))
    except JobStopped:
        if execution.holder.lost:
            raise _lost(execution.name) from None
        fields = {"outcome": "stopped"}
    except Exception as caught:  # noqa: BLE001 - the error of a job is recorded; callers raise it
        error = caught
        code = caught.code if isinstance(caught, HoldfastError) else "internal"
        message = str(caught) if isinstance(caught, HoldfastError) else f"{type(caught).__name__}: {caught}"
        fields = {"outcome": "failed", "error": message[:_MAX_TEXT], "code": code}
    except BaseException:
        execution.holder.end()
        if not execution.holder.lost:
            await _end(table, execution, _ended_run(table, start, outcome="stopped"), None)
        raise
    return _ended_run(table, start, **fields), error


async def _call(kind: JobType, execution: JobExecution) -> object:
    if inspect.iscoroutinefunction(kind.work):
        return await run_with_checks(kind.work(execution), execution.holder)
    function = _FunctionCall(kind, execution)
    call: BlockingCall[object] = BlockingCall(function.work)
    try:
        return await call
    except BaseException:
        # Cancelling a task does not end its worker thread: that is asked to stop, and waited for.
        if function.is_running_after_cancel():
            execution.holder.cancelled = True
            try:
                await BlockingCall(function.ended.wait)
            except BaseException:
                execution.holder.lost = True  # it continues without the lease, which is not released
                raise
        raise


class _FunctionCall:
    """The call of a plain function that does a job, perhaps in another thread."""

    def __init__(self, kind: JobType, execution: JobExecution) -> None:
        self._kind = kind
        self._execution = execution
        self._lock = threading.Lock()
        self._state = ""
        self.ended = threading.Event()

    def work(self) -> object:
        """Call the function, unless it was cancelled before."""
        with self._lock:
            if self._state:
                return None
            self._state = "started"
        try:
            return self._kind.work(self._execution)
        finally:
            self.ended.set()

    def is_running_after_cancel(self) -> bool:
        """Cancel the call if it has not started; return whether the function is running."""
        with self._lock:
            started = self._state == "started"
            self._state = self._state or "cancelled"
        return started and not self.ended.is_set()


def _result(found: object) -> dict[str, Any]:
    if isinstance(found, JobResult):
        return {"outcome": "ok" if found.ok else "findings", "summary": found.summary[:_MAX_TEXT]}
    return {"outcome": "ok", "summary": "" if found is None else str(found)[:_MAX_TEXT]}


def _ended_run(table: JobTable, start: JobRun, **fields: Any) -> JobRun:
    return msgspec.structs.replace(start, ended_ns=table.context.clock(), **fields)


async def _store_mark(table: JobTable, execution: JobExecution) -> None:
    """Store the mark of the run."""
    job = await table.find(execution.name)
    if job is not None and execution.is_run_of(job) and job.mark != execution.mark:
        # Skipped if another changed the job: there is a next time.
        await table.context.backend.apply([job.unchanged(), job.changed(mark=execution.mark).put()])


async def _end(table: JobTable, execution: JobExecution, ended: JobRun, error: Exception | None) -> RunEnd:
    """Record the end of the run and the next time, and release the lease, in one batch."""
    job, lease = execution.job, execution.holder.lease
    while True:
        current = await table.find(job.name)
        if current is None:
            return RunEnd(job, ended, error)  # it was removed
        runs = tuple(ended if run.outcome == "running" else run for run in current.runs)
        mark = execution.mark if ended.outcome in ("stopped", "failed") and execution.is_run_of(current) else ""
        new = current.changed(runs=runs, mark=mark, **_after(current, ended, table.context.clock()))
        failed = await table.context.backend.apply([lease.condition(), current.unchanged(), new.put(), lease.end()])
        if failed is None:
            return RunEnd(new, ended, error)
        if failed == 0:
            try:
                await lease.renew()  # it is still valid if only the answer to the last renewal was lost
            except ConflictError:
                raise _lost(job.name) from None


def _after(job: Job, ended: JobRun, now: int) -> dict[str, int]:
    """Return when a job is due after a run, and the number of its failures."""
    match ended.outcome:
        case "stopped":
            return {}  # it is still due
        case "failed":
            failures = job.failures + 1
            return {"failures": failures, "due_ns": now + retry_after(failures) if job.schedule else 0}
        case "findings":  # a retry would find the same
            return {"failures": job.failures + 1, "due_ns": job.next_due(now)}
    return {"failures": 0, "due_ns": job.next_due(now)}


def _lost(name: str) -> ConflictError:
    return ConflictError(
        "another runner presumed this one dead, and runs the job now",
        where=f"job {name!r}",
        hint="This runner stops. The machine was busy or asleep, or its clock was set",
        code="lease-lost",
    )


class LeaseHolder:
    """Renews the lease of a running job from a thread of its own."""

    def __init__(self, lease: Lease, life: float, stopping: Callable[[], bool]) -> None:
        self.lease = lease
        self.lost: bool = False
        self.cancelled = False
        """Whether the job is to end for a reason that `stopping` does not know."""
        self._stopped = False
        self._life = life
        self._stopping = stopping
        self.after_renewal: Callable[[], None] = lambda: None
        """Called after every renewal."""
        self._lock = threading.Lock()
        self._ended = False
        self._renewed_at = self._now()
        self._ticker: Ticker | None = None

    def __enter__(self) -> None:
        self._ticker = Ticker("holdfast-job-life", self._life / 6, self._tick, daemon=False)

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.end()

    def end(self) -> None:
        """Stop renewing."""
        self._ended = True
        if self._ticker is not None:
            self._ticker.stop()

    def must_check(self) -> bool:
        """Return whether `check` has anything to do. A job is stopped only once: it may have something to release."""
        return not self._stopped and (self.lost or self.cancelled or self._stopping() or self._age() > self._life / 2)

    def check(self) -> None:
        """Raise `JobStopped` if the job is to end: it was asked to, or the lease is lost or may be."""
        if self._age() > self._life / 2:
            self.renew()  # the thread did not: the machine was asleep, or the store does not answer
            self.lost = self.lost or self._age() > self._life * 0.8
        if self.lost or self.cancelled or self._stopping():
            self._stopped = True
            raise JobStopped

    def renew(self) -> None:
        """Renew the lease."""
        with self._lock:
            if self.lost or self._ended:
                return
            try:
                run(self.lease.renew())
                self._renewed_at = self._now()
            except TransientError:
                return  # it is tried again; the job ends if that keeps failing
            except ConflictError:
                self.lost = True

    def _tick(self) -> bool:
        if not threading.main_thread().is_alive():
            return False  # this thread must not keep the program alive
        try:
            self.renew()
            with contextlib.suppress(TransientError):  # there is a next time
                self.after_renewal()
        except HoldfastError:
            self.lost = True  # the store is closed or failed, as the job will notice too
            return False
        return True

    def _age(self) -> float:
        """Return the seconds since the last renewal. The wall clock continues while a machine sleeps."""
        monotonic, wall = self._now()
        return max(monotonic - self._renewed_at[0], wall - self._renewed_at[1])

    def _now(self) -> tuple[float, float]:
        return time.monotonic(), time.time()


class JobExecution:
    """A running job, which is the argument of its function. See `holdfast.maintenance.jobs.types.JobContextBase`."""

    def __init__(self, job: Job, store: HasHandle, holder: LeaseHolder, progress: Progress | None) -> None:
        self.job = job
        self.store = store
        self.holder = holder
        self.mark = job.mark
        """The last mark of `keep`."""
        self._progress = progress

    def is_run_of(self, job: Job) -> bool:
        """Return whether this is the latest run of a stored job."""
        return bool(job.runs) and job.runs[0] == self.job.runs[0]

    def keep(self, mark: str) -> None:
        """Set a mark from which the next run can resume."""
        if len(mark) > _MAX_MARK:
            raise InvalidError(f"a mark has at most {_MAX_MARK} characters, and this has {len(mark)}")
        self.mark = mark

    @property
    def name(self) -> str:
        """The job's name."""
        return self.job.name

    @property
    def due_ns(self) -> int:
        """When it was due; 0 if it has no schedule."""
        return self.job.due_ns

    @property
    def settings(self) -> Mapping[str, Any]:
        """The settings."""
        return self.job.settings

    def progress(self, done: int, total: int | None, what: str) -> None:
        """Report the progress. Raises `JobStopped` if the job is to end."""
        if self._progress is not None:
            self._progress(done, total, what)
        if self.holder.must_check():
            self.holder.check()


async def run_with_checks(work: Coroutine[Any, Any, T], holder: LeaseHolder) -> T:
    """Await a coroutine that waits only for the store. Before each wait it is checked whether it is to end."""

    async def check_and_wait(suspension: Suspension[Any]) -> Any:
        if holder.must_check():
            await BlockingCall(holder.check)
        return await suspension

    return await drive(work, check_and_wait)
