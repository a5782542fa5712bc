"""Generations of a store: restoring it in place starts a new one.

A process that opened the store before may have states in memory that were just set back, and would save what follows
them. So each line that is restored gets a mark with the number of the generation, which is read with the end of the
line, at no cost of its own; and its next save from a process of an earlier generation is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from holdfast.backends.interface import Change, Expect, Get, Put, Row
from holdfast.backends.tables import REFS, Key
from holdfast.engine.context import EngineContext
from holdfast.engine.row_format import LEASE, Line
from holdfast.errors import ConflictError, CorruptError

RESTORED = "restored"
"""The name of the ref that marks a line as restored in place. Like a lease, it is about this store alone."""

GENERATION = "generation"
"""The name of the setting of a tenant with the number of the generation."""


def restored_key(line: Line) -> Key:
    """Return the key of the mark of a line."""
    return (*line, LEASE, RESTORED, "")


def generation_key(tenant: str) -> Key:
    """Return the key of the setting of a tenant."""
    return (tenant, "", "setting", GENERATION, "")


def generation_of(line: Line, refs: Iterable[Row]) -> int:
    """Return the generation in which a line was restored, if its mark is among some refs."""
    return next((int(row.columns[0]) for row in refs if row.key == restored_key(line)), 0)


def restored_error(where: str) -> ConflictError:
    """Return the error for a save of what was in memory when a line was restored in place."""
    return ConflictError(
        "the store was restored from a backup since this was read",
        where=where,
        hint="The state in this process's memory is outdated. Open the store again, and read the state first",
        code="store-restored",
    )


class Generations:
    """The generation of each tenant, as it was when the store was opened."""

    def __init__(self, context: EngineContext) -> None:
        self._context = context
        self._at_open: dict[str, int] = {}

    async def load(self, tenant: str) -> int:
        """Return the number of the generation. The first time is when the store is opened for a tenant."""
        try:
            now = await self._read(tenant)
        except CorruptError:  # a damaged store is opened, to be repaired; saving reads it again
            return self._at_open.get(tenant, 0)
        return self._at_open.setdefault(tenant, now)

    async def check(self, line: Line, restored: int) -> None:
        """Check that a line was not restored in place since the store was opened. `ConflictError` if it was."""
        opened = await self._opened(line.tenant)
        if restored <= opened:
            return
        if await self._read(line.tenant) > opened:
            raise restored_error(f"thread {line} in {self._context.backend.url}")
        self._at_open[line.tenant] = restored  # the mark came with a copy of the file

    async def is_restored_after(self, line: Line, time: int) -> bool:
        """Return whether a line was restored in place after a time."""
        columns = await self._columns(restored_key(line))
        return columns is not None and int(columns[1]) > time

    async def current(self, tenant: str) -> int:
        """Return the number of the generation now."""
        return await self._read(tenant)

    async def start(self, tenant: str, number: int) -> list[Change]:
        """Return the changes that start a generation, on condition that nobody else does. When they are applied, this
        process has to `join` it."""
        key = generation_key(tenant)
        return [Expect(REFS, key, await self._columns(key)), Put(REFS, Row(key, (str(number), self._context.clock())))]

    def join(self, generations: Mapping[str, int]) -> None:
        """Take part in new generations, by tenant."""
        self._at_open |= generations

    def mark(self, line: Line, generation: int) -> Change:
        """Return the change that marks a line. It belongs into a batch that changes the version of the line."""
        return Put(REFS, Row(restored_key(line), (str(generation), self._context.clock())))

    async def _opened(self, tenant: str) -> int:
        found = self._at_open.get(tenant)
        return await self.load(tenant) if found is None else found

    async def _read(self, tenant: str) -> int:
        columns = await self._columns(generation_key(tenant))
        return 0 if columns is None else int(columns[0])

    async def _columns(self, key: Key) -> tuple[str | int | bytes, ...] | None:
        (rows,) = await self._context.backend.read([Get(REFS, [key])])
        return rows[0].columns if rows else None
