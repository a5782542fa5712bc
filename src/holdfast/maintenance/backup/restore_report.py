"""The selection of a restore, and its report."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Literal, NamedTuple, TypeAlias

import msgspec

from holdfast._fields import Hidden
from holdfast.engine.namespaces import agent_of, line_kind, root_of, short_name
from holdfast.engine.row_format import Line
from holdfast.maintenance.backup.format import LineEntry

RestoreAction: TypeAlias = Literal[
    "create",
    "extend",
    "switch",
    "revert",
    "beside",
    "same",
    "newer",
    "left out",
    "kept",
    "erased",
    "damaged",
    "unknown",
]
"""What a restore does with a line: create it; add what it lacks; switch HEAD to what the backup has; append a step with
that state; create it under another name, beside another thread of its name. Or nothing: it is the same; the store has a
newer state; the store has records of its own, or the session is over; it was created after the backup, and is kept; it
was erased since; it is damaged in the backup; or it was there at that moment, and no backup has it."""


class RestoredLine(msgspec.Struct, frozen=True):
    """A line in a restore: its tenant, its kind and name, what is done with it, its steps in the backup, and those that
    the store has and the backup does not; those that are added; the name that it is restored under, if that is another;
    and, of a dry run, the difference of its state, as `diff` shows it, the beginning of it. Of a damaged line, it is
    what is damaged. Where the backups do not know all that the line had at the moment of the restore, `known_at` is the
    moment that it is restored to."""

    tenant: Hidden[str]
    kind: str
    name: str
    action: RestoreAction
    steps: int
    newer: int = 0
    added: int = 0
    as_name: Hidden[str] = ""
    changes: Hidden[tuple[str, ...]] = ()
    known_at: Hidden[datetime | None] = None

    @property
    def place(self) -> tuple[str, str, str]:
        """The tenant, the kind and the name."""
        return self.tenant, self.kind, self.name


class RestoreReport(msgspec.Struct, frozen=True):
    """The result of a restore: the backup, or the point between backups, and its time; each line; the number of jobs,
    which are paused; the rows and bytes that were written; and the seconds it took."""

    backup: str
    time: datetime
    lines: tuple[RestoredLine, ...]
    jobs: int
    rows: int
    bytes: int
    seconds: float
    dry_run: bool

    @property
    def exact(self) -> bool:
        """Whether the backups know all that the lines had at the moment of the restore."""
        return all(each.known_at is None for each in self.lines)


class CoveredSpan(msgspec.Struct, frozen=True):
    """The first and the last moment to which a store can be restored from its backups."""

    first: datetime
    last: datetime


class Selection(NamedTuple):
    """The lines to restore: of a tenant or of all; those of some kinds; and some by name."""

    tenant: str | None
    kinds: frozenset[str]
    names: Sequence[str] | None

    def includes(self, entry: LineEntry) -> bool:
        """Return whether a line of a backup is selected."""
        return bool(entry.columns) and self.includes_line(entry.line)

    def includes_line(self, line: Line) -> bool:
        """Return whether a line is selected. The durable steps of an agent are with the agent."""
        agent = agent_of(line)
        if agent is not None and self.includes_line(agent):
            return True
        if self.tenant not in (None, line.tenant) or line_kind(line.name) not in self.kinds:
            return False
        return self.names is None or line.name in self.names or root_of(line).name in self.names


def describe(line: Line, action: RestoreAction, steps: int = 0, newer: int = 0) -> RestoredLine:
    """Return the entry of a line in the report."""
    return RestoredLine(line.tenant, line_kind(line.name), short_name(line.name), action, steps, newer)
