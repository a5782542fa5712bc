"""Rows that tell what was done or tried, by whom, and why.

They are made together with a step, whose metadata holds a digest of them: who alters a row, leaves one out or adds one
is found out by the step, and who alters the step, by its hash.
"""

from __future__ import annotations

import hashlib
from binascii import b2a_base64
from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeAlias

from msgspec.msgpack import encode

from holdfast.backends.interface import Change, Put, Row
from holdfast.backends.tables import EVENTS, Scalar
from holdfast.engine.model.scopes import MARK
from holdfast.engine.namespaces import AGENTS
from holdfast.engine.row_format import Line, event_body
from holdfast.engine.trace_context import Trace

DIGEST = "events"
"""Where the metadata of a step holds the digest of its rows."""

BETWEEN = "\t"
"""Stands between a scope and a key in the target of a row that is not in the scope's own line. No name has one."""

Told: TypeAlias = tuple[tuple[Scalar, ...], bytes]
"""What a row says: its columns, and packed details."""

_FOR_URLS = bytes.maketrans(b"+/", b"-_")


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


def told(time: int, trace: Trace, events: Iterable[Event]) -> list[Told]:
    """What the rows of events say, those of a step that was made at this time and belongs to this."""
    return [
        (
            (at or time, kind, actor, action, target, outcome, *(why or trace)[:2], duration),
            detail,
        )
        for kind, actor, action, target, outcome, duration, detail, at, why in events
    ]


def rows(line: Line, id: str, told: Sequence[Told], first: int = 0) -> list[Change]:
    """The changes that store rows, as those of the step with this id; numbered from the first number on."""
    return [
        Put(EVENTS, Row((*line, id, number), columns, event_body(line, id, number, detail) if detail else b""))
        for number, (columns, detail) in enumerate(told, first)
    ]


def digest(told: Sequence[tuple[Sequence[Scalar], bytes]]) -> str:
    """What the metadata of their step says of rows."""
    found = hashlib.sha256(encode([(*columns, detail) for columns, detail in told])).digest()
    return b2a_base64(found, newline=False).translate(_FOR_URLS, b"=").decode()
