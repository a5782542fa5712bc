"""The outbox of durable after-hooks: calls that are stored with the change, until they are delivered.

A call is a row. A process that is going to make it is its owner; a call without an owner is made by the first process
with the hook that finds it due. So a call survives the process that was to make it, and is made at least once: perhaps
a second time, if a process was killed before it recorded the call. A call that fails is due again after a pause; when
it is given up, its row is kept as failed, until somebody retries or discards it. The queue of after-hooks, durable or
not, is below.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextvars import Context
from datetime import datetime
from functools import partial
from hashlib import blake2b
from heapq import nsmallest
from typing import Any, Literal, NamedTuple, TypeAlias
from urllib.parse import quote, unquote

import msgspec

from holdfast._fields import Hidden
from holdfast._structs import decode_json
from holdfast.backends.interface import Change, Delete, Expect, Get, Put, Row, Scan
from holdfast.backends.paging import following
from holdfast.backends.runtime.process_identity import has_ended, process_identity
from holdfast.backends.runtime.threads import WorkerThread
from holdfast.backends.tables import LINKS, Key
from holdfast.engine import validation
from holdfast.engine.engine import Engine
from holdfast.engine.events import Event
from holdfast.engine.model.missing import MISSING
from holdfast.engine.model.packed_state import pack_name, unpack, unpack_state
from holdfast.engine.model.scopes import MARK
from holdfast.engine.namespaces import HOOKS
from holdfast.engine.pages import Page
from holdfast.engine.rng import rng
from holdfast.engine.row_format import Line, StepRef
from holdfast.engine.state_loader import LoadedState
from holdfast.engine.system_line import read_at
from holdfast.engine.trace_context import Trace
from holdfast.engine.types import to_datetime
from holdfast.errors import ConflictError, CorruptError, InvalidError, NotFoundError
from holdfast.hooks.context import HookedChange
from holdfast.hooks.hook import Hook, log

DeliveryState: TypeAlias = Literal["pending", "failed"]

PENDING: DeliveryState = "pending"
FAILED: DeliveryState = "failed"
"""The kinds of the rows."""

_STATES: tuple[DeliveryState, ...] = (FAILED, PENDING)

POINTS = frozenset({"state.set", "state.patch", "state.delete", "state.expire", "state.rollback", "checkpoint.save"})
"""The points of durable hooks: what they are called with is in the step of the change."""

MAX_AGE = 3 * 86400.0
"""For how many seconds a call that fails is made again, by default."""

_FIRST_PAUSE, _LONGEST_PAUSE = 10**9, 300 * 10**9
"""The pauses between two attempts, in nanoseconds: each is twice the one before."""

_PATIENCE = 600 * 10**9
"""For how long a process that is not known here is believed to run its calls, in nanoseconds."""

_OWN_PATIENCE = 60 * 10**9
"""After how long a call of this store that it neither runs nor waits for was given up, since too many waited."""

_NEVER = 1 << 63

_PAGE = 1000
_MAX_COUNTED = 10_000

_owners: set[str] = set()
"""The stores of this process that run calls."""


def new_owner() -> str:
    """Return the name of a store of this process that runs calls."""
    owner = f"{process_identity()}|{os.urandom(8).hex()}"
    _owners.add(owner)
    return owner


def end_owner(owner: str) -> None:
    """Note that a store of this process runs no more calls."""
    _owners.discard(owner)


class _Target(msgspec.Struct, frozen=True, array_like=True):
    """The column `target` of a row, as a JSON list."""

    owner: str
    point: str
    scope: str
    key: str
    actor: str
    correlation: str
    created: int
    attempts: int = 0
    error: str = ""


class UndeliveredCall(msgspec.Struct, frozen=True):
    """A call of a durable hook that was not delivered yet, or that was given up."""

    reference: str
    """Its name, for `Hooks.retry` and `Hooks.discard`."""
    hook: str
    state: DeliveryState
    point: Hidden[str]
    scope: str
    key: str
    actor: Hidden[str]
    correlation: Hidden[str]
    id: Hidden[str]
    """The id of the step of the change."""
    created: Hidden[datetime]
    attempts: int
    due: datetime | None
    """When it is made again; None if a process is going to make it now, or it was given up."""
    error: str
    """The class of the error of the last attempt; `NotFoundError` if the change is gone."""


class OutboxCall(NamedTuple):
    """A call in the outbox."""

    row: Row
    target: _Target

    @classmethod
    def of(cls, row: Row) -> OutboxCall:
        """Parse a row. Raises `CorruptError`."""
        try:
            return cls(row, decode_json(str(row.columns[1]), _Target))
        except msgspec.MsgspecError as error:
            raise CorruptError(f"a call of a hook cannot be decoded: {error}", where=f"row {row.key!r}") from error

    @property
    def hook(self) -> str:
        """The name of the hook."""
        return str(self.row.key[3])

    @property
    def time(self) -> int:
        """When it is due, or since when its owner has it."""
        return int(self.row.columns[0])

    @property
    def about(self) -> str:
        """A digest of the key of the change: calls of a hook that have the same may be in order."""
        return str(self.row.key[4]).partition(" ")[0]

    @property
    def id(self) -> str:
        """The id of the step of the change."""
        return str(self.row.key[4]).partition(" ")[2]

    def with_target(self, time: int, kind: str = PENDING, **fields: Any) -> OutboxCall:
        """Return it with another time, state and fields."""
        target = msgspec.structs.replace(self.target, **fields)
        key = (*self.row.key[:2], kind, *self.row.key[3:])
        return OutboxCall(Row(key, (time, msgspec.json.encode(target).decode())), target)

    def change_to(self, other: OutboxCall) -> list[Change]:
        """Return the changes that replace its row, unless it was changed meanwhile."""
        removed = [] if other.row.key == self.row.key else [Delete(LINKS, self.row.key)]
        return [Expect(LINKS, self.row.key, self.row.columns), *removed, Put(LINKS, other.row)]

    def ended(self) -> Delete:
        """Return the change that removes the row."""
        return Delete(LINKS, self.row.key)

    def released(self, due: int) -> OutboxCall:
        """Return it without an owner, to be made at a time."""
        return self.with_target(due, owner="")

    def after_failure(self, hook: Hook, error: str, now: int) -> OutboxCall:
        """Return it after an attempt that failed: to be made after a pause, or given up."""
        attempts, limit = self.target.attempts + 1, hook.max_attempts
        if (limit is not None and attempts >= limit) or now - self.target.created >= hook.max_age:
            return self.given_up(error, now, attempts)
        pause = min(_FIRST_PAUSE << min(attempts - 1, 32), _LONGEST_PAUSE)
        due = now + int(pause * (0.75 + 0.5 * rng.random()))  # not all at the same moment
        return self.with_target(due, owner="", attempts=attempts, error=error)

    def given_up(self, error: str, now: int, attempts: int) -> OutboxCall:
        """Return it as one that failed."""
        return self.with_target(now, FAILED, owner="", attempts=attempts, error=error)

    def is_left(self, owner: str, now: int, is_waiting: Callable[[Key], bool]) -> bool:
        """Return whether nobody is going to make the call now, so that an owner may: it is due and has no owner; or its
        process has ended, or is not known here and had its time; or this owner gave it up."""
        target = self.target
        if not target.owner:
            return self.time <= now or self.time - now > 2 * _LONGEST_PAUSE  # or the clock was set back
        if target.owner == owner:
            return abs(now - self.time) > _OWN_PATIENCE and not is_waiting(self.row.key)
        process = target.owner.rpartition("|")[0]
        if process == process_identity() and (process or target.owner in _owners):
            return target.owner not in _owners
        ended = has_ended(process)
        return abs(now - self.time) > _PATIENCE if ended is None else ended

    @property
    def is_failed(self) -> bool:
        """Whether it was given up."""
        return self.row.key[2] == FAILED

    def describe(self) -> UndeliveredCall:
        """Return the public description."""
        own = msgspec.structs.asdict(self.target)
        is_due = not own.pop("owner") and not self.is_failed
        return UndeliveredCall(
            **own | {"created": to_datetime(self.target.created)},
            reference=f"{quote(str(self.row.key[4]), safe='')}/{quote(self.hook, safe='')}",
            hook=self.hook,
            state=FAILED if self.is_failed else PENDING,
            id=self.id,
            due=to_datetime(self.time) if is_due else None,
        )


def new_calls(
    tenant: str, owner: str, hooks: Iterable[Hook], subject: HookedChange, id: str, now: int
) -> list[OutboxCall]:
    """Return the calls of durable hooks for a change, to be stored with its step, which has this id."""
    target = _Target(
        owner, subject.point, subject.scope, subject.key, subject.actor, subject.trace.correlation, created=now
    )
    columns = (now, msgspec.json.encode(target).decode())
    kind = subject.point.partition(".")[0]  # a thread may have the name of a scope
    about = blake2b(f"{kind}\0{subject.scope}\0{subject.key}".encode(), digest_size=8).hexdigest()
    return [
        OutboxCall(Row((tenant, HOOKS, PENDING, hook.name, f"{about} {id}"), columns), target)
        for hook in hooks
        if hook.durable
    ]


# Making them ------------------------------------------------------------------------------------------------------


async def claim_calls(
    engine: Engine, tenant: str, hook: Hook, owner: str, is_waiting: Callable[[Key], bool], most: int
) -> list[OutboxCall]:
    """Return calls of a hook that nobody is going to make, as those of this owner, of which `is_waiting` says whether
    it is going to: the first that are due, in the order of their changes. Each is given to one only."""
    now, left, times = engine.context.clock(), list[OutboxCall](), dict[str, int]()
    async for calls in _pages(engine, tenant, (PENDING, hook.name)):
        for call in calls:  # those of a key come one after another, in the order of their changes
            is_left = call.is_left(owner, now, is_waiting)
            if hook.ordered:
                times[call.about] = max(times.get(call.about, 0), call.time if is_left else _NEVER)
                is_left = times[call.about] < _NEVER
            if is_left:
                left.append(call)
        left = nsmallest(most, left, key=lambda call: (max(call.time, times.get(call.about, 0)), call.id))
    found = []
    for call in sorted(left, key=lambda call: call.id):
        claimed = call.with_target(now, owner=owner)
        if await engine.context.backend.apply(call.change_to(claimed)) is None:
            found.append(claimed)
    return found


async def earlier_calls(engine: Engine, call: OutboxCall) -> list[Key]:
    """Return the rows of calls of a hook for earlier changes of the same key."""
    prefix, own = call.row.key[:4], str(call.row.key[4])
    scan = Scan(LINKS, prefix, (f"{call.about} ",), (own,), bodies=False)
    if engine.context.rows.hides_names:  # which are then in another order
        scan = Scan(LINKS, prefix)
    (rows,) = await engine.context.backend.read([scan])
    return [row.key for row in rows if f"{call.about} " <= str(row.key[4]) < own]


async def load_subject(engine: Engine, tenant: str, call: OutboxCall) -> HookedChange | None:
    """Return what a hook is called with, as it was when the change was made; None if the change is gone, or cannot be
    read any more."""
    target = call.target
    is_checkpoint = target.point.startswith("checkpoint.")
    line = Line(tenant, target.scope if is_checkpoint else MARK + target.scope)
    codec = engine.context.codec

    async def look(_: StepRef | None, loaded: LoadedState | None) -> Any:
        if loaded is None:
            return MISSING
        if is_checkpoint:
            return await engine.states.resolve_pointers(line, await engine.states.whole(line, loaded))
        entry = await engine.entries.find(line, loaded, pack_name(target.key))
        return MISSING if entry is None else entry.value

    try:
        point = await engine.lines.find(line, call.id)
        stored = await read_at(engine, line, point, look)
    except (NotFoundError, CorruptError):
        return None
    load = partial(unpack_state if is_checkpoint else unpack, codec)
    subject = HookedChange(
        target.point,
        target.scope,
        target.key,
        Trace(target.correlation, call.id),
        time.perf_counter_ns(),
        stored,
        load,
        actor=target.actor,
        metadata={"kind": point.kind} if is_checkpoint else {},
    )
    subject.id, subject.is_repeated = call.id, True
    subject.version = 0 if stored is MISSING else (point.depth if is_checkpoint else point.seq) + 1
    return subject


# For people -------------------------------------------------------------------------------------------------------


async def list_undelivered(
    engine: Engine, tenant: str, hook: str | None, state: str | None, limit: int, cursor: str | None
) -> Page[UndeliveredCall]:
    """List the calls that were not delivered: those that were given up, then those that are to be made."""
    if state is not None and state not in _STATES:
        raise InvalidError(f"the state of undelivered calls must be pending or failed, not {ascii(state)[:40]}")
    states: Sequence[str] = _STATES if state is None else (state,)
    start: Key = ()
    if cursor is not None:
        kind, _, rest = validation.cursor_text(cursor).partition(" ")
        if kind not in states:
            raise validation.cursor_error(cursor)
        states, start = states[states.index(kind) :], _parse_reference(rest)
    found: list[OutboxCall] = []
    for kind in states:
        prefix = (kind,) if hook is None else (kind, hook)
        after = () if not start else following(start[len(prefix) - 1 :])
        async for calls in _pages(engine, tenant, prefix, after):
            found += calls
            if len(found) > limit:
                break
        start = ()
    described = [call.describe() for call in found[:limit]]
    more = 0 < limit < len(found)
    return Page(described, f"{described[-1].state} {described[-1].reference}" if more else None)


async def retry_call(engine: Engine, tenant: str, reference: str) -> None:
    """Have a call that was given up, or that waits, made soon, and its attempts counted anew."""
    call = await _find(engine, tenant, reference)
    if call.target.owner:
        raise ConflictError("a process is about to make the call", where=reference[:80], hint="List them again")
    now = engine.context.clock()
    again = call.with_target(now, owner="", attempts=0, created=now)
    if await engine.context.backend.apply(call.change_to(again)) is not None:
        raise ConflictError("the call was made or changed just now", where=reference[:80], hint="List them again")


async def retry_failed(engine: Engine, tenant: str, hook: str | None) -> int:
    """Have all calls made soon that were given up. Returns their number."""
    count, now = 0, engine.context.clock()
    async for calls in _pages(engine, tenant, (FAILED,) if hook is None else (FAILED, hook)):
        for call in calls:
            again = call.with_target(now, owner="", attempts=0, created=now)
            count += await engine.context.backend.apply(call.change_to(again)) is None
    return count


async def discard_call(engine: Engine, tenant: str, reference: str) -> None:
    """Remove a call that is not to be made."""
    call = await _find(engine, tenant, reference)
    if await engine.context.backend.apply([Expect(LINKS, call.row.key, call.row.columns), call.ended()]) is not None:
        raise ConflictError("the call was made or changed just now", where=reference[:80], hint="List them again")


async def count_failed(engine: Engine, tenant: str) -> dict[str, int]:
    """Return how many calls were given up, by hook. Of very many, only some are counted."""
    query = Scan(LINKS, (tenant, HOOKS, FAILED), limit=_MAX_COUNTED)
    (rows,) = await engine.context.backend.read([query])
    counts: dict[str, int] = {}
    for row in rows:
        counts[str(row.key[3])] = counts.get(str(row.key[3]), 0) + 1
    return counts


async def delete_calls(engine: Engine, tenant: str, is_about: Callable[[str, str, int], bool]) -> int:
    """Delete the calls for whose line, actor and time a function returns True. Returns their number."""
    count = 0
    for kind in _STATES:
        async for calls in _pages(engine, tenant, (kind,)):
            for call in calls:
                is_checkpoint = call.target.point.startswith("checkpoint.")
                place = call.target.scope if is_checkpoint else MARK + call.target.scope
                if is_about(place, call.target.actor, call.target.created):
                    await engine.context.backend.apply([call.ended()])
                    count += 1
    return count


async def _find(engine: Engine, tenant: str, reference: str) -> OutboxCall:
    hook, other = _parse_reference(reference)
    keys = [(tenant, HOOKS, kind, hook, other) for kind in _STATES]
    (rows,) = await engine.context.backend.read([Get(LINKS, keys)])
    if not rows:
        raise NotFoundError(
            "there is no such undelivered call", where=reference[:80], hint="It may have been made; list them again"
        )
    return OutboxCall.of(rows[0])


def _parse_reference(reference: str) -> tuple[str, str]:
    other, between, hook = str(reference).partition("/")
    if not (other and between and hook):
        raise InvalidError(
            "this is not a reference to an undelivered call",
            where=ascii(reference)[:80],
            hint="Pass the reference from a listing",
        )
    return unquote(hook), unquote(other)


async def _pages(engine: Engine, tenant: str, prefix: Key, start: Key = ()) -> AsyncIterator[list[OutboxCall]]:
    """Yield the calls whose rows have a kind, or a kind and a hook, many at a time."""
    scan = Scan(LINKS, (tenant, HOOKS, *prefix), start, limit=_PAGE)
    while True:
        (rows,) = await engine.context.backend.read([scan])
        yield [OutboxCall.of(row) for row in rows]
        if len(rows) < _PAGE:
            return
        scan = scan._replace(start=following(rows[-1].key[2 + len(prefix) :]))


# After queue ----------------------------------------------------------------------------------------------------------
#
# The queue of after-hooks: each in order within a scope, in parallel for different scopes, and never in the way of a
# writer or of another hook.
#
# The queue is bounded: when it is full, the oldest hook is dropped, counted and reported. Executions are recorded in
# batches, by steps of a system line, once a second at most: a process that is killed loses what was to be recorded in
# the second before, and the hooks that were still waiting, unless they are durable.

MAX_WAITING = 10_000
"""The maximum number of waiting executions."""

_RECORD_INTERVAL = 1.0
"""The seconds between two records of executions."""

_MAX_ROWS = 1000
"""The maximum number of executions in a record; as many are recorded at once."""

_MAX_FAILURES = 10
"""How often recording is attempted."""


class QueuedHook:
    """An after-hook to run."""

    __slots__ = ("call", "context", "finished", "hook", "subject")

    def __init__(self, hook: Hook, subject: HookedChange, context: Context, call: OutboxCall | None = None) -> None:
        self.call: OutboxCall | None = call
        """The call in the outbox, if it is durable."""
        self.hook: Hook = hook
        self.subject: HookedChange = subject
        self.context: Context = context
        self.finished: bool = False
        """Whether it was run or dropped."""


class Outcome(NamedTuple):
    """The outcome of an execution, as it is recorded."""

    event: Event | None
    """None if it was not called."""
    call: OutboxCall | None = None
    """The call in the outbox, if it is durable."""
    next: OutboxCall | None = None
    """The call as it is stored from now on; None if it was delivered."""


class AfterQueue:
    """The waiting after-hooks, and the executions that are not recorded yet."""

    waiting: int

    def __init__(
        self,
        run: Callable[[QueuedHook], Outcome],
        write: Callable[[Sequence[Outcome]], None],
        most: int = MAX_WAITING,
        every: float = _RECORD_INTERVAL,
    ) -> None:
        self._run = run
        self._write = write
        self._max_waiting = most
        self._interval = every
        self.dropped: int = 0
        """The number of hooks dropped because too many were waiting."""
        self.reinit_locks()

    def reinit_locks(self) -> None:
        """Reinitialize in a forked child. Waiting hooks are the parent's to run."""
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._all: deque[QueuedHook] = deque()
        self._queues: dict[tuple[str, str], deque[QueuedHook]] = {}
        """The waiting calls by the name of the hook and the scope."""
        self.waiting = 0
        """How many wait or are at work."""
        self._unrecorded: list[Outcome] = []
        self._pending: set[Key] = set()
        """The rows of durable calls that wait, are at work, or are not recorded yet."""
        self._delivered: set[Key] = set()
        """The rows of calls that are only to be recorded."""
        self._writing = False
        self._draining = False
        self._closed = False
        self._recorder: WorkerThread | None = None

    # Running ----------------------------------------------------------------------------------------------------

    def put(self, job: QueuedHook) -> None:
        """Run a hook after its calls in the same scope that were put before."""
        key = (job.hook.name, job.subject.scope)
        with self._changed:
            if self.waiting >= self._max_waiting:
                self._drop()
            self._hold(job.call)
            self.waiting += 1
            self._all.append(job)
            while self._all and self._all[0].finished:
                self._all.popleft()
            queue = self._queues.get(key)
            if queue is not None:
                queue.append(job)
                return
            self._queues[key] = deque((job,))
        job.hook.runner.after_workers.start(lambda: self._serve(key))

    def _drop(self) -> None:
        """Drop the oldest waiting hook. Running ones are no longer in the queue."""
        while self._all:
            oldest = self._all.popleft()
            if not oldest.finished:
                oldest.finished = True
                self._let_go(oldest.call)
                oldest.hook.dropped += 1
                self.waiting -= 1
                self.dropped += 1
                if self.dropped & (self.dropped - 1) == 0:  # the first, the second, the fourth and so on
                    log.error("too many after-hooks wait: %d were dropped so far", self.dropped)
                return

    @property
    def capacity(self) -> int:
        """How many more calls can wait."""
        return max(0, self._max_waiting - self.waiting)

    def is_waiting(self, row: Key) -> bool:
        """Return whether the durable call with this row waits, is at work, or is not recorded yet."""
        with self._lock:
            return row in self._pending

    def is_delivered(self, row: Key) -> bool:
        """Return whether the durable call with this row was delivered, and that is not recorded yet."""
        with self._lock:
            return row in self._delivered

    def _hold(self, call: OutboxCall | None) -> None:
        if call is not None:
            self._pending.add(call.row.key)

    def _let_go(self, call: OutboxCall | None) -> None:
        if call is not None:
            self._pending.discard(call.row.key)
            self._delivered.discard(call.row.key)

    def _serve(self, key: tuple[str, str]) -> None:
        """Run the waiting calls of a hook in a scope, as long as there are any."""
        while True:
            with self._changed:
                queue = self._queues.get(key)
                while queue and queue[0].finished:
                    queue.popleft()
                if not queue:
                    self._queues.pop(key, None)
                    self._changed.notify_all()
                    return
                job = queue.popleft()
                job.finished = True
            outcome = None
            try:
                outcome = self._run(job)
            except Exception as error:  # noqa: BLE001 - it is reported, and the others have their turn
                log.error("an after-hook could not be run", exc_info=error)
            finally:
                with self._changed:
                    self.waiting -= 1
                    if outcome is None:
                        self._let_go(job.call)
                    else:
                        self.record(outcome)
                    if not self.waiting:
                        self._changed.notify_all()

    # Recording --------------------------------------------------------------------------------------------------

    def record(self, outcome: Outcome) -> None:
        """Record an execution with the next batch."""
        with self._lock:  # the condition's own, which takes fewer calls
            self._hold(outcome.call)
            if outcome.call is not None and outcome.next is None:
                self._delivered.add(outcome.call.row.key)
            self._unrecorded.append(outcome)
            if self._recorder is None and not self._closed:
                self._recorder = WorkerThread("holdfast-hook-rows", self._record_loop)
            elif len(self._unrecorded) in (1, _MAX_ROWS):
                self._changed.notify_all()

    def _record_loop(self) -> None:
        """Record executions from time to time."""
        failed = 0
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._unrecorded or self._closed, self._interval)
                if not self._unrecorded:
                    self._recorder = None
                    return
                self._changed.wait_for(self._is_due, None if self._closed else self._interval)
                records, self._unrecorded = self._unrecorded[:_MAX_ROWS], self._unrecorded[_MAX_ROWS:]
                self._writing = True
            try:
                self._write(records)
                failed = 0
            except Exception as error:  # noqa: BLE001 - it is reported, and tried again
                failed += 1
                if failed < _MAX_FAILURES and not self._closed:
                    log.warning("executions of hooks are not recorded yet", exc_info=error)
                    with self._changed:
                        self._unrecorded = [*records, *self._unrecorded]
                else:
                    log.error("%d executions of hooks could not be recorded", len(records), exc_info=error)
                    failed = 0
            finally:
                with self._changed:
                    self._writing = False
                    if not failed:
                        for each in records:
                            self._let_go(each.call)
                    self._changed.notify_all()
            if failed:
                time.sleep(min(self._interval, 0.1 * failed))

    def _is_due(self) -> bool:
        return (self._draining and not self.waiting) or self._closed or len(self._unrecorded) >= _MAX_ROWS

    # Ending -----------------------------------------------------------------------------------------------------

    def drain(self, timeout: float) -> bool:
        """Wait until all hooks have run and are recorded. False if they have not within the timeout."""
        with self._changed:
            self._draining = True
            self._changed.notify_all()
            try:
                return self._changed.wait_for(self._is_idle, timeout)
            finally:
                self._draining = False

    def _is_idle(self) -> bool:
        return not (self._queues or self.waiting or self._unrecorded or self._writing)

    def close(self) -> None:
        """End all threads, and drop the hooks that still wait."""
        with self._changed:
            for job in self._all:
                if not job.finished:
                    job.finished = True
                    job.hook.dropped += 1
                    self.waiting -= 1
                    self.dropped += 1
            self._all.clear()
            self._closed = True
            self._changed.notify_all()
