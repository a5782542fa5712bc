"""Another store as a source of what a damaged one has lost.

Nothing is taken on trust: a step must have the hash that is expected at its place, a node and a large value the digest
that names it. So a source may be a mirror, a copy, or a backup from before the thread went on or was pruned.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from holdfast.backends.interface import Backend, Get, Row, Scan
from holdfast.backends.paging import UnreadableRange, rows, sturdy_rows
from holdfast.backends.tables import BRANCHES, FOLDS, LINES, NODES, OBJECTS, REFS, STEPS, Key, Table
from holdfast.codec.envelope import RecordContext, unwrap
from holdfast.engine.cache import MemoryCache
from holdfast.engine.engine import Engine
from holdfast.engine.model.large_pointers import PIECE
from holdfast.engine.model.nodes import decode_node
from holdfast.engine.row_format import (
    Branch,
    Line,
    LineInfo,
    StepRef,
    context_of,
    info_of,
    is_intact,
    open_node,
    open_step,
)
from holdfast.engine.state_loader import FoldedTree, StateLoader
from holdfast.errors import CorruptError, HoldfastError, NotFoundError

T = TypeVar("T")

_CACHE_BYTES = 16 << 20


class RepairSource:
    """A store to take rows from."""

    def __init__(self, engine: Engine) -> None:
        self.url = engine.context.backend.url
        self._backend = engine.context.backend
        self._max_bytes = engine.context.max_bytes
        ground = replace(engine.context, cache=MemoryCache(_CACHE_BYTES))
        self._states = StateLoader(self._backend, ground.cache, ground.max_bytes)
        self._lines = engine.lines

    async def names(self, tenant: str) -> list[str]:
        """The threads that it has."""
        return [line.name for line in await self._lines.names(tenant)]

    async def info(self, line: Line) -> LineInfo | None:
        """What it says of a line."""
        found = await self._one(LINES, tuple(line))
        return None if found is None else info_of(found)

    async def branches(self, line: Line) -> list[Branch]:
        """The branches that it has of a line."""
        return await _or_nothing(self._branches(line), [])

    async def _branches(self, line: Line) -> list[Branch]:
        return [Branch.of(row) async for row in rows(self._backend, BRANCHES, tuple(line))]

    async def is_ahead(self, line: Line, backend: Backend) -> bool:
        """Whether it has more of a line in which nothing but appends happened, there or here, since they were equal."""
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
            return True  # that the line is damaged is known anyway
        return False

    async def hash_at(self, line: Line, place: tuple[int, int]) -> bytes | None:
        """The hash of the step at a place, also of a pruned one; None if there is none, or it is damaged."""
        row = await self.step(line, place, None) or await self.stub(line, place, None)
        return None if row is None else StepRef.of(row).hash

    async def step(self, line: Line, place: tuple[int, int], commit: bytes | None) -> Row | None:
        """The row of a step at a place, if it is sound and has a hash that is expected."""
        row = await self._one(STEPS, (*line, *place))
        if row is None or StepRef.of(row).pruned or commit not in (None, StepRef.of(row).hash):
            return None
        try:
            open_step(line, row, self._max_bytes)
        except HoldfastError:
            return None
        return row

    async def stub(self, line: Line, place: tuple[int, int], commit: bytes | None) -> Row | None:
        """The row that stands for a pruned step, if it was the one that is expected."""
        row = await self._one(STEPS, (*line, *place))
        return row if row is not None and StepRef.of(row).pruned and commit in (None, StepRef.of(row).hash) else None

    async def tree(
        self, line: Line, place: tuple[int, int], commit: bytes
    ) -> tuple[FoldedTree, dict[bytes, bytes]] | None:
        """The state at a step, with all nodes, and all large values by pointer; None if it is not there."""
        row = await self.step(line, place, commit)
        return None if row is None else await _or_nothing(self._tree(line, StepRef.of(row)), None)

    async def _tree(self, line: Line, point: StepRef) -> tuple[FoldedTree, dict[bytes, bytes]]:
        tree = await self._states.tree(line, await self._states.load(line, point))
        return tree, {**await self._states.load_large(line, tree.pointers - tree.objects.keys()), **tree.objects}

    async def node(self, line: Line, id: bytes) -> bytes | None:
        """A node, of whatever set of nodes."""
        info = await self.info(line)
        row = None if info is None else await self._one(NODES, (*line, info.form, id))
        if row is None:
            return None
        try:
            found, data = open_node(line, row)
            decode_node(found, data)
        except HoldfastError:
            return None
        return data

    async def object(self, line: Line, digest: bytes) -> list[Row]:
        """The pieces of a large value, if they make it up."""
        pieces: list[Row] = await _or_nothing(self._pieces(line, digest), [])
        whole = hashlib.sha256()
        for row in pieces:
            try:
                whole.update(unwrap(row.body, RecordContext(*line, *context_of(OBJECTS, row)), max_bytes=PIECE).content)
            except HoldfastError:
                return []
        return pieces if whole.digest() == digest else []

    async def _pieces(self, line: Line, digest: bytes) -> list[Row]:
        (found,) = await self._backend.read([Scan(OBJECTS, (*line, digest))])
        return found

    async def row(self, space: Table, key: Key) -> Row | None:
        """A row, if it is sound."""
        row = await self._one(space, key)
        return row if row is not None and is_intact(space, row) else None

    async def refs(self, line: Line) -> list[Row]:
        """Names, tags and all else of that kind."""
        return await _or_nothing(self._all(REFS, line), [])

    async def sound(self, space: Table, line: Line) -> list[Row]:
        """Rows of a line that are sound: pending writes, events, links."""
        return [row for row in await _or_nothing(self._all(space, line), []) if is_intact(space, row)]

    async def _all(self, space: Table, line: Line) -> list[Row]:
        return [row async for row in rows(self._backend, space, tuple(line))]

    async def _one(self, space: Table, key: Key) -> Row | None:
        async def read() -> Row | None:
            (found,) = await self._backend.read([Get(space, [key])])
            return found[0] if found else None

        return await _or_nothing(read(), None)


async def _or_nothing(reading: Awaitable[T], nothing: T) -> T:
    """What is read; a source that is damaged there has nothing to give."""
    try:
        return await reading
    except (CorruptError, NotFoundError):
        return nothing


async def first_of(
    sources: Sequence[RepairSource], ask: Callable[[RepairSource], Awaitable[T | None]]
) -> tuple[T, RepairSource] | None:
    """The first answer that a source has."""
    for source in sources:
        found = await ask(source)
        if found:
            return found, source
    return None


async def new_info(backend: Backend, line: Line, fresh: LineInfo, sources: Sequence[RepairSource]) -> LineInfo:
    """What a source says of a line; or else what follows from its other rows, and is as in a fresh one for the rest."""
    found = await first_of(sources, lambda source: source.info(line))
    if found is not None:
        return found[0]
    form = 1
    holes: list[UnreadableRange] = []
    async for row in sturdy_rows(backend, FOLDS, tuple(line), holes, bodies=False):
        form = max(form, int(row.columns[0]))
    times = [Branch.of(row).created async for row in sturdy_rows(backend, BRANCHES, tuple(line), holes)]
    async for row in sturdy_rows(backend, STEPS, tuple(line), holes, bodies=False):
        times.append(StepRef.of(row).time)
        break
    return fresh._replace(form=form, created=min(times, default=fresh.created))
