"""A handle: a store as somebody in particular sees it."""

from __future__ import annotations

from dataclasses import dataclass, field

from holdfast.codec import Codec
from holdfast.engine.engine import Engine
from holdfast.engine.guard import Guard
from holdfast.engine.model.scopes import Scope
from holdfast.engine.row_format import Line


@dataclass(frozen=True, slots=True)
class StoreHandle:
    """What every operation on scoped state is given: where, whose, and as whom."""

    engine: Engine
    tenant: str
    guard: Guard = field(default_factory=Guard)

    def line(self, scope: Scope) -> Line:
        """The line that holds a scope's state."""
        return Line(self.tenant, scope.line)

    @property
    def codec(self) -> Codec:
        """How values are packed."""
        return self.engine.ground.codec

    def now(self) -> int:
        """The time, in nanoseconds since 1970."""
        return self.engine.ground.clock()
