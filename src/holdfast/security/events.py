"""Rows that tell what was done or tried, by whom, and why."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from holdfast.backends.port import Change, Put, Row
from holdfast.backends.spaces import EVENTS
from holdfast.engine.records import Line, event_body
from holdfast.security.tracing import Trace


class Event(NamedTuple):
    """One thing that was done or tried. `target` is a key of the scope whose line it is in, or a scope and a key."""

    kind: str
    actor: str
    action: str
    target: str
    outcome: str = "ok"
    duration: int = 0
    """In nanoseconds."""
    detail: bytes = b""
    """A packed dict; empty for none."""


def rows(line: Line, id: str, time: int, trace: Trace, events: Sequence[Event]) -> list[Change]:
    """The changes that store events, as those of the step with this id."""
    return [
        Put(
            EVENTS,
            Row(
                (*line, id, number),
                (
                    time,
                    event.kind,
                    event.actor,
                    event.action,
                    event.target,
                    event.outcome,
                    trace.correlation,
                    trace.cause,
                    event.duration,
                ),
                event_body(line, id, number, event.detail) if event.detail else b"",
            ),
        )
        for number, event in enumerate(events)
    ]
