"""Watching a scope: its changes as any process makes them, each once and in order.

The steps of a scope are numbered without gaps, and each has a unique hash. So a position is a number and the hash of
the step before; a cursor is such a position for each scope that is watched, as text. If the last step that was read
does not exist any more, the scope was deleted meanwhile.
"""

from __future__ import annotations

import base64
import binascii
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from functools import partial
from typing import Annotated, Any, NamedTuple, Self, TypeAlias

import msgspec
from msgspec.structs import astuple, replace

from holdfast._fields import computed
from holdfast.backends.interface import Get, Query, Row, Scan
from holdfast.backends.runtime.drivers import AsyncApi, Pause, SyncApi, declare, operation
from holdfast.backends.tables import STEPS
from holdfast.engine import trace_context
from holdfast.engine.branch_graph import Position
from holdfast.engine.lines import LineTip
from holdfast.engine.model.missing import MISSING
from holdfast.engine.model.operations import Operation, Set
from holdfast.engine.model.packed_state import pack_name, unpack
from holdfast.engine.model.scopes import MARK, Scope, normal
from holdfast.engine.patterns import keys_of_listing, matcher, stem
from holdfast.engine.row_format import PRUNED, Line, StepRef, open_step
from holdfast.engine.types import to_datetime
from holdfast.errors import InvalidError, NotFoundError
from holdfast.security.handle import StoreHandle
from holdfast.state import history
from holdfast.state import keys as names
from holdfast.state.reader import ScopeView, read_line_at
from holdfast.state.session_guard import EXPIRY, limit_query, parse_limit, session_of
from holdfast.time_parser import Duration, parse_seconds

DELETED = "deleted"
"""The action of a change that reports that a whole scope was deleted."""

EXPIRED = "expired"
"""The action of a change that reports that a key has expired."""

_PAGE = 64
"""How many steps of a scope are read at a time."""

_SHORTEST, _LONGEST = 0.01, 0.5
"""The shortest and the longest pause between two reads of the store, in seconds."""

_NEVER = 1 << 63
"""No time, in nanoseconds since 1970, is as late."""

_MANY = 64
"""Only so many scopes are checked for changes of this process between two reads."""


class _WatchPosition(NamedTuple):
    """The position in a scope: the number of the next step, how many of its changes were delivered, and the hash of
    the step before; and the key that was last reported as expired, with the time of its expiry."""

    number: int = 0
    delivered: int = 0
    after: str = ""
    expired: int = 0
    key: str = ""

    def after_step(self, point: StepRef) -> _WatchPosition:
        """Return the position after a step."""
        return self._replace(number=point.seq + 1, delivered=0, after=_hash(point))


_Positions: TypeAlias = Mapping[Scope, _WatchPosition]
_Number: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]
_Cursor: TypeAlias = tuple[bool, dict[str, tuple[_Number, _Number, str, _Number, str]]]


class WatchedChange(msgspec.Struct, frozen=True):
    """A change that a watch reports.

    `before` and `version` are the key's versions; `value` is its value at that version, `MISSING` if it was deleted.
    The action `expired` is no change that anybody made: its time is when the key expired, and it has no id. Two actions
    are about the scope, with an empty key: `deleted`, and `pruned`, whose versions are the first and the last whose
    changes were pruned before they could be reported.
    """

    scope: Scope
    key: str
    action: str
    before: int
    version: int
    value: Any
    time: datetime
    actor: str = ""
    correlation: str = ""
    cause: str = ""
    id: str = ""
    _cursor: Callable[[], str] = str

    def __eq__(self, other: object) -> bool:
        return isinstance(other, WatchedChange) and astuple(self)[:-1] == astuple(other)[:-1]

    def __hash__(self) -> int:
        return hash((self.scope, self.key, self.version, self.id))

    def __repr__(self) -> str:
        value = "" if self.value is MISSING else f" = {self.value!r}"
        return f"<WatchedChange {self.id}: {self.action} {self.key!r} of {self.scope}, version {self.version}{value}>"

    @property
    @computed
    def cursor(self) -> str:
        """The position after this change: `watch(cursor=…)`."""
        return self._cursor()

    def causing(self) -> AbstractContextManager[str]:
        """Give all changes in this block this one as their cause, and its correlation id."""
        return trace_context.correlation(self.correlation or None, cause=self.id or None)


@declare(not_remote="A watch of a served store polls by itself.")
class WatchOperations:
    """Operations on a watch. `Watch` and `AsyncWatch` have these as methods."""

    def __init__(self, handle: StoreHandle, scope: Scope, pattern: str, cursor: str | None, nested: bool) -> None:
        pattern = normal(pattern, "pattern")
        self._handle = handle
        self._scope = scope
        self._matches = matcher(pattern)
        single = stem(pattern) == pattern
        self._keys = (handle.guard.key(scope, pattern),) if single else keys_of_listing("", pattern)
        self._nested = nested
        self._positions: dict[Scope, _WatchPosition] | None = None if cursor is None else self._decode(cursor)
        self._last_cursor: Callable[[], str] | None = None
        self._queue: deque[WatchedChange] = deque()
        self._tips: dict[Line, LineTip | None] = {}
        self._expiries: dict[Scope, _ScopeExpiries] = {}
        self._token: str | None = None
        """The token of the last question to the store's feed of changes; None before a nested watch has read."""
        self._due: dict[Scope, int] = {}
        """When a scope is to be read again although nothing in it changes."""
        self._hidden: Sequence[Scope] = ()
        """The scopes inside that may not be read, so far."""
        self._closed = threading.Event()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._scope}>"

    @property
    def scope(self) -> Scope:
        """The scope that is watched."""
        return self._scope

    @property
    def cursor(self) -> str:
        """The position after what was reported so far; empty, which is the start of the history, before the watch
        has begun."""
        if self._last_cursor is not None:
            return self._last_cursor()
        return "" if self._positions is None else self._encode(self._positions)

    @operation(not_in_scripts="`watch` starts it.")
    async def start(self) -> None:
        """Begin here, unless the watch has begun: changes from now on are reported."""
        if self._positions is not None:
            return
        await self._handle.guard.allow("read", self._scope, self._keys)
        scopes = (await self._all_scopes({})).scopes if self._nested else [self._scope]
        queries: list[Query] = []
        for scope in scopes:
            queries.append(Scan(STEPS, (*self._handle.line(scope), 0), (), (), True, 1, bodies=False))
            queries.append(limit_query(self._handle, scope))
        found = await self._handle.engine.context.backend.read(queries)
        begin = _WatchPosition(expired=self._handle.now())
        self._positions = {
            scope: begin.after_step(StepRef.of(rows[0]))
            for scope, rows, limit in zip(scopes, found[::2], found[1::2], strict=True)
            if rows and not self._is_over(limit)
        }

    @operation
    async def poll(self, timeout: Duration = 0) -> list[WatchedChange]:
        """Return the changes since the last call, in order; waits for the first one, at most until the timeout.

        Raises `DeniedError` once the right to read the scope is gone.
        """
        found = list(self._queue) or await self._wait(parse_seconds(timeout, "timeout"))
        self._queue.clear()
        self._last_cursor = None
        return found

    @operation
    async def close(self) -> None:
        """End the watch, and all iterations over it, in any thread."""
        self._closed.set()

    # Inside -----------------------------------------------------------------------------------------------------

    @operation
    async def _next(self) -> WatchedChange | None:
        if not self._queue and not self._closed.is_set():
            self._queue += await self._wait(None)
        if self._closed.is_set():
            return None
        found = self._queue.popleft()
        self._last_cursor = found._cursor if self._queue else None
        return found

    async def _wait(self, timeout: float | None) -> list[WatchedChange]:
        """Return the next changes. Reads the store ever less often; in between, checks for changes of this process."""
        end = None if timeout is None else time.monotonic() + timeout
        pause = _SHORTEST
        await WatchOperations.start(self)
        while not self._closed.is_set():
            found = await self._read_changes()
            if found:
                return found
            due = time.monotonic() + pause
            while not self._tip_changed() and (left := due - time.monotonic()) > 0:
                if end is not None and (left := min(left, end - time.monotonic())) <= 0:
                    return []
                await Pause(min(_SHORTEST, left))
                if self._closed.is_set():
                    return []
            pause = min(pause * 1.5, _LONGEST)
        return []

    def _tip_changed(self) -> bool:
        """Whether this process has made or seen a change since the last read of the store."""
        return any(self._handle.engine.lines.cached_tip(line) != memo for line, memo in self._tips.items())

    def _is_over(self, limit: Sequence[Row]) -> bool:
        """Whether a scope and its history ended with the time of its session."""
        found = parse_limit(limit)
        return found is not None and found.is_over(self._handle.now(), for_good=True)

    async def _read_changes(self) -> list[WatchedChange]:
        """Read the changes there are now. If this is cancelled, none counts as reported."""
        places = self._positions or {}
        await self._handle.guard.allow("read", self._scope, self._keys)
        scopes, hidden, token = await self._changed_scopes(places) if self._nested else _Selection([self._scope])
        lines = [self._handle.line(scope) for scope in dict.fromkeys((*places, *scopes))]
        self._tips = {line: self._handle.engine.lines.cached_tip(line) for line in lines[:_MANY]}
        queries: list[Query] = []
        for scope in scopes:
            place, line = places.get(scope, _WatchPosition()), self._handle.line(scope)
            queries.append(Get(STEPS, [(*line, 0, place.number - 1)] if place.number else []))
            queries.append(Scan(STEPS, (*line, 0), (place.number,), limit=_PAGE))
            queries.append(limit_query(self._handle, scope))
        found = await self._handle.engine.context.backend.read(queries)
        trail, due = _PositionLog(places), dict[Scope, int]()
        telling = _ChangeCollector(self._handle, self._matches, self._encode, self._expiries)
        for scope, last, rows, limit in zip(scopes, found[::3], found[1::3], found[2::3], strict=True):
            place = places.get(scope, _WatchPosition())
            if not self._is_over(limit):
                due[scope] = await telling.add(trail, scope, place, last, rows)
                ends = parse_limit(limit)
                if ends is not None and ends.on_end == "delete":  # other sessions leave their history
                    due[scope] = min(due[scope], ends.ends)
            elif place.number:
                telling.add_deleted(trail, scope)
        self._positions, self._hidden, self._token = trail.positions(), hidden, token
        self._due = {scope: due.get(scope, self._due.get(scope, 0)) for scope in self._positions}
        return telling.changes

    async def _changed_scopes(self, places: _Positions) -> _Selection:
        """Return the scopes of a nested watch to read: those that changed, as the store's feed says, new ones among
        them, and those in which something expires by now. All, if it is the first time, or the feed does not know."""
        handle = self._handle
        for scope in places:
            await handle.guard.allow("read", scope, self._keys)
        found = await handle.engine.context.backend.changes(self._token)
        if self._token is None or not found.complete:
            return (await self._all_scopes(places))._replace(token=found.token)
        changed = {Scope.of_line(name) for tenant, name in found.lines if tenant == handle.tenant}
        now = handle.now()
        read = [
            scope
            for scope in places
            if scope in changed or session_of(scope) in changed or self._due.get(scope, 0) <= now
        ]
        new = [scope for scope in changed if scope is not None and scope not in places and self._scope.contains(scope)]
        return await self._select(read, list(dict.fromkeys((*self._hidden, *new))), found.token)

    async def _all_scopes(self, places: _Positions) -> _Selection:
        """Return all scopes of a nested watch: those of the positions, and new ones."""
        handle = self._handle
        lines = await handle.engine.lines.names(handle.tenant, self._scope.line if self._scope.parts else MARK)
        there = [
            scope for line in lines if (scope := Scope.of_line(line.name)) is not None and self._scope.contains(scope)
        ]
        return await self._select(places, [scope for scope in there if scope not in places])

    async def _select(self, known: Iterable[Scope], new: Sequence[Scope], token: str | None = None) -> _Selection:
        """Add new scopes to known ones. Nobody asked for those that may not be read: they are left out, until they
        may."""
        visible = await self._handle.guard.visible(new)
        shown = set(visible)
        return _Selection([*known, *visible], [scope for scope in new if scope not in shown], token)

    # Cursors ----------------------------------------------------------------------------------------------------

    def _encode(self, places: _Positions) -> str:
        content = [self._nested, {str(scope): tuple(place) for scope, place in places.items()}]
        return base64.urlsafe_b64encode(msgspec.json.encode(content)).decode()

    def _decode(self, cursor: str) -> dict[Scope, _WatchPosition]:
        """Return the positions of a cursor. An empty one is the start of the history."""
        if cursor == "":
            return {}
        try:
            content = base64.b64decode(cursor, altchars=b"-_", validate=True)
            nested, places = msgspec.json.decode(
                content, type=tuple[bool, dict[str, tuple[_Number, _Number, str, _Number, str]]]
            )
            found = {Scope.parse(text): _WatchPosition(*place) for text, place in places.items()}
        except (binascii.Error, msgspec.MsgspecError, ValueError, TypeError):
            raise InvalidError("this is not a cursor of a watch", where=repr(cursor)[:80]) from None
        inside = self._scope.contains if self._nested else self._scope.__eq__
        if nested is not self._nested or not all(map(inside, found)):
            raise InvalidError(
                "the cursor is that of another watch",
                where=f"watch of {self._scope}",
                hint="A cursor goes with its scope, and with nested as it was",
            )
        return found


class _Selection(NamedTuple):
    """The scopes to read, those inside that may not be read, and the token to ask the feed with the next time."""

    scopes: list[Scope]
    hidden: Sequence[Scope] = ()
    token: str | None = None


class _ScopeExpiries(NamedTuple):
    """The keys of a scope that expire, as of a step, in the order of the times."""

    commit: bytes
    expiries: list[tuple[int, str]]


class _PositionLog:
    """The positions that one read passed, in order: None for a scope that was deleted."""

    def __init__(self, before: _Positions) -> None:
        self._before = before
        self._log: list[tuple[Scope, _WatchPosition | None]] = []

    def add(self, scope: Scope, place: _WatchPosition | None) -> int:
        """Add a position. Returns the number of positions."""
        self._log.append((scope, place))
        return len(self._log)

    def positions(self, count: int | None = None) -> dict[Scope, _WatchPosition]:
        """Return the position in each scope, after so many entries, or after all."""
        found = dict(self._before)
        for scope, place in self._log[:count]:
            if place is None:
                found.pop(scope, None)
            else:
                found[scope] = place
        return found


class _ChangeCollector:
    """The changes of one read, with the position after each."""

    def __init__(
        self,
        handle: StoreHandle,
        matches: Callable[[str], bool],
        encode: Callable[[_Positions], str],
        expiries: dict[Scope, _ScopeExpiries],
    ) -> None:
        self.changes: list[WatchedChange] = []
        self._expiries = expiries
        self._handle = handle
        self._matches = matches
        self._encode = encode

    async def add(
        self, trail: _PositionLog, scope: Scope, place: _WatchPosition, last: Sequence[Row], rows: Sequence[Row]
    ) -> int:
        """Collect the changes of a scope, given the step before its position and those after. Returns when the scope is
        to be read again, although nothing changes: when the next key expires, or at once, if there is more."""
        line, gone = self._handle.line(scope), list[StepRef]()
        if place.number and not (last and _hash(StepRef.of(last[0])) == place.after):
            self.add_deleted(trail, scope)
            place = _WatchPosition()
            (rows,) = await self._handle.engine.context.backend.read([Scan(STEPS, (*line, 0), limit=_PAGE)])
        for row in rows:
            point = StepRef.of(row)
            if point.seq != place.number:
                break  # what is between will be there at the next look
            if point.pruned:
                gone.append(point)
            else:
                self._add_pruned(trail, scope, place, gone)
                gone = []
                try:
                    place = await self._add_step(trail, scope, place, line, row)
                except NotFoundError:
                    return 0  # pruned or deleted just now: the next look will tell so
            place = place.after_step(point)
            trail.add(scope, place)
        self._add_pruned(trail, scope, place, gone)
        tips = [StepRef.of(row) for row in (*last, *rows)]
        if not tips or tips[-1].pruned:
            return _NEVER
        if tips[-1].seq + 1 != place.number or len(rows) == _PAGE:
            return 0
        try:
            await self._add_expired(trail, scope, place, line, tips[-1], now := self._handle.now())
        except NotFoundError:
            return 0
        return min((time_ for time_, _ in self._expiries[scope].expiries if time_ > now), default=_NEVER)

    def add_deleted(self, trail: _PositionLog, scope: Scope) -> None:
        """Add that a scope was deleted."""
        self._add_scope_change(trail, scope, None, DELETED)

    async def _add_expired(
        self, trail: _PositionLog, scope: Scope, place: _WatchPosition, line: Line, point: StepRef, until: int
    ) -> _WatchPosition:
        """Add the keys that the scope had at a step and that have expired since the position. Returns the position."""
        cached = self._expiries.get(scope)
        if cached is None or cached.commit != point.hash:
            expiries = await read_line_at(self._handle, line, point, ScopeView.expiries, migrate=False)
            cached = self._expiries[scope] = _ScopeExpiries(point.hash, sorted(expiries))
        shown = []
        for time_, key in cached.expiries:
            if time_ > until or (time_, key) <= (place.expired, place.key):
                continue
            place = place._replace(expired=time_, key=key)
            trail.add(scope, place)
            if self._matches(key):
                found = await read_line_at(
                    self._handle, line, point, partial(ScopeView.find_version, key=key), migrate=False
                )
                before = 0 if found is None else found.version
                entry = history.HistoryEntry(key, EXPIRED, before, 0, to_datetime(time_), "", "", "", "")
                self._add_change(trail, scope, place, entry, MISSING)
                shown.append(key)
        if shown:
            await self._handle.guard.saw(scope, shown)
        return place

    async def _add_expired_before(
        self, trail: _PositionLog, scope: Scope, place: _WatchPosition, line: Line, point: StepRef
    ) -> tuple[_WatchPosition, bool]:
        """Add the keys that had expired when a step removed or replaced them. Returns the position, and whether they
        are known: the step before may have been pruned."""
        try:
            parent = await self._handle.engine.lines.find(line, Position(0, point.seq - 1))
            return await self._add_expired(trail, scope, place, line, parent, point.time), True
        except NotFoundError:
            return place, False

    def _add_pruned(self, trail: _PositionLog, scope: Scope, place: _WatchPosition, gone: Sequence[StepRef]) -> None:
        if gone:
            first, last = gone[0], gone[-1]
            self._add_scope_change(trail, scope, place.after_step(last), PRUNED, first.seq + 1, last.seq + 1)

    def _add_scope_change(
        self,
        trail: _PositionLog,
        scope: Scope,
        place: _WatchPosition | None,
        action: str,
        before: int = 0,
        version: int = 0,
    ) -> None:
        """Add a change of the whole scope."""
        entry = history.HistoryEntry("", action, before, version, to_datetime(self._handle.now()), "", "", "", "")
        self._add_change(trail, scope, place, entry, MISSING)

    async def _add_step(
        self, trail: _PositionLog, scope: Scope, place: _WatchPosition, line: Line, row: Row
    ) -> _WatchPosition:
        """Add the changes of a step. Returns the position, with what had expired before it."""
        point = StepRef.of(row)
        edit = open_step(line, row, self._handle.engine.context.max_bytes).edit
        put = dict(edit.put)
        packed = {*put, *edit.removed}
        touched = set(map(names.unpack_key, packed))
        every = [entry for entry in await history.changes_of(self._handle, line, row) if entry.key in touched]
        shown, known = [], False
        is_expiry = point.kind == EXPIRY
        if point.seq and (is_expiry or any(not each.before and names.pack_ttl(each.key) in packed for each in every)):
            place, known = await self._add_expired_before(trail, scope, place, line, point)
        for number, entry in enumerate(every, 1):
            if number <= place.delivered or not self._matches(entry.key) or (is_expiry and known):
                continue
            if is_expiry:
                entry = replace(entry, action=EXPIRED)
            value = MISSING
            if entry.version:
                value = await self._value(line, point, entry.key, put.get(pack_name(entry.key)))
            shown.append(entry.key)
            self._add_change(
                trail,
                scope,
                place.after_step(point) if number == len(every) else place._replace(delivered=number),
                entry,
                value,
            )
        if shown:
            await self._handle.guard.saw(scope, shown)
        return place

    async def _value(self, line: Line, point: StepRef, key: str, made: Operation | None) -> Any:
        """Return the value of a key after a step."""
        states, codec = self._handle.engine.states, self._handle.codec
        if isinstance(made, Set):
            return unpack(codec, (await states.resolve_pointers(line, {b"": made.value}))[b""])
        found = await read_line_at(self._handle, line, point, lambda view: view.find(key), migrate=False)
        return MISSING if found is None else unpack(codec, found.entry.value)

    def _add_change(
        self, trail: _PositionLog, scope: Scope, place: _WatchPosition | None, entry: history.HistoryEntry, value: Any
    ) -> None:
        count, encode = trail.add(scope, place), self._encode
        watched = WatchedChange(
            scope=scope,
            key=entry.key,
            action=entry.action,
            before=entry.before,
            version=entry.version,
            value=value,
            time=entry.time,
            actor=entry.actor,
            correlation=entry.correlation,
            cause=entry.cause,
            id=entry.id,
            _cursor=lambda: encode(trail.positions(count)),
        )
        self.changes.append(watched)


def _hash(point: StepRef) -> str:
    return point.hash[:16].hex()


class Watch(SyncApi, WatchOperations):
    """The changes of a scope, to iterate over: `for change in state.watch()`. Ends when it is closed."""

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> WatchedChange:
        found = self._next()
        if found is None:
            raise StopIteration
        return found

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncWatch(AsyncApi, WatchOperations):
    """The changes of a scope, for asyncio: `async for change in state.watch()`. It begins when it is entered (`async
    with`), started, or first polled."""

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> WatchedChange:
        found = await self._next()
        if found is None:
            raise StopAsyncIteration
        return found

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
