"""What must not go: pins and holds, as they are found by whoever removes something.

A pinned step is not pruned. A thread that is held is neither pruned nor deleted, nor are the lines of its namespaces.
Each has a reason, and there may be several: what two parties hold goes when both have let go of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from holdfast.backends.interface import Backend, Expect, Get, Query, Row, Scan
from holdfast.backends.tables import LINES, REFS
from holdfast.engine.namespaces import root_of
from holdfast.engine.row_format import Line
from holdfast.errors import DeniedError

PIN, HOLD, LEASE = "pin", "hold", "lease"
"""Kinds of references. The names of pins and holds are reasons. Holds and leases are of no step."""


class Pin(NamedTuple):
    """A step that must stay, and why. `time` is when that was said, in nanoseconds since 1970."""

    step: str
    reason: str
    time: int

    @classmethod
    def of(cls, row: Row) -> Pin:
        """The pin that a row of `refs` shows."""
        return cls(str(row.columns[0]), str(row.key[3]), int(row.columns[1]))


class Hold(NamedTuple):
    """A thread that must stay as it is, and why."""

    line: Line
    reason: str
    time: int

    @classmethod
    def of(cls, row: Row) -> Hold:
        """The hold that a row of `refs` shows."""
        return cls(Line(str(row.key[0]), str(row.key[1])), str(row.key[3]), int(row.columns[1]))


def is_about_step(ref: Row) -> bool:
    """Whether a reference is that of a step, and goes with it."""
    return bool(ref.columns[0]) and ref.key[2] not in (HOLD, LEASE)


async def unheld(backend: Backend, lines: Iterable[Line]) -> list[Expect]:
    """The conditions that lines are as they are now: first one for each of them, then for the threads that they belong
    to. `DeniedError` if one is held."""
    wanted = list(dict.fromkeys(lines))
    wanted += dict.fromkeys(root for line in wanted if (root := root_of(line)) not in wanted)
    queries: list[Query] = [Get(LINES, [tuple(line)]) for line in wanted]
    queries += [Scan(REFS, (*line, HOLD)) for line in wanted]
    found = await backend.read(queries)
    for rows in found[len(wanted) :]:
        if rows:
            held = Hold.of(rows[0])
            raise DeniedError(
                f"the thread is held{': ' + held.reason if held.reason else ''}",
                where=f"thread {held.line}",
                hint="Release it first, if that is yours to decide",
            )
    return [
        Expect(LINES, tuple(line), rows[0].columns if rows else None)
        for line, rows in zip(wanted, found[: len(wanted)], strict=True)
    ]
