"""Resolve conflicts: a save that another one preceded.

By default the save is refused, and nothing is lost. With another policy, it is repeated on top of the other save: with
the changes of both sides, or with the agent's own side wherever that is possible.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from holdfast.agents.definition.options import OnConflict
from holdfast.agents.storage.record import DICTS, PENDING
from holdfast.codec import Codec
from holdfast.engine.model.merge import PackedConflict, PackedResolution, merge
from holdfast.engine.model.operator_runs import OperatorRuns
from holdfast.engine.model.packed_state import PackedMap, pack_name, pack_state, unpack, unpack_name, unpack_state
from holdfast.engine.paths import path_text
from holdfast.errors import ConflictError, InvalidError

_MAX_PATHS = 5


class Sides(NamedTuple):
    """The channels of an agent, except its messages: of the common base, and of each side."""

    base: PackedMap
    mine: PackedMap
    theirs: PackedMap


def resolve_conflict(codec: Codec, how: OnConflict, sides: Sides, runs: OperatorRuns, where: str) -> dict[str, Any]:
    """Return the values of the channels to save instead of the agent's own. `runs` are the operators that were applied
    to its fields. Raises `ConflictError` if the sides cannot be merged."""
    _check_position(codec, sides, where)
    others = {name: _pick(codec, sides, name, where) for name in _other_channels(sides)}
    base, mine, theirs = (_select(side, DICTS) for side in sides)
    if how == "overwrite":
        merged = unpack_state(codec, mine)
    elif callable(how):
        result: Any = how(*(unpack_state(codec, each) for each in (base, mine, theirs)))
        if not isinstance(result, Mapping) or set(result) != set(DICTS):
            raise InvalidError(f"the resolver must return a dict of {', '.join(DICTS)}", where=where)
        wrong = [name for name in DICTS if not isinstance(result[name], Mapping)]
        if wrong:
            raise InvalidError(
                f"the resolver must return a dict as {wrong[0]}, not {type(result[wrong[0]]).__name__}", where=where
            )
        # Values that cannot be saved are found before they reach the agent.
        merged = unpack_state(codec, pack_state(codec, {name: dict(result[name]) for name in DICTS}))
    else:
        field_runs = {(pack_name("fields"), *path): run for path, run in runs.items()}
        merge_result = merge(base, theirs, mine, _join_insertions, their_runs=field_runs)
        if merge_result.conflicts:
            raise _merge_error(codec, merge_result.conflicts, where)
        merged = unpack_state(codec, merge_result.state)
    return {**merged, **{name: value for name, value in others.items() if value is not None}}


def _select(side: PackedMap, names: tuple[str, ...]) -> PackedMap:
    return {key: side[key] for key in map(pack_name, names) if key in side}


def _other_channels(sides: Sides) -> list[str]:
    names = {unpack_name(key): None for side in sides for key in side}
    return [name for name in names if name not in DICTS]


def _check_position(codec: Codec, sides: Sides, where: str) -> None:
    """Refuse to interrupt a change of the other side, or to make one that both sides made."""
    base, _, theirs = (side.get(pack_name(PENDING)) for side in sides)
    if theirs is not None and theirs != base:
        pending = unpack(codec, theirs)
        raise _conflict_error(f"another is in the middle of a {pending['kind']}, {pending['trigger']!r}", where)
    for name in ("status", "state"):
        base, mine, theirs = (side.get(pack_name(name)) for side in sides)
        if mine != base and theirs != base:
            raise _conflict_error(f"both sides changed the {name} of the agent", where)


def _pick(codec: Codec, sides: Sides, name: str, where: str) -> Any:
    """Return the value of a channel that cannot be merged, from the side that changed it; None if that removed it."""
    base, mine, theirs = (side.get(pack_name(name)) for side in sides)
    # The messages are counted again by the save.
    if mine in (base, theirs) or name == "counts":
        value = theirs
    elif theirs == base:
        value = mine
    else:
        raise _conflict_error(f"both sides changed the {name} of the agent", where)
    return None if value is None else unpack(codec, value)


def _join_insertions(conflict: PackedConflict) -> PackedResolution | None:
    """Retain all items that both sides inserted at the same position of a list: first those that were saved first."""
    if conflict.path and isinstance(conflict.path[-1], slice) and conflict.base == []:
        if isinstance(conflict.ours, list) and isinstance(conflict.theirs, list):
            return PackedResolution([*conflict.ours, *conflict.theirs])
    return None


def _merge_error(codec: Codec, conflicts: tuple[PackedConflict, ...], where: str) -> ConflictError:
    paths = [path_text(tuple(_unpack_key(codec, each) for each in conflict.path)) for conflict in conflicts]
    more = f" and {len(paths) - _MAX_PATHS} more" if len(paths) > _MAX_PATHS else ""
    return _conflict_error(f"both sides changed {', '.join(paths[:_MAX_PATHS])}{more}", where)


def _unpack_key(codec: Codec, key: bytes | int | slice) -> Any:
    return codec.unpack(key) if isinstance(key, bytes) else key


def _conflict_error(what: str, where: str) -> ConflictError:
    return ConflictError(what, where=where, hint=HINT, code="agent-conflict")


HINT = (
    "Nothing was saved, and the agent is as it was. Load the stored state with agent.reload() and apply the change to "
    "it; or attach the agent with on_conflict='merge'"
)
