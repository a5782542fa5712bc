"""Opens, creates and checks a SQLite file, and configures connections to it."""

from __future__ import annotations

import contextlib
import os
import random
import struct
import threading
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar
from urllib.parse import quote

import apsw

from holdfast.backends.fsutil import path_exists
from holdfast.backends.sqlite.errors import BUSY
from holdfast.backends.sqlite.schema import APPLICATION_ID, VERSION, create_statements, upgrade_statements
from holdfast.backends.tables import LATER
from holdfast.errors import ConfigError, CorruptError, DeniedError, NotFoundError, UnsupportedError

T = TypeVar("T")

_CHECKSUM_VFS = "cksmvfs"
_CHECKSUM_BYTES = 8
_LIBRARIES = (".so", ".dylib", ".dll", "")
_SMALLEST_PAGE = 512


class FileOptions(NamedTuple):
    """The options of an open store."""

    url: str
    path: str
    synchronous: str
    busy_timeout: float
    vfs: str | None
    exclusive: bool
    read_only: bool = False
    frozen: bool = False
    """Whether nobody may write the file, nor a log beside it: it is read as it is, without locks."""


class LockWait:
    """A busy handler: waits for other connections, with random pauses, up to a timeout."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._until = 0.0

    def __call__(self, tries: int) -> bool:
        now = time.monotonic()
        if tries == 0:
            self._until = now + self._seconds
        if now >= self._until:
            return False
        _pause(tries)
        return True

    def retry(self, action: Callable[[], T], since: float, refusal: Exception | None = None) -> T:
        """Retry an action that SQLite refuses without calling the busy handler. `refusal` is a first refusal."""
        tries = 0
        while True:
            if refusal is not None:
                if time.monotonic() >= since + self._seconds:
                    raise refusal
                _pause(tries)
                tries += 1
            try:
                return action()
            except BUSY as error:
                refusal = error


def _pause(tries: int) -> None:
    time.sleep(random.uniform(0.0001, min(0.005, 0.0003 * (tries + 1))))  # noqa: S311 - no secret


_load_lock = threading.Lock()


def checksum_extension() -> Path | None:
    """Return the file of the VFS, if it comes with apsw.

    `apsw.sqlite_extra` finds the same, but imports modules that take longer than opening a store.
    """
    stem = Path(apsw.__file__).parent / "sqlite_extra_binaries" / "cksumvfs"
    return next((path for suffix in _LIBRARIES if (path := stem.with_suffix(suffix)).exists()), None)


def checksum_vfs() -> str | None:
    """Return the name of the VFS with a checksum in every page; None if it does not come with apsw."""
    with _load_lock:
        names = apsw.vfs_names()
        if _CHECKSUM_VFS not in names:
            extension = checksum_extension()
            if extension is None:
                return None
            connection = apsw.Connection(":memory:")
            connection.enable_load_extension(True)
            connection.load_extension(str(extension))
            apsw.set_default_vfs(names[0])  # not for others in this process
        return _CHECKSUM_VFS


def connect(settings: FileOptions, *, create: bool = False) -> apsw.Connection:
    """Return a connection to the file. Closing it does not write the log back, unlike that of `open_writer`."""
    name, flags = settings.path, apsw.SQLITE_OPEN_READWRITE | (apsw.SQLITE_OPEN_CREATE if create else 0)
    if settings.frozen:
        name, flags = f"file:{quote(name)}?immutable=1", apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
    connection = apsw.Connection(
        name,
        flags=flags,
        vfs=settings.vfs or checksum_vfs(),
        statementcachesize=256,
    )
    connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
    # The file may come from anywhere: no code in it is run.
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, 0)
    connection.config(apsw.SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0)
    # The plan of a query must not depend on bound values: otherwise, binding makes SQLite plan it again.
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
    # The store writes the log back itself: SQLite would not report a failed flush, and would try it again.
    connection.wal_autocheckpoint(0)
    connection.set_busy_handler(LockWait(settings.busy_timeout))
    return connection


def open_reader(settings: FileOptions) -> apsw.Cursor:
    """Return a connection for reading, as a cursor: to create one takes longer than some statements."""
    connection = connect(settings)
    connection.execute("PRAGMA query_only = 1")
    return connection.cursor()


def read_only_options(settings: FileOptions) -> FileOptions:
    """Return the options to open a file for reading only, by the permissions of this user."""
    path = Path(settings.path)
    if not path_exists(path, settings.url):
        raise NotFoundError(
            "there is no store here",
            where=settings.url,
            hint="Check the path; a store is created when it is opened for writing",
            code="no-store",
        )
    if os.access(path, os.W_OK) and os.access(path.parent, os.W_OK):
        return settings
    # While others use the file, or if there is a log, it must be read under the locks in the files beside it.
    log = Path(f"{settings.path}-wal")
    in_use = Path(f"{settings.path}-shm").exists() or (log.exists() and log.stat().st_size > 0)
    return settings._replace(frozen=not in_use)


def open_viewer(settings: FileOptions) -> apsw.Cursor:
    """Return the first connection to a file that is only read. If it is the last one too, it leaves no log."""
    connection = connect(settings)
    try:
        if settings.exclusive:
            connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        connection.execute("PRAGMA query_only = 1")
        retry = partial(LockWait(settings.busy_timeout).retry, since=time.monotonic())
        if not retry(lambda: _in_transaction(connection, "BEGIN", lambda: _is_store(connection, settings.url))):
            raise NotFoundError("the file is an empty database, and no store yet", where=settings.url, code="no-store")
        connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, int(settings.frozen))
    except BaseException:
        connection.close(force=True)
        raise
    return connection.cursor()


def missing_tables(cursor: apsw.Cursor) -> frozenset[str]:
    """Return the tables that a file of an older version lacks."""
    tables = {name for (name,) in cursor.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
    return frozenset(space.name for space in LATER if space.name not in tables)


def open_writer(settings: FileOptions, *, create: bool = False) -> apsw.Cursor:
    """Return the connection for writing; with `create` the file is checked, and created if it does not exist."""
    connection = connect(settings, create=create)
    try:
        if connection.readonly("main"):
            raise DeniedError(
                "the file may not be written",
                where=settings.url,
                hint="Grant this user writing to the file and to its directory",
            )
        if settings.exclusive:
            connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        connection.execute(_SYNCHRONOUS[settings.synchronous])
        if settings.synchronous == "full":
            # On macOS a plain flush leaves the data in the cache of the disk; elsewhere these change nothing.
            connection.execute("PRAGMA fullfsync = 1; PRAGMA checkpoint_fullfsync = 1")
        if create:
            _prepare(connection, settings)
        connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 0)
    except BaseException:
        connection.close(force=True)
        raise
    return connection.cursor()


_SYNCHRONOUS = {name: f"PRAGMA synchronous = {name.upper()}" for name in ("full", "normal", "off")}


def _prepare(connection: apsw.Connection, settings: FileOptions) -> None:
    retry = partial(LockWait(settings.busy_timeout).retry, since=time.monotonic())
    if not retry(lambda: _in_transaction(connection, "BEGIN", lambda: _is_store(connection, settings.url))):
        if _has_checksums(connection):
            connection.reserve_bytes("main", _CHECKSUM_BYTES)
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        retry(lambda: _in_transaction(connection, "BEGIN IMMEDIATE", lambda: _create(connection, settings.url)))
    elif connection.reserve_bytes("main") == _CHECKSUM_BYTES and not _has_checksums(connection):
        raise UnsupportedError(
            "the pages of the file have checksums, which this apsw does not know, and would damage by writing",
            where=settings.url,
            hint="Install an apsw that comes with the extra cksumvfs",
        )
    elif not _is_current(connection):
        retry(lambda: _in_transaction(connection, "BEGIN IMMEDIATE", lambda: _upgrade(connection)))
    mode = retry(lambda: connection.execute("PRAGMA journal_mode = WAL").get)
    if mode != "wal":
        raise ConfigError(
            f"SQLite cannot use a write-ahead log for this file (journal_mode is {mode})",
            where=settings.url,
            hint="Put the file on a local disk",
        )


def _has_checksums(connection: apsw.Connection) -> bool:
    """Return whether the connection uses the checksum VFS."""
    return connection.execute("PRAGMA checksum_verification").get is not None


def _in_transaction(connection: apsw.Connection, begin: str, action: Callable[[], T]) -> T:
    try:
        connection.execute(begin)
        result = action()
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    return result


def _is_store(connection: apsw.Connection, url: str) -> bool:
    """Return whether the file is a store; False if it has no tables. Raises an error if it is something else."""
    application, version = connection.pragma("application_id"), connection.pragma("user_version")
    if application == APPLICATION_ID:
        if version != VERSION:
            raise UnsupportedError(
                f"the file has layout {version}, and this version of holdfast knows layout {VERSION}",
                where=url,
                hint="Update holdfast",
            )
        return True
    if application or connection.execute("SELECT count(*) FROM sqlite_schema").get:
        raise ConfigError("this is another application's database", where=url, hint="Name another file")
    _check_length(connection.filename, url)
    return False


def _is_current(connection: apsw.Connection) -> bool:
    """Return whether a file has all tables of this version."""
    return not missing_tables(connection.cursor())


def _upgrade(connection: apsw.Connection) -> None:
    for statement in upgrade_statements():
        connection.execute(statement)


def _check_length(path: str, url: str) -> None:
    """Refuse a file that is shorter than a page: SQLite would take it for an empty one, and overwrite it."""
    with contextlib.suppress(FileNotFoundError):
        size = Path(path).stat().st_size
        if 0 < size < _SMALLEST_PAGE:
            raise CorruptError(
                f"the file has {size} bytes, and no store is that short", where=url, hint="Restore it from a backup"
            )


def _create(connection: apsw.Connection, url: str) -> None:
    if _is_store(connection, url):
        return  # another process was faster
    for statement in create_statements():
        connection.execute(statement)
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {VERSION}")


# Pages

_ATTEMPTS = 3
_ATTEMPT_PAUSE = 0.01
"""How often a page is read before it counts as damaged, and how long apart: it may be being written."""

_LOG_HEADER, _FRAME = 32, struct.Struct(">I20x")


def damaged_pages(path: str, size: int, count: int) -> list[int]:
    """Return the pages with wrong checksums, counted from 1, by the size and number of pages. Pages in the log are
    skipped.

    Free pages are checked as well, which SQLite's own check does not read: they are no loss yet, but the next write to
    them will fail."""
    # Through the VFS: to open and close the file itself would release the locks that SQLite has on it.
    file = apsw.VFSFile(checksum_vfs() or "", path, [apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_MAIN_DB, 0])
    try:
        damaged = _unreadable(file, size, range(1, min(count, file.xFileSize() // size) + 1))
        for _ in range(_ATTEMPTS - 1):
            damaged = [page for page in damaged if page not in _pages_in_log(path, size)]
            if damaged:
                time.sleep(_ATTEMPT_PAUSE)
                damaged = _unreadable(file, size, damaged)
        return damaged
    finally:
        file.xClose()


def _unreadable(file: apsw.VFSFile, size: int, pages: Iterable[int]) -> list[int]:
    found = []
    for page in pages:
        try:
            file.xRead(size, (page - 1) * size)
        except apsw.IOError:
            found.append(page)
    return found


def _pages_in_log(path: str, size: int) -> set[int]:
    """Return the pages that are in the log."""
    pages = set()
    with contextlib.suppress(FileNotFoundError), Path(f"{path}-wal").open("rb") as log:
        log.seek(_LOG_HEADER)
        while len(frame := log.read(_FRAME.size)) == _FRAME.size:
            pages.add(_FRAME.unpack(frame)[0])
            log.seek(size, 1)
    return pages
