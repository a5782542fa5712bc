"""Changes of single keys: with an expiry, on a version, or computed from the current value."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, TypeAlias, get_args

from holdfast.engine import validation
from holdfast.engine.model.large_values import pointers
from holdfast.engine.model.merge import MergedState, PackedConflict, Resolver, merge
from holdfast.engine.model.missing import MISSING
from holdfast.engine.model.operator_runs import operator_runs
from holdfast.engine.model.packed_state import Packed, pack_name, unpack
from holdfast.engine.model.scopes import Scope, check_key
from holdfast.errors import ConflictError, InvalidError
from holdfast.security.handle import StoreHandle
from holdfast.state import history
from holdfast.state.keys import pack_value
from holdfast.state.reader import ScopeView, StoredValue, read_line_at
from holdfast.state.writer import Compute, KeyWrite
from holdfast.time_parser import Duration, parse_nanoseconds

ValueFunction: TypeAlias = Callable[[Any], Any]
"""Computes a new value from the current one."""

Conflict: TypeAlias = Literal["raise", "overwrite", "merge"]
_CONFLICTS = get_args(Conflict)

OnConflict: TypeAlias = Conflict | Callable[[Any, Any], Any]
"""The treatment of a key with another version than expected. A function takes the current value and the caller's."""


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
    if not callable(on_conflict) and on_conflict not in _CONFLICTS:
        raise InvalidError(f"on_conflict must be 'raise', 'overwrite', 'merge' or a function, not {on_conflict!r}")


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


def patch_change(key: str, changes: Mapping[Any, Any], remove: Iterable[Any], where: str) -> KeyWrite:
    """Return the change of parts of a key's value."""
    parts = {(key, *_path(path)): new for path, new in validation.require_mapping(changes, "set of changes").items()}
    gone = [(key, *_path(path)) for path in validation.require_several(remove, "path to remove")]
    if not parts and not gone:
        raise InvalidError("a patch must change something", where=where)
    return KeyWrite(key, "patch", parts=parts, removed=gone, keep_expiry=True)


def _path(path: Any) -> tuple[Any, ...]:
    return tuple(path) if isinstance(path, tuple | list) else (path,)


def resolve_conflict(
    handle: StoreHandle, scope: Scope, change: KeyWrite, expected: int | None, on_conflict: OnConflict
) -> Compute:
    """Compute the value to write: that of the change, or if the key has another version than expected, a merge. None is
    expected if the value comes from another scope, and shares no version with this one."""
    key, mine = change.key, change.packed

    async def compute(live: StoredValue | None) -> Packed | None:
        if (0 if live is None else live.version) == (expected or 0):
            return mine
        if callable(on_conflict):
            current = MISSING if live is None else unpack(handle.codec, live.entry.value)
            new = on_conflict(current, unpack(handle.codec, mine))
            return None if new is MISSING else pack_value(handle, key, new)
        if expected is not None:
            found = await merge_since(handle, scope, key, expected, live, mine)
        else:
            found = merge({}, {pack_name(key): mine}, {} if live is None else {pack_name(key): live.entry.value})
        _check_conflicts(handle, scope, key, found)
        return found.state.get(pack_name(key))

    return compute


async def merge_since(
    handle: StoreHandle,
    scope: Scope,
    key: str,
    version: int,
    live: StoredValue | None,
    mine: Packed,
    resolver: Resolver = lambda _: None,
) -> MergedState:
    """Merge a value with the changes that others made of the key since a version. What operators did is added to it."""
    name, line = pack_name(key), handle.line(scope)
    point = await history.point_at(handle, line, version)
    stored, is_same = await read_line_at(handle, line, point, lambda view: _base(view, key, live))
    start = {} if stored is None else {name: stored.entry.value}
    base = {} if stored is None or point is None or 0 < stored.expires <= point.time else start
    if live is None:
        return merge(base, {name: mine}, {}, resolver)
    edits = await history.edits_since(handle, scope, key, version, live.version) or () if is_same else ()
    large = {pointer for edit in edits for pointer in pointers(edit)}
    loaded = await handle.engine.states.load_large(line, large)
    runs = operator_runs(start, edits, loaded.__getitem__)
    return merge(base, {name: mine}, {name: live.entry.value}, resolver, their_runs=runs)


async def _base(view: ScopeView, key: str, live: StoredValue | None) -> tuple[StoredValue | None, bool]:
    """Return the value of a key at a step, and whether it is stored in the version that the key has now: otherwise the
    steps since do not apply to it."""
    stored = await view.find(key)
    schema = view.schema(key)
    if schema is None or stored is None or live is None:
        return stored, True
    marks = await view.find_mark(key), live.mark
    return stored, all(each.reference == schema.reference for each in marks) and marks[0] == live.mark


def _check_conflicts(handle: StoreHandle, scope: Scope, key: str, found: MergedState) -> None:
    """Raise `ConflictError` if both sides changed the same part."""
    if found.conflicts:
        shown = ", ".join(_clash_path(handle, clash) for clash in found.conflicts[:8])
        raise ConflictError(
            f"both changed the same: {shown}",
            where=f"key {key!r} of {scope}",
            hint="Read it again and apply the change to the current value, or pass a function as on_conflict",
            code="version-mismatch",
        )


def _clash_path(handle: StoreHandle, clash: PackedConflict) -> str:
    parts = [unpack(handle.codec, part) if isinstance(part, bytes) else part for part in clash.path[1:]]
    return "".join(f"[{part!r}]" for part in parts) or "the whole value"
