"""A local store and its copy.

The local store has a row with its identity. The copy has a row with the identity of its local store and a cursor: the
number of the last row of the journal that it has. Both rows are in the table `JOURNAL`.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import msgspec

from holdfast.backends.interface import Backend, Create, Expect, Get, Put, Row
from holdfast.backends.runtime.group_commit import body_bytes
from holdfast.backends.tables import JOURNAL, TABLES, Key
from holdfast.backends.wrappers import journal
from holdfast.backends.wrappers.journal import JournalRow
from holdfast.backends.wrappers.private_rows import caller_rows, is_blank, is_empty
from holdfast.byte_reader import ByteReader, packed_form
from holdfast.errors import ConfigError

_IDENTITY: Key = ("", "identity", 0)
_COPY: Key = ("", "copy", 0)
PURGE: Key = ("", "purge", 0)
"""The key of a row of the local store that says that both stores are to be purged when the copy has caught up."""

_PAGE = 64
_PAGE_BYTES = 4 << 20

_READY, _FILLING = 0, 1
_UNFILLED = -1


class ReplicaIdentity(msgspec.Struct, frozen=True, array_like=True):
    """The id of a local store, and the capabilities of its copy."""

    id: str
    max_body: int
    max_batch: int
    shared: bool
    projected: bool


class ReplicaCursor(NamedTuple):
    """The last row of the journal that a copy has, and how far the copy was filled otherwise."""

    id: str
    last: JournalRow
    filled: int
    """When the copy was filled with what is older than its journal, this was the last row of the journal: up to there,
    the copy may have the result of an entry before it gets the entry. Negative as long as it is not filled."""

    @property
    def complete(self) -> bool:
        """Whether the copy has all that is older."""
        return self.filled >= 0

    @property
    def number(self) -> int:
        return self.last.number

    @property
    def condition(self) -> Expect:
        """That the copy is at this cursor."""
        return Expect(JOURNAL, _COPY, (self.number,))

    @property
    def row(self) -> Row:
        return Row(_COPY, (self.number,), msgspec.msgpack.encode((self.id, self.filled, self.last.time)))


async def read_identity(local: Backend) -> tuple[ReplicaIdentity | None, bool]:
    """Return the identity of a store, if it has a copy; and whether it is still being restored from the copy."""
    ((*rows,),) = await local.read([Get(JOURNAL, [_IDENTITY])])
    if not rows:
        return None, False
    return _decode(rows[0].body, ReplicaIdentity, local.url), rows[0].columns[0] == _FILLING


async def read_cursor(remote: Backend) -> ReplicaCursor | None:
    """Return the cursor of a copy; None if the store is no copy."""
    ((*rows,),) = await remote.read([Get(JOURNAL, [_COPY])])
    if not rows:
        return None
    found = _decode(rows[0].body, tuple[str, int, int], remote.url)
    return ReplicaCursor(found[0], JournalRow(int(rows[0].columns[0]), found[2]), found[1])


async def attach(local: Backend, remote: Backend, restore: bool) -> ReplicaIdentity:
    """Make two stores a pair, or check that they are one."""
    while True:
        # In this order: another process that makes the pair names the local store before it creates the copy.
        cursor = await read_cursor(remote)
        identity, filling = await read_identity(local)
        try:
            if identity is None:
                await _begin(local, remote, cursor, restore)
            elif filling:
                await _restore(local, remote, identity, cursor)
            elif cursor is None:
                await _begin_copy(local, remote, identity)
            elif cursor.id != identity.id:
                raise foreign_copy_error(remote)
            else:
                return identity
        except ConfigError:
            if await read_cursor(remote) == cursor and await read_identity(local) == (identity, filling):
                raise
            # Another process changed the pair meanwhile, so that it may be correct now.


async def _begin(local: Backend, remote: Backend, cursor: ReplicaCursor | None, restore: bool) -> None:
    if cursor is not None:
        await _may_restore(local, remote, cursor, restore)
    elif not await is_blank(remote):
        raise _foreign(remote)
    await _name(local, remote, 0 if cursor is None else cursor.number + 1, filling=cursor is not None)


async def _begin_copy(local: Backend, remote: Backend, identity: ReplicaIdentity) -> None:
    if not await is_blank(remote):
        raise _foreign(remote)
    ((last,),) = await local.read([journal.LAST])
    start = journal.parse_row(last)
    new = ReplicaCursor(identity.id, start, start.number if await is_empty(local) else _UNFILLED)
    await remote.apply([Create(JOURNAL, new.row)])


async def fill_remote(local: Backend, remote: Backend, cursor: ReplicaCursor) -> bool:
    """Copy everything. Returns False if another process moved the cursor meanwhile.

    What is written meanwhile is in the journal, after the cursor: it is sent again, with the same result.
    """
    async for rows in _pages(local, remote):
        if await remote.apply([cursor.condition, *rows]) is not None:
            return False
    ((last,),) = await local.read([journal.LAST])
    filled = cursor._replace(filled=journal.parse_row(last).number)
    return await remote.apply([cursor.condition, Put(JOURNAL, filled.row)]) is None


async def _restore(local: Backend, remote: Backend, identity: ReplicaIdentity, cursor: ReplicaCursor | None) -> None:
    """Fill a local store from its copy. From the first batch on, no other store can send to that copy."""
    (identity_row,), (last,) = await local.read([Get(JOURNAL, [_IDENTITY]), journal.LAST])
    if identity_row.columns[0] != _FILLING:
        return  # another process was faster
    mark = journal.parse_row(last)
    if cursor is not None and cursor.id != identity.id and cursor.number == mark.number - 1:
        await remote.apply([cursor.condition, Put(JOURNAL, ReplicaCursor(identity.id, mark, mark.number).row)])
        cursor = await read_cursor(remote)
    if cursor is None or cursor.id != identity.id:
        raise foreign_copy_error(remote)
    filling = Expect(JOURNAL, _IDENTITY, (_FILLING,))
    async for rows in _pages(remote, local):
        if await local.apply([filling, *rows]) is not None:
            return
    await local.apply([filling, Put(JOURNAL, _identity_row(identity, _READY))])


async def _may_restore(local: Backend, remote: Backend, cursor: ReplicaCursor, restore: bool) -> None:
    if not await is_empty(local):
        raise foreign_copy_error(remote)
    if not restore:
        raise ConfigError(
            "this is the copy of another store, and the local store is empty",
            where=remote.url,
            hint="If that store is lost, open once with restore=true: the local store is filled from the copy, and the "
            "old one can no longer write to it",
        )
    if not cursor.complete:
        raise ConfigError(
            "this copy was never completed: it cannot replace the store",
            where=remote.url,
            hint="Find the local store that it is a copy of",
        )


async def _name(local: Backend, remote: Backend, number: int, filling: bool) -> None:
    """Give a store an identity and a journal, unless another process did."""
    limits = remote.capabilities
    identity = ReplicaIdentity(
        secrets.token_hex(16), limits.max_body, limits.max_batch, limits.shared, limits.projected
    )
    row = _identity_row(identity, _FILLING if filling else _READY)
    await local.apply([Create(JOURNAL, row), journal.create_first(number)])


def _identity_row(identity: ReplicaIdentity, state: int) -> Row:
    return Row(_IDENTITY, (state,), msgspec.msgpack.encode(identity))


async def _pages(backend: Backend, target: Backend) -> AsyncIterator[list[Put]]:
    """Yield all rows of the caller, in batches of a size that the other store takes."""
    most = min(_PAGE_BYTES, target.capabilities.max_batch)
    for space in TABLES:
        page: list[Put] = []
        async for row in caller_rows(backend, space):
            if page and (len(page) == _PAGE or body_bytes(page) + len(row.body) > most):
                yield page
                page = []
            page.append(Put(space, row))
        if page:
            yield page


class ReplicaMismatch(ConfigError):
    """Two stores are not, or no longer, a store and its copy. Copying stops."""


def foreign_copy_error(remote: Backend) -> ReplicaMismatch:
    return ReplicaMismatch(
        "this is the copy of another store, or another store has taken it over",
        where=remote.url,
        hint="Give each store a copy of its own. To fill a new local store from a copy, open with an empty one and "
        "restore=true",
    )


def diverged_error(remote: Backend, table: str, line: str) -> ReplicaMismatch:
    return ReplicaMismatch(
        f"the copy differs from the local store: a row of {table}, of {line!r}, is not as it was left. One of the two "
        "stores was written directly, or has lost rows. Nothing was replaced",
        where=remote.url,
        hint="Write only through the pair. Save what only the copy has, such as with copy_to from it; then remove the "
        "copy itself, not only its threads, and open the pair again: it is filled",
    )


def _foreign(remote: Backend) -> ReplicaMismatch:
    return ReplicaMismatch(
        "this holds something that is not a copy of the local store",
        where=remote.url,
        hint="Name an empty store, which is then filled; or open this one by itself",
    )


def _decode(body: bytes, kind: type, where: str) -> Any:
    return ByteReader(body, "the row that describes the copy", where).packed(packed_form(kind))
