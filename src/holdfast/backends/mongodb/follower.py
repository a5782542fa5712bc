"""Moves the rows of tables that people query from the documents of lines to their own collections.

A save has them in the document of its line, so that it is one update. Their collections follow within a second, a
transaction for many saves. For the store, nothing changes by that: it reads both. What a process leaves when it dies is
moved by the next one that writes to the store.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager

from pymongo import ReplaceOne
from pymongo.errors import PyMongoError
from pymongo.read_concern import ReadConcern
from pymongo.read_preferences import ReadPreference

from holdfast.backends.mongodb.line_document import FOLLOWING, FOLLOWS, QUIET, embedded_rows, field_of
from holdfast.backends.mongodb.row_mapping import Document, build_id
from holdfast.backends.mongodb.schema import DURABLE, Collections
from holdfast.backends.tables import LINES, READABLE, Key

_log = logging.getLogger("holdfast.mongodb")

_SECONDS = 0.5
"""How long rows wait for others."""
_LONGEST_PAUSE = 10.0
"""How long it waits at most after a failure."""
_CLOSING_SECONDS = 5.0
"""How long a store that is closed tries to move what is left."""

_LINES_AT_ONCE = 16
_MAX_FOUND = 1_000
"""How many lines of other processes are looked for at once."""

LockLines = Callable[[set[Key]], AbstractAsyncContextManager[None]]


class Follower:
    """Moves rows of lines that this client wrote to."""

    def __init__(self, collections: Collections, lock_lines: LockLines) -> None:
        self._collections = collections
        self._lock_lines = lock_lines
        self._lines: dict[Key, None] = {}
        self._task: asyncio.Task[None] | None = None
        self._closing = asyncio.Event()
        self._has_looked = False

    def add(self, line: Key) -> None:
        """Move the rows of a line soon."""
        self._lines[line] = None
        if self._task is None and not self._closing.is_set():
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        """Move what is left."""
        self._closing.set()
        task = self._task
        if task is not None:
            await asyncio.wait([task], timeout=_CLOSING_SECONDS)
            task.cancel()

    async def _run(self) -> None:
        if not self._has_looked:
            await self._find_left()
        pause = _SECONDS
        while self._lines:
            try:
                async with asyncio.timeout(pause):
                    await self._closing.wait()
            except TimeoutError:
                pass  # it is time
            chunk = list(self._lines)[:_LINES_AT_ONCE]
            for line in chunk:
                del self._lines[line]
            try:
                async with self._lock_lines(set(chunk)):
                    await self._move(chunk)
                pause = _SECONDS if len(self._lines) < _LINES_AT_ONCE else 0.0
            except PyMongoError as error:
                _log.info("readable rows of %d lines are moved later: %s", len(chunk), error)
                if self._closing.is_set():
                    break
                self._lines |= dict.fromkeys(chunk)
                pause = min(_LONGEST_PAUSE, max(_SECONDS, 2 * pause))
        self._task = None

    async def _find_left(self) -> None:
        """Find rows that other processes left."""
        self._has_looked = True
        try:
            async for document in self._collections.lines.find({FOLLOWS: True}, {"_id": 1}).limit(_MAX_FOUND):
                self._lines[tuple(document["_id"].values())] = None
        except PyMongoError as error:
            _log.info("readable rows that others left are not looked for: %s", error)

    async def _move(self, lines: Sequence[Key]) -> None:
        """Move the rows of some lines, unless somebody else writes to one of them at the same time."""
        collection = self._collections.lines
        these = {"_id": {"$in": [build_id(LINES, line) for line in lines]}, FOLLOWS: True}
        fields = [field_of(table) for table in FOLLOWING]
        async with self._collections.database.client.start_session() as session:
            await session.start_transaction(ReadConcern("snapshot"), DURABLE, ReadPreference.PRIMARY)
            documents: list[Document] = await collection.find(
                these, dict.fromkeys(fields, 1), session=session
            ).to_list()
            if not documents:
                return
            moved = {"$unset": dict.fromkeys([*fields, FOLLOWS], ""), "$currentDate": {QUIET: True}}
            await collection.update_many(these, moved, session=session)
            for table in READABLE:
                rows = [
                    ReplaceOne({"_id": row["_id"]}, row, upsert=True)
                    for document in documents
                    for row in embedded_rows(table, tuple(document["_id"].values()), document)
                ]
                if rows:
                    await self._collections.table(table).bulk_write(rows, session=session)
            await session.commit_transaction()
