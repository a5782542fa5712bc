"""Locks a file against other copies of SQLite, and its writers against each other.

SQLite's own locks belong to the process: if another copy of SQLite in this process, such as that of Python's `sqlite3`,
opens the file and closes it, the system drops them all; a plain `open` and `close` is enough. Whoever closes
the file next then believes to be the last one, and deletes the log to which this store still writes; and a store in
another process writes at the same time as this one. A lock of an open file, which Linux has too, stays. So one is held
for as long as a store is open, on the bytes that SQLite itself locks to say that a database, and the index of its log,
are in use: every copy of SQLite respects it. And one is held by the store that is writing, on a byte that only stores
lock.

The file must not be closed while a connection is open, for the same reason. So all stores of a process share one lock.
"""

from __future__ import annotations

import contextlib
import os
import struct
import sys
import threading

try:
    import fcntl
except ImportError:  # on Windows, locks belong to open files anyway
    fcntl = None  # type: ignore[assignment]

from holdfast.backends.runtime.fork_safety import ForkSafeLock

_SET_LOCK: int | None = getattr(fcntl, "F_OFD_SETLK", None) if sys.platform == "linux" else None
_LOCK = struct.Struct("hhqqi")
"""As Linux has it; elsewhere its parts are in another order."""

_DATABASE = (0x40000002, 510)
"""The bytes of a database that all of its users lock for reading."""

_WRITER = (0x40000200, 1)
"""A byte of a database behind those that SQLite locks, in a page that has no content."""

_LOG_INDEX = (128, 1)
"""The byte of the index of a log that all of its users lock for reading."""


class UseLock:
    """The lock of a file, for all stores of this process that have it open."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.users = 1
        self._mutex = threading.Lock()
        self._writer: object = None
        self._database = _open(path)
        self._index = _open(f"{path}-shm")
        self._inode = os.fstat(self._database).st_ino if self._database is not None else 0
        self._set_all(fcntl.F_RDLCK)

    def is_of(self, path: str) -> bool:
        """Return whether this is the lock of the file that has a name now."""
        with contextlib.suppress(OSError):
            return os.stat(path).st_ino == self._inode  # noqa: PTH116 - as in `continuity`
        return False

    def begin_writing(self, store: object) -> bool:
        """Exclude the writers of all other stores, until `end_writing`. Returns False if one of them is writing.

        A store that was interrupted at its end may begin again."""
        with self._mutex:
            if self._writer is not None and self._writer is not store:
                return False
            self._writer = store
        if _set(self._database, _WRITER, fcntl.F_WRLCK):
            return True
        self._writer = None
        return False

    def end_writing(self, store: object) -> None:
        """Let others write, if this store is writing."""
        if self._writer is store:
            _set(self._database, _WRITER, fcntl.F_UNLCK)
            self._writer = None

    def unlock(self) -> None:
        """Unlock the file."""
        self._set_all(fcntl.F_UNLCK)

    def close(self) -> None:
        """Close the file."""
        for file in (self._database, self._index):
            if file is not None:
                os.close(file)

    def _set_all(self, kind: int) -> None:
        _set(self._database, _DATABASE, kind)
        _set(self._index, _LOG_INDEX, kind)


def _open(path: str) -> int | None:
    for access in (os.O_RDWR, os.O_RDONLY):
        with contextlib.suppress(OSError):  # no log, or this user may only read
            return os.open(path, access | os.O_CLOEXEC)
    return None


def _set(file: int | None, span: tuple[int, int], kind: int) -> bool:
    """Lock bytes of a file, or unlock them. Returns False if another process has them locked."""
    try:
        if file is not None:
            fcntl.fcntl(file, _SET_LOCK or 0, _LOCK.pack(kind, os.SEEK_SET, *span, 0))
    except (BlockingIOError, PermissionError):
        return False
    except OSError:
        pass  # some file systems have no such locks
    return True


_mutex = ForkSafeLock()
_locks: dict[str, UseLock] = {}


def acquire(path: str) -> UseLock | None:
    """Lock a file that this process has open in SQLite, until `release`. None where there are no such locks."""
    if _SET_LOCK is None:
        return None
    with _mutex:
        lock = _locks.get(path)
        if lock is not None and lock.is_of(path):
            lock.users += 1
        else:
            lock = _locks[path] = UseLock(path)
        return lock


def release(lock: UseLock) -> bool:
    """Unlock a file, unless another store of this process uses it. If the result is True, the lock has to be closed
    when all connections are."""
    with _mutex:
        lock.users -= 1
        if lock.users:
            return False
        if _locks.get(lock.path) is lock:
            del _locks[lock.path]
        lock.unlock()
        return True
