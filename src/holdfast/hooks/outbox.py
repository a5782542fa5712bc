"""The outbox of durable after-hooks: calls that are stored with the change, until they are delivered.

A call is a row. A process that is going to make it is its owner; a call without an owner is made by the first process
with the hook that finds it due. So a call survives the process that was to make it, and is made at least once: perhaps
a second time, if a process was killed before it recorded the call. A call that fails is due again after a pause; when
it is given up, its row is kept as failed, until somebody retries or discards it.
"""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from datetime import datetime
from functools import partial
from hashlib import blake2b
from heapq import nsmallest
from typing import Any, Literal, NamedTuple, TypeAlias
from urllib.parse import quote, unquote

import msgspec

from holdfast._fields import Hidden
from holdfast.backends.interface import Change, Delete, Expect, Get, Put, Row, Scan
from holdfast.backends.paging import following
from holdfast.backends.runtime.process_identity import has_ended, process_identity
from holdfast.backends.tables import LINKS, Key
from holdfast.engine import validation
from holdfast.engine.engine import Engine
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
from holdfast.errors import ConflictError, CorruptError, InvalidError, NotFoundError
from holdfast.hooks.context import HookedChange, to_datetime
from holdfast.hooks.hook import Hook

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


class UndeliveredCall(NamedTuple):
    """A call of a durable hook that was not delivered yet, or that was given up."""

    reference: str
    """What names it, for `Hooks.retry` and `Hooks.discard`."""
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
            return cls(row, msgspec.json.decode(str(row.columns[1]), type=_Target))
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
        """What stands for the key of the change: calls of a hook that have the same may be in order."""
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
        target, state = self.target, FAILED if self.is_failed else PENDING
        return UndeliveredCall(
            f"{quote(str(self.row.key[4]), safe='')}/{quote(self.hook, safe='')}",
            self.hook,
            state,
            target.point,
            target.scope,
            target.key,
            target.actor,
            target.correlation,
            self.id,
            to_datetime(target.created),
            target.attempts,
            None if state == FAILED or target.owner else to_datetime(self.time),
            target.error,
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
        raise InvalidError(f"an undelivered call is pending or failed, not {ascii(state)[:40]}")
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
    return Page(
        described,
        f"{described[-1].state} {described[-1].reference}" if more else None,
        lambda cursor: list_undelivered(engine, tenant, hook, state, limit, cursor),
    )


async def retry_call(engine: Engine, tenant: str, reference: str) -> None:
    """Have a call that was given up, or that waits, made soon, and its attempts counted anew."""
    call = await _find(engine, tenant, reference)
    if call.target.owner:
        raise ConflictError("a process is going to make the call", where=reference[:80], hint="List them again")
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
            "this is no reference of an undelivered call", where=ascii(reference)[:80], hint="Take that of a listing"
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
