"""Transactions: changes of several keys and scopes, all or none, that depend on what was read.

A transaction remembers the version of what it reads, and holds its changes back until the end. Then they are made in
one batch, on condition that everything that was read still has its version: transactions are serializable. If a read is
out of date, `ConflictError` is raised and nothing is changed; `transact` tries again. Each scope is read as of its
first read; two scopes may be read as of two moments, which can show only in a transaction that will not commit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from holdfast.backends.interface import Change as Condition
from holdfast.backends.interface import Expect, Get
from holdfast.backends.runtime.drivers import AsyncApi, SyncApi, sync_and_async
from holdfast.backends.tables import LINES, STEPS
from holdfast.engine.append import AppendRequest
from holdfast.engine.model.missing import MISSING
from holdfast.engine.model.packed_state import unpack
from holdfast.engine.model.scopes import Scope
from holdfast.engine.row_format import StepRef
from holdfast.engine.step_info import StepInfo
from holdfast.errors import ConflictError, NotFoundError
from holdfast.security.handle import StoreHandle
from holdfast.state.key_changes import expiry_time
from holdfast.state.keys import pack_value
from holdfast.state.reader import ScopeView, read_line_at
from holdfast.state.writer import KeyWrite, WrittenKey, commit
from holdfast.time_parser import Duration


@dataclass(slots=True)
class TransactionScope:
    """The reads and writes of one scope so far."""

    was_read: bool = False
    point: StepRef | None = None
    """The step as of which the scope is read."""
    reads: dict[str, int] = field(default_factory=dict)
    """The versions of the keys that were read; 0 if there was none."""
    writes: dict[str, KeyWrite] = field(default_factory=dict)


class TransactionChanges:
    """The reads and changes of a transaction."""

    def __init__(self, handle: StoreHandle) -> None:
        self.handle = handle
        self._scopes: dict[Scope, TransactionScope] = {}

    async def get(self, scope: Scope, key: str) -> Any:
        """Return a value as the transaction sees it; `MISSING` if there is none."""
        key = self.handle.guard.key(scope, key)
        part = self._scopes.setdefault(scope, TransactionScope())
        own = part.writes.get(key)
        if own is not None:
            return MISSING if own.action == "delete" else unpack(self.handle.codec, own.packed)
        await self.handle.guard.allow("read", scope, (key,))
        if not part.was_read:
            tip = await self.handle.engine.lines.revalidate_tip(self.handle.line(scope))
            part.was_read, part.point = True, None if tip is None else tip.point
        try:
            found = await read_line_at(
                self.handle, self.handle.line(scope), part.point, lambda view: view.find_live(key)
            )
        except NotFoundError:  # pruned or deleted meanwhile, which is to say changed
            raise _stale_error(scope, key) from None
        await self.handle.guard.saw(scope, (key,))
        part.reads[key] = 0 if found is None else found.version
        return MISSING if found is None else unpack(self.handle.codec, found.entry.value)

    def put(self, scope: Scope, change: KeyWrite) -> None:
        """Add a change; of one key, the last one counts."""
        self._scopes.setdefault(scope, TransactionScope()).writes[change.key] = change

    async def commit(self, savings: Sequence[AppendRequest] = ()) -> tuple[list[WrittenKey], list[StepInfo]]:
        """Make all changes, together with checkpoints to save. `ConflictError` if a read is out of date."""
        parts, self._scopes = self._scopes, {}
        writes = {scope: list(part.writes.values()) for scope, part in parts.items() if part.writes}
        if not writes and not savings:
            return [], []
        checks = {scope: self._check(scope, part) for scope, part in parts.items() if part.reads and part.writes}
        only_read = {scope: part for scope, part in parts.items() if part.reads and not part.writes}

        async def guards(again: bool) -> list[Condition]:
            found: list[Condition] = []
            for scope, part in only_read.items():
                found += await self._unchanged(scope, part, again)
            return found

        return await commit(self.handle, writes, checks, requests=savings, preconditions=guards if only_read else None)

    def _check(self, scope: Scope, part: TransactionScope) -> Callable[[ScopeView], Any]:
        async def check(view: ScopeView) -> None:
            for key, version in part.reads.items():
                if await view.version(key) != version:
                    raise _stale_error(scope, key)
            if part.point is not None and view.point != part.point and not await self._still_exists(scope, part.point):
                raise _stale_error(scope, next(iter(part.reads)))

        return check

    async def _still_exists(self, scope: Scope, point: StepRef) -> bool:
        """Whether a step is still there: in a scope that was deleted and created again, versions start again, too."""
        query = Get(STEPS, [(*self.handle.line(scope), point.branch, point.seq)])
        (rows,) = await self.handle.engine.context.backend.read([query])
        return bool(rows) and StepRef.of(rows[0]).hash == point.hash

    async def _unchanged(self, scope: Scope, part: TransactionScope, again: bool) -> list[Condition]:
        """Return the conditions that a scope that was only read is unchanged, as far as it was read."""
        lines, line = self.handle.engine.lines, self.handle.line(scope)
        tip = await (lines.load_tip(line) if again else lines.revalidate_tip(line))
        point = None if tip is None else tip.point
        try:
            await read_line_at(
                self.handle, line, point, self._check(scope, part)
            )  # also what has expired since is out of date
        except NotFoundError:
            raise _stale_error(scope, next(iter(part.reads))) from None
        if tip is None or point is None:
            return [Expect(LINES, tuple(line), None if tip is None else tuple(tip.info))]
        after = (*line, point.branch, point.seq + 1)
        return [Expect(LINES, tuple(line), tuple(tip.info)), Expect(STEPS, after, None)]


def _stale_error(scope: Scope, key: str) -> ConflictError:
    return ConflictError(
        "what the transaction read has changed since",
        where=f"key {key!r} of {scope}",
        hint="Begin it anew, as transact() does by itself",
        code="version-mismatch",
    )


class TransactionOperations:
    """The state of a scope in a transaction."""

    def __init__(self, pending: TransactionChanges, scope: Scope) -> None:
        self._pending = pending
        self.scope = scope

    def set(self, key: str, value: Any, *, ttl: Duration | None = None) -> None:
        """Set a key."""
        handle = self._pending.handle
        key = handle.guard.key(self.scope, key)
        change = KeyWrite(key, packed=pack_value(handle, key, value), expires=expiry_time(handle, ttl))
        self._pending.put(self.scope, change)

    def delete(self, key: str) -> None:
        """Delete a key, if it exists."""
        self._pending.put(self.scope, KeyWrite(self._pending.handle.guard.key(self.scope, key), "delete"))

    @sync_and_async
    async def get(self, key: str, default: Any = None) -> Any:
        """Return the value of a key, with the changes of this transaction."""
        found = await self._pending.get(self.scope, key)
        return default if found is MISSING else found

    @sync_and_async
    async def has(self, key: str) -> bool:
        """Whether a key exists."""
        return await self._pending.get(self.scope, key) is not MISSING


class TransactionState(SyncApi, TransactionOperations):
    """The state of a scope in a transaction, with subscripts: `tx.state(agent="a")["plan"]`."""

    def __getitem__(self, key: str) -> Any:
        found = self.get(key, MISSING)
        if found is MISSING:
            raise KeyError(key)
        return found

    def __setitem__(self, key: str, value: Any) -> None:
        self.set(key, value)

    def __delitem__(self, key: str) -> None:
        if not self.has(key):
            raise KeyError(key)
        self.delete(key)

    def __contains__(self, key: str) -> bool:
        return self.has(key)


class AsyncTransactionState(AsyncApi, TransactionOperations):
    """The state of a scope in a transaction, for asyncio; reads are awaited."""
