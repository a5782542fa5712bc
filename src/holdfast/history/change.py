"""One difference between two states."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from holdfast.engine.model.json_diff import NOTHING, Kind, Path
from holdfast.engine.paths import path_text
from holdfast.engine.projection.rendering import RenderedMessage
from holdfast.history.text_diff import TextSpan, words


@dataclass(frozen=True, slots=True)
class Change:
    """One place that differs.

    `path` is the place in the new state, or in the old one if it is gone (`kind` is `remove`); `was` is where it was in
    the old state, which differs where items of a list moved. `old` and `new` are fresh values, None where there is
    nothing; values of classes that are not loaded are `OpaqueValue`, large ones that were not fetched `UnloadedValue`.
    A `move` without values says that the entries of a dict are in another order. `message` is who says what, if the
    place is a message of a conversation or lies in one.
    """

    kind: Kind
    path: Path
    was: Path
    old: Any = None
    new: Any = None
    message: RenderedMessage | None = None
    trees: tuple[Any, Any] = field(default=(NOTHING, NOTHING), repr=False, compare=False)
    """Both values in JSON form, as they are shown to people."""

    @property
    def where(self) -> str:
        """The place as text: `messages[3].content`."""
        return path_text(self.path)

    @property
    def words(self) -> list[TextSpan]:
        """What changed in a text, word by word; empty if it is none."""
        return words(self.old, self.new) if type(self.old) is str and type(self.new) is str else []
