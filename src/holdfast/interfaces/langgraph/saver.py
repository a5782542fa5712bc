"""The saver: LangGraph's checkpoints on any of Holdfast's stores."""

from __future__ import annotations

import builtins
import copy
from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Self, cast

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
    get_checkpoint_metadata,
)
from langgraph.checkpoint.serde._msgpack import SAFE_MSGPACK_TYPES, STRICT_MSGPACK_ENABLED
from langgraph.checkpoint.serde.base import SerializerProtocol

from holdfast.backends.runtime.drivers import arun, make_both, run
from holdfast.codec import Codec
from holdfast.engine.append import AppendRequest, OnConflict
from holdfast.engine.copy.within_store import LineCopier
from holdfast.engine.delta_channels import ChannelHistory
from holdfast.engine.engine import Engine
from holdfast.engine.lines import ROOT
from holdfast.engine.model.packed_state import PackedMap, pack_name, pack_state, unpack, unpack_state
from holdfast.engine.namespaces import is_thread
from holdfast.engine.pending_writes import PendingWriteRow
from holdfast.engine.row_format import Line, StepRef, check_name, readable
from holdfast.engine.step_info import StepInfo
from holdfast.engine.types import to_datetime
from holdfast.errors import ConflictError, CorruptError, InvalidError, NotFoundError
from holdfast.interfaces.langgraph import contents, names
from holdfast.interfaces.langgraph.contents import KEPT
from holdfast.interfaces.langgraph.listing import CheckpointListing
from holdfast.interfaces.langgraph.pruning import ThreadPruner
from holdfast.store.opener import open as open_store
from holdfast.store.store import StoreOperations


def _several(ids: Sequence[str], what: str) -> None:
    if isinstance(ids, str):
        raise InvalidError(
            f"a list of {what} is meant, and not one text", where=repr(ids)[:80], hint=f"Pass [{ids[:40]!r}]"
        )


_SERIALIZED = (contents.SerializedValue.__module__, contents.SerializedValue.__name__)


class HoldfastSaver(BaseCheckpointSaver[int]):
    """Keeps the checkpoints of LangGraph graphs in a store, for `invoke` and `ainvoke` alike.

    ::

        with HoldfastSaver.from_conn_string("sqlite:///agents.db") as saver:
            graph = builder.compile(checkpointer=saver)

    On a store that is open already, `HoldfastSaver(store)`; closing the saver then leaves the store open. A thread of
    LangGraph's is a thread of the store, and a channel of the graph is a channel of its state.

    Values are kept by Holdfast's codec, item by item. With a `serde` of your own they are kept as it dumps them, each
    channel whole whenever its version changes.

    Any number of threads and event loops may use a saver, or copies of it, at a time.
    """

    def __init__(self, store: StoreOperations, *, serde: SerializerProtocol | None = None) -> None:
        if not isinstance(store, StoreOperations):
            raise InvalidError(
                f"a saver is made on an open store, not on {type(store).__name__}",
                hint="Pass what holdfast.open returned, or use HoldfastSaver.from_conn_string(url)",
            )
        super().__init__(serde=serde)
        self.store = store
        self._dumps = None if serde is None else self.serde
        self._owned = False
        self._codec = store._engine.context.codec
        self._classes: frozenset[tuple[str, ...]] | None = None
        if STRICT_MSGPACK_ENABLED:
            self._restrict(frozenset({*SAFE_MSGPACK_TYPES, _SERIALIZED}))

    @classmethod
    def from_conn_string(
        cls, conn_string: str, *, serde: SerializerProtocol | None = None, **options: Any
    ) -> HoldfastSaver:
        """A saver on the store at a URL, which is opened, and closed together with the saver.

        Use it in `with` or `async with`, or close it by hand: `close()`, `await aclose()`. Further options are those of
        `holdfast.open`.
        """
        saver = cls(open_store(conn_string, **options), serde=serde)
        saver._owned = True
        return saver

    # Saving ---------------------------------------------------------------------------------------------------

    async def _put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Save a checkpoint after the one that the config names. Returns a config that names the new one."""
        del new_versions  # what changed is found by comparing
        line, parent = self._line(config), names.checkpoint_of(config)
        id, stamp = check_name(checkpoint["id"], "id of a checkpoint"), checkpoint["ts"]
        if not id or type(stamp) is not str:
            raise InvalidError(
                "a checkpoint has an 'id' that is not empty, and a 'ts' that is text", where=f"thread {line}"
            )
        described = get_checkpoint_metadata(config, metadata)
        saving = AppendRequest(
            line,
            await self._state(line, checkpoint, parent),
            parent=ROOT if parent is None else parent,
            on_conflict=OnConflict.BRANCH,
            id=id,
            metadata=self._codec.pack(described),
            readable=readable(self._codec, cast(dict[str, object], described)),
            kind=str(described.get("source", "save")),
            stamp=stamp,
        )
        try:
            await self._engine.writer.save(saving)
        except (NotFoundError, ConflictError) as error:
            # The parent is gone, or never was, or the id was saved after another one before: LangGraph keeps what it
            # is told. So does this, beside the step.
            there = await self._engine.lines.find_id(line, id, None)
            if there is None and isinstance(error, ConflictError):
                raise
            saving.state = await self._state(line, checkpoint, None, follows=parent or "")
            saving.parent = ROOT if there is None else None
            await self._engine.writer.save(saving)
        where = names.configurable(config)
        return names.config_of(where["thread_id"], names.namespace_of(config), id)

    put, aput = make_both(_put)

    async def _state(
        self, line: Line, checkpoint: Checkpoint, parent: str | None, follows: str | None = None
    ) -> PackedMap:
        values = contents.values_of(checkpoint)
        entries = contents.kept(checkpoint, follows)
        # Taken apart, so that each entry is compared by itself. First, so that channels which come do not move it.
        packed: PackedMap = {
            pack_name(KEPT): dict(zip(map(pack_name, entries), self._codec.pack_items(entries.values()), strict=True))
        }
        if self._dumps is None:
            return packed | self._engine.pack_cache(line, self._codec).pack(values)
        before, versions = await self._before(line, parent)
        changed = {
            channel: contents.serialized(self._dumps, value)
            for channel, value in values.items()
            if versions.get(channel, channel) != checkpoint["channel_versions"].get(channel)
            or pack_name(channel) not in before
        }
        fresh = pack_state(self._codec, {**dict.fromkeys(values), **changed})
        same = {pack_name(channel) for channel in values if channel not in changed}
        return packed | fresh | {name: before[name] for name in same}

    async def _before(self, line: Line, parent: str | None) -> tuple[PackedMap, Mapping[str, Any]]:
        """The packed state of the parent, and the versions of its channels."""
        if parent is None:
            return {}, {}
        try:
            point = await self._engine.lines.find(line, parent)
        except NotFoundError:
            return {}, {}
        packed = await self._engine.lines.read_step(line, point, partial(self._engine.states.packed, line))
        kept = packed.get(pack_name(KEPT))
        return packed, {} if kept is None else contents.versions_of(unpack(self._codec, kept))

    async def _put_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        """Keep what a task wrote after the checkpoint that the config names, which need not be saved yet.

        A value written again by the same task at the same place is not changed; errors, interrupts and what resumes
        them are.
        """
        line, id = self._line(config), names.checkpoint_of(config)
        if id is None:
            raise InvalidError(
                "the config names no checkpoint that the writes follow", hint="Pass the config put returned"
            )
        if not check_name(task_id, "id of a task"):
            raise InvalidError("the id of a task is not empty", where=f"thread {line}")
        if not writes:
            return
        packed = self._codec.pack_items([self._written(value) for _, value in writes])
        await self._engine.writes.put(
            line,
            id,
            [
                PendingWriteRow(
                    check_name(task_path, "path of a task"),
                    task_id,
                    WRITES_IDX_MAP.get(channel, place),
                    check_name(channel, "name of a channel"),
                    value,
                )
                for place, ((channel, _), value) in enumerate(zip(writes, packed, strict=True))
            ],
        )

    put_writes, aput_writes = make_both(_put_writes)

    def _written(self, value: Any) -> Any:
        if self._dumps is not None:
            return contents.serialized(self._dumps, value)
        # LangGraph reads the errors of tasks back as text.
        return repr(value) if isinstance(value, BaseException) else value

    # Reading --------------------------------------------------------------------------------------------------

    async def _get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """The checkpoint that the config names, or else the latest of the thread; None if there is none."""
        line, id = self._line(config), names.checkpoint_of(config)
        while True:
            try:
                point, writes = await self._point(line, id)
            except NotFoundError:
                return None
            with suppress(NotFoundError):  # if it went meanwhile, another may be the latest
                found = await self._tuple(line, point, to_go_on=True, writes=writes)
                return found._replace(config=config) if id is not None else found

    get_tuple, aget_tuple = make_both(_get_tuple)

    async def _point(self, line: Line, id: str | None) -> tuple[StepRef, builtins.list[PendingWriteRow] | None]:
        """A checkpoint, and its pending writes, where it is the one that they were asked for together with it."""
        memo = self._engine.lines.cached_tip(line)
        likely = id or (memo.point.id if memo is not None and memo.point is not None else "")
        if not likely:
            return await self._engine.lines.find(line, id), None
        asked = self._engine.writes.query(line, likely)
        point, (rows,) = await self._engine.lines.find_and(line, id, [asked])
        return point, self._engine.writes.decode(line, likely, rows) if point.id == likely else None

    async def _tuple(
        self,
        line: Line,
        point: StepRef,
        *,
        to_go_on: bool = False,
        writes: builtins.list[PendingWriteRow] | None = None,
    ) -> CheckpointTuple:
        async def read(point: StepRef) -> builtins.list[CheckpointTuple]:
            return await self._tuples(line, [point], to_go_on=to_go_on, known=writes)

        return (await self._engine.lines.read_step(line, point, read))[0]

    async def _tuples(
        self,
        line: Line,
        points: Sequence[StepRef],
        *,
        to_go_on: bool = False,
        known: builtins.list[PendingWriteRow] | None = None,
    ) -> builtins.list[CheckpointTuple]:
        thread_id, namespace = names.split_name(line.name)
        heads = await self._engine.step_info.describe(line, points)
        states = await self._engine.states.series(line, points)
        ids = [point.id for point in points]
        writes = await self._engine.writes.of_many(line, ids) if known is None else [known]
        tuples = []
        for head, packed, pending in zip(heads, states, writes, strict=True):
            recent = self._engine.pack_cache(line, self._codec)
            state = recent.unpack(packed) if to_go_on else unpack_state(self._codec, packed)
            # Those that were saved past LangGraph have no time of its own.
            stamp = head.header.stamp or to_datetime(head.point.time).isoformat()
            checkpoint, follows = contents.checkpoint_of(head.header.id, stamp, state)
            values = checkpoint["channel_values"]
            if self._dumps is not None or contents.SerializedValue in map(type, values.values()):
                values.update((name, contents.loaded(self._dumps, value, name)) for name, value in values.items())
            parent = head.parent if follows is None else follows or None
            tuples.append(
                CheckpointTuple(
                    names.config_of(thread_id, namespace, head.header.id),
                    checkpoint,
                    self._metadata(head),
                    None if parent is None else names.config_of(thread_id, namespace, parent),
                    self._pending(pending),
                )
            )
        return tuples

    def _metadata(self, head: StepInfo) -> CheckpointMetadata:
        """A checkpoint's metadata. Those that were saved past LangGraph get what it expects of every one."""
        metadata: dict[str, Any] = self._codec.unpack(head.header.metadata)
        if not head.header.stamp:
            metadata = {"source": "update", "step": head.point.depth - 1, "parents": {}, **metadata}
        return cast(CheckpointMetadata, metadata)

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002 - LangGraph's name for it
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """Checkpoints with their states, by id, the greatest first.

        Those of the config's thread and namespace; of the whole thread if the config names no namespace; of all threads
        without a config. `filter` are entries of their metadata; `before` names a checkpoint that all come before.
        """
        listing = run(self._listing(config, filter, before, limit))
        while page := run(self._listed(listing)):
            yield from page

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002 - LangGraph's name for it
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """The same, asynchronously."""
        listing = await arun(self._listing(config, filter, before, limit))
        while page := await arun(self._listed(listing)):
            for found in page:
                yield found

    async def _listing(
        self,
        config: RunnableConfig | None,
        metadata: Mapping[str, Any] | None,
        before: RunnableConfig | None,
        limit: int | None,
    ) -> CheckpointListing:
        lines, only = await self._lines(config), names.checkpoint_of(config)
        bound = names.checkpoint_of(before) or ""
        if limit is not None and type(limit) is not int:
            raise InvalidError(f"the limit is a number, not {limit!r}")
        return CheckpointListing(self._engine, self._metadata, lines, bound, only, metadata or {}, limit)

    async def _listed(self, listing: CheckpointListing) -> builtins.list[CheckpointTuple]:
        while found := await listing.next():
            points: dict[Line, builtins.list[StepRef]] = {}
            for line, point in found:
                points.setdefault(line, []).append(point)
            tuples = {
                (line, each.checkpoint["id"]): each
                for line, several in points.items()
                for each in await self._those_there(line, several)
            }
            if tuples:
                return [tuples[line, point.id] for line, point in found if (line, point.id) in tuples]
        return []

    async def _those_there(self, line: Line, points: Sequence[StepRef]) -> builtins.list[CheckpointTuple]:
        """Some checkpoints, but for those that were deleted or pruned meanwhile."""
        try:
            return await self._tuples(line, points)
        except (NotFoundError, CorruptError):
            found = []
            for point in points:
                with suppress(NotFoundError):
                    found.append(await self._tuple(line, point))
            return found

    async def _lines(self, config: RunnableConfig | None) -> builtins.list[Line]:
        """The lines that a config names: one, those of a thread, or all."""
        tenant = self.store.tenant
        if not config:
            return [line for line in await self._engine.lines.names(tenant) if is_thread(line.name)]
        if names.configurable(config).get("checkpoint_ns") is not None:
            return [self._line(config)]
        return await self._thread(names.thread_of(config))

    async def _thread(self, thread_id: str) -> builtins.list[Line]:
        """The lines of a thread: its own, and those of its namespaces."""
        return await self._engine.lines.family(names.line(self.store.tenant, thread_id))

    async def _existing(self, thread_id: str) -> builtins.list[Line]:
        """The same, of which the thread's own may not be there."""
        root, *others = await self._thread(thread_id)
        return others if await self._engine.lines.load_tip(root) is None else [root, *others]

    def _pending(self, writes: Sequence[PendingWriteRow]) -> builtins.list[tuple[str, str, Any]]:
        values = self._codec.unpack_items(write.packed for write in writes)
        return [
            (write.task, write.channel, contents.loaded(self._dumps, value, write.channel))
            for write, value in zip(writes, values, strict=True)
            if write.task
        ]

    async def _get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """What each channel held last before the checkpoint that the config names, and what was written to it since."""
        histories = {channel: ChannelHistory() for channel in channels}
        line, id = self._line(config), names.checkpoint_of(config)
        try:
            point = await self._engine.lines.find(line, id)
        except NotFoundError:
            pass
        else:
            deltas = self._engine.delta_reader(self._codec)
            with suppress(NotFoundError):
                histories = await self._engine.lines.read_step(line, point, partial(deltas.history, line, channels))
        return {channel: self._delta(channel, history) for channel, history in histories.items()}

    get_delta_channel_history, aget_delta_channel_history = make_both(_get_delta_channel_history)

    def _delta(self, channel: str, history: ChannelHistory) -> DeltaChannelHistory:
        values = self._codec.unpack_items(packed for _, packed in reversed(history.writes))
        found: DeltaChannelHistory = {
            "writes": [
                (task, channel, contents.loaded(self._dumps, value, channel))
                for (task, _), value in zip(reversed(history.writes), values, strict=True)
            ]
        }
        if history.seed is not None:
            found["seed"] = contents.loaded(self._dumps, unpack(self._codec, history.seed), channel)
        return found

    # Removing and copying -------------------------------------------------------------------------------------

    async def _delete_thread(self, thread_id: str) -> None:
        """Delete a thread: its checkpoints, its writes, and those of its subgraphs."""
        lines = await self._thread(str(thread_id))
        if self._engine.hooks is not None:
            await self._engine.hooks.delete(lines[0], lambda: self._engine.lines.delete(*lines))
        else:
            await self._engine.lines.delete(*lines)

    delete_thread, adelete_thread = make_both(_delete_thread)

    async def _delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Delete the checkpoints of some runs, with their writes, from all threads. Those after them stay as they are.

        Looks at every checkpoint of the store.
        """
        _several(run_ids, "ids of runs")
        if run_ids:
            await ThreadPruner(self._engine, self._codec).drop_runs(self.store.tenant, frozenset(map(str, run_ids)))

    delete_for_runs, adelete_for_runs = make_both(_delete_for_runs)

    async def _copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy a thread with all its checkpoints, writes and subgraphs; nothing, if there is none.

        `ConflictError` if there is a thread of the new name.
        """
        tenant, target = self.store.tenant, str(target_thread_id)
        if await self._existing(target):
            raise ConflictError(
                f"there is a thread {target!r} already", hint="Delete it first, or copy to another name"
            )
        copies = {
            line: names.line(tenant, target, names.split_name(line.name)[1])
            for line in await self._existing(str(source_thread_id))
        }
        await LineCopier(self._engine).copy(copies)

    copy_thread, acopy_thread = make_both(_copy_thread)

    async def _prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Drop checkpoints of some threads: all of them (`"delete"`), or all but the latest of each namespace.

        Of those, the ones to which the store gave a name or a tag stay, too, and what delta channels need.
        """
        _several(thread_ids, "ids of threads")
        if strategy not in ("keep_latest", "delete"):
            raise InvalidError(f"the strategy is 'keep_latest' or 'delete', not {strategy!r}")
        for thread_id in map(str, thread_ids):
            lines = await self._existing(thread_id)
            if strategy == "delete":
                await self._engine.lines.delete(*lines)
                continue
            for line in lines:
                await ThreadPruner(self._engine, self._codec).keep_latest(line)

    prune, aprune = make_both(_prune)

    # Versions and types ---------------------------------------------------------------------------------------

    def get_next_version(self, current: Any, channel: None) -> Any:
        """The version that follows: numbers count up, and so do the texts that other savers made of them."""
        if isinstance(current, str):
            return f"{int(current.split('.')[0]) + 1:032}.{0:016}"
        return super().get_next_version(current, channel)

    def with_allowlist(self, extra_allowlist: Collection[tuple[str, ...]]) -> BaseCheckpointSaver[int]:
        """A copy on the same store that, in LangGraph's strict mode, revives objects of these classes, too."""
        if self._dumps is None and self._classes is None:
            return self
        clone = copy.copy(self)
        if self._dumps is not None:
            clone.serde = clone._dumps = super().with_allowlist(extra_allowlist).serde
        if self._classes is not None:
            clone._restrict(self._classes | {tuple(each[:2]) for each in extra_allowlist})
        return clone

    def _restrict(self, classes: frozenset[tuple[str, ...]]) -> None:
        """Revive objects of no other classes."""

        def may_revive(ref: str) -> bool:
            module, _, qualname = ref.partition(":")
            return (module, qualname.rpartition(".")[2]) in classes

        own = self.store._engine.context.codec
        self._classes, self._codec = classes, Codec(own.registry, own.limits, may_revive=may_revive)

    # Inside ---------------------------------------------------------------------------------------------------

    @property
    def _engine(self) -> Engine:
        return self.store._engine

    def _line(self, config: RunnableConfig) -> Line:
        return names.line_of(self.store.tenant, config)

    # Closing --------------------------------------------------------------------------------------------------

    async def _close(self) -> None:
        """Close the store, if the saver opened it."""
        if self._owned:
            await StoreOperations.close(self.store)

    close, aclose = make_both(_close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        await self.aclose()
