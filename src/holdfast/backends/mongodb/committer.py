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

**Rows move** to their own collections when the document has many of them (`row_mover`), and if it has very many, with a
save.

**Lost answers.** The document has the number of the last group of each client and slot. A group that is sent again
finds its number there, and what was refused.
"""

from __future__ import annotations

import asyncio
import random
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager

from bson.errors import InvalidDocument
from pymongo import DeleteOne, UpdateOne
from pymongo.asynchronous.client_session import AsyncClientSession
from pymongo.errors import NotPrimaryError, OperationFailure, PyMongoError, ServerSelectionTimeoutError
from pymongo.read_concern import ReadConcern
from pymongo.read_preferences import ReadPreference

from holdfast.backends.async_backend import GroupStamp, ServerInterrupted
from holdfast.backends.interface import Batch
from holdfast.backends.mongodb.commit_group import CommitGroup, Part, cache_weight
from holdfast.backends.mongodb.commit_plan import (
    ALL_LINES,
    LineState,
    Operation,
    Plan,
    guess_plan,
    plan_part,
    read_view,
    recorded_outcomes,
)
from holdfast.backends.mongodb.errors import (
    DUPLICATE,
    OVERFLOW,
    TIME_IS_OVER,
    TOO_LARGE,
    WRITE_CONFLICT,
    error_codes,
    translate,
)
from holdfast.backends.mongodb.large_bodies import LargeBodies
from holdfast.backends.mongodb.line_document import (
    LAST,
)
from holdfast.backends.mongodb.maintenance import end_orphaned_transactions
from holdfast.backends.mongodb.row_mapping import (
    Document,
    id_range,
)
from holdfast.backends.mongodb.row_mover import FEW_ROWS, RowMover
from holdfast.backends.mongodb.schema import DURABLE, Collections
from holdfast.backends.runtime.group_commit import Outcome
from holdfast.backends.tables import LINES, Key, Table

_ATTEMPTS = 12
_LONGEST_PAUSE = 0.05

_UPDATE_MS = 6_000
"""How long an update may wait for a transaction on the same line, which may be orphaned by then."""

_ABORT_SECONDS = 1.0
"""How long to try to abort a transaction on the server."""

_CACHED_LINES = 4096
"""The number of lines that are cached."""

_MANY_ROWS = 96
"""So many rows are moved at once, in the background."""
_MANY_BYTES = 128 << 10
"""So many bytes are, too."""

_SMALL = 8 << 20
"""A group that takes fewer bytes fits into the smallest server's cache, unless other transactions fill it."""

_ROWS_PER_REQUEST = 2_000
"""The most rows in one request: converting them to documents blocks the loop, and takes memory."""


class _ConcurrentChange(Exception):
    """The data that a group was evaluated on has changed."""


class Committer:
    """Commits the groups of one client."""

    def __init__(self, collections: Collections, where: str) -> None:
        self._collections = collections
        self._where = where
        self._uploads = LargeBodies(collections)
        self._lines: OrderedDict[Key, LineState] = OrderedDict()
        self._locked_lines: set[Key] = set()
        self._unlocked = asyncio.Condition()
        self._endings: set[asyncio.Future[None]] = set()
        """The ends of sessions that are in progress."""
        self._mover = RowMover(collections, self._lock_lines, self._note_moved)

    async def close(self) -> None:
        """Wait for the ends of sessions, and for the collections that follow."""
        await self._mover.close()
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
        async with self._lock_lines({*group.lines, ALL_LINES} if group.has_wide_deletes else group.lines):
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
        if ALL_LINES in lines or ALL_LINES in self._locked_lines:
            return not self._locked_lines
        return self._locked_lines.isdisjoint(lines)

    async def _attempt(
        self, group: CommitGroup, pending: Sequence[Part], located: dict[int, Document], guess: bool
    ) -> list[Part]:
        """Commit parts of a group. Returns those that have to be read, or read again."""
        plans: list[Plan] = []
        left: list[Part] = []
        if guess:
            for part in pending:
                plan = guess_plan(part, self._lines)
                if plan is None:
                    left.append(part)
                else:
                    plans.append(plan)
        else:
            view = await read_view(self._collections, pending)
            for part in pending:
                outcomes = recorded_outcomes(view, part, group.stamp)
                if outcomes is not None and part.large_rows:
                    self._uploads.forget(group)  # they are in use
                plan = None if outcomes is not None else plan_part(part, view, located)
                if plan is not None and plan.filters:
                    plans.append(plan)
                else:
                    group.settle(part, outcomes or (plan.outcomes if plan else ()))
        left += await self._update_lines(group, [plan for plan in plans if plan.is_single])
        left += await self._run_transaction(group, [plan for plan in plans if not plan.is_single], located)
        return left

    # The cache

    def _cache_lines(self, group: CommitGroup, plan: Plan, located: dict[int, Document]) -> None:
        """Cache the state of the lines after a commit."""
        if plan.part.wide_deletes:
            return
        for line, state in plan.states.items():
            state.last = group.token
            state.parts = state.parts or bool(located)
            self._lines[line] = state
            self._lines.move_to_end(line)
            if state.rows > FEW_ROWS:
                self._mover.add(line, at_once=state.rows > _MANY_ROWS or state.weight > _MANY_BYTES)
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

    async def _update_lines(self, group: CommitGroup, plans: Sequence[Plan]) -> list[Part]:
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
        self, group: CommitGroup, plans: Sequence[Plan], located: dict[int, Document]
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

    async def _commit_plans(self, group: CommitGroup, plans: Sequence[Plan], located: dict[int, Document]) -> None:
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
        self, session: AsyncClientSession, group: CommitGroup, plans: Sequence[Plan], located: dict[int, Document]
    ) -> None:
        """Update the documents of the lines, and remove the notes of uploads that are used now."""
        operations: list[Operation] = []
        for plan in plans:
            for line in plan.filters:
                condition, operators, is_new = plan.statement(line, group, bool(located))
                # A missing one is inserted, which fails if another process has inserted it since.
                operations.append(UpdateOne(condition, operators, upsert=is_new))
        uploads = {location["upload"] for location in located.values()}
        removals: list[Operation] = [DeleteOne({"_id": {"upload": upload}, "swept": None}) for upload in uploads]
        done = await self._collections.lines.bulk_write([*operations, *removals], session=session)
        if done.matched_count + done.upserted_count != len(operations) or done.deleted_count != len(removals):
            raise _ConcurrentChange
        for prefix in {prefix for plan in plans for prefix in plan.part.wide_deletes}:
            # A line that was created after the group was evaluated would be deleted without its writer noticing.
            unseen = {"_id": id_range(LINES, prefix), LAST: {"$exists": True, "$ne": group.token}}
            if await self._collections.lines.find_one(unseen, {"_id": 1}, session=session):
                raise _ConcurrentChange

    async def _write_rows(self, session: AsyncClientSession, plans: Sequence[Plan]) -> None:
        tables: dict[Table, list[Operation]] = {}
        useless: list[Operation] = []
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
