"""Event rows: what was done or tried, by whom, and why.

They are stored together with a step, which has a digest of them: a row that was altered, removed or added is
detected by the step, and an altered step by its hash.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, TypeAlias

from msgspec.msgpack import encode

from holdfast._named_tuple import NamedTuple
from holdfast.backends.interface import Change, Put, Row
from holdfast.backends.tables import EVENTS, Scalar
from holdfast.engine.model.scopes import MARK
from holdfast.engine.model.steps import digest_text
from holdfast.engine.namespaces import AGENTS
from holdfast.engine.row_format import Line, event_body
from holdfast.engine.trace_context import Trace

if TYPE_CHECKING:
    from holdfast.engine.protection import Protection

BETWEEN = "\t"
"""Separates a scope and a key in the target of a row that is not in the scope's own line. No name contains it."""

EventContent: TypeAlias = tuple[tuple[Scalar, ...], bytes]
"""The content of a row: its columns, and packed details."""


def place_of(name: str) -> str:
    """Return the scope that a row is about, by the name of its line. Changes of an agent are in the agent's scope."""
    name = name.removeprefix(MARK)
    return _AGENT + name.removeprefix(_AGENTS) if name.startswith(_AGENTS) else name


def lines_of(scope: str) -> list[str]:
    """Return the names of the lines with rows about a scope: that of its state, and that of its agent."""
    return [MARK + scope, *([MARK + _AGENTS + scope.removeprefix(_AGENT)] if scope.startswith(_AGENT) else [])]


_AGENT, _AGENTS = "agent:", AGENTS.removeprefix(MARK)


def correlation_of(kind: str, correlation: str, id: str) -> str:
    """Return the correlation id of a row, given its kind, what it has stored, and the id of its step. A change that
    belongs to nothing else has none stored: it is correlated with its own step."""
    return id if not correlation and kind == "change" else correlation


class Event(NamedTuple):
    """Something that was done or tried. `target` is a key of the scope whose line it is in, or a scope and a key."""

    kind: str
    actor: str
    action: str
    target: str
    outcome: str = "ok"
    duration: int = 0
    """In nanoseconds."""
    detail: bytes = b""
    """A packed dict; empty if there is none."""
    time: int = 0
    """The time; that of the step, if 0."""
    trace: Trace | None = None
    """The trace, where it is not that of the step."""


def event_contents(
    time: int, trace: Trace, events: Iterable[Event], protection: Protection | None = None
) -> list[EventContent]:
    """Return the contents of the rows of events, for a step with this time and trace. Sensitive data in their details
    is redacted."""
    return [
        (
            (own_time or time, kind, actor, action, target, outcome, *(own_trace or trace)[:2], duration),
            protection.redact(detail) if detail and protection is not None else detail,
        )
        for kind, actor, action, target, outcome, duration, detail, own_time, own_trace in events
    ]


def rows(line: Line, id: str, contents: Sequence[EventContent], first: int = 0) -> list[Change]:
    """Return the changes that store rows of the step with this id, numbered from the first number on."""
    return [
        Put(EVENTS, Row((*line, id, number), columns, event_body(detail) if detail else b""))
        for number, (columns, detail) in enumerate(contents, first)
    ]


def digest(contents: Sequence[tuple[Sequence[Scalar], bytes]]) -> str:
    """Return the digest of rows for their step."""
    return digest_text(hashlib.sha256(encode([(*columns, detail) for columns, detail in contents])).digest())
