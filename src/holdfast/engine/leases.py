"""Leases: the right to do something that only one may do at a time, with a line or with the whole store."""

from __future__ import annotations

import secrets
from contextlib import suppress

from holdfast.backends.interface import Change, Delete, Expect, Get, Put, Row
from holdfast.backends.tables import REFS
from holdfast.engine.context import EngineContext
from holdfast.engine.row_format import Line
from holdfast.errors import ConflictError

_LIFE_NS = 60 * 10**9
"""After this long without a sign of life, whoever has a lease is taken to be dead, unless it says otherwise."""


class Lease:
    """A right that is held until it is given back, or another takes its holder for dead.

    Every batch of what is done under it expects that it is still held: one who was taken for dead, and is not, can do
    no harm.
    """

    def __init__(self, context: EngineContext, line: Line, what: str, life: float | None = None) -> None:
        """A lease of a line; of what belongs to none, where the line's name is empty. All who want it agree on `life`,
        how many seconds it holds without a sign of life."""
        self._context = context
        self._line = line
        self._what = what
        self._life = _LIFE_NS if life is None else int(life * 1e9)
        self._row = Row((*line, "lease", what, ""), (secrets.token_hex(8), context.clock()))

    def condition(self) -> Change:
        """The condition that it is still held."""
        return Expect(REFS, self._row.key, self._row.columns)

    def end(self) -> Change:
        """The change that gives it back."""
        return Delete(REFS, self._row.key)

    async def take(self) -> None:
        """Have it. `ConflictError` if another has."""
        key, (_, now) = self._row.key, self._row.columns
        (old,) = await self._context.backend.read([Get(REFS, [key])])
        # Either way: clocks of two machines differ a little, and one that was set back shows a time that is to come.
        if old and abs(int(now) - int(old[0].columns[1])) < self._life:
            raise self._taken()
        expected = old[0].columns if old else None
        if await self._context.backend.apply([Expect(REFS, key, expected), Put(REFS, self._row)]) is not None:
            raise self._taken()

    async def show_life(self) -> None:
        """Let others know, from time to time, that its holder lives. `ConflictError` if one did not believe it."""
        now = self._context.clock()
        if abs(now - int(self._row.columns[1])) > self._life // 4:
            await self.confirm()

    async def confirm(self) -> None:
        """Let others know now. `ConflictError` if it is another's."""
        token, _ = self._row.columns
        fresh = Row(self._row.key, (token, self._context.clock()))
        if await self._context.backend.apply([self.condition(), Put(REFS, fresh)]) is not None:
            # An earlier sign, whose answer was lost, may have been made after all.
            (found,) = await self._context.backend.read([Get(REFS, [self._row.key])])
            if not found or found[0].columns[0] != token:
                raise self._taken()
            self._row = found[0]
            if await self._context.backend.apply([self.condition(), Put(REFS, fresh)]) is not None:
                raise self._taken()
        self._row = fresh

    async def is_held(self) -> bool:
        """Whether nobody took it over."""
        return await self._context.backend.apply([self.condition()]) is None

    async def give_back(self) -> None:
        """Let others have it, if it is held: whoever was interrupted while taking it may not know.

        A task that is cancelled, or a Ctrl-C, just now does not keep it: others would have to wait for it to expire.
        """
        batch = [self.condition(), self.end()]
        try:
            await self._context.backend.apply(batch)
        except (Exception, GeneratorExit):
            raise
        except BaseException:
            with suppress(Exception):  # the interruption is what the caller must see
                await self._context.backend.apply(batch)
            raise

    def _taken(self) -> ConflictError:
        if not self._line.name:
            return ConflictError(f"another process has the {self._what}", hint="Wait for it to end", code="under-way")
        return ConflictError(
            f"another {self._what} of the thread is under way",
            where=f"thread {self._line}",
            hint="Wait for it to end",
            code="under-way",
        )
