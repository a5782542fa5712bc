"""`CheckpointStore`: the low-level interface that the savers of agent frameworks are built on.

A framework has ids, parents and times of its own, and keeps bookkeeping (versions of channels, for example) beside the
values of its channels. `CheckpointStore` saves what it is told and returns it unchanged. All operations are coroutines:
`run` executes one in the calling thread, `arun` awaits it, and `make_both` makes of one method a sync and an async one.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, TypeAlias

from msgspec.structs import replace

from holdfast.codec import Codec
from holdfast.engine.append import AppendRequest, OnConflict
from holdfast.engine.copy.within_store import LineCopier
from holdfast.engine.delta_channels import FOLLOWS, KEPT, ChannelHistory
from holdfast.engine.engine import Engine
from holdfast.engine.ids import check_new_name
from holdfast.engine.line_head import head_of
from holdfast.engine.line_ttl import attach_ttl
from holdfast.engine.lines import LABEL, ROOT, TAG
from holdfast.engine.metadata_filter import MetadataFilter
from holdfast.engine.model.packed_state import Packed, PackedMap, pack_name, unpack, unpack_states
from holdfast.engine.model.steps import ANSWERED, RECORDED, PendingWriteRow
from holdfast.engine.namespaces import check_thread, is_thread, split_name, thread_name
from holdfast.engine.pending_writes import decode_writes
from holdfast.engine.reserved_channels import reserved_error
from holdfast.engine.rewrite.rewriter import Choose, RewritePlan
from holdfast.engine.row_format import Branch, Line, StepRef, check_name, readable
from holdfast.engine.schema_bindings import ASIDE, LineSchema, RenameTask
from holdfast.engine.step_info import StepInfo
from holdfast.engine.thread_status import FAILED, WAITING, ThreadState, overtaken_status, status_changes
from holdfast.engine.types import PendingWrite, to_datetime
from holdfast.engine.validation import optional_name
from holdfast.errors import (
    ConflictError,
    CorruptError,
    DeniedError,
    HoldfastError,
    InvalidError,
    NotFoundError,
    UnsupportedError,
)
from holdfast.history.thread_status import ERROR, parse_error, refresh_answered, refresh_status
from holdfast.recording.journal import pack_recording
from holdfast.security.audit.thread_audit import record, recorded
from holdfast.security.sensitive.recorded_values import redact
from holdfast.store.checkpoint_pages import CheckpointListing
from holdfast.store.graph_schemas import INTERRUPTS, FindTask, GraphSchemas, rename_tasks, require_no_subgraph
from holdfast.store.identity_view import IdentityOperations
from holdfast.store.saved_checkpoint import ChannelWrites, FromParent, SavedCheckpoint
from holdfast.store.store import StoreOperations
from holdfast.store.thread_access import on_thread, thread_access
from holdfast.time_parser import Duration

NewIds = Callable[[Line], Awaitable[Mapping[str, str]]]
"""Returns the ids that interrupts after the latest checkpoint of a subgraph have now, by the stored ones. Raises
`UnsupportedError` if the subgraph cannot be resumed."""


class SubgraphInterrupts:
    """Gives interrupts of subgraphs their new ids in the rows of the graphs around them."""

    def __init__(self, engine: Engine, codec: Codec, schemas: GraphSchemas, new_ids: NewIds) -> None:
        self._engine: Final = engine
        self._codec: Final = codec
        self._schemas: Final = schemas
        self._new_ids: Final = new_ids

    async def rename(self, line: Line, rows: Sequence[PendingWriteRow], *, resume: bool) -> list[PendingWriteRow]:
        """Return the rows of a checkpoint with the ids that interrupts have now. To resume it is refused where one of
        its subgraphs cannot be resumed."""
        tasks = {row.task for row in rows if row.channel == INTERRUPTS}
        ids: dict[str, str] = {}
        for subgraph in await self._at_work(line, tasks) if tasks else ():
            try:
                ids.update(await self._new_ids(subgraph))
            except UnsupportedError:
                if resume:  # before the graph writes anything
                    raise
        return [self._renamed(row, ids) for row in rows] if ids else list(rows)

    async def _at_work(self, line: Line, tasks: Iterable[str]) -> list[Line]:
        """Return the namespaces of the subgraphs that some tasks of a graph run, if nodes in them were renamed."""
        thread, namespace = split_name(line.name)
        start = f"{namespace}|" if namespace else ""
        found: list[Line] = []
        for node in self._schemas.nodes_with_renamed(namespace):
            prefix = thread_name(thread, f"{start}{node}")
            # One that keeps its state between calls has no task in its namespace.
            ends = ("|", *(f":{task}" for task in tasks))
            for each in await self._engine.lines.names(line.tenant, prefix):
                rest = each.name.removeprefix(prefix)
                if not rest or rest.startswith(ends):
                    found.append(each)
        return found

    def _renamed(self, row: PendingWriteRow, ids: Mapping[str, str]) -> PendingWriteRow:
        if row.channel != INTERRUPTS:
            return row
        value: Any = self._codec.unpack(row.packed)
        if not isinstance(value, list | tuple):
            return row
        from copy import copy

        changed = []
        for each in value:
            new = ids.get(getattr(each, "id", ""))
            if new is not None:
                each = copy(each)
                each.id = new
            changed.append(each)
        return row._replace(packed=self._codec.pack(type(value)(changed)))


def changed_ids(codec: Codec, before: PendingWriteRow, after: Iterable[PendingWriteRow]) -> dict[str, str]:
    """Return the ids that the interrupts of a row have now, by the stored ones."""
    old = _ids(codec, before)
    return {each: new for row in after for each, new in zip(old, _ids(codec, row), strict=True) if each and each != new}


def _ids(codec: Codec, row: PendingWriteRow) -> list[str]:
    value = codec.unpack(row.packed)
    return [str(getattr(each, "id", "")) for each in value] if isinstance(value, list | tuple) else []


_NAMES = 1000
"""How many threads of the index of fields are read at a time."""

_Places: TypeAlias = set[tuple[int, int]]


class ThreadPruner:
    """Removes checkpoints of lines. What the delta channels of the others need is carried over to them."""

    def __init__(self, engine: Engine, codec: Codec) -> None:
        self._engine = engine
        self._codec = codec

    async def keep_latest(self, line: Line) -> None:
        """Remove all checkpoints but the latest, and those with a tag or a label."""

        async def others(points: Sequence[StepRef]) -> _Places:
            lines = self._engine.lines
            wanted = {id for kind in (TAG, LABEL) for _, id in await lines.refs(line, kind)}
            last = _last_revisions(points)
            head = head_of(points)
            wanted.add("" if head is None else head.id)
            return {point[:2] for point in points} - {last[id][:2] for id in wanted if id in last}

        await self._engine.rewriter.rewrite(line, _dropping(others), recorded(self._engine, line, "prune"))

    async def drop_runs(self, tenant: str, run_ids: Collection[str]) -> None:
        """Remove the checkpoints of some runs from all threads."""
        texts = [json.dumps(run_id, ensure_ascii=False)[1:-1] for run_id in run_ids]

        def is_candidate(point: StepRef) -> bool:
            """Return whether it may be one of them, by its readable metadata, which are cheap to read."""
            return any(text in point.metadata for text in texts)

        async def of_runs(line: Line, points: Sequence[StepRef]) -> _Places:
            last = _last_revisions(points).values()
            heads = await self._engine.step_info.describe(line, list(filter(is_candidate, last)))
            found = {
                head.point.id
                for head in heads
                if str(self._codec.unpack(head.header.metadata).get("run_id")) in run_ids
            }
            return {point[:2] for point in points if point.id in found}

        lines = [
            line
            async for line, point in self._engine.lines.every_step(tenant)
            if is_thread(line.name) and is_candidate(point)
        ]
        for line in dict.fromkeys(lines):
            apply = recorded(self._engine, line, "prune", {"runs": len(run_ids)})
            await self._engine.rewriter.rewrite(line, _dropping(partial(of_runs, line)), apply)
            await refresh_status(self._engine, line)


def _dropping(which: Callable[[Sequence[StepRef]], Awaitable[_Places]]) -> Choose:
    async def choose(points: Sequence[StepRef], branches: Sequence[Branch]) -> RewritePlan:
        del branches  # what is to go does not depend on them
        return RewritePlan(frozenset(await which([point for point in points if not point.pruned])))

    return choose


def _last_revisions(points: Sequence[StepRef]) -> dict[str, StepRef]:
    return {point.id: point for point in sorted(points, key=lambda point: point.revision)}


BOOKKEEPING = KEPT
"""The channel that holds the bookkeeping. States cannot have one of this name."""


class CheckpointStore:
    """Saves and reads checkpoints on a store, with ids, parents and times of a framework's own.

    `thread` is the name of a thread of the store: `thread_name(id, namespace)` for a namespace in a thread. With
    `may_revive`, objects of other classes than it accepts are returned as opaque values. `default_metadata` is called
    with the number of a step that no framework saved, for metadata that the framework expects of every checkpoint. If
    `lenient`, values are saved that cannot be read back as they were; see `Codec`. `find_task` gives tasks of nodes
    that were renamed the ids that the framework gives them now.
    """

    FromParent = FromParent

    def __init__(
        self,
        store: StoreOperations | IdentityOperations,
        *,
        may_revive: Callable[[str], bool] | None = None,
        default_metadata: Callable[[int], Mapping[str, Any]] | None = None,
        lenient: bool = False,
        schemas: GraphSchemas | None = None,
        find_task: FindTask | None = None,
    ) -> None:
        if not isinstance(store, StoreOperations | IdentityOperations):
            raise InvalidError(
                f"checkpoints are saved on an open store, not on {type(store).__name__}",
                hint="Pass what holdfast.open returned",
            )
        self.store = store
        self._handle = store._handle
        self._default_metadata = default_metadata
        self._schemas = schemas
        self._find_task = find_task
        own = self._handle.engine.context.codec
        self._codec = own
        if may_revive is not None or lenient:
            self._codec = Codec(own.registry, max_bytes=own.max_bytes, may_revive=may_revive, lenient=lenient)

    # Saving ---------------------------------------------------------------------------------------------------

    @on_thread("write", creates=True)
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
        ttl: Duration | None = None,
        status: ThreadState | None = None,
    ) -> None:
        """Save a checkpoint after the one with the id `parent`, or as a first one.

        A second checkpoint on one parent opens a branch. The same id with other content is a new revision of it. If
        there is no such parent, or the id was saved after another one, the checkpoint is saved as it is, and reads with
        the parent that was named. A `ttl` is that of `Thread.put`. A `status` is that of the thread, after this
        checkpoint; the namespaces of a thread have none.
        """
        line = self._line(thread)
        optional_name(parent, "id of a checkpoint")
        check_new_name(id, "id of a checkpoint")
        if type(stamp) is not str:
            raise InvalidError("the time of a checkpoint must be a string", where=f"thread {line}")
        if ASIDE in state:
            raise reserved_error(line)
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
            line_schema=await self._schema(line),
        )
        if status is not None:
            request.attached_changes = status_changes(self._handle.engine.context, line, status, id, parent)
        if ttl is not None:
            request.attached_changes = attach_ttl(self._engine, line, ttl, request.attached_changes)
        try:
            await self._engine.writer.save(request)
        except (NotFoundError, ConflictError) as error:
            existing = await self._engine.lines.find_id(line, id, None)
            if existing is None and isinstance(error, ConflictError):
                raise
            named = await self._pack(line, state, {**entries, FOLLOWS: parent or ""}, None)
            again = replace(request, state=named, parent=ROOT if existing is None else None, schema="", permit=None)
            await self._engine.writer.save(again)
        if request.attached_changes is not None and status is not None:
            changes = overtaken_status(self._engine.context, line, status)
            if changes:
                await self._engine.context.apply(changes)

    async def _pack(
        self, line: Line, state: Mapping[str, Any], entries: Mapping[str, Any], parent: str | None
    ) -> PackedMap:
        # Each entry is packed alone, so that a step stores only those that changed. The channel comes first, so that
        # new channels do not move it.
        packed: PackedMap = {
            pack_name(KEPT): dict(zip(map(pack_name, entries), self._codec.pack_items(entries.values()), strict=True))
        }
        cache = self._engine.pack_cache(line, self._codec)
        # Before anything is awaited: the caller may change its lists meanwhile.
        fresh = cache.pack({name: value for name, value in state.items() if type(value) is not FromParent})
        if len(fresh) == len(state):
            return packed | fresh
        # The parent is mostly what was saved last. If that was revised since, equal entries still mean equal values.
        tip = self._engine.lines.cached_tip(line)
        last = None if tip is None or tip.point is None or tip.point.id != parent else tip.point
        before = await self._packed(line, parent, last)
        entries_before = before.get(pack_name(KEPT))
        for name, value in state.items():
            key = pack_name(name)
            if type(value) is FromParent:
                if key in before and _is_equal_entry(value.entry, packed[pack_name(KEPT)], entries_before):
                    packed[key] = before[key]
                else:
                    packed |= cache.pack({name: value.make()})
            else:
                packed[key] = fresh[key]
        return packed

    async def _packed(self, line: Line, id: str | None, point: StepRef | None = None) -> PackedMap:
        """Return the packed state of a checkpoint, which need not be looked up if it is given; an empty one if there is
        no such checkpoint."""
        if id is None:
            return {}
        lines = self._engine.lines
        try:
            point = await lines.find(line, id) if point is None else point
            schema = await self._schema(line)
            if schema is not None:
                loaded = await self._engine.states.get(line, point)
                reference = loaded.schema
                if reference is None:
                    reference = (await self._engine.step_info.head(line, point)).header.schema
                if reference != schema.reference:
                    values = await lines.read_step(line, point, partial(self._engine.states.values, line))
                    return await schema.upgrade(line, point, reference, values)
            return await lines.read_step(line, point, partial(self._engine.states.packed, line))
        except NotFoundError:
            return {}

    @on_thread("read", missing=dict)
    async def read_bookkeeping(self, thread: str, id: str) -> dict[str, Any]:
        """Return the bookkeeping of a checkpoint; an empty one if there is no such checkpoint."""
        kept = (await self._packed(self._line(thread), id)).get(pack_name(KEPT))
        return {} if kept is None else dict(unpack(self._codec, kept))

    @on_thread("write", creates=True)
    async def put_writes(
        self,
        thread: str,
        id: str,
        writes: Sequence[tuple[int, str, Any]],
        *,
        task_id: str,
        task_path: str = "",
        recorded: tuple[int, Mapping[str, Any]] | None = None,
        status: ThreadState | None = None,
    ) -> None:
        """Store what a task wrote after the checkpoint with this id, which need not be saved yet.

        A write is a number, a channel and a value. A number that the task used before keeps its first value; negative
        numbers are for values that replace each other. `recorded` has the calls that the task made, with a number of
        its own. A `status` is that of the thread, if the writes change it.
        """
        line = self._line(thread)
        check_name(id, "id of a checkpoint")
        if not check_name(task_id, "id of a task"):
            raise InvalidError("the id of a task must not be empty", where=f"thread {line}")
        if not writes:
            return
        check_name(task_path, "path of a task")
        if reserved := {RECORDED, ANSWERED} & {channel for _, channel, _ in writes}:
            raise InvalidError(f"the name {reserved.pop()!r} is reserved", hint="Give the channel another name")
        try:
            packed = self._codec.pack_items([value for _, _, value in writes])
        except HoldfastError:
            for _, channel, value in writes:
                self._codec.pack({channel: value})  # fails for the same reason, and reports the whole path
            raise
        schema = await self._schema(line)
        reference = "" if schema is None else schema.reference
        if schema is None:
            await self._engine.appender.inherited.check_writes(line, id)
        rows = [
            PendingWriteRow(task_path, task_id, number, check_name(channel, "name of a channel"), value, reference)
            for (number, channel, _), value in zip(writes, packed, strict=True)
        ]
        if recorded is not None:
            value = pack_recording(self._codec, recorded[1], redact, self._engine.protection)
            rows.append(PendingWriteRow(task_path, task_id, recorded[0], RECORDED, value, reference))
        await self._engine.writes.put(line, id, rows, status)
        if status == WAITING:
            await refresh_answered(self._engine, line)
        if status == FAILED:  # the step has no events: it was stored before
            error = next((str(value) for _, channel, value in writes if channel == ERROR), "")
            await record(self._engine, [line], "fail", {"error": parse_error(error)[0], "checkpoint": id}, "error")

    # Reading --------------------------------------------------------------------------------------------------

    @on_thread("read", creates=True, missing=lambda: None)
    async def get(self, thread: str, id: str | None = None, *, resume: bool = False) -> SavedCheckpoint | None:
        """Return the latest checkpoint of a thread, or the one with this id; None if there is none. `DeniedError` if
        the thread is somebody else's: whoever reads it is about to save, and must not do any work before.

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

    @on_thread("read", missing=list)
    async def read_recorded(self, thread: str, ids: Sequence[str]) -> list[list[dict[str, Any]]]:
        """Return, for each checkpoint with one of these ids, the calls of the tasks that followed it, if the run was
        recorded. The states, which their inputs refer to, are not read."""
        line = self._line(thread)
        points: dict[str, StepRef] = {}
        for id in ids:
            with suppress(NotFoundError):
                points[id] = await self._engine.lines.find(line, check_name(id, "id of a checkpoint"))
        rows = dict(zip(points, await self._engine.writes.of_many(line, [*points.values()]), strict=True))
        return [[self._codec.unpack(row.packed) for row in rows.get(id, ()) if row.channel == RECORDED] for id in ids]

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
            raise InvalidError(f"the limit must be a number, not {limit!r}")
        lines = [self._line(thread) for thread in threads]
        if self._handle.guard.actor:  # of the others nothing is read, not even damage
            visible = await self._handle.guard.visible_threads(lines)
            lines = [line for line in lines if line in visible]
        optional_name(before, "id of a checkpoint")
        optional_name(id, "id of a checkpoint")
        defaults = () if self._default_metadata is None else self._default_metadata(0)
        arguments = (lines, before or "", id, metadata or {}, limit, defaults)
        return self._pages(CheckpointListing(self._engine, self._metadata, *arguments))

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
            page = [read[line, point.id] for line, point in listed if (line, point.id) in read]
            if self._handle.guard.actor:
                page = await self._visible_page(page)
            if page:
                yield page

    async def _visible_page(self, page: list[SavedCheckpoint]) -> list[SavedCheckpoint]:
        """Return the checkpoints of a page whose threads an identity may read, and record that it did."""
        guard, lines = self._handle.guard, {each.thread: self._line(each.thread) for each in page}
        visible = await guard.visible_threads(list(lines.values()))
        for line in visible:
            await guard.saw_thread(line)
        return [each for each in page if lines[each.thread] in visible]

    async def _find(self, line: Line, id: str | None) -> tuple[StepRef, list[PendingWriteRow] | None]:
        """Return a checkpoint, and its pending writes if one request could read both."""
        lines, writes = self._engine.lines, self._engine.writes
        tip = lines.cached_tip(line)
        if tip is None or (likely := tip.point) is None or id not in (None, likely.id):
            return await lines.find(line, id), None
        point, answers = await lines.find_and(line, id, writes.queries(line, [likely]))
        return point, writes.decode(line, [likely], answers)[0] if point[:2] == likely[:2] else None

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
        pending = await engine.writes.of_many(line, points) if writes is None else [writes]
        schema = await self._schema(line)
        if schema is not None:
            states, pending = await self._upgrade(schema, line, heads, states, pending, resume=resume)
        if self._schemas is not None:
            below = SubgraphInterrupts(engine, self._codec, self._schemas, self._new_interrupt_ids)
            pending = [await below.rename(line, rows, resume=resume) for rows in pending]
        if resume:
            cache = engine.pack_cache(line, self._codec)
            unpacked = [cache.unpack(packed) for packed in states]
        else:
            unpacked = unpack_states(self._codec, states)
        checkpoints = []
        for head, state, rows in zip(heads, unpacked, pending, strict=True):
            entries = dict(state.pop(KEPT, {}))
            if schema is not None:
                state.pop(ASIDE, None)
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
                    decode_writes(self._codec, rows),
                    [self._codec.unpack(row.packed) for row in rows if row.channel == RECORDED],
                )
            )
        return checkpoints

    async def _upgrade(
        self,
        schema: LineSchema,
        line: Line,
        heads: Sequence[StepInfo],
        states: Sequence[PackedMap],
        pending: Sequence[list[PendingWriteRow]],
        *,
        resume: bool,
    ) -> tuple[list[PackedMap], list[list[PendingWriteRow]]]:
        """Return states and pending writes in the form of a schema."""
        engine = self._engine
        upgraded, writes = list(states), list(pending)
        for number, (head, rows) in enumerate(zip(heads, pending, strict=True)):
            stored = head.header.schema
            if stored != schema.reference:
                upgraded[number] = await schema.upgrade(line, head.point, stored, states[number])
                if resume:
                    await require_no_subgraph(engine, line, head.header.id, schema.renamed_nodes(stored))
            if any(row.schema != schema.reference for row in rows):
                rename = self._rename_tasks(line, head, states[number])
                try:
                    writes[number] = schema.upgrade_writes(line, stored, rows, rename)
                except UnsupportedError:
                    if resume:  # never with some of the writes; the past only shows them
                        raise
        return upgraded, writes

    async def _new_interrupt_ids(self, line: Line) -> dict[str, str]:
        """Return the ids that the interrupts of a subgraph have now, by the stored ones."""
        engine, schema, latest = self._engine, await self._schema(line), await self._engine.lines.latest_step(line)
        if schema is None or latest is None:
            return {}
        (rows,) = await engine.writes.of_many(line, [latest])
        if all(row.schema == schema.reference for row in rows):
            return {}
        heads, states = await engine.step_info.describe(line, [latest]), await engine.states.series(line, [latest])
        await self._upgrade(schema, line, heads, states, [rows], resume=True)
        rename, stored = self._rename_tasks(line, heads[0], states[0]), heads[0].header.schema
        found: dict[str, str] = {}
        for row in rows:
            if row.channel == INTERRUPTS:
                found |= changed_ids(self._codec, row, schema.upgrade_writes(line, stored, [row], rename))
        return found

    def _rename_tasks(self, line: Line, head: StepInfo, state: PackedMap) -> RenameTask | None:
        return None if self._find_task is None else rename_tasks(self._codec, line, head, state, self._find_task)

    async def channel_writes(self, thread: str, id: str | None, channels: Sequence[str]) -> dict[str, ChannelWrites]:
        """Return what each channel held last before a checkpoint, and what was written to it since."""
        optional_name(id, "id of a checkpoint")
        histories = await self._channel_histories(thread, id, channels)
        return {
            channel: self._channel_writes(channel, histories.get(channel, ChannelHistory())) for channel in channels
        }

    @on_thread("read", missing=dict)
    async def _channel_histories(
        self, thread: str, id: str | None, channels: Sequence[str]
    ) -> Mapping[str, ChannelHistory]:
        """Return the histories of channels; none if there is no such checkpoint."""
        line, lines = self._line(thread), self._engine.lines
        with suppress(NotFoundError):
            point = await lines.find(line, id)
            deltas = self._engine.delta_reader(self._codec)
            return await lines.read_step(line, point, partial(deltas.history, line, channels))
        return {}

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

    # Threads --------------------------------------------------------------------------------------------------

    async def threads(self, metadata: Mapping[str, Any] | None = None) -> list[str]:
        """Return the names of all threads and namespaces; with entries of metadata, at least of those that have a
        checkpoint with them."""
        tenant, fields = self._handle.tenant, self._engine.fields
        # Numbers equal values of other types, such as decimals, which are text in the index.
        texts = [(key, text) for key, text in (metadata or {}).items() if type(key) is type(text) is str]
        filters = [MetadataFilter.of_value(key, text) for key, text in texts]
        terms = await fields.terms(tenant, [[each] for each in filters if each is not None])
        if not terms:
            every = await self._engine.lines.names(tenant)
            return await self._visible([line for line in every if is_thread(line.name)])
        lines, more, start = list[Line](), True, ""
        while more:
            names, more = await fields.threads(tenant, terms, start, _NAMES)
            lines += (Line(tenant, name) for name in names)
            start = f"{lines[-1].name}\0" if lines else ""
        return await self._visible(lines)

    async def namespaces(self, thread: str) -> list[str]:
        """Return the name of a thread, and those of its namespaces."""
        root, *others = await self._engine.lines.family(self._line(thread))
        return [root.name, *await self._visible(others)]

    async def _visible(self, lines: list[Line]) -> list[str]:
        """Return the names of the lines that may be read."""
        visible = await self._handle.guard.visible_threads(lines)
        return [line.name for line in lines if line in visible]

    @on_thread("delete", removes=True, missing=lambda: None)
    async def delete(self, thread: str) -> None:
        """Delete a thread with its checkpoints, writes and namespaces."""
        lines, hooks = await self._engine.lines.family(self._line(thread)), self._engine.hooks
        apply = recorded(self._engine, lines[0], "delete", {"lines": len(lines)})
        delete = partial(self._engine.lines.delete, *lines, apply=apply)
        await (delete() if hooks is None else hooks.delete(lines[0], delete))

    async def copy(self, thread: str, target: str) -> None:
        """Copy a thread with its checkpoints, writes and namespaces; nothing if there is none.

        Raises `ConflictError` if there is a thread of the new name. An identity that copies a thread owns the copy.
        """
        source, new = self._line(thread), self._line(target)
        with suppress(NotFoundError):
            async with (
                thread_access(self._handle, source, ["read"]),
                thread_access(self._handle, new, ["write"], creates=True),
            ):
                await self._copy(thread, target)

    async def _copy(self, thread: str, target: str) -> None:
        if await self._existing(target):
            raise ConflictError(
                f"there is a thread {target!r} already", hint="Delete it first, or copy to another name"
            )
        id, _ = split_name(target)
        copies = {line: self._line(thread_name(id, split_name(line.name)[1])) for line in await self._existing(thread)}
        source = self._line(thread)
        apply = recorded(self._engine, source, "copy", {"to": target}, is_limited=True)
        await LineCopier(self._engine).copy(copies, apply, owned=not self._handle.guard.actor)

    @on_thread("delete", missing=lambda: None)
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
        if self._handle.guard.actor:
            raise DeniedError(
                f"{self._handle.guard.actor} may not delete the checkpoints of runs: they may be in any thread",
                hint="The store's owner can, or delete the threads",
            )
        if run_ids:
            await ThreadPruner(self._engine, self._codec).drop_runs(self._handle.tenant, frozenset(run_ids))

    async def _existing(self, thread: str) -> list[Line]:
        """Return the lines of a thread and its namespaces that exist."""
        root, *others = await self._engine.lines.family(self._line(thread))
        return others if await self._engine.lines.load_tip(root) is None else [root, *others]

    # Inside ---------------------------------------------------------------------------------------------------

    async def _schema(self, line: Line) -> LineSchema | None:
        """Return the schema of a thread or a namespace: that of the saver, or one that is attached to it."""
        if self._schemas is not None:
            return await self._schemas.find(self._engine, self._handle, line)
        return None if self._engine.schemas is None else self._engine.schemas.find(line)

    @property
    def _engine(self) -> Engine:
        return self._handle.engine

    def _line(self, thread: str) -> Line:
        return Line(self._handle.tenant, check_thread(check_name(thread, "id of a thread, with its namespace,")))


def _is_equal_entry(name: str | None, entries: Packed, before: Packed | None) -> bool:
    """Whether an entry of the bookkeeping is the same in the parent; of no entry, it is."""
    if name is None:
        return True
    key = pack_name(name)
    return isinstance(entries, dict) and isinstance(before, dict) and key in entries and entries[key] == before.get(key)
