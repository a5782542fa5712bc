"""The channel of what migrations keep aside: nobody writes it but they."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from holdfast.engine.model.diff import diff_maps
from holdfast.engine.model.operations import EditMap
from holdfast.engine.model.packed_state import PackedMap, flatten, pack_name
from holdfast.engine.schema_bindings import ASIDE
from holdfast.errors import InvalidError

if TYPE_CHECKING:
    from holdfast.engine.append import Edit
    from holdfast.engine.engine import Engine
    from holdfast.engine.row_format import Line, StepRef
    from holdfast.engine.state_loader import LoadedState

_ASIDE: Final = pack_name(ASIDE)


def require_unreserved(line: Line, paths: Iterable[tuple[Any, ...]]) -> None:
    """Refuse paths into the reserved channel."""
    if any(path[0] == ASIDE for path in paths):
        raise reserved_error(line)


def unless_aside_changes(engine: Engine, line: Line, packed: PackedMap) -> PackedMap | Edit:
    """Return a state to save. What was kept aside may be among it, as in one that was read, and must be as it is."""
    if _ASIDE not in packed:
        return packed

    async def edit(parent: StepRef | None, loaded: LoadedState | None) -> EditMap:  # noqa: ARG001 - it is in the state
        before: PackedMap = {}
        if loaded is not None:
            before = await engine.states.resolve_pointers(line, await engine.states.whole(line, loaded))
        if flatten(before.get(_ASIDE, b"")) != flatten(packed[_ASIDE]):
            raise reserved_error(line)
        return diff_maps(before, packed)

    return edit


def reserved_error(line: Line) -> InvalidError:
    """Return the error for a write to the reserved channel."""
    return InvalidError(
        f"the name {ASIDE!r} is reserved: it is for the values that migrations keep for a downgrade",
        where=f"thread {line}",
        hint="Leave it out: it is kept as it is. Give a channel of your own another name",
    )
