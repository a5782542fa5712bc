"""Queues of work: each piece of work is held by one worker at a time, as long as its lease lasts.

A queue is a set of keys in a line's state. A piece of work is `ready`, is `held` by a worker until a time, or is to be
ready `later`, at a time. Keys with a time in them are in its order, so that due work comes first. A worker that holds
work has a token: one whose lease has ended finds that it is out of date.
"""

from __future__ import annotations

import asyncio
import secrets
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeAlias, TypeVar

from holdfast.backends.interface import Suspension
from holdfast.backends.runtime.drivers import arun, run
from holdfast.backends.runtime.fork_safety import reinit_after_fork
from holdfast.backends.runtime.threads import WorkerThread
from holdfast.engine import trace_context
from holdfast.engine.model.scopes import Scope
from holdfast.errors import ConflictError, HoldfastError, InvalidError
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
        self.id = claim.name
        self.value = record["value"]
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


# Heartbeats -----------------------------------------------------------------------------------------------------------
#
# Calling the handlers of work, and extending the lease of the work meanwhile.

Extend: TypeAlias = Callable[[], Coroutine[Any, Any, None]]
"""Extends a lease."""

_BEATS = 3
"""How often a lease is extended in the time that it lasts."""


class HandlerCall(Suspension[Any]):
    """Calls a handler in the thread of a sync caller; awaits it for asyncio."""

    def __init__(self, handler: Callable[[Any], Any], value: Any) -> None:
        self._handler = handler
        self._value = value

    def wait(self) -> Any:
        return self._handler(self._value)

    def watch(self) -> asyncio.Future[Any]:
        return asyncio.ensure_future(self._await())

    async def _await(self) -> Any:
        return await self._handler(self._value)


class Heartbeat:
    """Extends leases while handlers run: from a thread for sync callers, from the event loop for asyncio."""

    def __init__(self, lease: Duration) -> None:
        self.pause = parse_seconds(lease, "lease") / _BEATS

    def call(self, handler: Callable[[Any], Any], value: Any, extend: Extend) -> HandlerCall:
        """Call a handler, and extend its lease until it returns. None is being extended after that."""
        return _LeasedCall(handler, value, self.pause, extend)


class _LeasedCall(HandlerCall):
    def __init__(self, handler: Callable[[Any], Any], value: Any, pause: float, extend: Extend) -> None:
        super().__init__(handler, value)
        self.pause = pause
        self._extend = extend
        self.due = 0.0
        """When the lease is extended next, by the monotonic clock."""
        self._lock = threading.Lock()
        self._has_ended = False

    def wait(self) -> Any:
        _beats.add(self)
        try:
            return super().wait()
        finally:
            _beats.remove(self)
            with self._lock:  # waits for an extension in progress
                self._has_ended = True

    def beat(self) -> bool:
        """Extend the lease, in the thread. Returns False if another has it: the result will be refused."""
        with self._lock:
            if self._has_ended:
                return False
            try:
                run(self._extend())
            except ConflictError:
                return False
            except HoldfastError:
                pass  # there is time for another attempt, and the handler's outcome is another matter
        return True

    async def _await(self) -> Any:
        ended, loop, tasks = asyncio.Event(), asyncio.get_running_loop(), list[asyncio.Task[None]]()
        # Most handlers end before the first beat is due, and need no task for it.
        timer = loop.call_later(self.pause, lambda: tasks.append(loop.create_task(self._beat(ended))))
        try:
            return await super()._await()
        finally:
            timer.cancel()
            ended.set()
            for task in tasks:
                await task

    async def _beat(self, ended: asyncio.Event) -> None:
        while not ended.is_set():
            try:
                await arun(self._extend())
            except ConflictError:
                return  # the result will be refused
            except HoldfastError:
                pass  # there is time for another attempt, and the handler's outcome is another matter
            with suppress(TimeoutError):
                await asyncio.wait_for(ended.wait(), self.pause)


class _BeatThread:
    """The thread that extends the leases of all handlers of this process. It ends when there were none for a while."""

    def __init__(self) -> None:
        self.reinit_locks()
        reinit_after_fork(self)

    def reinit_locks(self) -> None:
        """Reinitialize in a forked child, which has none of the handlers."""
        self._changed = threading.Condition()  # it has an RLock: a signal handler may interrupt whoever has it
        self._calls: set[_LeasedCall] = set()
        self._wakes = 0.0
        """When the thread wakes up; 0 if there is none."""

    def add(self, call: _LeasedCall) -> None:
        """Extend the lease of a call from now on."""
        call.due = time.monotonic() + call.pause
        with self._changed:
            self._calls.add(call)
            if not self._wakes:
                self._wakes = call.due
                WorkerThread("holdfast-heartbeat", self._run)
            elif call.due < self._wakes:
                self._changed.notify()

    def remove(self, call: _LeasedCall) -> None:
        """Extend its lease no longer."""
        with self._changed:
            self._calls.discard(call)

    def _run(self) -> None:
        idle = False
        while True:
            with self._changed:
                now = time.monotonic()
                due = [call for call in self._calls if call.due <= now]
                if not due:
                    if not self._calls and idle:
                        self._wakes = 0.0
                        return
                    idle = not self._calls
                    self._wakes = min((call.due for call in self._calls), default=now + _IDLE)
                    self._changed.wait(self._wakes - now)
                    continue
            for call in due:
                if call.beat():
                    call.due = time.monotonic() + call.pause
                else:
                    self.remove(call)
            del due


_IDLE = 5.0
"""For how many seconds without a handler the thread stays."""

_beats = _BeatThread()
