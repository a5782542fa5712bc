"""The lists of the lines of a backup: finding a line in them, and writing those of a new backup.

A list is a few layers, each of pages in the order of lines. Manifests say with which line each page begins, so that a
line is found by reading one page of each layer, and a new backup reads only pages of lines that have changed.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import AsyncIterator, Mapping, Sequence, Set
from typing import Any, NamedTuple, TypeAlias

import msgspec

from holdfast.engine.row_format import Line
from holdfast.maintenance.backup.capture import Outline
from holdfast.maintenance.backup.format import Chunk, Layer, LineEntry, Manifest, Page
from holdfast.maintenance.backup.packs import PAGES, PackWriter, PendingSlice
from holdfast.maintenance.backup.repository import UNREADABLE, Repository

_SIMILAR = 4
"""How many layers of similar size are merged into one."""
_PAGE_LINES, _LARGE_PAGE_LINES = 2048, 8192
_FEW_PAGES = 32
"""So many pages of a layer are small, and all after them large, so that manifests do not name too many."""
_SMALL_LAYER = 256
"""The lines of a layer that is stored in the same pack as the chunks of its lines."""


class PendingChunk(NamedTuple):
    """A chunk that may not be stored yet."""

    keys: PendingSlice
    bodies: PendingSlice
    rows: int

    def resolve(self) -> Chunk:
        """Return the chunk, whose blocks must be closed."""
        return Chunk(self.keys.resolve(), self.bodies.resolve(), self.rows)


AnyChunk: TypeAlias = Chunk | PendingChunk


class PendingEntry(NamedTuple):
    """A line of the new backup, some of whose chunks may not be stored yet."""

    entry: LineEntry
    chunks: tuple[AnyChunk, ...]

    @classmethod
    def of(cls, line: Line, outline: Outline, chunks: tuple[AnyChunk, ...]) -> PendingEntry:
        """Return a line as it is at a moment, given what makes its rows."""
        columns: tuple[Any, ...] = () if outline.row is None else outline.row.columns
        body = b"" if outline.row is None else outline.row.body
        keys = tuple(bytes(row.columns[0]) for row in outline.keys)  # type: ignore[arg-type]
        entry = LineEntry(*line, columns, body, outline.tips, outline.digest(), outline.last_event, (), keys)
        return cls(entry, chunks)

    @classmethod
    def of_stored(cls, entry: LineEntry) -> PendingEntry:
        """Return a line as an earlier backup has it."""
        return cls(entry, entry.chunks)

    @property
    def rows(self) -> int:
        """The number of rows in its chunks."""
        return sum(each.rows for each in self.chunks)

    def resolve(self) -> LineEntry:
        """Return the line, whose blocks must be closed."""
        chunks = tuple(each if isinstance(each, Chunk) else each.resolve() for each in self.chunks)
        return msgspec.structs.replace(self.entry, chunks=chunks)


class LostLists(Exception):
    """The lists of a backup cannot be read."""


class Totals(NamedTuple):
    """The lines of a backup that are no settings of tenants, the rows of all, and the bytes of all blocks that it
    needs: at most so many, where layers have lines that newer ones replace."""

    lines: int
    rows: int
    needed: int


class LineLists:
    """The lines in the layers of a backup."""

    def __init__(self, repository: Repository, layers: Sequence[Layer], totals: Totals) -> None:
        self.layers = tuple(layers)
        self.totals = totals
        self._repository = repository

    @classmethod
    def of(cls, repository: Repository, manifest: Manifest | None) -> LineLists:
        """Return the lists of a backup, or empty ones."""
        if manifest is None:
            return cls(repository, (), Totals(0, 0, 0))
        return cls(repository, manifest.layers, Totals(manifest.lines, manifest.rows, manifest.needed))

    async def find(self, line: Line) -> LineEntry | None:
        """Return a line; None if the backup does not have it."""
        for layer in reversed(self.layers):
            place = bisect_right(layer.pages, line, key=_first_line) - 1
            if place >= 0:
                page = await self._page(layer.pages[place])
                at = bisect_left(page, line, key=_line_of)
                if at < len(page) and page[at].line == line:
                    return None if page[at].is_removed else page[at]
        return None

    async def walk(self, start: int = 0) -> AsyncIterator[LineEntry]:
        """Yield the lines in order; or what the layers from one on say, which may be that a line is removed."""
        walks = [self._walk_layer(layer) for layer in self.layers[start:]]
        heads = [await anext(each, None) for each in walks]
        while left := [each.line for each in heads if each is not None]:
            line = min(left)
            found: LineEntry | None = None
            for number, head in enumerate(heads):
                if head is not None and head.line == line:
                    found = head  # that of the last layer counts
                    heads[number] = await anext(walks[number], None)
            if found is not None and (start or not found.is_removed):
                yield found

    async def _walk_layer(self, layer: Layer) -> AsyncIterator[LineEntry]:
        for page in layer.pages:
            for entry in await self._page(page):
                yield entry

    async def _page(self, page: Page) -> Sequence[LineEntry]:
        try:
            return await self._repository.page(page.part)
        except UNREADABLE as error:
            raise LostLists from error


def _first_line(page: Page) -> Line:
    return Line(page.tenant, page.name)


def _line_of(entry: LineEntry) -> Line:
    return entry.line


class LayerWriter:
    """Writes the lines of a layer, which come in order, together with what was added to a writer for them. Pages are in
    packs of their own, unless there are few lines: they may be needed longer than chunks."""

    def __init__(self, repository: Repository, writer: PackWriter) -> None:
        self._writer = writer
        self._lists = repository.pack_writer()
        self._waiting: list[PendingEntry] = []
        self._pages: list[tuple[Line, PendingSlice]] = []
        self._blocks: dict[tuple[bytes, int], int] = {}
        self._count = 0
        self.lines = self.rows = 0
        """The lines that are no settings of tenants, and the rows of all."""

    async def add(self, entry: PendingEntry) -> None:
        """Add the next line."""
        self._waiting.append(entry)
        self._count += 1
        self.lines += bool(entry.entry.columns)
        self.rows += entry.rows
        if len(self._waiting) >= _LARGE_PAGE_LINES:
            await self._writer.flush()
            await self._write_pages(_PAGE_LINES if len(self._pages) < _FEW_PAGES else _LARGE_PAGE_LINES)

    async def finish(self) -> Layer:
        """Write the rest. Returns the layer."""
        if self._count > _SMALL_LAYER:
            await self._writer.flush()
        else:
            await self._writer.close()
            self._lists = self._writer
        last = self._waiting
        await self._write_pages(_PAGE_LINES)
        await self._lists.flush()
        if self._lists is not self._writer:
            self._writer.packs += self._lists.packs
        self._use([each.resolve() for each in last])
        pages = tuple(Page(*line, part.resolve()) for line, part in self._pages)
        self._blocks |= {(each.part.pack, each.part.offset): each.part.length for each in pages}
        ends: dict[bytes, int] = {}
        for (pack, offset), length in self._blocks.items():
            ends[pack] = max(ends.get(pack, 0), offset + length)
        return Layer(self._count, pages, tuple(sorted(ends.items())))

    def needed_bytes(self, known: Set[bytes] = frozenset()) -> int:
        """Return the bytes of all blocks that the layer needs, besides those in some packs."""
        return sum(length for (pack, _), length in self._blocks.items() if pack not in known)

    async def _write_pages(self, size: int) -> None:
        """Write the lines that wait, whose blocks are closed."""
        entries = [each.resolve() for each in self._waiting]
        for start in range(0, len(entries), size):
            page = entries[start : start + size]
            self._pages.append((page[0].line, await self._lists.add(PAGES, msgspec.msgpack.encode(page))))
        self._use(entries)
        self._waiting = []

    def _use(self, entries: Sequence[LineEntry]) -> None:
        """Note the blocks of lines that are stored."""
        self._blocks |= {(part.pack, part.offset): part.length for each in entries for part in each.parts if part.pack}


async def write_lists(
    repository: Repository,
    writer: PackWriter,
    lists: LineLists,
    changed: Mapping[Line, PendingEntry | None],
    *,
    whole: bool = False,
) -> LineLists:
    """Write what has changed since some lists, and all that was added to the writer for it. Lines without an entry are
    not there any more. With `whole`, all lists are written again."""
    await writer.close()
    real: dict[Line, PendingEntry | None] = {}
    lines, rows, needed = lists.totals
    for line in sorted(changed):
        pending, before = changed[line], await lists.find(line)
        entry = None if pending is None else pending.resolve()
        if entry != before:
            real[line] = pending
            lines += _is_thread(entry) - _is_thread(before)
            rows += _rows_of(entry) - _rows_of(before)
    if not real and not whole:
        await writer.flush()
        return lists
    start = 0 if whole else first_to_merge([*(layer.lines for layer in lists.layers), len(real)])
    merged = LayerWriter(repository, writer)
    walk = lists.walk(start)
    old = await anext(walk, None)
    for line, pending in real.items():
        while old is not None and old.line < line:
            await merged.add(PendingEntry.of_stored(old))
            old = await anext(walk, None)
        if old is not None and old.line == line:
            old = await anext(walk, None)
        if pending is not None:
            await merged.add(pending)
        elif start:
            await merged.add(PendingEntry.of_stored(LineEntry.of_removed(line)))
    while old is not None:
        await merged.add(PendingEntry.of_stored(old))
        old = await anext(walk, None)
    layers = [each for each in (*lists.layers[:start], await merged.finish()) if each.pages]
    known = {pack for layer in lists.layers for pack, _ in layer.packs} if start else set[bytes]()
    totals = Totals(lines, rows, merged.needed_bytes(known) + (needed if start else 0))
    return LineLists(repository, layers, totals)


def _is_thread(entry: LineEntry | None) -> bool:
    return entry is not None and bool(entry.columns)


def _rows_of(entry: LineEntry | None) -> int:
    return 0 if entry is None else sum(chunk.rows for chunk in entry.chunks)


def first_to_merge(sizes: Sequence[int]) -> int:
    """Return the first of some layers, with these numbers of lines, that is merged with all after it: the first of all,
    if the others have as many lines as it; else the first of some of similar size."""
    if sum(sizes[1:]) >= sizes[0]:
        return 0
    start, lines = len(sizes) - 1, sizes[-1]
    while start >= _SIMILAR - 1 and sizes[start - _SIMILAR + 1] <= 2 * lines:
        lines += sum(sizes[start - _SIMILAR + 1 : start])
        start -= _SIMILAR - 1
    return start
