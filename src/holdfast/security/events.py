"""Rows that tell what was done or tried, by whom, and why.

They are made together with a step, whose metadata holds a digest of them: who alters a row, leaves one out or adds one
is found out by the step, and who alters the step, by its hash.
"""

from __future__ import annotations

import hashlib
from base64 import urlsafe_b64encode
from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeAlias

from msgspec.msgpack import encode

from holdfast.backends.port import Change, Put, Row
from holdfast.backends.spaces import EVENTS, Scalar
from holdfast.engine.namespaces import AGENTS
from holdfast.engine.records import Line, event_body
from holdfast.model.scopes import MARK
from holdfast.security.tracing import Trace

DIGEST = "events"
"""Where the metadata of a step holds the digest of its rows."""

BETWEEN = "\t"
"""Stands between a scope and a key in the target of a row that is not in the scope's own line. No name has one."""

Told: TypeAlias = tuple[Sequence[Scalar], bytes]
"""What a row says: its columns, and packed details."""


def place_of(name: str) -> str:
    """The scope that a row tells of, by the name of the line that it is in, or was in. What is done with an agent is
    done in the agent's scope."""
    name = name.removeprefix(MARK)
    return _AGENT + name.removeprefix(_AGENTS) if name.startswith(_AGENTS) else name


def lines_of(scope: str) -> list[str]:
    """The names of the lines whose rows tell of a scope: that of its state, and that of the agent whose scope it is."""
    return [MARK + scope, *([MARK + _AGENTS + scope.removeprefix(_AGENT)] if scope.startswith(_AGENT) else [])]


_AGENT, _AGENTS = "agent:", AGENTS.removeprefix(MARK)


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
    time: int = 0
    """When it was; that of the step, if 0."""
    trace: Trace | None = None
    """What it belongs to, where that is not what the step belongs to."""


def _columns(time: int, trace: Trace, event: Event) -> tuple[Scalar, ...]:
    why = event.trace or trace
    return (
        event.time or time,
        event.kind,
        event.actor,
        event.action,
        event.target,
        event.outcome,
        why.correlation,
        why.cause,
        event.duration,
    )


def rows(line: Line, id: str, time: int, trace: Trace, events: Sequence[Event], first: int = 0) -> list[Change]:
    """The changes that store events, as those of the step with this id; numbered from the first number on."""
    return [
        Put(
            EVENTS,
            Row(
                (*line, id, number),
                _columns(time, trace, event),
                event_body(line, id, number, event.detail) if event.detail else b"",
            ),
        )
        for number, event in enumerate(events, first)
    ]


def digest(time: int, trace: Trace, events: Sequence[Event]) -> str:
    """What the metadata of their step says of events."""
    return digest_of((_columns(time, trace, event), event.detail) for event in events)


def digest_of(told: Iterable[Told]) -> str:
    """The same, of what rows say."""
    found = hashlib.sha256(encode([[*columns, detail] for columns, detail in told])).digest()
    return urlsafe_b64encode(found).decode().rstrip("=")
