"""Transactions: changes of several keys and scopes, all or none, that depend on what was read.

A transaction remembers the version of what it reads, and holds its changes back until the end. Then they are made in
one batch, on condition that everything that was read still has its version: transactions are serializable. If a read is
out of date, `ConflictError` is raised and nothing is changed; `transaction(function)` tries again. Each scope is read
as of its first read; two scopes may be read as of two moments, which can show only in a transaction that will not
commit.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from holdfast.backends.interface import Change as Condition
from holdfast.backends.interface import Expect, Get
from holdfast.backends.runtime.drivers import AsyncApi, SyncApi, declare, operation
from holdfast.backends.tables import LINES, STEPS
from holdfast.engine import validation
from holdfast.engine.append import AppendRequest
from holdfast.engine.model.missing import MISSING
from holdfast.engine.model.operators import AddToSet, Append, Increment, Max, UpdateOperator, combine
from holdfast.engine.model.packed_state import unpack
from holdfast.engine.model.scopes import Scope, normal
from holdfast.engine.pages import Page, paged
from holdfast.engine.patterns import matcher
from holdfast.engine.row_format import Line, StepRef
from holdfast.engine.step_info import StepInfo
from holdfast.errors import ConflictError, InvalidError, NotFoundError
from holdfast.security.handle import StoreHandle
from holdfast.state.key_changes import expiry_time
from holdfast.state.keys import pack_value
from holdfast.state.reader import ScopeView, live_tip, read_line_at
from holdfast.state.session_guard import limit_unchanged, read_limit, session_of
from holdfast.state.writer import KeyWrite, WrittenKey, commit
from holdfast.time_parser import Duration

T = TypeVar("T")


@dataclass(slots=True)
class TransactionScope:
    """The reads and writes of one scope so far."""

    was_read: bool = False
    point: StepRef | None = None
    """The step as of which the scope is read."""
    reads: dict[str, int] = field(default_factory=dict)
    """The versions of the keys that were read; 0 if there was none."""
    listings: dict[tuple[str, str], list[str]] = field(default_factory=dict)
    """The stored keys that were listed, by prefix and pattern: a key that others add or delete is a conflict, too."""
    writes: dict[str, KeyWrite] = field(default_factory=dict)


class TransactionChanges:
    """The reads and changes of a transaction."""

    def __init__(self, handle: StoreHandle) -> None:
        self.handle = handle
        self.is_open = False
        self._scopes: dict[Scope, TransactionScope] = {}
        self._threads: dict[Line, StepRef | None] = {}
        """The latest steps of the threads that were read; None if there was no such thread."""

    def check_open(self) -> None:
        """Raise `InvalidError` outside the block of the transaction: a change would be lost."""
        if not self.is_open:
            raise InvalidError("the transaction is not open", hint="Use it inside its `with` block")

    async def get(self, scope: Scope, key: str) -> Any:
        """Return a value as the transaction sees it; `MISSING` if there is none."""
        key = self.handle.guard.key(scope, key)
        part = self._part(scope)
        own = part.writes.get(key)
        if own is not None:
            return MISSING if own.action == "delete" else unpack(self.handle.codec, own.packed)
        await self.handle.guard.allow("read", scope, (key,))
        found = await self._read(scope, part, lambda view: view.find_live(key))
        await self.handle.guard.saw(scope, (key,))
        part.reads[key] = 0 if found is None else found.version
        return MISSING if found is None else unpack(self.handle.codec, found.entry.value)

    async def keys(self, scope: Scope, prefix: str, pattern: str) -> list[str]:
        """Return keys in order, as the transaction sees them."""
        part = self._part(scope)
        await self.handle.guard.allow("read", scope, ())
        stored = await self._read(scope, part, lambda view: view.keys(prefix, pattern))
        await self.handle.guard.saw(scope, ())
        part.listings[prefix, pattern] = stored
        matches = matcher(pattern) if pattern else None
        own = [key for key in part.writes if key.startswith(prefix) and (matches is None or matches(key))]
        deleted = {key for key in own if part.writes[key].action == "delete"}
        return sorted({*stored, *own} - deleted)

    async def _read(self, scope: Scope, part: TransactionScope, look: Callable[[ScopeView], Awaitable[T]]) -> T:
        """Read a scope as of its first read."""
        line = self.handle.line(scope)
        if not part.was_read:
            tip = await live_tip(self.handle, scope)
            part.was_read, part.point = True, None if tip is None else tip.point
        try:
            return await read_line_at(self.handle, line, part.point, look)
        except NotFoundError:  # pruned or deleted meanwhile, which is to say changed
            raise _stale_error(scope) from None

    def written(self, scope: Scope, key: str) -> KeyWrite | None:
        """Return the change of a key in this transaction."""
        return self._part(scope).writes.get(self.handle.guard.key(scope, key))

    def put(self, scope: Scope, change: KeyWrite) -> None:
        """Add a change; of one key, the last one counts."""
        self._part(scope).writes[change.key] = change

    def _part(self, scope: Scope) -> TransactionScope:
        self.check_open()
        return self._scopes.setdefault(scope, TransactionScope())

    async def read_thread(self, line: Line) -> StepRef | None:
        """Return the latest step of a thread as of its first read; None if there is no such thread."""
        self.check_open()
        if line not in self._threads:
            tip = await self.handle.engine.lines.load_tip(line)
            self._threads[line] = None if tip is None else tip.point
        return self._threads[line]

    async def commit(self, savings: Sequence[AppendRequest] = ()) -> tuple[list[WrittenKey], list[StepInfo]]:
        """Make all changes, together with checkpoints to save. `ConflictError` if a read is out of date."""
        parts, self._scopes = self._scopes, {}
        threads, self._threads = self._threads, {}
        writes = {scope: list(part.writes.values()) for scope, part in parts.items() if part.writes}
        if not writes and not savings:
            return [], []
        checks = {scope: self._check(scope, part) for scope, part in parts.items() if part.was_read and part.writes}
        only_read = {scope: part for scope, part in parts.items() if part.was_read and not part.writes}

        async def guards(again: bool) -> list[Condition]:
            found: list[Condition] = []
            for scope, part in only_read.items():
                found += await self._unchanged(scope, part, again)
            for line, point in threads.items():
                found += await self._thread_unchanged(line, point, [each for each in savings if each.line == line])
            return found

        conditions = guards if only_read or threads else None
        return await commit(self.handle, writes, checks, requests=savings, preconditions=conditions)

    def _check(self, scope: Scope, part: TransactionScope) -> Callable[[ScopeView], Any]:
        async def check(view: ScopeView) -> None:
            for key, version in part.reads.items():
                if await view.version(key) != version:
                    raise _stale_error(scope, key)
            for (prefix, pattern), keys in part.listings.items():
                if await view.keys(prefix, pattern) != keys:
                    raise _stale_error(scope)
            if part.point is not None and view.point != part.point and not await self._still_exists(scope, part.point):
                raise _stale_error(scope)

        return check

    async def _still_exists(self, scope: Scope, point: StepRef) -> bool:
        """Whether a step is still there: in a scope that was deleted and created again, versions start again, too."""
        query = Get(STEPS, [(*self.handle.line(scope), point.branch, point.seq)])
        (rows,) = await self.handle.engine.context.backend.read([query])
        return bool(rows) and StepRef.of(rows[0]).hash == point.hash

    async def _unchanged(self, scope: Scope, part: TransactionScope, again: bool) -> list[Condition]:
        """Return the conditions that a scope that was only read is unchanged, as far as it was read."""
        lines, line = self.handle.engine.lines, self.handle.line(scope)
        limit = await read_limit(self.handle, scope)
        if limit is not None and limit.is_over(self.handle.now()):
            await self._check(scope, part)(ScopeView(self.handle, line, None, None, self.handle.now()))
            return [limit_unchanged(self.handle, session_of(scope) or scope, limit)]
        tip = await (lines.load_tip(line) if again else lines.revalidate_tip(line))
        point = None if tip is None else tip.point
        try:
            await read_line_at(
                self.handle, line, point, self._check(scope, part)
            )  # also what has expired since is out of date
        except NotFoundError:
            raise _stale_error(scope) from None
        if tip is None or point is None:
            return [Expect(LINES, tuple(line), None if tip is None else tip.info.columns)]
        after = (*line, point.branch, point.seq + 1)
        return [Expect(LINES, tuple(line), tip.info.columns), Expect(STEPS, after, None)]

    async def _thread_unchanged(
        self, line: Line, point: StepRef | None, own: Sequence[AppendRequest]
    ) -> list[Condition]:
        """Return the conditions that the latest step of a thread is the one that was read. The requests of this
        transaction have the condition that the line, and the position of their own step, are unchanged."""
        lines = self.handle.engine.lines
        tip = await lines.load_tip(line)
        if (None if tip is None else tip.point) != point:
            raise _stale_error(f"thread {line}")
        found: list[Condition] = [] if own else [Expect(LINES, tuple(line), None if tip is None else tip.info.columns)]
        if tip is None or point is None:
            return found
        # What moves HEAD to another branch changes the line.
        parents = [point if each.parent is None else await lines.find(line, each.parent) for each in own]
        end = await lines.head(line, point.branch)
        return found if end in parents else [*found, Expect(STEPS, (*line, end.branch, end.seq + 1), None)]


def _stale_error(where: Scope | str, key: str = "") -> ConflictError:
    return ConflictError(
        "what the transaction read has changed since",
        where=f"key {key!r} of {where}" if key else str(where),
        hint="Begin it again, as transaction(function) does",
        code="version-mismatch",
    )


@declare(not_remote="Change several keys of a scope at once by `State.batch`.")
class TransactionOperations:
    """The state of a scope in a transaction. Its methods are those of `State`, with the changes of the transaction."""

    def __init__(self, pending: TransactionChanges, scope: Scope) -> None:
        self._pending = pending
        self.scope = scope

    def set(self, key: str, value: Any, *, ttl: Duration | None = None) -> None:
        """Set a key, perhaps only for some time (`ttl`, in seconds)."""
        handle = self._pending.handle
        self._put(key, value, expires=expiry_time(handle, ttl))

    def delete(self, key: str) -> None:
        """Delete a key, if it exists."""
        self._pending.put(self.scope, KeyWrite(self._pending.handle.guard.key(self.scope, key), "delete"))

    @operation
    async def get(self, key: str, default: Any = None) -> Any:
        """Return the value of a key."""
        found = await self._pending.get(self.scope, key)
        return default if found is MISSING else found

    @operation
    async def has(self, key: str) -> bool:
        """Return whether a key exists."""
        return await self._pending.get(self.scope, key) is not MISSING

    @operation(changes=True)
    async def change(self, key: str, function: Callable[[Any], Any], default: Any = MISSING) -> Any:
        """Set a key to what a function returns for its value, or for the default, and return that. The key is deleted
        if it returns `MISSING`."""
        found = await self._pending.get(self.scope, key)
        new = function(default if found is MISSING else found)
        if new is MISSING:
            self.delete(key)
        else:
            self._put(key, new, keep_expiry=True)
        return new

    @operation(changes=True)
    async def increment(self, key: str, by: float = 1) -> Any:
        """Add a number to a value, which starts at 0. Returns the new value."""
        return await self._operate(key, Increment(by))

    @operation(changes=True)
    async def append(self, key: str, *items: Any) -> int:
        """Add items at the end of a list, which starts empty. Returns its new length."""
        return len(await self._operate(key, Append(*items)))

    @operation(changes=True)
    async def add_to_set(self, key: str, *items: Any) -> int:
        """Add items to a set, which starts empty. Returns how many items it has then."""
        return len(await self._operate(key, AddToSet(*items)))

    @operation(changes=True)
    async def max(self, key: str, value: Any) -> Any:
        """Set a key to a number, a text or a time, unless its value is greater. Returns the greater one."""
        return await self._operate(key, Max(value))

    @operation(changes=True)
    async def patch(self, key: str, changes: Mapping[Any, Any], *, remove: Iterable[Any] = ()) -> None:
        """Change parts of a value. See `State.patch`."""
        name, gone = self._key(key), list(validation.require_several(remove, "path to remove"))
        new = validation.require_mapping(changes, "set of changes")
        found = await self._pending.get(self.scope, name)
        value = patched(self._pending.handle, {} if found is MISSING else found, new, gone, self._where(name))
        parts = {(name, *_keys(path)): each for path, each in new.items()}
        self._put(name, value, keep_expiry=True, parts=parts, removed=[(name, *_keys(path)) for path in gone])

    async def _operate(self, key: str, operator: UpdateOperator) -> Any:
        found = await self._pending.get(self.scope, key)
        value = combined(self._pending.handle, operator, found, self._where(key))
        self._put(key, value, keep_expiry=True, operator=operator)
        return value

    @operation(changes=True)
    async def expire(self, key: str, ttl: Duration | None) -> None:
        """Let a key expire after so many seconds, or never. Raises `NotFoundError`."""
        value = await self._pending.get(self.scope, key)
        if value is MISSING:
            raise NotFoundError("there is no such key", where=self._where(key))
        self.set(key, value, ttl=ttl)

    @operation
    @paged
    async def list_keys(
        self, prefix: str = "", *, pattern: str = "", limit: int = 100, cursor: str | None = None
    ) -> Page[str]:
        """List keys in order, a page of them. See `State.list_keys`."""
        count = validation.require_count(limit, "limit")
        start, after = normal(prefix, "start of keys"), normal(validation.cursor_text(cursor), "cursor")
        keys = await self._pending.keys(self.scope, start, normal(pattern, "pattern"))
        return Page.cut([key for key in keys if not after or key > after][: count + 1], count, str)

    def _where(self, key: str) -> str:
        return f"key {key!r} of {self.scope}"

    def _key(self, key: object) -> str:
        return self._pending.handle.guard.key(self.scope, key)

    def _put(self, key: str, value: Any, *, keep_expiry: bool = False, **how: Any) -> None:
        """Set a key; `how` are further fields of the change, such as the operator that makes the value."""
        handle, key = self._pending.handle, self._key(key)
        change = KeyWrite(key, packed=pack_value(handle, key, value), keep_expiry=keep_expiry, **how)
        before = self._pending.written(self.scope, key)
        if keep_expiry and before is not None:  # of the value that this transaction has set
            change.expires, change.keep_expiry = before.expires, before.keep_expiry
            change.parts, change.removed = {}, ()
            earlier, later = before.operator, change.operator
            change.operator = None if earlier is None or later is None else earlier.then(later)
        if change.is_patch or change.operator is not None:
            change.action = "patch"
        self._pending.put(self.scope, change)


def combined(handle: StoreHandle, operator: UpdateOperator, value: Any, where: str) -> Any:
    """Return a value, or `MISSING`, after an operator."""
    packed = None if value is MISSING else handle.codec.pack(value)
    try:
        return unpack(handle.codec, combine(operator.rule, handle.codec.pack(operator.operand), packed))
    except InvalidError as error:
        raise InvalidError(error.what, where=where, hint="Set it to such a value first") from None


def patched(
    handle: StoreHandle, value: Any, changes: Mapping[Any, Any], remove: Iterable[Any], where: str
) -> dict[Any, Any]:
    """Return a dict with changes at paths of keys, and without what is removed. The value may be changed."""
    for path, new in changes.items():
        *stem, last = _keys(path)
        below = _dict_at(value, stem, where, create=True)
        if isinstance(new, UpdateOperator):
            new = combined(handle, new, below.get(last, MISSING), f"{path!r} in {where}")
        below[last] = new
    for path in remove:
        *stem, last = _keys(path)
        below = _dict_at(value, stem, where, create=False)
        if last not in below:
            raise NotFoundError("there is nothing to remove", where=f"{path!r} in {where}")
        del below[last]
    return dict(_dict_at(value, (), where, create=False))


def _keys(path: Any) -> tuple[Any, ...]:
    return tuple(path) if isinstance(path, tuple | list) and path else (path,)


def _dict_at(value: Any, path: Sequence[Any], where: str, *, create: bool) -> dict[Any, Any]:
    for key in path:
        if isinstance(value, dict) and create:
            value = value.setdefault(key, {})
        else:
            value = value.get(key) if isinstance(value, dict) else None
    if not isinstance(value, dict):
        raise InvalidError("the value is not a dict, and has no keys to set", where=where, hint="Set the whole value")
    return value


class TransactionState(SyncApi, TransactionOperations, MutableMapping[str, Any]):
    """The state of a scope in a transaction, as a mapping: `tx.state(agent="a")["plan"]`. Keys are in order."""

    __hash__ = None  # type: ignore[assignment]

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

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and self.has(key)

    def __iter__(self) -> Iterator[str]:
        return iter(self.list_keys().all())

    def __len__(self) -> int:
        return sum(1 for _ in self)


class AsyncTransactionState(AsyncApi, TransactionOperations):
    """The state of a scope in a transaction, for asyncio; reads are awaited."""

    async def keys(self) -> AsyncIterator[str]:
        """Iterate over the keys, in order."""
        async for key in (await self.list_keys()).all():
            yield key

    async def items(self) -> AsyncIterator[tuple[str, Any]]:
        """Iterate over the keys, in order, with their values."""
        async for key in self.keys():
            yield key, await self.get(key)
