"""Moving old bodies from a hot store to a cold one, bringing them back, and sweeping what nothing refers to.

**How a move cannot undo a write.** Whoever moves bodies of a line first puts up a fence: a row of its own in the hot
store, with a number made by chance. Whoever changes or removes rows of the line (adding some is no danger) takes the
fence down in the same batch. A move is made on condition that its fence stands; so of all that it read, nothing has
been written since. A second mover's fence takes the place of the first's.

**How a sweep cannot take what is needed.** First it lists what is in the cold store, then it puts up its fence, then it
reads which stubs there are. A body that was listed is referred to by then, or never will be: its mover lost its fence.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import TypeAlias

from holdfast.backends.interface import Backend, Change, Create, Delete, Expect, Get, Put, Row, Scan
from holdfast.backends.tables import JOURNAL, LINES, OBJECTS, STEPS, Key, Table
from holdfast.backends.wrappers.tier_stub import MOVED, given, stub_for, stub_in

Line: TypeAlias = tuple[str, str]

_PAGE = 128
_HEADERS = 1_000
_BYTES = 4 << 20
_TIME = list(STEPS.columns).index("time")
_CREATED = list(LINES.columns).index("created")


class TierMover:
    """Moves bodies between two stores."""

    def __init__(self, hot: Backend, cold: Backend, after: float, keep: int, smallest: int) -> None:
        self._hot = hot
        self._cold = cold
        self._after = after
        self._keep = keep
        self._smallest = smallest
        self.moved = 0
        self.swept = 0
        self.brought_back = 0

    async def move_all(self) -> None:
        """Move what is old enough, line by line. What was moved before is passed over."""
        async for line in _lines(self._hot, MOVED):
            await self._move_line(line)

    async def sweep_all(self, part: Key = ()) -> None:
        """Remove from the cold store what nothing in the hot one refers to: of a line, of a tenant, or of all."""
        async for line in _lines(self._cold, (OBJECTS,), part):
            await self._sweep(line)

    async def _sweep(self, line: Line) -> None:
        listed = [row.key async for row in _rows(self._cold, OBJECTS, line, bodies=False)]
        if not listed:
            return
        token = await self._put_up(line)
        needed: set[Key] = set()
        for space in MOVED:
            async for row in _rows(self._hot, space, line):
                stub = stub_in(row)
                if stub is not None:
                    needed.add(stub.key(row.key))
        loose = [key for key in listed if key not in needed]
        for at in range(0, len(loose), _PAGE):
            await self._cold.apply([Delete(OBJECTS, key) for key in loose[at : at + _PAGE]])
        self.swept += len(loose)
        await self._take_down(line, token)

    async def bring_back(self, line: Line, rows: Sequence[tuple[Table, Row, bytes]]) -> None:
        """Put bodies in place of their stubs, where these are still there: each a row with its stub, and the body."""
        token = await self._put_up(line)
        queries = [Get(space, [row.key]) for space, row, _ in rows]
        found = await self._hot.read(queries)
        back: list[Change] = []
        for (space, row, body), now in zip(rows, found, strict=True):
            if now == [row]:
                back += [Expect(space, row.key, row.columns), Put(space, row._replace(body=body))]
        if await self._hot.apply([_stands(line, token), *back, Delete(JOURNAL, fence(line))]) is None:
            self.brought_back += len(back) // 2

    async def _move_line(self, line: Line) -> None:
        cutoff = time.time_ns() - int(self._after * 1e9)
        old, newest = await self._old_steps(line, cutoff)
        idle = newest <= cutoff
        if not old and not idle:
            return
        token = await self._put_up(line)
        standing = True
        for at in range(0, len(old), _PAGE):
            ((*rows,),) = await self._hot.read([Get(STEPS, old[at : at + _PAGE])])
            standing = standing and await self._move(line, token, STEPS, rows)
        for space in MOVED[1:] if idle else ():
            page: list[Row] = []
            async for row in _rows(self._hot, space, line):
                page.append(row)
                if len(page) == _PAGE:
                    standing = standing and await self._move(line, token, space, page)
                    page = []
            standing = standing and await self._move(line, token, space, page)
        if standing:
            await self._take_down(line, token)

    async def _old_steps(self, line: Line, cutoff: int) -> tuple[list[Key], int]:
        """The steps that are old enough and not among the last of their branch; and when anything was added last."""
        ((*about,),) = await self._hot.read([Get(LINES, [line])])
        newest = max((int(row.columns[_CREATED]) for row in about), default=0)
        branches: dict[int, list[Row]] = {}
        async for row in _rows(self._hot, STEPS, line, bodies=False):
            branches.setdefault(int(row.key[2]), []).append(row)
            newest = max(newest, int(row.columns[_TIME]))
        old = [
            row.key
            for rows in branches.values()
            for row in rows[: max(0, len(rows) - self._keep)]
            if int(row.columns[_TIME]) <= cutoff
        ]
        return old, newest

    async def _move(self, line: Line, token: int, space: Table, rows: Iterable[Row]) -> bool:
        """Move the bodies of some rows; False if the line was written meanwhile."""
        most = min(self._cold.capabilities.max_body, self._cold.capabilities.max_batch)
        out: list[Change] = []
        stubs: list[Change] = []
        size = 0
        for row in rows:
            body = given(row).body
            if stub_in(row) is not None or not self._smallest <= len(body) <= most:
                continue
            if out and size + len(body) > min(most, _BYTES):
                if not await self._switch(line, token, out, stubs):
                    return False
                out, stubs, size = [], [], 0
            stub = stub_for(body)
            out.append(Create(OBJECTS, Row(stub.key(row.key), (), body)))
            # Expected as well: where everything was deleted, no fence was known that had to be taken down.
            stubs += [Expect(space, row.key, row.columns), Put(space, row._replace(body=stub.body))]
            size += len(body)
        return await self._switch(line, token, out, stubs)

    async def _switch(self, line: Line, token: int, out: list[Change], stubs: list[Change]) -> bool:
        """Have bodies durable in the cold store, then stubs in the hot one."""
        if not out:
            return True
        await self._cold.apply(out)
        if await self._hot.apply([_stands(line, token), *stubs]) is not None:
            return False
        self.moved += len(out)
        return True

    async def _put_up(self, line: Line) -> int:
        token = secrets.randbits(62)
        await self._hot.apply([Put(JOURNAL, Row(fence(line), (token,)))])
        return token

    async def _take_down(self, line: Line, token: int) -> None:
        await self._hot.apply([_stands(line, token), Delete(JOURNAL, fence(line))])


def fence(line: Key) -> Key:
    """Where the fence of a line is; of a tenant's name alone, what those of all its lines start with."""
    return (f"f{line[0]!s}", *line[1:], 0) if len(line) > 1 else (f"f{line[0]!s}",)


FENCES = Scan(JOURNAL, (), start=("f",), stop=("g",), bodies=False)
"""Finds all fences that stand."""


def _stands(line: Line, token: int) -> Expect:
    return Expect(JOURNAL, fence(line), (token,))


async def _lines(backend: Backend, spaces: Sequence[Table], part: Key = ()) -> AsyncIterator[Line]:
    """The lines that have rows in some spaces, in order; those of a tenant, or just the one."""
    start = part
    while True:
        found = await backend.read([Scan(space, (), start=start, limit=1, bodies=False) for space in spaces])
        firsts = [(str(rows[0].key[0]), str(rows[0].key[1])) for rows in found if rows]
        if not firsts:
            return
        tenant, line = min(firsts)
        if (tenant, line)[: len(part)] != part:
            return
        yield tenant, line
        start = (tenant, line + "\0")


async def _rows(backend: Backend, space: Table, line: Line, *, bodies: bool = True) -> AsyncIterator[Row]:
    """The rows of a line, read page by page."""
    limit = _PAGE if bodies else _HEADERS
    start: Key = ()
    while True:
        ((*rows,),) = await backend.read([Scan(space, line, start=start, limit=limit, bodies=bodies)])
        for row in rows:
            if row.key[2:] != start:
                yield row
        if len(rows) < limit:
            return
        start = rows[-1].key[2:]
