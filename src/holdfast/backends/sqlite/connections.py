"""The connections of one store: one for writing, and some for reading.

Nothing of SQLite may cross a fork, for the locks it holds are the process's, and the child would believe in them. So
before a fork all stores come to rest and close their connections; afterwards they open new ones as they need them.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable
from typing import TypeVar

import apsw

from holdfast.backends.sqlite import database_file
from holdfast.backends.sqlite.database_file import FileOptions
from holdfast.backends.sqlite.errors import is_damage
from holdfast.errors import UnavailableError

T = TypeVar("T")
A = TypeVar("A")

_MAX_IDLE = 16
_PAUSE = 0.0005


class SQLiteConnections:
    """Lends connections to threads, opens them when needed, and closes them all on demand."""

    def __init__(self, settings: FileOptions, at_fork: Callable[[], None]) -> None:
        self._settings = settings
        self._at_fork = at_fork
        self._trouble: tuple[str, str, str] | None = None
        self._reset()
        with _forking:
            _open.add(self)

    def _reset(self) -> None:
        self.writing = threading.Lock()
        # Only ever taken by `with`, which a signal cannot come in between of; a condition would not do.
        self._lock = threading.Lock()
        self._pausing = False
        self._writer: apsw.Cursor | None = None
        self._idle: list[apsw.Cursor] = []
        self._lent: dict[int, apsw.Cursor | None] = {}

    # For writing; whoever calls these holds `writing`

    def open_writer(self) -> apsw.Cursor:
        """The first connection: looks whose file it is, and makes it."""
        self._writer = database_file.writer(self._settings, create=True)
        return self._writer

    def open_viewer(self) -> apsw.Cursor:
        """The first connection to a store that is only looked at: takes the place of the writer, and writes nothing."""
        self._writer = database_file.viewer(self._settings)
        return self._writer

    def writer(self) -> apsw.Cursor:
        """The connection for writing."""
        if self._writer is None:
            self._raise_trouble()
            self._writer = database_file.writer(self._settings)
        return self._writer

    def drop_writer(self) -> None:
        """Close the connection without writing anything more to the file."""
        cursor, self._writer = self._writer, None
        if cursor is not None:
            cursor.connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
            cursor.connection.close(force=True)

    # For reading

    def use(self, action: Callable[[apsw.Cursor, A], T], argument: A) -> T:
        """Do something with a connection for reading. One that something went wrong with is not used again, unless only
        the file is damaged: whoever reads around that meets it many times."""
        thread = threading.get_ident()
        good = False
        interrupt: BaseException | None = None
        try:
            result = action(self.borrow(thread), argument)
            good = True
        except apsw.Error as error:
            good = is_damage(error) and self._end_reading(thread)
            raise
        finally:
            # Here and not in a function: a signal could prevent the call.
            while thread in self._lent:
                try:
                    self.give_back(thread, good)
                except BaseException as error:  # noqa: BLE001 - raised below
                    interrupt = error
            if interrupt is not None:
                raise interrupt
        return result

    def _end_reading(self, thread: int) -> bool:
        """End the transaction of a connection, if there is one; whether it can be used again."""
        cursor = self._lent[thread]
        if cursor is not None and cursor.connection.in_transaction:
            cursor.execute("ROLLBACK")
        return cursor is not None

    def borrow(self, thread: int) -> apsw.Cursor:
        """A connection for a thread, until `give_back`."""
        idle = self._take(thread)
        if idle is None:
            idle = self._lent[thread] = database_file.reader(self._settings)
        return idle

    def _take(self, thread: int) -> apsw.Cursor | None:
        while True:
            with self._lock:
                if not self._pausing:
                    self._raise_trouble()
                    # Counted from here on, also while it is being opened.
                    self._lent[thread] = self._idle.pop() if self._idle else None
                    return self._lent[thread]
            time.sleep(_PAUSE)

    def give_back(self, thread: int, good: bool) -> None:
        """Take back what a thread borrowed. What is not good, or too much, is closed; so is what a signal makes this
        forget."""
        with self._lock:
            cursor = self._lent.pop(thread)
            if cursor is not None and good and len(self._idle) < _MAX_IDLE and self._trouble is None:
                self._idle.append(cursor)
                cursor = None
        if cursor is not None:
            cursor.connection.close(force=True)

    # For all

    def end(self, what: str, hint: str, code: str) -> None:
        """From now on, raise `UnavailableError`."""
        with self._lock:
            if self._trouble is None:
                self._trouble = what, hint, code

    def close(self) -> None:
        """Wait until nobody uses a connection, and close all; the writer last, which then writes the log back."""
        try:
            with self.writing:
                self._pause()
                try:
                    self._close_readers()
                    cursor, self._writer = self._writer, None
                    if cursor is not None:
                        cursor.connection.close(force=True)
                finally:
                    self._go_on()
        finally:
            with _forking:
                _open.discard(self)

    def _raise_trouble(self) -> None:
        if self._trouble is not None:
            what, hint, code = self._trouble
            raise UnavailableError(what, where=self._settings.url, hint=hint, code=code)

    def _pause(self) -> None:
        """Wait for those who read, and hold off others until `_go_on`."""
        self._pausing = True
        while True:
            with self._lock:
                self._lent.pop(threading.get_ident(), None)  # this thread does not read now, whatever interrupted it
                if not self._lent:
                    return
            time.sleep(_PAUSE)

    def _go_on(self) -> None:
        self._pausing = False

    def _close_readers(self) -> None:
        while self._idle:
            self._idle.pop().connection.close(force=True)

    def before_fork(self) -> None:
        """Come to rest."""
        self.writing.acquire()
        self._pause()
        self._close_readers()
        self.drop_writer()

    def after_fork_in_parent(self) -> None:
        """Go on."""
        self._go_on()
        self.writing.release()

    def after_fork_in_child(self) -> None:
        """Start anew: the threads that held the locks or waited are not there."""
        self._reset()
        self._at_fork()


_forking = threading.Lock()
_open: weakref.WeakSet[SQLiteConnections] = weakref.WeakSet()
_resting: list[SQLiteConnections] = []


def _before_fork() -> None:
    _forking.acquire()
    for connections in list(_open):
        connections.before_fork()
        _resting.append(connections)


def _after_fork_in_parent() -> None:
    while _resting:
        _resting.pop().after_fork_in_parent()
    _forking.release()


def _after_fork_in_child() -> None:
    while _resting:
        _resting.pop().after_fork_in_child()
    _forking.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
