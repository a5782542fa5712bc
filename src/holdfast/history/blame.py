"""Blame and history: the checkpoint that wrote a value, and all that ever changed it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar

import msgspec

from holdfast._fields import computed
from holdfast.backends.interface import Get
from holdfast.backends.tables import STEPS
from holdfast.engine.engine import Engine
from holdfast.engine.model import draft_reader, nodes
from holdfast.engine.model.json_diff import Path, decoded, tree_of
from holdfast.engine.model.workspace import MissingNode
from holdfast.engine.paths import path_text
from holdfast.engine.row_format import MERGE, PRUNED, Line, StepRef
from holdfast.engine.state_reader import StateReader
from holdfast.engine.types import to_datetime
from holdfast.errors import InvalidError, NotFoundError
from holdfast.history.diff_result import as_changes
from holdfast.history.diff_text import Change, lines
from holdfast.history.diff_text import Line as TextLine
from holdfast.history.provenance import MergeProvenance, PastReader, PastValue, ProvenanceReader, ProvenanceStep

T = TypeVar("T")

_AUTHOR_KEYS = ("author", "user", "by", "agent", "writer", "node", "source")
"""Keys of a checkpoint's metadata that name who saved it, in order of preference."""

_PAGE = 500
"""How many steps are read at a time."""


class CheckpointRef(msgspec.Struct, frozen=True):
    """The checkpoint that wrote a value.

    `by` is who saved it, by its metadata: the first of author, user, by, agent, writer, node and source that is there.
    Of a pruned one, `id` is empty, and only position, time and hash are known.
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
    @computed
    def pruned(self) -> bool:
        """Whether the checkpoint was pruned."""
        return not self.id


class BlameEntry(msgspec.Struct, frozen=True):
    """A value of a state, its path, and the checkpoint that wrote it."""

    path: Path
    value: Any
    writer: CheckpointRef

    @property
    def where(self) -> str:
        """The path as text: `messages[3]`."""
        return path_text(self.path)


class ValueChange(msgspec.Struct, frozen=True):
    """A checkpoint that changed a value, and the changes."""

    writer: CheckpointRef
    changes: tuple[Change, ...]

    def lines(self, *, by_word: bool = False) -> Iterator[TextLine]:
        """The changes as lines of text, in styled parts, as `Diff.lines` has them."""
        return lines(self.changes, by_word=by_word)


async def blame(
    engine: Engine, line: Line, path: Path, point: StepRef, *, start: int = 0, limit: int | None = None
) -> list[BlameEntry]:
    """Find the checkpoint that wrote the value at a path; of a list or dict, those of its items or entries."""
    return await _retry(engine, line, lambda: _blame(engine, line, path, point, start, limit))


async def _blame(
    engine: Engine, line: Line, path: Path, point: StepRef, start: int, limit: int | None
) -> list[BlameEntry]:
    provenance = ProvenanceReader(engine, line)
    part = path[-1] if type(path[-1]) is slice else None
    stem = path if part is None else path[:-1]
    located = await provenance.locate(point, stem)
    if located is None:
        raise await _not_found(engine, line, stem, point)
    reader, past = located
    stem = past.path
    length = None if past.value is None else draft_reader.length(past.value)
    if part is not None and length is None:
        raise NotFoundError("the value is not a list", where=f"{path_text(stem)} of thread {line}")
    if past.item_depth >= 0 and part is None:  # a value inside an item was written with it
        return await _blame_value(engine, line, provenance, point, reader, past)
    if length:
        first, last, _ = (part or slice(None)).indices(length)
        first = min(first + start, last)
        last = last if limit is None else min(last, first + limit)
        return await _blame_items(engine, line, provenance, reader, past, first, last)
    keys = await reader.keys(past)
    if keys:
        page = keys[start : None if limit is None else start + limit]
        return await _blame_entries(engine, line, provenance, reader, stem, page)
    return await _blame_value(engine, line, provenance, point, reader, past)


async def _blame_value(
    engine: Engine, line: Line, provenance: ProvenanceReader, point: StepRef, reader: PastReader, past: PastValue
) -> list[BlameEntry]:
    origin = await provenance.last_writer(point, past.path) or past.origin
    (writer,) = await _find_writers(engine, line, provenance, reader, [past.path], [origin])
    return [BlameEntry(past.path, decoded(engine.context.codec, await reader.tree(past)), writer)]


async def _find_writers(
    engine: Engine,
    line: Line,
    provenance: ProvenanceReader,
    reader: PastReader,
    paths: Sequence[Path],
    origins: Sequence[nodes.WrittenBy],
) -> list[CheckpointRef]:
    """Return the checkpoints of some origins; for values that merges brought in, those on the other side."""
    writers = await _read_writers(engine, line, origins)
    merges = {origin for origin, writer in writers.items() if writer.kind in (MERGE, PRUNED)}
    if not merges:
        return [writers[origin] for origin in origins]
    merged = MergeProvenance(engine, line, provenance)
    pairs = zip(paths, origins, strict=True)
    origins = [await merged.origin(reader, path, origin) if origin in merges else origin for path, origin in pairs]
    writers |= await _read_writers(engine, line, {origin for origin in origins if origin not in writers})
    return [writers[origin] for origin in origins]


async def _blame_items(
    engine: Engine, line: Line, provenance: ProvenanceReader, reader: PastReader, past: PastValue, start: int, stop: int
) -> list[BlameEntry]:
    items = await reader.items(past, start, stop)
    origins = await provenance.item_origins(reader, past, past.path, start, stop)
    paths = [(*past.path, start + i) for i in range(len(items))]
    writers = await _find_writers(engine, line, provenance, reader, paths, origins)
    codec = engine.context.codec
    return [
        BlameEntry(path, decoded(codec, tree_of(item.value, {})), writer)
        for path, item, writer in zip(paths, items, writers, strict=True)
    ]


async def _blame_entries(
    engine: Engine, line: Line, provenance: ProvenanceReader, reader: PastReader, stem: Path, keys: Sequence[Any]
) -> list[BlameEntry]:
    origins = await provenance.entry_origins(reader, stem, keys)
    paths = [(*stem, key) for key in keys]
    writers = await _find_writers(engine, line, provenance, reader, paths, origins)
    entries = []
    for path, writer in zip(paths, writers, strict=True):
        past = await reader.value_at(path)
        if past is not None:
            entries.append(BlameEntry(path, decoded(engine.context.codec, await reader.tree(past)), writer))
    return entries


async def history(
    engine: Engine, line: Line, path: Path, point: StepRef, *, after: str | None = None, limit: int
) -> tuple[list[ValueChange], str | None]:
    """List the checkpoints up to a revision that changed a value, the latest first.

    Returns `limit` of them, and the cursor of the next ones, to be passed as `after`; None if there are no more.
    """
    last = None if after is None else _parse_cursor(after)
    return await _retry(engine, line, lambda: _history(engine, line, path, point, last, limit))


async def _retry(engine: Engine, line: Line, read: Callable[[], Awaitable[T]]) -> T:
    """Read again without the cache if the line was rewritten meanwhile."""
    try:
        return await read()
    except MissingNode:
        engine.context.cache.drop_all(line)
        return await read()


async def _history(
    engine: Engine, line: Line, path: Path, point: StepRef, last: nodes.WrittenBy | None, limit: int
) -> tuple[list[ValueChange], str | None]:
    provenance = ProvenanceReader(engine, line)
    steps: list[ProvenanceStep] = []
    skipping = last is not None
    async for step in provenance.changes(point, path):
        if not skipping:
            steps.append(step)
        skipping = skipping and step.origin != last
        if len(steps) > limit:
            break
    if not steps and last is None and await provenance.locate(point, path) is None:
        raise await _not_found(engine, line, path, point)
    page = steps[:limit]
    writers = await _read_writers(engine, line, [step.origin for step in page])
    changes = [ValueChange(writers[step.origin], as_changes(engine.context.codec, step.edits)) for step in page]
    return changes, "{}.{}".format(*page[-1].origin) if page and len(steps) > limit else None


def _parse_cursor(cursor: str) -> nodes.WrittenBy:
    branch, dot, seq = cursor.partition(".")
    if not (dot and branch.isdecimal() and seq.isdecimal()):
        raise InvalidError(
            "the cursor does not belong to this listing", where=repr(cursor)[:80], hint="Pass the `next` of a page"
        )
    return nodes.WrittenBy(int(branch), int(seq))


async def _read_writers(
    engine: Engine, line: Line, origins: Iterable[nodes.WrittenBy]
) -> dict[nodes.WrittenBy, CheckpointRef]:
    distinct = list(dict.fromkeys(origins))
    writers: dict[nodes.WrittenBy, CheckpointRef] = {}
    for begin in range(0, len(distinct), _PAGE):
        page = distinct[begin : begin + _PAGE]
        keys = [(*line, *origin) for origin in page]
        (rows,) = await engine.context.backend.read([Get(STEPS, keys, required=True)])
        points = {nodes.WrittenBy(*point[:2]): point for point in map(StepRef.of, rows)}
        unpruned = [point for point in points.values() if not point.pruned]
        heads = {}
        if unpruned:
            heads = {head.point[:2]: head for head in await engine.step_info.describe(line, unpruned, rows)}
        for origin in page:
            point = points.get(origin)
            metadata = {} if origin not in heads else engine.context.codec.unpack(heads[origin].header.metadata)
            writers[origin] = _writer(origin, point, metadata)
    return writers


def _writer(origin: nodes.WrittenBy, point: StepRef | None, metadata: Mapping[str, Any]) -> CheckpointRef:
    if point is None:
        return CheckpointRef("", origin.branch, origin.seq, None, PRUNED, "", metadata, "")
    by = next((value for name in _AUTHOR_KEYS if type(value := metadata.get(name)) is str and value), "")
    time = to_datetime(point.time)
    return CheckpointRef(point.id, point.branch, point.depth, time, point.kind, point.hash.hex(), metadata, by)


async def _not_found(engine: Engine, line: Line, path: Path, point: StepRef) -> NotFoundError:
    from difflib import get_close_matches  # rarely needed

    names = await StateReader(engine.states, engine.context.codec, line, point).names()
    near = [] if path[0] in names else get_close_matches(str(path[0]), names, 3)
    hint = f"Did you mean {' or '.join(near)}?" if near else "thread.history() lists the changes there"
    return NotFoundError(
        f"the state has no value at {path_text(path)}",
        where=f"checkpoint {point.id} of thread {line}",
        hint=hint,
    )
