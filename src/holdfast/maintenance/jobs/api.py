"""Operations on the jobs of a store: `store.jobs`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from holdfast.backends.runtime.drivers import AsyncApi, SyncApi, sync_and_async
from holdfast.engine.types import Progress
from holdfast.maintenance.jobs.execution import run_job
from holdfast.maintenance.jobs.jobs import Job, JobRun, JobTable
from holdfast.maintenance.jobs.registry import JobTypes
from holdfast.maintenance.jobs.types import JobHost


class JobOperations:
    """What can be done with the jobs of a store. `Jobs` and `AsyncJobs` have these as methods."""

    def __init__(self, store: JobHost, kinds: JobTypes | None = None) -> None:
        """The jobs of a store, for its tenant. `kinds` are the kinds of jobs that this program knows."""
        self._book = JobTable(store, kinds)

    @sync_and_async
    async def add(
        self,
        name: str,
        kind: str,
        *,
        schedule: str = "",
        settings: Mapping[str, Any] | None = None,
        paused: bool = False,
        replace: bool = False,
    ) -> Job:
        """Store a job: of what kind, when, and with which settings. `ConflictError` if there is one of this name,
        unless it is to be replaced: that keeps what is known of its runs.

        Without a `schedule` it runs only when it is told to. `holdfast.maintenance.jobs.schedule` says how one is
        written.
        """
        return await self._book.add(name, kind, schedule, settings, paused, replace)

    @sync_and_async
    async def get(self, name: str) -> Job:
        """A job. `NotFoundError` if there is none."""
        return await self._book.get(name)

    @sync_and_async
    async def remove(self, name: str) -> bool:
        """Forget a job. False if there is none. A run that is under way goes on to its end."""
        return await self._book.remove(name)

    @sync_and_async
    async def pause(self, name: str) -> Job:
        """Have a job run no more, until it is resumed. A run that is under way goes on to its end."""
        return await self._book.change(name, lambda job: None if job.paused else job.changed(paused=True))

    @sync_and_async
    async def resume(self, name: str) -> Job:
        """Have a paused job run again: at the next time of its schedule, from now."""
        now = self._book.ground.clock()

        def resumed(job: Job) -> Job | None:
            return job.changed(paused=False, due_ns=job.next_due(now), failures=0) if job.paused else None

        return await self._book.change(name, resumed)

    @sync_and_async
    async def due(self) -> list[Job]:
        """The jobs that are due, the one that has waited longest first."""
        return await self._book.due()

    @sync_and_async
    async def run(
        self, name: str, *, progress: Progress | None = None, stop: Callable[[], bool] | None = None
    ) -> JobRun:
        """Run a job now, in this process, whether it is due or not. What it fails with is raised, and noted.

        `ConflictError` if it is running somewhere. `progress` is told how far it is; an error that it raises ends the
        job. `stop` is asked before each step whether to end there.
        """
        ended = await run_job(self._book, name, only_due=False, tell=progress, stopping=stop or bool)
        if ended.error is not None:
            raise ended.error
        return ended.run

    @sync_and_async
    async def list(self) -> list[Job]:
        """All jobs, by name."""
        return await self._book.all()


class Jobs(SyncApi, JobOperations):
    """The jobs of a store."""


class AsyncJobs(AsyncApi, JobOperations):
    """The same, awaited."""
