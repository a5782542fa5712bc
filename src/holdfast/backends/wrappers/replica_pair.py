"""Two stores that belong together: one that is written, and its copy.

The local store has a row that says who it is. The copy has one that says whose copy it is, and how far it has got: the
number of the last row of the journal that is in it. Both are in the space `JOURNAL`.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import msgspec

from holdfast.backends.interface import Backend, Create, Expect, Get, Put, Row
from holdfast.backends.runtime.group_commit import size_of
from holdfast.backends.tables import JOURNAL, TABLES, Key
from holdfast.backends.wrappers import journal
from holdfast.backends.wrappers.journal import JournalRow
from holdfast.backends.wrappers.private_rows import is_blank, is_empty, page_of_theirs
from holdfast.errors import ConfigError, CorruptError

_IDENTITY: Key = ("", "identity", 0)
_COPY: Key = ("", "copy", 0)

_PAGE = 64
_PAGE_BYTES = 4 << 20

_READY, _FILLING = 0, 1


class ReplicaIdentity(msgspec.Struct, frozen=True, array_like=True):
    """Who a local store is, and what is known of its copy."""

    id: str
    max_body: int
    max_batch: int
    shared: bool
    projected: bool


class ReplicaCursor(NamedTuple):
    """How far a copy has got, and whether it has all that was there before."""

    id: str
    last: JournalRow
    """What was copied last."""
    whole: bool

    @property
    def number(self) -> int:
        return self.last.number

    @property
    def there(self) -> Expect:
        """The condition that the copy has got just so far."""
        return Expect(JOURNAL, _COPY, (self.number,))

    @property
    def row(self) -> Row:
        return Row(_COPY, (self.number,), msgspec.msgpack.encode((self.id, self.whole, self.last.time)))


async def identity_of(local: Backend) -> tuple[ReplicaIdentity | None, bool]:
    """Who a store is, if it has a copy; and whether it is still being filled from that."""
    ((*rows,),) = await local.read([Get(JOURNAL, [_IDENTITY])])
    if not rows:
        return None, False
    return _decode(rows[0].body, ReplicaIdentity, local.url), rows[0].columns[0] == _FILLING


async def cursor_of(remote: Backend) -> ReplicaCursor | None:
    """How far a copy has got; None if it is none."""
    ((*rows,),) = await remote.read([Get(JOURNAL, [_COPY])])
    if not rows:
        return None
    found = _decode(rows[0].body, tuple[str, bool, int], remote.url)
    return ReplicaCursor(found[0], JournalRow(int(rows[0].columns[0]), found[2]), found[1])


async def attach(local: Backend, remote: Backend, restore: bool) -> ReplicaIdentity:
    """Make of two stores a pair, or see that they are one already."""
    while True:
        # In this order: of a pair that others are making now, the local store has its name before there is a copy.
        cursor = await cursor_of(remote)
        identity, filling = await identity_of(local)
        try:
            if identity is None:
                await _begin(local, remote, cursor, restore)
            elif filling:
                await _restore(local, remote, identity, cursor)
            elif cursor is None:
                await _begin_copy(local, remote, identity)
            elif cursor.id != identity.id:
                raise not_ours(remote)
            else:
                return identity
        except ConfigError:
            if await cursor_of(remote) == cursor and await identity_of(local) == (identity, filling):
                raise
            # Others were at it meanwhile, and it may be right by now.


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
    new = ReplicaCursor(identity.id, journal.mark_of(last), whole=await is_empty(local))
    await remote.apply([Create(JOURNAL, new.row)])


async def fill_remote(local: Backend, remote: Backend, cursor: ReplicaCursor) -> bool:
    """Copy everything. False if somebody else has gone on meanwhile.

    What is written meanwhile is in the journal too, after the cursor; it is then sent once more and ends up the same.
    """
    async for rows in _pages(local, remote):
        if await remote.apply([cursor.there, *rows]) is not None:
            return False
    return await remote.apply([cursor.there, Put(JOURNAL, cursor._replace(whole=True).row)]) is None


async def _restore(local: Backend, remote: Backend, identity: ReplicaIdentity, cursor: ReplicaCursor | None) -> None:
    """Fill a local store from its copy. From the first moment on, no other store can send to that copy."""
    (own,), (last,) = await local.read([Get(JOURNAL, [_IDENTITY]), journal.LAST])
    if own.columns[0] != _FILLING:
        return  # another process was faster
    mark = journal.mark_of(last)
    if cursor is not None and cursor.id != identity.id and cursor.number == mark.number - 1:
        await remote.apply([cursor.there, Put(JOURNAL, ReplicaCursor(identity.id, mark, whole=True).row)])
        cursor = await cursor_of(remote)
    if cursor is None or cursor.id != identity.id:
        raise not_ours(remote)
    filling = Expect(JOURNAL, _IDENTITY, (_FILLING,))
    async for rows in _pages(remote, local):
        if await local.apply([filling, *rows]) is not None:
            return
    await local.apply([filling, Put(JOURNAL, _identity_row(identity, _READY))])


async def _may_restore(local: Backend, remote: Backend, cursor: ReplicaCursor, restore: bool) -> None:
    if not await is_empty(local):
        raise not_ours(remote)
    if not restore:
        raise ConfigError(
            "this holds the copy of another store, and the local one is empty",
            where=remote.url,
            hint="If that store is lost, open once with restore=true: the local store is filled from the copy, and the "
            "old one can no longer write to it",
        )
    if not cursor.whole:
        raise ConfigError(
            "this copy was never finished: it cannot stand for the store",
            where=remote.url,
            hint="Find the local store that it was made from",
        )


async def _name(local: Backend, remote: Backend, number: int, filling: bool) -> None:
    """Give a store its name and a journal; whoever is first."""
    able = remote.capabilities
    identity = ReplicaIdentity(secrets.token_hex(16), able.max_body, able.max_batch, able.shared, able.projected)
    row = _identity_row(identity, _FILLING if filling else _READY)
    await local.apply([Create(JOURNAL, row), journal.first(number)])


def _identity_row(identity: ReplicaIdentity, state: int) -> Row:
    return Row(_IDENTITY, (state,), msgspec.msgpack.encode(identity))


async def _pages(backend: Backend, into: Backend) -> AsyncIterator[list[Put]]:
    """All rows of a store but a wrapper's own, as many at a time as another one takes."""
    most = min(_PAGE_BYTES, into.capabilities.max_batch)
    for space in TABLES:
        after: Key = ()
        while True:
            ((*rows,),) = await backend.read([page_of_theirs(space, after, _PAGE)])
            full = len(rows) == _PAGE
            if rows and rows[0].key == after:
                del rows[0]
            if rows:
                after = rows[-1].key
            page: list[Put] = []
            for row in rows:
                if page and size_of(page) + len(row.body) > most:
                    yield page
                    page = []
                page.append(Put(space, row))
            if page:
                yield page
            if not full:
                break


class ReplicaMismatch(ConfigError):
    """Two stores are not, or no longer, a store and its copy. Nothing is copied any more."""


def not_ours(remote: Backend) -> ReplicaMismatch:
    """The copy is another store's."""
    return ReplicaMismatch(
        "this is the copy of another store, or another store has taken it over",
        where=remote.url,
        hint="Give each store a copy of its own. To fill a new local store from a copy, open with an empty one and "
        "restore=true",
    )


def _foreign(remote: Backend) -> ReplicaMismatch:
    return ReplicaMismatch(
        "this holds something that is not a copy of the local store",
        where=remote.url,
        hint="Name an empty store, which is then filled; or open this one by itself",
    )


def _decode(body: bytes, kind: type, where: str) -> Any:
    try:
        return msgspec.msgpack.decode(body, type=kind)
    except msgspec.DecodeError as error:
        raise CorruptError(f"the row that says what is copied where cannot be read: {error}", where=where) from error
