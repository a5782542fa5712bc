"""Commits groups of batches to MongoDB.

**Isolation.** For each line there is a lock document with the token of the group that wrote to it last. A group is
evaluated on a snapshot, which includes matching documents. Its transaction starts by replacing them, on condition that
they have not changed; of two transactions, MongoDB lets only one do so. So what was read of the lines still holds when
the transaction commits. A group that deletes a prefix shorter than a line replaces the documents of all lines under it,
and one more that is common to all such groups.

**Cost.** For each line, the token of the last group and the columns that conditions depend on are cached. While no
other process writes to the line, nothing is read: a typical group takes three round trips, and inserts keys instead of
looking them up. If the cache was wrong, the group is read and evaluated again.
"""

from __future__ import annotations

import asyncio
import random
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TypeAlias

from pymongo import DeleteMany, DeleteOne, InsertOne, ReplaceOne, UpdateOne
from pymongo.asynchronous.client_session import AsyncClientSession
from pymongo.errors import PyMongoError
from pymongo.read_concern import ReadConcern
from pymongo.read_preferences import ReadPreference

from holdfast.backends.async_backend import GroupStamp, ServerInterrupted
from holdfast.backends.batch_eval import Columns, Effect, RowKey, evaluate
from holdfast.backends.feed import changed_lines
from holdfast.backends.interface import Batch, Row
from holdfast.backends.mongodb.change_stream import QUIET
from holdfast.backends.mongodb.commit_group import LINE_WIDTH, CommitGroup, cache_weight, find_lines, line_of
from holdfast.backends.mongodb.errors import DUPLICATE, OVERFLOW, WRITE_CONFLICT, error_codes
from holdfast.backends.mongodb.large_bodies import LargeBodies
from holdfast.backends.mongodb.maintenance import end_orphaned_transactions
from holdfast.backends.mongodb.reader import FindRequest, find, part_range
from holdfast.backends.mongodb.row_mapping import (
    BODY,
    PARTS,
    Document,
    build_id,
    id_range,
    read_key,
    to_document,
    to_row,
)
from holdfast.backends.mongodb.schema import DURABLE, Collections
from holdfast.backends.runtime.group_commit import Outcome
from holdfast.backends.tables import LINES, Key, Table
from holdfast.errors import UnavailableError

_ATTEMPTS = 12
_LONGEST_PAUSE = 0.05

_ABORT_SECONDS = 1.0
"""How long to try to abort a transaction on the server."""

_CACHED_LINES = 4096
"""The number of lines that are cached."""
_CACHED_ROWS = 32
"""The number of rows of a line whose columns are cached."""

_KEYS_PER_REQUEST = 1_000
"""The most keys in one operation."""

_MAX_BLIND_PUTS = 100
"""More rows than this are not put before it is read which of them exist."""

_SMALL = 8 << 20
"""A group that takes fewer bytes fits into the smallest server's cache, unless other transactions fill it."""

_ROWS_PER_REQUEST = 2_000
"""The most rows in one request: converting them to documents blocks the loop, and takes memory."""

_ALL_LINES: Key = ("", "", "")
"""Stands for the lock document of all groups that delete less than a line. No line has this key."""

_Operation: TypeAlias = "DeleteMany | DeleteOne | InsertOne[Document] | ReplaceOne[Document] | UpdateOne"


class _ConcurrentChange(Exception):
    """The data that a group was evaluated on has changed."""


@dataclass
class _LineState:
    """The state of a line: the token of the group that wrote to it last, and columns of rows after that."""

    last: str = ""
    parts: bool = False
    """Whether any of its bodies was ever stored in parts."""
    cached: dict[RowKey, Columns | None] = field(default_factory=dict)


@dataclass
class _GroupView:
    """The data that a group is evaluated on."""

    lines: dict[Key, _LineState]
    is_read: bool
    """Whether it was read for this group; if not, it is cached, and the rest is guessed."""
    columns: dict[RowKey, Columns | None] = field(default_factory=dict)
    present: set[RowKey] = field(default_factory=set)
    """The rows that the group puts and that exist."""
    replaced: dict[RowKey, Document] = field(default_factory=dict)
    """The parts of bodies that the group may replace or delete."""

    def lookup(self, space: Table, key: Key) -> Columns | None:
        """Return the columns of a row. Rows that are not cached are to be created, and guessed not to exist."""
        return self.columns.get((space, key))


class Committer:
    """Commits the groups of one client."""

    def __init__(self, collections: Collections) -> None:
        self._collections = collections
        self._uploads = LargeBodies(collections)
        self._lines: OrderedDict[Key, _LineState] = OrderedDict()
        self._locked_lines: set[Key] = set()
        self._unlocked = asyncio.Condition()
        self._endings: set[asyncio.Future[None]] = set()
        """The ends of sessions that are in progress."""

    async def close(self) -> None:
        """Wait for the ends of sessions."""
        while self._endings:
            await asyncio.wait(self._endings)

    async def commit(self, batches: list[Batch], stamp: GroupStamp) -> list[Outcome]:
        """Commit a group, or find out its recorded outcomes."""
        group = CommitGroup(batches, stamp)
        async with self._lock_lines(group):
            try:
                parts = await self._uploads.upload(group)
                for attempt in range(_ATTEMPTS):
                    try:
                        outcomes = await self._attempt(group, parts, guess=attempt == 0 and not parts)
                        return group.all_outcomes(outcomes)
                    except _ConcurrentChange:
                        self._drop_cached(group)
                        if attempt:
                            pause = min(_LONGEST_PAUSE, 0.002 * 2**attempt)
                            await asyncio.sleep(pause * random.random())  # noqa: S311 - so that one of two succeeds
            except BaseException:
                self._drop_cached(group)
                raise
        await end_orphaned_transactions(self._collections)
        raise ServerInterrupted("others keep writing to the same threads")

    @asynccontextmanager
    async def _lock_lines(self, group: CommitGroup) -> AsyncIterator[None]:
        """Wait for other groups of this client that touch the same lines, which would conflict."""
        lines = {*group.lines, _ALL_LINES} if group.wide_deletes else group.lines
        async with self._unlocked:
            await self._unlocked.wait_for(lambda: self._can_lock(lines))
            self._locked_lines |= lines
        try:
            yield
        finally:
            async with self._unlocked:
                self._locked_lines -= lines
                self._unlocked.notify_all()

    @asynccontextmanager
    async def _session(self) -> AsyncIterator[AsyncClientSession]:
        """A session for one transaction, which is aborted unless it is committed."""
        session = self._collections.database.client.start_session()
        ending = asyncio.current_task()
        try:
            yield session
        finally:
            end = asyncio.ensure_future(_end_session(session))
            self._endings.add(end)
            end.add_done_callback(self._endings.discard)
            # A caller whose time is over does not wait for it.
            if ending is None or not ending.cancelling():
                await end

    def _can_lock(self, lines: set[Key]) -> bool:
        if _ALL_LINES in lines or _ALL_LINES in self._locked_lines:
            return not self._locked_lines
        return self._locked_lines.isdisjoint(lines)

    async def _attempt(self, group: CommitGroup, parts: dict[int, Document], guess: bool) -> list[int | None]:
        view = self._cached_view(group) if guess else None
        if view is None:
            recorded = await self._read_view(group)
            if isinstance(recorded, list):
                return recorded
            view = recorded
        outcomes, effect = evaluate(group.batches, view.lookup)
        if not effect.written and not effect.deleted:
            if not view.is_read:
                raise _ConcurrentChange
            await self._uploads.discard(group)
            return outcomes
        accepted = [batch for batch, refused in zip(group.batches, outcomes, strict=True) if refused is None]
        token = f"{group.stamp.client}-{group.stamp.slot}-{group.stamp.number}"
        lines = {line: view.lines.get(line, _LineState()) for line in find_lines(accepted)}
        if group.wide_deletes:
            lines |= view.lines
        if not view.is_read and not group.lines <= lines.keys():
            raise _ConcurrentChange  # a batch was refused because of cached data that nothing verifies
        async with self._session() as session:
            await session.start_transaction(ReadConcern("snapshot"), DURABLE, ReadPreference.PRIMARY)
            try:
                await self._replace_locks(session, group, lines, token, effect, parts, outcomes)
                await self._write(session, group, view, effect, parts)
            except PyMongoError as error:
                if error_codes(error) & {DUPLICATE, WRITE_CONFLICT}:
                    raise _ConcurrentChange from error
                if error_codes(error) & {OVERFLOW} and sum(map(cache_weight, group.batches)) < _SMALL:
                    raise ServerInterrupted("the server's cache is full of uncommitted changes") from error
                raise
            try:
                await session.commit_transaction()
            except PyMongoError as error:
                if error_codes(error) & {WRITE_CONFLICT}:
                    raise _ConcurrentChange from error
                if error.has_error_label("TransientTransactionError") or error_codes(error) & {OVERFLOW}:
                    raise  # it was not committed; after any other error that is unknown
                raise ServerInterrupted(str(error), sent=True) from error
        self._cache_lines(group, view, lines, token, effect, parts)
        self._uploads.forget(group)
        return outcomes

    # Reading

    def _cached_view(self, group: CommitGroup) -> _GroupView | None:
        """Return the view from the cache, if that may be enough."""
        if group.wide_deletes:
            return None
        lines: dict[Key, _LineState] = {}
        for line in group.lines:
            state = self._lines.get(line)
            if state is None and (LINES, line) not in group.created:
                return None
            lines[line] = state or _LineState()  # a line that is created is new
        if (group.put or group.deleted) and any(line.parts for line in lines.values()):
            return None
        if len(group.put) > _MAX_BLIND_PUTS and any(lines[line_of(key)].last for _, key in group.put):
            return None
        if group.deletes_created:
            return None
        cached = {place: columns for line in lines.values() for place, columns in line.cached.items()}
        for place in group.expected:
            if not lines[line_of(place[1])].last:
                cached[place] = None
        return _GroupView(lines, False, cached) if group.expected <= cached.keys() else None

    async def _read_view(self, group: CommitGroup) -> _GroupView | list[int | None]:
        """Read the view of the group; or its outcomes, if it was committed already."""
        collections = self._collections
        client, ids = _client_id(group.stamp), [_lock_id(line) for line in group.lines]
        locks: list[Document] = [
            {"_id": {"$in": [client, *ids, *([_lock_id(_ALL_LINES)] if group.wide_deletes else [])]}}
        ]
        locks += [{"_id": id_range(LINES, prefix)} for prefix in group.wide_deletes]
        requests = [FindRequest(collections.commits, [{"$match": {"$or": locks}}], len(ids))]
        spaces: list[Table] = []
        for space, keys in _group_by_table(group.lookups):
            for chunk in _chunks(keys):
                matching = {"_id": {"$in": [build_id(space, key) for key in chunk]}}
                requests.append(
                    FindRequest(
                        collections.table(space), [{"$match": matching}, {"$project": {BODY: 0, PARTS: 0}}], len(chunk)
                    )
                )
                spaces.append(space)
        columns = len(spaces)
        bare = {"$project": {PARTS: 1}}
        for space, keys in _group_by_table(group.put):
            for chunk in _chunks(keys):
                matching = {"_id": {"$in": [build_id(space, key) for key in chunk]}}
                requests.append(FindRequest(collections.table(space), [{"$match": matching}, bare], len(chunk)))
                spaces.append(space)
        for space, prefixes in _group_by_table(group.deleted):
            for range_ in _id_ranges(space, prefixes):
                in_parts = {"_id": range_, PARTS: {"$exists": True}}
                requests.append(
                    FindRequest(collections.table(space), [{"$match": in_parts}, bare], len(range_.get("$in", "..")))
                )
                spaces.append(space)
        async with collections.database.client.start_session(snapshot=True) as session:
            found = await find(session, requests)
        view = _GroupView({}, True, dict.fromkeys(group.lookups))
        for document in found[0]:
            if document["_id"] == client:
                outcomes = _recorded_outcomes(document, group.stamp)
                if outcomes is not None:
                    return outcomes
            elif "last" in document:
                view.lines[_line_of_lock(document)] = _LineState(document["last"], document.get("parts", False))
        for line in (*group.lines, _ALL_LINES) if group.wide_deletes else group.lines:
            view.lines.setdefault(line, _LineState())
        for number, (space, documents) in enumerate(zip(spaces, found[1:], strict=True)):
            for document in documents:
                if number < columns:
                    row = to_row(space, document)
                    view.columns[space, row.key] = row.columns
                else:
                    place = (space, read_key(space, document))
                    view.present.add(place)
                    if PARTS in document:
                        view.replaced[place] = document[PARTS]
        return view

    # The cache

    def _cache_lines(
        self,
        group: CommitGroup,
        view: _GroupView,
        lines: dict[Key, _LineState],
        token: str,
        effect: Effect,
        parts: dict[int, Document],
    ) -> None:
        """Cache the state of the lines after a commit."""
        if group.wide_deletes:
            return
        for line, old in lines.items():
            expected = [place for place in group.expected if line_of(place[1]) == line]
            guessed = not view.is_read and (LINES, line) in group.only_ensured
            if (LINES, line) in effect.written and not guessed:
                expected.append((LINES, line))  # conditions will depend on it
            keys = list(dict.fromkeys([*old.cached, *expected]))[-_CACHED_ROWS:]
            columns = {(space, key): effect.columns(space, key, view.lookup) for space, key in keys}
            self._lines[line] = _LineState(token, old.parts or bool(parts), columns)
            self._lines.move_to_end(line)
        while len(self._lines) > _CACHED_LINES:
            self._lines.popitem(last=False)

    def _drop_cached(self, group: CommitGroup) -> None:
        if group.wide_deletes:
            self._lines.clear()
        for line in group.lines:
            self._lines.pop(line, None)

    # Writing

    async def _replace_locks(
        self,
        session: AsyncClientSession,
        group: CommitGroup,
        lines: dict[Key, _LineState],
        token: str,
        effect: Effect,
        parts: dict[int, Document],
        outcomes: list[int | None],
    ) -> None:
        """Replace the lock documents of the lines, and record the outcomes."""
        emptied = {prefix for prefixes in effect.deleted.values() for prefix in prefixes if len(prefix) <= LINE_WIDTH}
        reported = changed_lines(group.batches)
        operations: list[_Operation] = []
        for line, state in lines.items():
            change: Document = {"$set": {"last": token}}
            if reported is not None and line not in reported:
                change["$set"][QUIET] = token
            if parts:
                change["$set"]["parts"] = True
            if any(line[:width] in emptied for width in range(LINE_WIDTH + 1)):
                change["$set"]["emptied"] = True
            else:
                change["$unset"] = {"emptied": ""}
            # A missing one is inserted, which fails if another process has inserted it since.
            operations.append(UpdateOne({"_id": _lock_id(line), "last": state.last}, change, upsert=not state.last))
        stamp = group.stamp
        operations.append(
            UpdateOne(
                {"_id": _client_id(stamp), "number": {"$lt": stamp.number}},
                {"$set": {"number": stamp.number, "outcomes": outcomes}, "$currentDate": {"time": True}},
                upsert=True,
            )
        )
        uploads = {location["upload"] for location in parts.values()}
        removals: list[_Operation] = [DeleteOne({"_id": {"upload": upload}, "swept": None}) for upload in uploads]
        done = await self._collections.commits.bulk_write([*operations, *removals], session=session)
        if done.matched_count + done.upserted_count != len(operations) or done.deleted_count != len(removals):
            raise _ConcurrentChange
        for prefix in group.wide_deletes:
            # A line that was created after the group was evaluated would be deleted without its writer noticing.
            unseen = {"_id": id_range(LINES, prefix), "last": {"$exists": True, "$ne": token}}
            if await self._collections.commits.find_one(unseen, {"_id": 1}, session=session):
                raise _ConcurrentChange

    async def _write(
        self,
        session: AsyncClientSession,
        group: CommitGroup,
        view: _GroupView,
        effect: Effect,
        parts: dict[int, Document],
    ) -> None:
        # Looking up missing keys is slow in MongoDB where much was deleted: so rows are inserted if possible.
        fresh = effect.created | (group.put - view.present if view.is_read else set())
        rows: dict[Table, list[Row]] = {space: [] for space in effect.deleted}
        for place, row in sorted(effect.written.items(), key=lambda item: item[0] not in fresh):
            rows.setdefault(place[0], []).append(row)

        def operation(space: Table, row: Row) -> _Operation:
            place, document = (space, row.key), to_document(space, row, parts.get(id(row)))
            # A line without a writer is empty. If that guess is wrong, the insert fails.
            guessed_new = not view.is_read and not view.lines[line_of(row.key)].last
            if not view.is_read and not guessed_new and place in group.only_ensured:
                found = document.pop("_id")
                return UpdateOne({"_id": found}, {"$setOnInsert": document}, upsert=True)
            if guessed_new or place in fresh:
                return InsertOne(document)
            return ReplaceOne({"_id": document["_id"]}, document, upsert=True)

        for space, table_rows in rows.items():
            operations: list[_Operation] = [
                DeleteMany({"_id": matching}) for matching in _id_ranges(space, effect.deleted.get(space, ()))
            ]
            for start in range(0, max(1, len(table_rows)), _ROWS_PER_REQUEST):
                operations += [operation(space, row) for row in table_rows[start : start + _ROWS_PER_REQUEST]]
                await self._collections.table(space).bulk_write(operations, session=session)
                operations = []
        useless = list(_unused_parts(view, effect, parts))
        if useless:
            await self._collections.parts.bulk_write(useless, session=session)


async def _end_session(session: AsyncClientSession) -> None:
    try:
        async with asyncio.timeout(_ABORT_SECONDS):
            await session.end_session()
    except TimeoutError:
        pass  # the connection is dead; the transaction is ended as orphaned, or when the session is used again


def _unused_parts(view: _GroupView, effect: Effect, parts: dict[int, Document]) -> Iterator[_Operation]:
    """Yield the removals of parts of bodies that are replaced or deleted, and of uploads that were not needed."""
    written = {id(row) for row in effect.written.values()}
    locations = [where for row, where in parts.items() if row not in written]
    locations += [
        where for place, where in view.replaced.items() if place in effect.written or effect.deletes(place[0], place[1])
    ]
    for where in locations:
        yield DeleteMany({"_id": part_range(where["upload"], where["first"], where["count"])})


def _id_ranges(space: Table, prefixes: Iterable[Key]) -> Iterator[Document]:
    """Yield filters for the `_id`s that start with matching prefixes: whole keys together, others one by one."""
    whole = [prefix for prefix in prefixes if len(prefix) == len(space.key)]
    for chunk in _chunks(whole):
        yield {"$in": [build_id(space, key) for key in chunk]}
    for prefix in prefixes:
        if len(prefix) < len(space.key):
            yield id_range(space, prefix)


def _group_by_table(places: set[RowKey]) -> Iterator[tuple[Table, list[Key]]]:
    spaces: dict[Table, list[Key]] = {}
    for space, key in places:
        spaces.setdefault(space, []).append(key)
    yield from spaces.items()


def _chunks(keys: list[Key]) -> Iterator[list[Key]]:
    for start in range(0, len(keys), _KEYS_PER_REQUEST):
        yield keys[start : start + _KEYS_PER_REQUEST]


def _lock_id(line: Key) -> Document:
    return {"all": True} if line is _ALL_LINES else build_id(LINES, line)


def _line_of_lock(document: Document) -> Key:
    found = document["_id"]
    return _ALL_LINES if "all" in found else tuple(found.values())


def _client_id(stamp: GroupStamp) -> Document:
    return {"client": stamp.client, "slot": stamp.slot}


def _recorded_outcomes(document: Document, stamp: GroupStamp) -> list[int | None] | None:
    """Return the recorded outcomes of a group; None if there are none."""
    if document["number"] > stamp.number:
        raise UnavailableError(
            "a later group of writes by this client was committed before this one", hint="Check what was saved"
        )
    return list(document["outcomes"]) if document["number"] == stamp.number else None
