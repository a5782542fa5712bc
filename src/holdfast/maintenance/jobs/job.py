"""A job and its runs, as they are stored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import msgspec

from holdfast._fields import Hidden, Internal, Local, computed
from holdfast.backends.interface import Expect, Put, Row, Scan
from holdfast.backends.tables import FIRST_JOB, JOBS
from holdfast.codec.envelope import BodyKind, unwrap, wrap
from holdfast.engine.checked_rows import RowCodec
from holdfast.engine.types import to_datetime
from holdfast.errors import CorruptError
from holdfast.maintenance.jobs.schedule import parse as parse_schedule

READY, PAUSED = "ready", "paused"

KEPT_RUNS = 20
"""The number of runs of a job that are stored."""

_MAX_BODY = 1 << 20
_FIRST_RETRY, _LAST_RETRY = 60 * 10**9, 3600 * 10**9


class JobRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run of a job. Times are stored in nanoseconds since 1970; `started` and `ended` give them as dates.

    `outcome` is `ok`; `failed`, with the `error` and its `code`; `findings`, if it did its work and found problems;
    `stopped`, if it was asked to stop; `running`; or `killed`, if its process died.
    """

    started_ns: Internal[int]
    ended_ns: Internal[int] = 0
    outcome: str = "running"
    summary: str = ""
    error: str = ""
    code: Hidden[str] = ""
    by: str = ""
    """The process that ran it: the machine and the process id."""

    @property
    def ok(self) -> bool:
        """Whether it succeeded without findings."""
        return self.outcome == "ok"

    @property
    @computed
    def started(self) -> datetime:
        """When it started."""
        return to_datetime(self.started_ns)

    @property
    @computed
    def ended(self) -> datetime | None:
        """When it ended; None while it runs."""
        return to_datetime(self.ended_ns) if self.ended_ns else None


class _Body(msgspec.Struct, frozen=True, kw_only=True):
    """The body of a job's row."""

    settings: dict[str, Any]
    created: int
    failures: int = 0
    runs: tuple[JobRun, ...] = ()
    mark: str = ""


@dataclass(frozen=True, slots=True)
class Job:
    """A stored job. `due` is None if it runs only on demand, or is paused."""

    tenant: Internal[str]
    name: str
    kind: str
    schedule: str
    settings: Local[Hidden[Mapping[str, Any]]]
    paused: bool
    due_ns: Internal[int]
    failures: int
    """The number of failed runs in a row."""
    runs: Hidden[tuple[JobRun, ...]]
    """The last runs, the latest first."""
    created_ns: Internal[int]
    version: Internal[int]
    mark: Internal[str] = ""
    """The progress of a run that did not finish, as its type writes it: the next run resumes there."""

    @property
    @computed
    def due(self) -> datetime | None:
        """When it runs next."""
        return to_datetime(self.due_ns) if self.due_ns and not self.paused else None

    @property
    def last(self) -> JobRun | None:
        """The latest run."""
        return self.runs[0] if self.runs else None

    @classmethod
    def of(cls, stored: Row, rows: RowCodec) -> Job:
        """Decode a job from its stored row, which may be damaged: `CorruptError`."""
        tenant, _, name = map(str, stored.key)
        row = rows.decode(JOBS, stored)
        kind, schedule, state, due, version = row.columns
        content = unwrap(row.body, max_bytes=_MAX_BODY).content
        try:
            body = msgspec.json.decode(content, type=_Body)
        except msgspec.MsgspecError as error:
            raise CorruptError(f"a job cannot be decoded: {error}", where=f"job {name!r}") from error
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
        """Return the condition that the job was not changed."""
        return Expect(JOBS, self.key, self.columns)

    def put(self) -> Put:
        """Return the change that stores the job."""
        body = _Body(
            settings=dict(self.settings),
            created=self.created_ns,
            failures=self.failures,
            runs=self.runs[:KEPT_RUNS],
            mark=self.mark,
        )
        wrapped = wrap(msgspec.json.encode(body), codec=BodyKind.RAW)
        return Put(JOBS, Row(self.key, self.columns, wrapped))

    def next_due(self, now: int) -> int:
        """Return the next time of its schedule after `now`; 0 for never."""
        if not self.schedule:
            return 0
        moment = parse_schedule(self.schedule).next_after(to_datetime(now))
        return _nanoseconds(moment)

    def latest_due(self, now: int) -> int:
        """Return the latest time at which it can be due, by a clock that is right."""
        return max(self.next_due(now), now + retry_after(self.failures) if self.failures else 0)

    def changed(self, **fields: Any) -> Job:
        """Return the next version of the job, with other fields."""
        return replace(self, version=self.version + 1, **fields)


def scan_jobs(tenant: str) -> Scan:
    """Return the query for all jobs of a tenant."""
    return Scan(JOBS, (tenant, ""), (FIRST_JOB,))


def retry_after(failures: int) -> int:
    """Return the nanoseconds to wait after failures in a row: from a minute, twice as long each time, up to an hour."""
    return min(_FIRST_RETRY << min(max(failures, 1) - 1, 16), _LAST_RETRY)


def _nanoseconds(moment: datetime) -> int:
    return int(moment.timestamp()) * 10**9 + moment.microsecond * 1000


def job_settings(row: Row, rows: RowCodec) -> object:
    """Return what is set in the row of a job, without what changes when it runs."""
    job = Job.of(row, rows)
    return job.name, job.kind, job.schedule, job.settings
