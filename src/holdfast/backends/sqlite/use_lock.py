"""Keeps the locks that tell other copies of SQLite that a file is in use.

SQLite's own locks belong to the process: if another copy of SQLite in this process, such as that of Python's `sqlite3`,
opens the file and closes it, the system drops them all. Whoever closes the file next then believes to be the last one,
and deletes the log to which this store still writes. A lock of an open file, which Linux has too, stays, and is
respected by every copy of SQLite, in this process and in others. So one is held for as long as a store is open: on the
bytes that SQLite itself locks to say that a database, and the index of its log, are in use.

The file must not be closed while a connection is open, for the same reason. So all stores of a process share one lock.
"""

from __future__ import annotations

import contextlib
import os
import struct

try:
    import fcntl
except ImportError:  # on Windows, locks belong to open files anyway
    fcntl = None  # type: ignore[assignment]

from holdfast.backends.runtime.fork_safety import ForkSafeLock

_SET_LOCK: int | None = getattr(fcntl, "F_OFD_SETLK", None)
_LOCK = struct.Struct("hhqqi")

_DATABASE = (0x40000002, 510)
"""The bytes of a database that all of its users lock for reading."""

_LOG_INDEX = (128, 1)
"""The byte of the index of a log that all of its users lock for reading."""


class UseLock:
    """The lock of a file, for all stores of this process that have it open."""

    def __init__(self, files: list[tuple[int, tuple[int, int]]]) -> None:
        self._files = files
        self.users = 1

    def set(self, kind: int) -> None:
        """Lock the file, or unlock it."""
        for file, (start, length) in self._files:
            with contextlib.suppress(OSError):  # some file systems have no such locks
                fcntl.fcntl(file, _SET_LOCK or 0, _LOCK.pack(kind, os.SEEK_SET, start, length, 0))

    def close(self) -> None:
        """Close the files."""
        for file, _ in self._files:
            os.close(file)


_mutex = ForkSafeLock()
_locks: dict[str, UseLock] = {}


def acquire(path: str) -> None:
    """Lock a file that this process has open in SQLite, until `release`."""
    if _SET_LOCK is None:
        return
    with _mutex:
        lock = _locks.get(path)
        if lock is not None:
            lock.users += 1
            return
        files = []
        for name, span in ((path, _DATABASE), (f"{path}-shm", _LOG_INDEX)):
            with contextlib.suppress(OSError):  # no log: the file is read as it is
                files.append((os.open(name, os.O_RDONLY | os.O_CLOEXEC), span))
        lock = _locks[path] = UseLock(files)
        lock.set(fcntl.F_RDLCK)


def release(path: str) -> UseLock | None:
    """Unlock a file that no other store of this process uses. The result is closed when all connections are."""
    with _mutex:
        lock = _locks.get(path)
        if lock is None:
            return None
        lock.users -= 1
        if lock.users:
            return None
        del _locks[path]
        lock.set(fcntl.F_UNLCK)
        return lock
