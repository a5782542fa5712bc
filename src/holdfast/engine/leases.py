"""Leases: exclusive rights to work on a line, or on the whole store."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterable

from holdfast.backends.interface import Change, Delete, Expect, Get, Put, Row
from holdfast.backends.runtime.drivers import Pause, complete
from holdfast.backends.tables import REFS, Key, Scalar
from holdfast.engine.context import EngineContext
from holdfast.engine.row_format import LEASE, Line
from holdfast.errors import ConflictError

_LIFE_NS = 60 * 10**9
"""How long a lease is valid without renewal, unless it says otherwise."""


_AFTER_PROCESS = "|"
"""Ends the identity of the process in the token of a lease."""

_PAUSE_NS = 10 * 10**9
_PAUSE = "switch"
"""The purpose of a lease during which nobody appends to a line, and how long it is valid."""


class Lease:
    """An exclusive right that is valid until it is released or has expired.

    Every batch that is written under a lease has its condition: a process that was wrongly presumed dead can do no
    harm.
    """

    def __init__(self, context: EngineContext, line: Line, purpose: str, life: float | None = None) -> None:
        """A lease of a line; of the whole store, if the line's name is empty. All who want it must agree on `life`, how
        many seconds it is valid without renewal."""
        self._context = context
        self._line = line
        self._purpose = purpose
        self._life = _LIFE_NS if life is None else int(life * 1e9)
        self._row = Row((*line, LEASE, purpose, ""), (new_token(), context.clock()))

    @property
    def token(self) -> str:
        """The token of the lease, which no other has."""
        return str(self._row.columns[0])

    def condition(self) -> Change:
        """Return the condition that the lease is still valid."""
        return Expect(REFS, self._row.key, self._row.columns)

    def end(self) -> Change:
        """Return the change that releases the lease."""
        return Delete(REFS, self._row.key)

    async def acquire(self, observe: float = 0) -> None:
        """Acquire the lease. `ConflictError` if another process has it; see `require_free`."""
        key, expected = self._row.key, await self.require_free(observe)
        if observe:
            self._row = Row(key, (self.token, self._context.clock()))
        if await self._context.backend.apply([Expect(REFS, key, expected), Put(REFS, self._row)]) is not None:
            raise self._conflict()

    async def require_free(self, observe: float = 0) -> tuple[Scalar, ...] | None:
        """Raise `ConflictError` if another process has the lease. Returns what its row must still be to acquire it.

        See `has_lapsed` for when one is free.
        """
        rows = await self._read()
        if not rows:
            return None

        async def is_unchanged() -> bool:
            return await self._read() == rows

        token, time = rows[0].columns
        if not await has_lapsed(str(token), int(time), self._life, self._context.clock, observe, is_unchanged):
            raise self._conflict()
        return rows[0].columns

    async def _read(self) -> list[Row]:
        (rows,) = await self._context.backend.read([Get(REFS, [self._row.key])])
        return rows

    async def renew_if_due(self) -> None:
        """Renew the lease, if a good part of its time has passed. `ConflictError` if another process took it over."""
        now = self._context.clock()
        if abs(now - int(self._row.columns[1])) > self._life // 4:
            await self.renew()

    async def renew(self) -> None:
        """Renew the lease now. `ConflictError` if another process has it."""
        token, _ = self._row.columns
        renewed = Row(self._row.key, (token, self._context.clock()))
        if await self._context.backend.apply([self.condition(), Put(REFS, renewed)]) is not None:
            if (
                not await self._reload()
                or await self._context.backend.apply([self.condition(), Put(REFS, renewed)]) is not None
            ):
                raise self._conflict()
        self._row = renewed

    async def is_valid(self) -> bool:
        """Return whether no other process took the lease over."""
        return await self._context.backend.apply([self.condition()]) is None

    async def release(self) -> None:
        """Release the lease, if this process has it: one that was interrupted while acquiring it may not know.

        Done even if the task is cancelled or Ctrl-C is pressed just now: others would have to wait until it expires.
        """
        await complete(self._release)

    async def _release(self) -> None:
        backend = self._context.backend
        if await backend.apply([self.condition(), self.end()]) is not None:
            await backend.apply([])  # it was being acquired or renewed when that was interrupted, perhaps
            if await self._reload():
                await backend.apply([self.condition(), self.end()])

    async def _reload(self) -> bool:
        """Read the row again, which an answer that was lost may have changed. Returns False if another has the lease,
        or nobody."""
        rows = await self._read()
        if not rows or rows[0].columns[0] != self.token:
            return False
        self._row = rows[0]
        return True

    def _conflict(self) -> ConflictError:
        if not self._line.name:
            return ConflictError(
                f"another process is busy with the {self._purpose}", hint="Wait for it to end", code="under-way"
            )
        return ConflictError(
            f"another {self._purpose} of the thread is in progress",
            where=f"thread {self._line}",
            hint="Wait for it to end",
            code="under-way",
        )


def new_token() -> str:
    """Return a token for whoever takes a lease, which no other has. It names the process."""
    from holdfast.backends.runtime.process_identity import process_identity  # what only reads needs no lease

    return f"{process_identity()}{_AFTER_PROCESS}{os.urandom(8).hex()}"


def process_of(token: str) -> str:
    """Return the identity of the process in the token of a lease."""
    return token.partition(_AFTER_PROCESS)[0]


async def has_lapsed(
    token: str,
    time: int,
    life: int,
    clock: Callable[[], int],
    observe: float = 0,
    is_unchanged: Callable[[], Awaitable[bool]] | None = None,
) -> bool:
    """Return whether a lease is free, by the token of its holder, its time, and how many nanoseconds it is valid.

    One whose process has ended is free at once, if that is known on this machine. One that has expired is free; or only
    if it is not renewed within `observe` seconds, either, where its holder may well live: clocks differ, are set, and
    go on while a machine sleeps.
    """
    if _is_abandoned(token):
        return True
    # In both directions: clocks of two machines differ a little, and one that was set back may show a future time.
    if abs(clock() - time) < life:
        return False
    if observe and is_unchanged is not None:
        await Pause(observe)
        return await is_unchanged()
    return True


def append_pause(context: EngineContext, line: Line) -> Lease:
    """Return the lease under which a rewrite makes its last step: writers wait, and it cannot be overtaken."""
    return Lease(context, line, _PAUSE, _PAUSE_NS / 1e9)


def pause_key(line: Line) -> Key:
    """Return the key of the row of a pause."""
    return (*line, LEASE, _PAUSE, "")


def is_paused(refs: Iterable[Row], clock: Callable[[], int]) -> bool:
    """Return whether a pause is among these rows, and still valid."""
    return any(row.key[2:4] == (LEASE, _PAUSE) and is_held(row, _PAUSE_NS / 1e9, clock) for row in refs)


def is_held(lease: Row, life: float, clock: Callable[[], int]) -> bool:
    """Return whether a lease is valid: it has not expired, and its process is not known to have ended."""
    return abs(clock() - int(lease.columns[1])) < life * 1e9 and not _is_abandoned(str(lease.columns[0]))


def _is_abandoned(token: str) -> bool:
    """Return whether the process that has a lease is known to have ended."""
    from holdfast.backends.runtime.process_identity import has_ended

    return bool(has_ended(process_of(token)))
