"""The report and the progress of a copy to another store, and what it is told about schemas."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, TypeAlias

import msgspec

from holdfast.engine.engine import Engine
from holdfast.engine.row_format import Line


class CopyProgress(NamedTuple):
    """The progress of a copy: the number of threads that are finished (`phase` says whether copied or verified), their
    total, the last of them, and the rows and bytes that were written."""

    phase: str
    done: int
    total: int
    thread: str
    rows: int
    bytes: int


class CopyReport(msgspec.Struct, frozen=True):
    """The result of a copy: the number of threads that were compared, and of those skipped because the target had them;
    the number of rows and of bytes of bodies that were written; the seconds it took; the names of threads that kept
    changing, whose newest checkpoints may be missing from the copy; and whether the audit was left out, because the
    target has one of its own."""

    threads: int
    skipped: int
    rows: int
    bytes: int
    seconds: float
    changing: tuple[str, ...]
    audit_left_out: bool = False


OnCopyProgress: TypeAlias = Callable[[CopyProgress], None]
"""Called with the progress of a copy."""


class CopyRegistries(Protocol):
    """Adds the schemas of what is copied to those that another store has."""

    async def __call__(
        self, source: Engine, target: Engine, tenant: str | None, lines: Sequence[Line] | None
    ) -> list[Line]:
        """Return the lines that need not be copied then. Some lines are copied, or all of a tenant or of all."""
