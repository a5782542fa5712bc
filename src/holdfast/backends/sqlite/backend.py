"""A store in one SQLite file, which any tool for SQLite can read.

`sqlite:///agents.db` is a file in the current directory, `sqlite:////var/lib/agents.db` one anywhere. Several processes
may use one file at a time.

Other tools may read the file, but not write it: they would leave the checksums in its pages as they were, and what they
wrote would count as damage.

Options, as arguments or in the URL's query:

- `synchronous`: `full` (the default) flushes every batch to the disk before it is acknowledged. `normal` does not wait
  for that: a crash of the process loses nothing, but a crash of the machine or a power cut may lose the last
  acknowledged batches. The file is consistent after either.
- `read_only`: look at a store that is there, and change nothing; the file may be one that this user cannot write.
- `busy_timeout`: for how many seconds to wait for another process that is writing, 60 by default. Then `TransientError`
  is
  raised.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import parse_qsl, unquote

import apsw

from holdfast.backends.interface import (
    Backend,
    Batch,
    BlockingCall,
    Capabilities,
    Change,
    Create,
    Delete,
    Ensure,
    Expect,
    Get,
    Put,
    Query,
    Row,
    Scan,
    WordMatch,
    WordMatches,
)
from holdfast.backends.runtime.group_commit import CommitQueue, Outcome
from holdfast.backends.sqlite import errors
from holdfast.backends.sqlite.connections import SQLiteConnections
from holdfast.backends.sqlite.database_file import FileOptions, LockWait, missing, viewed
from holdfast.backends.sqlite.page_check import damaged_pages
from holdfast.backends.sqlite.schema import STATEMENTS
from holdfast.backends.sqlite.text_search import change_words, find_words, look_anew, merge
from holdfast.backends.tables import WORDS
from holdfast.backends.urls import seconds, switch
from holdfast.errors import ConfigError, DeniedError, UnavailableError

T = TypeVar("T")
A = TypeVar("A")

_PAGES_WRITTEN = apsw.SQLITE_DBSTATUS_CACHE_WRITE
_CHECKPOINT_PAGES = 4_000
"""Of 16 MB of log, so that one in some hundred commits waits for it."""

_LARGE_LOG_PAGES = 10_000
_VACUUM = "PRAGMA incremental_vacuum(1000)"
_MERGED_PAGES = 500
_TOLD = 20
"""How many damaged pages are told by their numbers."""

_failed: set[str] = set()
"""Files whose flushing failed in this process, and whose log has not been written back since."""


class SQLiteBackend(Backend):
    """`sqlite:///path`: a store in one file."""

    schemes = ("sqlite",)
    takes_read_only = True

    def __init__(self, settings: FileOptions) -> None:
        self._settings = settings
        self._queue = CommitQueue(self._commit, settings.url)
        self._connections = SQLiteConnections(settings, self._queue.reset_after_fork)
        self._patience = LockWait(settings.busy_timeout)
        self._checkpoint_at = _CHECKPOINT_PAGES
        self._missing: frozenset[str] = frozenset()

    @classmethod
    async def open(cls, url: str, **options: Any) -> SQLiteBackend:
        """Open the file, and make it if it is not there. The module says which options there are.

        For tests of Holdfast itself, `vfs` names the SQLite VFS to use, `exclusive` keeps the file to one connection
        (as a VFS written in Python needs it), and `synchronous` may then also be `off`.
        """
        settings = _settings(url, options)
        store = cls(viewed(settings) if settings.read_only else settings)
        await BlockingCall(store._open)
        return store

    @property
    def url(self) -> str:
        return self._settings.url

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            durable=self._settings.synchronous == "full",
            shared=True,
            max_body=900_000_000,
            max_batch=1 << 30,
            words=True,
        )

    async def read(self, queries: Sequence[Query]) -> list[list[Row]]:
        if self._missing:
            return await self._read_older(queries)
        call: BlockingCall[list[list[Row]]] = BlockingCall(lambda: self._reading(answers, queries))
        return await call

    async def _read_older(self, queries: Sequence[Query]) -> list[list[Row]]:
        """The same, where nothing is in the spaces for which the file has no tables."""
        there = [query for query in queries if query.space.name not in self._missing]
        call: BlockingCall[list[list[Row]]] = BlockingCall(lambda: self._reading(answers, there))
        found = iter(await call if there else [])
        return [[] if query.space.name in self._missing else next(found) for query in queries]

    async def apply(self, batch: Batch) -> int | None:
        if self._settings.read_only:
            return await self._compare(batch)
        return await self._queue.submit(batch)

    async def _compare(self, batch: Batch) -> int | None:
        """What a batch of conditions alone comes to, where nothing else may be done."""
        if not all(isinstance(change, Expect) for change in batch):
            raise DeniedError(
                "this store is open for reading only", where=self.url, hint="Open it without read_only to write"
            )
        call: BlockingCall[int | None] = BlockingCall(lambda: self._reading(_first_failed, batch))
        return await call

    async def matched(self, match: WordMatch) -> WordMatches:
        call: BlockingCall[WordMatches] = BlockingCall(lambda: self._reading(find_words, match))
        return await call

    async def size(self) -> int:
        call: BlockingCall[int] = BlockingCall(lambda: self._reading(_size, self._settings.path))
        return await call

    async def check(self) -> list[str]:
        call: BlockingCall[list[str]] = BlockingCall(lambda: self._reading(_check, self._settings))
        return await call

    async def tidy(self) -> None:
        if not self._settings.read_only:
            await BlockingCall(self._tidy)

    async def close(self) -> None:
        await BlockingCall(self._close)

    @property
    def path(self) -> str:
        """Where the file is."""
        return self._settings.path

    async def at_rest(self, action: Callable[[], T]) -> T:
        """Do something with the file, or with another in its place, while this store has no connection to it."""

        def rest() -> T:
            self._connections.before_fork()
            try:
                return action()
            finally:
                self._connections.after_fork_in_parent()

        call: BlockingCall[T] = BlockingCall(rest)
        return await call

    def _open(self) -> None:
        connections = self._connections
        with connections.writing:
            try:
                if self._settings.read_only:
                    self._missing = missing(connections.open_viewer())
                else:
                    self._write_log_back(connections.open_writer().connection)
            except apsw.Error as error:
                connections.drop_writer()
                if errors.breaks_store(error):
                    _failed.add(self._settings.path)
                    raise errors.broken(error, self.url) from error
                raise errors.translate_opening(error, self.url) from error

    def _write_log_back(self, connection: apsw.Connection) -> None:
        """Empty the log of whoever used the file last.

        What is in it was perhaps read from memory and never reached the disk; in the file, it will be flushed. Where
        other processes are using the log there is no need, unless it was our own flush that failed.
        """
        failed = self._settings.path in _failed
        connection.set_busy_handler(self._patience if failed else None)
        try:
            connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
            _failed.discard(self._settings.path)
        except errors.BUSY:
            if failed:
                raise
        finally:
            connection.set_busy_handler(self._patience)

    def _close(self) -> None:
        self._queue.close()
        self._connections.end("the store is closed", "Open it again", "closed")
        try:
            self._connections.close()
        except apsw.Error as error:
            _failed.add(self._settings.path)
            raise UnavailableError(
                f"the store is closed, but its log could not be written back into the file: {error}",
                where=self.url,
                hint="Nothing is lost: that is done when the store is opened the next time. Look at the disk",
            ) from error

    # Reading

    def _reading(self, action: Callable[[apsw.Cursor, A], T], argument: A) -> T:
        """Do something with a connection for reading."""
        began = time.monotonic()
        try:
            try:
                return self._read_once(action, argument)
            except errors.BUSY as error:
                return self._patience.insist(lambda: self._read_once(action, argument), began, error)
        except (apsw.Error, *errors.INPUT) as error:
            raise errors.translate(error, self.url) from error

    def _read_once(self, action: Callable[[apsw.Cursor, A], T], argument: A) -> T:
        connections = self._connections
        if self._settings.exclusive:
            with connections.writing:
                cursor = connections.writer()
                try:
                    return action(cursor, argument)
                finally:
                    if cursor.connection.in_transaction:
                        cursor.execute("ROLLBACK")
        return connections.use(action, argument)

    # Writing

    def _commit(self, batches: list[Batch], outcomes: list[Outcome]) -> None:
        """Commit a group of batches, as `holdfast.backends.runtime.group_commit.Commit` has it."""
        with self._connections.writing:
            began = time.monotonic()
            cursor = self._connections.writer()
            connection = cursor.connection
            try:
                if connection.in_transaction:
                    cursor.execute("ROLLBACK")  # left by a leader who was interrupted twice
                if not any(batches):
                    outcomes.extend(None for _ in batches)  # they only wait for those before them
                    return
                try:
                    cursor.execute("BEGIN IMMEDIATE")
                except errors.BUSY as error:
                    self._patience.insist(lambda: cursor.execute("BEGIN IMMEDIATE"), began, error)
                if len(batches) == 1:
                    outcome = self._apply(cursor, batches[0])
                    outcomes.append(outcome)
                    cursor.execute("COMMIT" if outcome is None else "ROLLBACK")
                else:
                    for batch in batches:
                        outcomes.append(self._apply_guarded(cursor, batch))  # noqa: PERF401 - partly filled, if it fails
                    cursor.execute("COMMIT")
            except apsw.Error as error:
                outcomes.clear()
                raise self._failure(cursor, error) from error
            except BaseException:
                if connection.in_transaction:
                    outcomes.clear()
                    cursor.execute("ROLLBACK")
                raise
            if connection.status(_PAGES_WRITTEN)[0] >= self._checkpoint_at:
                self._checkpoint(connection)

    def _apply(self, cursor: apsw.Cursor, batch: Batch) -> Outcome:
        """Make a batch within the transaction. What it made before it failed has to be undone."""
        try:
            for place, change in enumerate(batch):
                if not _make(cursor, change):
                    return place
        except errors.INPUT as error:
            return errors.translate(error, self.url)
        return None

    def _apply_guarded(self, cursor: apsw.Cursor, batch: Batch) -> Outcome:
        """Make a batch within the transaction, or nothing of it."""
        if len(batch) < 2:
            return self._apply(cursor, batch)
        cursor.execute("SAVEPOINT batch")
        outcome = self._apply(cursor, batch)
        if outcome is not None:
            cursor.execute("ROLLBACK TO batch")
        cursor.execute("RELEASE batch")
        return outcome

    def _failure(self, cursor: apsw.Cursor, error: apsw.Error) -> Exception:
        """The answer to a group that failed, which is then rolled back for sure, or the end of the store."""
        if not errors.breaks_store(error):
            try:
                if cursor.connection.in_transaction:
                    cursor.execute("ROLLBACK")
                return errors.translate(error, self.url)
            except apsw.Error as second:
                error = second
        return self._break(error)

    def _break(self, error: apsw.Error) -> Exception:
        """A flush that failed is never tried again: the system may have forgotten what it did not write."""
        answer = errors.broken(error, self.url)
        _failed.add(self._settings.path)
        self._connections.end(answer.what, answer.hint, answer.code)
        self._connections.drop_writer()
        return answer

    def _checkpoint(self, connection: apsw.Connection, truncate: bool = False) -> None:
        """Write the log back, and perhaps cut it off. Not by SQLite itself, since that would try failed flushes again
        and not tell."""
        self._checkpoint_at = connection.status(_PAGES_WRITTEN)[0] + _CHECKPOINT_PAGES
        try:
            pages, _ = connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
            if truncate or pages > _LARGE_LOG_PAGES:
                # Readers that overlap without end would let it grow without end: wait a moment for them.
                connection.set_busy_handler(LockWait(0.1))
                connection.wal_checkpoint(
                    mode=apsw.SQLITE_CHECKPOINT_TRUNCATE if truncate else apsw.SQLITE_CHECKPOINT_RESTART
                )
        except (*errors.BUSY, apsw.FullError):
            pass  # the log stays as it is, and grows until the next time
        except apsw.Error as error:
            self._break(error)
            return
        connection.set_busy_handler(self._patience)

    # Care

    def _tidy(self) -> None:
        # In parts, so that others get to write in between.
        while self._in_part(lambda cursor: merge(cursor, _MERGED_PAGES)):
            pass
        while self._in_part(_vacuum):
            pass
        with self._connections.writing:
            self._checkpoint(self._connections.writer().connection, truncate=True)

    def _in_part(self, part: Callable[[apsw.Cursor], bool]) -> bool:
        """Do some of what is to be done, in a transaction; whether there is more of it."""
        with self._connections.writing:
            cursor = self._connections.writer()
            connection = cursor.connection
            try:
                # Begun as a writer: a reader that becomes one is refused if anybody wrote in between.
                self._patience.insist(lambda: cursor.execute("BEGIN IMMEDIATE"), time.monotonic())
                more = part(cursor)
                cursor.execute("COMMIT")
            except apsw.Error as error:
                raise self._failure(cursor, error) from error
            if connection.status(_PAGES_WRITTEN)[0] >= self._checkpoint_at:
                self._checkpoint(connection)
            return more


def _settings(url: str, options: dict[str, Any]) -> FileOptions:
    address, _, query = url.partition("?")
    path = unquote(address.removeprefix("sqlite:///"))
    if not address.startswith("sqlite:///") or not path:
        raise ConfigError(
            "this names no SQLite file",
            where=url,
            hint="Write sqlite:///agents.db for a file in the current directory, sqlite:////var/agents.db for another",
        )
    if "\0" in path:
        raise ConfigError("the path of a file has no NUL in it", where=repr(url))
    if path == ":memory:":
        raise ConfigError("a SQLite store is a file", where=url, hint="For a store in memory open memory://")
    given = {**dict(parse_qsl(query, keep_blank_values=True)), **options}
    vfs: str | None = options.get("vfs")
    known = {"synchronous", "busy_timeout", "read_only"} | ({"vfs", "exclusive"} & options.keys())
    unknown = sorted(given.keys() - known)
    if unknown:
        raise ConfigError(
            f"a SQLite store takes no option {unknown[0]!r}",
            where=url,
            hint="It takes synchronous, busy_timeout and read_only",
        )
    synchronous = given.get("synchronous", "full")
    if synchronous not in ("full", "normal") and not (synchronous == "off" and vfs is not None):
        raise ConfigError(f"synchronous cannot be {synchronous!r}", where=url, hint="It is full or normal")
    busy_timeout = seconds(url, "busy_timeout", given.get("busy_timeout", 60))
    # In a VFS of its own a name is not a path here, and stays as it is.
    absolute = path if vfs is not None else str(Path(path).resolve())
    exclusive = bool(given.get("exclusive", vfs is not None))
    read_only = switch(url, "read_only", given.get("read_only", False))
    return FileOptions(url, absolute, synchronous, busy_timeout, vfs, exclusive, read_only)


def answers(cursor: apsw.Cursor, queries: Sequence[Query]) -> list[list[Row]]:
    """The rows that each query finds, as of one moment."""
    if len(queries) == 1 and (isinstance(queries[0], Scan) or len(queries[0].keys) == 1):
        return [_answer(cursor, queries[0])]
    cursor.execute("BEGIN")
    answers = [_answer(cursor, query) for query in queries]
    cursor.execute("COMMIT")
    return answers


def _first_failed(cursor: apsw.Cursor, batch: Batch) -> int | None:
    cursor.execute("BEGIN")
    found = next((place for place, change in enumerate(batch) if not _make(cursor, change)), None)
    cursor.execute("COMMIT")
    return found


def _answer(cursor: apsw.Cursor, query: Query) -> list[Row]:
    statements = STATEMENTS[query.space.name]
    if isinstance(query, Get):
        cursor.executemany(statements.get, dict.fromkeys(query.keys))
    else:
        _, prefix, start, stop, reverse, limit, by, bodies = query
        sql = statements.scan(by, len(prefix), len(start), len(stop), reverse, bodies)
        cursor.execute(sql, (*prefix, *start, *stop, -1 if limit is None else limit))
    width = len(query.space.key)
    rows: list[tuple[Any, ...]] = cursor.fetchall()
    return [Row(row[:width], row[width:-1], row[-1]) for row in rows]


def _make(cursor: apsw.Cursor, change: Change) -> bool:
    """Make a change. False if its condition does not hold."""
    statements = STATEMENTS[change.space.name]
    if change.space is WORDS and not isinstance(change, Expect):
        return change_words(cursor, change)
    if isinstance(change, _INSERTING):
        key, columns, body = change.row
        cursor.execute(statements.insert, (*key, *columns, body))
        return isinstance(change, Ensure) or cursor.connection.changes() == 1
    if isinstance(change, Put):
        key, columns, body = change.row
        cursor.execute(statements.put, (*key, *columns, body))
    elif isinstance(change, Delete):
        cursor.execute(statements.delete[len(change.prefix)], change.prefix)
    else:
        found = cursor.execute(statements.expect, change.key).fetchall()
        if change.columns is None:
            return not found
        return found == [statements.expected(change.columns)]
    return True


_INSERTING = (Create, Ensure)


def _vacuum(cursor: apsw.Cursor) -> bool:
    """Free some pages; whether there are more."""
    before = cursor.connection.pragma("freelist_count")
    if not before:
        return False
    cursor.execute(_VACUUM).fetchall()
    after = cursor.connection.pragma("freelist_count")
    return bool(after) and after != before


def _size(cursor: apsw.Cursor, path: str) -> int:
    """The bytes of the file and its log."""
    # Looking at the log alone: to open and close the file itself would give up the locks that SQLite holds on it.
    log = Path(path + "-wal")
    pages, size = cursor.connection.pragma("page_count"), cursor.connection.pragma("page_size")
    with contextlib.suppress(FileNotFoundError):  # no log, or a VFS of its own
        return int(pages * size + log.stat().st_size)
    return int(pages * size)


def _check(cursor: apsw.Cursor, settings: FileOptions) -> list[str]:
    cursor.execute("PRAGMA shrink_memory")  # so that pages are read, and their checksums looked at
    cursor.execute("BEGIN")
    try:
        look_anew(cursor)
        found = [str(row[0]) for row in cursor.execute("PRAGMA integrity_check") if row != ("ok",)]
    except apsw.Error as error:
        if not errors.is_damage(error):
            raise
        found = [f"a page is damaged, and checking ended there: {error}"]
    finally:
        if cursor.connection.in_transaction:
            cursor.execute("ROLLBACK")
    if settings.vfs is not None:
        return found
    if cursor.execute("PRAGMA checksum_verification").get != "1":
        return [*found, "the pages of the file carry no checksums, or this apsw does not know them"]
    size, count = (int(cursor.connection.pragma(name)) for name in ("page_size", "page_count"))
    damaged = damaged_pages(settings.path, size, count)
    if damaged:
        some = ", ".join(map(str, damaged[:_TOLD])) + (", …" if len(damaged) > _TOLD else "")
        found.append(f"the checksums of {len(damaged)} of {count} pages are wrong: {some}")
    return found
