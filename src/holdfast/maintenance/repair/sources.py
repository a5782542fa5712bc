"""Other stores as sources of what a damaged store has lost.

Nothing is trusted: a step must have the hash that is expected at its position, a node and a large value the digest that
names it. So a source may be a mirror, a copy, or a backup from before the thread continued or was pruned.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import TypeVar

from holdfast.backends.interface import Backend, Get, Row, Scan
from holdfast.backends.paging import UnreadableRange, scan_readable_rows, scan_rows
from holdfast.backends.runtime.memory_cache import MemoryCache
from holdfast.backends.tables import BRANCHES, FOLDS, LINES, NODES, OBJECTS, STEPS, Key, Table
from holdfast.engine.context import EngineContext
from holdfast.engine.engine import Engine
from holdfast.engine.integrity.check import find_salt
from holdfast.engine.model.large_pointers import PIECE
from holdfast.engine.model.nodes import check_node, decode_node
from holdfast.engine.row_format import (
    AT_HEAD,
    Branch,
    Line,
    LineInfo,
    StepRef,
    info_of,
    open_body,
    open_node,
    open_step,
)
from holdfast.engine.state_loader import FoldedTree, StateLoader
from holdfast.errors import CorruptError, HoldfastError, NotFoundError
from holdfast.history.branches import SWITCH

T = TypeVar("T")

_CACHE_BYTES = 16 << 20


class RepairSource:
    """A store to restore rows from."""

    def __init__(self, engine: Engine) -> None:
        self.url: str = engine.context.backend.url
        self._backend = engine.context.backend
        self._stored = engine.context.stored
        self._rows = engine.context.rows
        self._context = engine.context
        self._salts: dict[Line, bytes] = {}
        self._max_bytes = engine.context.max_bytes
        self._states = StateLoader(self._backend, MemoryCache(_CACHE_BYTES), self._max_bytes)
        self._lines = engine.lines

    async def names(self, tenant: str) -> list[str]:
        """Return the names of its threads."""
        return [line.name for line in await self._lines.names(tenant)]

    async def info(self, line: Line) -> LineInfo | None:
        """Return its information about a line."""
        found = await self._one(LINES, tuple(line))
        return None if found is None else info_of(found)

    async def salt(self, line: Line) -> bytes:
        """Return its salt of a line; nothing, if that is lost."""
        if line not in self._salts:
            self._salts[line] = await find_salt(self._context, line)
        return self._salts[line]

    async def branches(self, line: Line) -> list[Branch]:
        """Return its branches of a line."""
        return await _or_default(self._branches(line), [])

    async def _branches(self, line: Line) -> list[Branch]:
        return [Branch.of(row) async for row in scan_rows(self._backend, BRANCHES, tuple(line))]

    async def is_ahead(self, line: Line, backend: Backend) -> bool:
        """Return whether it has more of a line to which only appends happened, there and here."""
        try:
            lines, own = await backend.read([Get(LINES, [tuple(line)]), Scan(BRANCHES, tuple(line))])
            if not lines or await self.info(line) != info_of(lines[0]):
                return False
            theirs = await self.branches(line)
            for number in sorted({0, *(Branch.of(row).branch for row in own), *(each.branch for each in theirs)}):
                query = Scan(STEPS, (*line, number), reverse=True, limit=1, bodies=False)
                (ends,) = await backend.read([query])
                place = (number, StepRef.of(ends[0]).seq + 1 if ends else 0)
                if await self.step(line, place, None) is not None:
                    return True
        except CorruptError:
            return True  # the damage of the line is known anyway
        return False

    async def hash_at(self, line: Line, place: tuple[int, int]) -> bytes | None:
        """Return the hash of a step, also of a pruned one; None if there is none, or it is damaged."""
        row = await self.step(line, place, None) or await self.stub(line, place, None)
        return None if row is None else StepRef.of(row).hash

    async def step(self, line: Line, place: tuple[int, int], commit: bytes | None) -> Row | None:
        """Return the row of a step, if it is intact and has the expected hash."""
        row = await self._one(STEPS, (*line, *place))
        if row is None or StepRef.of(row).pruned or commit not in (None, StepRef.of(row).hash):
            return None
        try:
            step = open_step(line, row, self._max_bytes)
        except HoldfastError:
            return None
        return row if step.commit(await self.salt(line)) == StepRef.of(row).hash else None

    async def stub(self, line: Line, place: tuple[int, int], commit: bytes | None) -> Row | None:
        """Return the stub of a pruned step, if it has the expected hash."""
        row = await self._one(STEPS, (*line, *place))
        return row if row is not None and StepRef.of(row).pruned and commit in (None, StepRef.of(row).hash) else None

    async def tree(
        self, line: Line, place: tuple[int, int], commit: bytes
    ) -> tuple[FoldedTree, dict[bytes, bytes]] | None:
        """Return the state at a step, with all nodes, and large values by pointer; None if it does not exist."""
        row = await self.step(line, place, commit)
        return None if row is None else await _or_default(self._tree(line, StepRef.of(row)), None)

    async def _tree(self, line: Line, point: StepRef) -> tuple[FoldedTree, dict[bytes, bytes]]:
        tree = await self._states.tree(line, await self._states.load(line, point), await self.salt(line))
        return tree, {**await self._states.load_large(line, tree.pointers - tree.objects.keys()), **tree.objects}

    async def node(self, line: Line, id: bytes) -> bytes | None:
        """Return a node, of any form."""
        info = await self.info(line)
        row = None if info is None else await self._one(NODES, (*line, info.form, id))
        if info is None or row is None:
            return None
        try:
            found, data = open_node(row)
            decode_node(found, data)
            check_node(found, data, info.salt)
        except HoldfastError:
            return None
        return data

    async def object(self, line: Line, digest: bytes) -> list[Row]:
        """Return the pieces of a large value, if they are complete."""
        pieces: list[Row] = await _or_default(self._pieces(line, digest), [])
        whole = hashlib.sha256(await self.salt(line))
        for row in pieces:
            try:
                whole.update(open_body(row, PIECE))
            except HoldfastError:
                return []
        return pieces if whole.digest() == digest else []

    async def _pieces(self, line: Line, digest: bytes) -> list[Row]:
        (found,) = await self._backend.read([Scan(OBJECTS, (*line, digest))])
        return found

    async def row(self, space: Table, key: Key) -> Row | None:
        """Return a row, if it is intact."""
        return await self._one(space, key)

    async def rows(self, space: Table, line: Line) -> list[Row]:
        """Return the intact rows of a line: refs, pending writes, events, links."""
        rows: list[Row] = []
        holes: list[UnreadableRange] = []
        async for stored in scan_readable_rows(self._stored, space, tuple(line), holes):
            with suppress(HoldfastError):
                rows.append(self._rows.decode(space, stored))
        return rows

    async def _one(self, space: Table, key: Key) -> Row | None:
        async def read() -> Row | None:
            (found,) = await self._backend.read([Get(space, [key])])
            return found[0] if found else None

        return await _or_default(read(), None)


async def _or_default(reading: Awaitable[T], default: T) -> T:
    """Await a read; a damaged source gives the default."""
    try:
        return await reading
    except (CorruptError, NotFoundError):
        return default


async def first_of(
    sources: Sequence[RepairSource], ask: Callable[[RepairSource], Awaitable[T | None]]
) -> tuple[T, RepairSource] | None:
    """Return the first result of a source."""
    for source in sources:
        found = await ask(source)
        if found:
            return found, source
    return None


async def new_info(context: EngineContext, line: Line, fresh: LineInfo, sources: Sequence[RepairSource]) -> LineInfo:
    """Return the information of a line that lost its row: from a source, or else from its other rows."""
    found = await first_of(sources, lambda source: source.info(line))
    if found is not None:
        return found[0]
    form, backend = 1, context.unchecked
    holes: list[UnreadableRange] = []
    async for row in scan_readable_rows(backend, FOLDS, tuple(line), holes, bodies=False):
        form = max(form, int(row.columns[0]))
    times = [Branch.of(row).created async for row in scan_readable_rows(backend, BRANCHES, tuple(line), holes)]
    heads, switched = [""], ""
    async for row in scan_readable_rows(backend, STEPS, tuple(line), holes, bodies=False):
        point = StepRef.of(row)
        times.append(point.time)
        if point.beside == AT_HEAD:
            heads.append(point.id)
        if point.kind == SWITCH:
            switched = max(switched, point.id)
    switched_from = max((id for id in heads if id < switched), default="")
    created = min(times, default=fresh.created)
    salt = await find_salt(context, line) or fresh.salt
    return fresh._replace(form=form, created=created, switched_from=switched_from, salt=salt)
