"""Records of what is done to threads.

A step of a thread says itself who saved it and why. For everything else there is a row in the line of the audit, which
is stored in the same batch as the change. What removes or replaces something, protects it or lets it out of the store
is always recorded, with what was there before; the rest only if an identity does it, or it has a correlation id or a
cause.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from holdfast.backends.interface import Batch
from holdfast.engine import trace_context
from holdfast.engine.append import AppendRequest
from holdfast.engine.append_batch import ChangeRefused
from holdfast.engine.context import Apply
from holdfast.engine.engine import Engine
from holdfast.engine.events import BETWEEN, Event
from holdfast.engine.guard import Authority, current_authority
from holdfast.engine.model.scopes import THREAD, place_of_line
from holdfast.engine.namespaces import AUDIT, is_thread
from holdfast.engine.row_format import ERASE, Line
from holdfast.engine.system_line import SystemLine
from holdfast.security.audit.recorder import add_events
from holdfast.security.audit.removals import ARRIVED, REMOVED, find_removed, plain_records
from holdfast.security.audit.retain import REMOVE

_OF_KEYS = {"rotate-keys", "schedule-key", "keep-key", "destroy-key", "create-signing-key"}
_OF_SUBJECTS = {"erase", "erased", "set-subject"}
_OF_PROTECTION = {"hold", "release", "unpin", "set-owner", "expire"}
_OF_THREADS = {"delete", "delete-branch", "prune", "export", "import", "copied", *_OF_PROTECTION}
ALWAYS = _OF_KEYS | _OF_SUBJECTS | _OF_THREADS
"""The actions that are always recorded."""

REPLACING = {"tag", "untag", "label", "unlabel", "pin", "rename-branch"}
"""The actions that are always recorded where something was there before."""

CHANGING = REPLACING | {
    *("prune", "delete", REMOVE, "delete-branch", ERASE, "unpin", "release", "set-owner", "hold"),
    *("import", "restore", "copied"),
}
"""The actions whose records may say what lines had before, or what came from elsewhere."""

_AT_ONCE = 500
"""How many records a step has at most."""

Detail: TypeAlias = "Mapping[str, Any] | Callable[[], Mapping[str, Any]] | None"
"""The details of a record, or a function that returns them when the change is applied."""


def recorded(
    engine: Engine, lines: Line | Sequence[Line], action: str, detail: Detail = None, *, is_limited: bool = False
) -> Apply:
    """Return how to apply a change of lines: with the conditions of the current authority, and together with records
    of it, one for each line. With `is_limited`, within the quota of the tenant."""
    authority, trace = current_authority(), trace_context.current()
    every = [lines] if isinstance(lines, Line) else lines
    plain = engine.context.apply if is_limited else engine.context.backend.apply
    is_recorded = bool(action in ALWAYS or authority.actor or trace.correlation or trace.cause)
    if not (is_recorded or action in REPLACING):
        return plain

    async def apply(batch: Batch) -> int | None:
        again = False
        while True:
            removed, conditions = await find_removed(engine.context.backend, batch, names=action != ERASE)
            if not (is_recorded or removed):
                return await plain(batch)
            if authority.preconditions is not None:
                conditions += await authority.preconditions(again)
            found = detail() if callable(detail) else detail
            about = {**(found or {}), **({REMOVED: plain_records(removed)} if removed else {})}
            request = record_request(engine, every, action, about, authority)
            request.other_changes, request.is_limited = [*conditions, *batch], is_limited
            try:
                await engine.writer.save(request)
            except ChangeRefused as refused:
                if refused.index >= len(conditions):
                    return refused.index - len(conditions)
                again = True
            else:
                return None

    return apply


async def record(
    engine: Engine, lines: Sequence[Line], action: str, detail: Detail = None, outcome: str = "ok"
) -> None:
    """Record something that changes nothing in the store."""
    for start in range(0, len(lines), _AT_ONCE):
        request = record_request(engine, lines[start : start + _AT_ONCE], action, detail, current_authority(), outcome)
        request.is_limited = False
        await engine.writer.save(request)


def record_request(
    engine: Engine,
    lines: Sequence[Line],
    action: str,
    detail: Detail,
    authority: Authority | None = None,
    outcome: str = "ok",
) -> AppendRequest:
    """Return the request for a step of the audit with records, one for each line, to be saved with others."""
    authority = authority or current_authority()
    audit = SystemLine(engine, Line(lines[0].tenant, AUDIT), authority.actor)
    found = detail() if callable(detail) else detail
    codec = engine.context.codec
    own = [codec.pack(each) if each else b"" for each in _details(found, lines)]
    events = [
        Event(
            THREAD if is_thread(line.name) else "change",
            authority.actor,
            action,
            f"{place_of_line(line.name)}{BETWEEN}",
            outcome,
            detail=packed,
        )
        for line, packed in zip(lines, own, strict=True)
    ]
    return audit.request("audit", lambda entries: add_events(audit, entries, events))


def _details(found: Mapping[str, Any] | None, lines: Sequence[Line]) -> Iterator[dict[str, Any]]:
    """Yield the details of each record: of what lines had and what came to them, each what is about its own line, and
    the first also what is about lines that have no record."""
    recorded_lines = {line.name for line in lines}
    for number, line in enumerate(lines):
        details = dict(found or {})
        for key in details.keys() & {REMOVED, ARRIVED}:
            about: Mapping[str, Any] = details.pop(key)
            names = [line.name, *(() if number else about.keys() - recorded_lines)]
            if own := {name: about[name] for name in names if name in about}:
                details[key] = own
        yield details
