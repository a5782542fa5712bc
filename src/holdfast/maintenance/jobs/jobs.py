"""Jobs: scheduled work, stored with its schedule and its last runs.

::

    jobs = Jobs(store)
    jobs.add("nightly", "prune", schedule="daily at 03:00", settings={"keep_last": 100})

`holdfast.maintenance.jobs.runner` runs the jobs that are due. Each run has a lease, so that of all runners, in any
number of processes, one does it.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from typing import Any

from msgspec.structs import replace

from holdfast.backends.interface import Change, Delete, Expect, Get, Row
from holdfast.backends.tables import FIRST_JOB, JOBS
from holdfast.engine.context import EngineContext
from holdfast.engine.row_format import Line, check_name
from holdfast.errors import ConflictError, HoldfastError, InvalidError, NotFoundError, TooLargeError
from holdfast.maintenance.jobs.builtin import CREDENTIALS, SCHEDULE, JobTypes
from holdfast.maintenance.jobs.job import Job, parse_schedule, scan_jobs
from holdfast.maintenance.jobs.types import JobHost
from holdfast.security.handle import StoreHandle, owner_handle

_log = logging.getLogger("holdfast.jobs")

_MAX_SETTINGS = 1 << 18
_MAX_NAME = 200
"""Less than elsewhere: the name of a job is part of other names."""


class JobTable:
    """The stored jobs of a tenant."""

    def __init__(self, store: JobHost, kinds: JobTypes | None = None) -> None:
        self.host = store
        self.store: StoreHandle = owner_handle(store)
        self.kinds: JobTypes = JobTypes() if kinds is None else kinds

    @property
    def context(self) -> EngineContext:
        """The context of the engine."""
        return self.store.engine.context

    @property
    def line(self) -> Line:
        """The line of the leases of jobs, which has no steps."""
        return Line(self.store.tenant, "")

    async def find(self, name: str) -> Job | None:
        """Return a job, or None."""
        (rows,) = await self.context.stored.read([Get(JOBS, [(self.store.tenant, "", name)])])
        return Job.of(rows[0], self.context.rows) if rows else None

    async def get(self, name: str) -> Job:
        """Return a job. `NotFoundError` if there is none."""
        found = await self.find(check_name(name, "name of a job"))
        if found is None:
            raise NotFoundError(f"there is no job {name!r}", hint="See store.jobs.list()")
        return found

    async def all(self) -> list[Job]:
        """Return all jobs."""
        return [Job.of(row, self.context.rows) for row in await self._rows()]

    async def readable(self) -> list[Job]:
        """Return all jobs that can be read: a damaged one does not stop the others."""
        found = []
        for row in await self._rows():
            try:
                found.append(Job.of(row, self.context.rows))
            except HoldfastError as error:  # damaged, or of a newer release
                _log.warning("the job %s is skipped: %s", row.key[2], error)
        return found

    async def _rows(self) -> list[Row]:
        (rows,) = await self.context.stored.read([scan_jobs(self.store.tenant)])
        return rows

    async def change(self, name: str, how: Callable[[Job], Job | None]) -> Job:
        """Change a job, retrying when others change it. `how` returns None if there is nothing to change."""
        while True:
            old = await self.get(name)
            new = how(old)
            if new is None or await self.context.backend.apply([old.unchanged(), new.put()]) is None:
                return new or old

    def settings(self, kind: str, settings: Mapping[str, Any] | None) -> dict[str, Any]:
        """Return settings as they are stored: plain JSON, checked by the type of the job."""
        values = dict(settings or {})
        try:
            text = json.dumps(values, allow_nan=False)
            plain = json.loads(text)
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidError(f"the settings of a job are plain JSON: {error}", where=repr(values)[:80]) from None
        if plain != values:
            raise InvalidError("the settings of a job are plain JSON: text as keys, and lists", where=repr(values)[:80])
        if len(text) > _MAX_SETTINGS:
            raise TooLargeError(
                f"the settings of a job take {len(text)} bytes, over the limit of {_MAX_SETTINGS}",
                hint="Select threads by a prefix or a query, or add several jobs",
            )
        self.kinds.get(kind).check(plain)
        return values

    async def add(
        self, name: str, kind: str, schedule: str, settings: Mapping[str, Any] | None, paused: bool, replaced: bool
    ) -> Job:
        """Store a job."""
        if not 0 < len(check_name(name, "name of a job").encode()) <= _MAX_NAME:
            raise InvalidError(f"the name of a job has from 1 to {_MAX_NAME} bytes", where=repr(name)[:80])
        if name < FIRST_JOB:
            raise InvalidError("the name of a job starts with a printable character", where=repr(name)[:80])
        if type(paused) is not bool:
            raise InvalidError(f"paused must be True or False, not {paused!r}")
        plain = self.settings(kind, settings)
        text = str(parse_schedule(schedule)) if schedule else ""
        now = self.context.clock()
        while True:
            old = await self.find(name)
            if old is not None and not replaced:
                raise ConflictError(
                    f"a job named {name!r} already exists",
                    hint="Remove it first, or replace it: replace=True, --replace",
                )
            if old is None:
                job = Job(self.store.tenant, name, kind, text, plain, paused, 0, 0, (), now, 1)
            else:
                job = old.changed(kind=kind, schedule=text, settings=plain, paused=paused, failures=0, mark="")
            job = replace(job, due_ns=job.next_due(now))
            condition: Change = Expect(JOBS, job.key, None) if old is None else old.unchanged()
            if await self.context.backend.apply([condition, job.put()]) is None:
                return job

    async def add_default(self) -> None:
        """Store the job that every store has, due at once, unless there is one of its type, which may be paused."""
        if any(job.kind == CREDENTIALS for job in await self.readable()):
            return
        now = self.context.clock()
        job = Job(self.store.tenant, CREDENTIALS, CREDENTIALS, SCHEDULE, {}, False, now, 0, (), now, 1)
        await self.context.backend.apply([Expect(JOBS, job.key, None), job.put()])  # another runner may have

    async def remove(self, name: str) -> bool:
        """Remove a job. A run of it that has started continues to its end."""
        key = (self.store.tenant, "", check_name(name, "name of a job"))
        (rows,) = await self.context.stored.read([Get(JOBS, [key])])  # not `find`: it may be damaged
        if rows:
            await self.context.backend.apply([Delete(JOBS, key)])
        return bool(rows)

    async def due(self) -> list[Job]:
        """Return the jobs that are due, the one that has waited longest first. Jobs that a wrong clock postponed too
        far are corrected."""
        now = self.context.clock()
        found = []
        for job in await self.readable():
            if job.paused or not job.due_ns or job.kind not in self.kinds:
                continue
            try:
                latest = job.latest_due(now)
            except InvalidError as error:  # of a newer release, or a zone that is unknown on this machine
                _log.warning("the job %s is left to others: %s", job.name, error)
                continue
            if job.due_ns > latest:
                await self.context.backend.apply([job.unchanged(), job.changed(due_ns=latest).put()])
            elif job.due_ns <= now:
                found.append(job)
        return sorted(found, key=lambda job: (job.due_ns, job.name))
