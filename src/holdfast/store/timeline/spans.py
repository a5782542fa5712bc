"""Events as spans of OpenTelemetry, in the JSON of its protocol (OTLP)."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from typing import Any

from holdfast.engine.types import to_time
from holdfast.store.timeline.event import TimelineEvent

_TRACE = re.compile("[0-9a-f]{32}")
_INTERNAL = 1
_ERROR = 2
"""The kind of a span inside of a program, and the status of one that failed, by their numbers in the protocol."""

_NAMES = ("kind", "action", "scope", "key", "actor", "outcome", "correlation", "cause", "id", "summary")


def to_otlp(events: Iterable[TimelineEvent]) -> dict[str, Any]:
    """Return events as a request to export spans, which a collector takes as JSON.

    Events that happened in a span are children of it. Others of one correlation are a trace, and are children of their
    causes, or are linked to them if these are in another trace. Ids are derived from those of the events: to export
    them twice makes no other spans.
    """
    found = list(events)
    traces = {event.id: _trace_id(event) for event in reversed(found)}
    return {
        "resourceSpans": [
            {
                "resource": {"attributes": [_attribute("service.name", "holdfast")]},
                "scopeSpans": [
                    {
                        "scope": {"name": "holdfast.timeline"},
                        "spans": [_span(event, traces) for event in found],
                    }
                ],
            }
        ]
    }


def _span(event: TimelineEvent, traces: Mapping[str, str]) -> dict[str, Any]:
    end, trace, links = to_time(event.time), _trace_id(event), list[dict[str, str]]()
    parent = event.span_id
    if not parent and event.cause:
        parent, other = _span_id(event.cause, 0), traces.get(event.cause, trace)
        if other != trace:
            parent, links = "", [{"traceId": other, "spanId": parent}]
    elif not parent and event.number:
        parent = _span_id(event.id, 0)  # further events of a step are parts of the first
    return {
        "traceId": trace,
        "spanId": _span_id(event.id, event.number),
        "parentSpanId": parent,
        "name": f"{event.kind} {event.action}",
        "kind": _INTERNAL,
        "startTimeUnixNano": str(end - round(event.duration * 1e9)),
        "endTimeUnixNano": str(end),
        "attributes": [
            _attribute(f"holdfast.{name}", value) for name in _NAMES if (value := str(getattr(event, name)))
        ],
        "links": links,
        "status": {"code": _ERROR, "message": event.summary or event.outcome} if event.failed else {},
    }


def _attribute(name: str, value: str) -> dict[str, Any]:
    return {"key": name, "value": {"stringValue": value}}


def _trace_id(event: TimelineEvent) -> str:
    correlation = event.correlation or event.id
    if event.trace_id or _TRACE.fullmatch(correlation):
        return event.trace_id or correlation
    return hashlib.sha256(f"holdfast trace\0{correlation}".encode()).hexdigest()[:32]


def _span_id(id: str, number: int) -> str:
    return hashlib.sha256(f"holdfast span\0{id}\0{number}".encode()).hexdigest()[:16]
