"""The engine: its parts put together over one store."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from holdfast.codec import Codec
from holdfast.engine.append import Appender, Edit
from holdfast.engine.copying import Copier
from holdfast.engine.ground import Ground
from holdfast.engine.heads import Heads
from holdfast.engine.lines import Lines
from holdfast.engine.partial import Partial, change_parts
from holdfast.engine.projection import Projector
from holdfast.engine.rebase import Rebaser
from holdfast.engine.recent import Recent
from holdfast.engine.records import Line, Point
from holdfast.engine.rewrite import Rewriter
from holdfast.engine.states import States
from holdfast.engine.writes import Writes
from holdfast.model.packed import unpack_state


class Engine:
    """All that can be done with the lines of a store, as coroutines for `drivers.run` and `drivers.arun`."""

    def __init__(self, ground: Ground) -> None:
        self.ground = ground
        self.lines = Lines(ground)
        self.states = States(ground.backend, ground.cache, ground.max_bytes)
        self.heads = Heads(ground)
        self.projector = Projector(ground, self.lines, self.states)
        self.appender = Appender(ground, self.lines, self.states, self.heads, self.projector)
        self.rebaser = Rebaser(ground, self.lines, self.states, self.heads, self.appender, self.projector)
        self.rewriter = Rewriter(ground, self.lines, self.states, self.projector)
        self.copier = Copier(ground, self.lines, self.projector)
        self.writes = Writes(ground, self.lines)

    def recent(self, line: Line, codec: Codec | None = None) -> Recent:
        """What was packed and unpacked last of a line."""
        return Recent(self.ground.cache, codec or self.ground.codec, line)

    def partial(self, line: Line, point: Point) -> Partial:
        """The state at a step, read as far as it is asked for."""
        return Partial(self.states, self.ground.codec, line, point, look=lambda: self.lines.find(line, point.id))

    def parts(self, line: Line, put: Mapping[tuple[Any, ...], Any], removed: Iterable[tuple[Any, ...]] = ()) -> Edit:
        """What to save to change parts of a state."""
        return change_parts(self.states, self.ground.codec, line, put, removed)

    async def state(self, line: Line, point: Point) -> Mapping[str, Any]:
        """The state at a step, as fresh objects."""
        return unpack_state(self.ground.codec, await self.states.values(line, point))
