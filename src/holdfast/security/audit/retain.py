"""Removing lines, and retaining their audit.

The audit rows of changes are in the line that was changed. Whoever may remove the line, as by ending a session or
trimming a topic, must not remove the record of their own actions with it: in the same batch the rows are written again,
to the line of the audit, whose hashes cover them from then on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from holdfast.backends.interface import Change, Delete, Expect, Row, Scan
from holdfast.backends.tables import EVENTS, LINES, STEPS, TABLES
from holdfast.engine.append import AppendRequest
from holdfast.engine.engine import Engine
from holdfast.engine.events import BETWEEN, Event, correlation_of
from holdfast.engine.guard import Preconditions
from holdfast.engine.hold_check import require_no_hold
from holdfast.engine.model.scopes import MARK
from holdfast.engine.namespaces import AUDIT
from holdfast.engine.row_format import Line, StepRef, open_body
from holdfast.engine.system_line import LineChange, SystemLine, SystemLineEntries
from holdfast.engine.trace_context import Trace
from holdfast.errors import HoldfastError
from holdfast.security.audit.recorder import add_events
from holdfast.security.audit.removals import REMOVED, find_removed, plain_records
from holdfast.security.encryption.key_rows import erased_key_changes

REMOVE = "remove"
"""The action of a removed line. The details are the number of its steps, and the hash of the last."""

STEP = "\0step"
"""The key in the details of a retained row that has the id of its original step."""

WITH_KEYS = frozenset({"change", "denied", "hook", "read"})
"""The kinds of rows with keys that a program chose; others have ids, and names of states."""


def removal_request(
    engine: Engine,
    lines: Sequence[Line],
    actor: str,
    guards: Preconditions | None = None,
    *,
    action: str = REMOVE,
    detail: Mapping[str, Any] | None = None,
    erase: bool = False,
) -> AppendRequest:
    """Return the request for the step of the audit that removes lines, to be saved alone or with others. `DeniedError`
    if one is held.

    A row for each line says who removed it, and what its last step was; `action` and `detail` are for this row. With
    `erase`, the other rows are retained without their details and keys, which may have content. The caller drops the
    lines from the cache.
    """
    line, unchanged = SystemLine(engine, Line(lines[0].tenant, AUDIT), actor), list[Change]()

    async def work_out(entries: SystemLineEntries) -> LineChange:
        # First how the lines end: whatever comes while the rest is read fails on that.
        held, ends = await require_no_hold(engine.context.backend, lines), await _last_steps(engine, lines)
        removed, same = await find_removed(engine.context.backend, [Delete(LINES, tuple(line)) for line in lines])
        nexts = ((*line, 0, 0 if end is None else end.seq + 1) for line, end in ends.items())
        unchanged[:] = [*held, *same, *(Expect(STEPS, key, None) for key in nexts)]
        # Of a line whose first row is damaged, or which somebody else has removed meanwhile, there is no more to say.
        records = {name: {REMOVED: {name: record}} for name, record in plain_records(removed).items()}
        gone = [
            _removal_event(engine, actor, line, end, action, {**(detail or {}), **records.get(line.name, {})})
            for line, end in ends.items()
            if end is not None
        ]
        retained = await _retained_events(engine, lines, details=not erase)
        return await add_events(line, entries, [*retained, *gone])

    async def conditions(again: bool) -> list[Change]:
        more = [] if guards is None else await guards(again)
        if erase:
            more = [*more, *await erased_key_changes(engine, lines)]
        return [*more, *unchanged, *(Delete(space, tuple(line)) for line in lines for space in TABLES)]

    return line.request("remove", work_out, conditions)


async def remove_lines(engine: Engine, lines: Sequence[Line], actor: str, guards: Preconditions | None = None) -> None:
    """Remove lines, and retain their audit."""
    await engine.writer.save(removal_request(engine, lines, actor, guards))
    for line in lines:
        engine.context.cache.drop_all(line)


async def _last_steps(engine: Engine, lines: Sequence[Line]) -> dict[Line, StepRef | None]:
    """Return the last step of each line; None if it has none."""
    heads = await engine.context.backend.read(
        [Scan(STEPS, (*line, 0), reverse=True, limit=1, bodies=False) for line in lines]
    )
    return {line: StepRef.of(rows[0]) if rows else None for line, rows in zip(lines, heads, strict=True)}


def _removal_event(
    engine: Engine, actor: str, line: Line, end: StepRef, action: str, about: Mapping[str, Any]
) -> Event:
    detail = engine.context.codec.pack({"steps": end.seq + 1, "head": end.hash.hex(), **about})
    return Event("change", actor, action, f"{line.name.removeprefix(MARK)}{BETWEEN}", detail=detail)


async def _retained_events(engine: Engine, lines: Iterable[Line], *, details: bool) -> list[Event]:
    """Return the audit of lines as events, in the order in which they were written."""
    found = await engine.context.stored.read([Scan(EVENTS, tuple(line)) for line in lines])
    rows = sorted((row for rows in found for row in rows), key=lambda row: row.key[2:])
    return [_retained_event(engine, row, details=details) for row in rows]


def _retained_event(engine: Engine, row: Row, *, details: bool) -> Event:
    """Return a row as an event of another line."""
    name, id = str(row.key[1]), str(row.key[2])
    rows, codec, detail = engine.context.rows, engine.context.codec, {}
    columns = rows.salvage(EVENTS, row).columns
    time, kind, actor, action, target, outcome, correlation, cause, duration = columns
    try:
        row = rows.decode(EVENTS, row)
        if row.body and details:
            detail = codec.unpack(open_body(row, engine.context.max_bytes))
    except HoldfastError as error:  # it is damaged: the columns say the rest all the same
        detail = {"damaged": error.what}
    place, between, key = str(target).rpartition(BETWEEN)
    return Event(
        str(kind),
        str(actor),
        str(action),
        f"{place if between else name.removeprefix(MARK)}{BETWEEN}{key if details or kind not in WITH_KEYS else ''}",
        str(outcome),
        int(duration),
        codec.pack({**detail, STEP: id}),
        int(time),
        Trace(correlation_of(str(kind), str(correlation), id), str(cause)),
    )
