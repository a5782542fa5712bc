"""Moves old bodies from a hot store to a cold one and back, and sweeps unreferenced ones.

**A move cannot undo a write.** A mover first places a fence on the line: a private row in the hot store, with a random
token. A batch that changes or removes rows of the line (adding rows is safe) removes the fence. A move is applied on
condition that its fence is there; so nothing that it read has been written since. The fence of a second mover replaces
the first one.

**A sweep cannot remove what is needed.** First it lists the bodies in the cold store, then it places its fence, then it
reads the stubs. A body that was listed is referenced by then, or never will be: its mover lost its fence.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import NamedTuple, TypeAlias

from holdfast.backends.interface import Backend, Change, Create, Delete, Expect, Get, Put, Row, Scan
from holdfast.backends.paging import scan_rows
from holdfast.backends.tables import JOURNAL, LINES, NODES, OBJECTS, STEPS, WRITES, Key, Table
from holdfast.byte_reader import ByteReader

Line: TypeAlias = tuple[str, str]

TIERED_TABLES = (STEPS, NODES, OBJECTS, WRITES)
"""The tables whose bodies are moved."""

_MAGIC = b"\xf5holdfast cold"
_ESCAPE = _MAGIC + b"\x00"
_STUB = _MAGIC + b"\x01"
_DIGEST = 32
_NUMBER = 8

EXTRA = len(_ESCAPE)
"""How many bytes escaping adds to a body that looks like a stub."""

_PAGE = 128
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
        self.moved: int = 0
        self.swept: int = 0
        self.brought_back: int = 0

    async def move_all(self) -> None:
        """Move old bodies, line by line, except those that were moved before."""
        async for line in _lines(self._hot, TIERED_TABLES):
            await self._move_line(line)

    async def sweep_all(self, part: Key = ()) -> None:
        """Remove unreferenced bodies from the cold store: of a line, of a tenant, or of all."""
        async for line in _lines(self._cold, (OBJECTS,), part):
            await self._sweep(line)

    async def _sweep(self, line: Line) -> None:
        listed = [row.key async for row in scan_rows(self._cold, OBJECTS, line, bodies=False)]
        if not listed:
            return
        token = await self._place_fence(line)
        needed: set[Key] = set()
        for space in TIERED_TABLES:
            async for row in scan_rows(self._hot, space, line):
                stub = parse_stub(row)
                if stub is not None:
                    needed.add(stub.key(row.key))
        unused = [key for key in listed if key not in needed]
        for at in range(0, len(unused), _PAGE):
            await self._cold.apply([Delete(OBJECTS, key) for key in unused[at : at + _PAGE]])
        self.swept += len(unused)
        await self._remove_fence(line, token)

    async def bring_back(self, line: Line, rows: Sequence[tuple[Table, Row, bytes]]) -> None:
        """Replace stubs by bodies, if they are still there. Each row has its stub, and comes with its body."""
        token = await self._place_fence(line)
        queries = [Get(space, [row.key]) for space, row, _ in rows]
        found = await self._hot.read(queries)
        back: list[Change] = []
        for (space, row, body), now in zip(rows, found, strict=True):
            if now == [row]:
                back += [Expect(space, row.key, row.columns), Put(space, row._replace(body=body))]
        if await self._hot.apply([_fence_condition(line, token), *back, Delete(JOURNAL, fence(line))]) is None:
            self.brought_back += len(back) // 2

    async def _move_line(self, line: Line) -> None:
        cutoff = time.time_ns() - int(self._after * 1e9)
        old, newest = await self._find_old_steps(line, cutoff)
        idle = newest <= cutoff
        if not old and not idle:
            return
        token = await self._place_fence(line)
        fenced = True
        for at in range(0, len(old), _PAGE):
            ((*rows,),) = await self._hot.read([Get(STEPS, old[at : at + _PAGE])])
            fenced = fenced and await self._move(line, token, STEPS, rows)
        for space in TIERED_TABLES[1:] if idle else ():
            page: list[Row] = []
            async for row in scan_rows(self._hot, space, line):
                page.append(row)
                if len(page) == _PAGE:
                    fenced = fenced and await self._move(line, token, space, page)
                    page = []
            fenced = fenced and await self._move(line, token, space, page)
        if fenced:
            await self._remove_fence(line, token)

    async def _find_old_steps(self, line: Line, cutoff: int) -> tuple[list[Key], int]:
        """Return the old steps that are not among the last of their branch; and when anything was added last."""
        ((*line_rows,),) = await self._hot.read([Get(LINES, [line])])
        newest = max((int(row.columns[_CREATED]) for row in line_rows), default=0)
        branches: dict[int, list[Row]] = {}
        async for row in scan_rows(self._hot, STEPS, line, bodies=False):
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
        """Move the bodies of some rows. Returns False if the line was written meanwhile."""
        most = min(self._cold.capabilities.max_body, self._cold.capabilities.max_batch)
        out: list[Change] = []
        stubs: list[Change] = []
        size = 0
        for row in rows:
            body = unescape_body(row).body
            if parse_stub(row) is not None or not self._smallest <= len(body) <= most:
                continue
            if out and size + len(body) > min(most, _BYTES):
                if not await self._swap(line, token, out, stubs):
                    return False
                out, stubs, size = [], [], 0
            stub = create_stub(body)
            out.append(Create(OBJECTS, Row(stub.key(row.key), (), body)))
            # Expected as well: a deletion of everything removes only the fences that it knows.
            stubs += [Expect(space, row.key, row.columns), Put(space, row._replace(body=stub.body))]
            size += len(body)
        return await self._swap(line, token, out, stubs)

    async def _swap(self, line: Line, token: int, out: list[Change], stubs: list[Change]) -> bool:
        """Store bodies in the cold store, then stubs in the hot one."""
        if not out:
            return True
        await self._cold.apply(out)
        if await self._hot.apply([_fence_condition(line, token), *stubs]) is not None:
            return False
        self.moved += len(out)
        return True

    async def _place_fence(self, line: Line) -> int:
        token = secrets.randbits(62)
        await self._hot.apply([Put(JOURNAL, Row(fence(line), (token,)))])
        return token

    async def _remove_fence(self, line: Line, token: int) -> None:
        await self._hot.apply([_fence_condition(line, token), Delete(JOURNAL, fence(line))])


def fence(line: Key) -> Key:
    """Return the key of the fence of a line; for a tenant alone, the prefix of the fences of its lines."""
    return (f"f{line[0]!s}", *line[1:], 0) if len(line) > 1 else (f"f{line[0]!s}",)


FENCES = Scan(JOURNAL, (), start=("f",), stop=("g",), bodies=False)
"""The query for all fences."""


def _fence_condition(line: Line, token: int) -> Expect:
    return Expect(JOURNAL, fence(line), (token,))


async def _lines(backend: Backend, spaces: Sequence[Table], part: Key = ()) -> AsyncIterator[Line]:
    """Yield the lines that have rows in some tables, in order; those of a tenant, or a single one."""
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


# Stubs


class TierStub(NamedTuple):
    """Replaces a body in the hot store: where it is, and its digest. The number is random: no stub is used twice."""

    digest: bytes
    length: int
    number: int

    @property
    def body(self) -> bytes:
        return _STUB + self.digest + self.length.to_bytes(_NUMBER) + self.number.to_bytes(_NUMBER)

    def key(self, key: Key) -> Key:
        """Return the key of the body of a row, in the table `OBJECTS` of the cold store."""
        return (*key[:2], self.digest, self.number)

    def matches(self, body: bytes) -> bool:
        return len(body) == self.length and hashlib.sha256(body).digest() == self.digest


def create_stub(body: bytes) -> TierStub:
    return TierStub(hashlib.sha256(body).digest(), len(body), secrets.randbits(62))


def parse_stub(row: Row) -> TierStub | None:
    """Return the stub of a row, if its body was moved."""
    if not row.body.startswith(_STUB):
        return None
    reader = ByteReader(row.body, "the stub of a row", row.key, at=len(_STUB))
    stub = TierStub(reader.take(_DIGEST), reader.number(_NUMBER), reader.number(_NUMBER))
    reader.end()
    return stub


def escape_body(row: Row) -> Row:
    """Return a row for the hot store: a body that looks like a stub is escaped."""
    return row._replace(body=_ESCAPE + row.body) if row.body.startswith(_MAGIC) else row


def unescape_body(row: Row) -> Row:
    """Undo `escape_body`."""
    return row._replace(body=row.body[len(_ESCAPE) :]) if row.body.startswith(_ESCAPE) else row
