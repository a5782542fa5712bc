"""A store in one SQLite file, which any tool for SQLite can read.

`sqlite:///agents.db` is a file in the current directory, `sqlite:////var/lib/agents.db` one anywhere. Several processes
may use one file at a time.

Other tools may open the file at any time, write its log back, vacuum and back it up: rows carry their checksums
themselves, and pages have none.

Options, as arguments or in the URL's query:

- `synchronous`: `full` (the default) flushes every batch to the disk before it is acknowledged. `normal` does not wait
  for that: a crash of the process loses nothing, but a crash of the machine or a power cut may lose the last
  acknowledged batches. The file is consistent after either.
- `read_only`: open an existing store for reading only; this user need not be allowed to write the file.
- `busy_timeout`: for how many seconds to wait for another process that is writing, 60 by default. Then `TransientError`
  is raised.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar
from urllib.parse import parse_qsl

import apsw

from holdfast.backends.fsutil import PRIVATE, read_only_error
from holdfast.backends.interface import (
    Backend,
    Batch,
    BlockingCall,
    Capabilities,
    Change,
    Changes,
    Create,
    Delete,
    Ensure,
    Expect,
    Put,
    Query,
    Row,
    Scan,
    WordMatch,
    WordMatches,
    closed_error,
)
from holdfast.backends.runtime.group_commit import CommitQueue, Outcome
from holdfast.backends.sqlite import errors
from holdfast.backends.sqlite.connections import SQLiteConnections
from holdfast.backends.sqlite.database_file import (
    FileOptions,
    LastRow,
    LockWait,
    find_damage,
    last_row,
    lost_row,
    measure,
    read_only_options,
)
from holdfast.backends.sqlite.queries import count_rows, read_rows
from holdfast.backends.sqlite.schema import STATEMENTS
from holdfast.backends.sqlite.text_search import change_words, find_words, merge_index, purge_index
from holdfast.backends.tables import STEPS, WORDS
from holdfast.backends.urls import parse_bool, parse_choice, parse_duration, parse_mode, redacted_url, url_to_path
from holdfast.errors import ConfigError, CorruptError, TransientError, UnavailableError

if TYPE_CHECKING:
    from holdfast.backends.distribution import Distribution
    from holdfast.backends.sqlite.change_log import ChangeLog


_DISK_RESERVE = 64 << 20
_DISK_SHARE = 8
"""The size of the reserve; at most this part of the disk."""

_PAGES_UNCHECKED = 1_000
"""After how many pages that were written the space is checked again, at the latest."""


class DiskSpace:
    """The space on the disk of a file."""

    def __init__(self, path: str) -> None:
        self._log = f"{path}-wal"
        self._folder = os.path.dirname(path)  # noqa: PTH120 - called for every store that is opened
        self._reserve = 0
        self.is_low: bool = False
        """Whether there is only the reserve."""

    def for_log(self) -> int:
        """Return how many bytes there are besides the reserve, if the log is written back; negative if too few."""
        return self._free() - self._reserve - self._log_size()

    def is_log_large(self) -> bool:
        """Return whether the log should be truncated. A smaller one stays, and its space is a part of the reserve."""
        return self._log_size() > self._reserve

    def check(self, connection: apsw.Connection) -> int:
        """Determine whether there is only the reserve. Returns after how many pages to check again.

        Free pages of the file are space, too.
        """
        size = int(connection.pragma("page_size"))
        spare = self.for_log()
        if spare < 0:
            spare = self._free() + connection.pragma("freelist_count") * size - self._reserve
        self.is_low = spare < 0
        return max(1, min(_PAGES_UNCHECKED, spare // (4 * size)))

    def vacuum_pages(self, page_size: int, most: int) -> int:
        """Return how many pages to vacuum at a time, such that there is space for that in the log."""
        return max(1, min(most, (self._free() + self._log_size()) // (4 * page_size)))

    def _log_size(self) -> int:
        try:
            return os.stat(self._log).st_size  # noqa: PTH116 - as above
        except OSError:
            return 0

    def _free(self) -> int:
        import shutil  # not for readers: it loads several compressors

        try:
            usage = shutil.disk_usage(self._folder)
        except OSError:
            return 1 << 62  # a VFS with names of its own
        self._reserve = min(_DISK_RESERVE, usage.total // _DISK_SHARE)
        return usage.free


def only_adds(batch: Batch) -> bool:
    """Return whether a batch appends steps, and removes nothing."""
    return any(isinstance(change, Create) and change.space is STEPS for change in batch) and not any(
        isinstance(change, Delete) for change in batch
    )


def parse_options(url: str, options: dict[str, Any]) -> FileOptions:
    """Return the options of a store. `ConfigError` if one is wrong or unknown."""
    path = url_to_path(url)
    if path is None or not url.startswith("sqlite:"):
        raise ConfigError(
            "the URL does not name a SQLite file",
            where=redacted_url(url),
            hint="Write sqlite:///agents.db for a file in the current directory, sqlite:////var/agents.db for another",
        )
    if "\0" in str(path):
        raise ConfigError("the path of a file cannot contain a NUL character", where=repr(redacted_url(url)))
    if str(path) == ":memory:":
        raise ConfigError(
            "a SQLite store must be a file", where=redacted_url(url), hint="For a store in memory open memory://"
        )
    values = {**dict(parse_qsl(url.partition("?")[2], keep_blank_values=True)), **options}
    vfs: str | None = options.get("vfs")
    known = {"synchronous", "busy_timeout", "read_only", "file_mode"} | ({"vfs", "exclusive"} & options.keys())
    unknown = sorted(values.keys() - known)
    if unknown:
        raise ConfigError(
            f"a SQLite store does not accept the option {unknown[0]!r}",
            where=redacted_url(url),
            hint="It takes synchronous, busy_timeout, read_only and file_mode",
        )
    levels = ("full", "normal") if vfs is None else ("full", "normal", "off")
    synchronous = parse_choice(url, "synchronous", values.get("synchronous", "full"), levels)
    busy_timeout = parse_duration(url, "busy_timeout", values.get("busy_timeout", 60))
    # In a VFS of its own a name is not a path here, and stays as it is.
    absolute = str(path if vfs is not None else path.resolve())
    exclusive = bool(values.get("exclusive", vfs is not None))
    read_only = parse_bool(url, "read_only", values.get("read_only", False))
    file_mode = parse_mode(url, "file_mode", values.get("file_mode", PRIVATE))
    return FileOptions(url, absolute, synchronous, busy_timeout, vfs, exclusive, read_only, file_mode=file_mode)


T = TypeVar("T")
A = TypeVar("A")

_PAGES_WRITTEN = apsw.SQLITE_DBSTATUS_CACHE_WRITE

_LONGEST_WAIT = 2.0
"""For how many seconds writers wait, at most, until readers let the log be restarted."""

_CHECKPOINT_PAGES = 4_000
"""16 MB of log, so that one of some hundred commits waits for a checkpoint."""

_LARGE_LOG_PAGES = 10_000
_VACUUM_PAGES = 1_000
_MERGE_PAGES = 500

_OPENING_READS = 2
"""With so many reads a store is opened. A connection for them alone would cost as much as the rest of opening, and
programs that only save need none."""

_failed: set[str] = set()
"""Files that could not be flushed by this process, and whose log has not been written back since."""


class SQLiteBackend(Backend):
    """A store in one SQLite file: `sqlite:///path`."""

    schemes: ClassVar[tuple[str, ...]] = ("sqlite",)
    takes_read_only = True

    def __init__(self, settings: FileOptions) -> None:
        self._settings = settings
        self._queue = CommitQueue(self._commit, settings.url)
        self._connections = SQLiteConnections(settings, self._queue.reset_after_fork, self._recover)
        self._last_row: LastRow | None = None
        self._change_log: ChangeLog | None = None
        self._lock_wait = LockWait(settings.busy_timeout)
        self._space = DiskSpace(settings.path)
        self._checkpoint_at = self._space_check_at = 0
        self._is_alone = False
        self._reads = 0
        """How many reads used the connection for writing."""

    @classmethod
    async def open(cls, url: str, **options: Any) -> SQLiteBackend:
        """Open the file, and create it if it does not exist. See the module for the options.

        For tests of Holdfast itself, `vfs` names the SQLite VFS to use, `exclusive` limits the file to one connection
        (as a VFS written in Python needs), and `synchronous` may then also be `off`.
        """
        settings = parse_options(url, options)
        store = cls(read_only_options(settings) if settings.read_only else settings)
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
            joint_batches=True,
            times=True,
        )

    async def read(self, queries: Sequence[Query]) -> list[list[Row]]:
        call: BlockingCall[list[list[Row]]] = BlockingCall(self._read_with, read_rows, queries)
        return await call

    async def apply(self, batch: Batch) -> int | None:
        if self._settings.read_only:
            return await self._check_conditions(batch)
        return await self._queue.submit(batch)

    async def _check_conditions(self, batch: Batch) -> int | None:
        """Answer a batch of conditions alone; refuse changes."""
        if not all(isinstance(change, Expect) for change in batch):
            raise read_only_error(self.url)
        call: BlockingCall[int | None] = BlockingCall(self._read_with, _find_refused, batch)
        return await call

    async def changes(self, since: str | None = None) -> Changes:
        from holdfast.backends.sqlite.change_log import parse_since, read_changes

        number = parse_since(since, self.url)
        call: BlockingCall[Changes] = BlockingCall(self._read_with, read_changes, number)
        return await call

    async def count_rows(self, scans: Sequence[Scan]) -> list[int]:
        call: BlockingCall[list[int]] = BlockingCall(self._read_with, count_rows, scans)
        return await call

    async def match_words(self, match: WordMatch) -> WordMatches:
        call: BlockingCall[WordMatches] = BlockingCall(self._read_with, find_words, match)
        return await call

    async def size(self) -> int:
        call: BlockingCall[int] = BlockingCall(self._read_with, measure, self._settings.path)
        return await call

    async def check(self) -> list[str]:
        first = await BlockingCall(lambda: self._read_with(find_damage, None))
        if not first or self._settings.exclusive:
            return first
        # As in `_read_with`. Damage is found again, in the same words.
        second = await BlockingCall(lambda: self._read_with(find_damage, None))
        return [each for each in second if each in first]

    def group_sizes(self) -> Sequence[Distribution]:
        return (self._queue.sizes,)

    async def tidy(self) -> None:
        if not self._settings.read_only:
            await BlockingCall(self._tidy)

    async def purge(self) -> list[str]:
        await BlockingCall(lambda: self._rewrite_log(vacuum=True))
        return [f"freed blocks of the disk, and backups of {self.path}"]

    async def close(self) -> None:
        await BlockingCall(self._close)

    @property
    def path(self) -> str:
        return self._settings.path

    async def while_closed(self, action: Callable[[], T]) -> T:
        """Call a function that uses or replaces the file, while this store has no connection to it."""

        def suspended() -> T:
            self._connections.before_fork()
            try:
                return action()
            finally:
                self._connections.identity.record()
                self._last_row = None
                self._change_log = None
                self._connections.after_fork_in_parent()

        call: BlockingCall[T] = BlockingCall(suspended)
        return await call

    def _open(self) -> None:
        with self._connections.writing:
            try:
                try:
                    self._open_first()
                except (apsw.FullError, apsw.IOError) as error:
                    if not errors.is_full(error):
                        raise
                    self._open_alone()
            except BaseException as error:
                self._connections.abandon()
                if not isinstance(error, apsw.Error):
                    raise
                if errors.is_write_failure(error):
                    _failed.add(self._settings.path)
                    raise errors.write_failed(error, self.url) from error
                raise errors.translate_opening(error, self.url) from error

    def _open_first(self) -> None:
        if self._settings.read_only:
            self._connections.open_viewer()
        else:
            self._start_writing(self._connections.open_writer().connection)

    def _open_alone(self) -> None:
        """Open a file whose disk has not even space for the index of the log, which processes share: then it is in
        memory, and no other process may use the file until there is space."""
        self._connections.drop_writer()
        self._settings = self._settings._replace(exclusive=True)
        self._connections.configure(self._settings)
        self._open_first()
        self._space_check_at, self._is_alone = 0, True

    def _open_to_others(self) -> None:
        """Let other processes use a file again that was opened without space."""
        self._is_alone = False
        self._settings = self._settings._replace(exclusive=False)
        self._connections.drop_writer()
        self._connections.configure(self._settings)

    def _start_writing(self, connection: apsw.Connection) -> None:
        self._write_log_back(connection)
        self._checkpoint_at, self._space_check_at = _CHECKPOINT_PAGES, self._space.check(connection)

    def _write_log_back(self, connection: apsw.Connection) -> None:
        """Empty the log that the last user of the file left.

        Its content may have been read from memory and never reached the disk; in the file, it is flushed. While other
        processes use the log there is no need, unless a flush of this process failed.
        """
        failed = self._settings.path in _failed
        connection.set_busy_handler(self._lock_wait if failed else None)
        try:
            self._connections.begin_turn(self._settings.busy_timeout if failed else 0)
            connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
            _failed.discard(self._settings.path)
        except (*errors.BUSY, apsw.FullError, TransientError):
            # On a full disk the log stays, so that space can be freed.
            if failed:
                raise
        finally:
            self._connections.end_turn()
            connection.set_busy_handler(self._lock_wait)

    def _recover(self) -> None:
        """Open the file again after writing failed. Nothing that was acknowledged may be missing."""
        try:
            cursor = self._connections.reopen_writer()
            self._change_log = None
            if self._last_row is not None and not self._last_row.is_in(cursor):
                self._connections.end(lost_row(self.url))
                raise lost_row(self.url)
            self._start_writing(cursor.connection)
        except apsw.Error as error:
            raise errors.translate_writing(error, self.url) from error

    def _close(self) -> None:
        self._queue.close()
        self._connections.end(closed_error(self.url))
        try:
            self._connections.close()
        except apsw.Error as error:
            _failed.add(self._settings.path)
            raise UnavailableError(
                f"the store is closed, but its log could not be written back into the file: {error}",
                where=self.url,
                hint="Nothing is lost: that is done when the store is opened the next time. Check the disk",
            ) from error

    # Reading

    def _read_with(self, action: Callable[[apsw.Cursor, A], T], argument: A) -> T:
        """Call a function with a connection for reading.

        If another SQLite in this process dropped the locks (see `use_lock`), another process may write the log back
        while this one reads, and what is read may look like damage. So damage must be found twice."""
        try:
            return self._read_waiting(action, argument)
        except CorruptError:
            if self._settings.exclusive:
                raise
            return self._read_waiting(action, argument)

    def _read_waiting(self, action: Callable[[apsw.Cursor, A], T], argument: A) -> T:
        began = time.monotonic()
        try:
            try:
                return self._read_once(action, argument)
            except errors.BUSY as error:
                return self._lock_wait.retry(lambda: self._read_once(action, argument), began, error)
        except (apsw.Error, UnicodeDecodeError, *errors.INPUT) as error:
            raise errors.translate(error, self.url) from error

    def _read_once(self, action: Callable[[apsw.Cursor, A], T], argument: A) -> T:
        connections = self._connections
        if self._settings.exclusive or self._reads < _OPENING_READS:
            self._reads += 1
            with connections.writing:
                cursor = connections.writer()
                try:
                    return action(cursor, argument)
                finally:
                    if cursor.connection.in_transaction:
                        cursor.execute("ROLLBACK")
        return connections.read(action, argument)

    # Writing

    def _commit(self, batches: list[Batch], outcomes: list[Outcome]) -> None:
        """Commit a group of batches; see `holdfast.backends.runtime.group_commit.Commit`."""
        with self._connections.writing:
            began = time.monotonic()
            cursor = self._connections.writer()
            connection = cursor.connection
            try:
                self._connections.begin_turn(self._settings.busy_timeout)
                if connection.in_transaction:
                    cursor.execute("ROLLBACK")  # left by a leader that was interrupted twice
                if not any(batches):
                    outcomes.extend(None for _ in batches)  # empty batches only wait for those before them
                    return
                try:
                    cursor.execute("BEGIN IMMEDIATE")
                except errors.BUSY as error:
                    self._lock_wait.retry(lambda: cursor.execute("BEGIN IMMEDIATE"), began, error)
                if len(batches) == 1:
                    outcome = self._apply(cursor, batches[0])
                    outcomes.append(outcome)
                    last = self._last_created(batches, outcomes)  # before the flush, which leaves cold caches
                    if outcome is None:
                        self._record_changes(cursor, batches)
                    cursor.execute("COMMIT" if outcome is None else "ROLLBACK")
                else:
                    for batch in batches:
                        outcomes.append(self._apply_or_undo(cursor, batch))  # noqa: PERF401 - partly filled on failure
                    last = self._last_created(batches, outcomes)
                    accepted = (batch for batch, outcome in zip(batches, outcomes, strict=True) if outcome is None)
                    self._record_changes(cursor, accepted)
                    cursor.execute("COMMIT")
            except apsw.Error as error:
                outcomes.clear()
                self._change_log = None
                raise self._failure(cursor, error) from error
            except BaseException:
                self._change_log = None
                if connection.in_transaction:
                    outcomes.clear()
                    cursor.execute("ROLLBACK")
                raise
            else:
                self._last_row = last
                self._limit_log(connection)
            finally:
                self._connections.end_turn()

    def _record_changes(self, cursor: apsw.Cursor, batches: Iterable[Batch]) -> None:
        if self._change_log is None:
            from holdfast.backends.sqlite.change_log import ChangeLog  # not needed by those that only read

            self._change_log = ChangeLog()
        self._change_log.record(cursor, batches)

    def _last_created(self, batches: list[Batch], outcomes: list[Outcome]) -> LastRow | None:
        last = self._last_row
        for batch, outcome in zip(batches, outcomes, strict=True):
            if outcome is None:
                last = last_row(last, batch)
        return last

    def _apply(self, cursor: apsw.Cursor, batch: Batch) -> Outcome:
        """Apply a batch within the transaction. If it is refused, the caller has to undo it."""
        if self._space.is_low and only_adds(batch):
            self._space.check(cursor.connection)
            if self._space.is_low:
                return errors.disk_full("only a reserve for deletions is left", self.url)
        try:
            for position, change in enumerate(batch):
                if not _apply_change(cursor, change):
                    return position
        except errors.INPUT as error:
            return errors.translate(error, self.url)
        return None

    def _apply_or_undo(self, cursor: apsw.Cursor, batch: Batch) -> Outcome:
        """Apply a batch within the transaction, or nothing of it."""
        if len(batch) < 2:
            return self._apply(cursor, batch)
        cursor.execute("SAVEPOINT batch")
        outcome = self._apply(cursor, batch)
        if outcome is not None:
            cursor.execute("ROLLBACK TO batch")
        cursor.execute("RELEASE batch")
        return outcome

    def _failure(self, cursor: apsw.Cursor, error: apsw.Error) -> Exception:
        """Roll back a group that failed, and return its error. If that fails too, the store fails."""
        if not errors.is_write_failure(error):
            try:
                if cursor.connection.in_transaction:
                    cursor.execute("ROLLBACK")
                if isinstance(error, apsw.FullError):
                    self._space_check_at = 0
                    self._limit_log(cursor.connection)  # there may be space in the file
                return errors.translate(error, self.url)
            except apsw.Error as second:
                error = second
        return self._fail(error)

    def _fail(self, error: apsw.Error) -> Exception:
        """Close the store until the file can be opened again. A failed flush is never retried: the system may have
        dropped what it did not write. `_recover` writes it anew."""
        answer = errors.write_failed(error, self.url)
        _failed.add(self._settings.path)
        self._connections.end(answer, recoverable=True)
        self._connections.drop_writer()
        return answer

    def _limit_log(self, connection: apsw.Connection) -> None:
        """Write the log back when it is large, or when there will not be enough space for that."""
        pages = connection.status(_PAGES_WRITTEN)[0]
        if pages >= self._checkpoint_at:
            self._checkpoint(connection)
        if pages >= self._space_check_at:
            if self._space.for_log() < 0:
                self._checkpoint(connection, restart=True, truncate=self._space.is_log_large())
            self._space_check_at = pages + self._space.check(connection)
            if self._is_alone and not self._space.is_low:
                self._open_to_others()

    def _checkpoint(self, connection: apsw.Connection, *, restart: bool = False, truncate: bool = False) -> None:
        """Write the log back, and perhaps restart or truncate it. SQLite itself would retry failed flushes silently."""
        self._checkpoint_at = connection.status(_PAGES_WRITTEN)[0] + _CHECKPOINT_PAGES
        try:
            pages, _ = connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
            if restart or truncate or pages > _LARGE_LOG_PAGES:
                # Overlapping readers would let it grow without end: wait for them, and longer the larger it is.
                connection.set_busy_handler(LockWait(min(0.1 * max(1, pages / _LARGE_LOG_PAGES) ** 2, _LONGEST_WAIT)))
                connection.wal_checkpoint(
                    mode=apsw.SQLITE_CHECKPOINT_TRUNCATE if truncate else apsw.SQLITE_CHECKPOINT_RESTART
                )
        except (*errors.BUSY, apsw.FullError):
            pass  # the log grows until the next time
        except apsw.Error as error:
            self._fail(error)
            return
        connection.set_busy_handler(self._lock_wait)

    # Care

    def _tidy(self) -> None:
        from holdfast.backends.sqlite.change_log import forget_deleted

        # In parts. After each, those that waited can write: the lock is not fair, and would be acquired again at once.
        while self._write_part(lambda cursor: merge_index(cursor, _MERGE_PAGES)):
            self._queue.drain()
        self._write_part(forget_deleted)
        while self._write_part(self._vacuum_part):
            self._queue.drain()
        self._rewrite_log()

    def _rewrite_log(self, *, vacuum: bool = False) -> None:
        """Write the log back and empty it; with `vacuum`, after the whole file, so that no freed page has content."""
        with self._connections.writing:
            cursor = self._connections.writer()
            try:
                self._connections.begin_turn(self._settings.busy_timeout)
                if vacuum:
                    cursor.execute("PRAGMA secure_delete = ON")  # for pages that are freed meanwhile
                    purge_index(cursor)
                    cursor.execute("VACUUM")
                self._checkpoint(cursor.connection, truncate=True)
            except apsw.Error as error:
                raise self._failure(cursor, error) from error
            finally:
                self._connections.end_turn()

    def _write_part(self, part: Callable[[apsw.Cursor], bool]) -> bool:
        """Run a part of a long task in a transaction. Returns whether there is more."""
        with self._connections.writing:
            cursor = self._connections.writer()
            connection = cursor.connection
            try:
                self._connections.begin_turn(self._settings.busy_timeout)
                # Started as a writer: a reader that becomes one is refused if anybody wrote in between.
                self._lock_wait.retry(lambda: cursor.execute("BEGIN IMMEDIATE"), time.monotonic())
                more = part(cursor)
                cursor.execute("COMMIT")
                self._limit_log(connection)
            except apsw.Error as error:
                raise self._failure(cursor, error) from error
            finally:
                self._connections.end_turn()
            return more

    def _vacuum_part(self, cursor: apsw.Cursor) -> bool:
        """Free some pages. Returns whether there are more."""
        connection = cursor.connection
        before = connection.pragma("freelist_count")
        if not before:
            return False
        pages = self._space.vacuum_pages(connection.pragma("page_size"), _VACUUM_PAGES)
        cursor.execute(f"PRAGMA incremental_vacuum({pages})").fetchall()
        after = connection.pragma("freelist_count")
        return bool(after) and after != before


def _find_refused(cursor: apsw.Cursor, batch: Batch) -> int | None:
    cursor.execute("BEGIN")
    refused = next((at for at, change in enumerate(batch) if not _apply_change(cursor, change)), None)
    cursor.execute("COMMIT")
    return refused


def _apply_change(cursor: apsw.Cursor, change: Change) -> bool:
    """Apply a change. Returns False if its condition does not hold."""
    statements = STATEMENTS[change.space.name]
    if change.space is WORDS and not isinstance(change, Expect):
        return change_words(cursor, change)
    if isinstance(change, _INSERTS):
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


_INSERTS = (Create, Ensure)
