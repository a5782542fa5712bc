"""The check that no hold forbids a change of lines."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from holdfast.backends.interface import Backend, Expect, Get, Row, Scan
from holdfast.backends.tables import LINES, REFS
from holdfast.codec.envelope import DAMAGED
from holdfast.engine.checked_rows import StoredExpect, mark_query, read_despite_damage, tables_of
from holdfast.engine.namespaces import root_of
from holdfast.engine.row_format import HOLD, Line, may_be_hold
from holdfast.errors import CorruptError, DeniedError


async def require_no_hold(backend: Backend, lines: Iterable[Line]) -> list[Expect]:
    """Return the conditions that lines stay as they are: first one for each of them, then for the threads that they
    belong to. `DeniedError` if there is a hold on one."""
    every = list(dict.fromkeys(lines))
    every += dict.fromkeys(root for line in every if (root := root_of(line)) not in every)
    # A line whose row is damaged can be deleted, too. All refs: in a damaged row, the kind may be what is damaged.
    found = await read_despite_damage(
        backend, [*(Get(LINES, [tuple(line)]) for line in every), *(Scan(REFS, tuple(line)) for line in every)]
    )
    refs = found[len(every) :]
    for mark in await backend.read([mark_query(tenant) for tenant in dict.fromkeys(line.tenant for line in every)]):
        if REFS.name in tables_of(mark):
            raise DeniedError(
                "a hold on the thread may have been lost when the damaged store was repaired",
                where=f"thread {every[0]}",
                hint="Repair the store from a copy: holdfast repair --from URL. If there is none, check which threads "
                "must be held, and accept the loss: holdfast repair --accept-loss",
            )
    for line, rows in zip(every, refs, strict=True):
        for row in rows:
            _check_ref(line, row)
    return [_unchanged(line, rows) for line, rows in zip(every, found[: len(every)], strict=True)]


async def deletion_conditions(backend: Backend, lines: Sequence[Line]) -> tuple[list[Expect], bool]:
    """Return the conditions as `require_no_hold` does, of lines that are to be deleted, and whether the store had to
    rebuild one first, since it is damaged."""
    try:
        return await require_no_hold(backend, lines), False
    except CorruptError:
        for line in dict.fromkeys(lines):
            if await _is_unreadable(backend, line) and not await backend.rebuild_line(*line):
                raise
        return await require_no_hold(backend, lines), True


async def _is_unreadable(backend: Backend, line: Line) -> bool:
    try:
        await backend.read([Get(LINES, [tuple(line)])])
    except CorruptError:
        return True
    return False


def _unchanged(line: Line, rows: Sequence[Row]) -> Expect:
    """Return the condition that a line is as it was read."""
    if not rows:
        return Expect(LINES, tuple(line), None)
    (row,) = rows
    return (StoredExpect if row.body == DAMAGED else Expect)(LINES, tuple(line), row.columns)


def _check_ref(line: Line, row: Row) -> None:
    """Raise an error if a row is a hold, or may be a damaged one."""
    if row.body == DAMAGED and may_be_hold(row):
        raise CorruptError(
            "a damaged row may have been a hold on the thread",
            where=f"thread {line}",
            hint="Repair the store from a copy: holdfast repair --from URL",
        )
    if row.key[2] == HOLD:
        reason = str(row.key[3])
        raise DeniedError(
            f"the thread is held{': ' + reason if reason else ''}",
            where=f"thread {line}",
            hint="Release it first, if you are allowed to",
        )
