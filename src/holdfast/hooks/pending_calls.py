"""Pending calls of durable after-hooks: rows that are stored with the change, and removed when the call is recorded.

A process that is killed leaves its rows. Whoever registers the hook again runs the calls: each at least once, and
perhaps a second time, if the process was killed before the call was recorded.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from hashlib import blake2b
from typing import Any, NamedTuple

import msgspec

from holdfast.backends.interface import Change, Delete, Expect, Put, Row, Scan
from holdfast.backends.paging import following
from holdfast.backends.runtime.process_identity import has_ended, process_identity
from holdfast.backends.tables import LINKS, Key
from holdfast.engine.engine import Engine
from holdfast.engine.model.missing import MISSING
from holdfast.engine.model.packed_state import pack_name, unpack, unpack_state
from holdfast.engine.model.scopes import MARK
from holdfast.engine.row_format import Line, StepRef
from holdfast.engine.state_loader import LoadedState
from holdfast.engine.system_line import read_at
from holdfast.engine.trace_context import Trace
from holdfast.errors import CorruptError, NotFoundError
from holdfast.hooks.context import HookedChange
from holdfast.hooks.execution_log import LINE
from holdfast.hooks.hook import Hook

PENDING = "pending"
"""The kind of the rows."""

POINTS = frozenset({"state.set", "state.patch", "state.delete", "state.expire", "state.rollback", "checkpoint.save"})
"""The points of durable hooks: what they are called with is in the step of the change."""

_PATIENCE = 600 * 10**9
"""For how long a process that is not known here is believed to run its calls, in nanoseconds."""

_OWN_PATIENCE = 60 * 10**9
"""After how long a call of this store that it neither runs nor waits for was given up: its hook was off, or too many
waited."""

_PAGE = 1000

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


class PendingCall(NamedTuple):
    """A call that is to be made."""

    hook: str
    id: str
    owner: str
    point: str
    scope: str
    key: str
    actor: str
    correlation: str
    time: int
    row: Row

    @classmethod
    def of(cls, row: Row) -> PendingCall:
        """Parse a row."""
        time_, target = row.columns
        _, _, _, hook, other = row.key
        owner, point, scope, key, actor, correlation = msgspec.json.decode(str(target), type=tuple[str, ...])
        id = str(other).partition(" ")[0]
        return cls(str(hook), id, owner, point, scope, key, actor, correlation, int(time_), row)

    def is_abandoned(self, now: int) -> bool:
        """Return whether nobody is going to make the call: its process has ended, or is not known here and had its
        time."""
        process = self.owner.rpartition("|")[0]
        if process == process_identity() and (process or self.owner in _owners):
            return self.owner not in _owners
        ended = has_ended(process)
        return abs(now - self.time) > _PATIENCE if ended is None else ended

    def ended(self) -> Delete:
        """Return the change that removes the row."""
        return Delete(LINKS, self.row.key)


def pending_key(tenant: str, hook: str, subject: HookedChange, id: str) -> Key:
    """Return the key of the row of a call."""
    about = blake2b(f"{subject.point}\0{subject.scope}\0{subject.key}".encode(), digest_size=8).hexdigest()
    return (tenant, LINE, PENDING, hook, f"{id} {about}")


def pending_rows(
    tenant: str, owner: str, hooks: Sequence[Hook], subject: HookedChange, id: str, now: int
) -> list[Change]:
    """Return the rows of the calls of durable hooks, to be stored with the step of the change, which has this id."""
    return [
        Put(
            LINKS,
            Row(
                pending_key(tenant, hook.name, subject, id),
                (
                    now,
                    msgspec.json.encode(
                        (owner, subject.point, subject.scope, subject.key, subject.actor, subject.trace.correlation)
                    ).decode(),
                ),
            ),
        )
        for hook in hooks
        if hook.durable
    ]


async def claim_abandoned(
    engine: Engine, tenant: str, hook: str, owner: str, is_waiting: Callable[[Key], bool], most: int
) -> list[PendingCall]:
    """Return calls of a hook that nobody is going to make, as those of this owner, of which `is_waiting` says whether
    it is going to. Each is given to one only; there may be more than are returned."""
    backend, now, found = engine.context.backend, engine.context.clock(), list[PendingCall]()
    scan = Scan(LINKS, (tenant, LINE, PENDING, hook), limit=_PAGE)
    while True:
        (rows,) = await backend.read([scan])
        for row in rows:
            call = PendingCall.of(row)
            if len(found) >= most:
                return found
            if call.owner == owner:
                is_left = abs(now - call.time) > _OWN_PATIENCE and not is_waiting(row.key)
            else:
                is_left = call.is_abandoned(now)
            if not is_left:
                continue
            target = msgspec.json.encode((owner, *call[3:8])).decode()
            claimed = Row(row.key, (now, target))
            if await backend.apply([Expect(LINKS, row.key, row.columns), Put(LINKS, claimed)]) is None:
                found.append(call._replace(owner=owner, row=claimed))
        if len(rows) < _PAGE:
            return found
        scan = scan._replace(start=following(rows[-1].key[4:]))


async def load_subject(engine: Engine, tenant: str, call: PendingCall) -> HookedChange | None:
    """Return what a hook is called with, as it was when the change was made; None if the change is gone, or cannot be
    read any more."""
    is_checkpoint = call.point.startswith("checkpoint.")
    line = Line(tenant, call.scope if is_checkpoint else MARK + call.scope)
    codec = engine.context.codec

    async def look(_: StepRef | None, loaded: LoadedState | None) -> Any:
        if loaded is None:
            return MISSING
        if is_checkpoint:
            return await engine.states.resolve_pointers(line, await engine.states.whole(line, loaded))
        entry = await engine.entries.find(line, loaded, pack_name(call.key))
        return MISSING if entry is None else entry.value

    try:
        point = await engine.lines.find(line, call.id)
        stored = await read_at(engine, line, point, look)
    except (NotFoundError, CorruptError):
        return None
    load = partial(unpack_state if is_checkpoint else unpack, codec)
    subject = HookedChange(
        call.point,
        call.scope,
        call.key,
        Trace(call.correlation, call.id),
        time.perf_counter_ns(),
        stored,
        load,
        actor=call.actor,
        metadata={"kind": point.kind} if is_checkpoint else {},
    )
    subject.id, subject.is_repeated = call.id, True
    subject.version = 0 if stored is MISSING else (point.depth if is_checkpoint else point.seq) + 1
    return subject
