"""One run of a job: under a lease, from its start, which is noted, to its end, which is noted too.

Whoever runs a job shows life from a thread of its own, so that a long call into the store does not make others take it
for dead. Before each access to the store it looks whether it still has the lease, and whether it is to stop.
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

from holdfast.backends.interface import BlockingCall
from holdfast.backends.runtime.drivers import run
from holdfast.engine.leases import Lease
from holdfast.engine.types import Progress
from holdfast.errors import ConflictError, HoldfastError, InvalidError, TransientError
from holdfast.maintenance.jobs.jobs import Job, JobRun, JobTable, retry_after
from holdfast.maintenance.jobs.types import JobResult, JobType
from holdfast.security.handle import HasHandle

T = TypeVar("T")

LIFE = 60.0
"""For how many seconds the lease of a job holds without a sign of life."""

_MAX_TEXT = 2000
"""How many characters of a summary or an error are kept."""

_MAX_MARK = 32_000


class JobStopped(BaseException):
    """A job is to end here. Not an error, so that what a job does about errors does not keep it from ending."""


@dataclass(frozen=True, slots=True)
class RunEnd:
    """How a run ended."""

    job: Job
    run: JobRun
    error: Exception | None = None


class JobNotDue(Exception):
    """Another ran the job, or it was changed."""


async def run_job(
    book: JobTable,
    name: str,
    *,
    only_due: bool,
    tell: Progress | None = None,
    stopping: Callable[[], bool] = bool,
    life: float = LIFE,
) -> RunEnd:
    """Run a job. `ConflictError` if another does; `JobNotDue` if it is to run only if it is due, and is not."""
    lease = Lease(book.ground, book.line, f"job {name}", life)
    await book.get(name)
    holding = JobLease(lease, life, stopping)
    try:
        await lease.acquire()
        job = await _start(book, name, lease, only_due)
        running = JobExecution(job, book.host._for_jobs(), holding, tell)
        holding.also = lambda: run(_mark(book, running))
        with holding:
            outcome, error = await _worked(book, running)
        return await _end(book, running, outcome, error)
    finally:
        holding.end()
        if not holding.lost:
            await lease.release()


async def _start(book: JobTable, name: str, lease: Lease, only_due: bool) -> Job:
    """Note that the job began."""
    while True:
        job = await book.get(name)
        now = book.ground.clock()
        if only_due and (job.paused or not 0 < job.due_ns <= now):
            raise JobNotDue
        begun = JobRun(started_ns=now, by=f"{socket.gethostname()} {os.getpid()}")
        runs = tuple(_buried(run, now) for run in job.runs)
        started = job.changed(runs=(begun, *runs))
        # A read may be behind what others did; the conditions are not.
        failed = await book.ground.backend.apply([lease.condition(), job.unchanged(), started.put()])
        if failed is None:
            return started
        if failed == 0:
            raise _lost(name)


def _buried(run: JobRun, now: int) -> JobRun:
    """A run that nobody ended: whoever did it is dead, since the lease could be had."""
    return msgspec.structs.replace(run, outcome="killed", ended_ns=now) if run.outcome == "running" else run


async def _worked(book: JobTable, running: JobExecution) -> tuple[JobRun, Exception | None]:
    """Do the work. What an end by a signal or a cancelled task raises is noted and goes on."""
    begun = running.job.runs[0]
    error: Exception | None = None
    fields: dict[str, Any]
    try:
        kind = book.kinds.get(running.job.kind)
        kind.check(running.settings)
        fields = _result(await _done(kind, running))
    except JobStopped:
        if running.holding.lost:
            raise _lost(running.name) from None
        fields = {"outcome": "stopped"}
    except Exception as caught:  # noqa: BLE001 - whatever a job fails with is noted, and raised by who wants to know
        error = caught
        code = caught.code if isinstance(caught, HoldfastError) else "internal"
        said = str(caught) if isinstance(caught, HoldfastError) else f"{type(caught).__name__}: {caught}"
        fields = {"outcome": "failed", "error": said[:_MAX_TEXT], "code": code}
    except BaseException:
        running.holding.end()
        if not running.holding.lost:
            await _end(book, running, _ended(book, begun, outcome="stopped"), None)
        raise
    return _ended(book, begun, **fields), error


async def _done(kind: JobType, running: JobExecution) -> object:
    if inspect.iscoroutinefunction(kind.work):
        return await attended(kind.work(running), running.holding)
    alone = _Alone(kind, running)
    call: BlockingCall[object] = BlockingCall(alone.work)
    try:
        return await call
    except BaseException:
        # A task that is cancelled does not end the thread that works for it: that is told to, and waited for.
        if alone.goes_on():
            running.holding.asked = True
            try:
                await BlockingCall(alone.ended.wait)
            except BaseException:
                running.holding.lost = True  # it goes on without: the lease is not given back
                raise
        raise


class _Alone:
    """A plain function that does a job, perhaps in another thread."""

    def __init__(self, kind: JobType, running: JobExecution) -> None:
        self._kind = kind
        self._running = running
        self._lock = threading.Lock()
        self._state = ""
        self.ended = threading.Event()

    def work(self) -> object:
        """Do it, unless it was given up before it began."""
        with self._lock:
            if self._state:
                return None
            self._state = "begun"
        try:
            return self._kind.work(self._running)
        finally:
            self.ended.set()

    def goes_on(self) -> bool:
        """Whether it is at work. If it has not begun, it does not."""
        with self._lock:
            begun = self._state == "begun"
            self._state = self._state or "given up"
        return begun and not self.ended.is_set()


def _result(found: object) -> dict[str, Any]:
    if isinstance(found, JobResult):
        return {"outcome": "ok" if found.ok else "findings", "summary": found.summary[:_MAX_TEXT]}
    return {"outcome": "ok", "summary": "" if found is None else str(found)[:_MAX_TEXT]}


def _ended(book: JobTable, begun: JobRun, **fields: Any) -> JobRun:
    return msgspec.structs.replace(begun, ended_ns=book.ground.clock(), **fields)


async def _mark(book: JobTable, running: JobExecution) -> None:
    """Note how far it is."""
    now_is = await book.find(running.name)
    if now_is is not None and running.began(now_is) and now_is.mark != running.mark:
        # Whoever changed it meanwhile is not disturbed: there is a next time.
        await book.ground.backend.apply([now_is.unchanged(), now_is.changed(mark=running.mark).put()])


async def _end(book: JobTable, running: JobExecution, ended: JobRun, error: Exception | None) -> RunEnd:
    """Note how it ended, when it is due again, and give the lease back: all at once."""
    job, lease = running.job, running.holding.lease
    while True:
        now_is = await book.find(job.name)
        if now_is is None:
            return RunEnd(job, ended, error)  # removed meanwhile
        runs = tuple(ended if run.outcome == "running" else run for run in now_is.runs)
        mark = running.mark if ended.outcome in ("stopped", "failed") and running.began(now_is) else ""
        new = now_is.changed(runs=runs, mark=mark, **_after(now_is, ended, book.ground.clock()))
        failed = await book.ground.backend.apply([lease.condition(), now_is.unchanged(), new.put(), lease.end()])
        if failed is None:
            return RunEnd(new, ended, error)
        if failed == 0:
            try:
                await lease.renew()  # it is still held where only the answer to the last sign of life was lost
            except ConflictError:
                raise _lost(job.name) from None


def _after(job: Job, ended: JobRun, now: int) -> dict[str, int]:
    """When a job is due after a run, and how often it has failed by then."""
    match ended.outcome:
        case "stopped":
            return {}  # it is still due
        case "failed":
            failures = job.failures + 1
            return {"failures": failures, "due_ns": now + retry_after(failures) if job.schedule else 0}
        case "findings":  # to look again at once would find the same
            return {"failures": job.failures + 1, "due_ns": job.next_due(now)}
    return {"failures": 0, "due_ns": job.next_due(now)}


def _lost(name: str) -> ConflictError:
    return ConflictError(
        "another took the runner of this job for dead, and runs it now",
        where=f"job {name!r}",
        hint="Nothing more is done here. This machine was busy or asleep, or its clock was set",
        code="lease-lost",
    )


class JobLease:
    """The lease of a job while it runs, kept alive from a thread of its own."""

    def __init__(self, lease: Lease, life: float, stopping: Callable[[], bool]) -> None:
        self.lease = lease
        self.lost = False
        self.asked = False
        """Whether the job is to end for another reason than those that `stopping` knows."""
        self._told = False
        self._life = life
        self._stopping = stopping
        self.also: Callable[[], None] = lambda: None
        """Done with every sign of life."""
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._shown = self._now()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> None:
        self._thread = threading.Thread(target=self._keep_alive, name="holdfast-job-life")
        self._thread.start()

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.end()

    def end(self) -> None:
        """Show no more signs of life."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()

    def must_look(self) -> bool:
        """Whether `look` has anything to do. A job that was told to end is not told again: it may have something to
        give back."""
        return not self._told and (self.lost or self.asked or self._stopping() or self._age() > self._life / 2)

    def look(self) -> None:
        """Raise `JobStopped` if the job is to end: it is asked to, or the lease is another's or may be."""
        if self._age() > self._life / 2:
            self.beat()  # the thread did not get to it: the machine was asleep, or the store does not answer
            self.lost = self.lost or self._age() > self._life * 0.8
        if self.lost or self.asked or self._stopping():
            self._told = True
            raise JobStopped

    def beat(self) -> None:
        """Show a sign of life."""
        with self._lock:
            if self.lost or self._ended.is_set():
                return
            try:
                run(self.lease.renew())
                self._shown = self._now()
            except TransientError:
                return  # tried again; and if it does not get better, the job ends
            except ConflictError:
                self.lost = True

    def _keep_alive(self) -> None:
        # Not for longer than the program lives: nobody waits for a thread that only says that others live.
        while not self._ended.wait(self._life / 6) and threading.main_thread().is_alive():
            try:
                self.beat()
                with contextlib.suppress(TransientError):  # there is a next time
                    self.also()
            except HoldfastError:
                self.lost = True  # the store is closed or failed, and the job hears of it too
                return

    def _age(self) -> float:
        """For how many seconds nobody can have heard of this. The clock of the wall goes on while a machine sleeps."""
        monotonic, wall = self._now()
        return max(monotonic - self._shown[0], wall - self._shown[1])

    def _now(self) -> tuple[float, float]:
        return time.monotonic(), time.time()


class JobExecution:
    """A job that runs: what its function is given. See `holdfast.maintenance.jobs.types.JobContextBase`."""

    def __init__(self, job: Job, store: HasHandle, holding: JobLease, tell: Progress | None) -> None:
        self.job = job
        self.store = store
        self.holding = holding
        self.mark = job.mark
        """How far it is, as `keep` was told last."""
        self._tell = tell

    def began(self, job: Job) -> bool:
        """Whether this is the run that a job, as it is stored, tells of."""
        return bool(job.runs) and job.runs[0] == self.job.runs[0]

    def keep(self, mark: str) -> None:
        """Have the next run know how far this one is."""
        if len(mark) > _MAX_MARK:
            raise InvalidError(f"what a job keeps has at most {_MAX_MARK} characters, and this has {len(mark)}")
        self.mark = mark

    @property
    def name(self) -> str:
        """The job's name."""
        return self.job.name

    @property
    def settings(self) -> Mapping[str, Any]:
        """Its settings."""
        return self.job.settings

    def progress(self, done: int, total: int | None, what: str) -> None:
        """Tell how far it is. Does not return if the job is to end."""
        if self._tell is not None:
            self._tell(done, total, what)
        if self.holding.must_look():
            self.holding.look()


async def attended(work: Coroutine[Any, Any, T], holding: JobLease) -> T:
    """What a coroutine returns that waits for the store only. Before each wait it is seen whether it is to end."""
    try:
        suspension = work.send(None)
        while True:
            try:
                if holding.must_look():
                    await BlockingCall(holding.look)
                value = await suspension
            except BaseException as error:  # noqa: BLE001 - goes on where it belongs
                suspension = work.throw(error)
            else:
                suspension = work.send(value)
    except StopIteration as stop:
        result: T = stop.value
        return result
