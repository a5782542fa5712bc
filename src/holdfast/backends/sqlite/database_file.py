"""Opening a SQLite file: whose it is, making it, and how every connection to it is set."""

from __future__ import annotations

import contextlib
import os
import random
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar
from urllib.parse import quote

import apsw

from holdfast.backends.sqlite.errors import BUSY
from holdfast.backends.sqlite.schema import APPLICATION_ID, VERSION, later, schema
from holdfast.backends.tables import LATER
from holdfast.backends.urls import path_exists
from holdfast.errors import ConfigError, CorruptError, DeniedError, NotFoundError, UnsupportedError

T = TypeVar("T")

_CHECKSUM_VFS = "cksmvfs"
_CHECKSUM_BYTES = 8
_LIBRARIES = (".so", ".dylib", ".dll", "")
_SMALLEST_PAGE = 512


class FileOptions(NamedTuple):
    """What a store was opened with."""

    url: str
    path: str
    synchronous: str
    busy_timeout: float
    vfs: str | None
    exclusive: bool
    read_only: bool = False
    frozen: bool = False
    """Whether nobody may write the file, nor keep a log beside it: it is read as it is, without locks."""


class LockWait:
    """Waits while another connection is in the way: in short, uneven naps, and not for ever."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._until = 0.0

    def __call__(self, tries: int) -> bool:
        now = time.monotonic()
        if tries == 0:
            self._until = now + self._seconds
        if now >= self._until:
            return False
        _nap(tries)
        return True

    def insist(self, action: Callable[[], T], since: float, refusal: Exception | None = None) -> T:
        """Do something that SQLite may refuse at once instead of asking to wait; as it did, if there is a refusal."""
        tries = 0
        while True:
            if refusal is not None:
                if time.monotonic() >= since + self._seconds:
                    raise refusal
                _nap(tries)
                tries += 1
            try:
                return action()
            except BUSY as error:
                refusal = error


def _nap(tries: int) -> None:
    time.sleep(random.uniform(0.0001, min(0.005, 0.0003 * (tries + 1))))  # noqa: S311 - no secret


_loading = threading.Lock()


def checksum_extension() -> Path | None:
    """The file that holds the VFS, if it comes with apsw.

    `apsw.sqlite_extra` finds the same, but loads modules for that which take longer than opening a store.
    """
    stem = Path(apsw.__file__).parent / "sqlite_extra_binaries" / "cksumvfs"
    return next((path for suffix in _LIBRARIES if (path := stem.with_suffix(suffix)).exists()), None)


def checksum_vfs() -> str | None:
    """The name of the VFS that keeps a checksum in every page, or None where it does not come with apsw."""
    with _loading:
        names = apsw.vfs_names()
        if _CHECKSUM_VFS not in names:
            extension = checksum_extension()
            if extension is None:
                return None
            connection = apsw.Connection(":memory:")
            connection.enable_load_extension(True)
            connection.load_extension(str(extension))
            apsw.set_default_vfs(names[0])  # others in this process need not have it
        return _CHECKSUM_VFS


def connect(settings: FileOptions, *, create: bool = False) -> apsw.Connection:
    """A connection to the file. Closing it does not write the log back; `writer` is for that."""
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
    # The file may come from anywhere: nothing in it is run.
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, 0)
    connection.config(apsw.SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0)
    # The plan of a query is not to depend on what is bound: otherwise, binding makes SQLite plan it again.
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
    # The store writes the log back itself: SQLite would not tell of a flush that failed, and try it again.
    connection.wal_autocheckpoint(0)
    connection.set_busy_handler(LockWait(settings.busy_timeout))
    return connection


def reader(settings: FileOptions) -> apsw.Cursor:
    """A connection for reading. As a cursor, since making one for every statement takes longer than some statements."""
    connection = connect(settings)
    connection.execute("PRAGMA query_only = 1")
    return connection.cursor()


def viewed(settings: FileOptions) -> FileOptions:
    """How a file is to be opened that is only looked at, as far as this user may do anything with it."""
    path = Path(settings.path)
    if not path_exists(path, settings.url):
        raise NotFoundError(
            "there is no store here",
            where=settings.url,
            hint="Check the path; a store is made when it is opened for writing",
            code="no-store",
        )
    if os.access(path, os.W_OK) and os.access(path.parent, os.W_OK):
        return settings
    # While others use it, or where its log was left, the file must be read under the locks that are kept beside it.
    log = Path(f"{settings.path}-wal")
    in_use = Path(f"{settings.path}-shm").exists() or (log.exists() and log.stat().st_size > 0)
    return settings._replace(frozen=not in_use)


def viewer(settings: FileOptions) -> apsw.Cursor:
    """The first connection to a file that is only looked at. Where it is the last one too, it leaves no log behind."""
    connection = connect(settings)
    try:
        connection.execute("PRAGMA query_only = 1")
        insist = partial(LockWait(settings.busy_timeout).insist, since=time.monotonic())
        if not insist(lambda: _in_transaction(connection, "BEGIN", lambda: _is_ours(connection, settings.url))):
            raise NotFoundError("the file is an empty database, and no store yet", where=settings.url, code="no-store")
        connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, int(settings.frozen))
    except BaseException:
        connection.close(force=True)
        raise
    return connection.cursor()


def missing(cursor: apsw.Cursor) -> frozenset[str]:
    """The tables that a file lacks which an older Holdfast made."""
    tables = {name for (name,) in cursor.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
    return frozenset(space.name for space in LATER if space.name not in tables)


def writer(settings: FileOptions, *, create: bool = False) -> apsw.Cursor:
    """The connection for writing; with `create` the file is looked at first, and made where it is not there."""
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
            # On macOS a plain flush leaves the data in the disk's own memory; elsewhere these change nothing.
            connection.execute("PRAGMA fullfsync = 1; PRAGMA checkpoint_fullfsync = 1")
        if create:
            _claim(connection, settings)
        connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 0)
    except BaseException:
        connection.close(force=True)
        raise
    return connection.cursor()


_SYNCHRONOUS = {name: f"PRAGMA synchronous = {name.upper()}" for name in ("full", "normal", "off")}


def _claim(connection: apsw.Connection, settings: FileOptions) -> None:
    insist = partial(LockWait(settings.busy_timeout).insist, since=time.monotonic())
    if not insist(lambda: _in_transaction(connection, "BEGIN", lambda: _is_ours(connection, settings.url))):
        if _keeps_checksums(connection):
            connection.reserve_bytes("main", _CHECKSUM_BYTES)
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        insist(lambda: _in_transaction(connection, "BEGIN IMMEDIATE", lambda: _make(connection, settings.url)))
    elif connection.reserve_bytes("main") == _CHECKSUM_BYTES and not _keeps_checksums(connection):
        raise UnsupportedError(
            "the pages of the file carry checksums, which this apsw does not know, and would spoil by writing",
            where=settings.url,
            hint="Install an apsw that comes with the extra cksumvfs",
        )
    elif not _has_all(connection):
        insist(lambda: _in_transaction(connection, "BEGIN IMMEDIATE", lambda: _add_later(connection)))
    mode = insist(lambda: connection.execute("PRAGMA journal_mode = WAL").get)
    if mode != "wal":
        raise ConfigError(
            f"SQLite cannot keep a write-ahead log for this file (journal_mode is {mode})",
            where=settings.url,
            hint="Put the file on a local disk",
        )


def _keeps_checksums(connection: apsw.Connection) -> bool:
    """Whether the VFS answers for the checksum VFS."""
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


def _is_ours(connection: apsw.Connection, url: str) -> bool:
    """Whether the file has our tables; if it has none at all, it may have them."""
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
        raise ConfigError("this is another application's database", where=url, hint="Name a file of holdfast's own")
    _check_length(connection.filename, url)
    return False


def _has_all(connection: apsw.Connection) -> bool:
    """Whether one of our files has the tables that the first ones were made without."""
    return not missing(connection.cursor())


def _add_later(connection: apsw.Connection) -> None:
    for statement in later():
        connection.execute(statement)


def _check_length(path: str, url: str) -> None:
    """SQLite takes a file that is shorter than any page for an empty one, and would write over what is left of it."""
    with contextlib.suppress(FileNotFoundError):
        size = Path(path).stat().st_size
        if 0 < size < _SMALLEST_PAGE:
            raise CorruptError(
                f"the file has {size} bytes, and no store is that short", where=url, hint="Restore it from a backup"
            )


def _make(connection: apsw.Connection, url: str) -> None:
    if _is_ours(connection, url):
        return  # another process was faster
    for statement in schema():
        connection.execute(statement)
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {VERSION}")
