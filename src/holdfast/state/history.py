"""The history of a scope: its changes, its state at a time, and rollback."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeAlias

import msgspec

from holdfast._fields import Hidden
from holdfast.backends.interface import Row, Scan
from holdfast.backends.tables import STEPS
from holdfast.engine import validation
from holdfast.engine.append import AppendRequest
from holdfast.engine.branch_graph import Position
from holdfast.engine.engine import Engine
from holdfast.engine.guard import Preconditions
from holdfast.engine.model.operations import EditMap
from holdfast.engine.model.packed_state import pack_name
from holdfast.engine.model.scopes import MARK, Scope
from holdfast.engine.pages import Page
from holdfast.engine.row_format import Line, StepRef, open_step
from holdfast.engine.types import to_datetime, to_time
from holdfast.errors import InvalidError, NotFoundError, UnsupportedError
from holdfast.security.handle import StoreHandle
from holdfast.state import keys as names
from holdfast.state.reader import ScopeView, StoredValue, read_line_at, read_scope
from holdfast.state.session_guard import is_over
from holdfast.state.writer import KeyWrite, commit, commit_request
from holdfast.time_parser import parse_time

When: TypeAlias = "datetime | int | str"
"""A time, a version (the number of a step of the scope), or a time as text: `2h`, `yesterday`."""

_PAGE = 64


class HistoryEntry(msgspec.Struct, frozen=True):
    """A change of a key. `before` and `version` are its versions before and after; 0 if it did not exist. `step` is
    the number of the scope's step, also of a deletion."""

    key: str
    action: str
    before: int
    version: int
    time: datetime
    actor: str
    correlation: Hidden[str]
    cause: Hidden[str]
    id: Hidden[str]
    step: Hidden[int] = 0


async def point_at(handle: StoreHandle, line: Line, when: When) -> StepRef | None:
    """Return the last step of a scope at a time; None if there was none yet, or the history ended with a session."""
    if isinstance(when, bool) or not isinstance(when, datetime | int | str):
        raise InvalidError(f"a time must be a datetime, a version, or a string such as '2h', not {when!r}")
    scope = Scope.of_line(line.name)
    if scope is not None and await is_over(handle, scope, for_good=True):
        return None
    if isinstance(when, int):
        version = validation.require_count(when, "version")
        try:
            return await handle.engine.lines.find(line, Position(0, version - 1)) if version else None
        except NotFoundError as error:
            raise NotFoundError(
                f"there is no version {version}, or it was pruned",
                where=line.name.removeprefix(MARK),
                hint="See history() for those that are there",
            ) from error
    time = to_time(parse_time(when, to_datetime(handle.now()).astimezone()))
    try:
        return await handle.engine.step_times.last_of_line(line, time)
    except NotFoundError:
        if await handle.engine.lines.load_tip(line) is None:
            return None
        (first,) = await handle.engine.context.backend.read([Scan(STEPS, (*line, 0), limit=1, bodies=False)])
        if first and StepRef.of(first[0]).time > time:
            return None
        raise


def moment_of(handle: StoreHandle, when: When, point: StepRef | None) -> int:
    """Return the time at which to judge which keys had expired."""
    if isinstance(when, int):
        return 0 if point is None else point.time
    return to_time(parse_time(when, to_datetime(handle.now()).astimezone()))


async def stored_at(handle: StoreHandle, scope: Scope, key: str, version: int) -> StoredValue | None:
    """Return the stored value of a key at a version."""
    line = handle.line(scope)
    point = await point_at(handle, line, version)
    return await read_line_at(handle, line, point, lambda view: view.find_live(key), moment_of(handle, version, point))


async def edits_since(handle: StoreHandle, scope: Scope, key: str, version: int, last: int) -> list[EditMap] | None:
    """Return the edits of a key after one version up to another; None if one of them was pruned."""
    line, name, found = handle.line(scope), pack_name(key), list[EditMap]()
    for start in range(version, last, _PAGE):
        stop = min(start + _PAGE, last)
        (rows,) = await handle.engine.context.backend.read([Scan(STEPS, (*line, 0), (start,), (stop,))])
        if len(rows) < stop - start or any(StepRef.of(row).pruned for row in rows):
            return None
        for row in rows:
            edit = open_step(line, row, handle.engine.context.max_bytes).edit
            put = tuple(each for each in edit.put if each[0] == name)
            removed = tuple(each for each in edit.removed if each == name)
            found += [EditMap(removed, put)] * bool(put or removed)
    return found


async def value_at(
    handle: StoreHandle, scope: Scope, key: str, when: When, default: Any, *, migrate: bool = True
) -> Any:
    """Return the value of a key at a time."""
    key = handle.guard.key(scope, key)
    await handle.guard.allow("read", scope, (key,))
    line = handle.line(scope)
    point = await point_at(handle, line, when)
    moment = moment_of(handle, when, point)
    item = await read_line_at(handle, line, point, lambda view: view.item(key), moment, migrate=migrate)
    await handle.guard.saw(scope, (key,))
    return default if item is None else item.value


async def state_at(handle: StoreHandle, scope: Scope, when: When, *, migrate: bool = True) -> dict[str, Any]:
    """Return all keys and values at a time."""
    await handle.guard.allow("read", scope, ())
    line = handle.line(scope)
    point = await point_at(handle, line, when)
    moment = moment_of(handle, when, point)
    items = await read_line_at(handle, line, point, ScopeView.items, moment, migrate=migrate)
    await handle.guard.saw(scope, [item.key for item in items])
    return {item.key: item.value for item in items}


async def list_changes(
    handle: StoreHandle, scope: Scope, key: str | None, limit: int, cursor: str | None
) -> Page[HistoryEntry]:
    """List the changes of a scope, or of one key, the latest first."""
    wanted = None if key is None else handle.guard.key(scope, key)
    await handle.guard.allow("read", scope, () if wanted is None else (wanted,))
    line, found = handle.line(scope), list[HistoryEntry]()
    last_step, last_key, stop = 0, "", tuple[int, ...]()
    if await is_over(handle, scope, for_good=True):
        return Page()
    if text := validation.cursor_text(cursor):
        # A version; with a key, the changes of that step after the key follow first.
        number, _, last_key = text.partition(" ")
        last_step = validation.cursor_number(number)
        stop = (last_step if last_key else max(last_step - 1, 0),)
    while len(found) <= limit:
        query = Scan(STEPS, (*line, 0), stop=stop, reverse=True, limit=_PAGE)
        (rows,) = await handle.engine.context.backend.read([query])
        for row in rows:
            point = StepRef.of(row)
            if not point.pruned:
                made = await changes_of(handle, line, row, wanted)
                found += [each for each in made if each.step != last_step or each.key > last_key]
        if len(rows) < _PAGE:
            break
        stop = (int(rows[-1].key[3]),)
    await handle.guard.saw(scope, () if wanted is None else (wanted,))
    return Page.cut(found, limit, lambda last: f"{last.step} {last.key}")


async def changes_of(handle: StoreHandle, line: Line, row: Row, wanted: str | None = None) -> list[HistoryEntry]:
    """Return the changes of keys that a step made, in the order of keys."""
    point = StepRef.of(row)
    step = open_step(line, row, handle.engine.context.max_bytes)
    about = handle.codec.unpack(step.header.metadata)
    found = []
    touched = {names.unpack_key(key): True for key, _ in step.edit.put}
    touched |= {names.unpack_key(key): False for key in step.edit.removed}
    before = about.get("before")
    if isinstance(before, int):  # of the only key that it changed
        before = {key: before for key in touched if key}
    elif before is None:
        before = await _versions_before(handle, line, point, [each for each in touched if wanted in (None, each)])
    touched |= {key: key in touched and touched[key] for key in before}
    for key in sorted(touched):
        if not key or (wanted is not None and key != wanted):
            continue
        there = touched[key]
        action = "delete" if not there else point.kind if point.kind not in ("batch", "delete") else "set"
        found.append(
            HistoryEntry(
                key,
                action,
                int(before.get(key, 0)),
                point.seq + 1 if there else 0,
                to_datetime(point.time),
                str(about.get("actor", "")),
                str(about.get("correlation", point.id)),
                str(about.get("cause", "")),
                point.id,
                point.seq + 1,
            )
        )
    return found


async def _versions_before(handle: StoreHandle, line: Line, point: StepRef, every: Sequence[str]) -> dict[str, int]:
    """Return the versions of keys before a step that changed too many to have them. Empty if the previous step was
    pruned."""

    async def versions(view: ScopeView) -> dict[str, int]:
        found = {each: await view.version(each) for each in every if each}
        return {each: version for each, version in found.items() if version}

    try:
        parent = await handle.engine.lines.find(line, Position(0, point.seq - 1)) if point.seq else None
        return await read_line_at(handle, line, parent, versions, point.time)
    except NotFoundError:
        return {}


async def rollback(handle: StoreHandle, scope: Scope, when: When, key: str | None) -> int:
    """Restore keys to what they were at a time, by a new step."""
    wanted = None if key is None else handle.guard.key(scope, key)
    await handle.guard.allow("read", scope, () if wanted is None else (wanted,))
    line = handle.line(scope)
    point = await point_at(handle, line, when)
    if point is not None:
        await _require_one_schema(handle, line, (await handle.engine.step_info.head(line, point)).header.schema)
    then = await _stored_then(handle, handle, line, point, moment_of(handle, when, point), wanted)
    changes = _back_to(then, wanted)
    found = await read_scope(handle, scope, changes)
    if not found:
        return 0
    # Of a whole scope, also what others add meanwhile goes.
    writes = changes if wanted is None else found
    written, _ = await commit(handle, {scope: writes}, preconditions=_schemas_in_use(handle, scope, then))
    return len(written)


async def restore_request(handle: StoreHandle, scope: Scope, source: Engine, point: StepRef) -> AppendRequest | None:
    """Return the request for a step that sets all keys of a scope to what they were at a step of it in another store;
    None if they are."""
    line = handle.line(scope)
    await _require_one_schema(handle, line, (await source.step_info.head(line, point)).header.schema)
    then = await _stored_then(handle, StoreHandle(source, handle.tenant), line, point, point.time, None)
    changes = _back_to(then, None)
    if not await read_scope(handle, scope, changes):
        return None
    return await commit_request(handle, scope, changes, _schemas_in_use(handle, scope, then))


async def _stored_then(
    handle: StoreHandle, source: StoreHandle, line: Line, point: StepRef | None, moment: int, key: str | None
) -> dict[str, StoredValue]:
    """Return what a source has of a line at a step, without what has expired since: it would have by itself."""
    found = await read_line_at(source, line, point, _stored(key), moment)
    now = handle.now()
    return {name: value for name, value in found.items() if not 0 < value.expires <= now}


def _stored(key: str | None) -> Callable[[ScopeView], Awaitable[dict[str, StoredValue]]]:
    async def look(view: ScopeView) -> dict[str, StoredValue]:
        every = [key] if key is not None else await view.keys()
        return {each: found for each in every if (found := await view.find_to_copy(each)) is not None}

    return look


def _back_to(then: Mapping[str, StoredValue], key: str | None) -> Callable[[ScopeView], Awaitable[list[KeyWrite]]]:
    """Return what computes the changes that restore all keys, or one."""

    async def changes(view: ScopeView) -> list[KeyWrite]:
        here = await _stored(key)(view)
        back = [
            KeyWrite(
                each,
                "rollback",
                packed=found.entry.value,
                expires=found.expires,
                mark=found.mark if found.mark.reference else None,
            )
            for each, found in then.items()
            if each not in here or (here[each].entry.value, here[each].expires) != (found.entry.value, found.expires)
        ]
        return back + [KeyWrite(each, "delete") for each in here if each not in then]

    return changes


def _schemas_in_use(handle: StoreHandle, scope: Scope, then: Mapping[str, StoredValue]) -> Preconditions | None:
    """Return the conditions on which values of these versions may be written again."""
    references = {each.mark.reference for each in then.values()} - {""}
    if not references:
        return None
    from holdfast.schemas.registry import VersionUse

    return VersionUse(handle.engine, handle.tenant, handle.guard.actor).conditions(references, f"scope {scope}")


async def _require_one_schema(handle: StoreHandle, line: Line, then: str) -> None:
    """Raise `UnsupportedError` if keys would be restored that have another schema than the scope has now, and this
    program does not know how to migrate them."""
    engine = handle.engine
    newest = await engine.lines.latest_step(line)
    if newest is None or (engine.schemas is not None and engine.schemas.find(line) is not None):
        return
    now = (await engine.step_info.head(line, newest)).header.schema
    if then != now:
        raise UnsupportedError(
            f"the scope had the schema {then or 'none'} then, and has {now or 'none'} now",
            where=line.name.removeprefix(MARK),
            hint="Attach the schema, so that what is restored is upgraded: store.schemas.attach(…)",
            code="schema-mixed",
        )
