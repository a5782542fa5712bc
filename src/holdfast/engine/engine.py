"""The engine: all components that work on one store."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

from holdfast.codec import Codec
from holdfast.engine.context import EngineContext
from holdfast.engine.lines import LineIndex
from holdfast.engine.model.packed_state import unpack_state
from holdfast.engine.pack_cache import PackCache
from holdfast.engine.row_format import Line, StepRef
from holdfast.engine.step_info import StepInfoReader

if TYPE_CHECKING:
    from holdfast.engine.append import Appender, Edit
    from holdfast.engine.delta_channels import DeltaReader
    from holdfast.engine.entry_reader import EntryReader
    from holdfast.engine.field_index import FieldIndex
    from holdfast.engine.lines import StepTimes
    from holdfast.engine.pending_writes import PendingWrites
    from holdfast.engine.pins_and_holds import PinsAndHolds
    from holdfast.engine.projection.follower import RowFollower
    from holdfast.engine.projection.projector import Projector
    from holdfast.engine.protection import Protection
    from holdfast.engine.rewrite.rewriter import Rewriter
    from holdfast.engine.save import StepWriter
    from holdfast.engine.schema_bindings import SchemaBindings
    from holdfast.engine.state_loader import StateLoader
    from holdfast.engine.state_reader import StateReader
    from holdfast.engine.text_index.indexer import TextIndexer
    from holdfast.engine.thread_sizes import ThreadSizes
    from holdfast.engine.value_schemas import ValueBindings


class Interceptor(Protocol):
    """Runs before and after changes, and may refuse or alter them. Saves are intercepted by `StepWriter.around`."""

    def matching(self, point: str, scope: str, key: str = "") -> tuple[Sequence[object], Sequence[object]]:
        """Return what runs before, and what after, a change of this kind."""

    async def delete(self, line: Line, delete: Callable[[], Awaitable[bool]]) -> bool:
        """Delete a thread by calling `delete`. Raises `VetoError`."""

    def status(self) -> dict[str, int | float | str]:
        """Return counters and states for `Store.status`."""

    def close(self) -> None:
        """Finish outstanding work, for a limited time. Blocks."""


class BackgroundWorker(Protocol):
    """Works for a store in the background until the store is closed."""

    async def close(self) -> None:
        """Finish outstanding work, and start no more."""


class Engine:
    """Provides the operations on the lines of a store, as coroutines for `drivers.run` and `drivers.arun`."""

    def __init__(self, context: EngineContext) -> None:
        self.context = context
        self.lines: LineIndex = LineIndex(context)
        self.step_info: StepInfoReader = StepInfoReader(context)
        self.hooks: Interceptor | None = None
        """Set when the first hook is registered."""
        self.schemas: SchemaBindings | None = None
        """Set when the first schema of threads or scopes is attached."""
        self.value_schemas: ValueBindings | None = None
        """Set when the first schema of single values is attached."""
        self.protection: Protection | None = None
        """Set when the first policy for sensitive data is added."""
        self.workers: list[BackgroundWorker] = []
        """Closed with the store, before hooks and backend."""
        self.follower: RowFollower | None = None
        """Writes readable rows in the background; set with the projector, if they are to follow. Closed last."""
        self.alert_sinks: list[Any] = []
        """Where this program sends alerts, beside those of the settings file."""

    # Loaded on first use, so that opening a store to read it is quick.

    @cached_property
    def states(self) -> StateLoader:
        """Loads states."""
        from holdfast.engine.state_loader import StateLoader

        return StateLoader(self.context.backend, self.context.cache, self.context.max_bytes)

    @cached_property
    def step_times(self) -> StepTimes:
        """Finds steps by time."""
        from holdfast.engine.lines import StepTimes

        return StepTimes(self.context, self.lines)

    @cached_property
    def projector(self) -> Projector:
        """Builds readable rows."""
        from holdfast.engine.projection.projector import Projector

        projector = Projector(self.context, self.lines, self.states)
        if self.context.project == "follow":
            from holdfast.engine.projection.follower import RowFollower

            self.follower = projector.follower = RowFollower(self.context, self.lines, projector)
        return projector

    @cached_property
    def indexer(self) -> TextIndexer:
        """Builds the rows of the text index."""
        from holdfast.engine.text_index.indexer import TextIndexer

        return TextIndexer(self.context, self.lines, self.states)

    @cached_property
    def fields(self) -> FieldIndex:
        """Builds the index of the fields of threads, and finds threads by it."""
        from holdfast.engine.field_index import FieldIndex

        return FieldIndex(self.context, self.lines)

    @cached_property
    def sizes(self) -> ThreadSizes:
        """Knows the sizes of threads."""
        from holdfast.engine.thread_sizes import ThreadSizes

        return ThreadSizes(self.context, self.lines)

    @cached_property
    def appender(self) -> Appender:
        """Appends steps."""
        from holdfast.engine.append import Appender

        return Appender(
            self.context, self.lines, self.states, self.step_info, self.projector, self.indexer, self.fields
        )

    @cached_property
    def writer(self) -> StepWriter:
        """Saves steps: appends new ones, and revises existing ones."""
        from holdfast.engine.save import StepWriter

        return StepWriter(
            self.context,
            self.lines,
            self.states,
            self.step_info,
            self.appender,
            self.projector,
            self.indexer,
            self.fields,
        )

    @cached_property
    def writes(self) -> PendingWrites:
        """Stores pending writes."""
        from holdfast.engine.pending_writes import PendingWrites

        return PendingWrites(self.context, self.lines)

    @cached_property
    def holds(self) -> PinsAndHolds:
        """Sets and lists pins and holds."""
        from holdfast.engine.pins_and_holds import PinsAndHolds

        return PinsAndHolds(self.context, self.lines)

    @cached_property
    def rewriter(self) -> Rewriter:
        """Rewrites lines."""
        from holdfast.engine.rewrite.rewriter import Rewriter

        return Rewriter(self.context, self.lines, self.projector, self.indexer, self.fields, self.delta_reader())

    @cached_property
    def entries(self) -> EntryReader:
        """Reads single entries of states."""
        from holdfast.engine.entry_reader import EntryReader

        return EntryReader(self.states, self.context.cache)

    def load_writers(self) -> None:
        """Import all that saving needs. A signal handler that may save cannot import it then."""
        from holdfast.engine import state_reader  # noqa: F401 - for updates

        _ = self.writer, self.writes, self.context.quotas

    def bind_schemas(self) -> SchemaBindings:
        """Return the schemas of lines, to add one."""
        if self.schemas is None:
            from holdfast.engine.schema_bindings import SchemaBindings

            self.schemas = self.writer.schemas = SchemaBindings()
        return self.schemas

    def bind_value_schemas(self) -> ValueBindings:
        """Return the schemas of single values, to add one."""
        if self.value_schemas is None:
            from holdfast.engine.value_schemas import ValueBindings

            self.value_schemas = ValueBindings()
        return self.value_schemas

    def bind_protection(self, protection: Protection) -> None:
        """Apply policies for sensitive data to all that is stored from now on."""
        self.protection = self.appender.protection = self.writes.protection = protection

    async def protect_text(self, line: Line, text: str, what: str) -> str:
        """Return the text to store in place of one about a line, such as the reason of a hold."""
        return text if self.protection is None else await self.protection.protect_text(line, text, what)

    def pack_cache(self, line: Line, codec: Codec | None = None) -> PackCache:
        """Return the cache of a line's last packed and unpacked values."""
        return PackCache(self.context.cache, codec or self.context.codec, line)

    def delta_reader(self, codec: Codec | None = None) -> DeltaReader:
        """Return a reader of the histories of delta channels."""
        from holdfast.engine.delta_channels import DeltaReader

        return DeltaReader(self.lines, self.states, self.step_info, self.writes, codec or self.context.codec)

    def state_reader(self, line: Line, point: StepRef) -> StateReader:
        """Return a reader of parts of the state at a step."""
        from holdfast.engine.state_reader import StateReader

        return StateReader(
            self.states, self.context.codec, line, point, check_exists=lambda: self.lines.find(line, point.id)
        )

    def edit_parts(
        self,
        line: Line,
        put: Mapping[tuple[Any, ...], Any],
        removed: Iterable[tuple[Any, ...]] = (),
        text_paths: Collection[tuple[Any, ...]] = (),
    ) -> Edit:
        """Return the edit that changes parts of a state. `text_paths` are the paths that were given as text."""
        from holdfast.engine.state_reader import change_parts

        return change_parts(self.states, self.context.codec, line, put, removed, text_paths)

    async def state(self, line: Line, point: StepRef) -> Mapping[str, Any]:
        """Return the state at a step, as new objects."""
        return unpack_state(self.context.codec, await self.states.values(line, point))
