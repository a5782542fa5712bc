"""Conflicts: what becomes of a save that another one came before.

By default it is refused, and nothing is lost. By a policy, the save is made all the same on top of the other: with what
both sides changed, or with one's own side in all that can be settled.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from holdfast.agents.definition.options import OnConflict
from holdfast.agents.storage.record import PENDING
from holdfast.codec import Codec
from holdfast.engine.model.merge import PackedConflict, PackedResolution, merge
from holdfast.engine.model.packed_state import PackedMap, pack_name, pack_state, unpack, unpack_name, unpack_state
from holdfast.errors import ConflictError, InvalidError
from holdfast.history.paths import path_text

MERGED = ("configuration", "fields", "context", "tools", "workflow", "metadata")
"""The channels that can be merged. Of the others, one side has its way, if only one changed them."""

_SHOWN = 5


class Sides(NamedTuple):
    """The channels of an agent, but for its messages: as both sides had them, and as each of them has them."""

    base: PackedMap
    mine: PackedMap
    theirs: PackedMap


def resolved(codec: Codec, how: OnConflict, sides: Sides, where: str) -> dict[str, Any]:
    """The channels to save in place of one's own, as values. `ConflictError` if the sides cannot be brought
    together."""
    _check_standing(codec, sides, where)
    standing = {name: _picked(codec, sides, name, where) for name in _others(sides)}
    base, mine, theirs = (_only(side, MERGED) for side in sides)
    if how == "last-write":
        merged = unpack_state(codec, mine)
    elif callable(how):
        made: Any = how(*(unpack_state(codec, each) for each in (base, mine, theirs)))
        if not isinstance(made, Mapping) or set(made) != set(MERGED):
            raise InvalidError(f"a resolver returns a dict of {', '.join(MERGED)}", where=where)
        wrong = [name for name in MERGED if not isinstance(made[name], Mapping)]
        if wrong:
            raise InvalidError(
                f"a resolver returns a dict as {wrong[0]}, not {type(made[wrong[0]]).__name__}", where=where
            )
        # What cannot be saved is found before the agent takes it on.
        merged = unpack_state(codec, pack_state(codec, {name: dict(made[name]) for name in MERGED}))
    else:
        found = merge(base, mine, theirs, _both_added)
        if found.clashes:
            raise _refused(codec, found.clashes, where)
        merged = unpack_state(codec, found.state)
    return {**merged, **{name: value for name, value in standing.items() if value is not None}}


def _only(side: PackedMap, names: tuple[str, ...]) -> PackedMap:
    return {key: side[key] for key in map(pack_name, names) if key in side}


def _others(sides: Sides) -> list[str]:
    names = {unpack_name(key): None for side in sides for key in side}
    return [name for name in names if name not in MERGED]


def _check_standing(codec: Codec, sides: Sides, where: str) -> None:
    """Whoever is in the middle of something is not to be disturbed; and nothing is done twice because two did it."""
    base, _, theirs = (side.get(pack_name(PENDING)) for side in sides)
    if theirs is not None and theirs != base:
        about = unpack(codec, theirs)
        raise _conflict(f"another is in the middle of a {about['kind']}, {about['trigger']!r}", where)
    for name in ("status", "state"):
        base, mine, theirs = (side.get(pack_name(name)) for side in sides)
        if mine != base and theirs != base:
            raise _conflict(f"both sides changed the {name} of the agent", where)


def _picked(codec: Codec, sides: Sides, name: str, where: str) -> Any:
    """What becomes of a channel that cannot be merged: the side that changed it has its way; None if it goes."""
    base, mine, theirs = (side.get(pack_name(name)) for side in sides)
    # How many messages there are is counted anew.
    if mine in (base, theirs) or name == "counts":
        picked = theirs
    elif theirs == base:
        picked = mine
    else:
        raise _conflict(f"both sides changed the {name} of the agent", where)
    return None if picked is None else unpack(codec, picked)


def _both_added(clash: PackedConflict) -> PackedResolution | None:
    """Where both sides put items at the same place of a list, all of them are there: first those that came first."""
    if clash.path and isinstance(clash.path[-1], slice) and clash.base == []:
        if isinstance(clash.ours, list) and isinstance(clash.theirs, list):
            return PackedResolution([*clash.theirs, *clash.ours])
    return None


def _refused(codec: Codec, clashes: tuple[PackedConflict, ...], where: str) -> ConflictError:
    places = [path_text(tuple(_place(codec, each) for each in clash.path)) for clash in clashes]
    more = f" and {len(places) - _SHOWN} more" if len(places) > _SHOWN else ""
    return _conflict(f"both sides changed {', '.join(places[:_SHOWN])}{more}", where)


def _place(codec: Codec, key: bytes | int | slice) -> Any:
    return codec.unpack(key) if isinstance(key, bytes) else key


def _conflict(what: str, where: str) -> ConflictError:
    return ConflictError(what, where=where, hint=HINT, code="agent-conflict")


HINT = (
    "Nothing was saved, and the agent is as it was. Take on what is there with agent.reload() and apply the change to "
    "it; or attach the agent with on_conflict='merge'"
)
