"""Changes of single keys, as callers ask for them: a value for some time, on a version, made of the current one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeAlias

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
from holdfast.time_parsing import Duration, parse_nanoseconds

Change: TypeAlias = Callable[[Any], Any]
"""Makes a new value of the current one."""

Settle: TypeAlias = Callable[[Any, Any], Any]
"""Makes one value of the current one and the caller's own."""

OnConflict: TypeAlias = Literal["raise", "overwrite", "merge"] | Settle


def expiry(handle: StoreHandle, ttl: Duration | None) -> int:
    """When something expires that lives so long from now on; 0 for never."""
    return 0 if ttl is None else handle.now() + parse_nanoseconds(ttl, "time to live", positive=True)


def setting(
    handle: StoreHandle,
    scope: Scope,
    key: str,
    value: Any,
    ttl: Duration | None = None,
    expected: int | None = None,
    on_conflict: OnConflict = "raise",
) -> KeyWrite:
    """The change that sets a key."""
    key = handle.guard.key(scope, key)
    version = validation.optional_count(expected, "version")
    if not callable(on_conflict) and on_conflict not in ("raise", "overwrite", "merge"):
        raise InvalidError(f"on_conflict is 'raise', 'overwrite', 'merge' or a function, not {on_conflict!r}")
    change = KeyWrite(key, packed=pack_value(handle, key, value), expires=expiry(handle, ttl))
    if on_conflict == "raise":
        change.expected = version
    elif version is not None and on_conflict != "overwrite":
        change.compute = _settled(handle, scope, change, version, on_conflict)
    return change


def computing(
    handle: StoreHandle, key: str, function: Change, made: Callable[[Any], None] = lambda _: None
) -> KeyWrite:
    """The change that gives a key what a function makes of its value; `made` is told what that was."""
    key = check_key(key)

    async def compute(live: StoredValue | None) -> Packed | None:
        new = function(MISSING if live is None else unpack(handle.codec, live.entry.value))
        made(new)
        return None if new is MISSING else pack_value(handle, key, new)

    return KeyWrite(key, compute=compute, keep_expiry=True)


def _settled(handle: StoreHandle, scope: Scope, change: KeyWrite, expected: int, how: OnConflict) -> Compute:
    """What is written if the key may have another version than expected."""
    key, mine = change.key, change.packed

    async def compute(live: StoredValue | None) -> Packed | None:
        if (0 if live is None else live.version) == expected:
            return mine
        if callable(how):
            current = MISSING if live is None else unpack(handle.codec, live.entry.value)
            new = how(current, unpack(handle.codec, mine))
            return None if new is MISSING else pack_value(handle, key, new)
        base = await history.stored_at(handle, scope, key, expected)
        return _merged(handle, scope, key, base, live, mine)

    return compute


def _merged(
    handle: StoreHandle, scope: Scope, key: str, base: StoredValue | None, live: StoredValue | None, mine: Packed
) -> Packed | None:
    """The value with the changes of both since the base. `ConflictError` if both changed the same."""
    name = b""
    sides = [{} if each is None else {name: each.entry.value} for each in (base, live)]
    found = merge(sides[0], {name: mine}, sides[1])
    if found.conflicts:
        shown = ", ".join(_path(handle, clash) for clash in found.conflicts[:8])
        raise ConflictError(
            f"both changed the same: {shown}",
            where=f"key {key!r} of {scope}",
            hint="Read it again and apply the change to what is there, or settle it with a function",
            code="version-mismatch",
        )
    return found.state.get(name)


def _path(handle: StoreHandle, clash: PackedConflict) -> str:
    parts = [unpack(handle.codec, part) if isinstance(part, bytes) else part for part in clash.path[1:]]
    return "".join(f"[{part!r}]" for part in parts) or "the whole value"
