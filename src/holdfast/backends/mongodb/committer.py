"""Committing groups of batches to MongoDB.

**How batches are kept apart.** For each line there is a document that says which group wrote to it last. A group is
judged by what was read at one moment, these documents among it. Its transaction then begins by replacing them, on
condition that they are as they were read; MongoDB lets only one of two transactions do so. So whatever was read of the
lines still holds when the transaction commits. One that deletes by less than a line replaces the documents of all lines
there are under it, and one more that is common to all such groups.

**What it costs.** A store remembers of a line who wrote to it last, and what conditions were about. While nobody else
writes to the line it need not read: the usual group is three round trips, with a key that may be taken inserted rather
than looked up. Where that goes wrong, the group is read and judged anew.
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
from holdfast.backends.interface import Batch, Row
from holdfast.backends.mongodb.commit_group import LINE, CommitGroup, line_of, lines_of, weight_of
from holdfast.backends.mongodb.errors import DUPLICATE, OVERFLOW, WRITE_CONFLICT, codes_of
from holdfast.backends.mongodb.large_bodies import LargeBodies
from holdfast.backends.mongodb.orphaned_transactions import end_abandoned
from holdfast.backends.mongodb.reader import FindRequest, find, parts_under
from holdfast.backends.mongodb.row_mapping import BODY, PARTS, Document, document_of, id_of, key_of, row_of, under
from holdfast.backends.mongodb.schema import DURABLE, Collections
from holdfast.backends.runtime.group_commit import Outcome
from holdfast.backends.tables import LINES, Key, Table
from holdfast.errors import UnavailableError

_ATTEMPTS = 12
_LONGEST_PAUSE = 0.05

_ABORTING = 1.0
"""For how many seconds to try to tell the server that a transaction is given up."""

_LINES = 4096
"""Of how many lines it is remembered who wrote last."""
_KNOWN = 32
"""Of how many rows of a line the columns are remembered."""

_KEYS = 1_000
"""How many keys are deleted by one operation."""

_MANY = 100
"""So many rows are not put before it was looked which of them are there."""

_LIGHT = 8 << 20
"""What takes fewer bytes of the server's cache has room in the smallest, if others leave it."""

_ROWS = 2_000
"""How many rows are sent at a time: to make documents of them takes all of the loop's time, and room."""

_ALL_LINES: Key = ("", "", "")
"""Stands for the document that all groups replace which delete by less than a line. No line is named so."""

_Operation: TypeAlias = "DeleteMany | DeleteOne | InsertOne[Document] | ReplaceOne[Document] | UpdateOne"


class _Stale(Exception):
    """What the group was judged by does not hold any more."""


@dataclass
class _Line:
    """What is known of a line: the group that wrote to it last, and columns of rows as that left them."""

    last: str = ""
    parts: bool = False
    """Whether bodies in it were ever kept in parts."""
    known: dict[RowKey, Columns | None] = field(default_factory=dict)


@dataclass
class _View:
    """What a group is judged by."""

    lines: dict[Key, _Line]
    whole: bool
    """Whether it was read for this group; if not, it is what is remembered, and the rest is guessed."""
    columns: dict[RowKey, Columns | None] = field(default_factory=dict)
    present: set[RowKey] = field(default_factory=set)
    """What is there of that which the group puts."""
    replaced: dict[RowKey, Document] = field(default_factory=dict)
    """Where parts are of bodies that the group may replace or delete."""

    def lookup(self, space: Table, key: Key) -> Columns | None:
        """The columns of a row. What a guess does not have is to be created or ensured, and guessed not to be there."""
        return self.columns.get((space, key))


class Committer:
    """Commits the groups of one client."""

    def __init__(self, layout: Collections) -> None:
        self._layout = layout
        self._uploads = LargeBodies(layout)
        self._lines: OrderedDict[Key, _Line] = OrderedDict()
        self._busy: set[Key] = set()
        self._turn = asyncio.Condition()

    async def commit(self, batches: list[Batch], stamp: GroupStamp) -> list[Outcome]:
        """Make a group, or find out what became of it."""
        group = CommitGroup(batches, stamp)
        async with self._alone(group):
            try:
                parts = await self._uploads.of(group)
                for attempt in range(_ATTEMPTS):
                    try:
                        outcomes = await self._attempt(group, parts, guess=attempt == 0 and not parts)
                        return group.all_outcomes(outcomes)
                    except _Stale:
                        self._forget(group)
                        if attempt:
                            pause = min(_LONGEST_PAUSE, 0.002 * 2**attempt)
                            await asyncio.sleep(pause * random.random())  # noqa: S311 - so that one of two gets ahead
            except BaseException:
                self._forget(group)
                raise
        await end_abandoned(self._layout)
        raise ServerInterrupted("others write to the same threads all the time")

    @asynccontextmanager
    async def _alone(self, group: CommitGroup) -> AsyncIterator[None]:
        """Wait for other groups of this client that touch the same lines: they would only get into conflict."""
        lines = {*group.lines, _ALL_LINES} if group.wide else group.lines
        async with self._turn:
            await self._turn.wait_for(lambda: self._is_free(lines))
            self._busy |= lines
        try:
            yield
        finally:
            async with self._turn:
                self._busy -= lines
                self._turn.notify_all()

    @asynccontextmanager
    async def _session(self) -> AsyncIterator[AsyncClientSession]:
        """A session for one transaction, which is aborted if it is not committed."""
        session = self._layout.database.client.start_session()
        try:
            yield session
        finally:
            try:
                async with asyncio.timeout(_ABORTING):
                    await session.end_session()
            except TimeoutError:
                pass  # the connection is dead: it is aborted as abandoned, or when the session is used again

    def _is_free(self, lines: set[Key]) -> bool:
        if _ALL_LINES in lines or _ALL_LINES in self._busy:
            return not self._busy
        return self._busy.isdisjoint(lines)

    async def _attempt(self, group: CommitGroup, parts: dict[int, Document], guess: bool) -> list[int | None]:
        view = self._remembered(group) if guess else None
        if view is None:
            recorded = await self._recorded(group)
            if isinstance(recorded, list):
                return recorded
            view = recorded
        outcomes, effect = evaluate(group.batches, view.lookup)
        if not effect.written and not effect.deleted:
            if not view.whole:
                raise _Stale
            await self._uploads.discard(group)
            return outcomes
        made = [batch for batch, refused in zip(group.batches, outcomes, strict=True) if refused is None]
        token = f"{group.stamp.client}-{group.stamp.slot}-{group.stamp.number}"
        lines = {line: view.lines.get(line, _Line()) for line in lines_of(made)}
        if group.wide:
            lines |= view.lines
        if not view.whole and not group.lines <= lines.keys():
            raise _Stale  # a batch was refused for what is remembered of a line, and nothing would tell if that is true
        async with self._session() as session:
            await session.start_transaction(ReadConcern("snapshot"), DURABLE, ReadPreference.PRIMARY)
            try:
                await self._replace_locks(session, group, lines, token, effect, parts, outcomes)
                await self._write(session, group, view, effect, parts)
            except PyMongoError as error:
                if codes_of(error) & {DUPLICATE, WRITE_CONFLICT}:
                    raise _Stale from error
                if codes_of(error) & {OVERFLOW} and sum(map(weight_of, group.batches)) < _LIGHT:
                    raise ServerInterrupted("the server's cache is full of what others have not committed") from error
                raise
            try:
                await session.commit_transaction()
            except PyMongoError as error:
                if codes_of(error) & {WRITE_CONFLICT}:
                    raise _Stale from error
                if error.has_error_label("TransientTransactionError") or codes_of(error) & {OVERFLOW}:
                    raise  # the server says that it was not made; of anything else nobody knows
                raise ServerInterrupted(str(error), sent=True) from error
        self._remember(group, view, lines, token, effect, parts)
        self._uploads.forget(group)
        return outcomes

    # What is known beforehand

    def _remembered(self, group: CommitGroup) -> _View | None:
        """What is remembered, if that may be enough."""
        if group.wide:
            return None
        lines: dict[Key, _Line] = {}
        for line in group.lines:
            found = self._lines.get(line)
            if found is None and (LINES, line) not in group.created:
                return None
            lines[line] = found or _Line()  # one that is to be created is new: nobody has written to it yet
        if (group.put or group.deleted) and any(line.parts for line in lines.values()):
            return None
        if len(group.put) > _MANY and any(lines[line_of(key)].last for _, key in group.put):
            return None
        if group.deletes_created:
            return None
        known = {place: columns for line in lines.values() for place, columns in line.known.items()}
        for place in group.expected:
            if not lines[line_of(place[1])].last:
                known[place] = None
        return _View(lines, False, known) if group.expected <= known.keys() else None

    async def _recorded(self, group: CommitGroup) -> _View | list[int | None]:
        """Read what the group is about; or the outcomes, if it was made already."""
        layout = self._layout
        client, ids = _client_id(group.stamp), [_lock_id(line) for line in group.lines]
        locks: list[Document] = [{"_id": {"$in": [client, *ids, *([_lock_id(_ALL_LINES)] if group.wide else [])]}}]
        locks += [{"_id": under(LINES, prefix)} for prefix in group.wide]
        questions = [FindRequest(layout.commits, [{"$match": {"$or": locks}}], len(ids))]
        spaces: list[Table] = []
        for space, keys in _by_space(group.asked):
            for some in _some(keys):
                these = {"_id": {"$in": [id_of(space, key) for key in some]}}
                questions.append(
                    FindRequest(layout.of(space), [{"$match": these}, {"$project": {BODY: 0, PARTS: 0}}], len(some))
                )
                spaces.append(space)
        columns = len(spaces)
        bare = {"$project": {PARTS: 1}}
        for space, keys in _by_space(group.put):
            for some in _some(keys):
                these = {"_id": {"$in": [id_of(space, key) for key in some]}}
                questions.append(FindRequest(layout.of(space), [{"$match": these}, bare], len(some)))
                spaces.append(space)
        for space, prefixes in _by_space(group.deleted):
            for range_ in _ranges(space, prefixes):
                kept = {"_id": range_, PARTS: {"$exists": True}}
                questions.append(FindRequest(layout.of(space), [{"$match": kept}, bare], len(range_.get("$in", ".."))))
                spaces.append(space)
        async with layout.database.client.start_session(snapshot=True) as session:
            found = await find(session, questions)
        view = _View({}, True, dict.fromkeys(group.asked))
        for document in found[0]:
            if document["_id"] == client:
                outcomes = _outcomes(document, group.stamp)
                if outcomes is not None:
                    return outcomes
            elif "last" in document:
                view.lines[_line_of_lock(document)] = _Line(document["last"], document.get("parts", False))
        for line in (*group.lines, _ALL_LINES) if group.wide else group.lines:
            view.lines.setdefault(line, _Line())
        for number, (space, documents) in enumerate(zip(spaces, found[1:], strict=True)):
            for document in documents:
                if number < columns:
                    row = row_of(space, document)
                    view.columns[space, row.key] = row.columns
                else:
                    place = (space, key_of(space, document))
                    view.present.add(place)
                    if PARTS in document:
                        view.replaced[place] = document[PARTS]
        return view

    # What is remembered

    def _remember(
        self,
        group: CommitGroup,
        view: _View,
        lines: dict[Key, _Line],
        token: str,
        effect: Effect,
        parts: dict[int, Document],
    ) -> None:
        """Note what the lines are like now."""
        if group.wide:
            return
        for line, old in lines.items():
            asked = [place for place in group.expected if line_of(place[1]) == line]
            guessed = not view.whole and (LINES, line) in group.only_ensured
            if (LINES, line) in effect.written and not guessed:
                asked.append((LINES, line))  # it will be asked for
            known = list(dict.fromkeys([*old.known, *asked]))[-_KNOWN:]
            columns = {(space, key): effect.columns(space, key, view.lookup) for space, key in known}
            self._lines[line] = _Line(token, old.parts or bool(parts), columns)
            self._lines.move_to_end(line)
        while len(self._lines) > _LINES:
            self._lines.popitem(last=False)

    def _forget(self, group: CommitGroup) -> None:
        if group.wide:
            self._lines.clear()
        for line in group.lines:
            self._lines.pop(line, None)

    # Writing

    async def _replace_locks(
        self,
        session: AsyncClientSession,
        group: CommitGroup,
        lines: dict[Key, _Line],
        token: str,
        effect: Effect,
        parts: dict[int, Document],
        outcomes: list[int | None],
    ) -> None:
        """Say who writes to the lines, and what becomes of the group."""
        emptied = {prefix for prefixes in effect.deleted.values() for prefix in prefixes if len(prefix) <= LINE}
        operations: list[_Operation] = []
        for line, seen in lines.items():
            change: Document = {"$set": {"last": token}}
            if parts:
                change["$set"]["parts"] = True
            if any(line[:width] in emptied for width in range(LINE + 1)):
                change["$set"]["emptied"] = True
            else:
                change["$unset"] = {"emptied": ""}
            # Where there is none yet, one is inserted; if that has been done meanwhile, the key is taken.
            operations.append(UpdateOne({"_id": _lock_id(line), "last": seen.last}, change, upsert=not seen.last))
        stamp = group.stamp
        operations.append(
            UpdateOne(
                {"_id": _client_id(stamp), "number": {"$lt": stamp.number}},
                {"$set": {"number": stamp.number, "outcomes": outcomes}, "$currentDate": {"time": True}},
                upsert=True,
            )
        )
        uploads = {kept["upload"] for kept in parts.values()}
        removals: list[_Operation] = [DeleteOne({"_id": {"upload": upload}, "swept": None}) for upload in uploads]
        done = await self._layout.commits.bulk_write([*operations, *removals], session=session)
        if done.matched_count + done.upserted_count != len(operations) or done.deleted_count != len(removals):
            raise _Stale
        for prefix in group.wide:
            # A line that came after the group was judged: its rows would go, and whoever made it would not know.
            unseen = {"_id": under(LINES, prefix), "last": {"$exists": True, "$ne": token}}
            if await self._layout.commits.find_one(unseen, {"_id": 1}, session=session):
                raise _Stale

    async def _write(
        self, session: AsyncClientSession, group: CommitGroup, view: _View, effect: Effect, parts: dict[int, Document]
    ) -> None:
        # To look for what is not there takes MongoDB long where much was deleted: what can be is inserted.
        fresh = effect.created | (group.put - view.present if view.whole else set())
        rows: dict[Table, list[Row]] = {space: [] for space in effect.deleted}
        for place, row in sorted(effect.written.items(), key=lambda item: item[0] not in fresh):
            rows.setdefault(place[0], []).append(row)

        def operation(space: Table, row: Row) -> _Operation:
            place, document = (space, row.key), document_of(space, row, parts.get(id(row)))
            # In a line that nobody wrote to there is nothing. If that is wrong, what is inserted meets what is there.
            guessed_new = not view.whole and not view.lines[line_of(row.key)].last
            if not view.whole and not guessed_new and place in group.only_ensured:
                found = document.pop("_id")
                return UpdateOne({"_id": found}, {"$setOnInsert": document}, upsert=True)
            if guessed_new or place in fresh:
                return InsertOne(document)
            return ReplaceOne({"_id": document["_id"]}, document, upsert=True)

        for space, those in rows.items():
            operations: list[_Operation] = [
                DeleteMany({"_id": these}) for these in _ranges(space, effect.deleted.get(space, ()))
            ]
            for start in range(0, max(1, len(those)), _ROWS):
                operations += [operation(space, row) for row in those[start : start + _ROWS]]
                await self._layout.of(space).bulk_write(operations, session=session)
                operations = []
        useless = list(_useless(view, effect, parts))
        if useless:
            await self._layout.parts.bulk_write(useless, session=session)


def _useless(view: _View, effect: Effect, parts: dict[int, Document]) -> Iterator[_Operation]:
    """Removes parts of bodies that are replaced or deleted, and of those that were not wanted after all."""
    wanted = {id(row) for row in effect.written.values()}
    kept = [where for row, where in parts.items() if row not in wanted]
    kept += [
        where for place, where in view.replaced.items() if place in effect.written or effect.deletes(place[0], place[1])
    ]
    for where in kept:
        yield DeleteMany({"_id": parts_under(where["upload"], where["first"], where["count"])})


def _ranges(space: Table, prefixes: Iterable[Key]) -> Iterator[Document]:
    """What finds the `_id`s that start with these prefixes: whole keys together, and all others one by one."""
    whole = [prefix for prefix in prefixes if len(prefix) == len(space.key)]
    for some in _some(whole):
        yield {"$in": [id_of(space, key) for key in some]}
    for prefix in prefixes:
        if len(prefix) < len(space.key):
            yield under(space, prefix)


def _by_space(places: set[RowKey]) -> Iterator[tuple[Table, list[Key]]]:
    spaces: dict[Table, list[Key]] = {}
    for space, key in places:
        spaces.setdefault(space, []).append(key)
    yield from spaces.items()


def _some(keys: list[Key]) -> Iterator[list[Key]]:
    for start in range(0, len(keys), _KEYS):
        yield keys[start : start + _KEYS]


def _lock_id(line: Key) -> Document:
    return {"all": True} if line is _ALL_LINES else id_of(LINES, line)


def _line_of_lock(document: Document) -> Key:
    found = document["_id"]
    return _ALL_LINES if "all" in found else tuple(found.values())


def _client_id(stamp: GroupStamp) -> Document:
    return {"client": stamp.client, "slot": stamp.slot}


def _outcomes(document: Document, stamp: GroupStamp) -> list[int | None] | None:
    """What was recorded of a group, if anything was."""
    if document["number"] > stamp.number:
        raise UnavailableError("a later group of this client was made before this one", hint="Look what was made")
    return list(document["outcomes"]) if document["number"] == stamp.number else None
