"""Changes of single keys: with an expiry, on a version, or computed from the current value."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeAlias, get_args

from holdfast.engine import validation
from holdfast.engine.model.merge import PackedConflict, merge
from holdfast.engine.model.missing import MISSING
from holdfast.engine.model.packed_state import Packed, unpack
from holdfast.engine.model.scopes import Scope, check_key
from holdfast.errors import ConflictError, InvalidError
from holdfast.security.handle import StoreHandle
from holdfast.state import history
from holdfast.state.keys import pack_value
from holdfast.state.reader import StoredValue
from holdfast.state.writer import Compute, KeyWrite
from holdfast.time_parser import Duration, parse_nanoseconds

ValueFunction: TypeAlias = Callable[[Any], Any]
"""Computes a new value from the current one."""

Conflict: TypeAlias = Literal["raise", "overwrite", "merge"]

OnConflict: TypeAlias = Conflict | Callable[[Any, Any], Any]
"""What to do if a key has another version than expected. A function takes the current value and the caller's."""


def expiry_time(handle: StoreHandle, ttl: Duration | None) -> int:
    """Return when something with this time to live expires; 0 for never."""
    return 0 if ttl is None else handle.now() + parse_nanoseconds(ttl, "time to live", positive=True)


def set_change(
    handle: StoreHandle,
    scope: Scope,
    key: str,
    value: Any,
    ttl: Duration | None = None,
    expected: int | None = None,
    on_conflict: OnConflict = "raise",
) -> KeyWrite:
    """Return the change that sets a key."""
    key = handle.guard.key(scope, key)
    version = validation.optional_count(expected, "version")
    check_on_conflict(on_conflict)
    change = KeyWrite(key, packed=pack_value(handle, key, value), expires=expiry_time(handle, ttl))
    if on_conflict == "raise":
        change.expected = version
    elif version is not None and on_conflict != "overwrite":
        change.compute = resolve_conflict(handle, scope, change, version, on_conflict)
    return change


def check_on_conflict(on_conflict: object) -> None:
    """Raise `InvalidError` unless this names what to do in a conflict."""
    if not callable(on_conflict) and on_conflict not in get_args(Conflict):
        raise InvalidError(f"on_conflict is 'raise', 'overwrite', 'merge' or a function, not {on_conflict!r}")


def compute_change(
    handle: StoreHandle, key: str, function: ValueFunction, made: Callable[[Any], None] = lambda _: None
) -> KeyWrite:
    """Return the change that sets a key to what a function returns for its value; `made` is called with that."""
    key = check_key(key)

    async def compute(live: StoredValue | None) -> Packed | None:
        new = function(MISSING if live is None else unpack(handle.codec, live.entry.value))
        made(new)
        return None if new is MISSING else pack_value(handle, key, new)

    return KeyWrite(key, compute=compute, keep_expiry=True)


def resolve_conflict(
    handle: StoreHandle, scope: Scope, change: KeyWrite, expected: int, on_conflict: OnConflict
) -> Compute:
    """Compute the value to write: that of the change, or if the key has another version than expected, a merge."""
    key, mine = change.key, change.packed

    async def compute(live: StoredValue | None) -> Packed | None:
        if (0 if live is None else live.version) == expected:
            return mine
        if callable(on_conflict):
            current = MISSING if live is None else unpack(handle.codec, live.entry.value)
            new = on_conflict(current, unpack(handle.codec, mine))
            return None if new is MISSING else pack_value(handle, key, new)
        base = await history.stored_at(handle, scope, key, expected)
        return _merge_values(handle, scope, key, base, live, mine)

    return compute


def _merge_values(
    handle: StoreHandle, scope: Scope, key: str, base: StoredValue | None, live: StoredValue | None, mine: Packed
) -> Packed | None:
    """Merge the changes of both sides since the base. `ConflictError` if both changed the same part."""
    name = b""
    sides = [{} if each is None else {name: each.entry.value} for each in (base, live)]
    found = merge(sides[0], {name: mine}, sides[1])
    if found.conflicts:
        shown = ", ".join(_path(handle, clash) for clash in found.conflicts[:8])
        raise ConflictError(
            f"both changed the same: {shown}",
            where=f"key {key!r} of {scope}",
            hint="Read it again and apply the change to what is there, or give on_conflict a function",
            code="version-mismatch",
        )
    return found.state.get(name)


def _path(handle: StoreHandle, clash: PackedConflict) -> str:
    parts = [unpack(handle.codec, part) if isinstance(part, bytes) else part for part in clash.path[1:]]
    return "".join(f"[{part!r}]" for part in parts) or "the whole value"
