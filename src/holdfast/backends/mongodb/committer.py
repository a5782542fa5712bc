"""Commits groups of batches to MongoDB.

**Isolation.** Changes of a line are conditional on its document (`line_document`), which has the token of the group
that changed the line last. What is read of a line still holds as long as its token is the same. Where a batch changes
only rows in that document, one update of it is the whole commit. Otherwise a transaction starts by updating the
documents of its lines, and then changes the other collections. A group that deletes a prefix shorter than a line
updates the documents of all lines under it, and one more that is common to all such groups.

**Cost.** The token of a line is cached, and the columns that conditions depend on. While no other process changes the
line, nothing is read: conditions of the batch that are not known to hold are conditions of the update. If it matches
nothing, the line is read and the batch evaluated again. The batches of a group that need only their line's document are
sent together, in one command.

**Rows move** to their own collections when the document has many of them (`follower`), and if it has very many, with a
save.

**Lost answers.** The document has the number of the last group of each client and slot. A group that is sent again
finds its number there, and what was refused.
"""

from __future__ import annotations

import asyncio
import random
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from bson.errors import InvalidDocument
from pymongo import DeleteMany, DeleteOne, InsertOne, ReplaceOne, UpdateOne
from pymongo.asynchronous.client_session import AsyncClientSession
from pymongo.errors import NotPrimaryError, OperationFailure, PyMongoError, ServerSelectionTimeoutError
from pymongo.read_concern import ReadConcern
from pymongo.read_preferences import ReadPreference

from holdfast.backends.async_backend import GroupStamp, ServerInterrupted
from holdfast.backends.batch_eval import Columns, Effect, Lookup, RowKey, condition_keys, evaluate
from holdfast.backends.feed import changed_lines
from holdfast.backends.interface import Batch
from holdfast.backends.mongodb.commit_group import CommitGroup, Part, cache_weight, find_lines
from holdfast.backends.mongodb.errors import (
    DUPLICATE,
    OVERFLOW,
    TIME_IS_OVER,
    TOO_LARGE,
    WRITE_CONFLICT,
    error_codes,
    translate,
)
from holdfast.backends.mongodb.follower import FEW_ROWS, Follower
from holdfast.backends.mongodb.large_bodies import LargeBodies
from holdfast.backends.mongodb.line_document import (
    EMPTIED,
    FOLLOWING,
    FOLLOWS,
    LAST,
    LINE_WIDTH,
    MOVED,
    PARTS_USED,
    QUIET,
    STAMPS,
    WROTE,
    LineUpdate,
    absent,
    embedded,
    embedded_rows,
    line_of,
    moved_rows,
    not_elsewhere,
    path_of,
    plan_moves,
    row_weight,
    with_columns,
)
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

_UPDATE_MS = 6_000
"""How long an update may wait for a transaction on the same line, which may be orphaned by then."""

_ABORT_SECONDS = 1.0
"""How long to try to abort a transaction on the server."""

_CACHED_LINES = 4096
"""The number of lines that are cached."""
_CACHED_ROWS = 32
"""The number of rows of a line whose columns are cached."""

_MAX_ROWS = 256
"""The number of rows in the document of a line above which a save moves them."""
_MAX_BYTES = 512 << 10
"""The bytes of a document above which a save moves its rows. It is written anew with each save."""
_MAX_ROW_BYTES = 32 << 10
"""The largest row in the document of a line."""
_MANY_ROWS = 96
"""So many rows are moved at once, in the background."""
_MANY_BYTES = 128 << 10
"""So many bytes are, too."""

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
    """What is cached of a line: the token of the group that changed it last, and columns of rows after that."""

    last: str = ""
    parts: bool = False
    """Whether any of its bodies was ever stored in parts."""
    rows: int = 0
    """How many rows its document has, at most; without those that others added."""
    weight: int = 0
    """How many bytes it has, at most."""
    cached: dict[RowKey, Columns | None] = field(default_factory=dict)


@dataclass
class _View:
    """The data that parts are evaluated on."""

    documents: dict[Key, Document] = field(default_factory=dict)
    """The documents of lines; empty if there is none."""
    columns: dict[RowKey, Columns] = field(default_factory=dict)
    """Columns of rows that are in the collections of their tables."""
    present: set[RowKey] = field(default_factory=set)
    """Rows that are put, and are in the collections of their tables."""
    replaced: dict[RowKey, Document] = field(default_factory=dict)
    """The parts of bodies that may be replaced or deleted."""

    def lookup(self, space: Table, key: Key) -> Columns | None:
        """Return the columns of a row."""
        document: Any = self.documents.get(line_of(key), {}) if space.embedded else None
        for name in path_of(space, key).split(".") if space.embedded else ():
            document = document.get(name)
            if document is None:
                break
        if document is None:
            return self.columns.get((space, key))
        return to_row(space, {**document, "_id": build_id(space, key)}).columns


@dataclass
class _Plan:
    """How a part is committed."""

    part: Part
    outcomes: Sequence[int | None]
    effect: Effect
    filters: dict[Key, Document] = field(default_factory=dict)
    """The condition on the document of each line. One with nothing but the `_id` is to be created."""
    updates: dict[Key, LineUpdate] = field(default_factory=dict)
    operations: dict[Table, list[_Operation]] = field(default_factory=dict)
    """The changes in other collections, by table."""
    useless: list[_Operation] = field(default_factory=list)
    """The removals of parts of bodies."""
    states: dict[Key, _LineState] = field(default_factory=dict)
    """What is cached afterwards."""

    @property
    def is_single(self) -> bool:
        """Whether one update is all."""
        return not (self.operations or self.useless or self.part.large_rows) and len(self.filters) == 1

    def statement(self, line: Key, group: CommitGroup, located: bool) -> tuple[Document, Document, bool]:
        """Return the filter and the update of a line's document, and whether it may be inserted."""
        condition, update = self.filters[line], self.updates[line]
        stamp = f"{STAMPS}.{_stamp_name(group.stamp)}"
        refused = [[number, at] for number, at in zip(self.part.numbers, self.outcomes, strict=True) if at is not None]
        update.set |= {f"{stamp}.number": group.stamp.number, f"{stamp}.refused": refused}
        if LAST in condition:
            update.set[LAST] = group.token
        reported = changed_lines(self.part.batches)
        if reported is not None and line not in reported:
            update.set[QUIET] = group.token
        if located:
            update.set[PARTS_USED] = True
        prefixes = {prefix for each in self.effect.deleted.values() for prefix in each if len(prefix) <= LINE_WIDTH}
        if line is not _ALL_LINES and any(line[:width] in prefixes for width in range(LINE_WIDTH + 1)):
            update.set[EMPTIED] = True
        else:
            update.unset[EMPTIED] = ""
        operators = update.operators() | {"$currentDate": {f"{stamp}.at": True}}
        if LAST not in condition:
            operators["$inc"] = {WROTE: 1}
        is_new = condition.get(LAST, "") == {"$exists": False}
        if not is_new:
            condition = {**condition, f"{stamp}.number": {"$not": {"$gte": group.stamp.number}}}
        return {"_id": _lock_id(line), **condition}, operators, is_new


class Committer:
    """Commits the groups of one client."""

    def __init__(self, collections: Collections, where: str) -> None:
        self._collections = collections
        self._where = where
        self._uploads = LargeBodies(collections)
        self._lines: OrderedDict[Key, _LineState] = OrderedDict()
        self._locked_lines: set[Key] = set()
        self._unlocked = asyncio.Condition()
        self._endings: set[asyncio.Future[None]] = set()
        """The ends of sessions that are in progress."""
        self._follower = Follower(collections, self._lock_lines, self._note_moved)

    async def close(self) -> None:
        """Wait for the ends of sessions, and for the collections that follow."""
        await self._follower.close()
        while self._endings:
            await asyncio.wait(self._endings)

    async def commit(self, batches: list[Batch], stamp: GroupStamp) -> list[Outcome]:
        """Commit a group, or find out its recorded outcomes."""
        group = CommitGroup(batches, stamp)
        pending: Sequence[Part] = group.parts
        if all(part.is_independent for part in pending):
            # They need not wait for other changes of their lines that are under way.
            pending = await self._attempt(group, pending, {}, guess=True)
            if not pending:
                return group.outcomes()
        async with self._lock_lines({*group.lines, _ALL_LINES} if group.has_wide_deletes else group.lines):
            try:
                await self._commit_parts(group, pending, guess=pending is group.parts)
            except BaseException as error:
                self._drop_cached(group.parts)
                if group.is_partly_decided and isinstance(error, PyMongoError | ServerInterrupted):
                    raise ServerInterrupted(str(error), sent=True) from error
                raise
        return group.outcomes()

    async def _commit_parts(self, group: CommitGroup, pending: Sequence[Part], guess: bool) -> None:
        """Commit parts of a group, and read as often as others change their lines."""
        located = await self._uploads.upload(group)
        for attempt in range(_ATTEMPTS):
            pending = await self._attempt(group, pending, located, guess=guess and not attempt and not located)
            if not pending:
                await self._uploads.discard(group)
                return
            self._drop_cached(pending)
            if attempt:
                pause = min(_LONGEST_PAUSE, 0.002 * 2**attempt)
                await asyncio.sleep(pause * random.random())  # noqa: S311 - so that one of two succeeds
        await end_orphaned_transactions(self._collections)
        raise ServerInterrupted("others keep writing to the same threads")

    @asynccontextmanager
    async def _lock_lines(self, lines: set[Key]) -> AsyncIterator[None]:
        """Wait for other changes of the same lines by this client, which would conflict."""
        async with self._unlocked:
            await self._unlocked.wait_for(lambda: self._can_lock(lines))
            self._locked_lines |= lines
        try:
            yield
        finally:
            async with self._unlocked:
                self._locked_lines -= lines
                self._unlocked.notify_all()

    def _can_lock(self, lines: set[Key]) -> bool:
        if _ALL_LINES in lines or _ALL_LINES in self._locked_lines:
            return not self._locked_lines
        return self._locked_lines.isdisjoint(lines)

    async def _attempt(
        self, group: CommitGroup, pending: Sequence[Part], located: dict[int, Document], guess: bool
    ) -> list[Part]:
        """Commit parts of a group. Returns those that have to be read, or read again."""
        plans: list[_Plan] = []
        left: list[Part] = []
        if guess:
            for part in pending:
                plan = self._guess(part)
                if plan is None:
                    left.append(part)
                else:
                    plans.append(plan)
        else:
            view = await self._read_view(pending)
            for part in pending:
                outcomes = _recorded_outcomes(view, part, group.stamp)
                if outcomes is not None and part.large_rows:
                    self._uploads.forget(group)  # they are in use
                plan = None if outcomes is not None else self._plan(part, view, located)
                if plan is not None and plan.filters:
                    plans.append(plan)
                else:
                    group.settle(part, outcomes or (plan.outcomes if plan else ()))
        left += await self._update_lines(group, [plan for plan in plans if plan.is_single])
        left += await self._run_transaction(group, [plan for plan in plans if not plan.is_single], located)
        return left

    # Reading

    async def _read_view(self, parts: Sequence[Part]) -> _View:
        """Read the view of some parts."""
        collections = self._collections
        lines = {line for part in parts for line in part.lines}
        wide = {prefix for part in parts for prefix in part.wide_deletes}
        requests = [
            FindRequest(
                collections.lines, [{"$match": {"_id": {"$in": [_lock_id(line) for line in chunk]}}}], len(chunk)
            )
            for chunk in _chunks([*lines, *([_ALL_LINES] if wide else [])])
        ]
        bare = {LAST: 1, WROTE: 1, MOVED: 1, STAMPS: 1}
        requests += [
            FindRequest(collections.lines, [{"$match": {"_id": id_range(LINES, prefix)}}, {"$project": bare}])
            for prefix in wide
        ]
        spaces: list[Table] = [LINES] * len(requests)

        def ask(space: Table, matching: Document, projection: Document, keys: int) -> None:
            requests.append(
                FindRequest(collections.table(space), [{"$match": matching}, {"$project": projection}], keys)
            )
            spaces.append(space)

        for space, keys in _group_by_table({place for part in parts for place in condition_keys(part.batches)}):
            for chunk in _chunks(keys):
                ask(space, {"_id": {"$in": [build_id(space, key) for key in chunk]}}, {BODY: 0, PARTS: 0}, len(chunk))
        columns = len(spaces)
        for space, keys in _group_by_table({place for part in parts for place in part.put}):
            for chunk in _chunks(keys):
                ask(space, {"_id": {"$in": [build_id(space, key) for key in chunk]}}, {PARTS: 1}, len(chunk))
        for space, prefixes in _group_by_table({place for part in parts for place in part.deleted}):
            for range_ in _id_ranges(space, prefixes):
                in_parts = {"_id": range_, PARTS: {"$exists": True}}
                ask(space, in_parts, {PARTS: 1}, len(range_.get("$in", "..")))
        async with collections.database.client.start_session(snapshot=True) as session:
            found = await find(session, requests)
        view = _View({line: {} for line in lines})
        if wide:
            view.documents[_ALL_LINES] = {}
        for number, (space, documents) in enumerate(zip(spaces, found, strict=True)):
            for document in documents:
                if space is LINES:
                    if "begun" not in document:
                        line = _line_of_lock(document)
                        view.documents[line] = view.documents.get(line) or document
                elif number < columns:
                    row = to_row(space, document)
                    view.columns[space, row.key] = row.columns
                else:
                    place = (space, read_key(space, document))
                    view.present.add(place)
                    if PARTS in document:
                        view.replaced[place] = document[PARTS]
        return view

    # Planning

    def _guess(self, part: Part) -> _Plan | None:
        """Plan a part by what is cached, and by conditions for what is not. None if its lines have to be read."""
        if part.wide_deletes or part.deletes_created or part.large_rows:
            return None
        states: dict[Key, _LineState] = {}
        for line in part.lines:
            state = self._lines.get(line)
            if state is None and (LINES, line) not in part.created and not part.is_independent:
                return None
            states[line] = state or _LineState()  # a line that is created is new
        if any(
            space.embedded and (len(prefix) < len(space.key) or space in FOLLOWING) for space, prefix in part.deleted
        ):
            return None
        beside = {(space, key) for space, key in part.put | part.deleted if not space.embedded}
        if beside and any(state.parts for state in states.values()):
            return None
        if len(beside) > _MAX_BLIND_PUTS and any(states[line_of(key)].last for _, key in beside):
            return None
        conditions: dict[Key, list[Document]] = {line: [] for line in part.lines}
        assumed: dict[RowKey, Columns | None] = {}
        ask_all = part.is_independent

        def lookup(space: Table, key: Key) -> Columns | None:
            place, line = (space, key), line_of(key)
            state = states[line]
            if place in assumed:
                return assumed[place]
            if place in state.cached and not ask_all:
                return state.cached[place]
            columns = part.expected.get(place) if state.last or ask_all else None
            assumed[place] = columns
            if space.embedded and space not in FOLLOWING and (state.last or ask_all):
                conditions[line].append(absent(space, key) if columns is None else with_columns(space, key, columns))
            return columns

        outcomes, effect = evaluate(part.batches, lookup)
        if any(outcome is not None for outcome in outcomes) or not (effect.written or effect.deleted):
            return None
        for space, key in assumed:
            if states[line_of(key)].last and (
                space in FOLLOWING or (not space.embedded and (space, key) in part.expected)
            ):
                return None  # only the line's token says that it is so
        plan = _Plan(part, outcomes, effect)
        updates = {line: LineUpdate() for line in part.lines}
        if not self._guess_rows(plan, states, updates, conditions):
            return None
        for line, update in updates.items():
            state, created = (
                states[line],
                len([key for space, key in effect.created if space.embedded and line_of(key) == line]),
            )
            removed = len([1 for space, key in part.deleted if space.embedded and line_of(key) == line])
            if state.rows + created > _MAX_ROWS or state.weight + update.weight > _MAX_BYTES:
                if state.last or created > _MAX_ROWS or update.weight > _MAX_BYTES:
                    return None
            filter_: Document = {} if ask_all else {LAST: state.last or {"$exists": False}}
            found = conditions[line]
            if found and len({name for each in found for name in each}) == sum(map(len, found)):
                filter_ |= {name: value for each in found for name, value in each.items()}
            elif found:
                filter_["$and"] = found
            plan.filters[line], plan.updates[line] = filter_, update
            if ask_all:
                state.rows, state.weight = state.rows + created, state.weight + update.weight
            else:
                rows, weight = max(0, state.rows + created - removed), state.weight + update.weight
                plan.states[line] = _LineState("", state.parts, rows, weight, state.cached)

        def known(space: Table, key: Key) -> Columns | None:
            place = (space, key)
            return assumed[place] if place in assumed else states[line_of(key)].cached.get(place)

        self._cache_columns(plan, known, guessed=True)
        return plan

    def _guess_rows(
        self,
        plan: _Plan,
        states: Mapping[Key, _LineState],
        updates: Mapping[Key, LineUpdate],
        conditions: Mapping[Key, list[Document]],
    ) -> bool:
        """Plan where rows are written. False if that has to be read."""
        effect, part = plan.effect, plan.part
        for space, prefixes in effect.deleted.items():
            if not space.embedded:
                plan.operations.setdefault(space, []).extend(
                    DeleteMany({"_id": each}) for each in _id_ranges(space, prefixes)
                )
                continue
            for key in prefixes:
                if states[line_of(key)].last:
                    conditions[line_of(key)].append(embedded(space, key))
                updates[line_of(key)].remove(space, key)
        for place, row in sorted(effect.written.items(), key=lambda item: item[0] not in effect.created):
            space, line = place[0], line_of(row.key)
            state = states[line]
            if space.embedded:
                if row_weight(row) > _MAX_ROW_BYTES:
                    return False
                updates[line].put(space, row)
                if place not in effect.created and state.last and space not in FOLLOWING:
                    condition = not_elsewhere(space, row.key)
                    if condition:
                        conditions[line].append(condition)
                continue
            operations = plan.operations.setdefault(space, [])
            document = to_document(space, row)
            # A line without a token is empty. If that guess is wrong, the insert fails.
            if state.last and place in part.only_ensured:
                found = document.pop("_id")
                operations.append(UpdateOne({"_id": found}, {"$setOnInsert": document}, upsert=True))
            elif not state.last or place in effect.created:
                operations.append(InsertOne(document))
            else:
                operations.append(ReplaceOne({"_id": document["_id"]}, document, upsert=True))
        return True

    def _plan(self, part: Part, view: _View, located: dict[int, Document]) -> _Plan:
        """Plan a part by what was read. Without filters if there is nothing to write."""
        outcomes, effect = evaluate(part.batches, view.lookup)
        plan = _Plan(part, outcomes, effect)
        if not effect.written and not effect.deleted:
            return plan
        accepted = [batch for batch, refused in zip(part.batches, outcomes, strict=True) if refused is None]
        lines = set(view.documents) if part.wide_deletes else find_lines(accepted)
        for line in lines:
            document = view.documents[line]
            plan.filters[line] = {LAST: document.get(LAST) or {"$exists": False}}
            if document:
                plan.filters[line][WROTE] = document.get(WROTE)
            plan.updates[line] = LineUpdate()
        for space, prefixes in effect.deleted.items():
            self._plan_deletions(plan, view, space, prefixes)
        self._plan_rows(plan, view, located)
        plan.useless = list(_unused_parts(view, effect, part, located))
        for line in lines - {_ALL_LINES}:
            self._plan_move(plan, line, view.documents[line])
        self._cache_columns(plan, view.lookup, guessed=False)
        return plan

    def _plan_deletions(self, plan: _Plan, view: _View, space: Table, prefixes: Iterable[Key]) -> None:
        for prefix in prefixes if space.embedded else ():
            width = min(len(prefix), LINE_WIDTH)
            for line, update in plan.updates.items():
                if line[:width] != prefix[:width] or line is _ALL_LINES:
                    continue
                if len(prefix) <= LINE_WIDTH:
                    update.empty(space)
                    update.unmark(space)
                    continue
                for document in embedded_rows(space, line, view.documents[line]):
                    key = read_key(space, document)
                    if key[: len(prefix)] == prefix:
                        update.remove(space, key)
        if space is LINES:
            return
        beside = [
            prefix
            for prefix in prefixes
            if not space.embedded
            or space in FOLLOWING
            or len(prefix) < LINE_WIDTH
            or space.name in view.documents[line_of(prefix)].get(MOVED, {})
        ]
        if beside:
            plan.operations.setdefault(space, []).extend(
                DeleteMany({"_id": each}) for each in _id_ranges(space, beside)
            )

    def _plan_rows(self, plan: _Plan, view: _View, located: dict[int, Document]) -> None:
        effect = plan.effect
        fresh = effect.created | (plan.part.put - view.present)
        weights: dict[Key, list[int]] = {}
        for (space, key), row in effect.written.items():
            if space.embedded:
                weights.setdefault(line_of(key), []).append(row_weight(row))
        full = {line for line, found in weights.items() if len(found) > _MAX_ROWS // 2 or sum(found) > _MAX_BYTES // 2}
        # Looking up missing keys is slow in MongoDB where much was deleted: so rows are inserted if possible.
        for place, row in sorted(effect.written.items(), key=lambda item: item[0] not in fresh):
            space, key = place
            line, parts = line_of(key), located.get(id(row))
            if space.embedded:
                update, stays = plan.updates[line], place in view.columns or place in view.present
                stays = stays and space not in FOLLOWING and not effect.deletes(space, key)
                too_large = parts is not None or row_weight(row) > _MAX_ROW_BYTES or line in full
                if space is LINES or not (stays or too_large):
                    update.put(space, row)
                    continue
                update.remove(space, key)
                update.mark(space, key, view.documents[line])
            document = to_document(space, row, parts)
            is_fresh = place in fresh and place not in view.columns
            operation = InsertOne(document) if is_fresh else ReplaceOne({"_id": document["_id"]}, document, upsert=True)
            plan.operations.setdefault(space, []).append(operation)

    def _plan_move(self, plan: _Plan, line: Key, document: Document) -> None:
        """Plan to move rows out of the document of a line, if it has very many."""
        update = plan.updates[line]
        moves = plan_moves(update, line, document, _MAX_ROWS, _MAX_BYTES - update.weight)
        for space, rows in moves.documents.items():
            plan.operations.setdefault(space, []).extend(moved_rows(space, rows))
        created = len([key for space, key in plan.effect.created if space.embedded and line_of(key) == line])
        plan.states[line] = _LineState(
            "", bool(document.get(PARTS_USED)), moves.rows + created, moves.weight + update.weight
        )

    # The cache

    def _cache_columns(self, plan: _Plan, lookup: Lookup, guessed: bool) -> None:
        """Prepare what is cached of the lines after a commit."""
        part, effect = plan.part, plan.effect
        for line, state in plan.states.items():
            expected = [(space, key) for space, key in part.expected if line_of(key) == line and not space.independent]
            if (LINES, line) in effect.written and not (guessed and (LINES, line) in part.only_ensured):
                expected.append((LINES, line))  # conditions will depend on it
            places = list(dict.fromkeys([*state.cached, *expected]))[-_CACHED_ROWS:]
            state.cached = {(space, key): effect.columns(space, key, lookup) for space, key in places}

    def _cache_lines(self, group: CommitGroup, plan: _Plan, located: dict[int, Document]) -> None:
        """Cache the state of the lines after a commit."""
        if plan.part.wide_deletes:
            return
        for line, state in plan.states.items():
            state.last = group.token
            state.parts = state.parts or bool(located)
            self._lines[line] = state
            self._lines.move_to_end(line)
            if FOLLOWS in plan.updates[line].set or state.rows > FEW_ROWS:
                self._follower.add(line, at_once=state.rows > _MANY_ROWS or state.weight > _MANY_BYTES)
        while len(self._lines) > _CACHED_LINES:
            self._lines.popitem(last=False)

    def _note_moved(self, line: Key, rows: int, weight: int) -> None:
        """Take note of how many rows are left in the document of a line."""
        state = self._lines.get(line)
        if state is not None:
            state.rows, state.weight = rows, weight

    def _drop_cached(self, parts: Iterable[Part]) -> None:
        for part in parts:
            if part.wide_deletes:
                self._lines.clear()
            for line in part.lines:
                self._lines.pop(line, None)

    # Writing

    async def _update_lines(self, group: CommitGroup, plans: Sequence[_Plan]) -> list[Part]:
        """Commit parts that one update is enough for. Returns those that may not have been committed."""
        if not plans:
            return []
        updates: list[Document] = []
        for plan in plans:
            (line,) = plan.filters
            condition, operators, is_new = plan.statement(line, group, located=False)
            updates.append({"q": condition, "u": operators, "upsert": is_new, "multi": False})
        lines, majority = self._collections.lines, {"w": "majority", "j": True}
        try:
            reply = await self._collections.database.command(
                {
                    "update": lines.name,
                    "updates": updates,
                    "ordered": False,
                    "writeConcern": majority,
                    "maxTimeMS": _UPDATE_MS,
                }
            )
        except PyMongoError as error:
            if error_codes(error) & TIME_IS_OVER:
                await end_orphaned_transactions(self._collections)
                return [plan.part for plan in plans]  # some may have been committed
            if _may_be_sent(error):
                raise ServerInterrupted(str(error), sent=True) from error
            raise
        unconfirmed = reply.get("writeConcernError")
        if unconfirmed:
            raise ServerInterrupted(f"a majority did not confirm it: {unconfirmed.get('errmsg')}", sent=True)
        failed: set[int] = set()
        for each in reply.get("writeErrors", ()):
            if each["code"] not in _TO_READ:
                refusal = translate(OperationFailure(each.get("errmsg", ""), each["code"], each), self._where)
                if isinstance(refusal, ServerInterrupted):
                    raise ServerInterrupted(str(refusal), sent=True)
                plan = plans[each["index"]]
                group.settle(plan.part, [refusal] * len(plan.part.numbers))
                self._drop_cached([plan.part])
                failed.add(each["index"])
        if reply["n"] + len(failed) < len(plans):
            # The stamps in the documents of lines say which of them were updated.
            return [plan.part for number, plan in enumerate(plans) if number not in failed]
        for number, plan in enumerate(plans):
            if number not in failed:
                group.settle(plan.part, plan.outcomes)
                self._cache_lines(group, plan, {})
        return []

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

    async def _run_transaction(
        self, group: CommitGroup, plans: Sequence[_Plan], located: dict[int, Document]
    ) -> list[Part]:
        """Commit parts in one transaction. Returns them if others changed their lines."""
        if not plans:
            return []
        try:
            await self._commit_plans(group, plans, located)
        except _ConcurrentChange:
            return [plan.part for plan in plans]
        except (PyMongoError, InvalidDocument) as error:
            translated = translate(error, self._where)
            if isinstance(translated, ServerInterrupted) or not group.is_partly_decided:
                raise
            for plan in plans:
                group.settle(plan.part, [translated] * len(plan.part.numbers))
            self._drop_cached([plan.part for plan in plans])
            return []
        for plan in plans:
            group.settle(plan.part, plan.outcomes)
            self._cache_lines(group, plan, located)
        self._uploads.forget(group)
        return []

    async def _commit_plans(self, group: CommitGroup, plans: Sequence[_Plan], located: dict[int, Document]) -> None:
        async with self._session() as session:
            await session.start_transaction(ReadConcern("snapshot"), DURABLE, ReadPreference.PRIMARY)
            try:
                await self._write_lines(session, group, plans, located)
                await self._write_rows(session, plans)
            except PyMongoError as error:
                if error_codes(error) & {DUPLICATE, WRITE_CONFLICT}:
                    raise _ConcurrentChange from error
                weight = sum(cache_weight(batch) for plan in plans for batch in plan.part.batches)
                if error_codes(error) & {OVERFLOW} and weight < _SMALL:
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

    async def _write_lines(
        self, session: AsyncClientSession, group: CommitGroup, plans: Sequence[_Plan], located: dict[int, Document]
    ) -> None:
        """Update the documents of the lines, and remove the notes of uploads that are used now."""
        operations: list[_Operation] = []
        for plan in plans:
            for line in plan.filters:
                condition, operators, is_new = plan.statement(line, group, bool(located))
                # A missing one is inserted, which fails if another process has inserted it since.
                operations.append(UpdateOne(condition, operators, upsert=is_new))
        uploads = {location["upload"] for location in located.values()}
        removals: list[_Operation] = [DeleteOne({"_id": {"upload": upload}, "swept": None}) for upload in uploads]
        done = await self._collections.lines.bulk_write([*operations, *removals], session=session)
        if done.matched_count + done.upserted_count != len(operations) or done.deleted_count != len(removals):
            raise _ConcurrentChange
        for prefix in {prefix for plan in plans for prefix in plan.part.wide_deletes}:
            # A line that was created after the group was evaluated would be deleted without its writer noticing.
            unseen = {"_id": id_range(LINES, prefix), LAST: {"$exists": True, "$ne": group.token}}
            if await self._collections.lines.find_one(unseen, {"_id": 1}, session=session):
                raise _ConcurrentChange

    async def _write_rows(self, session: AsyncClientSession, plans: Sequence[_Plan]) -> None:
        tables: dict[Table, list[_Operation]] = {}
        useless: list[_Operation] = []
        for plan in plans:
            for space, operations in plan.operations.items():
                tables.setdefault(space, []).extend(operations)
            useless += plan.useless
        for space, operations in tables.items():
            for start in range(0, len(operations), _ROWS_PER_REQUEST):
                await self._collections.table(space).bulk_write(
                    operations[start : start + _ROWS_PER_REQUEST], session=session
                )
        if useless:
            await self._collections.parts.bulk_write(useless, session=session)


_TO_READ = TOO_LARGE | {DUPLICATE, WRITE_CONFLICT}
"""Codes of updates of a line that has changed, or has too many rows."""


def _may_be_sent(error: PyMongoError) -> bool:
    """Whether the server may have made an update that failed."""
    if isinstance(error, ServerSelectionTimeoutError | NotPrimaryError):
        return False
    return not isinstance(error, OperationFailure) or error.has_error_label("RetryableWriteError")


async def _end_session(session: AsyncClientSession) -> None:
    try:
        async with asyncio.timeout(_ABORT_SECONDS):
            await session.end_session()
    except TimeoutError:
        pass  # the connection is dead; the transaction is ended as orphaned, or when the session is used again


def _unused_parts(view: _View, effect: Effect, part: Part, located: dict[int, Document]) -> Iterator[_Operation]:
    """Yield the removals of parts of bodies that are replaced or deleted, and of uploads that were not needed."""
    written = {id(row) for row in effect.written.values()}
    locations = [located[id(row)] for _, row in part.large_rows if id(row) not in written]
    mine: set[RowKey] = {place for place in view.replaced if line_of(place[1]) in part.lines or part.wide_deletes}
    locations += [view.replaced[place] for place in mine if place in effect.written or effect.deletes(*place)]
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
    """Yield the keys of rows that may be in the collections of their tables."""
    spaces: dict[Table, list[Key]] = {}
    for space, key in places:
        if space is not LINES:
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


def _stamp_name(stamp: GroupStamp) -> str:
    return f"{stamp.client}-{stamp.slot}"


def _recorded_outcomes(view: _View, part: Part, stamp: GroupStamp) -> list[Outcome] | None:
    """Return the recorded outcomes of a part; None if it was not committed."""
    lines = [*part.lines, *([_ALL_LINES] if part.wide_deletes else [])]
    for line in lines:
        found = view.documents[line].get(STAMPS, {}).get(_stamp_name(stamp), {})
        number = found.get("number", 0)
        if number > stamp.number:
            raise UnavailableError(
                "a later group of writes by this client was committed before this one", hint="Check what was saved"
            )
        if number == stamp.number:
            refused = dict(found["refused"])
            return [refused.get(each) for each in part.numbers]
    return None
