"""Jobs: work that is to be done again and again, kept in the store with when it is due and how it went.

::

    jobs = Jobs(store)
    jobs.add("nightly", "prune", schedule="daily at 03:00", settings={"keep_last": 100})

`holdfast.maintenance.jobs.runner` runs what is due. Each run is under a lease, so that of any number of runners, in any
number of processes, one does it.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import msgspec

from holdfast.backends.interface import Change, Delete, Expect, Get, Put, Row, Scan
from holdfast.backends.tables import JOBS
from holdfast.codec.envelope import BodyKind, RecordContext, unwrap, wrap
from holdfast.engine.context import EngineContext
from holdfast.engine.row_format import Line, check_name
from holdfast.engine.types import to_datetime
from holdfast.errors import ConflictError, CorruptError, HoldfastError, InvalidError, NotFoundError, TooLargeError
from holdfast.maintenance.jobs.registry import JobTypes
from holdfast.maintenance.jobs.schedule import parse as parse_schedule
from holdfast.maintenance.jobs.types import JobHost

_log = logging.getLogger("holdfast.jobs")

READY, PAUSED = "ready", "paused"

KEPT_RUNS = 20
"""How many runs of a job are remembered."""

_MAX_BODY = 1 << 20
_MAX_SETTINGS = 1 << 18
_MAX_NAME = 200
"""Less than names may have elsewhere: a job's is a part of others."""
_FIRST_RETRY, _LAST_RETRY = 60 * 10**9, 3600 * 10**9


class JobRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run of a job. Times are stored in nanoseconds since 1970; `started` and `ended` give them as dates.

    `outcome` is `ok`; `failed`, and then `error` says why and `code` is that of the error; `findings`, where it did its
    work and found what should not be; `stopped`, where it was asked to stop; `running`; or `killed`, where nobody ended
    it.
    """

    started_ns: int
    ended_ns: int = 0
    outcome: str = "running"
    summary: str = ""
    error: str = ""
    code: str = ""
    by: str = ""
    """Which process ran it: the machine and its number there."""

    @property
    def ok(self) -> bool:
        """Whether it did its work, and all is well."""
        return self.outcome == "ok"

    @property
    def started(self) -> datetime:
        """When it began."""
        return to_datetime(self.started_ns)

    @property
    def ended(self) -> datetime | None:
        """When it ended, if it did."""
        return to_datetime(self.ended_ns) if self.ended_ns else None


class _Body(msgspec.Struct, frozen=True, kw_only=True):
    """What a job's row holds besides its columns."""

    settings: dict[str, Any]
    created: int
    failures: int = 0
    runs: tuple[JobRun, ...] = ()
    mark: str = ""


@dataclass(frozen=True, slots=True)
class Job:
    """A job as it is stored. `due` is None where it runs only when it is told to, or is paused."""

    tenant: str
    name: str
    kind: str
    schedule: str
    settings: Mapping[str, Any]
    paused: bool
    due_ns: int
    failures: int
    """How many of its last runs failed, one after another."""
    runs: tuple[JobRun, ...]
    """The last runs, the latest first."""
    created_ns: int
    version: int
    mark: str = ""
    """How far a run came that did not get to its end, in the words of its kind: the next one goes on there."""

    @property
    def due(self) -> datetime | None:
        """When it is to run next."""
        return to_datetime(self.due_ns) if self.due_ns and not self.paused else None

    @property
    def last(self) -> JobRun | None:
        """Its latest run."""
        return self.runs[0] if self.runs else None

    @classmethod
    def of(cls, row: Row) -> Job:
        """The job in a row."""
        tenant, _, name = map(str, row.key)
        kind, schedule, state, due, version = row.columns
        content = unwrap(row.body, _context(tenant, name), max_bytes=_MAX_BODY).content
        try:
            body = msgspec.json.decode(content, type=_Body)
        except msgspec.MsgspecError as error:
            raise CorruptError(f"a job is not what was stored: {error}", where=f"job {name!r}") from error
        return cls(
            tenant,
            name,
            str(kind),
            str(schedule),
            body.settings,
            state == PAUSED,
            int(due),
            body.failures,
            body.runs,
            body.created,
            int(version),
            body.mark,
        )

    @property
    def key(self) -> tuple[str, str, str]:
        """The key of its row."""
        return (self.tenant, "", self.name)

    @property
    def columns(self) -> tuple[str, str, str, int, int]:
        """The columns of its row."""
        return (self.kind, self.schedule, PAUSED if self.paused else READY, self.due_ns, self.version)

    def unchanged(self) -> Expect:
        """The condition that nobody changed it."""
        return Expect(JOBS, self.key, self.columns)

    def put(self) -> Put:
        """The change that stores it."""
        body = _Body(
            settings=dict(self.settings),
            created=self.created_ns,
            failures=self.failures,
            runs=self.runs[:KEPT_RUNS],
            mark=self.mark,
        )
        wrapped = wrap(msgspec.json.encode(body), _context(self.tenant, self.name), codec=BodyKind.RAW)
        return Put(JOBS, Row(self.key, self.columns, wrapped))

    def next_due(self, now: int) -> int:
        """When it is due after this moment, by its schedule; 0 for never."""
        if not self.schedule:
            return 0
        moment = parse_schedule(self.schedule).next_after(to_datetime(now))
        return _nanoseconds(moment)

    def latest_due(self, now: int) -> int:
        """No time that was set by a clock that goes as this one does is after this."""
        return max(self.next_due(now), now + retry_after(self.failures) if self.failures else 0)

    def changed(self, **fields: Any) -> Job:
        """It with other fields, as its next version."""
        return replace(self, version=self.version + 1, **fields)


def retry_after(failures: int) -> int:
    """How many nanoseconds to wait after so many failures in a row: from a minute on, twice as long each time, and an
    hour at most."""
    return min(_FIRST_RETRY << min(max(failures, 1) - 1, 16), _LAST_RETRY)


def _context(tenant: str, name: str) -> RecordContext:
    return RecordContext(tenant, "", "job", name.encode())


def _nanoseconds(moment: datetime) -> int:
    return int(moment.timestamp()) * 10**9 + moment.microsecond * 1000


class JobTable:
    """The jobs of a tenant, as coroutines."""

    def __init__(self, store: JobHost, kinds: JobTypes | None = None) -> None:
        self.host = store
        self.store = store._handle
        self.kinds = JobTypes() if kinds is None else kinds

    @property
    def ground(self) -> EngineContext:
        """What it stands on."""
        return self.store.engine.context

    @property
    def line(self) -> Line:
        """The line that leases of jobs belong to: none that has steps."""
        return Line(self.store.tenant, "")

    async def find(self, name: str) -> Job | None:
        """A job, if it is there."""
        (rows,) = await self.ground.backend.read([Get(JOBS, [(self.store.tenant, "", name)])])
        return Job.of(rows[0]) if rows else None

    async def get(self, name: str) -> Job:
        """A job."""
        found = await self.find(check_name(name, "name of a job"))
        if found is None:
            raise NotFoundError(f"there is no job {name!r}", hint="See which there are: Jobs.list(), or holdfast jobs")
        return found

    async def all(self) -> list[Job]:
        """All jobs."""
        return [Job.of(row) for row in await self._rows()]

    async def sound(self) -> list[Job]:
        """All jobs that can be read: one that is damaged does not keep the others from their work."""
        found = []
        for row in await self._rows():
            try:
                found.append(Job.of(row))
            except HoldfastError as error:  # damaged, or of a newer release
                _log.warning("the job %s is left out: %s", row.key[2], error)
        return found

    async def _rows(self) -> list[Row]:
        (rows,) = await self.ground.backend.read([Scan(JOBS, (self.store.tenant, ""))])
        return rows

    async def change(self, name: str, how: Callable[[Job], Job | None]) -> Job:
        """Change a job, whatever others do with it meanwhile. `how` may find that there is nothing to change."""
        while True:
            old = await self.get(name)
            new = how(old)
            if new is None or await self.ground.backend.apply([old.unchanged(), new.put()]) is None:
                return new or old

    def settings(self, kind: str, settings: Mapping[str, Any] | None) -> dict[str, Any]:
        """Settings as they are stored: plain JSON, checked by their kind."""
        given = dict(settings or {})
        try:
            text = json.dumps(given, allow_nan=False)
            plain = json.loads(text)
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidError(f"the settings of a job are plain JSON: {error}", where=repr(given)[:80]) from None
        if plain != given:
            raise InvalidError("the settings of a job are plain JSON: text as keys, and lists", where=repr(given)[:80])
        if len(text) > _MAX_SETTINGS:
            raise TooLargeError(
                f"the settings of a job take {len(text)} bytes, over the limit of {_MAX_SETTINGS}",
                hint="Name threads by a prefix or a query, or add several jobs",
            )
        self.kinds.get(kind).check(plain)
        return given

    async def add(
        self, name: str, kind: str, schedule: str, settings: Mapping[str, Any] | None, paused: bool, replaced: bool
    ) -> Job:
        """Store a job."""
        if not 0 < len(check_name(name, "name of a job").encode()) <= _MAX_NAME:
            raise InvalidError(f"the name of a job has from 1 to {_MAX_NAME} bytes", where=repr(name)[:80])
        if type(paused) is not bool:
            raise InvalidError(f"paused is True or False, not {paused!r}")
        plain = self.settings(kind, settings)
        text = str(parse_schedule(schedule)) if schedule else ""
        now = self.ground.clock()
        while True:
            old = await self.find(name)
            if old is not None and not replaced:
                raise ConflictError(
                    f"there is a job {name!r} already", hint="Remove it first, or replace it: replace=True, --replace"
                )
            if old is None:
                job = Job(self.store.tenant, name, kind, text, plain, paused, 0, 0, (), now, 1)
            else:
                job = old.changed(kind=kind, schedule=text, settings=plain, paused=paused, failures=0, mark="")
            job = replace(job, due_ns=job.next_due(now))
            condition: Change = Expect(JOBS, job.key, None) if old is None else old.unchanged()
            if await self.ground.backend.apply([condition, job.put()]) is None:
                return job

    async def remove(self, name: str) -> bool:
        """Forget a job. A run of it that is under way goes on to its end."""
        key = (self.store.tenant, "", check_name(name, "name of a job"))
        (rows,) = await self.ground.backend.read([Get(JOBS, [key])])  # and not `find`: it may be damaged
        if rows:
            await self.ground.backend.apply([Delete(JOBS, key)])
        return bool(rows)

    async def due(self) -> list[Job]:
        """The jobs that are due, the one that has waited longest first. Those that a clock which went wrong put off for
        too long are put right."""
        now = self.ground.clock()
        found = []
        for job in await self.sound():
            if job.paused or not job.due_ns or job.kind not in self.kinds:
                continue
            try:
                latest = job.latest_due(now)
            except InvalidError as error:  # of a newer release, or a zone that this machine does not know
                _log.warning("the job %s is left to others: %s", job.name, error)
                continue
            if job.due_ns > latest:
                await self.ground.backend.apply([job.unchanged(), job.changed(due_ns=latest).put()])
            elif job.due_ns <= now:
                found.append(job)
        return sorted(found, key=lambda job: (job.due_ns, job.name))
