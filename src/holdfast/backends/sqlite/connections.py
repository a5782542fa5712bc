"""The connections of one store: one for writing, and some for reading.

After a failure all of them are closed, and the next caller opens the file again, if it can be written by then.

No connection may cross a fork: its locks belong to the process, and the child would rely on them. So before a fork all
stores wait for their callers and close their connections; afterwards they open new ones as needed.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import apsw

from holdfast.backends.runtime.group_commit import copy_error
from holdfast.backends.sqlite import database_file, use_lock
from holdfast.backends.sqlite.database_file import FileIdentity, FileOptions, LockWait
from holdfast.backends.sqlite.errors import is_damage, translate
from holdfast.backends.sqlite.use_lock import UseLock
from holdfast.errors import HoldfastError

T = TypeVar("T")
A = TypeVar("A")

_MAX_IDLE = 16
_POLL_SECONDS = 0.0005


class SQLiteConnections:
    """A pool of connections for threads, which can be closed at any time."""

    def __init__(self, settings: FileOptions, at_fork: Callable[[], None], recover: Callable[[], None]) -> None:
        """`recover` opens the writer again after a failure, and raises an error if the file cannot be used yet."""
        self._settings = settings
        self._at_fork = at_fork
        self._recover = recover
        self.identity: FileIdentity = FileIdentity(settings.path, settings.url)
        self._unavailable: HoldfastError | None = None
        self._recoverable = False
        self._attempts = 0
        """How often the file was opened again."""
        self._reset()
        with _fork_lock:
            _open.add(self)

    def _reset(self) -> None:
        self.writing: threading.Lock = threading.Lock()
        # Only ever acquired by `with`, which a signal cannot interrupt halfway; a condition would not do. Reentrant for
        # signal handlers that read.
        self._lock = threading.RLock()
        self._suspended = False
        self._writer: apsw.Cursor | None = None
        self._idle: list[apsw.Cursor] = []
        self._in_use: dict[int, apsw.Cursor | None] = {}
        self._use_lock: UseLock | None = None
        self._is_locked = False

    def _lock_file(self, cursor: apsw.Cursor) -> apsw.Cursor:
        """Lock the file as long as there are connections, now that one of them has opened it."""
        settings = self._settings
        if not self._is_locked and settings.vfs is None and not settings.exclusive and not settings.frozen:
            cursor.execute("PRAGMA user_version").fetchall()
            with self._lock:
                if not self._is_locked:
                    self._use_lock, self._is_locked = use_lock.acquire(settings.path), True
                    if self._use_lock is not None:
                        self._forget = weakref.finalize(self, _unlock, self._use_lock)
                        self._forget.atexit = False
        return cursor

    @contextmanager
    def _unlocked_file(self) -> Iterator[None]:
        """Unlock the file, for the connections to be closed: the last one writes the log back."""
        lock, self._use_lock, self._is_locked = self._use_lock, None, False
        if lock is not None:
            lock.end_writing(self)
            self._forget.detach()
            lock = lock if use_lock.release(lock) else None
        try:
            yield
        finally:
            if lock is not None:
                lock.close()

    def configure(self, settings: FileOptions) -> None:
        """Use other options for the connections that are opened from now on."""
        self._settings = settings

    # For writing. Called under `writing`

    def open_writer(self) -> apsw.Cursor:
        """Open the first connection, which checks the file or creates it."""
        self._writer = self._lock_file(database_file.open_writer(self._settings, create=True))
        self.identity.record()
        return self._writer

    def open_viewer(self) -> apsw.Cursor:
        """Open the first connection to a store that is only read, in place of the writer."""
        self._writer = self._lock_file(database_file.open_viewer(self._settings))
        self.identity.record()
        return self._writer

    def begin_turn(self, timeout: float) -> None:
        """Exclude the writers of other stores, until `end_turn`. `TransientError` if one writes for too long.

        Between the two, a signal may interrupt anything: so `end_turn` is called whether this succeeded or not."""
        lock = self._use_lock
        if lock is not None and not lock.begin_writing(self):
            self._wait_for_turn(lock, timeout)

    def _wait_for_turn(self, lock: UseLock, timeout: float) -> None:
        def begin() -> None:
            if not lock.begin_writing(self):
                raise apsw.BusyError("another store is writing")

        try:
            LockWait(timeout).retry(begin, time.monotonic())
        except apsw.BusyError as error:
            raise translate(error, self._settings.url) from error

    def end_turn(self) -> None:
        """Let other stores write."""
        if self._use_lock is not None:
            self._use_lock.end_writing(self)

    def writer(self) -> apsw.Cursor:
        """Return the connection for writing. Nothing is written to a file that has lost its name."""
        if self._writer is None:
            self._reopen(self._attempts)
        writer = self._writer or self.reopen_writer()
        if not self.identity.is_in_place(writer.connection):
            raise self.leave_file()
        return writer

    def reopen_writer(self) -> apsw.Cursor:
        """Open a connection to the file that was opened first."""
        if self.identity.is_replaced():
            raise self.identity.error()
        self._writer = self._lock_file(database_file.open_writer(self._settings))
        return self._writer

    def leave_file(self) -> HoldfastError:
        """Close the writer of a file or log that was deleted or replaced, and return the error to raise.

        The log is written back into the file that it belongs to, wherever that is now: SQLite would apply it to the
        file that has the name."""
        error = self.identity.error()
        self.end(error, recoverable=True)
        if self._writer is not None:
            connection = self._writer.connection
            with contextlib.suppress(apsw.Error):
                connection.set_busy_handler(None)
                if self.identity.is_log_own(connection):
                    connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        self.drop_writer()
        return error

    def drop_writer(self) -> None:
        """Close the writer without writing to the file."""
        cursor, self._writer = self._writer, None
        self.identity.forget_log()
        if cursor is not None:
            cursor.connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
            cursor.connection.close(force=True)

    def abandon(self) -> None:
        """Leave a file that could not be opened, as it is."""
        with self._unlocked_file():
            self.drop_writer()

    # For reading

    def read(self, action: Callable[[apsw.Cursor, A], T], argument: A) -> T:
        """Call a function with a connection for reading. After an error the connection is closed, unless the file is
        damaged: a scan around damage meets it many times."""
        thread = threading.get_ident()
        good = False
        interrupt: BaseException | None = None
        try:
            result = action(self.acquire(thread), argument)
            good = True
        except apsw.Error as error:
            good = is_damage(error) and self._end_reading(thread)
            raise
        finally:
            # Not in a function: a signal could prevent the call.
            while thread in self._in_use:
                try:
                    self.release(thread, good)
                except BaseException as error:  # noqa: BLE001 - raised below
                    interrupt = error
            if interrupt is not None:
                raise interrupt
        return result

    def _end_reading(self, thread: int) -> bool:
        """End the transaction of a connection. Returns whether it can be used again."""
        cursor = self._in_use[thread]
        if cursor is not None and cursor.connection.in_transaction:
            cursor.execute("ROLLBACK")
        return cursor is not None

    def acquire(self, thread: int) -> apsw.Cursor:
        """Return a connection for a thread, until `release`."""
        idle = self._take_idle(thread)
        if idle is None:
            idle = self._in_use[thread] = self._lock_file(database_file.open_reader(self._settings))
        return idle

    def _take_idle(self, thread: int) -> apsw.Cursor | None:
        attempts = self._attempts
        if self._unavailable is None and not self.identity.is_readable():
            with self.writing:
                raise self.leave_file()
        while True:
            with self._lock:
                suspended = self._suspended
                if not suspended and self._unavailable is None:
                    # In use from here on, also while it is being opened.
                    self._in_use[thread] = self._idle.pop() if self._idle else None
                    return self._in_use[thread]
                if self._unavailable is not None and not self._recoverable:
                    raise copy_error(self._unavailable)
            if suspended:
                time.sleep(_POLL_SECONDS)
                continue
            with self.writing:
                self._reopen(attempts)

    def release(self, thread: int, good: bool) -> None:
        """Return the connection of a thread to the pool, or close it."""
        with self._lock:
            cursor = self._in_use.pop(thread)
            if cursor is not None and good and len(self._idle) < _MAX_IDLE and self._unavailable is None:
                self._idle.append(cursor)
                cursor = None
        if cursor is not None:
            cursor.connection.close(force=True)

    # For all

    def end(self, error: HoldfastError, *, recoverable: bool = False) -> None:
        """Raise an error from now on; if it is recoverable, until the file can be opened again."""
        with self._lock:
            self._unavailable, self._recoverable = error, recoverable

    def _reopen(self, attempts: int) -> None:
        """Open the file again, if a failure closed it; raise the error if that fails. Called under `writing`.

        `attempts` is their number when the caller came: of callers that wait together, one tries.
        """
        if self._unavailable is None:
            return
        if not self._recoverable or attempts != self._attempts:
            raise copy_error(self._unavailable)
        try:
            self._suspend()
            self._close_readers()
            self._attempts += 1
            self._recover()
            self._unavailable = None
        except HoldfastError as error:
            self.drop_writer()
            self._unavailable = error
            raise
        finally:
            self._resume()

    def close(self) -> None:
        """Wait until no connection is in use, and close all; the writer last, which writes the log back."""
        try:
            with self.writing:
                self._suspend()
                try:
                    with self._unlocked_file():
                        self._close_readers()
                        if self.identity.is_replaced():
                            self.leave_file()  # SQLite would delete the log by its name
                        cursor, self._writer = self._writer, None
                        if cursor is not None:
                            cursor.connection.close(force=True)
                finally:
                    self._resume()
        finally:
            with _fork_lock:
                _open.discard(self)

    def _suspend(self) -> None:
        """Wait for readers, and block others until `_resume`."""
        self._suspended = True
        while True:
            with self._lock:
                self._in_use.pop(threading.get_ident(), None)  # this thread is not reading any more
                if not self._in_use:
                    return
            time.sleep(_POLL_SECONDS)

    def _resume(self) -> None:
        self._suspended = False

    def _close_readers(self) -> None:
        while self._idle:
            self._idle.pop().connection.close(force=True)

    def before_fork(self) -> None:
        """Wait for all callers, and close the connections."""
        self.writing.acquire()
        self._suspend()
        with self._unlocked_file():
            self._close_readers()
            self.drop_writer()

    def after_fork_in_parent(self) -> None:
        self._resume()
        self.writing.release()

    def after_fork_in_child(self) -> None:
        """Reset: the child has none of the threads that hold locks or wait."""
        self._reset()
        self._at_fork()


def _unlock(lock: UseLock) -> None:
    """Unlock the file of a store that was dropped without being closed."""
    if use_lock.release(lock):
        lock.close()


_fork_lock = threading.Lock()
_open: weakref.WeakSet[SQLiteConnections] = weakref.WeakSet()
_suspended_for_fork: list[SQLiteConnections] = []


def _before_fork() -> None:
    _fork_lock.acquire()
    for connections in list(_open):
        connections.before_fork()
        _suspended_for_fork.append(connections)


def _after_fork_in_parent() -> None:
    while _suspended_for_fork:
        _suspended_for_fork.pop().after_fork_in_parent()
    _fork_lock.release()


def _after_fork_in_child() -> None:
    while _suspended_for_fork:
        _suspended_for_fork.pop().after_fork_in_child()
    _fork_lock.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
