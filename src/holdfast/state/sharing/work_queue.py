"""Work that is handed out: each piece to one worker at a time, for as long as that one lives.

A lane is a row of pieces of work, as keys of a line's state. A piece is `ready`, is `held` by a worker until a time, or
is to be ready `later`, at a time. Keys that have a time in them are in its order, so that what is due is found by
looking at the first of them. Who holds a piece has a token: one who was taken for dead, and is not, has the wrong one
by the time it comes back.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeAlias, TypeVar

from holdfast.engine.model.scopes import Scope
from holdfast.errors import ConflictError
from holdfast.security.handle import StoreHandle
from holdfast.state.keys import pack_value
from holdfast.state.reader import ScopeView
from holdfast.state.writer import KeyWrite, commit
from holdfast.time_parsing import Duration, parse_nanoseconds

T = TypeVar("T")

LEASE = 60.0
"""How many seconds a worker holds a piece of work without a sign of life, unless told otherwise."""

_FEW = 8
"""How many pieces of work are looked at in one go, for one that can be handed out."""

_DIGITS = 20


class NoWork(ConflictError):
    """There is nothing to do."""


@dataclass(slots=True)
class WorkClaim:
    """That a worker holds a piece of work, until a time."""

    lane: str
    name: str
    token: str
    tries: int
    until: int

    @property
    def key(self) -> str:
        """The key that says so."""
        return _timed(self.lane, "held", self.until, self.name)


class DueWork(NamedTuple):
    """A piece of work that can be handed out, and the key that says so; `lost` if who had it before is dead."""

    name: str
    key: str
    tries: int
    lost: bool


class RefusedWork(NamedTuple):
    """Work that is not handed out any more, and what becomes of it instead."""

    writes: Sequence[KeyWrite]


Opened: TypeAlias = Callable[[ScopeView, DueWork], Awaitable["T | RefusedWork"]]
"""Gives what a worker needs to know of a piece of work."""


def ready(lane: str, name: str) -> str:
    """The key of a piece of work that is ready."""
    return f"{lane}/ready/{name}"


def put(handle: StoreHandle, lane: str, name: str, tries: int = 0, due: int = 0) -> KeyWrite:
    """Have a piece of work be ready, or be so at a time."""
    key = _timed(lane, "later", due, name) if due else ready(lane, name)
    return KeyWrite(key, "put", packed=pack_value(handle, key, tries))


async def dues(view: ScopeView, lane: str) -> list[DueWork]:
    """What comes next: that whose worker died, that whose time has come, and then what is ready."""
    found = []
    for what in ("held", "later"):
        for key in await view.names(f"{lane}/{what}/", _FEW):
            time, name = key.split("/")[-2:]
            if int(time) > view.now:
                break
            found.append(DueWork(name, key, await _tries(view, key), what == "held"))
    if len(found) < _FEW:
        keys = await view.names(f"{lane}/ready/", _FEW)
        found += [DueWork(key.rpartition("/")[2], key, await _tries(view, key), False) for key in keys]
    return found


class TakeWork(Generic[T]):
    """Taking a piece of work from a lane, if there is one."""

    def __init__(self, handle: StoreHandle, own: Scope, lane: str, lease: Duration, opened: Opened[T]) -> None:
        self._handle = handle
        self._own = own
        self._lane = lane
        self._lease = parse_nanoseconds(lease, "lease", positive=True)
        self._opened = opened
        self._taken: tuple[WorkClaim, T] | None = None

    async def take(self) -> tuple[WorkClaim, T] | None:
        """A piece of work and what there is to know of it; None if there is none."""
        while True:
            try:
                await commit(self._handle, {self._own: self._writes})
            except NoWork:
                return None
            if self._taken is not None:
                return self._taken

    async def _writes(self, view: ScopeView) -> list[KeyWrite]:
        self._taken, made = None, list[KeyWrite]()
        for each in await dues(view, self._lane):
            made.append(KeyWrite(each.key, "delete"))
            content = await self._opened(view, each)
            if isinstance(content, RefusedWork):
                made += content.writes
                continue
            claim = WorkClaim(self._lane, each.name, secrets.token_hex(8), each.tries + 1, view.now + self._lease)
            made.append(_hold(self._handle, claim))
            self._taken = claim, content
            break
        if not made:
            raise NoWork("there is nothing to take")
        return made


async def check(view: ScopeView, claim: WorkClaim, what: str) -> None:
    """`ConflictError` unless a worker still holds a piece of work."""
    held = await view.item(claim.key)
    if held is None or held.value[0] != claim.token:
        raise ConflictError(
            f"the {what} is not held by this worker any more: its time ran out, or it was taken away",
            where=claim.name,
            hint="Leave it to who has it now; take a longer lease, or extend it while at work",
            code="lease-lost",
        )


async def extend(handle: StoreHandle, own: Scope, claim: WorkClaim, lease: Duration, what: str) -> None:
    """Hold a piece of work for so many seconds from now on. `ConflictError` if it is not held any more."""
    longer: WorkClaim = claim
    length = parse_nanoseconds(lease, "lease")

    async def writes(view: ScopeView) -> list[KeyWrite]:
        nonlocal longer
        await check(view, claim, what)
        until = max(view.now + length, claim.until + 1)
        longer = WorkClaim(claim.lane, claim.name, claim.token, claim.tries, until)
        return [KeyWrite(claim.key, "delete"), _hold(handle, longer)]

    await commit(handle, {own: writes})
    claim.until = longer.until


def _hold(handle: StoreHandle, claim: WorkClaim) -> KeyWrite:
    return KeyWrite(claim.key, "take", packed=pack_value(handle, claim.key, [claim.token, claim.tries]))


async def _tries(view: ScopeView, key: str) -> int:
    found = await view.item(key)
    value = 0 if found is None else found.value
    return int(value[1] if isinstance(value, list) else value)


def _timed(lane: str, what: str, time: int, name: str) -> str:
    return f"{lane}/{what}/{time:0{_DIGITS}d}/{name}"
