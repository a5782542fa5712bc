"""Queues of work: each piece of work is held by one worker at a time, as long as its lease lasts.

A queue is a set of keys in a line's state. A piece of work is `ready`, is `held` by a worker until a time, or is to be
ready `later`, at a time. Keys with a time in them are in its order, so that due work comes first. A worker that holds
work has a token: one whose lease has ended finds that it is out of date.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeAlias, TypeVar

from holdfast.backends.interface import Suspension
from holdfast.backends.runtime.heartbeat import Extend, Heartbeat
from holdfast.engine import trace_context
from holdfast.engine.model.scopes import Scope
from holdfast.errors import ConflictError, InvalidError
from holdfast.security.handle import StoreHandle
from holdfast.state.keys import pack_value
from holdfast.state.reader import ScopeView
from holdfast.state.writer import KeyWrite, write
from holdfast.time_parser import Duration, parse_nanoseconds, parse_seconds

T = TypeVar("T")

LEASE = 60.0
"""How many seconds a worker holds work by default, unless it extends the lease."""

_FEW = 8
"""How many pieces of work are checked at a time."""

_DIGITS = 20


class NoWork(ConflictError):
    """There is nothing to do."""


@dataclass(slots=True)
class WorkClaim:
    """The claim of a worker on a piece of work, until a time."""

    queue: str
    name: str
    token: str
    tries: int
    until: int

    @property
    def key(self) -> str:
        """The key of the claim."""
        return _timed_key(self.queue, "held", self.until, self.name)


class DueWork(NamedTuple):
    """Work that can be handed out, and its key; `lost` if its previous worker died."""

    name: str
    key: str
    tries: int
    lost: bool


class RefusedWork(NamedTuple):
    """Work that is not handed out any more, and the changes to make instead."""

    writes: Sequence[KeyWrite]


LoadWork: TypeAlias = Callable[[ScopeView, DueWork], Awaitable["T | RefusedWork"]]
"""Returns what a worker needs for a piece of work."""


def ready_key(lane: str, name: str) -> str:
    """Return the key of work that is ready."""
    return f"{lane}/ready/{name}"


def put_work(handle: StoreHandle, lane: str, name: str, tries: int = 0, due: int = 0) -> KeyWrite:
    """Return the change that makes work ready, now or at a time."""
    key = _timed_key(lane, "later", due, name) if due else ready_key(lane, name)
    return KeyWrite(key, "put", packed=pack_value(handle, key, tries))


async def due_work(view: ScopeView, lane: str) -> list[DueWork]:
    """Return what comes next: work whose worker died, work whose time has come, and then what is ready."""
    found = []
    for what in ("held", "later"):
        for key in await view.all_keys(f"{lane}/{what}/", _FEW):
            time, name = key.split("/")[-2:]
            if int(time) > view.now:
                break
            found.append(DueWork(name, key, await _read_tries(view, key), what == "held"))
    if len(found) < _FEW:
        keys = await view.all_keys(f"{lane}/ready/", _FEW)
        found += [DueWork(key.rpartition("/")[2], key, await _read_tries(view, key), False) for key in keys]
    return found


async def take_work(
    handle: StoreHandle, own: Scope, lane: str, lease: Duration, load: LoadWork[T]
) -> tuple[WorkClaim, T] | None:
    """Take a piece of work from a queue. Returns the claim and the content of the work; None if there is none."""
    length = parse_nanoseconds(lease, "lease", positive=True)
    taken: tuple[WorkClaim, T] | None = None

    async def writes(view: ScopeView) -> list[KeyWrite]:
        nonlocal taken
        taken, made = None, list[KeyWrite]()
        for each in await due_work(view, lane):
            made.append(KeyWrite(each.key, "delete"))
            content = await load(view, each)
            if isinstance(content, RefusedWork):
                made += content.writes
                continue
            claim = WorkClaim(lane, each.name, secrets.token_hex(8), each.tries + 1, view.now + length)
            made.append(_claim_write(handle, claim))
            taken = claim, content
            break
        if not made:
            raise NoWork("there is nothing to take")
        return made

    while taken is None:
        try:
            await write(handle, {own: writes})
        except NoWork:
            return None
    return taken


class HeldWork:
    """A piece of work that a worker holds: its id and its value, and how often it was handed out."""

    def __init__(self, claim: WorkClaim, record: Mapping[str, Any], where: Scope) -> None:
        self.id: str = claim.name
        self.value: Any = record["value"]
        self.correlation: str = record["correlation"]
        self._claim = claim
        self._where = where

    @property
    def tries(self) -> int:
        """How often it was handed out, this time included."""
        return self._claim.tries

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id}>"

    def causing(self) -> AbstractContextManager[str]:
        """Give all changes in this block this work as their cause, and its correlation id."""
        return trace_context.correlation(self.correlation, cause=self.id)


def claim_of(work: HeldWork, resource: Scope) -> WorkClaim:
    """Return the claim on work that was taken from a resource. `InvalidError` if it was taken elsewhere."""
    if getattr(work, "_where", None) != resource:
        raise InvalidError(
            "this work was not taken by this object",
            where=repr(work)[:80],
            hint="Give what take() of this object returned",
        )
    return work._claim


async def check_claim(view: ScopeView, claim: WorkClaim, what: str) -> None:
    """Raise `ConflictError` unless the worker still holds the work."""
    held = await view.item(claim.key)
    if held is None or held.value[0] != claim.token:
        raise ConflictError(
            f"the {what} is not held by this worker any more: its time ran out, or it was taken away",
            where=claim.name,
            hint="Leave it to the worker that has it now; take a longer lease, or extend it while working",
            code="lease-lost",
        )


async def extend_claim(handle: StoreHandle, own: Scope, claim: WorkClaim, lease: Duration, what: str) -> None:
    """Extend the lease of a piece of work. `ConflictError` if it is not held any more."""
    longer: WorkClaim = claim
    length = parse_nanoseconds(lease, "lease")

    async def writes(view: ScopeView) -> list[KeyWrite]:
        nonlocal longer
        await check_claim(view, claim, what)
        until = max(view.now + length, claim.until + 1)
        longer = replace(claim, until=until)
        return [KeyWrite(claim.key, "delete"), _claim_write(handle, longer)]

    await write(handle, {own: writes})
    claim.until = longer.until


def _claim_write(handle: StoreHandle, claim: WorkClaim) -> KeyWrite:
    return KeyWrite(claim.key, "take", packed=pack_value(handle, claim.key, [claim.token, claim.tries]))


async def _read_tries(view: ScopeView, key: str) -> int:
    found = await view.item(key)
    value = 0 if found is None else found.value
    return int(value[1] if isinstance(value, list) else value)


def _timed_key(lane: str, what: str, time: int, name: str) -> str:
    return f"{lane}/{what}/{time:0{_DIGITS}d}/{name}"


# Handlers -------------------------------------------------------------------------------------------------------------


class HandlerCall(Suspension[Any]):
    """Calls a handler in the thread of a sync caller; awaits it for asyncio. A lease is extended meanwhile, if there is
    one."""

    def __init__(self, handler: Callable[[Any], Any], value: Any, heartbeat: Heartbeat | None = None) -> None:
        self._handler = handler
        self._value = value
        self._heartbeat = nullcontext() if heartbeat is None else heartbeat

    def wait(self) -> Any:
        with self._heartbeat:
            return self._handler(self._value)

    def watch(self) -> asyncio.Future[Any]:
        return asyncio.ensure_future(self._await())

    async def _await(self) -> Any:
        async with self._heartbeat:
            return await self._handler(self._value)


def heartbeat_of(handle: StoreHandle, lease: Duration, extend: Extend) -> Heartbeat:
    """Return what extends the lease of a piece of work."""
    return Heartbeat(handle.engine.context.heartbeats, parse_seconds(lease, "lease"), extend)
