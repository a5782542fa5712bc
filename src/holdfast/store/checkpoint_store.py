"""`CheckpointStore`: the low-level interface that the savers of agent frameworks are built on.

A framework has ids, parents and times of its own, and keeps bookkeeping (versions of channels, for example) beside the
values of its channels. `CheckpointStore` saves what it is told and returns it unchanged. All operations are coroutines:
`run` executes one in the calling thread, `arun` awaits it, and `make_both` makes of one method a sync and an async one.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple

from holdfast.codec import Codec
from holdfast.engine.append import AppendRequest, OnConflict
from holdfast.engine.copy.within_store import LineCopier
from holdfast.engine.delta_channels import FOLLOWS, KEPT, ChannelHistory
from holdfast.engine.engine import Engine
from holdfast.engine.lines import ROOT
from holdfast.engine.model.packed_state import PackedMap, pack_name, pack_state, unpack, unpack_state
from holdfast.engine.namespaces import is_thread, split_name, thread_name
from holdfast.engine.pending_writes import PendingWriteRow
from holdfast.engine.row_format import Line, StepRef, check_name, readable
from holdfast.engine.step_info import StepInfo
from holdfast.engine.types import to_datetime
from holdfast.engine.validation import check_new_name, optional_name
from holdfast.errors import ConflictError, CorruptError, HoldfastError, InvalidError, NotFoundError
from holdfast.store.checkpoint_pages import CheckpointListing
from holdfast.store.checkpoint_pruner import ThreadPruner
from holdfast.store.store import StoreOperations

BOOKKEEPING = KEPT
"""The channel that holds the bookkeeping. States cannot have one of this name."""


class PendingWrite(NamedTuple):
    """A value that a task wrote to a channel after a checkpoint, before the next checkpoint includes it."""

    task_id: str
    channel: str
    value: Any


@dataclass(frozen=True, slots=True)
class FromParent:
    """The value of a channel that is the same as in the parent. `make` returns it if the parent does not have it."""

    make: Callable[[], Any]


@dataclass(slots=True)
class SavedCheckpoint:
    """A checkpoint as its framework saved it.

    `stamp` is the framework's text for the time, empty if the checkpoint was not saved by one. `parent` is the id that
    the framework named, whether or not there is such a checkpoint.
    """

    thread: str
    id: str
    parent: str | None
    stamp: str
    time: datetime
    step: int
    metadata: dict[str, Any]
    state: dict[str, Any]
    bookkeeping: dict[str, Any]
    writes: list[PendingWrite]


class ChannelWrites(NamedTuple):
    """The stored value of a channel before a checkpoint, if there is one, and what was written since, oldest first."""

    writes: list[PendingWrite]
    seed: Any
    has_seed: bool


class CheckpointStore:
    """Saves and reads checkpoints on a store, with ids, parents and times of a framework's own.

    `thread` is the name of a thread of the store: `thread_name(id, namespace)` for a namespace in a thread. With
    `may_revive`, objects of other classes than it accepts are returned as opaque values. `default_metadata` is called
    with the number of a step that no framework saved, for metadata that the framework expects of every checkpoint. If
    `lenient`, values are saved that cannot be read back as they were; see `Codec`.
    """

    def __init__(
        self,
        store: StoreOperations,
        *,
        may_revive: Callable[[str], bool] | None = None,
        default_metadata: Callable[[int], Mapping[str, Any]] | None = None,
        lenient: bool = False,
    ) -> None:
        if not isinstance(store, StoreOperations):
            raise InvalidError(
                f"checkpoints are saved on an open store, not on {type(store).__name__}",
                hint="Pass what holdfast.open returned",
            )
        self.store = store
        self._default_metadata = default_metadata
        own = store._engine.context.codec
        self._codec = own
        if may_revive is not None or lenient:
            self._codec = Codec(own.registry, own.limits, may_revive=may_revive, lenient=lenient)

    # Saving ---------------------------------------------------------------------------------------------------

    async def save(
        self,
        thread: str,
        state: Mapping[str, Any],
        *,
        id: str,
        stamp: str,
        parent: str | None = None,
        bookkeeping: Mapping[str, Any] | None = None,
        metadata: Mapping[str, Any] | None = None,
        kind: str = "save",
    ) -> None:
        """Save a checkpoint after the one with the id `parent`, or as a first one.

        A second checkpoint on one parent opens a branch. The same id with other content is a new revision of it. If
        there is no such parent, or the id was saved after another one, the checkpoint is saved as it is, and reads with
        the parent that was named.
        """
        line = self._line(thread)
        optional_name(parent, "id of a checkpoint")
        check_new_name(id, "id of a checkpoint")
        if type(stamp) is not str:
            raise InvalidError("the time of a checkpoint is text", where=f"thread {line}")
        if BOOKKEEPING in state:
            raise InvalidError(f"the name {BOOKKEEPING!r} is reserved", hint="Give the channel another name")
        described = dict(metadata or {})
        entries = dict(bookkeeping or {})
        request = AppendRequest(
            line,
            await self._pack(line, state, entries, parent),
            parent=ROOT if parent is None else parent,
            on_conflict=OnConflict.BRANCH,
            id=id,
            metadata=self._codec.pack(described),
            readable=readable(self._codec, described),
            kind=check_name(kind, "kind of a checkpoint"),
            stamp=stamp,
        )
        try:
            await self._engine.writer.save(request)
        except (NotFoundError, ConflictError) as error:
            existing = await self._engine.lines.find_id(line, id, None)
            if existing is None and isinstance(error, ConflictError):
                raise
            request.state = await self._pack(line, state, {**entries, FOLLOWS: parent or ""}, None)
            request.parent = ROOT if existing is None else None
            await self._engine.writer.save(request)

    async def _pack(
        self, line: Line, state: Mapping[str, Any], entries: Mapping[str, Any], parent: str | None
    ) -> PackedMap:
        # Each entry is packed alone, so that a step stores only those that changed. The channel comes first, so that
        # new channels do not move it.
        packed: PackedMap = {
            pack_name(KEPT): dict(zip(map(pack_name, entries), self._codec.pack_items(entries.values()), strict=True))
        }
        inherited = {name: value for name, value in state.items() if type(value) is FromParent}
        if not inherited:
            return packed | self._engine.pack_cache(line, self._codec).pack(state)
        before = await self._packed(line, parent)
        values = {
            name: value.make() if name in inherited and pack_name(name) not in before else value
            for name, value in state.items()
        }
        unchanged = {name for name in inherited if pack_name(name) in before}
        fresh = pack_state(self._codec, {name: None if name in unchanged else values[name] for name in values})
        return packed | fresh | {pack_name(name): before[pack_name(name)] for name in unchanged}

    async def _packed(self, line: Line, id: str | None) -> PackedMap:
        """Return the packed state of a checkpoint; an empty one if there is no such checkpoint."""
        if id is None:
            return {}
        try:
            point = await self._engine.lines.find(line, id)
        except NotFoundError:
            return {}
        return await self._engine.lines.read_step(line, point, partial(self._engine.states.packed, line))

    async def read_bookkeeping(self, thread: str, id: str) -> dict[str, Any]:
        """Return the bookkeeping of a checkpoint; an empty one if there is no such checkpoint."""
        kept = (await self._packed(self._line(thread), id)).get(pack_name(KEPT))
        return {} if kept is None else dict(unpack(self._codec, kept))

    async def put_writes(
        self, thread: str, id: str, writes: Sequence[tuple[int, str, Any]], *, task_id: str, task_path: str = ""
    ) -> None:
        """Store what a task wrote after the checkpoint with this id, which need not be saved yet.

        A write is a number, a channel and a value. A number that the task used before keeps its first value; negative
        numbers are for values that replace each other.
        """
        line = self._line(thread)
        check_name(id, "id of a checkpoint")
        if not check_name(task_id, "id of a task"):
            raise InvalidError("the id of a task is not empty", where=f"thread {line}")
        if not writes:
            return
        check_name(task_path, "path of a task")
        try:
            packed = self._codec.pack_items([value for _, _, value in writes])
        except HoldfastError:
            for _, channel, value in writes:
                self._codec.pack({channel: value})  # fails for the same reason, and reports the whole path
            raise
        rows = [
            PendingWriteRow(task_path, task_id, number, check_name(channel, "name of a channel"), value)
            for (number, channel, _), value in zip(writes, packed, strict=True)
        ]
        await self._engine.writes.put(line, id, rows)

    # Reading --------------------------------------------------------------------------------------------------

    async def get(self, thread: str, id: str | None = None, *, resume: bool = False) -> SavedCheckpoint | None:
        """Return the latest checkpoint of a thread, or the one with this id; None if there is none.

        With `resume`, the values of the state are remembered, so that saving the next one compares less.
        """
        line = self._line(thread)
        optional_name(id, "id of a checkpoint")
        while True:
            try:
                point, writes = await self._find(line, id)
            except NotFoundError:
                return None
            with suppress(NotFoundError):  # if it was deleted meanwhile, another may be the latest
                return await self._read_one(line, point, resume=resume, writes=writes)

    async def list_checkpoints(
        self,
        threads: Sequence[str],
        *,
        before: str | None = None,
        id: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[list[SavedCheckpoint]]:
        """Return an iterator over the checkpoints of some threads by id, the greatest first, a page at a time.

        Only those before an id; the one with an `id`; those with these entries in their metadata.
        """
        if limit is not None and type(limit) is not int:
            raise InvalidError(f"the limit is a number, not {limit!r}")
        lines = [self._line(thread) for thread in threads]
        optional_name(before, "id of a checkpoint")
        optional_name(id, "id of a checkpoint")
        return self._pages(
            CheckpointListing(self._engine, self._metadata, lines, before or "", id, metadata or {}, limit)
        )

    async def _pages(self, listing: CheckpointListing) -> AsyncIterator[list[SavedCheckpoint]]:
        while listed := await listing.next():
            points: dict[Line, list[StepRef]] = {}
            for line, point in listed:
                points.setdefault(line, []).append(point)
            read = {
                (line, each.id): each
                for line, several in points.items()
                for each in await self._read_existing(line, several)
            }
            if read:
                yield [read[line, point.id] for line, point in listed if (line, point.id) in read]

    async def _find(self, line: Line, id: str | None) -> tuple[StepRef, list[PendingWriteRow] | None]:
        """Return a checkpoint, and its pending writes if one request could read both."""
        lines, writes = self._engine.lines, self._engine.writes
        tip = lines.cached_tip(line)
        likely = id or (tip.point.id if tip is not None and tip.point is not None else "")
        if not likely:
            return await lines.find(line, id), None
        point, (rows,) = await lines.find_and(line, id, [writes.query(line, likely)])
        return point, writes.decode(rows) if point.id == likely else None

    async def _read_existing(self, line: Line, points: Sequence[StepRef]) -> list[SavedCheckpoint]:
        """Read some checkpoints, except those that were deleted or pruned meanwhile."""
        try:
            return await self._read(line, points)
        except (NotFoundError, CorruptError):
            existing = []
            for point in points:
                with suppress(NotFoundError):
                    existing.append(await self._read_one(line, point))
            return existing

    async def _read_one(
        self, line: Line, point: StepRef, *, resume: bool = False, writes: list[PendingWriteRow] | None = None
    ) -> SavedCheckpoint:
        async def read(point: StepRef) -> list[SavedCheckpoint]:
            return await self._read(line, [point], resume=resume, writes=writes)

        return (await self._engine.lines.read_step(line, point, read))[0]

    async def _read(
        self,
        line: Line,
        points: Sequence[StepRef],
        *,
        resume: bool = False,
        writes: list[PendingWriteRow] | None = None,
    ) -> list[SavedCheckpoint]:
        engine = self._engine
        heads = await engine.step_info.describe(line, points)
        states = await engine.states.series(line, points)
        pending = await engine.writes.of_many(line, [point.id for point in points]) if writes is None else [writes]
        checkpoints = []
        for head, packed, rows in zip(heads, states, pending, strict=True):
            if resume:
                state = engine.pack_cache(line, self._codec).unpack(packed)
            else:
                state = unpack_state(self._codec, packed)
            entries = dict(state.pop(KEPT, {}))
            named = entries.pop(FOLLOWS, None)
            checkpoints.append(
                SavedCheckpoint(
                    line.name,
                    head.header.id,
                    head.parent if named is None else named or None,
                    head.header.stamp,
                    to_datetime(head.point.time),
                    head.point.depth,
                    self._metadata(head),
                    state,
                    entries,
                    self._pending(rows),
                )
            )
        return checkpoints

    async def channel_writes(self, thread: str, id: str | None, channels: Sequence[str]) -> dict[str, ChannelWrites]:
        """Return what each channel held last before a checkpoint, and what was written to it since."""
        histories = {channel: ChannelHistory() for channel in channels}
        line, lines = self._line(thread), self._engine.lines
        optional_name(id, "id of a checkpoint")
        with suppress(NotFoundError):
            point = await lines.find(line, id)
            deltas = self._engine.delta_reader(self._codec)
            histories = await lines.read_step(line, point, partial(deltas.history, line, channels))
        return {channel: self._channel_writes(channel, history) for channel, history in histories.items()}

    def _channel_writes(self, channel: str, history: ChannelHistory) -> ChannelWrites:
        writes = list(reversed(history.writes))
        values = self._codec.unpack_items(packed for _, packed in writes)
        return ChannelWrites(
            [PendingWrite(task, channel, value) for (task, _), value in zip(writes, values, strict=True)],
            None if history.seed is None else unpack(self._codec, history.seed),
            history.seed is not None,
        )

    def _metadata(self, head: StepInfo) -> dict[str, Any]:
        metadata: dict[str, Any] = self._codec.unpack(head.header.metadata)
        if self._default_metadata is None or head.header.stamp:
            return metadata
        return {**self._default_metadata(head.point.depth), **metadata}

    def _pending(self, rows: Sequence[PendingWriteRow]) -> list[PendingWrite]:
        values = self._codec.unpack_items(row.packed for row in rows)
        return [PendingWrite(row.task, row.channel, value) for row, value in zip(rows, values, strict=True) if row.task]

    # Threads --------------------------------------------------------------------------------------------------

    async def threads(self) -> list[str]:
        """Return the names of all threads and namespaces."""
        return [line.name for line in await self._engine.lines.names(self.store.tenant) if is_thread(line.name)]

    async def namespaces(self, thread: str) -> list[str]:
        """Return the name of a thread, and those of its namespaces."""
        return [line.name for line in await self._engine.lines.family(self._line(thread))]

    async def delete(self, thread: str) -> None:
        """Delete a thread with its checkpoints, writes and namespaces."""
        lines, hooks = await self._engine.lines.family(self._line(thread)), self._engine.hooks
        if hooks is not None:
            await hooks.delete(lines[0], lambda: self._engine.lines.delete(*lines))
        else:
            await self._engine.lines.delete(*lines)

    async def copy(self, thread: str, target: str) -> None:
        """Copy a thread with its checkpoints, writes and namespaces; nothing if there is none.

        Raises `ConflictError` if there is a thread of the new name.
        """
        if await self._existing(target):
            raise ConflictError(
                f"there is a thread {target!r} already", hint="Delete it first, or copy to another name"
            )
        id, _ = split_name(target)
        copies = {line: self._line(thread_name(id, split_name(line.name)[1])) for line in await self._existing(thread)}
        await LineCopier(self._engine).copy(copies)

    async def keep_latest(self, thread: str) -> None:
        """Delete all checkpoints of a thread and its namespaces but the latest of each, and those with a tag or label.

        What the channels of those need of the deleted ones is carried over.
        """
        for line in await self._existing(thread):
            await ThreadPruner(self._engine, self._codec).keep_latest(line)

    async def delete_runs(self, run_ids: Collection[str]) -> None:
        """Delete the checkpoints of all threads whose metadata have one of these values as `run_id`.

        Reads the metadata of every checkpoint of the store.
        """
        if run_ids:
            await ThreadPruner(self._engine, self._codec).drop_runs(self.store.tenant, frozenset(run_ids))

    async def _existing(self, thread: str) -> list[Line]:
        """Return the lines of a thread and its namespaces that exist."""
        root, *others = await self._engine.lines.family(self._line(thread))
        return others if await self._engine.lines.load_tip(root) is None else [root, *others]

    # Inside ---------------------------------------------------------------------------------------------------

    @property
    def _engine(self) -> Engine:
        return self.store._engine

    def _line(self, thread: str) -> Line:
        return Line(self.store.tenant, check_name(thread, "id of a thread, with its namespace,"))
