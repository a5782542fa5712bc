"""Events of the timeline, and how they are made of rows."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple

import msgspec

from holdfast._fields import Hidden
from holdfast.backends.tables import STEPS
from holdfast.engine.events import BETWEEN
from holdfast.engine.model.scopes import MARK, THREAD, Scope, parse_place
from holdfast.engine.model.steps import NO_ORIGIN, StepOrigin
from holdfast.engine.namespaces import AUDIT, is_thread
from holdfast.engine.row_format import ORIGIN
from holdfast.engine.types import to_datetime
from holdfast.errors import InvalidError
from holdfast.security.audit.query import EventColumns
from holdfast.store.timeline.rows import TimedRow

CHECKPOINT, STEP = "checkpoint", "step"
"""The kinds of events that are steps of threads, and durable steps of agents."""

SUCCESSES = frozenset({"ok", "changed", "skipped"})
"""The outcomes of what did not fail."""

_OF_AUDIT = frozenset({"read", "denied"})
"""The kinds of most events that are recorded in the line of the audit, and were never elsewhere."""

_THREAD = f"{THREAD}:"
_STEPS = "/steps:main"
_SPAN = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}")


class TimelineEvent(msgspec.Struct, frozen=True):
    """Something that happened.

    `kind` is `checkpoint`, `change` of a key, `hook`, `transition`, `lifecycle`, `transfer`, `recovery`, `agent`,
    `step` (a durable one), `session`, `artifact`, `thread`, `access` (of rights), `read`, `denied` or `schema`. `scope`
    is a scope, or another place in the store, such as `thread:chat-1` or `sessions`. `id` is that of the step that
    recorded it, which others have as their `cause`.
    """

    time: datetime
    kind: str
    action: str
    scope: str
    key: str
    actor: Hidden[str]
    outcome: str
    duration: Hidden[float]
    """In seconds."""
    correlation: Hidden[str]
    cause: Hidden[str]
    id: Hidden[str]
    number: Hidden[int]
    """Its number among the events of the step, from 0 on."""
    summary: str
    """The change in short, `messages +2 · human: Hello`; or what went wrong."""
    detail: Hidden[Mapping[str, Any]]
    trace_id: Hidden[str] = ""
    """The id of the OpenTelemetry trace that it happened in, and of the span; empty if there was none."""
    span_id: Hidden[str] = ""

    @property
    def thread(self) -> str:
        """The name of the thread that it is about; empty if it is about something else."""
        return parse_place(self.scope).thread if self.scope.startswith(_THREAD) else ""

    @property
    def failed(self) -> bool:
        """Whether it failed, or was refused."""
        return self.outcome not in SUCCESSES


class EventFields(NamedTuple):
    """The columns of an event, before its content is read."""

    time: int
    kind: str
    action: str
    scope: str
    key: str
    actor: str
    outcome: str
    duration: int
    correlation: str
    cause: str
    id: str
    number: int
    retained: bool = False
    """Whether its line may have been removed since: then its details have its id."""

    @classmethod
    def of(cls, row: TimedRow) -> EventFields:
        """Return the columns of a row."""
        if row.table is STEPS:
            point, origin = row.point, origin_of(row)
            place = str(Scope.of_thread(row.position.line))
            return cls(point.time, CHECKPOINT, point.kind, place, "", origin.actor, "ok", 0, *origin[1:], point.id, 0)
        event = EventColumns.of(row.row)
        kind, scope, key = event.kind, event.scope, event.key
        if is_thread(row.position.line) and BETWEEN not in str(row.row.columns[4]):
            scope = str(Scope.of_thread(row.position.line))
        elif scope.endswith(_STEPS):
            kind, scope = STEP if kind == "change" else kind, scope.removesuffix(_STEPS)
        return cls(
            event.time,
            kind,
            event.action,
            scope,
            key,
            event.actor,
            event.outcome,
            event.duration,
            event.correlation,
            event.cause,
            str(row.row.key[2]),
            row.position.second,
            row.position.line == AUDIT and event.kind not in _OF_AUDIT,
        )

    def event(self, summary: str, detail: Mapping[str, Any]) -> TimelineEvent:
        """Return the event."""
        trace, span = span_of(self.cause)
        cause = "" if span else self.cause
        return TimelineEvent(
            to_datetime(self.time),
            *self[1:7],
            self.duration / 1e9,
            self.correlation,
            cause,
            self.id,
            self.number,
            summary,
            detail,
            trace,
            span,
        )


def span_of(cause: str) -> tuple[str, str]:
    """Return the ids of the trace and the span that are recorded as a cause; empty if it is another one."""
    match = _SPAN.fullmatch(cause)
    return (match[1], match[2]) if match else ("", "")


def origin_of(row: TimedRow) -> StepOrigin:
    """Return who saved a step of a thread and why, by its row."""
    text = row.point.metadata
    if ORIGIN not in text:
        return NO_ORIGIN
    try:
        found = json.loads(text)[ORIGIN]
        return StepOrigin(*map(str, found))
    except (ValueError, KeyError, TypeError):
        return NO_ORIGIN  # an entry of the application's own metadata has this text


def _scope_of(text: str) -> Scope | None:
    return Scope.of_line(MARK + text)


def readable_scope(fields: EventFields) -> Scope | None:
    """Return the scope or thread whose reader may see an event; None if nobody but the store's owner may."""
    if fields.kind == "session":
        try:
            return Scope.of(session=fields.key)
        except InvalidError:
            return None
    if fields.scope.startswith(_THREAD):
        return parse_place(fields.scope)
    return _scope_of(fields.scope)
