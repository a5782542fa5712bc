"""Who wrote what: the checkpoints that a place of a state comes from, and all that ever changed it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar

from holdfast.backends.interface import Get
from holdfast.backends.tables import STEPS
from holdfast.engine.engine import Engine
from holdfast.engine.model import draft_reader, nodes
from holdfast.engine.model.json_diff import Path, decoded, tree_of
from holdfast.engine.model.workspace import MissingNode
from holdfast.engine.row_format import MERGE, PRUNED, Line, StepRef
from holdfast.engine.types import Revision, to_datetime
from holdfast.errors import NotFoundError
from holdfast.history.change import Change
from holdfast.history.diff_result import as_changes
from holdfast.history.diff_text import Line as TextLine
from holdfast.history.diff_text import lines
from holdfast.history.merge_provenance import MergeProvenance
from holdfast.history.past_reader import PastReader, PastValue
from holdfast.history.paths import path_text
from holdfast.history.provenance import ProvenanceReader, ProvenanceStep
from holdfast.history.revisions import resolve

T = TypeVar("T")

_BY = ("author", "user", "by", "agent", "writer", "node", "source")
"""Entries of a checkpoint's metadata that say who saved it, the most telling first."""

_PAGE = 500
"""How many steps are described at a time."""


@dataclass(frozen=True, slots=True)
class CheckpointRef:
    """The checkpoint that wrote something.

    `by` is what its metadata says of who saved it: the first of author, user, by, agent, writer, node and source that
    is there. Of a pruned one, `id` is empty, and only place, time and hash are known.
    """

    id: str
    branch: int
    step: int
    time: datetime | None
    kind: str
    hash: str
    metadata: Mapping[str, Any]
    by: str

    @property
    def pruned(self) -> bool:
        """Whether the checkpoint is not there any more."""
        return not self.id


@dataclass(frozen=True, slots=True)
class BlameEntry:
    """A place of a state, what is there, and the checkpoint that wrote it."""

    path: Path
    value: Any
    writer: CheckpointRef

    @property
    def where(self) -> str:
        """The place as text: `messages[3]`."""
        return path_text(self.path)


@dataclass(frozen=True, slots=True)
class ValueChange:
    """A checkpoint that changed a place, and what it changed there."""

    writer: CheckpointRef
    changes: tuple[Change, ...]

    def lines(self, *, by_word: bool = False) -> Iterator[TextLine]:
        """The changes as lines of text, in styled parts, as `Diff.lines` has them."""
        return lines(self.changes, by_word=by_word)


async def blame(
    engine: Engine, line: Line, path: Path, at: Revision, *, start: int = 0, limit: int | None = None
) -> list[BlameEntry]:
    """Which checkpoint wrote what is at a place: of a list or a dict, each of its items or entries."""
    return await _steady(engine, line, lambda: _blame(engine, line, path, at, start, limit))


async def _blame(
    engine: Engine, line: Line, path: Path, at: Revision, start: int, limit: int | None
) -> list[BlameEntry]:
    point = await resolve(engine, line, at)
    tracer = ProvenanceReader(engine, line)
    part = path[-1] if type(path[-1]) is slice else None
    stem = path if part is None else path[:-1]
    there = await tracer.looked(point, stem)
    if there is None:
        raise _nothing(line, stem, point)
    look, found = there
    stem = found.path
    length = None if found.value is None else draft_reader.length(found.value)
    if part is not None and length is None:
        raise NotFoundError("what is there is no list", where=f"{path_text(stem)} of thread {line}")
    if found.items >= 0 and part is None:
        return await _one(engine, line, tracer, point, stem, look, found)  # what is in an item was written with it
    if length:
        first, last, _ = (part or slice(None)).indices(length)
        first = min(first + start, last)
        last = last if limit is None else min(last, first + limit)
        return await _items(engine, line, tracer, look, found, stem, first, last)
    keys = await look.keys(found)
    if keys:
        chosen = keys[start : None if limit is None else start + limit]
        return await _entries(engine, line, tracer, look, stem, chosen)
    return await _one(engine, line, tracer, point, stem, look, found)


async def _one(
    engine: Engine, line: Line, tracer: ProvenanceReader, point: StepRef, path: Path, look: PastReader, found: PastValue
) -> list[BlameEntry]:
    origin = await tracer.written(point, path) or found.origin
    (writer,) = await _crossed(engine, line, tracer, look, [path], [origin])
    value = decoded(engine.context.codec, await look.tree(found))
    return [BlameEntry(path, value, writer)]


async def _crossed(
    engine: Engine,
    line: Line,
    tracer: ProvenanceReader,
    look: PastReader,
    paths: Sequence[Path],
    origins: Sequence[nodes.WrittenBy],
) -> list[CheckpointRef]:
    """The checkpoints that wrote what is at some places; of what merges brought in, those on the other side."""
    writers = await _writers(engine, line, origins)
    merges = {origin for origin, writer in writers.items() if writer.kind in (MERGE, PRUNED)}
    if not merges:
        return [writers[origin] for origin in origins]
    crossing = MergeProvenance(engine, line, tracer)
    pairs = zip(paths, origins, strict=True)
    across = [await crossing.origin(look, path, at) if at in merges else at for path, at in pairs]
    writers |= await _writers(engine, line, {origin for origin in across if origin not in writers})
    return [writers[origin] for origin in across]


async def _items(
    engine: Engine,
    line: Line,
    tracer: ProvenanceReader,
    look: PastReader,
    found: PastValue,
    path: Path,
    start: int,
    stop: int,
) -> list[BlameEntry]:
    items = await look.items(found, start, stop)
    origins = await tracer.item_origins(look, found, path, start, stop)
    places = [(*path, start + i) for i in range(len(items))]
    writers = await _crossed(engine, line, tracer, look, places, origins)
    codec = engine.context.codec
    return [
        BlameEntry(place, decoded(codec, tree_of(item.value, {})), writer)
        for place, item, writer in zip(places, items, writers, strict=True)
    ]


async def _entries(
    engine: Engine, line: Line, tracer: ProvenanceReader, look: PastReader, path: Path, keys: Sequence[Any]
) -> list[BlameEntry]:
    origins = await tracer.entry_origins(look, path, keys)
    places = [(*path, key) for key in keys]
    writers = await _crossed(engine, line, tracer, look, places, origins)
    found = []
    for place, writer in zip(places, writers, strict=True):
        there = await look.place(place)
        if there is not None:
            found.append(BlameEntry(place, decoded(engine.context.codec, await look.tree(there)), writer))
    return found


async def history(
    engine: Engine, line: Line, path: Path, at: Revision, *, before: str | None = None, limit: int | None = None
) -> list[ValueChange]:
    """Every checkpoint along the way to a revision that changed a place, the latest first."""
    return await _steady(engine, line, lambda: _history(engine, line, path, at, before, limit))


async def _steady(engine: Engine, line: Line, look: Callable[[], Awaitable[T]]) -> T:
    """What is found; if the line was rewritten meanwhile, what is found then."""
    try:
        return await look()
    except MissingNode:
        engine.context.cache.drop_all(line)
        return await look()


async def _history(
    engine: Engine, line: Line, path: Path, at: Revision, before: str | None, limit: int | None
) -> list[ValueChange]:
    point = await resolve(engine, line, at)
    last = None if before is None else await engine.lines.find(line, before)
    tracer = ProvenanceReader(engine, line)
    found: list[ProvenanceStep] = []
    seen = last is None
    async for touch in tracer.touches(point, path):
        if seen:
            found.append(touch)
        seen = seen or (last is not None and tuple(touch.origin) == last[:2])
        if limit is not None and len(found) >= limit:
            break
    if not found and last is None and await tracer.looked(point, path) is None:
        raise _nothing(line, path, point)
    writers = await _writers(engine, line, [touch.origin for touch in found])
    return [ValueChange(writers[touch.origin], as_changes(engine.context.codec, touch.edits)) for touch in found]


async def _writers(
    engine: Engine, line: Line, origins: Iterable[nodes.WrittenBy]
) -> dict[nodes.WrittenBy, CheckpointRef]:
    """The checkpoints of some origins."""
    wanted = list(dict.fromkeys(origins))
    writers: dict[nodes.WrittenBy, CheckpointRef] = {}
    for begin in range(0, len(wanted), _PAGE):
        page = wanted[begin : begin + _PAGE]
        (rows,) = await engine.context.backend.read([Get(STEPS, [(*line, *origin) for origin in page])])
        points = {nodes.WrittenBy(*point[:2]): point for point in map(StepRef.of, rows)}
        kept = [point for point in points.values() if not point.pruned]
        heads = {head.point[:2]: head for head in await engine.step_info.describe(line, kept, rows)} if kept else {}
        for origin in page:
            point = points.get(origin)
            metadata = {} if origin not in heads else engine.context.codec.unpack(heads[origin].header.metadata)
            writers[origin] = _writer(origin, point, metadata)
    return writers


def _writer(origin: nodes.WrittenBy, point: StepRef | None, metadata: Mapping[str, Any]) -> CheckpointRef:
    if point is None:
        return CheckpointRef("", origin.branch, origin.seq, None, PRUNED, "", metadata, "")
    by = next((value for name in _BY if type(value := metadata.get(name)) is str and value), "")
    time = to_datetime(point.time)
    return CheckpointRef(point.id, point.branch, point.depth, time, point.kind, point.hash.hex(), metadata, by)


def _nothing(line: Line, path: Path, point: StepRef) -> NotFoundError:
    return NotFoundError(
        f"the state has nothing at {path_text(path)}",
        where=f"checkpoint {point.id} of thread {line}",
        hint="See what changed there with history()",
    )
