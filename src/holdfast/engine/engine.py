"""The engine: its parts put together over one store."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from holdfast.codec import Codec
from holdfast.engine.context import Ground
from holdfast.engine.lines import Lines
from holdfast.engine.model.packed_state import unpack_state
from holdfast.engine.pack_cache import Recent
from holdfast.engine.row_format import Line, Point
from holdfast.engine.state_loader import States
from holdfast.engine.step_info import Heads

if TYPE_CHECKING:
    from holdfast.engine.append import Appender, Edit
    from holdfast.engine.copy.within_store import Copier
    from holdfast.engine.delta_channels import Deltas
    from holdfast.engine.entry_reader import Entries
    from holdfast.engine.pending_writes import Writes
    from holdfast.engine.pins_and_holds import Holds
    from holdfast.engine.projection.projector import Projector
    from holdfast.engine.rewrite.rewriter import Rewriter
    from holdfast.engine.save import Rebaser
    from holdfast.engine.state_reader import Partial
    from holdfast.engine.text_index.indexer import Indexer


class Engine:
    """All that can be done with the lines of a store, as coroutines for `drivers.run` and `drivers.arun`."""

    def __init__(self, ground: Ground) -> None:
        self.ground = ground
        self.lines = Lines(ground)
        self.states = States(ground.backend, ground.cache, ground.max_bytes)
        self.heads = Heads(ground)
        self.hooks: Any = None
        """What is called before and after changes, once there is anything: a `holdfast.hooks.registry.Registry`."""
        self.agents: Any = None
        """What saves agents in the background, once there are any: a `holdfast.agents.runtime.autosave.Saver`."""

    # Parts that are loaded when they are first used: whoever only looks at a store starts sooner.

    @cached_property
    def projector(self) -> Projector:
        """Makes readable rows."""
        from holdfast.engine.projection.projector import Projector

        return Projector(self.ground, self.lines, self.states)

    @cached_property
    def indexer(self) -> Indexer:
        """Makes the rows of the text index."""
        from holdfast.engine.text_index.indexer import Indexer

        return Indexer(self.ground, self.lines, self.states)

    @cached_property
    def appender(self) -> Appender:
        """Appends steps."""
        from holdfast.engine.append import Appender

        return Appender(self.ground, self.lines, self.states, self.heads, self.projector, self.indexer)

    @cached_property
    def rebaser(self) -> Rebaser:
        """Appends steps, and revises those that are there."""
        from holdfast.engine.save import Rebaser

        return Rebaser(self.ground, self.lines, self.states, self.heads, self.appender, self.projector, self.indexer)

    @cached_property
    def writes(self) -> Writes:
        """Keeps pending writes."""
        from holdfast.engine.pending_writes import Writes

        return Writes(self.ground, self.lines)

    @cached_property
    def holds(self) -> Holds:
        """Keeps pins and holds."""
        from holdfast.engine.pins_and_holds import Holds

        return Holds(self.ground, self.lines)

    @cached_property
    def rewriter(self) -> Rewriter:
        """Rewrites lines."""
        from holdfast.engine.rewrite.rewriter import Rewriter

        return Rewriter(self.ground, self.lines, self.states, self.projector, self.indexer, self.deltas())

    @cached_property
    def entries(self) -> Entries:
        """Finds single entries of states."""
        from holdfast.engine.entry_reader import Entries

        return Entries(self.states, self.ground.cache)

    @cached_property
    def copier(self) -> Copier:
        """Copies lines."""
        from holdfast.engine.copy.within_store import Copier

        return Copier(self.ground, self.lines, self.projector, self.indexer)

    def load_writers(self) -> None:
        """Load what saving takes. Whoever may save from a signal's handler can not load it then."""
        from holdfast.engine import state_reader  # noqa: F401 - for updates

        _ = self.rebaser, self.writes

    def recent(self, line: Line, codec: Codec | None = None) -> Recent:
        """What was packed and unpacked last of a line."""
        return Recent(self.ground.cache, codec or self.ground.codec, line)

    def deltas(self, codec: Codec | None = None) -> Deltas:
        """The histories of delta channels."""
        from holdfast.engine.delta_channels import Deltas

        return Deltas(self.lines, self.states, self.heads, self.writes, codec or self.ground.codec)

    def partial(self, line: Line, point: Point) -> Partial:
        """The state at a step, read as far as it is asked for."""
        from holdfast.engine.state_reader import Partial

        return Partial(self.states, self.ground.codec, line, point, look=lambda: self.lines.find(line, point.id))

    def parts(self, line: Line, put: Mapping[tuple[Any, ...], Any], removed: Iterable[tuple[Any, ...]] = ()) -> Edit:
        """What to save to change parts of a state."""
        from holdfast.engine.state_reader import change_parts

        return change_parts(self.states, self.ground.codec, line, put, removed)

    async def state(self, line: Line, point: Point) -> Mapping[str, Any]:
        """The state at a step, as fresh objects."""
        return unpack_state(self.ground.codec, await self.states.values(line, point))
