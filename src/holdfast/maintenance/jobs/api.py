"""Operations on the jobs of a store: `store.jobs`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from holdfast.backends.runtime.drivers import AsyncApi, SyncApi, operation
from holdfast.engine.namespaces import JOBS_PLACE
from holdfast.engine.row_format import Line
from holdfast.engine.types import Progress
from holdfast.maintenance.jobs.builtin import JobTypes
from holdfast.maintenance.jobs.execution import run_job
from holdfast.maintenance.jobs.job import Job, JobRun
from holdfast.maintenance.jobs.jobs import JobTable
from holdfast.maintenance.jobs.types import JobHost


class JobOperations:
    """The operations on jobs, which `Jobs` and `AsyncJobs` have as methods."""

    def __init__(self, store: JobHost, kinds: JobTypes | None = None) -> None:
        """The jobs of a store, for its tenant. `kinds` are the types of jobs that this program knows."""
        self._table = JobTable(store, kinds)

    @operation(changes=True)
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
        """Store a job: its type, schedule and settings. `ConflictError` if there is one of this name, unless it is
        replaced, which keeps its runs.

        Without a `schedule` it runs only on demand. `holdfast.maintenance.jobs.job` describes schedules.
        `DeniedError` if the settings have sensitive data, and a policy protects it: a job needs them as they are.
        """
        handle = self._table.store
        if handle.engine.protection is not None:
            packed = handle.codec.pack(self._table.settings(kind, settings))
            await handle.engine.protection.refuse(Line(handle.tenant, JOBS_PLACE), packed, "settings")
        return await self._table.add(name, kind, schedule, settings, paused, replace)

    @operation
    async def get(self, name: str) -> Job:
        """Return a job. `NotFoundError` if there is none."""
        return await self._table.get(name)

    @operation(changes=True)
    async def remove(self, name: str) -> bool:
        """Remove a job. Returns False if there is none. A run that has started continues to its end."""
        return await self._table.remove(name)

    @operation(changes=True)
    async def pause(self, name: str) -> Job:
        """Suspend a job until it is resumed. A run that has started continues to its end."""
        return await self._table.change(name, lambda job: None if job.paused else job.changed(paused=True))

    @operation(changes=True)
    async def resume(self, name: str) -> Job:
        """Resume a paused job: it runs at the next time of its schedule."""
        now = self._table.context.clock()

        def resume(job: Job) -> Job | None:
            return job.changed(paused=False, due_ns=job.next_due(now), failures=0) if job.paused else None

        return await self._table.change(name, resume)

    @operation
    async def due(self) -> list[Job]:
        """Return the jobs that are due, the one that has waited longest first."""
        return await self._table.due()

    @operation(changes=True)
    async def run(
        self, name: str, *, progress: Progress | None = None, stop: Callable[[], bool] | None = None
    ) -> JobRun:
        """Run a job now, in this process, whether it is due or not. Its error is recorded and raised.

        `ConflictError` if it is running elsewhere. An error that `progress` raises ends the job. `stop` is called
        before each step; the job ends if it returns True.
        """
        end = await run_job(self._table, name, only_due=False, progress=progress, stopping=stop or bool)
        if end.error is not None:
            raise end.error
        return end.run

    @operation
    async def list(self) -> list[Job]:
        """Return all jobs, by name."""
        return await self._table.all()


class Jobs(SyncApi, JobOperations):
    """The jobs of a store."""


class AsyncJobs(AsyncApi, JobOperations):
    """The jobs of an `AsyncStore`: operations are awaited."""
