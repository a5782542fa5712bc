"""All keys of a scope at once: clearing it, copying it, moving it to another."""

from __future__ import annotations

from typing import NamedTuple

from holdfast.engine.model.scopes import Scope
from holdfast.engine.row_format import StepRef
from holdfast.errors import ConflictError, InvalidError
from holdfast.security.handle import StoreHandle
from holdfast.state.key_changes import OnConflict, check_on_conflict, resolve_conflict
from holdfast.state.reader import ScopeView, StoredValue, read_scope
from holdfast.state.writer import Check, KeyWrite, write

_ATTEMPTS = 100
"""How often a scope is moved anew because it changed meanwhile."""


class _Content(NamedTuple):
    point: StepRef | None
    stored: dict[str, StoredValue]


class _ConcurrentChange(Exception):
    """The scope changed since it was read."""


async def clear(handle: StoreHandle, scope: Scope) -> None:
    """Take all keys away."""

    async def all_keys(view: ScopeView) -> list[KeyWrite]:
        return [KeyWrite(key, "delete") for key in await view.keys()]

    await write(handle, {scope: all_keys})


async def copy(handle: StoreHandle, scope: Scope, target: Scope, on_conflict: OnConflict) -> int:
    """Copy all keys into another scope."""
    _check(scope, target, on_conflict)
    await handle.guard.allow("read", scope, ())
    found = await read_scope(handle, scope, _content)
    await handle.guard.saw(scope, list(found.stored))
    if found.stored:
        await write(
            handle, {target: _puts(handle, target, found, on_conflict)}, _require_free(target, found, on_conflict)
        )
    return len(found.stored)


async def move(handle: StoreHandle, scope: Scope, target: Scope, on_conflict: OnConflict) -> int:
    """Copy all keys into another scope, and take them away here."""
    _check(scope, target, on_conflict)
    await handle.guard.allow("read", scope, ())
    for _ in range(_ATTEMPTS):
        found = await read_scope(handle, scope, _content)
        await handle.guard.saw(scope, list(found.stored))
        if not found.stored:
            return 0
        gone = [KeyWrite(key, "delete") for key in found.stored]
        checks = {scope: _unchanged(found), **_require_free(target, found, on_conflict)}
        try:
            await write(handle, {scope: gone, target: _puts(handle, target, found, on_conflict)}, checks)
        except _ConcurrentChange:
            continue
        return len(found.stored)
    raise ConflictError(
        f"the scope changed {_ATTEMPTS} times while it was to be moved", where=str(scope), hint="Stop who writes there"
    )


async def _content(view: ScopeView) -> _Content:
    found = {key: await view.find_live(key) for key in await view.keys()}
    return _Content(view.point, {key: stored for key, stored in found.items() if stored is not None})


def _puts(handle: StoreHandle, target: Scope, found: _Content, on_conflict: OnConflict) -> list[KeyWrite]:
    puts = [KeyWrite(key, packed=each.entry.value, expires=each.expires) for key, each in found.stored.items()]
    if on_conflict not in ("raise", "overwrite"):
        for put in puts:
            put.compute = resolve_conflict(handle, target, put, 0, on_conflict)
    return puts


def _require_free(target: Scope, found: _Content, on_conflict: OnConflict) -> dict[Scope, Check]:
    async def check(view: ScopeView) -> None:
        for key in found.stored:
            if await view.version(key):
                raise ConflictError(
                    "the other scope has the key already",
                    where=f"key {key!r} of {target}",
                    hint="Give on_conflict='overwrite' or 'merge', or move the key away",
                )

    return {target: check} if on_conflict == "raise" else {}


def _unchanged(found: _Content) -> Check:
    async def check(view: ScopeView) -> None:
        if view.point != found.point:
            raise _ConcurrentChange

    return check


def _check(scope: Scope, target: Scope, on_conflict: OnConflict) -> None:
    check_on_conflict(on_conflict)
    if scope == target:
        raise InvalidError("state is copied or moved to another scope, not to its own", where=str(scope))
