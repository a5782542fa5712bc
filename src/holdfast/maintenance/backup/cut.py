"""Lines as they were at an earlier point: how their rows are made from those that backups have."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from holdfast.backends.interface import Row
from holdfast.backends.tables import BRANCHES, EVENTS, FOLDS, LINES, LINKS, REFS, STEPS, WRITES, Scalar
from holdfast.engine.checked_rows import CHECKSUMS
from holdfast.engine.row_format import Line, info_of, info_row
from holdfast.maintenance.backup.format import LineEntry
from holdfast.maintenance.backup.line_rows import LineRows


class Cut(NamedTuple):
    """A line at a point: the backups' entries of it that are needed, and what makes its rows from theirs."""

    sources: Sequence[LineEntry]
    make: Callable[[Sequence[LineRows]], Awaitable[LineRows]]


def at_step(id: str, before: Cut) -> Cut:
    """Return a line without everything after a step: ids increase."""

    async def make(sources: Sequence[LineRows]) -> LineRows:
        found = await before.make(sources)
        lengths = dict[Scalar, int]()
        for (branch, seq), row in sorted(found.tables.get(STEPS.name, {}).items()):
            lengths.setdefault(branch, 0)
            if lengths[branch] == seq and str(row.columns[0]) <= id:
                lengths[branch] = int(seq) + 1
        _truncate(found, lengths)
        return found

    return Cut(before.sources, make)


def whole(entry: LineEntry) -> Cut:
    """Return a line as a backup has it."""

    async def make(sources: Sequence[LineRows]) -> LineRows:
        return sources[0]

    return Cut([entry], make)


def _truncate(found: LineRows, lengths: dict[Scalar, int]) -> None:
    """Leave so many steps of each branch, and what belongs to them."""
    steps = found.tables.get(STEPS.name, {})
    removed = {str(row.columns[0]) for key, row in steps.items() if int(key[1]) >= lengths.get(key[0], 0)}
    removed -= {str(row.columns[0]) for key, row in steps.items() if int(key[1]) < lengths.get(key[0], 0)}
    removed.discard("")
    for table in (STEPS, FOLDS):
        rows = found.tables.get(table.name, {})
        for key in [key for key in rows if int(key[1]) >= lengths.get(key[0], 0)]:
            del rows[key]
    branches = found.tables.get(BRANCHES.name, {})
    for key in [key for key in branches if not lengths.get(key[0])]:
        del branches[key]
    for table, column in ((WRITES, 0), (EVENTS, 0), (LINKS, 1)):
        rows = found.tables.get(table.name, {})
        for key in [key for key in rows if key[column] in removed]:
            del rows[key]
    refs = found.tables.get(REFS.name, {})
    for key in [key for key, ref in refs.items() if ref.columns[0] in removed]:
        del refs[key]
    info = info_of(CHECKSUMS.decode(LINES, found.row))
    ids = [str(row.columns[0]) for row in found.tables.get(STEPS.name, {}).values()]
    switched_from = info.switched_from if info.switched_from in ids else ""
    info = info._replace(pruned=ids.count(""), switched_from=switched_from)
    line = Line(*map(str, found.row.key))
    found.row = CHECKSUMS.encode(LINES, info_row(line, info)) if found.row.key else Row((), ())
