"""Opens, creates and checks a SQLite file, and configures connections to it.

Checks of a file while a store has it open: it is the same file, with the same log, and it has what was
acknowledged last.

Commits are ordered: a file that has the last one has all before it.
"""

from __future__ import annotations

import contextlib
import os
import random
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

import apsw

from holdfast._named_tuple import NamedTuple
from holdfast.backends.fsutil import PRIVATE, create_empty, no_store_error, path_exists
from holdfast.backends.interface import Batch, Create, Delete, Put
from holdfast.backends.sqlite.errors import BUSY, is_damage
from holdfast.backends.sqlite.schema import APPLICATION_ID, STATEMENTS, VERSION, create_statements
from holdfast.backends.sqlite.text_search import refresh_index
from holdfast.backends.tables import Key, Scalar, Table
from holdfast.errors import ConfigError, CorruptError, DeniedError, NotFoundError, UnavailableError, UnsupportedError

T = TypeVar("T")

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
    file_mode: int = PRIVATE
    """The permissions of a file that is created. SQLite gives them to the log, too."""


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


def connect(settings: FileOptions, *, create: bool = False) -> apsw.Connection:
    """Return a connection to the file. Closing it does not write the log back, unlike that of `open_writer`."""
    name, flags = settings.path, apsw.SQLITE_OPEN_READWRITE | (apsw.SQLITE_OPEN_CREATE if create else 0)
    if settings.frozen:
        name, flags = f"file:{quote(name)}?immutable=1", apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
    if create and settings.vfs is None:
        create_empty(Path(name), settings.file_mode)
    connection = apsw.Connection(
        name,
        flags=flags,
        vfs=settings.vfs,
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
        raise no_store_error(settings.url)
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
            raise NotFoundError(
                "the file is an empty database, not a store",
                where=settings.url,
                hint="Check the path; what is saved in it makes it a store",
                code="no-store",
            )
        connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, int(settings.frozen))
    except BaseException as error:
        connection.close(force=True)
        if isinstance(error, apsw.NotADBError):
            _check_kind(settings.path, settings.url)
        raise
    return connection.cursor()


def changed_definitions(cursor: apsw.Cursor) -> list[str]:
    """Return what is wrong with the definitions of tables, indexes and views: they are texts in the file, and
    `integrity_check` accepts whatever can be parsed."""
    sql = "SELECT type, name, sql FROM sqlite_schema WHERE type IN ('table', 'index', 'view') AND sql IS NOT NULL"
    with contextlib.closing(apsw.Connection(":memory:")) as fresh:
        for statement in create_statements():
            fresh.execute(statement)
        expected = fresh.execute(sql).fetchall()
    found = set(cursor.execute(sql))
    return [
        f"the definition of {kind} {name} was changed"
        for kind, name, definition in expected
        if (kind, name, definition) not in found
    ]


def measure(cursor: apsw.Cursor, path: str) -> int:
    """Return the size of the file and its log."""
    # By the log alone: to open and close the file itself would release the locks that SQLite has on it.
    log = Path(path + "-wal")
    pages, size = cursor.connection.pragma("page_count"), cursor.connection.pragma("page_size")
    with contextlib.suppress(FileNotFoundError):  # no log, or a VFS of its own
        return int(pages * size + log.stat().st_size)
    return int(pages * size)


def find_damage(cursor: apsw.Cursor, _: None) -> list[str]:
    """Run SQLite's own check, and return what is wrong with the file."""
    cursor.execute("PRAGMA shrink_memory")  # so that pages are read from the disk
    cursor.execute("BEGIN")
    try:
        refresh_index(cursor)
        found = [str(row[0]) for row in cursor.execute("PRAGMA integrity_check") if row != ("ok",)]
        found += changed_definitions(cursor)
    except apsw.Error as error:
        if not is_damage(error):
            raise
        found = [f"a page is damaged, and the check ended there: {error}"]
    finally:
        if cursor.connection.in_transaction:
            cursor.execute("ROLLBACK")
    return found


def open_writer(settings: FileOptions, *, create: bool = False) -> apsw.Cursor:
    """Return the connection for writing; with `create` the file is checked, and created if it does not exist."""
    connection = connect(settings, create=create)
    try:
        if connection.readonly("main"):
            raise DeniedError(
                "this user may not write to the file",
                where=settings.url,
                hint="Grant this user write permission on the file and its directory",
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
    except BaseException as error:
        connection.close(force=True)
        if isinstance(error, apsw.NotADBError):
            _check_kind(settings.path, settings.url)
        raise
    return connection.cursor()


_SYNCHRONOUS = {name: f"PRAGMA synchronous = {name.upper()}" for name in ("full", "normal", "off")}


def _prepare(connection: apsw.Connection, settings: FileOptions) -> None:
    retry = partial(LockWait(settings.busy_timeout).retry, since=time.monotonic())
    if not retry(lambda: _in_transaction(connection, "BEGIN", lambda: _is_store(connection, settings.url))):
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        retry(lambda: _in_transaction(connection, "BEGIN IMMEDIATE", lambda: _create(connection, settings.url)))
    mode = retry(lambda: connection.execute("PRAGMA journal_mode = WAL").get)
    if mode != "wal":
        raise ConfigError(
            f"SQLite cannot use a write-ahead log for this file (journal_mode is {mode})",
            where=settings.url,
            hint="Put the file on a local disk",
        )


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
    application = connection.pragma("application_id")
    if application == APPLICATION_ID:
        return True
    if application >> 8 == APPLICATION_ID >> 8:
        raise UnsupportedError(
            f"the file has layout {application & 0xFF}, and this version of holdfast knows layout {VERSION}",
            where=url,
            hint="Update holdfast",
        )
    if application or connection.execute("SELECT count(*) FROM sqlite_schema").get:
        raise _foreign_error(connection, url)
    _check_length(connection.filename, url)
    return False


_PEERS = (
    ({"checkpoints", "writes"}, "a database of LangGraph's SqliteSaver", "holdfast import --from langgraph {path}"),
    ({"store", "store_migrations"}, "a database of LangGraph's SqliteStore", ""),
    (
        {"agent_sessions", "agent_messages"},
        "a database of the OpenAI Agents SDK's SQLiteSession",
        "holdfast import --from openai-sessions {path}",
    ),
    (
        {"sessions", "events", "app_states", "user_states"},
        "a database of Google ADK",
        "holdfast import --from adk {path}",
    ),
)
"""Databases of frameworks by their tables, and how they are imported."""


def _foreign_error(connection: apsw.Connection, url: str) -> ConfigError:
    """Build the error for a database of something else."""
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
    for own, what, command in _PEERS:
        if own <= tables:
            hint = f"Name another file, and import this one: {command.format(path=connection.filename)}"
            return ConfigError(f"the file is {what}", where=url, hint=hint if command else "Name another file")
    return ConfigError("the file is the database of another application", where=url, hint="Name another file")


_CONTENTS = (
    (b"\x1f\x8b", "a gzip archive"),
    (b"PK\x03\x04", "a zip archive"),
    (b"\x28\xb5\x2f\xfd", "a zstd archive"),
    (b"%PDF", "a PDF document"),
    (b"\x89PNG", "a picture"),
    (b"\x7fELF", "a program"),
)
"""What a file is by how it begins."""


def _check_kind(path: str, url: str) -> None:
    """Refuse a file that was never a database, as its beginning shows: nothing in it can be repaired.

    Only for what SQLite cannot open: to close the file here releases the locks of this process on it.
    """
    with contextlib.suppress(OSError):  # a VFS of its own
        with Path(path).open("rb") as file:
            start = file.read(_SMALLEST_PAGE)
            file.seek(max(file.seek(0, os.SEEK_END) - _SMALLEST_PAGE, 0))
            end = file.read(_SMALLEST_PAGE)
        kind = next((kind for mark, kind in _CONTENTS if start.startswith(mark)), "")
        if not kind and _is_text(start) and _is_text(end):
            kind = "a text file"
        if kind:
            hint = "Name another file; a store is a SQLite file, and the first save creates it"
            raise ConfigError(f"the file is {kind}, not a store", where=url, hint=hint)


def _is_text(part: bytes) -> bool:
    """Return whether a part of a file is text, of which the first and the last character may be cut."""
    text = part.decode(errors="ignore")
    return len(text.encode()) > len(part) - 7 and all(each.isprintable() or each.isspace() for each in text)


def _check_length(path: str, url: str) -> None:
    """Refuse a file that is shorter than a page: SQLite would take it for an empty one, and overwrite it."""
    with contextlib.suppress(FileNotFoundError):
        size = Path(path).stat().st_size
        if 0 < size < _SMALLEST_PAGE:
            _check_kind(path, url)
            raise CorruptError(
                f"the file has only {size} bytes, which is too short for a store",
                where=url,
                hint="Restore it from a backup",
            )


def _create(connection: apsw.Connection, url: str) -> None:
    if _is_store(connection, url):
        return  # another process was faster
    for statement in create_statements():
        connection.execute(statement)
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")


_INTERVAL = 0.01
"""How many seconds pass between two checks of the log, and of the file by readers. Writers check it with every commit:
what was written to a log without a name can still be saved, and what was written to such a file cannot."""


class FileIdentity:
    """Detects that the file or its log was deleted or replaced. Both continue to exist without names while they are
    open, and SQLite would write to them."""

    def __init__(self, path: str, where: str) -> None:
        self._path = path
        self._log_path = f"{path}-wal"
        self._where = where
        self._file: _Stamp | None = None
        self._log: _Stamp | None = None
        self._commits = 0
        self._check_at = 0.0

    def record(self) -> None:
        """Record the file that has just been opened. In a VFS with names of its own there is none to compare."""
        self._file, self._log = _stamp(self._path), None

    def forget_log(self) -> None:
        """Forget the log: SQLite may create a new one while this store has no connection."""
        self._log = None

    def is_replaced(self) -> bool:
        """Return whether the name refers to another file now, or to none."""
        if self._file is None:
            return False
        file = _stamp(self._path)
        return file is None or file.inode != self._file.inode

    def is_readable(self) -> bool:
        """Return whether the name does not refer to another file, as of a moment ago."""
        now = time.monotonic()
        if now < self._check_at:
            return True
        self._check_at = now + _INTERVAL
        return not self.is_replaced()

    def is_in_place(self, connection: apsw.Connection) -> bool:
        """Return whether what is written now will be in the file of that name, and in its log as of a moment ago."""
        if self._file is None:
            return True
        file = _stamp(self._path)
        if file is None or file.inode != self._file.inode:
            return False
        now = time.monotonic()
        if now >= self._check_at or self._log is None:
            log = _stamp(self._log_path)
            if self._log is not None and (log is None or log.inode != self._log.inode):
                return False
            # A new connection creates the log when it is first used.
            self._file, self._log, self._commits = file, log, connection.pragma("data_version")
            self._check_at = now + _INTERVAL
        return True

    def is_log_own(self, connection: apsw.Connection) -> bool:
        """Return whether the log can be written back to the file that is open, wherever that is now: nobody else has
        written to this log, or to what has the name of the file."""
        log = _stamp(self._log_path)
        if self._log is None or (log is not None and log.inode != self._log.inode):
            return False
        if not self.is_replaced() and _stamp(self._path) != self._file:
            return False
        return bool(connection.pragma("data_version") == self._commits)

    def error(self) -> UnavailableError:
        """Return the error to raise if the file or its log was replaced."""
        what = "the file" if self.is_replaced() else "the write-ahead log of the file"
        return UnavailableError(
            f"{what} was deleted or replaced while the store was open",
            where=self._where,
            hint="Move it back, or open the store again; what was being written may not be stored",
            code="file-replaced",
        )


class _Stamp(NamedTuple):
    inode: int
    written: int


def _stamp(path: str) -> _Stamp | None:
    try:
        status = os.stat(path)  # noqa: PTH116 - twice as fast, and called for every commit
    except OSError:
        return None
    return _Stamp(status.st_ino, status.st_mtime_ns)


class LastRow(NamedTuple):
    """The last row that an acknowledged batch created. Such rows are rarely changed, as others are."""

    space: Table
    key: Key
    columns: tuple[Scalar, ...]

    def is_in(self, cursor: apsw.Cursor) -> bool:
        """Return whether a file has the row."""
        statements = STATEMENTS[self.space.name]
        return cursor.execute(statements.expect, self.key).fetchall() == [statements.expected(self.columns)]


def last_row(before: LastRow | None, batch: Batch) -> LastRow | None:
    """Return the last row that was created, after a batch has been committed; None if the batch removed it."""
    for change in reversed(batch):
        if isinstance(change, Create):  # what a batch writes, it neither writes again nor removes
            return LastRow(change.space, change.row.key, change.row.columns)
    for change in batch:
        if before is None or change.space is not before.space:
            continue
        if isinstance(change, Put) and change.row.key == before.key:
            before = LastRow(change.space, before.key, change.row.columns)
        elif isinstance(change, Delete) and before.key[: len(change.prefix)] == change.prefix:
            before = None
    return before


def lost_row(where: str) -> CorruptError:
    """Return the error to raise if a file lacks the last row that was acknowledged."""
    return CorruptError(
        "the file was reopened after a failure, and the last acknowledged changes are missing from it",
        where=where,
        hint="It was lost in the failure, unless another process removed it since. Verify the store, repair it from a "
        "copy if there is one, and open it again",
        code="lost-writes",
    )
