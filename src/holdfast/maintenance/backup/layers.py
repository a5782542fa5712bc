"""The lists of the lines of backups, in layers.

A backup after another adds a layer with the lines that have changed, and refers to those of the one before it. Layers
of similar size are merged, so that there are few of them, and each line is written again only now and then: what a
backup costs does not depend on how many backups there are, and hardly on how many lines. Of a line that is in several
layers, the last one counts.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

import msgspec

from holdfast.engine.row_format import Line
from holdfast.maintenance.backup.format import Layer, LineEntry, Slice
from holdfast.maintenance.backup.packs import PAGES, PackWriter
from holdfast.maintenance.backup.repository import Repository

_SIMILAR = 4
"""How many layers of similar size are merged into one."""
_PAGE_LINES = 2048
_SMALL_LAYER = 256
"""The lines of a layer that is stored in the same pack as the chunks of its lines."""


class PendingEntry(Protocol):
    """A line of a new backup, of which something may not be stored yet."""

    @property
    def is_stored(self) -> bool:
        """Whether all its chunks are stored."""

    def resolve(self) -> LineEntry:
        """Return the line. Its blocks must be closed."""


async def write_layers(
    repository: Repository,
    writer: PackWriter,
    layers: Sequence[Layer],
    before: Mapping[Line, LineEntry],
    entries: Mapping[Line, PendingEntry],
) -> tuple[tuple[Layer, ...], list[LineEntry]]:
    """Write the lines of a backup, and all that was added to the writer, given the layers and lines of the last one.
    Returns the layers and all lines."""
    changed = [line for line, entry in entries.items() if not entry.is_stored or entry.resolve() != before.get(line)]
    removed = before.keys() - entries.keys()
    start = first_to_merge([*(layer.lines for layer in layers), len(changed) + len(removed)])
    known = [page for layer in layers[start:] for page in layer.pages]
    count = len(changed) + len(removed) + sum(layer.lines for layer in layers[start:])
    if count <= _SMALL_LAYER:
        await writer.close()
    else:
        await writer.flush()
    found = {line: entry.resolve() for line, entry in entries.items()}
    ordered = [found[line] for line in sorted(found)]
    if changed or removed:
        lines = {entry.line: entry for page in known for entry in await repository.page(page)}
        lines |= {line: found[line] for line in changed} | {line: LineEntry.of_removed(line) for line in removed}
        kept = [lines[line] for line in sorted(lines) if start or not lines[line].is_removed]
        layers = [*layers[:start], Layer(len(kept), await _write_pages(writer, kept))]
    return tuple(layer for layer in layers if layer.pages), ordered


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


async def _write_pages(writer: PackWriter, entries: Sequence[LineEntry]) -> tuple[Slice, ...]:
    pages = [entries[start : start + _PAGE_LINES] for start in range(0, len(entries), _PAGE_LINES)]
    pending = [await writer.add(PAGES, msgspec.msgpack.encode(page)) for page in pages]
    await writer.flush()
    return tuple(each.resolve() for each in pending)


def needed_bytes(entries: Collection[LineEntry], layers: Sequence[Layer]) -> int:
    """Return the bytes of all blocks that a backup needs."""
    blocks = {(part.pack, part.offset): part.length for layer in layers for part in layer.pages}
    for entry in entries:
        for chunk in entry.chunks:
            for part in (chunk.keys, chunk.bodies):
                blocks[part.pack, part.offset] = part.length
    return sum(blocks.values())
