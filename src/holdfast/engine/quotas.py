"""Quotas: how much a tenant may store.

The limits of a tenant are a row of the store, and so is a ledger of what is used: all processes respect them. A process
that saves takes an *allotment* from the ledger first, and then counts its saves against it in memory. So most saves
cost nothing more, and a tenant is never over its limits, however many processes write. An allotment is small at first
and near a limit, and ends after a minute: what others cannot use of the limits is little.

The ledger is an upper bound. Where it leaves no room, the tenant's lines are counted, and only then a save is refused.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import NamedTuple

import msgspec
from msgspec.structs import asdict, astuple

from holdfast.backends.interface import Backend, Batch, Create, Delete, Ensure, Expect, Get, Put, Query, Row, Scan
from holdfast.backends.runtime.fork_safety import reinit_after_fork
from holdfast.backends.tables import BRANCHES, FOLDS, LINES, NODES, OBJECTS, REFS, STEPS, WRITES, Key
from holdfast.engine.namespaces import CONTENT_KINDS, is_thread, line_kind, root_of
from holdfast.engine.optimistic import Attempts
from holdfast.engine.row_format import Line, StepRef, info_of
from holdfast.errors import HoldfastError, OutcomeUnknownError, QuotaError, UnavailableError

_SECOND = 10**9
_RECHECK_NS = 60 * _SECOND
"""How long the limits of a tenant are cached, and how long an allotment is used."""
_EXPIRY_NS = 2 * _RECHECK_NS
"""After what time others take an allotment for used. Later than it is, since clocks differ and saves take time."""

_SHARE = 64
"""The part of what is left that an allotment has at most: one of so many."""
_MAX_WAITS = 100
"""How often a save that finds no room waits for others of this process."""
_QUICK_COUNT = 2 * _SECOND
_REST = 10
"""A count that takes longer than this is repeated only after so many times its duration."""
_PAGE = 256
"""How many lines are counted at a time."""

_SIZED = (STEPS, FOLDS, NODES, OBJECTS, WRITES)
"""Tables whose bodies are counted."""


_ROW_CHANGES = (Create, Put, Ensure)


class Quota(msgspec.Struct, frozen=True):
    """The most that a tenant may store; None where there is no limit."""

    bytes: int | None = None
    threads: int | None = None
    steps: int | None = None


class QuotaUsage(msgspec.Struct, frozen=True):
    """The usage of a tenant. `bytes` is the size of steps, folded states and large values, as `ThreadInfo.bytes` counts
    it, `threads` the number of threads, `steps` that of checkpoints, and of changes of state and of agents."""

    bytes: int = 0
    threads: int = 0
    steps: int = 0

    def plus(self, *others: QuotaUsage) -> QuotaUsage:
        """Return the sum."""
        return QuotaUsage(*map(sum, zip(*map(astuple, (self, *others)), strict=True)))

    def minus(self, other: QuotaUsage) -> QuotaUsage:
        """Return the difference."""
        return QuotaUsage(*(one - two for one, two in zip(astuple(self), astuple(other), strict=True)))

    def covers(self, other: QuotaUsage) -> bool:
        """Return whether it is enough for another amount."""
        return all(one >= two for one, two in zip(astuple(self), astuple(other), strict=True) if two)


_LARGEST = QuotaUsage(4 << 20, 16, 256)
"""The largest allotment."""


class QuotaReport(msgspec.Struct, frozen=True):
    """The limits of a tenant, and what it uses of them."""

    limits: Quota
    used: QuotaUsage


class _Ledger(NamedTuple):
    """The used part of a tenant's limits, at most, without what this process has charged to its last allotment."""

    used: QuotaUsage
    allotments: Mapping[str, tuple[QuotaUsage, int]]
    """The allotments of other processes: the amounts, and when they were taken."""
    counted: int
    """When the lines were counted last."""

    @classmethod
    def of(cls, row: Row, process: str, now: int) -> _Ledger:
        """Read a ledger. Allotments that have expired count as used."""
        content = json.loads(str(row.columns[0]))
        used, allotments = QuotaUsage(*content["used"]), {}
        for name, (*amount, taken) in content["allotments"].items():
            if name != process and abs(now - taken) < _EXPIRY_NS:
                allotments[name] = QuotaUsage(*amount), taken
            elif name != process:
                used = used.plus(QuotaUsage(*amount))
        return cls(used, allotments, int(row.columns[1]))

    def add(self, used: QuotaUsage, process: str, amount: QuotaUsage, now: int) -> _Ledger:
        """Return the ledger with more use, and with an allotment in place of another one of the process."""
        return self._replace(used=self.used.plus(used), allotments={**self.allotments, process: (amount, now)})

    def row(self, tenant: str) -> Row:
        """Return the row of a ledger."""
        allotments = {name: [*astuple(amount), taken] for name, (amount, taken) in self.allotments.items()}
        used = json.dumps({"used": astuple(self.used), "allotments": allotments})
        return Row(_ledger_key(tenant), (used, self.counted))

    def room(self, limits: Quota) -> QuotaUsage:
        """Return what is left of the limits."""
        used = self.used.plus(*(amount for amount, _ in self.allotments.values()))
        left = zip(astuple(limits), astuple(used), strict=True)
        return QuotaUsage(*(0 if most is None else most - count for most, count in left))


class _TenantState:
    """A tenant's limits as this process knows them, and its allotment."""

    def __init__(self) -> None:
        self.limits: Quota | None = None
        self.set_at = 0
        self.checked_at = 0
        self.left = QuotaUsage()
        """The rest of the allotment."""
        self.amount = QuotaUsage()
        self.usable_until = 0
        self.number = 0
        """Counts the allotments. What is charged to an earlier one is not given back."""
        self.unsettled = QuotaUsage()
        """The charges to allotments that are not in the ledger yet."""
        self.in_flight = QuotaUsage()
        """The charges for batches without an outcome yet."""
        self.waiting = QuotaUsage()
        """The needs of the saves that wait for an allotment."""
        self.growth = 1
        self.counted_at = self.count_took = 0

    def end_allotment(self) -> None:
        """Charge nothing more to the allotment."""
        self.unsettled = self.unsettled.plus(self.amount.minus(self.left))
        self.left = self.amount = QuotaUsage()

    def start_allotment(self, number: int, amount: QuotaUsage, settled: QuotaUsage, now: int) -> None:
        """Use a new allotment, which was taken when that of a number was ended and its charges settled."""
        if number == self.number:
            self.number += 1
            self.unsettled = self.unsettled.minus(settled)
            self.left = self.amount = amount
            self.usable_until = now + _RECHECK_NS
            self.growth = min(2 * self.growth, 1 << 20)


class QuotaLimiter:
    """Applies batches within the limits of tenants."""

    def __init__(self, backend: Backend, clock: Callable[[], int] = time.time_ns) -> None:
        """`clock` is not that of the steps, whose times are to depend on nothing but the steps."""
        self._backend = backend
        self._clock = clock
        self._tenants: dict[str, _TenantState] = {}
        self.reinit_locks()
        reinit_after_fork(self)

    def reinit_locks(self) -> None:
        """A forked child is a process of its own, without an allotment."""
        self._lock = threading.Lock()
        self._process = os.urandom(8).hex()
        self._tenants = {}

    def note(self, tenant: str, row: Row | None) -> None:
        """Cache the limits of a tenant."""
        state = self._tenants.setdefault(tenant, _TenantState())
        state.limits = None if row is None else Quota(**json.loads(str(row.columns[0])))
        state.set_at = 0 if row is None else int(row.columns[1])
        state.checked_at = self._clock()

    def apply(self, batch: Batch) -> Awaitable[int | None]:
        """Apply a batch, which is about one tenant. `QuotaError` if that may not store as much; then nothing is
        applied."""
        if not batch:
            return self._backend.apply(batch)
        change = batch[0]
        key = change.row.key if isinstance(change, _ROW_CHANGES) else change[1]
        state = self._tenants.get(key[0])  # type: ignore[arg-type]
        if state is None or state.limits is not None or abs(self._clock() - state.checked_at) > _RECHECK_NS:
            return self._apply(str(key[0]), batch)
        return self._backend.apply(batch)  # the usual case, which costs next to nothing

    async def _apply(self, tenant: str, batch: Batch) -> int | None:
        state = self._tenants.get(tenant)
        if state is None or abs(self._clock() - state.checked_at) > _RECHECK_NS:
            (rows,) = await self._backend.read([Get(REFS, [quota_key(tenant)])])
            self.note(tenant, rows[0] if rows else None)
            state = self._tenants[tenant]
        if state.limits is None or not any(astuple(cost := _cost(batch, state.limits))):
            return await self._backend.apply(batch)
        number = await self._charge(tenant, state, cost)
        refund = False
        try:
            failed = await self._backend.apply(batch)
            refund = failed is not None
        except HoldfastError as error:
            refund = not isinstance(error, OutcomeUnknownError | UnavailableError)
            raise
        finally:
            with self._lock:
                state.in_flight = state.in_flight.minus(cost)
                if refund and number == state.number:
                    state.left = state.left.plus(cost)
        return failed

    async def set_limits(self, tenant: str, limits: Quota) -> None:
        """Set the limits of a tenant. Other processes respect them after a minute at most."""
        if limits == Quota():
            await self._backend.apply([Delete(REFS, quota_key(tenant)), Delete(REFS, _ledger_key(tenant))])
            self.note(tenant, None)
            return
        row = Row(quota_key(tenant), (json.dumps(asdict(limits)), self._clock()))
        await self._backend.apply([Put(REFS, row)])
        self.note(tenant, row)

    async def report(self, tenant: str) -> QuotaReport:
        """Count what a tenant stores."""
        (rows,) = await self._backend.read([Get(REFS, [quota_key(tenant)])])
        self.note(tenant, rows[0] if rows else None)
        return QuotaReport(self._tenants[tenant].limits or Quota(), await self._count(tenant))

    async def _charge(self, tenant: str, state: _TenantState, cost: QuotaUsage) -> int:
        """Charge a batch to the allotment. Returns the allotment's number."""
        with self._lock:
            state.waiting = state.waiting.plus(cost)
        try:
            attempts = Attempts("charging a quota", f"tenant {tenant!r}")
            while True:
                attempt = await attempts.begin()
                with self._lock:
                    if state.limits is None or (self._clock() < state.usable_until and state.left.covers(cost)):
                        state.left = state.left.minus(cost)
                        state.in_flight = state.in_flight.plus(cost)
                        return state.number
                try:
                    await self._take_allotment(tenant, state, cost)
                except QuotaError:
                    if attempt == _MAX_WAITS or not any(astuple(state.in_flight)):
                        raise
                    # Saves of this process may yet fail, and leave room.
        finally:
            with self._lock:
                state.waiting = state.waiting.minus(cost)

    async def _take_allotment(self, tenant: str, state: _TenantState, cost: QuotaUsage) -> None:
        """Take an allotment from the ledger, if nobody changes that meanwhile. `QuotaError` if there is no room."""
        quotas, ledgers = await self._backend.read([Get(REFS, [quota_key(tenant)]), Get(REFS, [_ledger_key(tenant)])])
        self.note(tenant, quotas[0] if quotas else None)
        limits = state.limits
        if limits is None:
            return
        now = self._clock()
        with self._lock:
            state.end_allotment()
            number, in_flight = state.number, state.in_flight
            done = state.unsettled.minus(in_flight)
        ledger = _Ledger.of(ledgers[0], self._process, now) if ledgers else _Ledger(QuotaUsage(), {}, 0)
        # Counted once more when all writers know the limits: some may have saved without respecting them.
        is_due = not ledgers or ledger.counted < state.set_at + _EXPIRY_NS <= now
        # What is in flight stays with the allotment: who counts the lines meanwhile may not find it.
        settled = ledger.add(done, self._process, in_flight, now)
        if is_due or (not settled.room(limits).covers(cost) and self._may_count(state, now)):
            counted = ledger._replace(used=await self._timed_count(tenant, state), counted=now)
            now = self._clock()  # that may have taken long
            settled = counted.add(QuotaUsage(), self._process, in_flight, now)
        room = settled.room(limits)
        amount = self._amount(state, room, cost, now) if room.covers(cost) else None
        new = settled.add(QuotaUsage(), self._process, in_flight.plus(amount or QuotaUsage()), now).row(tenant)
        expected = ledgers[0].columns if ledgers else None
        if await self._backend.apply([Expect(REFS, new.key, expected), Put(REFS, new)]) is not None:
            return  # nothing is refused by a ledger that has changed since
        with self._lock:
            state.start_allotment(number, amount or QuotaUsage(), done, now)
        if amount is None:
            raise _quota_error(tenant, limits, room, cost)

    def _amount(self, state: _TenantState, room: QuotaUsage, cost: QuotaUsage, now: int) -> QuotaUsage:
        """Return the amount of an allotment: for all that wait, and more if there were others just before."""
        if now > state.usable_until + _RECHECK_NS:
            state.growth = 1
        amounts = []
        for need, left, waiting, largest in zip(*map(astuple, (cost, room, state.waiting, _LARGEST)), strict=True):
            ahead = min(largest, left // _SHARE, state.growth * need)
            amounts.append(max(need, min(left, max(waiting, ahead))))
        return QuotaUsage(*amounts)

    def _may_count(self, state: _TenantState, now: int) -> bool:
        """Return whether counting again does not take most of the time."""
        return state.count_took < _QUICK_COUNT or abs(now - state.counted_at) > _REST * state.count_took

    async def _timed_count(self, tenant: str, state: _TenantState) -> QuotaUsage:
        start = self._clock()
        used = await self._count(tenant)
        state.counted_at = self._clock()
        state.count_took = state.counted_at - start
        return used

    async def _count(self, tenant: str) -> QuotaUsage:
        """Count what a tenant stores: in system lines nothing."""
        total, start = QuotaUsage(), ""
        while True:
            (rows,) = await self._backend.read([Scan(LINES, (tenant,), (start,), limit=_PAGE, bodies=False)])
            lines = [(Line(tenant, name), info_of(row)) for row in rows if _is_counted(name := str(row.key[1]))]
            total = total.plus(*await self._sizes([line for line, _ in lines]))
            total = total.minus(QuotaUsage(steps=sum(info.pruned for _, info in lines)))
            if len(rows) < _PAGE:
                return total
            start = str(rows[-1].key[1]) + "\0"

    async def _sizes(self, lines: Sequence[Line]) -> list[QuotaUsage]:
        """Return the size of each branch of some lines, also of pruned steps."""
        branches = await self._backend.read([Scan(BRANCHES, tuple(line)) for line in lines])
        heads: list[Query] = [
            Scan(STEPS, (*line, number), reverse=True, limit=1, bodies=False)
            for line, rows in zip(lines, branches, strict=True)
            for number in (0, *(row.key[2] for row in rows))
        ]
        points = [StepRef.of(row) for rows in await self._backend.read(heads) for row in rows]
        return [
            *(QuotaUsage(point.size, steps=point.seq + 1) for point in points),
            *(QuotaUsage(threads=_is_root(line)) for line in lines),
        ]


def quota_key(tenant: str) -> Key:
    """Return the key of the reference with the limits of a tenant."""
    return (tenant, "", "setting", "quota", "")


def _ledger_key(tenant: str) -> Key:
    return (tenant, "", "ledger", "quota", "")


def _is_counted(name: str) -> bool:
    """Return whether a line is a user's, and not one of the system."""
    return line_kind(name) in CONTENT_KINDS


def _is_root(line: Line) -> bool:
    """Return whether a line is a thread's own: its namespaces are not counted as threads."""
    return is_thread(line.name) and root_of(line) == line


def _cost(batch: Batch, limits: Quota) -> QuotaUsage:
    """Return what a batch adds at most, of what is limited."""
    size = threads = steps = 0
    counted: dict[str, bool] = {}
    for change in batch:
        if not isinstance(change, _ROW_CHANGES):
            continue
        name = str(change.row.key[1])
        if name not in counted:
            counted[name] = _is_counted(name)
        if not counted[name]:
            continue
        if change.space in _SIZED:
            size += len(change.row.body)
            steps += change.space is STEPS and change.row.columns[0] != ""
        elif change.space is LINES and not isinstance(change, Put):
            threads += _is_root(Line(str(change.row.key[0]), name))
    return QuotaUsage(
        *(0 if most is None else count for most, count in zip(astuple(limits), (size, threads, steps), strict=True))
    )


def _quota_error(tenant: str, limits: Quota, room: QuotaUsage, cost: QuotaUsage) -> QuotaError:
    reasons = [
        f"{most - max(left, 0)} of {most} {name} are used, and this needs {need}"
        for name, most, left, need in zip(Quota.__struct_fields__, *map(astuple, (limits, room, cost)), strict=True)
        if most is not None and left < need
    ]
    return QuotaError(
        f"the quota is used up: {'; '.join(reasons)}",
        where=f"tenant {tenant!r}",
        hint="Nothing was saved. Prune or delete threads, or raise the quota: store.maintenance.set_quota(…)",
    )
