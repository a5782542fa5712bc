"""Short lines, many of them at once: their rows as of one moment, with few requests, and their check without more.

Most lines of a store with many threads have a few rows. To read and check them one by one takes dozens of requests for
each. What is long, or cannot be read, is left to those who read line by line.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from holdfast.backends.interface import Backend, Query, Row, Scan
from holdfast.backends.paging import UNREADABLE
from holdfast.backends.tables import FOLDS, LINES, NODES, OBJECTS, REFS, STEPS, Table
from holdfast.engine.context import EngineContext
from holdfast.engine.copy.line_stream import LINE_TABLES
from holdfast.engine.integrity.check import GivenRows, LineRows
from holdfast.engine.integrity.verify import look_at_rows
from holdfast.engine.row_format import LEASE, Line, StepRef

GROUP = 256
"""How many lines are read together."""
_ROWS, _BYTES = 1024, 2 << 20
"""How many rows of a table, and about how many bytes of steps, are read together."""
_LONG = (FOLDS, NODES, OBJECTS)
"""Tables in which a short line has no rows."""
_TABLES = (LINES, *LINE_TABLES)


async def read_short_lines(context: EngineContext, lines: Sequence[Line]) -> dict[Line, LineRows]:
    """Read the first of some lines, as many of them as are of one tenant, in order and short, as of one moment; without
    leases.

    A line that the store lacks has no rows. The answer is empty if the first
    one is long or cannot be read, or if names are hidden, so that rows are in another order.
    """
    if context.rows.hides_names:
        return {}
    lines, found = await _read(context.backend, lines, _TABLES)
    rows_of: dict[Line, dict[Table, list[Row]]] = {line: {} for line in lines}
    for table, rows in found.items():
        for row in rows:
            own = rows_of.get(_line_of(row))
            if own is not None and not (table is REFS and row.key[2] == LEASE):
                own.setdefault(table, []).append(row)
    return {**rows_of}


async def read_stored_lines(
    context: EngineContext, lines: Sequence[Line], also: Sequence[Table] = ()
) -> dict[Line, LineRows]:
    """Read the first of some lines as they are stored, with their leases and their rows in further tables. None of them
    comes after rows of a line that is not among them.

    None is read if the store is encrypted, or where `read_short_lines` would read none.
    """
    if context.rows.hides_columns:
        return {}
    rows_of: dict[Line, dict[Table, list[Row]]] = {line: {} for line in lines}
    short, found = await _read(context.stored, lines, (*_TABLES, *also))
    others: list[str] = []
    for table, rows in found.items():
        for row in rows:
            own = rows_of.get(line := _line_of(row))
            if own is None:
                others.append(line.name)
            else:
                own.setdefault(table, []).append(row)
    first = min(others, default=None)
    return {line: rows_of[line] for line in short if first is None or line.name < first}


async def _read(
    backend: Backend, lines: Sequence[Line], tables: Sequence[Table]
) -> tuple[list[Line], Mapping[Table, Sequence[Row]]]:
    """Return the first of some lines that are short, and the rows that come from the first of them on."""
    ordered = list(lines[:1])
    for line in lines[1:]:
        if line.tenant != lines[0].tenant or line.name <= ordered[-1].name:
            break
        ordered.append(line)
    if not ordered:
        return [], {}
    lines = ordered
    try:
        scans = [_scan(STEPS, lines, bodies=False), *(_scan(table, lines, limit=1, bodies=False) for table in _LONG)]
        steps, *long = await backend.read(scans)
        lines = _fitting(_before(lines, [steps, *(rows * _ROWS for rows in long)]), steps)
        if not lines:
            return [], {}
        queries: list[Query] = [_scan(table, lines, limit=1 if table in _LONG else _ROWS) for table in tables]
        found = await backend.read(queries)
    except UNREADABLE:
        return [], {}
    short = _before(
        lines, [rows * _ROWS if table in _LONG else rows for table, rows in zip(tables, found, strict=True)]
    )
    return short, dict(zip(tables, found, strict=True))


def _line_of(row: Row) -> Line:
    return Line(str(row.key[0]), str(row.key[1]))


async def sound_lines(context: EngineContext, group: Mapping[Line, LineRows]) -> dict[Line, LineRows]:
    """Recompute the hashes of lines, and return those before the first that is not sound."""
    sound: dict[Line, LineRows] = {}
    for line, rows in group.items():
        if (await look_at_rows(context, line, GivenRows(rows, opened=True))).findings:
            break
        sound[line] = rows
    return sound


def _scan(table: Table, lines: Sequence[Line], *, limit: int = _ROWS, bodies: bool = True) -> Scan:
    first, last = lines[0], lines[-1]
    return Scan(table, (first.tenant,), (first.name,), (last.name + "\0",), limit=limit, bodies=bodies)


def _before(lines: Sequence[Line], found: Sequence[Sequence[Row]]) -> list[Line]:
    """Return the lines of which no scan has reached its limit."""
    cuts = [str(rows[-1].key[1]) for rows in found if len(rows) >= _ROWS]
    return [line for line in lines if all(line.name < cut for cut in cuts)]


def _fitting(lines: Sequence[Line], steps: Sequence[Row]) -> list[Line]:
    """Return the first lines that do not have too many bytes together."""
    total = 0
    for row in steps:
        total += StepRef.of(row).size
        if total > _BYTES:
            return [line for line in lines if line.name < str(row.key[1])]
    return list(lines)
