"""The data of the pages of the timeline: events, a line each, together with the others of their run, as a waterfall."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any, NamedTuple
from urllib.parse import quote

from msgspec.structs import replace

from holdfast.engine.events import lines_of
from holdfast.engine.namespaces import HOOKS
from holdfast.engine.types import to_datetime
from holdfast.errors import InvalidError, NotFoundError
from holdfast.interfaces.http.forwards import to_nodes
from holdfast.interfaces.http.recording_routes import error_text, read_records, restore_call
from holdfast.interfaces.http.service import Call
from holdfast.interfaces.http.values import long_text
from holdfast.interfaces.web.attention import Reads
from holdfast.interfaces.web.page_renderer import query_text, segment
from holdfast.interfaces.web.places import place_address
from holdfast.interfaces.web.record_list import list_values
from holdfast.recording.journal import Call as RecordedCall
from holdfast.store.timeline.event import TimelineEvent
from holdfast.time_parser import parse_time

FIELDS = ("query", "thread", "scope", "since", "until")
_LONGEST = 4000
_PAGE = 100
_RUNS = 200
"""Among so many of the latest runs, those that ended in the time of a page are looked for."""

_EVER = datetime.min.replace(tzinfo=UTC)

_CHECKPOINTS = 500
"""In so many checkpoints, results of tools that failed are looked for."""

_SUMMARY = 200

_THINNEST = 0.6
"""The least width of a bar, in percent."""

ICONS: Mapping[str, str] = {
    "checkpoint": "M8 3a5 5 0 1 1 0 10a5 5 0 1 1 0-10",
    "thread": "M3 4h10M3 8h10M3 12h6",
    "change": "M3 13l1-4 7-7 3 3-7 7z",
    "hook": "M8 2v8a3 3 0 0 1-6 0M8 4h4",
    "transition": "M2 5h11l-3-3M14 11H3l3 3",
    "lifecycle": "M4 3l9 5-9 5z",
    "transfer": "M2 8h9M8 4l4 4-4 4M14 3v10",
    "recovery": "M13 8a5 5 0 1 1-2-4M11 1v3H8",
    "agent": "M8 2l6 6-6 6-6-6z",
    "step": "M2 2h12v12H2zM5 8l2 3 4-6",
    "session": "M8 2a6 6 0 1 1 0 12a6 6 0 1 1 0-12M8 5v3l3 2",
    "artifact": "M4 1h6l3 3v11H4zM10 1v3h3",
    "access": "M5 11a3 3 0 1 1 2-5l6-4 1 2-2 1 1 2-2 1-1-1-2 1a3 3 0 0 1-3 3",
    "read": "M1 8c4-6 10-6 14 0c-4 6-10 6-14 0M8 6a2 2 0 1 1 0 4a2 2 0 1 1 0-4",
    "denied": "M8 2a6 6 0 1 1 0 12a6 6 0 1 1 0-12M4 4l8 8",
    "schema": "M2 3h12v10H2zM2 7h12M7 7v6",
    "job": "M8 5a3 3 0 1 1 0 6a3 3 0 1 1 0-6M8 1v3M8 12v3M1 8h3M12 8h3",
    "run": "M2 3l5 5-5 5M9 3l5 5-5 5",
    "model": "M8 2l1.5 4.5L14 8l-4.5 1.5L8 14l-1.5-4.5L2 8l4.5-1.5z",
    "tool": "M10 2a4 4 0 0 0-3 6l-5 5 1.5 1.5 5-5a4 4 0 0 0 5-5l-2 2-2-1-1-2z",
    "call": "M6 2c-3 0 0 5-4 6c4 1 1 6 4 6M10 2c3 0 0 5 4 6c-4 1-1 6-4 6",
}
"""The outline of the icon of each kind, in a square of 16."""


class EventLine(NamedTuple):
    """An event, as a line."""

    event: TimelineEvent
    title: str
    """The node that a checkpoint is of, or the action."""
    address: str
    """The page of what it is about."""
    icon: str
    seconds: float
    """How long it took: of a checkpoint, since the one before."""
    x: float
    width: float
    """Where its bar begins, and how wide it is, in percent of the group."""


class EventGroup(NamedTuple):
    """The events of a page with one correlation id or trace, or the checkpoints of one thread. The latest is first."""

    correlation: str
    """Empty where they have nothing in common but the thread."""
    place: str
    address: str
    lines: Sequence[EventLine]
    seconds: float
    failed: int


def timeline_values(call: Call, params: Mapping[str, str]) -> dict[str, Any]:
    """Return what the timeline shows: a page of events, by their runs."""
    errors = params.get("errors") == "true"
    values = list_values(call.store.timeline.query, params, FIELDS, _PAGE, errors=errors)
    given, events = values["given"], list[TimelineEvent](values["items"])
    oldest = events[-1].time if values["next"] and events else None
    values |= {"looked": 0, "before": oldest.isoformat() if oldest else "", "errors": errors, "groups": []}
    if values["problem"]:
        return values
    now = datetime.now(UTC)
    since = parse_time(given["since"], now) if given["since"] else _EVER
    until = parse_time(params.get("before") or given["until"] or now, now)
    begin = max(since, oldest) if oldest else since
    if errors:
        begun, ended = None if begin == _EVER else begin, until if until < now else None
        tools, values["looked"] = _failed_tools(call, given, begun, ended)
        events = sorted([*events, *tools], key=lambda each: each.time, reverse=True)
    if not (call.caller.identity or given["query"] or given["thread"] or given["scope"]):
        work = [each for each in _work(call) if begin <= each.time < until and (each.failed or not errors)]
        events = sorted([*events, *work], key=lambda each: each.time, reverse=True)
    if given["thread"] and not (call.caller.identity or errors):  # their reads are recorded
        events = sorted([*events, *_calls(call, events)], key=lambda each: each.time, reverse=True)
    return {**values, "items": events, "groups": group_events(events)}


def _work(call: Call) -> list[TimelineEvent]:
    """Return the runs of jobs, of graphs and of agents that ended, as events: they are in records of their own. Of
    damaged ones, the overview says that they are."""
    reads = Reads()
    events: list[TimelineEvent] = []
    for job in reads.attempt("Jobs", lambda: list(call.owned.jobs.list())) or []:
        for done in job.runs:
            outcome = "skipped" if done.outcome == "stopped" else done.outcome
            why = done.error or done.summary
            events += _work_event("job", job.kind, job.name, done.started, done.ended, outcome, why)
    for run in reads.attempt("Runs", lambda: call.owned.runs.list(limit=_RUNS)) or []:
        outcome = "error" if run.state == "failed" else "ok"
        events += _work_event("run", run.graph, run.id, run.started or run.created, run.ended, outcome, run.error)
    return events


def _failed_tools(
    call: Call, given: Mapping[str, str], since: datetime | None, until: datetime | None
) -> tuple[list[TimelineEvent], int]:
    """Return the checkpoints of a time that added the result of a tool that failed, which no column says; and how
    many were read, if there are more."""
    query = f"kind:checkpoint ({given['query']})" if given["query"] else "kind:checkpoint"
    page = call.store.timeline.query(
        query,
        thread=given["thread"] or None,
        scope=given["scope"] or None,
        since=since,
        until=until,
        limit=_CHECKPOINTS,
        scan_limit=_CHECKPOINTS,
    )
    failed = [replace(each, outcome="error") for each in page if each.detail.get("failed_tool")]
    return failed, len(page) if page.next else 0


def _calls(call: Call, events: Sequence[TimelineEvent]) -> Iterator[TimelineEvent]:
    """Yield the recorded calls of models and tools that were made after the checkpoints of a page, with the run of
    these."""
    saved: dict[str, dict[str, TimelineEvent]] = {}
    for each in events:
        if each.kind == "checkpoint":
            saved.setdefault(each.thread, {})[each.id] = each
    for thread, points in saved.items():
        for id, records in zip(points, read_records(call, thread, [*points]), strict=True):
            for record in records:
                for number, made in enumerate(map(restore_call, record.get("calls", ()))):
                    if made.began:
                        yield _call_event(points[id], f"{record.get('key', '')}#{number}", made)


def _call_event(after: TimelineEvent, name: str, made: RecordedCall) -> TimelineEvent:
    error = error_text(made.error) if made.end else "did not end"
    return replace(
        after,
        time=to_datetime(made.began + made.took),
        kind=made.kind,
        action=made.name,
        outcome="error" if error else "ok",
        duration=made.took / 1e9,
        id="",
        summary=error[:_SUMMARY],
        detail={"checkpoint": after.id, "call": name},
    )


def _work_event(
    kind: str, action: str, key: str, started: datetime, ended: datetime | None, outcome: str, summary: str
) -> list[TimelineEvent]:
    """Return a run as an event; none if it has not ended."""
    if ended is None:
        return []
    event = TimelineEvent(
        time=ended,
        kind=kind,
        action=action,
        scope=f"{kind}s",
        key=key,
        actor="",
        outcome=outcome,
        duration=max(0.0, (ended - started).total_seconds()),
        correlation="",
        cause="",
        id="",
        number=0,
        summary=summary,
        detail={},
    )
    return [event]


def group_events(events: Sequence[TimelineEvent]) -> list[EventGroup]:
    """Group the events of a page by their runs, in the order of the latest event of each."""
    groups: dict[str, list[TimelineEvent]] = {}
    for each in events:
        groups.setdefault(each.trace_id or each.correlation or f"{each.scope}\0", []).append(each)
    return [_group(found) for found in groups.values()]


def _group(events: Sequence[TimelineEvent]) -> EventGroup:
    took = _durations(events)
    # The time of an event is that of its record, at its end.
    starts = [each.time.timestamp() - seconds for each, seconds in zip(events, took, strict=True)]
    first = min(starts)
    whole = max(each.time.timestamp() for each in events) - first
    lines = []
    for each, seconds, start in zip(events, took, starts, strict=True):
        width = max(_THINNEST, 100 * seconds / whole) if whole else 0.0
        x = min(100 * (start - first) / whole, 100 - width) if whole else 0.0
        title = ", ".join(str(node).strip("_") for node in each.detail.get("nodes", ()))
        address = _hook_address(each) if each.kind == "hook" else place_address(each)
        if called := each.detail.get("call"):
            address += f"/recording#{quote(str(called), safe='')}"
        icon = ICONS.get(each.kind, ICONS["thread"])
        lines.append(EventLine(each, title or each.action, address, icon, seconds, round(x, 2), round(width, 2)))
    last = events[-1]
    correlation = last.correlation or last.trace_id
    return EventGroup(correlation, last.scope, place_address(last), lines, whole, sum(each.failed for each in events))


def _durations(events: Sequence[TimelineEvent]) -> list[float]:
    """Return how long each event took: what was measured, or of a checkpoint the time since the one before."""
    saved: dict[tuple[str, object], list[int]] = {}
    for number, each in enumerate(events):
        if each.kind == "checkpoint":
            saved.setdefault((each.scope, each.detail.get("branch")), []).append(number)
    took = [each.duration for each in events]
    for numbers in saved.values():
        for later, earlier in pairwise(numbers):
            took[later] = max(took[later], (events[later].time - events[earlier].time).total_seconds())
    return took


def event_values(call: Call, id: str) -> dict[str, Any]:
    """Return what the page of an event shows: what led to it, and what it led to."""
    causes, effects = to_nodes(call.store.timeline.causes(id)), to_nodes(call.store.timeline.effects(id))
    events = [
        (each, _detail(each.detail), _hook_address(each) if each.kind == "hook" else place_address(each))
        for each in effects[0].events
    ]
    return {"id": id, "events": events, "causes": causes[1:], "effects": effects[1:]}


def _detail(detail: Mapping[str, Any]) -> str:
    return long_text(dict(detail), _LONGEST)[0] if detail else ""


# Calls of hooks ---------------------------------------------------------------------------------------------------


def _hook_address(each: TimelineEvent) -> str:
    return f"/hooks/events/{segment(each.id)}/{each.number}{query_text(scope=each.scope, hook=each.action)}"


def find_hook_call(call: Call, id: str, number: str, params: Mapping[str, str]) -> str:
    """Return the page of the call of a hook that an event is about; or of the calls of the hook, if it has none any
    more."""
    scope = params.get("scope", "")
    for line in (*lines_of(scope), HOOKS, scope.removeprefix("thread:")):
        reference = f"{number}/{quote(id, safe='')}/{quote(line, safe='')}"
        try:
            call.owned.hooks.get(reference)
        except (NotFoundError, InvalidError):
            continue
        return f"/hooks/calls/{segment(reference)}"
    return f"/hooks{query_text(hook=params.get('hook', ''))}"
