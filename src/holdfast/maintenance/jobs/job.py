"""A job and its runs, as they are stored; schedules, and metrics of jobs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec
from cronsim import CronSim, CronSimError
from msgspec.structs import replace

from holdfast._fields import Hidden, Internal, Local, computed
from holdfast._structs import decode_json
from holdfast.backends.interface import Expect, Put, Row, Scan
from holdfast.backends.runtime.metrics import Sample
from holdfast.backends.tables import FIRST_JOB, JOBS
from holdfast.codec.envelope import BodyKind, unwrap, wrap
from holdfast.engine.checked_rows import RowCodec
from holdfast.engine.types import to_datetime
from holdfast.errors import CorruptError, HoldfastError, InvalidError
from holdfast.security.handle import StoreHandle
from holdfast.time_parser import format_duration, parse_duration

# Schedule -------------------------------------------------------------------------------------------------------------
#
# Schedules: when a job is due.
#
# ::
#
# every 6h a duration after the last time: 90s, 30m, 1d12h hourly hourly at 15: a quarter past daily at 03:00 weekly on
# sun at 03:00 weekly on mon,thu at 03:00 monthly on 1 at 03:00 monthly on L: the last day 0 3 * * mon-fri cron's five
# fields: minute, hour, day, month, day of the week
#
# Times are in UTC, unless a zone is named at the end: `daily at 03:00 Europe/Berlin`. When clocks change there, it is
# as in Debian's cron: a time that is skipped comes right after the gap, and one that occurs twice counts once. A
# schedule whose minute or hour begins with `*`, such as `hourly`, follows the clock, and so comes in both of the
# hours.
#
# This module reads no clock: `next_after` takes the time.

FORMS = "every 6h, hourly, daily at 03:00, weekly on sun at 03:00, monthly on 1 at 03:00, or cron's 0 3 * * *"
"""The forms of a schedule, for hints."""

_FIELDS = ("minute", "hour", "day-of-month", "month", "day-of-week")
_CLOCK = re.compile(r"([01]?\d|2[0-3]):([0-5]\d)")
_MINUTE = re.compile(r":?([0-5]?\d)")
_MIN_PERIOD, _MAX_PERIOD = timedelta(seconds=1), timedelta(days=3660)


@dataclass(frozen=True, slots=True)
class PeriodicSchedule:
    """A duration after the last time."""

    period: timedelta

    def next_after(self, moment: datetime) -> datetime:
        """Return the next time, in UTC."""
        return moment.astimezone(UTC) + self.period

    def __str__(self) -> str:
        return f"every {format_duration(self.period)}"


@dataclass(frozen=True, slots=True)
class CronSchedule:
    """Times of certain days, as an expression of cron in a zone. `text` is the schedule as it was written."""

    text: str
    expression: str
    zone: str = ""

    def next_after(self, moment: datetime) -> datetime:
        """Return the next time, in UTC."""
        zone: tzinfo = ZoneInfo(self.zone) if self.zone else UTC
        moment = moment.astimezone(UTC)
        for due in CronSim(self.expression, moment.astimezone(zone)):
            # After a time that occurred twice, the first of them is not the next.
            if (found := due.astimezone(UTC)) > moment:
                return found
        raise InvalidError(f"the schedule {self.text!r} has no further time")

    def __str__(self) -> str:
        return self.text


Schedule = PeriodicSchedule | CronSchedule


def parse_schedule(text: str) -> Schedule:
    """Parse a schedule. `InvalidError` says what is wrong with it."""
    given: object = text
    if not isinstance(given, str) or not text.split():
        raise InvalidError(
            "a schedule must be a string that says when the job runs", where=repr(text)[:80], hint=f"Write {FORMS}"
        )
    words = text.split()
    if words[0][0].isdigit() or words[0][0] == "*":
        if len(words) < len(_FIELDS):
            raise _invalid(text, f"cron has five fields, and these are {len(words)}")
        return _cron(text, words[:5], words[5:])
    kind = words[0].lower()
    match kind:
        case "every":
            return _interval(text, " ".join(words[1:]))
        case "hourly":
            return _hourly(text, words[1:])
        case "daily" | "weekly" | "monthly":
            return _on_days(text, kind, words[1:])
    raise _invalid(text, f"a schedule does not begin with {kind!r}")


def _interval(text: str, duration: str) -> PeriodicSchedule:
    try:
        period = parse_duration(duration)
    except InvalidError as error:
        raise _invalid(text, f"after `every` comes a duration: {error.what}", error.hint) from None
    if not _MIN_PERIOD <= period <= _MAX_PERIOD:
        raise _invalid(text, "the duration is at least a second, and at most ten years")
    return PeriodicSchedule(period)


def _hourly(text: str, words: list[str]) -> CronSchedule:
    minute = "0"
    if words and words[0].lower() == "at":
        found = _MINUTE.fullmatch(words[1]) if len(words) > 1 else None
        if found is None:
            raise _invalid(text, "after `hourly at` comes a minute, from 0 to 59")
        minute, words = found[1], words[2:]
    return _cron(text, [minute, "*", "*", "*", "*"], words)


def _on_days(text: str, kind: str, words: list[str]) -> CronSchedule:
    day = weekday = "*"
    if kind != "daily":
        if len(words) < 2 or words[0].lower() != "on":
            raise _invalid(text, f"after `{kind}` comes a day: {'on sun' if kind == 'weekly' else 'on 1'}")
        if kind == "monthly":
            day = words[1]
        elif words[1][0].isdigit():  # cron's week begins on Sunday, a calendar's may not
            raise _invalid(text, f"{words[1]!r} is no day of the week: write mon, tue, wed, thu, fri, sat or sun")
        else:
            weekday = words[1]
        words = words[2:]
    hour = minute = "0"
    if words and words[0].lower() == "at":
        found = _CLOCK.fullmatch(words[1]) if len(words) > 1 else None
        if found is None:
            raise _invalid(text, "after `at` comes a time of the day, such as 03:00")
        hour, minute, words = found[1], found[2], words[2:]
    return _cron(text, [minute, hour, day, "*", weekday], words)


def _cron(text: str, fields: list[str], rest: list[str]) -> CronSchedule:
    # A week may end with Sunday as well: fri-sun.
    fields[4] = fields[4].lower().replace("-sun", "-7")
    expression = " ".join(fields)
    try:
        CronSim(expression, datetime(2000, 1, 1, tzinfo=UTC))
    except CronSimError as error:
        name = str(error).removeprefix("Bad ")
        raise _invalid(text, f"{fields[_FIELDS.index(name)]!r} is not a valid {name}") from None
    return CronSchedule(" ".join(text.split()), expression, _zone(text, rest))


def _zone(text: str, words: list[str]) -> str:
    if not words:
        return ""
    if len(words) > 1:
        raise _invalid(text, f"nothing is to follow here: {' '.join(words)!r}")
    if words[0].upper() in ("UTC", "Z"):
        return ""
    try:
        return ZoneInfo(words[0]).key
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise _invalid(
            text, f"no time zone has the name {words[0]!r}", "Write one such as Europe/Berlin, or UTC"
        ) from None


def _invalid(text: str, what: str, hint: str = "") -> InvalidError:
    return InvalidError(what, where=f"schedule {text!r}"[:200], hint=hint or f"Write {FORMS}")


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


class Job(msgspec.Struct, frozen=True):
    """A stored job. `due` is None if it runs only on demand, or is paused."""

    tenant: Internal[str]
    name: str
    kind: str
    schedule: str
    settings: Local[Hidden[Mapping[str, Any]]]
    """Its settings. A server does not send them: they may name keys, and addresses with passwords."""
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
    @computed
    def created(self) -> datetime:
        """When it was added."""
        return to_datetime(self.created_ns)

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
            body = decode_json(content, _Body)
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


# Job metrics ----------------------------------------------------------------------------------------------------------
#
# Metrics of the jobs of a store.


async def read_job_metrics(handle: StoreHandle) -> list[Sample]:
    """Return the metrics of all jobs that can be read."""
    context = handle.engine.context
    (rows,) = await context.stored.read([scan_jobs(handle.tenant)])
    samples: list[Sample] = []
    for row in rows:
        try:
            samples += _samples(Job.of(row, context.rows), context.clock())
        except HoldfastError:  # a damaged one does not hide the others
            continue
    return samples


def _samples(job: Job, now: int) -> Iterator[Sample]:
    labels = job.name, job.kind
    yield Sample("job_failures", labels, job.failures)
    overdue = max(0, now - job.due_ns) if job.due_ns and not job.paused else 0
    yield Sample("job_overdue_seconds", labels, round(overdue / 1e9, 3))
    succeeded = [run.ended_ns for run in job.runs if run.ok]
    if succeeded:
        yield Sample("job_last_success_timestamp_seconds", labels, max(succeeded) / 1e9)
