"""Moves rows from the documents of lines to the collections of their tables.

A save has its rows in the document of its line, so that it is one update. When there are more than a few, they move: in
one transaction for many saves. For the store nothing changes by that, since it reads both. What a process leaves when
it dies is moved when the next one writes to the line.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager

from pymongo import UpdateOne
from pymongo.errors import PyMongoError
from pymongo.read_concern import ReadConcern
from pymongo.read_preferences import ReadPreference

from holdfast.backends.mongodb.line_document import QUIET, WROTE, LineUpdate, moved_rows, plan_moves
from holdfast.backends.mongodb.row_mapping import Document, build_id
from holdfast.backends.mongodb.schema import DURABLE, Collections
from holdfast.backends.tables import LINES, Key, Table

_log = logging.getLogger("holdfast.mongodb")

_SECONDS = 0.5
"""How long rows wait for others."""
_LONGEST_PAUSE = 10.0
"""How long it waits at most after a failure."""
_CLOSING_SECONDS = 5.0
"""How long a store that is closed tries to move what is left."""

FEW_ROWS = 24
"""How many rows may stay."""
_FEW_BYTES = 64 << 10
"""How many bytes may."""

_LINES_AT_ONCE = 16

LockLines = Callable[[set[Key]], AbstractAsyncContextManager[None]]
NoteMoved = Callable[[Key, int, int], None]
"""Is told how many rows and bytes are left in the document of a line."""


class RowMover:
    """Moves rows of lines that this client wrote to."""

    def __init__(self, collections: Collections, lock_lines: LockLines, note_moved: NoteMoved) -> None:
        self._collections = collections
        self._lock_lines = lock_lines
        self._note_moved = note_moved
        self._lines: dict[Key, None] = {}
        self._task: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._is_closing = False

    def add(self, line: Key, at_once: bool = False) -> None:
        """Move the rows of a line soon."""
        self._lines[line] = None
        if at_once:
            self._wake.set()
        if self._task is None and not self._is_closing:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        """Move what is left."""
        self._is_closing = True
        self._wake.set()
        task = self._task
        if task is not None:
            await asyncio.wait([task], timeout=_CLOSING_SECONDS)
            task.cancel()

    async def _run(self) -> None:
        try:
            await self._move_all()
        finally:
            self._task = None  # whatever happened, the next save starts another

    async def _move_all(self) -> None:
        pause = _SECONDS
        while self._lines:
            try:
                async with asyncio.timeout(pause):
                    await self._wake.wait()
            except TimeoutError:
                pass  # it is time
            if not self._is_closing:
                self._wake.clear()
            chunk = list(self._lines)[:_LINES_AT_ONCE]
            for line in chunk:
                del self._lines[line]
            try:
                async with self._lock_lines(set(chunk)):
                    await self._move(chunk)
                pause = _SECONDS if len(self._lines) < _LINES_AT_ONCE else 0.0
            except PyMongoError as error:
                _log.info("rows of %d lines are moved later: %s", len(chunk), error)
                if self._is_closing:
                    break
                self._lines |= dict.fromkeys(chunk)
                pause = min(_LONGEST_PAUSE, max(_SECONDS, 2 * pause))

    async def _move(self, lines: Sequence[Key]) -> None:
        """Move the rows of some lines, unless somebody else writes to one of them at the same time."""
        these = {"_id": {"$in": [build_id(LINES, line) for line in lines]}}
        async with self._collections.database.client.start_session() as session:
            await session.start_transaction(ReadConcern("snapshot"), DURABLE, ReadPreference.PRIMARY)
            updates: list[UpdateOne] = []
            moved: dict[Table, list[Document]] = {}
            left: dict[Key, tuple[int, int]] = {}
            async for document in self._collections.lines.find(these, session=session):
                line, update = tuple(document["_id"].values()), LineUpdate()
                moves = plan_moves(update, line, document, FEW_ROWS, _FEW_BYTES)
                left[line] = moves.rows, moves.weight
                if moves.documents:
                    # Whoever has read the document and not its token has to read it again.
                    operators = update.operators() | {"$inc": {WROTE: 1}, "$currentDate": {QUIET: True}}
                    updates.append(UpdateOne({"_id": document["_id"]}, operators))
                for table, rows in moves.documents.items():
                    moved.setdefault(table, []).extend(rows)
            if updates:
                await self._collections.lines.bulk_write(updates, session=session)
                for table, rows in moved.items():
                    await self._collections.table(table).bulk_write(moved_rows(rows), session=session)
                await session.commit_transaction()
        for line, (count, weight) in left.items():
            self._note_moved(line, count, weight)
