"""Leases: the right to do something with a line that only one may do at a time."""

from __future__ import annotations

import secrets

from holdfast.backends.port import Change, Delete, Expect, Get, Put, Row
from holdfast.backends.spaces import REFS
from holdfast.engine.ground import Ground
from holdfast.engine.records import Line
from holdfast.errors import Conflict

_LIFE_NS = 60 * 10**9
"""After this long without a sign of life, whoever has a lease is taken to be dead."""


class Lease:
    """A right that is held until it is given back, or another takes its holder for dead.

    Every batch of what is done under it expects that it is still held: one who was taken for dead, and is not, can do
    no harm.
    """

    def __init__(self, ground: Ground, line: Line, what: str) -> None:
        self._ground = ground
        self._line = line
        self._what = what
        self._row = Row((*line, "lease", what, ""), (secrets.token_hex(8), ground.clock()))

    def condition(self) -> Change:
        """The condition that it is still held."""
        return Expect(REFS, self._row.key, self._row.columns)

    def end(self) -> Change:
        """The change that gives it back."""
        return Delete(REFS, self._row.key)

    async def take(self) -> None:
        """Have it. `Conflict` if another has."""
        key, (_, now) = self._row.key, self._row.columns
        (old,) = await self._ground.backend.read([Get(REFS, [key])])
        if old and 0 <= int(now) - int(old[0].columns[1]) < _LIFE_NS:
            raise self._taken()
        expected = old[0].columns if old else None
        if await self._ground.backend.apply([Expect(REFS, key, expected), Put(REFS, self._row)]) is not None:
            raise self._taken()

    async def show_life(self) -> None:
        """Let others know, from time to time, that its holder lives. `Conflict` if one did not believe it."""
        token, since = self._row.columns
        now = self._ground.clock()
        if now - int(since) > _LIFE_NS // 4:
            fresh = Row(self._row.key, (token, now))
            if await self._ground.backend.apply([self.condition(), Put(REFS, fresh)]) is not None:
                raise self._taken()
            self._row = fresh

    async def is_held(self) -> bool:
        """Whether nobody took it over."""
        return await self._ground.backend.apply([self.condition()]) is None

    async def give_back(self) -> None:
        """Let others have it, if it is held: whoever was interrupted while taking it may not know."""
        await self._ground.backend.apply([self.condition(), self.end()])

    def _taken(self) -> Conflict:
        return Conflict(
            f"another {self._what} of the thread is under way", where=f"thread {self._line}", hint="Wait for it to end"
        )
