"""Whole scopes: list, clear, copy and move them, and remove keys that have expired."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

import msgspec

from holdfast._named_tuple import NamedTuple
from holdfast.backends.interface import Scan
from holdfast.backends.tables import LINES, STEPS
from holdfast.engine import trace_context
from holdfast.engine.events import Event
from holdfast.engine.model.packed_state import unpack_name
from holdfast.engine.model.scopes import MARK, Scope, normal
from holdfast.engine.optimistic import Attempts, ConcurrentChange
from holdfast.engine.patterns import matcher, narrowed
from holdfast.engine.row_format import Line, StepRef
from holdfast.engine.system_line import LineChange
from holdfast.engine.types import Progress, to_datetime
from holdfast.errors import ConflictError, InvalidError
from holdfast.security.handle import StoreHandle
from holdfast.state import keys as names
from holdfast.state.item_index import ItemChanges, has_items
from holdfast.state.key_changes import OnConflict, check_on_conflict, resolve_conflict
from holdfast.state.reader import ScopeView, StoredValue, read_scope
from holdfast.state.session_guard import EXPIRY, is_over, maintenance_handle
from holdfast.state.writer import Check, KeyWrite, edit_request, write


class _Content(NamedTuple):
    """The content of a scope, and the scope to copy it to."""

    scope: Scope
    target: Scope
    point: StepRef | None
    stored: dict[str, StoredValue]
    schema: str
    """The version of the scope, if no schema is attached to it."""


async def clear(handle: StoreHandle, scope: Scope) -> None:
    """Delete all keys."""

    async def all_keys(view: ScopeView) -> list[KeyWrite]:
        return [KeyWrite(key, "delete") for key in await view.keys()]

    await write(handle, {scope: all_keys})


async def copy(handle: StoreHandle, scope: Scope, target: Scope, on_conflict: OnConflict, *, nested: bool) -> int:
    """Copy all keys into another scope, and with `nested` those of the scopes inside. Returns their number."""
    check_on_conflict(on_conflict)
    contents = await _contents(handle, await _targets(handle, scope, target, nested=nested))
    writes, checks = _copies(handle, contents, on_conflict)
    if writes:
        await write(handle, writes, checks)
    return sum(len(each.stored) for each in contents)


async def move(handle: StoreHandle, scope: Scope, target: Scope, on_conflict: OnConflict, *, nested: bool) -> int:
    """Copy all keys into another scope, and delete them here, atomically. Returns their number."""
    check_on_conflict(on_conflict)
    attempts = Attempts("moving a scope", str(scope), handle.engine.context.metrics)
    while True:
        await attempts.begin()
        contents = await _contents(handle, await _targets(handle, scope, target, nested=nested))
        writes, checks = _copies(handle, contents, on_conflict)
        if not writes:
            return 0
        gone = {each.scope: [KeyWrite(key, "delete") for key in each.stored] for each in contents}
        unchanged = {each.scope: _unchanged(each) for each in contents}
        try:
            await write(handle, {**gone, **writes}, {**unchanged, **checks})
        except ConcurrentChange:
            continue
        return sum(len(each.stored) for each in contents)


async def _targets(handle: StoreHandle, scope: Scope, target: Scope, *, nested: bool) -> dict[Scope, Scope]:
    """Return the scopes to copy, each with the one to copy it to."""
    if scope == target:
        raise InvalidError("state is copied or moved to another scope, not to its own", where=str(scope))
    if not nested:
        return {scope: target}
    if scope.contains(target) or target.contains(scope):
        raise InvalidError("a scope is not copied with what is nested in it into itself", where=f"{scope} and {target}")
    lines = await handle.engine.lines.names(handle.tenant, scope.line + "/")
    inside = [each for line in lines if (each := Scope.of_line(line.name)) is not None]
    return {scope: target, **{each: _moved(each, scope, target) for each in inside}}


def _moved(inside: Scope, scope: Scope, target: Scope) -> Scope:
    """Return the scope inside the target that is what another is inside a scope."""
    try:
        found = target.within(**{part.kind: part.name for part in inside.parts[len(scope.parts) :]})
        if target.contains(found):
            return found
    except InvalidError:
        pass  # both have a part of the same kind
    raise InvalidError(
        f"{inside} cannot be inside {target}", where=f"{scope} and {target}", hint="Copy the scopes one by one"
    )


async def _contents(handle: StoreHandle, targets: Mapping[Scope, Scope]) -> list[_Content]:
    """Read the scopes to copy. Those without keys are left out."""
    found = []
    for scope, target in targets.items():
        await handle.guard.allow("read", scope, ())
        point, stored, schema = await read_scope(handle, scope, _stored)
        await handle.guard.saw(scope, list(stored))
        attached = handle.engine.schemas is not None and handle.engine.schemas.find(handle.line(scope)) is not None
        found += [_Content(scope, target, point, stored, "" if attached else schema)] * bool(stored)
    return found


def _copies(
    handle: StoreHandle, contents: Sequence[_Content], on_conflict: OnConflict
) -> tuple[dict[Scope, list[KeyWrite]], dict[Scope, Check]]:
    """Return the changes that copy scopes, and what to check in their targets."""
    writes = {each.target: _puts(handle, each, on_conflict) for each in contents}
    return writes, {each.target: _require_free(each) for each in contents} if on_conflict == "raise" else {}


async def _stored(view: ScopeView) -> tuple[StepRef | None, dict[str, StoredValue], str]:
    found = {key: await view.find_to_copy(key) for key in await view.keys()}
    live = {key: stored for key, stored in found.items() if stored is not None}
    return view.point, live, await view.scope_schema()


def _puts(handle: StoreHandle, found: _Content, on_conflict: OnConflict) -> list[KeyWrite]:
    puts = [
        KeyWrite(key, packed=each.entry.value, expires=each.expires, mark=each.mark if each.mark.reference else None)
        for key, each in found.stored.items()
    ]
    for put in puts:
        put.scope_schema = found.schema
    if on_conflict not in ("raise", "overwrite"):
        for put in puts:
            put.compute = resolve_conflict(handle, found.target, put, None, on_conflict)
    return puts


def _require_free(found: _Content) -> Check:
    async def check(view: ScopeView) -> None:
        for key in found.stored:
            if await view.version(key):
                raise ConflictError(
                    "the other scope has the key already",
                    where=f"key {key!r} of {found.target}",
                    hint="Give on_conflict='overwrite' or 'merge', or move the key away",
                )

    return check


def _unchanged(found: _Content) -> Check:
    async def check(view: ScopeView) -> None:
        if view.point != found.point:
            raise ConcurrentChange

    return check


_LAST = "\U0010ffff"


_LEAST = 64
"""The minimum number of names to read at a time: some are not those of visible scopes."""


class ScopeInfo(msgspec.Struct, frozen=True):
    """A scope that has state, or had some: the number of its keys, its version (the number of its last step), and
    when it was last changed."""

    scope: Scope
    keys: int
    version: int
    updated: datetime


async def list_scopes(handle: StoreHandle, prefix: str, pattern: str, after: str, limit: int) -> list[ScopeInfo]:
    """Return a page of scopes in the order of their text. Scopes that the caller may not read are left out."""
    prefix, pattern = normal(prefix, "prefix"), normal(pattern, "pattern")
    if not prefix.endswith((":", "/")):  # whole parts are found
        handle.engine.context.rows.check_prefix(prefix)
    matches, common = matcher(pattern) if pattern else None, narrowed(prefix, pattern)
    if common is None:
        return []
    prefix = common
    first = MARK + max(prefix, after + "\0" if after else "")
    found: list[ScopeInfo] = []
    page = max(limit, _LEAST)
    while len(found) < limit:
        query = Scan(LINES, (handle.tenant,), (first,), (MARK + prefix + _LAST,), limit=page, bodies=False)
        (rows,) = await handle.engine.context.backend.read([query])
        named = (scope for row in rows if (scope := Scope.of_line(str(row.key[1]))) is not None)
        meant = [each for each in named if str(each).startswith(prefix) and (not matches or matches(str(each)))]
        for scope in await handle.guard.visible(meant):
            if len(found) < limit:
                found += await _describe(handle, scope)
        if len(rows) < page:
            break
        first = str(rows[-1].key[1]) + "\0"
    return found


async def _describe(handle: StoreHandle, scope: Scope) -> list[ScopeInfo]:
    line: Line = handle.line(scope)
    if await is_over(handle, scope, for_good=True):
        return []
    (rows,) = await handle.engine.context.backend.read([Scan(STEPS, (*line, 0), reverse=True, limit=1, bodies=False)])
    if not rows:
        return []
    point = StepRef.of(rows[0])
    return [ScopeInfo(scope, await read_scope(handle, scope, ScopeView.count), point.seq + 1, to_datetime(point.time))]


class ExpiryReport(NamedTuple):
    """The number of deleted keys, and of the scopes they were in."""

    keys: int = 0
    scopes: int = 0


async def delete_expired(handle: StoreHandle, progress: Progress | None = None) -> ExpiryReport:
    """Delete the expired keys of all scopes.

    A key that has expired is invisible at once, but takes space until it is written again or deleted. Deletion is a
    step of its scope, so that watchers see it.
    """
    keeper, keys, scopes = maintenance_handle(handle), 0, 0
    lines = await handle.engine.lines.names(handle.tenant, MARK)
    with trace_context.correlation(cause="expired"):
        for done, line in enumerate(lines, 1):
            scope = Scope.of_line(line.name)
            if scope is not None and await read_scope(keeper, scope, _has_expired):
                count = await _delete_expired(keeper, scope)
                keys, scopes = keys + count, scopes + bool(count)
            if progress is not None:
                progress(done, len(lines), line.name)
    return ExpiryReport(keys, scopes)


async def _has_expired(view: ScopeView) -> bool:
    return bool(await view.expired())


async def _delete_expired(keeper: StoreHandle, scope: Scope) -> int:
    count = 0

    async def edit(view: ScopeView) -> LineChange:
        nonlocal count
        dead = await view.expired()
        count = len(dead)
        beside: list[str] = []
        if has_items(scope):
            changes = ItemChanges(keeper.codec, None)
            for key in dead:
                beside += map(unpack_name, await changes.removals(view, key, await view.find_stored(key)))
        gone = [name for key in dead for name in (key, names.ttl_name(key))]
        gone += [names.mark_name(key) for key in dead if (await view.find_mark(key)).reference]
        return LineChange(
            removed=[*beside, *gone], events=[Event("change", keeper.guard.actor, "delete", key) for key in dead]
        )

    saving = edit_request(keeper, keeper.line(scope), EXPIRY, edit)
    saving.if_changed = True
    await keeper.engine.writer.save(saving)
    return count
