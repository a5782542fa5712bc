"""Cutting a line off: as it was at one of its steps, or at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TypeAlias

from holdfast.backends.tables import BRANCHES, EVENTS, FOLDS, LINKS, REFS, STEPS, WRITES, Key, Scalar
from holdfast.maintenance.backup.line_rows import LineRow, LineRows

Cut: TypeAlias = Callable[[LineRows], None]
"""Removes rows that a line did not have yet."""

_TIME = list(STEPS.columns).index("time")
_CREATED = list(BRANCHES.columns).index("created")


def at_step(id: str) -> Cut:
    """Return what removes everything after a step: ids increase."""

    def cut(found: LineRows) -> None:
        steps = found.tables.get(STEPS.name, {})
        lengths = dict[Scalar, int]()
        for (branch, seq), row in sorted(steps.items()):
            lengths.setdefault(branch, 0)
            if lengths[branch] == seq and str(row.columns[0]) <= id:
                lengths[branch] = int(seq) + 1
        _truncate(found, lengths, lambda branch, _: bool(lengths.get(branch)))

    return cut


def at_time(time: int, known: Mapping[int, int], refs: Mapping[Key, LineRow] = MappingProxyType({})) -> Cut:
    """Return what removes everything after a time, except the steps up to known numbers, by branch: they were there. Of
    `refs`, which were there then, those come back that were moved to a later step.

    The times of a line never decrease, so this is what was appended first; and steps that were saved together, in
    several lines, have one time, so all of them are removed or none.
    """

    def cut(found: LineRows) -> None:
        lengths = steps_until(found, time, known)
        moved = _truncate(found, lengths, lambda branch, created: branch in known or created <= time)
        for key in moved:
            if key in refs:
                found.tables[REFS.name][key] = refs[key]

    return cut


def steps_until(found: LineRows, time: int, known: Mapping[int, int]) -> dict[Scalar, int]:
    """Return how many steps each branch of a line had at a time."""
    lengths = dict[Scalar, int]()
    for (branch, seq), row in sorted(found.tables.get(STEPS.name, {}).items()):
        number = int(seq)
        lengths.setdefault(branch, 0)
        if number <= known.get(int(branch), -1) or (lengths[branch] == number and int(row.columns[_TIME]) <= time):
            lengths[branch] = number + 1
    return lengths


def _truncate(found: LineRows, lengths: Mapping[Scalar, int], keeps: Callable[[int, int], bool]) -> list[Key]:
    """Leave so many steps of each branch, and what belongs to them. `keeps` says which branches without steps stay,
    given number and time of creation. Returns the keys of references to steps that are removed."""
    steps = found.tables.get(STEPS.name, {})
    removed = {str(row.columns[0]) for key, row in steps.items() if int(key[1]) >= lengths.get(key[0], 0)}
    removed -= {str(row.columns[0]) for key, row in steps.items() if int(key[1]) < lengths.get(key[0], 0)}
    removed.discard("")
    for table in (STEPS, FOLDS):
        rows = found.tables.get(table.name, {})
        for key in [key for key in rows if int(key[1]) >= lengths.get(key[0], 0)]:
            del rows[key]
    branches = found.tables.get(BRANCHES.name, {})
    for key, branch in list(branches.items()):
        if not lengths.get(key[0]) and not keeps(int(key[0]), int(branch.columns[_CREATED])):
            del branches[key]
    for table, column in ((WRITES, 0), (EVENTS, 0), (LINKS, 1)):
        rows = found.tables.get(table.name, {})
        for key in [key for key in rows if key[column] in removed]:
            del rows[key]
    refs = found.tables.get(REFS.name, {})
    moved = [key for key, ref in refs.items() if ref.columns[0] in removed]
    for key in moved:
        del refs[key]
    return moved
