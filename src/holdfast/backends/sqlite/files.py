"""Opening a SQLite file: whose it is, making it, and how every connection to it is set."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar

import apsw
import apsw.sqlite_extra

from holdfast.backends.sqlite.errors import BUSY
from holdfast.backends.sqlite.layout import APPLICATION_ID, VERSION, schema
from holdfast.errors import Config, Corrupt, Denied, Unsupported

T = TypeVar("T")

_CHECKSUM_VFS = "cksmvfs"
_CHECKSUM_BYTES = 8
_SMALLEST_PAGE = 512


class Settings(NamedTuple):
    """What a store was opened with."""

    url: str
    path: str
    synchronous: str
    busy_timeout: float
    vfs: str | None
    exclusive: bool


class Patience:
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


def checksum_vfs() -> str | None:
    """The name of the VFS that keeps a checksum in every page, or None where it does not come with apsw."""
    with _loading:
        names = apsw.vfs_names()
        if _CHECKSUM_VFS not in names:
            if not apsw.sqlite_extra.has("cksumvfs"):
                return None
            apsw.sqlite_extra.load(apsw.Connection(":memory:"), "cksumvfs")
            apsw.set_default_vfs(names[0])  # others in this process need not have it
        return _CHECKSUM_VFS


def connect(settings: Settings, *, create: bool = False) -> apsw.Connection:
    """A connection to the file. Closing it does not write the log back; `writer` is for that."""
    connection = apsw.Connection(
        settings.path,
        flags=apsw.SQLITE_OPEN_READWRITE | (apsw.SQLITE_OPEN_CREATE if create else 0),
        vfs=settings.vfs or checksum_vfs(),
        statementcachesize=256,
    )
    connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
    # The file may come from anywhere: nothing in it is run.
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, 0)
    connection.config(apsw.SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0)
    # The plan of a query is not to depend on what is bound: otherwise, binding makes SQLite plan it again.
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
    connection.set_busy_handler(Patience(settings.busy_timeout))
    return connection


def reader(settings: Settings) -> apsw.Cursor:
    """A connection for reading. As a cursor, since making one for every statement takes longer than some statements."""
    connection = connect(settings)
    connection.execute("PRAGMA query_only = 1")
    return connection.cursor()


def writer(settings: Settings, *, create: bool = False) -> apsw.Cursor:
    """The connection for writing; with `create` the file is looked at first, and made where it is not there."""
    connection = connect(settings, create=create)
    try:
        if connection.readonly("main"):
            raise Denied(
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


def _claim(connection: apsw.Connection, settings: Settings) -> None:
    insist = partial(Patience(settings.busy_timeout).insist, since=time.monotonic())
    if not insist(lambda: _in_transaction(connection, "BEGIN", lambda: _is_ours(connection, settings.url))):
        if _keeps_checksums(connection):
            connection.reserve_bytes("main", _CHECKSUM_BYTES)
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        insist(lambda: _in_transaction(connection, "BEGIN IMMEDIATE", lambda: _make(connection, settings.url)))
    elif connection.reserve_bytes("main") == _CHECKSUM_BYTES and not _keeps_checksums(connection):
        raise Unsupported(
            "the pages of the file carry checksums, which this apsw does not know, and would spoil by writing",
            where=settings.url,
            hint="Install an apsw that comes with the extra cksumvfs",
        )
    mode = insist(lambda: connection.execute("PRAGMA journal_mode = WAL").get)
    if mode != "wal":
        raise Config(
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
            raise Unsupported(
                f"the file has layout {version}, and this version of holdfast knows layout {VERSION}",
                where=url,
                hint="Update holdfast",
            )
        return True
    if application or connection.execute("SELECT count(*) FROM sqlite_schema").get:
        raise Config("this is another application's database", where=url, hint="Name a file of holdfast's own")
    _check_length(connection.filename, url)
    return False


def _check_length(path: str, url: str) -> None:
    """SQLite takes a file that is shorter than any page for an empty one, and would write over what is left of it."""
    with contextlib.suppress(FileNotFoundError):
        size = Path(path).stat().st_size
        if 0 < size < _SMALLEST_PAGE:
            raise Corrupt(
                f"the file has {size} bytes, and no store is that short", where=url, hint="Restore it from a backup"
            )


def _make(connection: apsw.Connection, url: str) -> None:
    if _is_ours(connection, url):
        return  # another process was faster
    for statement in schema():
        connection.execute(statement)
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {VERSION}")
