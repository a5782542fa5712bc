"""Watching a scope: its changes as they are made, by whichever process, each once and in order.

The steps of a scope are numbered without gaps, and each has a hash that no other line's steps have. So a place in them
is a number and the hash of the step before it; a cursor is such a place for each scope that is watched, as text. What
was read last being there no more means that the scope was deleted meanwhile.
"""

from __future__ import annotations

import base64
import binascii
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Any, NamedTuple, Self, TypeAlias

import msgspec

from holdfast.backends.interface import Get, Query, Row, Scan
from holdfast.backends.runtime.drivers import AsyncApi, Pause, SyncApi, sync_and_async
from holdfast.backends.tables import STEPS
from holdfast.engine import trace_context
from holdfast.engine.lines import LineTip
from holdfast.engine.model.missing import MISSING
from holdfast.engine.model.operations import Operation, Set
from holdfast.engine.model.packed_state import unpack
from holdfast.engine.model.scopes import MARK, Scope, normal
from holdfast.engine.patterns import matcher, stem
from holdfast.engine.row_format import PRUNED, Line, StepRef, open_step
from holdfast.engine.types import to_datetime
from holdfast.errors import InvalidError, NotFoundError
from holdfast.security.handle import StoreHandle
from holdfast.state import history
from holdfast.state import keys as names
from holdfast.state.reader import seen
from holdfast.time_parsing import Duration, parse_seconds

DELETED = "deleted"
"""The action of a change that tells that a whole scope was deleted."""

_PAGE = 64
"""How many steps of a scope are read at a time."""

_SHORTEST, _LONGEST = 0.01, 0.5
"""How many seconds there are between two looks into the store: fewer while there is something to see."""

_MANY = 64
"""Of more scopes than this, only the first are asked between times whether this process changed them."""


class _Place(NamedTuple):
    """How far one has got in a scope: before which step, how much of it was told already, and after which."""

    number: int = 0
    told: int = 0
    after: str = ""


_Places: TypeAlias = Mapping[Scope, _Place]
_Number: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]


@dataclass(frozen=True, slots=True)
class WatchedChange:
    """A change, as a watch tells of it.

    `before` and `version` are the key's versions; `value` is what it held at that version, and `MISSING` where it was
    deleted. Two actions tell of the scope and not of a key, which is empty then: `deleted`, and `pruned`, where the
    versions are the first and the last one whose changes were pruned before they could be told.
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
    _cursor: Callable[[], str] = field(default=str, repr=False, compare=False)

    @property
    def cursor(self) -> str:
        """Where to go on after this change: `watch(cursor=…)`."""
        return self._cursor()

    def causing(self) -> AbstractContextManager[str]:
        """All changes made in this block carry this one as their cause, and its correlation id."""
        return trace_context.correlation(self.correlation or None, cause=self.id or None)


class WatchOperations:
    """What can be done with a watch. `Watch` and `AsyncWatch` have these as methods."""

    def __init__(self, handle: StoreHandle, scope: Scope, pattern: str, cursor: str | None, nested: bool) -> None:
        pattern = normal(pattern, "pattern")
        self._handle = handle
        self._scope = scope
        self._matches = matcher(pattern)
        self._keys = (handle.guard.key(scope, pattern),) if stem(pattern) == pattern else ()
        self._nested = nested
        self._places: dict[Scope, _Place] | None = None if cursor is None else self._opened(cursor)
        self._told: Callable[[], str] | None = None
        self._waiting: deque[WatchedChange] = deque()
        self._known: dict[Line, LineTip | None] = {}
        self._closed = threading.Event()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._scope}>"

    @property
    def scope(self) -> Scope:
        """The scope that is watched."""
        return self._scope

    @property
    def cursor(self) -> str:
        """Where to go on after what was told so far. Empty, which is the start of all, before the watch has begun."""
        if self._told is not None:
            return self._told()
        return "" if self._places is None else self._encoded(self._places)

    @sync_and_async
    async def start(self) -> None:
        """Have the watch begin here, unless it has begun: what is changed from now on is told."""
        await self._start()

    @sync_and_async
    async def poll(self, timeout: Duration = 0) -> list[WatchedChange]:
        """What was changed since, in order; waits for the first change for so many seconds at most. Perhaps nothing.

        `DeniedError` once the right to read the scope is gone.
        """
        seconds = parse_seconds(timeout, "timeout")
        found = list(self._waiting) or await self._wait(seconds)
        self._waiting.clear()
        self._told = None
        return found

    @sync_and_async
    async def close(self) -> None:
        """End the watch: whoever iterates over it, in any thread, comes to the end."""
        self._closed.set()

    # Inside -----------------------------------------------------------------------------------------------------

    @sync_and_async
    async def _next(self) -> WatchedChange | None:
        if not self._waiting and not self._closed.is_set():
            self._waiting += await self._wait(None)
        if self._closed.is_set():
            return None
        found = self._waiting.popleft()
        self._told = found._cursor if self._waiting else None
        return found

    async def _wait(self, timeout: float | None) -> list[WatchedChange]:
        """The next changes. Looks into the store ever less often; and between times, whether this process made one."""
        end = None if timeout is None else time.monotonic() + timeout
        pause = _SHORTEST
        await self._start()
        while not self._closed.is_set():
            found = await self._look()
            if found:
                return found
            due = time.monotonic() + pause
            while not self._stirred() and (left := due - time.monotonic()) > 0:
                if end is not None and (left := min(left, end - time.monotonic())) <= 0:
                    return []
                await Pause(min(_SHORTEST, left))
                if self._closed.is_set():
                    return []
            pause = min(pause * 1.5, _LONGEST)
        return []

    def _stirred(self) -> bool:
        """Whether this process has changed something, or seen a change, since the store was looked into last."""
        return any(self._handle.engine.lines.cached_tip(line) != memo for line, memo in self._known.items())

    async def _start(self) -> None:
        if self._places is not None:
            return
        await self._handle.guard.allow("read", self._scope, self._keys)
        scopes = await self._scopes({})
        queries = [Scan(STEPS, (*self._handle.line(scope), 0), (), (), True, 1, bodies=False) for scope in scopes]
        heads = await self._handle.engine.context.backend.read(queries)
        self._places = {scope: _after(StepRef.of(rows[0])) for scope, rows in zip(scopes, heads, strict=True) if rows}

    async def _look(self) -> list[WatchedChange]:
        """What there is to be told now. Nothing is held to be told if this is cancelled."""
        places = self._places or {}
        await self._handle.guard.allow("read", self._scope, self._keys)
        scopes = await self._scopes(places)
        lines = [self._handle.line(scope) for scope in scopes[:_MANY]]
        self._known = {line: self._handle.engine.lines.cached_tip(line) for line in lines}
        queries: list[Query] = []
        for scope in scopes:
            place, line = places.get(scope, _Place()), self._handle.line(scope)
            queries.append(Get(STEPS, [(*line, 0, place.number - 1)] if place.number else []))
            queries.append(Scan(STEPS, (*line, 0), (place.number,), limit=_PAGE))
        found = await self._handle.engine.context.backend.read(queries)
        trail, telling = _Trail(places), _Telling(self._handle, self._matches, self._encoded)
        for scope, last, rows in zip(scopes, found[::2], found[1::2], strict=True):
            await telling.add(trail, scope, places.get(scope, _Place()), last, rows)
        self._places = trail.places()
        return telling.changes

    async def _scopes(self, places: _Places) -> list[Scope]:
        """The scopes to be looked at: those that are known, and those that are new."""
        if not self._nested:
            return [self._scope]
        handle = self._handle
        lines = await handle.engine.lines.names(handle.tenant, self._scope.line if self._scope.parts else MARK)
        there = [
            scope for line in lines if (scope := Scope.of_line(line.name)) is not None and self._scope.contains(scope)
        ]
        for scope in places:
            await handle.guard.allow("read", scope, self._keys)
        # Nobody asked for those that may not be read: they are left out, until they may.
        return [*places, *await handle.guard.visible([scope for scope in there if scope not in places])]

    # Cursors ----------------------------------------------------------------------------------------------------

    def _encoded(self, places: _Places) -> str:
        content = [self._nested, {str(scope): tuple(place) for scope, place in places.items()}]
        return base64.urlsafe_b64encode(msgspec.json.encode(content)).decode()

    def _opened(self, cursor: str) -> dict[Scope, _Place]:
        """The places that a cursor names. An empty one is before everything."""
        if cursor == "":
            return {}
        try:
            content = base64.b64decode(cursor, altchars=b"-_", validate=True)
            nested, places = msgspec.json.decode(content, type=tuple[bool, dict[str, tuple[_Number, _Number, str]]])
            found = {Scope.parse(text): _Place(*place) for text, place in places.items()}
        except (binascii.Error, msgspec.MsgspecError, ValueError, TypeError):
            raise InvalidError("this is no cursor of a watch", where=repr(cursor)[:80]) from None
        inside = self._scope.contains if self._nested else self._scope.__eq__
        if nested is not self._nested or not all(map(inside, found)):
            raise InvalidError(
                "the cursor is that of another watch",
                where=f"watch of {self._scope}",
                hint="A cursor goes with its scope, and with nested as it was",
            )
        return found


class _Trail:
    """The places that one look passed, in order: None for a scope that was gone."""

    def __init__(self, before: _Places) -> None:
        self._before = before
        self._passed: list[tuple[Scope, _Place | None]] = []

    def passed(self, scope: Scope, place: _Place | None) -> int:
        """One got so far. Returns how many places that makes."""
        self._passed.append((scope, place))
        return len(self._passed)

    def places(self, count: int | None = None) -> dict[Scope, _Place]:
        """How far one had got in each scope, after so many places, or after all."""
        found = dict(self._before)
        for scope, place in self._passed[:count]:
            if place is None:
                found.pop(scope, None)
            else:
                found[scope] = place
        return found


class _Telling:
    """The changes of one look, with the place after each."""

    def __init__(self, handle: StoreHandle, matches: Callable[[str], bool], encode: Callable[[_Places], str]) -> None:
        self.changes: list[WatchedChange] = []
        self._handle = handle
        self._matches = matches
        self._encode = encode

    async def add(self, trail: _Trail, scope: Scope, place: _Place, last: Sequence[Row], rows: Sequence[Row]) -> None:
        """What happened in a scope: given the step before one's place, and those from there on."""
        line, gone = self._handle.line(scope), list[StepRef]()
        if place.number and not (last and _hash(StepRef.of(last[0])) == place.after):
            self._of_scope(trail, scope, None, DELETED)
            place = _Place()
            (rows,) = await self._handle.engine.context.backend.read([Scan(STEPS, (*line, 0), limit=_PAGE)])
        for row in rows:
            point = StepRef.of(row)
            if point.seq != place.number:
                break  # what is between will be there at the next look
            if point.pruned:
                gone.append(point)
            else:
                self._pruned(trail, scope, gone)
                gone = []
                try:
                    await self._step(trail, scope, place, line, row)
                except NotFoundError:
                    return  # pruned or deleted just now: the next look will tell so
            place = _after(point)
            trail.passed(scope, place)
        self._pruned(trail, scope, gone)

    def _pruned(self, trail: _Trail, scope: Scope, gone: Sequence[StepRef]) -> None:
        if gone:
            first, last = gone[0], gone[-1]
            self._of_scope(trail, scope, _after(last), PRUNED, first.seq + 1, last.seq + 1)

    def _of_scope(
        self, trail: _Trail, scope: Scope, place: _Place | None, action: str, before: int = 0, version: int = 0
    ) -> None:
        """Something that befell the whole scope."""
        past = history.HistoryEntry("", action, before, version, to_datetime(self._handle.now()), "", "", "", "")
        self._tell(trail, scope, place, past, MISSING)

    async def _step(self, trail: _Trail, scope: Scope, place: _Place, line: Line, row: Row) -> None:
        point = StepRef.of(row)
        edit = open_step(line, row, self._handle.engine.context.max_bytes).edit
        put = dict(edit.put)
        touched = {names.unpack_key(key) for key in (*put, *edit.removed)}
        every = [past for past in await history.changes_of(self._handle, line, row) if past.key in touched]
        shown = []
        for number, past in enumerate(every, 1):
            if number <= place.told or not self._matches(past.key):
                continue
            value = MISSING
            if past.version:
                value = await self._value(line, point, past.key, put.get(names.pack_key(past.key)))
            shown.append(past.key)
            self._tell(
                trail, scope, _after(point) if number == len(every) else place._replace(told=number), past, value
            )
        if shown:
            await self._handle.guard.saw(scope, shown)

    async def _value(self, line: Line, point: StepRef, key: str, made: Operation | None) -> Any:
        """What a key held after a step: what the step says, or what it made of what was there."""
        states, codec = self._handle.engine.states, self._handle.codec
        if isinstance(made, Set):
            return unpack(codec, (await states.resolve_pointers(line, {b"": made.value}))[b""])
        found = await seen(self._handle, line, point, lambda view: view.stored(key))
        return MISSING if found is None else unpack(codec, found.entry.value)

    def _tell(self, trail: _Trail, scope: Scope, place: _Place | None, past: history.HistoryEntry, value: Any) -> None:
        count, encode = trail.passed(scope, place), self._encode
        told = WatchedChange(
            scope=scope,
            key=past.key,
            action=past.action,
            before=past.before,
            version=past.version,
            value=value,
            time=past.time,
            actor=past.actor,
            correlation=past.correlation,
            cause=past.cause,
            id=past.id,
            _cursor=lambda: encode(trail.places(count)),
        )
        self.changes.append(told)


def _after(point: StepRef) -> _Place:
    return _Place(point.seq + 1, 0, _hash(point))


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
    """The same, for asyncio: `async for change in state.watch()`. It begins when it is entered (`async with`), started,
    or first asked."""

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
