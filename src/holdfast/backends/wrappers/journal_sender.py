"""The thread that sends a journal to a copy.

Entries are sent in order, several in one batch where possible. Each batch moves the cursor of the copy, on condition
that the cursor is where the sender expects it. So each entry is applied exactly once, whichever process sends it, and
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

from holdfast.backends.interface import Backend, Change, Delete, Get, Put, Row, Scan, Suspension, key_of
from holdfast.backends.runtime.drivers import run
from holdfast.backends.runtime.fork_safety import reinit_after_fork
from holdfast.backends.runtime.threads import WorkerThread
from holdfast.backends.tables import JOURNAL
from holdfast.backends.wrappers import journal
from holdfast.backends.wrappers.journal import JournalEntry, MergedBatch
from holdfast.backends.wrappers.replica_pair import (
    PURGE,
    ReplicaCursor,
    ReplicaIdentity,
    ReplicaMismatch,
    attach,
    diverged_error,
    fill_remote,
    foreign_copy_error,
    read_cursor,
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
    """Brings a copy up to date, and reports its progress."""

    def __init__(self, local: Backend, remote: Backend, identity: ReplicaIdentity) -> None:
        self._local: Final = local
        self._remote: Final = remote
        self._identity: Final = identity
        self.sent: int = -1
        """The last number that the copy is known to have; -1 at first."""
        self.trouble: str = ""
        """Why nothing can be sent at the moment; empty if all is well."""
        self.last_error: HoldfastError | None = None
        self.fatal_error: HoldfastError | None = None
        """Why nothing will be sent any more."""
        self._cursor: ReplicaCursor | None = None
        self.must_purge: bool = True
        """Whether both stores may have to be purged when the copy has caught up."""
        self._trimmed = 0
        self._stop_at: float | None = None
        self.reinit_locks()
        reinit_after_fork(self)

    def reinit_locks(self) -> None:
        """A forked child has no thread yet."""
        self._lock = threading.Lock()
        self._wake_event = threading.Event()
        self._thread: WorkerThread | None = None
        self._waiters: list[tuple[int, Future[bool]]] = []
        self._started: Future[bool] = Future()
        self._started.set_running_or_notify_cancel()
        self._cursor = None

    def wake(self) -> None:
        """Send what is new; start the thread if it does not run."""
        with self._lock:
            if self._thread is None and self._stop_at is None and self.fatal_error is None:
                self._thread = WorkerThread("holdfast-copy", self._run)
        self._wake_event.set()

    def stop(self, patience: float) -> None:
        """Send the rest, for so many seconds at most, and stop."""
        with self._lock:
            self._stop_at = time.monotonic() + patience
            thread = self._thread
        self._wake_event.set()
        if thread is not None:
            thread.join(patience + 1)
        with self._lock:
            awaited, self._waiters = self._waiters, []
        for _, future in awaited:
            future.set_result(False)

    def abandon(self) -> None:
        """Stop soon: the store was not closed, and nobody uses it any more."""
        self._stop_at = time.monotonic()
        self._wake_event.set()

    def wait_sent(self, number: int, patience: float) -> SendTask:
        """Return an awaitable: whether an entry is in the copy, within so many seconds."""
        return SendTask(lambda: self._sent_future(number), patience)

    def start(self, patience: float) -> SendTask:
        """Start the thread. The result is to be awaited, until the cursor of the copy was read or could not be."""

        def begin() -> Future[bool]:
            self.wake()
            return self._started

        return SendTask(begin, patience)

    def _sent_future(self, number: int) -> Future[bool]:
        """Return a future for whether the copy has an entry."""
        future: Future[bool] = Future()
        future.set_running_or_notify_cancel()
        with self._lock:
            if self.sent >= number or self.fatal_error is not None or self._stop_at is not None:
                future.set_result(self.sent >= number)
            else:
                self._waiters.append((number, future))
        self.wake()
        return future

    # In the thread --------------------------------------------------------------------------------------------

    def _run(self) -> None:
        pause = _FIRST_PAUSE
        while True:
            stopping = self._stop_at is not None  # what was written before that is in the step that follows
            try:
                more = self._step()
            except ReplicaMismatch as error:
                self._fail(error)
                return
            except HoldfastError as error:
                self._cursor = None
                if not self.trouble:
                    _log.warning("%s: nothing can be copied at the moment: %s", self._remote.url, error)
                self.trouble, self.last_error = str(error), error
                self._signal_started()
                if self._is_past(pause):
                    return
                self._wake_event.wait(pause * random.uniform(0.5, 1))  # noqa: S311 - so that not all retry at once
                pause = min(2 * pause, _LONGEST_PAUSE)
                more = True
            except Exception as error:  # noqa: BLE001 - nobody else would report it
                self._fail(
                    UnavailableError(f"copying failed: {error!r}", where=self._remote.url, hint="Open the store again")
                )
                return
            else:
                pause = _FIRST_PAUSE
                self._recovered()
            if stopping and (not more or self._is_past(0)):
                return
            if not more and not self._wake_event.wait(_IDLE):
                self._trim_when_idle()
            self._wake_event.clear()

    def _recovered(self) -> None:
        if self.trouble:
            _log.warning("%s: copying has resumed", self._remote.url)
        self.trouble, self.last_error = "", None

    def _is_past(self, pause: float) -> bool:
        return self._stop_at is not None and time.monotonic() + pause >= self._stop_at

    def _fail(self, error: HoldfastError) -> None:
        _log.error("%s: copying has stopped: %s", self._remote.url, error)
        self.trouble = str(error)
        with self._lock:
            self.fatal_error = error
            awaited, self._waiters = self._waiters, []
        for _, future in awaited:
            future.set_result(False)
        self._signal_started()

    def _signal_started(self) -> None:
        if not self._started.done():
            self._started.set_result(True)

    def _step(self) -> bool:
        """Send some entries, and return whether there may be more."""
        cursor = self._cursor or self._load_cursor()
        if not cursor.complete:
            run(fill_remote(self._local, self._remote, cursor))
            self._cursor = None
            return True
        rows = self._rows(cursor.number)
        if not rows:
            if self.must_purge:
                self._purge()
            if self._stop_at is not None:
                self.trim()
            return False
        if rows[0].key[2] != cursor.number + 1:
            if self._load_cursor() == cursor:
                begins = journal.parse_row(rows[0]).number
                raise ReplicaMismatch(
                    f"the copy is at entry {cursor.number}, and the journal begins at {begins}: "
                    "one of them was reset to an older state",
                    where=self._remote.url,
                    hint="Remove the copy, with all its rows, and open the pair again: it is filled",
                )
            return True
        self._send(cursor, rows)
        if self.sent - self._trimmed >= _TRIM:
            self.trim()
        return True

    def _load_cursor(self) -> ReplicaCursor:
        cursor = run(read_cursor(self._remote))
        if cursor is None:
            # A new or empty store becomes the copy.
            run(attach(self._local, self._remote, restore=False))
            cursor = run(read_cursor(self._remote))
        if cursor is None or cursor.id != self._identity.id:
            raise foreign_copy_error(self._remote)
        try:
            at, (last,) = run(self._local.read([journal.row_at(cursor.number), journal.LAST]))
        except CorruptError:
            # What the copy has is known: it may have to answer for the local store.
            self._mark_sent(cursor.number if cursor.complete else -1)
            raise
        if journal.parse_row(last).number < cursor.number or (at and journal.parse_row(at[0]) != cursor.last):
            raise ReplicaMismatch(
                "the local store was reset to an older state: the copy has entries that it lacks",
                where=self._local.url,
                hint="Remove the local store and open with restore=true, or remove the copy and open the pair again",
            )
        self._cursor = cursor
        self._signal_started()
        if cursor.complete:
            self._mark_sent(cursor.number)
        return cursor

    def _rows(self, after: int) -> list[Row]:
        """Return the next rows of the journal: at least one complete entry, unless there is none."""
        rows: list[Row] = []
        while True:
            start = (after + len(rows) + 1,)
            ((*found,),) = run(self._local.read([Scan(JOURNAL, journal.LINE, start=start, limit=_PAGE)]))
            rows += found
            if not found or any(journal.ends_entry(row) for row in found):
                return rows

    def _send(self, cursor: ReplicaCursor, rows: list[Row]) -> None:
        merged = MergedBatch(min(_BYTES, self._identity.max_batch))
        last: JournalEntry | None = None
        for entry in journal.entries(rows, self._local.url):
            is_new = entry.last.number > cursor.filled
            if not merged.add(entry.changes if is_new else journal.without_conditions(entry.changes)):
                break
            last = entry
        if last is None:
            return
        after = cursor._replace(last=last.last)
        changes: list[Change] = [change for batch in merged.batches for change in batch]
        self._cursor = None
        refused = run(self._remote.apply([cursor.condition, *changes, Put(JOURNAL, after.row)]))
        if refused is None:
            self._cursor = after
            self._recovered()
            self._mark_sent(after.number)
        elif refused:
            change = changes[refused - 1]
            raise diverged_error(self._remote, change.space.name, str(key_of(change)[1]))
        else:
            # Another process sends too.
            self._wake_event.wait(random.uniform(0, 0.02))  # noqa: S311

    def _mark_sent(self, number: int) -> None:
        done: list[Future[bool]] = []
        with self._lock:
            self.sent = max(self.sent, number)
            if self._waiters:
                done = [future for number, future in self._waiters if number <= self.sent]
                self._waiters = [each for each in self._waiters if each[0] > self.sent]
        for future in done:
            future.set_result(True)

    def _purge(self) -> None:
        """Purge both stores, if somebody wanted that while the copy could not be reached."""
        self.must_purge = False
        ((*rows,),) = run(self._local.read([Get(JOURNAL, [PURGE])]))
        if rows:
            try:
                self.trim()
                run(self._local.purge())
                run(self._remote.purge())
                run(self._local.apply([Delete(JOURNAL, PURGE)]))
            except HoldfastError:
                self.must_purge = True
                raise

    def _trim_when_idle(self) -> None:
        try:
            self.trim()
        except HoldfastError as error:
            self.trouble = str(error)

    def trim(self) -> None:
        """Remove sent rows from the journal, except its last one."""
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
    """Waits for the thread of a sender, for some seconds at most."""

    def __init__(self, begin: Callable[[], Future[bool]], patience: float) -> None:
        self._begin = begin
        self._patience = patience

    def wait(self) -> bool:
        try:
            return self._begin().result(self._patience)
        except TimeoutError:
            return False

    def watch(self) -> asyncio.Future[bool]:
        return asyncio.ensure_future(self._watch(asyncio.wrap_future(self._begin())))

    async def _watch(self, future: asyncio.Future[bool]) -> bool:
        await asyncio.wait([future], timeout=self._patience)
        return future.done() and future.result()
