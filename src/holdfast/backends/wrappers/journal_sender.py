"""Sending a journal to a copy, entry by entry, in a thread of its own.

Entries go in order, several in one batch where that can be, each batch together with the number that the copy has got
to, and on condition that it had got just so far before. So each entry is made exactly once, whoever sends it, and
however often an answer is lost: several processes may share a local store, and any of them may die.
"""

from __future__ import annotations

import asyncio
import logging
import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Final

from holdfast.backends.interface import Backend, Change, Delete, Put, Row, Scan, Suspension
from holdfast.backends.runtime.drivers import run
from holdfast.backends.runtime.fork_safety import reinit_after_fork
from holdfast.backends.tables import JOURNAL
from holdfast.backends.wrappers import journal
from holdfast.backends.wrappers.journal import JournalEntry, MergedBatch
from holdfast.backends.wrappers.replica_pair import (
    ReplicaCursor,
    ReplicaIdentity,
    ReplicaMismatch,
    attach,
    cursor_of,
    fill_remote,
    not_ours,
)
from holdfast.errors import CorruptError, HoldfastError, UnavailableError

_log = logging.getLogger("holdfast.copies")

_PAGE = 64
_BYTES = 4 << 20
_TRIM = 256
_IDLE = 1.0
_FIRST_PAUSE = 0.05
_LONGEST_PAUSE = 2.0


class JournalSender:
    """Brings a copy up to date, and says how far it has got."""

    def __init__(self, local: Backend, remote: Backend, identity: ReplicaIdentity) -> None:
        self._local: Final = local
        self._remote: Final = remote
        self._identity: Final = identity
        self.sent = -1
        """The last number known to be in the copy; -1 while nothing is known."""
        self.trouble = ""
        """Why nothing can be sent at the moment."""
        self.failure: HoldfastError | None = None
        """The error behind it."""
        self.over: HoldfastError | None = None
        """Why nothing will be sent any more."""
        self._cursor: ReplicaCursor | None = None
        self._trimmed = 0
        self._ending: float | None = None
        self.reinit_locks()
        reinit_after_fork(self)

    def reinit_locks(self) -> None:
        """For a forked child: it has no thread yet."""
        self._lock = threading.Lock()
        self._bell = threading.Event()
        self._thread: threading.Thread | None = None
        self._awaited: list[tuple[int, Future[bool]]] = []
        self._begun: Future[bool] = Future()
        self._begun.set_running_or_notify_cancel()
        self._cursor = None

    def ring(self) -> None:
        """There is something to send."""
        with self._lock:
            if self._thread is None and self._ending is None and self.over is None:
                self._thread = threading.Thread(target=self._work, name="holdfast-copy", daemon=True)
                self._thread.start()
        self._bell.set()

    def stop(self, patience: float) -> None:
        """Send what is left, for so many seconds, and end."""
        with self._lock:
            self._ending = time.monotonic() + patience
            thread = self._thread
        self._bell.set()
        if thread is not None:
            thread.join(patience + 1)
        with self._lock:
            awaited, self._awaited = self._awaited, []
        for _, future in awaited:
            future.set_result(False)

    def let_go(self) -> None:
        """End soon: nobody has the store any more."""
        self._ending = time.monotonic()
        self._bell.set()

    def arrival(self, number: int, patience: float) -> SendTask:
        """To be awaited: whether an entry is in the copy, after so many seconds at most."""
        return SendTask(lambda: self._expect(number), patience)

    def begun(self, patience: float) -> SendTask:
        """Start; to be awaited, until the copy was looked at or could not be."""

        def begin() -> Future[bool]:
            self.ring()
            return self._begun

        return SendTask(begin, patience)

    def _expect(self, number: int) -> Future[bool]:
        """Filled once the copy has got so far, or never will."""
        future: Future[bool] = Future()
        future.set_running_or_notify_cancel()
        with self._lock:
            if self.sent >= number or self.over is not None or self._ending is not None:
                future.set_result(self.sent >= number)
            else:
                self._awaited.append((number, future))
        self.ring()
        return future

    # In the thread --------------------------------------------------------------------------------------------

    def _work(self) -> None:
        pause = _FIRST_PAUSE
        while True:
            try:
                more = self._step()
            except ReplicaMismatch as error:
                self._end(error)
                return
            except HoldfastError as error:
                self._cursor = None
                if not self.trouble:
                    _log.warning("%s: nothing can be copied at the moment: %s", self._remote.url, error)
                self.trouble, self.failure = str(error), error
                self._have_begun()
                if self._too_late(pause):
                    return
                self._bell.wait(pause * random.uniform(0.5, 1))  # noqa: S311 - so that not all come back at once
                pause = min(2 * pause, _LONGEST_PAUSE)
                more = True
            except Exception as error:  # noqa: BLE001 - nobody else would hear of it
                self._end(
                    UnavailableError(f"copying broke off: {error!r}", where=self._remote.url, hint="Open it anew")
                )
                return
            else:
                pause = _FIRST_PAUSE
                self._well()
            if self._ending is not None and (not more or self._too_late(0)):
                return
            if not more and not self._bell.wait(_IDLE):
                self._trim_later()
            self._bell.clear()

    def _well(self) -> None:
        if self.trouble:
            _log.warning("%s: copying goes on", self._remote.url)
        self.trouble, self.failure = "", None

    def _too_late(self, pause: float) -> bool:
        return self._ending is not None and time.monotonic() + pause >= self._ending

    def _end(self, error: HoldfastError) -> None:
        _log.error("%s: nothing more is copied: %s", self._remote.url, error)
        self.trouble = str(error)
        with self._lock:
            self.over = error
            awaited, self._awaited = self._awaited, []
        for _, future in awaited:
            future.set_result(False)
        self._have_begun()

    def _have_begun(self) -> None:
        if not self._begun.done():
            self._begun.set_result(True)

    def _step(self) -> bool:
        """Send some; whether there may be more."""
        cursor = self._cursor or self._look()
        if not cursor.whole:
            run(fill_remote(self._local, self._remote, cursor))
            self._cursor = None
            return True
        rows = self._rows(cursor.number)
        if not rows:
            if self._ending is not None:
                self._trim()
            return False
        if rows[0].key[2] != cursor.number + 1:
            if self._look() == cursor:
                begins = journal.mark_of(rows[0]).number
                raise ReplicaMismatch(
                    f"the copy has got to {cursor.number}, and the journal begins at {begins}: "
                    "the copy was set back, or the journal was",
                    where=self._remote.url,
                    hint="Empty the copy, and it is filled anew",
                )
            return True
        self._send(cursor, rows)
        if self.sent - self._trimmed >= _TRIM:
            self._trim()
        return True

    def _look(self) -> ReplicaCursor:
        cursor = run(cursor_of(self._remote))
        if cursor is None:
            # A store that was emptied, or is new: it becomes the copy.
            run(attach(self._local, self._remote, restore=False))
            cursor = run(cursor_of(self._remote))
        if cursor is None or cursor.id != self._identity.id:
            raise not_ours(self._remote)
        try:
            at, (last,) = run(self._local.read([journal.at(cursor.number), journal.LAST]))
        except CorruptError:
            # What the copy has is known all the same: it may have to answer for the local store.
            self._arrived(cursor.number if cursor.whole else -1)
            raise
        if journal.mark_of(last).number < cursor.number or (at and journal.mark_of(at[0]) != cursor.last):
            raise ReplicaMismatch(
                "the local store was set back to an older state: the copy holds what is not in it",
                where=self._local.url,
                hint="Empty the local store and open with restore=true, or empty the copy",
            )
        self._cursor = cursor
        self._have_begun()
        if cursor.whole:
            self._arrived(cursor.number)
        return cursor

    def _rows(self, after: int) -> list[Row]:
        """What follows in the journal: at least one whole entry, unless there is none."""
        rows: list[Row] = []
        while True:
            start = (after + len(rows) + 1,)
            ((*found,),) = run(self._local.read([Scan(JOURNAL, journal.LINE, start=start, limit=_PAGE)]))
            rows += found
            if not found or any(journal.ends(row) for row in found):
                return rows

    def _send(self, cursor: ReplicaCursor, rows: list[Row]) -> None:
        merged = MergedBatch(min(_BYTES, self._identity.max_batch))
        last: JournalEntry | None = None
        for entry in journal.entries(rows, self._local.url):
            if not merged.take(entry.changes):
                break
            last = entry
        if last is None:
            return
        after = cursor._replace(last=last.mark)
        changes: list[Change] = [change for batch in merged.batches for change in batch]
        self._cursor = None
        refused = run(self._remote.apply([cursor.there, *changes, Put(JOURNAL, after.row)]))
        if refused is None:
            self._cursor = after
            self._well()
            self._arrived(after.number)
        else:
            # Another process sends too. Let it.
            self._bell.wait(random.uniform(0, 0.02))  # noqa: S311

    def _arrived(self, number: int) -> None:
        done: list[Future[bool]] = []
        with self._lock:
            self.sent = max(self.sent, number)
            if self._awaited:
                done = [future for wanted, future in self._awaited if wanted <= self.sent]
                self._awaited = [each for each in self._awaited if each[0] > self.sent]
        for future in done:
            future.set_result(True)

    def _trim_later(self) -> None:
        try:
            self._trim()
        except HoldfastError as error:
            self.trouble = str(error)

    def _trim(self) -> None:
        """Remove what was sent from the journal, but for its last row."""
        while True:
            sent, (last,) = run(
                self._local.read(
                    [Scan(JOURNAL, journal.LINE, stop=(self.sent + 1,), limit=_TRIM, bodies=False), journal.LAST]
                )
            )
            gone = [row for row in sent if row.key != last.key]
            if gone:
                run(self._local.apply([Delete(JOURNAL, row.key) for row in gone]))
            self._trimmed = self.sent
            if len(sent) < _TRIM:
                return


class SendTask(Suspension[bool]):
    """Something that the thread of a sender does, or does not within some seconds."""

    def __init__(self, begin: Callable[[], Future[bool]], patience: float) -> None:
        self._begin = begin
        self._patience = patience

    def wait(self) -> bool:
        try:
            return self._begin().result(self._patience)
        except TimeoutError:
            return False

    def watch(self) -> asyncio.Future[bool]:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[bool] = loop.create_future()

        def deliver(arrived: bool) -> None:
            if not answer.done():
                answer.set_result(arrived)

        def tell(future: Future[bool]) -> None:
            try:
                loop.call_soon_threadsafe(deliver, future.result())
            except RuntimeError:
                if not loop.is_closed():
                    raise
                # The loop ended, and with it whoever awaited.

        self._begin().add_done_callback(tell)
        timer = loop.call_later(self._patience, deliver, False)
        answer.add_done_callback(lambda _: timer.cancel())
        return answer
