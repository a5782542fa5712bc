"""Records in the audit of the rows that a change takes away from lines, or adds to them from elsewhere.

Steps, references and branches of a line that are gone leave nothing behind in it. With these records, a backup that is
made later still tells which of them a line had at a moment before, and since when it had what was copied into it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from holdfast.backends.interface import Backend, Batch, Change, Delete, Expect, Get, Put, Row, Scan
from holdfast.backends.paging import scan_rows
from holdfast.backends.tables import BRANCHES, LINES, REFS, STEPS, Key
from holdfast.engine.engine import Engine
from holdfast.engine.line_head import end_query
from holdfast.engine.lines import LABEL, TAG
from holdfast.engine.row_format import HOLD, OWNER, PIN, Line, StepRef

REMOVED, ARRIVED = "removed", "arrived"
"""The entries of the details of a record, by the name of a line."""

RECORDED_KINDS = frozenset((TAG, LABEL, PIN, HOLD, OWNER))
"""The kinds of references that are recorded. Whose data a line has is never set back."""

_LAST_TIMES = 64
"""Of how many steps at the end of a branch the times are recorded."""


class BranchEnd(msgspec.Struct, array_like=True):
    """The end of a branch that is gone, or that came: its number, how many steps it had, and the times of the last."""

    branch: int
    length: int
    times: list[int]

    def had(self, seq: int, time: int) -> bool:
        """Return whether the branch had a step of this number and time, as far as its times are known. A branch before
        it or after it may have had the same number."""
        at = seq - (self.length - len(self.times))
        return seq < self.length and (at < 0 or self.times[at] == time)


class RemovalRecord(msgspec.Struct, omit_defaults=True):
    """The record of a removal from a line: all of it; or steps, from one number to another of a branch, of which stubs
    may be left; the ends of branches of which none are; and references and branches as they were."""

    created: int
    """When the line was created, which tells it from others of its name."""
    is_whole: bool = False
    steps: list[tuple[int, int, int]] = []
    ends: list[BranchEnd] = []
    refs: list[tuple[str, str, str, str, int]] = []
    branches: list[tuple[int, int, int, int, str]] = []


class ArrivalRecord(msgspec.Struct):
    """The record of steps that were added to a line from elsewhere: how many each branch had before, none where the
    line is new, and the ends of the branches since."""

    created: int
    had: list[tuple[int, int]]
    has: list[BranchEnd]


async def find_removed(
    backend: Backend, batch: Batch, *, names: bool = True
) -> tuple[dict[str, RemovalRecord], list[Change]]:
    """Return what a batch removes from lines, by name, and the conditions that it is still there. Without `names`, no
    names of references and branches, which may be what is erased."""
    lines = list(dict.fromkeys(Line(str(key[0]), str(key[1])) for key in _affected(batch)))
    if not lines:
        return {}, []
    answers = await backend.read([Scan(LINES, tuple(line), bodies=False) for line in lines])
    found, unchanged = dict[str, RemovalRecord](), list[Change]()
    for row in (row for rows in answers for row in rows):
        line, record = Line(*map(str, row.key)), RemovalRecord(int(row.columns[0]))
        own = [each for each in batch if not isinstance(each, Expect) and _key(each)[:2] == tuple(line)]
        if any(isinstance(each, Delete) and each.space is LINES for each in own):
            record.is_whole = True
            record.ends = (await _ends(backend, [line]))[line]
            unchanged += (Expect(STEPS, (*line, each.branch, each.length), None) for each in record.ends)
            own = [Delete(table, tuple(line)) for table in (REFS, BRANCHES)]
        unchanged += await _add_removed(backend, line, own, record)
        if not names:
            record.refs, record.branches = [], []
        if record != RemovalRecord(record.created):
            found[line.name] = record
    return found, unchanged


async def arrival_detail(source: Engine, target: Engine, *lines: Line) -> dict[str, Any]:
    """Return the details that say what is about to be copied to lines, which may not exist yet."""
    rows = Get(LINES, [tuple(line) for line in lines])
    (ours,), (theirs,) = await source.context.backend.read([rows]), await target.context.backend.read([rows])
    created = {Line(*map(str, row.key)): int(row.columns[0]) for row in ours}
    had = await _ends(target.context.backend, [Line(*map(str, row.key)) for row in theirs])
    records: dict[str, ArrivalRecord] = {}
    for line, has in (await _ends(source.context.backend, list(created))).items():
        lengths = [(each.branch, each.length) for each in had.get(line, ())]
        records[line.name] = ArrivalRecord(created[line], lengths, has)
    return {ARRIVED: plain_records(records)}


def plain_records(records: Mapping[str, RemovalRecord | ArrivalRecord]) -> dict[str, Any]:
    """Return records as details of a row of the audit."""
    return {name: msgspec.to_builtins(record) for name, record in records.items()}


def _affected(batch: Batch) -> Iterable[Key]:
    """Yield the keys of rows of which an earlier form may be lost."""
    for change in batch:
        if isinstance(change, Delete | Put) and change.space in (LINES, STEPS, REFS, BRANCHES):
            is_ref = change.space is REFS and len(_key(change)) > 2
            if not (is_ref and _key(change)[2] not in RECORDED_KINDS) and not (
                isinstance(change, Put) and change.space is LINES
            ):
                yield _key(change)


def _key(change: Change) -> Key:
    return change.prefix if isinstance(change, Delete) else change.key if isinstance(change, Expect) else change.row.key


async def _add_removed(
    backend: Backend, line: Line, changes: Sequence[Change], record: RemovalRecord
) -> Sequence[Change]:
    """Add to a record what changes remove of a line that stays. Returns the conditions that it is still there."""
    put = {_key(each): each.row.columns for each in changes if isinstance(each, Put)}
    scans = [
        Scan(each.space, _key(each), bodies=False)  # one that is damaged can be removed, too
        for each in changes
        if isinstance(each, Delete | Put) and each.space in (REFS, BRANCHES)
    ]
    rows = {
        row.key: (scan.space, row)
        for scan, found in zip(scans, await backend.read(scans), strict=True)
        for row in found
    }
    gone = {
        key: (space, row)
        for key, (space, row) in rows.items()
        if put.get(key) != row.columns and (space is BRANCHES or key[2] in RECORDED_KINDS)
    }
    record.refs = [(*map(str, row.key[2:]), *row.columns) for space, row in gone.values() if space is REFS]  # type: ignore[misc]
    record.branches = [(row.key[2], *row.columns) for space, row in gone.values() if space is BRANCHES]  # type: ignore[misc]
    deleted = {_key(each) for each in changes if isinstance(each, Delete) and each.space is STEPS}
    stubs = {
        each.row.key for each in changes if isinstance(each, Put) and each.space is STEPS and not each.row.columns[0]
    }
    if deleted or stubs:
        await _add_steps(backend, line, deleted, stubs, record)
    return [Expect(space, key, row.columns) for key, (space, row) in gone.items()]


async def _add_steps(backend: Backend, line: Line, deleted: set[Key], stubs: set[Key], record: RemovalRecord) -> None:
    ends = dict[int, BranchEnd]()
    async for row in scan_rows(backend, STEPS, tuple(line), bodies=False):
        step = StepRef.of(row)
        if row.key in deleted:
            end = ends.setdefault(step.branch, BranchEnd(step.branch, 0, []))
            end.length, end.times = step.seq + 1, [*end.times, step.time][-_LAST_TIMES:]
        if step.pruned or row.key not in deleted | stubs:
            continue
        last = record.steps[-1] if record.steps else None
        if last is not None and (last[0], last[2] + 1) == step[:2]:
            record.steps[-1] = (last[0], last[1], step.seq)
        else:
            record.steps.append((step.branch, step.seq, step.seq))
    record.ends = list(ends.values())


async def _ends(backend: Backend, lines: Sequence[Line]) -> dict[Line, list[BranchEnd]]:
    """Return the ends of all branches of lines."""
    branches = await backend.read([Scan(BRANCHES, tuple(line), bodies=False) for line in lines])
    places = [(line, n) for line, rows in zip(lines, branches, strict=True) for n in (0, *(row.key[2] for row in rows))]
    found = await backend.read([end_query(line, int(number))._replace(limit=_LAST_TIMES) for line, number in places])
    ends: dict[Line, list[BranchEnd]] = {}
    for (line, number), rows in zip(places, found, strict=True):
        ends.setdefault(line, []).append(_end(int(number), rows))
    return ends


def _end(number: int, rows: Sequence[Row]) -> BranchEnd:
    steps = [StepRef.of(row) for row in reversed(rows)]
    return BranchEnd(number, steps[-1].seq + 1 if steps else 0, [step.time for step in steps])
