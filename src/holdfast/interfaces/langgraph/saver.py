"""The saver: LangGraph's checkpoints on any of Holdfast's stores."""

from __future__ import annotations

import builtins
import copy
import os
from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
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
from langgraph.checkpoint.serde.types import ERROR, RESUME
from msgspec.structs import astuple

from holdfast._lazy import load
from holdfast.agents.runs.program_runs import ProgramRun, ProgramRuns
from holdfast.agents.runs.steps import RunSteps
from holdfast.backends.runtime.drivers import arun, make_both, run
from holdfast.engine.claims import CLAIM_SECONDS
from holdfast.engine.namespaces import split_name, thread_name
from holdfast.engine.row_format import check_name
from holdfast.errors import ConfigError, InvalidError, UnsupportedError
from holdfast.history.thread_status import NO_TASK, status_of_state, status_of_writes
from holdfast.interfaces.langgraph import tasks
from holdfast.interfaces.langgraph.recorder import RunRecorder, incomplete
from holdfast.recording.journal import RecordMode
from holdfast.schemas.schema_declaration import ValidationMode
from holdfast.security.handle import owner_handle
from holdfast.store import graph_forms
from holdfast.store.checkpoint_store import CheckpointStore
from holdfast.store.graph_schemas import GraphSchemas
from holdfast.store.identity_view import IdentityOperations
from holdfast.store.opener import open as open_store
from holdfast.store.saved_checkpoint import FromParent, SavedCheckpoint
from holdfast.store.store import StoreOperations
from holdfast.time_parser import Duration, parse_duration, parse_seconds

_ERROR_SOURCE = "__error_source_node__"


def _several(ids: Sequence[str], what: str) -> None:
    if isinstance(ids, str):
        raise InvalidError(
            f"expected a list of {what}, got a string", where=repr(ids)[:80], hint=f"Pass [{ids[:40]!r}]"
        )


def _default_metadata(step: int) -> Mapping[str, Any]:
    """Return what LangGraph expects of every checkpoint, for those that were not saved by a graph."""
    return {"source": "update", "step": step - 1, "parents": {}}


async def _next_page(pages: AsyncIterator[list[SavedCheckpoint]]) -> list[SavedCheckpoint] | None:
    return await anext(pages, None)


class HoldfastSaver(BaseCheckpointSaver[int]):
    """Keeps the checkpoints of LangGraph graphs in a store, for `invoke` and `ainvoke` alike.

    ::

        with HoldfastSaver.from_conn_string("sqlite:///agents.db") as saver:
            graph = builder.compile(checkpointer=saver)

    On a store that is open already, `HoldfastSaver(store)`, or as an identity, `HoldfastSaver(store.as_identity(…))`;
    closing the saver then leaves the store open. A thread of
    LangGraph's is a thread of the store, and a channel of the graph is a channel of its state.

    Values are kept by Holdfast's codec, item by item. Like LangGraph's serializer, it takes values that cannot be read
    back as they were, with one warning for each class: subclasses of str, int, float, list and dict are read as these,
    and objects whose class is defined in a function, by another process, as `OpaqueValue` with their fields. With
    `strict=True` they are refused. A `serde` is refused, too: it would be called with stored bytes, and LangGraph's
    imports and calls what these name.

    With a `schema`, the state of the graph has a version: a `SchemaSet`, a `Schema`, or the state class itself. A
    thread that an older graph saved is upgraded when it is read, in the middle of an interrupt too; nodes that were
    renamed are named in the migration. `subgraphs` has the schemas of subgraphs by the names of their nodes, such as
    `{"research": "research-state"}`; what is saved is validated.

    With a `ttl`, such as `"30d"`, every thread that is saved to gets it: the job `delete-stale` deletes those that have
    not changed for so long, with their subgraphs.

    With `recover`, the name of the graph among workers, a run of the graph is recorded while it is under way: if the
    process dies, a worker (`store.worker(support=graph)`, `holdfast work`) goes on from the last checkpoint. What is
    saved is on the condition that nobody else has the thread. See `run` for a block that covers all that nodes store.

    With a `fallback`, another saver of LangGraph's, a thread that is only there is taken over when it is first touched,
    with its whole history; then the other saver is not asked for it again. Lists have what is in the store.

    Any number of threads and event loops may use a saver, or copies of it, at a time.
    """

    def __init__(
        self,
        store: StoreOperations | IdentityOperations,
        *,
        serde: SerializerProtocol | None = None,
        strict: bool = False,
        schema: Any = None,
        subgraphs: Mapping[str, str] | None = None,
        validate: ValidationMode = "refuse",
        record: RecordMode = "full",
        ttl: Duration | None = None,
        recover: str | None = None,
        lease: Duration = CLAIM_SECONDS,
        fallback: BaseCheckpointSaver[Any] | None = None,
    ) -> None:
        if not isinstance(store, StoreOperations | IdentityOperations):
            raise InvalidError(
                f"a saver needs an open store, not {type(store).__name__}",
                hint="Pass what holdfast.open returned, or use HoldfastSaver.from_conn_string(url)",
            )
        if serde is not None:
            raise ConfigError(
                f"a saver takes no serializer, and {type(serde).__name__} was given: it would decode what is stored, "
                "and whoever can write to the store would choose which code runs",
                where="serde=",
                hint="Leave it out: Holdfast's codec stores the same values. Register classes of your own with "
                "codec.register, and encrypt with holdfast.open(…, encryption=…)",
                code="serde-refused",
            )
        super().__init__()
        self.store = store
        self._owned = False
        self.recorder: RunRecorder = RunRecorder(record)
        """Records what the nodes call, if it is among the callbacks of a run: see `holdfast.recording`."""
        self._strict = strict
        self._ttl = None if ttl is None else parse_duration(ttl, "time to live", positive=True)
        self._runs: ProgramRuns | None = None
        if recover is not None:
            seconds = parse_seconds(lease, "lease", positive=True)
            self._runs = ProgramRuns(owner_handle(store), check_name(recover, "name of a graph"), seconds)
        self._schemas = None if schema is None else GraphSchemas(schema, subgraphs or {}, validate)
        self._fallback: Any = None
        if fallback is not None:  # which stands on this class
            take_over = load("holdfast.interfaces.langgraph.transfer", "Fallback")
            self._fallback = take_over(fallback, HoldfastSaver(store, strict=strict))
        self._restrict(frozenset(SAFE_MSGPACK_TYPES) if STRICT_MSGPACK_ENABLED else None)

    @classmethod
    def from_conn_string(
        cls,
        conn_string: str | os.PathLike[str],
        *,
        serde: SerializerProtocol | None = None,
        strict: bool = False,
        schema: Any = None,
        subgraphs: Mapping[str, str] | None = None,
        validate: ValidationMode = "refuse",
        record: RecordMode = "full",
        ttl: Duration | None = None,
        recover: str | None = None,
        lease: Duration = CLAIM_SECONDS,
        fallback: BaseCheckpointSaver[Any] | None = None,
        **options: Any,
    ) -> HoldfastSaver:
        """A saver on the store at a URL or a path, which is opened, and closed together with the saver.

        Use it in `with` or `async with`, or close it by hand: `close()`, `await aclose()`. Further options are those of
        `holdfast.open`.
        """
        saver = cls(
            open_store(conn_string, **options),
            serde=serde,
            strict=strict,
            schema=schema,
            subgraphs=subgraphs,
            validate=validate,
            record=record,
            ttl=ttl,
            recover=recover,
            lease=lease,
            fallback=fallback,
        )
        saver._owned = True
        return saver

    def setup(self) -> None:
        """Do nothing: a store is set up when it is opened. For programs that call it on other savers."""

    async def asetup(self) -> None:
        """Do nothing; see `setup`."""

    # Saving ---------------------------------------------------------------------------------------------------

    async def _put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Save a checkpoint after the one that the config names. Returns a config that names the new one."""
        thread_id, namespace, parent = place = self._place(config)
        described = get_checkpoint_metadata(config, metadata)
        kind = str(described.get("source", "save"))
        # The status of a thread is that of its graph: what happens in subgraphs reaches it.
        status = None if namespace else status_of_state(checkpoint["channel_values"], checkpoint["channel_versions"])
        save = partial(
            self._checkpoints.save,
            place.thread,
            self._state(checkpoint, new_versions),
            id=checkpoint["id"],
            stamp=checkpoint["ts"],
            parent=parent,
            bookkeeping=graph_forms.bookkeeping_of(checkpoint),
            metadata=cast(dict[str, Any], described),
            kind=kind,
            ttl=None if self._ttl is None or namespace else self._ttl,
            status=status,
        )
        if self._runs is None:
            await save()
        else:
            begins = not namespace and kind in ("input", "loop")
            new, is_own = checkpoint["id"], not namespace
            await self._runs.save(place.thread, save, new, is_checkpoint=is_own, begins=begins, status=status)
        made: RunnableConfig = graph_forms.config_of(thread_id, namespace, checkpoint["id"])
        return made

    put, aput = make_both(_put)

    def _place(self, config: RunnableConfig) -> graph_forms.Place:
        """Return what a config names, after its thread was taken over from an old saver, if there is one."""
        place = graph_forms.place_of(config)
        self._name(place.thread_id)
        return place

    def _name(self, thread_id: object) -> str:
        """Return the name of a thread, which was taken over from an old saver, if there is one."""
        if self._fallback is not None:
            self._fallback.take_over(str(thread_id))
        return thread_name(str(thread_id))

    def _state(self, checkpoint: Checkpoint, new_versions: ChannelVersions) -> Mapping[str, Any]:
        """Return the values to save. Those of channels without a new version are the parent's: a channel may be filled
        for the next step already, since LangGraph saves in the background and goes on with the same objects."""

        return {
            channel: value
            if channel in new_versions
            else FromParent(lambda value=value: value, graph_forms.version_entry(channel))  # type: ignore[misc]
            for channel, value in graph_forms.values_of(checkpoint).items()
        }

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
        place = self._place(config)
        if place.checkpoint_id is None:
            raise InvalidError(
                "the config does not name the checkpoint that the writes belong to", hint="Pass the config put returned"
            )
        stored = [
            (WRITES_IDX_MAP.get(channel, number), channel, self._written(value))
            for number, (channel, value) in enumerate(writes)
        ]
        recorded, status = self.recorder.take(task_id, writes), status_of_writes(writes)
        put = partial(
            self._checkpoints.put_writes,
            place.thread,
            place.checkpoint_id,
            stored,
            task_id=task_id,
            task_path=task_path,
            status=None if place.namespace else status,
        )

        async def save() -> None:
            try:
                await put(recorded=recorded)
            except (UnsupportedError, InvalidError):
                if recorded is None:
                    raise
                await put(recorded=incomplete(recorded))  # the run goes on, and its replay says what is missing

        if self._runs is None:
            await save()
            return
        # An answer begins a run; what else is written without one is of a task that ended when the run had.
        begins = task_id == NO_TASK and not place.namespace and any(channel == RESUME for channel, _ in writes)
        error = next((self._written(value) for channel, value in writes if channel == ERROR), "")
        is_handled = any(channel == _ERROR_SOURCE for channel, _ in writes)  # another node takes the error
        ends = None if place.namespace or is_handled else status
        after = place.checkpoint_id
        await self._runs.save(
            place.thread, save, after, is_checkpoint=False, begins=begins, status=ends, error=str(error)
        )

    put_writes, aput_writes = make_both(_put_writes)

    def run(self, config: RunnableConfig) -> ProgramRun:
        """Have a thread to oneself, in `with` or `async with`: what is stored in the block, by nodes in scopes and by
        agents too, is on the condition that nobody else has the thread. If the process dies in it, or the block is left
        by an exception before the graph has ended, workers go on with the graph that `recover` names."""
        if self._runs is None:
            raise ConfigError(
                "the saver does not say by which name workers have the graph",
                where="saver.run",
                hint="HoldfastSaver(store, recover='support')",
            )
        return self._runs.enter(graph_forms.place_of(config).thread)

    async def _steps_of(self, config: RunnableConfig) -> RunSteps | None:
        """Return the steps of the run of a graph whose node has this config: `@holdfast.step` finds it by this. None if
        the saver records no runs."""
        return None if self._runs is None else await self._runs.steps(graph_forms.place_of(config).thread)

    def _written(self, value: Any) -> Any:
        if not isinstance(value, BaseException):
            return value
        # LangGraph reads the errors of tasks back as text. Classes with a text of their own may leave out the name.
        text, name = repr(value), type(value).__name__
        return text if value.args and text.startswith(f"{name}(") else f"{name}({str(value)!r})"

    # Reading --------------------------------------------------------------------------------------------------

    async def _get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Return the checkpoint that the config names, or else the latest of the thread; None if there is none."""
        place = self._place(config)
        if self._runs is not None and not place.namespace:
            self._runs.note_invocation(place.thread)
        saved = await self._checkpoints.get(place.thread, place.checkpoint_id, resume=True)
        if saved is None:
            return None
        found = self._tuple(saved)
        return found if place.checkpoint_id is None else found._replace(config=config)

    get_tuple, aget_tuple = make_both(_get_tuple)

    def _tuple(self, saved: SavedCheckpoint) -> CheckpointTuple:
        thread_id, namespace = split_name(saved.thread)
        return CheckpointTuple(
            graph_forms.config_of(thread_id, namespace, saved.id),
            graph_forms.checkpoint_of(saved),
            cast(CheckpointMetadata, saved.metadata),
            None if saved.parent is None else graph_forms.config_of(thread_id, namespace, saved.parent),
            list(map(astuple, saved.writes)),
        )

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002 - LangGraph's name for it
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """List checkpoints with their states, by id, the greatest first.

        They are those of the config's thread and namespace; of the whole thread if the config names no namespace; of
        all threads without a config. `filter` are entries of their metadata; `before` names a checkpoint that all come
        before.
        """
        pages = run(self._pages(config, filter, before, limit))
        while (page := run(_next_page(pages))) is not None:
            yield from map(self._tuple, page)

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002 - LangGraph's name for it
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """List checkpoints as `list` does, for asyncio."""
        pages = await arun(self._pages(config, filter, before, limit))
        while (page := await arun(_next_page(pages))) is not None:
            for saved in page:
                yield self._tuple(saved)

    async def _pages(
        self,
        config: RunnableConfig | None,
        metadata: Mapping[str, Any] | None,
        before: RunnableConfig | None,
        limit: int | None,
    ) -> AsyncIterator[builtins.list[SavedCheckpoint]]:
        return await self._checkpoints.list_checkpoints(
            await self._threads(config, metadata),
            before=graph_forms.checkpoint_id_of(before),
            id=graph_forms.checkpoint_id_of(config),
            metadata=metadata,
            limit=limit,
        )

    async def _threads(self, config: RunnableConfig | None, metadata: Mapping[str, Any] | None) -> builtins.list[str]:
        """Return the threads of the store that a config names: one, those of a thread, or all that may have some
        metadata."""
        if not config:
            return await self._checkpoints.threads(metadata)
        self._place(config)
        if graph_forms.configurable(config).get("checkpoint_ns") is not None:
            return [graph_forms.stored_thread(config)]
        return await self._checkpoints.namespaces(thread_name(str(graph_forms.place_of(config).thread_id)))

    async def _get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """Return what each channel held last before the checkpoint of the config, and what was written to it since."""
        histories = await self._checkpoints.channel_writes(
            graph_forms.stored_thread(config), graph_forms.checkpoint_id_of(config), channels
        )
        result: dict[str, DeltaChannelHistory] = {}
        for channel, history in histories.items():
            result[channel] = {"writes": list(map(astuple, history.writes))}
            if history.has_seed:
                result[channel]["seed"] = history.seed
        return result

    get_delta_channel_history, aget_delta_channel_history = make_both(_get_delta_channel_history)

    # Removing and copying -------------------------------------------------------------------------------------

    async def _delete_thread(self, thread_id: str) -> None:
        """Delete a thread: its checkpoints, its writes, and those of its subgraphs; from the fallback as well."""
        await self._checkpoints.delete(self._name(thread_id))  # taken over, so that who may not delete it is denied
        if self._fallback is not None:
            self._fallback.delete(str(thread_id))

    delete_thread, adelete_thread = make_both(_delete_thread)

    async def _delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Delete the checkpoints of some runs, with their writes, from all threads. Those after them stay as they are.

        Looks at every checkpoint of the store.
        """
        _several(run_ids, "ids of runs")
        await self._checkpoints.delete_runs(frozenset(map(str, run_ids)))

    delete_for_runs, adelete_for_runs = make_both(_delete_for_runs)

    async def _copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy a thread with all its checkpoints, writes and subgraphs; nothing, if there is none.

        `ConflictError` if there is a thread of the new name.
        """
        await self._checkpoints.copy(self._name(source_thread_id), self._name(target_thread_id))

    copy_thread, acopy_thread = make_both(_copy_thread)

    async def _prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Drop checkpoints of some threads: all of them (`"delete"`), or all but the latest of each namespace.

        Of those, the ones to which the store gave a name or a tag stay, too, and what delta channels need.
        """
        _several(thread_ids, "ids of threads")
        if strategy not in ("keep_latest", "delete"):
            raise InvalidError(f"the strategy must be 'keep_latest' or 'delete', not {strategy!r}")
        for thread_id in thread_ids:
            if strategy == "delete":
                await self._delete_thread(thread_id)
            else:
                await self._checkpoints.keep_latest(self._name(thread_id))

    prune, aprune = make_both(_prune)

    # Versions and types ---------------------------------------------------------------------------------------

    def get_next_version(self, current: Any, channel: None) -> Any:
        """The version that follows: numbers count up, and so do the texts that other savers made of them."""
        if isinstance(current, str):
            return f"{int(current.split('.')[0]) + 1:032}.{0:016}"
        return super().get_next_version(current, channel)

    def with_allowlist(self, extra_allowlist: Collection[tuple[str, ...]]) -> BaseCheckpointSaver[int]:
        """A copy on the same store that, in LangGraph's strict mode, revives objects of these classes, too."""
        if self._classes is None:
            return self
        clone = copy.copy(self)
        clone._restrict(self._classes | {tuple(each[:2]) for each in extra_allowlist})
        return clone

    def _restrict(self, classes: frozenset[tuple[str, ...]] | None) -> None:
        """Revive objects of these classes only; None for all that the codec revives."""

        def may_revive(ref: str) -> bool:
            module, _, qualname = ref.partition(":")
            return classes is None or (module, qualname.rpartition(".")[2]) in classes

        self._classes = classes
        self._checkpoints = CheckpointStore(
            self.store,
            may_revive=None if classes is None else may_revive,
            default_metadata=_default_metadata,
            lenient=not self._strict,
            schemas=self._schemas,
            find_task=tasks.rename_task,
        )

    # Closing --------------------------------------------------------------------------------------------------

    async def _close(self) -> None:
        """Close the store, if the saver opened it."""
        if self._owned and isinstance(self.store, StoreOperations):
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
