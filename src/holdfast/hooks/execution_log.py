"""The log of executions: rows that are stored with the change, for before-hooks, or with steps of a system line."""

from __future__ import annotations

import hashlib
import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from heapq import nlargest
from typing import Any, NamedTuple, Self, TypeAlias
from urllib.parse import quote, unquote

import msgspec

from holdfast._fields import Hidden, Seconds
from holdfast.backends.interface import Change, ColumnHint, Get, Row, Scan
from holdfast.backends.runtime.drivers import run
from holdfast.backends.tables import EVENTS, TIME
from holdfast.engine import validation
from holdfast.engine.engine import Engine
from holdfast.engine.events import BETWEEN, Event, lines_of, place_of
from holdfast.engine.ids import time_of
from holdfast.engine.model.missing import MISSING
from holdfast.engine.model.packed_state import flatten
from holdfast.engine.model.scopes import THREAD, Scope, check_key, parse_place
from holdfast.engine.namespaces import HOOKS
from holdfast.engine.pages import Page
from holdfast.engine.row_format import Line, open_body
from holdfast.engine.system_line import LineChange, audited_request
from holdfast.engine.trace_context import Trace
from holdfast.engine.types import to_datetime, to_time
from holdfast.errors import InvalidError, NotFoundError, VetoError
from holdfast.hooks.context import HookedChange, HookExecution, Recording
from holdfast.time_parser import Duration, Time, parse_nanoseconds, parse_time

_THREAD = f"{THREAD}:"
"""The start of the places of threads, as text."""

_SALT = 8
_MAX_REASON = 500
"""How many characters of a veto's reason, or of the message of an error, are stored."""


def pack_detail(
    engine: Engine,
    recording: Recording,
    redact: Redact | None,
    subject: HookedChange,
    phase: str,
    given: Any,
    changed: bool,
    error: BaseException | None,
) -> bytes:
    """Pack the details of an execution.

    Unless the values are recorded, they have digests with a salt of their own, so that equal values do not look equal.
    Of an error they then have only the class, since its text may quote the value.
    """
    about: dict[str, Any] = {"point": subject.point, "phase": phase}
    if recording == "redacted" and redact is None:
        recording = "digest"
    has_values = recording in ("redacted", "full")
    if recording != "outcome":
        about["recording"] = recording
    if subject.before is not None:
        about["before"] = subject.before
    if given is not MISSING:
        about["value"] = subject.load(given) if has_values else _digest(given)
    if changed:
        about["result"] = subject.load(subject.stored) if has_values else _digest(subject.stored)
    if has_values and subject.metadata:
        about["metadata"] = dict(subject.metadata)
    if error is not None:
        about["error"] = type(error).__name__
        if isinstance(error, VetoError):
            about["reason"] = error.what[:_MAX_REASON]
        elif has_values and str(error):
            about["message"] = str(error)[:_MAX_REASON]
    pack = engine.context.codec.pack
    packed = pack(about)
    if not has_values:
        return packed
    redacted = packed
    if recording == "redacted" and redact is not None:
        redacted = redact(packed)
    if engine.protection is not None:
        redacted = engine.protection.redact(redacted)
    if redacted == packed or recording == "redacted":
        return redacted
    return pack({**engine.context.codec.unpack(redacted), "recording": "redacted"})  # a policy comes first


def _digest(stored: Any) -> str:
    salt = os.urandom(_SALT)
    return f"blake2b:{salt.hex()}:{hashlib.blake2b(flatten(stored), digest_size=16, salt=salt).hexdigest()}"


def target_of(subject: HookedChange) -> str:
    """Return the target of a row about a change that is not in the line of the change. That of a thread is its place:
    a thread may have the name of a scope."""
    is_checkpoint = subject.point.startswith("checkpoint.")
    return f"{Scope.of_thread(subject.scope) if is_checkpoint else subject.scope}{BETWEEN}{subject.key}"


async def record_veto(engine: Engine, tenant: str, subject: HookedChange) -> None:
    """Record that a hook refused a change, and the executions of its hooks."""
    target = target_of(subject)
    change = Event("change", subject.actor, subject.point.split(".")[1], target, "vetoed", trace=subject.trace)
    events = [change, *(event._replace(target=target, trace=subject.trace) for event in subject.events)]
    await _append(engine, tenant, "veto", events)


def record_executions(engine: Engine, tenant: str, events: Sequence[Event], changes: Sequence[Change]) -> None:
    """Record executions of after-hooks, together with other changes. Blocks."""
    run(_append(engine, tenant, "hooks", events, changes))


async def _append(
    engine: Engine, tenant: str, kind: str, events: Sequence[Event], changes: Sequence[Change] = ()
) -> None:
    async def edit(*_: object) -> LineChange:
        return LineChange(events=events, rows=changes)

    await engine.writer.save(audited_request(engine, Line(tenant, HOOKS), kind, "", edit, trace=Trace()))


_PAGE = 1000

_SKEW = 60 * 10**9
"""By how many nanoseconds the clocks of processes differ, at most."""

Redact: TypeAlias = Callable[[bytes], bytes]
"""Returns packed details without sensitive data."""

ExecutionKey: TypeAlias = tuple[int, tuple[Any, ...]]
"""The position of an execution in the listing: its time, and the key of its row."""


FAILURES = frozenset({"error", "late"})
"""The outcomes of executions that failed."""


class ExecutionFilter(NamedTuple):
    """The conditions of a listing of executions."""

    hook: str | None
    scope: str | None
    key: str | None
    since: int
    failed: bool = False
    slower_than: int = 0
    """In nanoseconds."""
    has_point: Callable[[Row], bool] | None = None
    """Reads the details of a row."""

    @classmethod
    def of(
        cls,
        engine: Engine,
        hook: str | None,
        scope: str | None,
        key: str | None,
        since: Time | None,
        *,
        point: str | None = None,
        failed: bool = False,
        slower_than: Duration | None = None,
    ) -> Self:
        """Check the conditions."""
        start = 0
        if since is not None:  # from the start of its microsecond on
            start = to_time(parse_time(since, to_datetime(engine.context.clock()))) // 1000 * 1000
        slow = 0 if slower_than is None else parse_nanoseconds(slower_than, "slower_than")

        def has_point(row: Row) -> bool:
            return _detail(engine, row).get("point") == point

        return cls(
            hook,
            scope,
            None if key is None else check_key(key),
            start,
            bool(failed),
            slow,
            None if point is None else has_point,
        )

    def matches(self, row: Row) -> bool:
        """Whether a row matches."""
        time, kind, _, action, _, outcome, _, _, duration = row.columns
        if kind != "hook" or int(time) < self.since or self.hook not in (None, action):
            return False
        if (self.failed and outcome not in FAILURES) or int(duration) < self.slower_than:
            return False
        where, _, what = _target(row)
        if self.scope not in (None, where) or self.key not in (None, what):
            return False
        return self.has_point is None or self.has_point(row)


async def list_executions(
    engine: Engine, tenant: str, filter_: ExecutionFilter, limit: int, cursor: str | None
) -> Page[HookExecution]:
    """List recorded executions, the latest first.

    Those of a scope are in its line and in the line of hooks. Without a scope, all rows of the tenant are scanned.
    """
    end = None if cursor is None else _parse_cursor(tenant, cursor)

    def matches(row: Row) -> bool:
        return filter_.matches(row) and (end is None or _sort_key(row) < end)

    if filter_.scope is None:
        rows = await _scan_tenant(engine, tenant, filter_, end, limit + 1)
    else:
        rows = []
        for line in (*lines_of(filter_.scope), filter_.scope, HOOKS):
            rows += await _scan_line(engine, (tenant, line), matches, filter_.since, limit + 1)
        rows = nlargest(limit + 1, rows, key=_sort_key)
    return Page(
        (_build_execution(engine, row) for row in rows[:limit]),
        _cursor(rows[limit - 1]) if 0 < limit < len(rows) else None,
        lambda cursor: list_executions(engine, tenant, filter_, limit, cursor),
    )


async def get_execution(engine: Engine, tenant: str, reference: str) -> HookExecution:
    """Return the execution that a reference names."""
    number, _, rest = str(reference).partition("/")
    id, _, line = rest.partition("/")
    if not (number.isascii() and number.isdecimal() and len(number) < 19 and id and line):
        raise InvalidError(
            "this is not a reference to a hook call",
            where=ascii(reference)[:80],
            hint="Pass the reference of an execution",
        )
    (rows,) = await engine.context.backend.read([Get(EVENTS, [(tenant, unquote(line), unquote(id), int(number))])])
    if not rows or rows[0].columns[1] != "hook":
        raise NotFoundError(
            "there is no such call of a hook", where=reference[:80], hint="It may have been archived or deleted"
        )
    return _build_execution(engine, rows[0])


def _reference(row: Row) -> str:
    _, line, id, number = row.key
    return f"{number!s}/{quote(str(id), safe='')}/{quote(str(line), safe='')}"


def _sort_key(row: Row) -> ExecutionKey:
    return int(row.columns[0]), row.key


def _cursor(row: Row) -> str:
    _, line, id, number = row.key
    return f"{int(row.columns[0])} {id!s} {number!s} {line!s}"


def _parse_cursor(tenant: str, cursor: str) -> ExecutionKey:
    time, _, rest = validation.cursor_text(cursor).partition(" ")
    id, _, rest = rest.partition(" ")
    number, _, line = rest.partition(" ")
    if not line:
        raise validation.cursor_error(cursor)
    return validation.cursor_number(time), (tenant, line, id, validation.cursor_number(number))


async def _scan_line(
    engine: Engine, line: tuple[str, str], matches: Callable[[Row], bool], since: int, limit: int
) -> list[Row]:
    """Return the latest matching rows of a line. They are ordered by the ids of their steps, and no execution ended
    after the time in the id, also if a clock was set back."""
    found: list[Row] = []
    stop: tuple[Any, ...] = ()
    while True:
        query = Scan(EVENTS, line, stop=stop, reverse=True, limit=_PAGE)
        (rows,) = await engine.context.backend.read([query])
        found = nlargest(limit, [*found, *filter(matches, rows)], key=_sort_key)
        first = since if len(found) < limit else _sort_key(found[-1])[0]
        if len(rows) < _PAGE or 0 < time_of(str(rows[-1].key[2])) < first - _SKEW:
            return found
        stop = rows[-1].key[2:]


async def _scan_tenant(
    engine: Engine, tenant: str, filter_: ExecutionFilter, end: ExecutionKey | None, limit: int
) -> list[Row]:
    """Return the latest matching rows of all lines."""
    found: list[Row] = []
    async for rows in scan_executions(engine, tenant, filter_, end):
        found = nlargest(limit, [*found, *rows], key=_sort_key)
        if len(found) == limit and has_time_order(engine):
            break  # they come in this order
    return found


def has_time_order(engine: Engine) -> bool:
    """Return whether the store lists executions by time."""
    return engine.context.backend.capabilities.times and not engine.context.rows.hides_names


async def scan_executions(
    engine: Engine, tenant: str, filter_: ExecutionFilter, end: ExecutionKey | None = None, *, bodies: bool = True
) -> AsyncIterator[list[Row]]:
    """Yield the matching rows of all lines, before a position, many at a time: the latest first, where the store lists
    them by time."""
    timed = has_time_order(engine)
    scan = Scan(EVENTS, (tenant,), limit=_PAGE, bodies=bodies)
    if timed:
        hints = (ColumnHint("kind", ("hook",)), *((ColumnHint("action", (filter_.hook,)),) if filter_.hook else ()))
        hidden = engine.context.rows.hides_columns
        stop = () if end is None else (end[0], *end[1][1:])
        scan = scan._replace(by=TIME, reverse=True, start=(filter_.since,), stop=stop, hints=() if hidden else hints)
    while True:
        (rows,) = await engine.context.backend.read([scan])
        matched = [row for row in rows if filter_.matches(row) and (end is None or _sort_key(row) < end)]
        if matched:
            yield matched
        if len(rows) < _PAGE:
            return
        *rest, number = rows[-1].key[1:]
        if timed:
            scan = scan._replace(stop=(int(rows[-1].columns[0]), *rest, int(number)))
        else:
            scan = scan._replace(start=(*rest, int(number) + 1))


def _target(row: Row) -> tuple[str, str, str]:
    """Return the scope and the key of a row."""
    line, target = str(row.key[1]), str(row.columns[4])
    if BETWEEN in target:
        where, _, what = target.rpartition(BETWEEN)
        thread = parse_place(where).thread if where.startswith(_THREAD) else ""
        return thread or place_of(where), BETWEEN, what
    return place_of(line), BETWEEN, target


def _build_execution(engine: Engine, row: Row) -> HookExecution:
    id = row.key[2]
    time, _, actor, action, _, outcome, correlation, cause, duration = row.columns
    scope, _, key = _target(row)
    return HookExecution(
        str(action),
        scope,
        key,
        str(outcome),
        to_datetime(int(time)),
        int(duration) / 1e9,
        str(actor),
        str(correlation),
        str(cause),
        str(id),
        _detail(engine, row),
        _reference(row),
    )


def _detail(engine: Engine, row: Row) -> Mapping[str, Any]:
    found: Mapping[str, Any] = {}
    if row.body:
        found = engine.context.codec.unpack(open_body(row, engine.context.max_bytes))
    return found


# Statistics -----------------------------------------------------------------------------------------------------------
#
# Statistics of recorded executions: which hooks are slow, which fail, and which are called most often.


class HookStatistics(msgspec.Struct, frozen=True):
    """Statistics of the recorded executions of a hook. Durations are in seconds."""

    hook: str
    calls: int
    """The calls that ran; the others were `skipped`."""
    failures: int
    vetoes: int
    changed: int
    skipped: int
    total: Hidden[float]
    average: Seconds
    worst: Seconds
    first: Hidden[datetime]
    last: datetime

    @property
    def failure_rate(self) -> float:
        """The part of calls that failed, from 0 to 1."""
        return self.failures / self.calls if self.calls else 0.0


class HookStatisticsList(list[HookStatistics]):
    """The statistics of hooks, by name."""

    def slowest(self, count: int = 10) -> list[HookStatistics]:
        """Return those that take longest on average."""
        return sorted(self, key=lambda each: (-each.average, each.hook))[:count]

    def failing(self, count: int = 10) -> list[HookStatistics]:
        """Return those that fail, those with the greatest part of failures first."""
        failed = [each for each in self if each.failures]
        return sorted(failed, key=lambda each: (-each.failure_rate, -each.failures, each.hook))[:count]

    def most_called(self, count: int = 10) -> list[HookStatistics]:
        """Return those that are called most often."""
        return sorted(self, key=lambda each: (-each.calls, each.hook))[:count]


@dataclass(slots=True)
class _Sums:
    """The sums of one hook."""

    outcomes: dict[str, int] = field(default_factory=dict)
    total: int = 0
    worst: int = 0
    first: int = 2**63
    last: int = 0

    def statistics(self, hook: str) -> HookStatistics:
        skipped = self.outcomes.get("skipped", 0)
        calls = sum(self.outcomes.values()) - skipped
        return HookStatistics(
            hook,
            calls,
            sum(count for outcome, count in self.outcomes.items() if outcome in FAILURES),
            self.outcomes.get("veto", 0),
            self.outcomes.get("changed", 0),
            skipped,
            self.total / 1e9,
            self.total / calls / 1e9 if calls else 0.0,
            self.worst / 1e9,
            to_datetime(self.first),
            to_datetime(self.last),
        )


async def summarize_executions(engine: Engine, tenant: str, filter_: ExecutionFilter) -> HookStatisticsList:
    """Sum up recorded executions by hook. Their details are not read."""
    sums: dict[str, _Sums] = {}
    async for rows in scan_executions(engine, tenant, filter_, bodies=False):
        for row in rows:
            time, _, _, action, _, outcome, _, _, duration = row.columns
            each = sums.setdefault(str(action), _Sums())
            each.outcomes[str(outcome)] = each.outcomes.get(str(outcome), 0) + 1
            each.total += int(duration)
            each.worst = max(each.worst, int(duration))
            each.first, each.last = min(each.first, int(time)), max(each.last, int(time))
    return HookStatisticsList(each.statistics(hook) for hook, each in sorted(sums.items()))
