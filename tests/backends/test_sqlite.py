"""The SQLite backend: the suite for all backends, and what is its own."""

from __future__ import annotations

import asyncio
import itertools
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import pytest

from holdfast.backends.conformance.suite import SyncConformance
from holdfast.backends.interface import Batch, Create, Delete, Ensure, Expect, Get, Put, Row, Scan
from holdfast.backends.runtime.drivers import arun, run
from holdfast.backends.sqlite import backend as sqlite_backend
from holdfast.backends.sqlite import database_file as sqlite_files
from holdfast.backends.sqlite.backend import SQLiteBackend
from holdfast.backends.sqlite.queries import read_rows
from holdfast.backends.sqlite.schema import APPLICATION_ID, STATEMENTS, create_statements
from holdfast.backends.tables import BRANCHES, LINES, NODES, STEPS, TABLES, Key, Scalar, Table
from holdfast.errors import (
    ConfigError,
    CorruptError,
    HoldfastError,
    InvalidError,
    TooLargeError,
    TransientError,
    UnavailableError,
    UnsupportedError,
)
from holdfast.testing import BackendConformance, Stores
from tests.support.nightly import by_day

CREATED = 1_700_000_000_123_000_000


def row(space: Table, key: Key, body: bytes = b"", **columns: Scalar) -> Row:
    """A row with the columns that matter to a test, and something in the others."""
    return Row(key, tuple(columns.get(name, kind()) for name, kind in space.columns.items()), body)


def step(seq: int, line: str = "line", body: bytes = b"body") -> Row:
    columns: dict[str, Scalar] = {"id": f"id-{seq:06}", "time": CREATED + seq, "kind": "kind", "metadata": "{}"}
    return row(STEPS, ("tenant", line, 0, seq), body, **columns)


def opened(path: Path, **options: Any) -> SQLiteBackend:
    return run(SQLiteBackend.open(f"sqlite:///{path}", **options))


@pytest.fixture
def store(path: Path) -> Iterator[SQLiteBackend]:
    store = opened(path)
    yield store
    run(store.close())


class TestConformance(SyncConformance):
    kills = by_day(BackendConformance.kills, 2)
    watched = by_day(BackendConformance.watched, 20)

    @pytest.fixture
    def stores(self, path: Path) -> Stores:
        return Stores(f"sqlite:///{path}")


@pytest.mark.nightly
class TestConformanceInFull(BackendConformance):
    stores = TestConformance.stores


# Opening


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("sqlite://agents.db", "sqlite:///agents.db"),
        ("sqlite:agents.db", "sqlite:///agents.db"),
        ("sqlite:///", "sqlite:///agents.db"),
        ("sqlite:///:memory:", "memory://"),
        ("sqlite:///a.db?journal=off", "'journal'"),
        ("sqlite:///a.db?vfs=unix", "'vfs'"),
        ("sqlite:///a.db?synchronous=off", "'off'"),
        ("sqlite:///a.db?busy_timeout=soon", "'soon'"),
        ("sqlite:///a.db?busy_timeout=-1", "'-1'"),
        ("sqlite:///a.db?busy_timeout=nan", "'nan'"),
    ],
)
def test_a_wrong_url_is_explained(url: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as caught:
        run(SQLiteBackend.open(url))
    assert says in str(caught.value)
    assert url in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_path_is_relative_to_where_one_is_and_stays_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    store = run(SQLiteBackend.open("sqlite:///a%20b%3F.db?synchronous=normal&busy_timeout=1.5"))
    assert (tmp_path / "a b?.db").exists()
    assert not store.capabilities.durable
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert run(store.read([Scan(LINES, ())])) == [[]]
    run(store.close())


def test_settings(store: SQLiteBackend) -> None:
    writer = store._connections.writer().connection
    reader = store._connections.acquire(threading.get_ident()).connection
    store._connections.release(threading.get_ident(), good=True)
    assert writer.pragma("journal_mode") == "wal"
    assert writer.pragma("synchronous") == 2
    assert writer.pragma("fullfsync") == writer.pragma("checkpoint_fullfsync") == 1
    assert writer.pragma("auto_vacuum") == 2
    assert writer.pragma("application_id") == APPLICATION_ID
    assert writer.pragma("wal_autocheckpoint") == reader.pragma("wal_autocheckpoint") == 0
    assert reader.pragma("query_only") == 1
    assert store.capabilities.durable


def test_a_directory_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="directory must exist"):
        opened(tmp_path / "missing" / "a.db")


def test_a_file_that_is_no_database(path: Path) -> None:
    text = b"Dear diary, " * 1_000
    path.write_bytes(text)
    with pytest.raises(ConfigError, match="the file is a text file, not a store"):
        opened(path)
    assert path.read_bytes() == text
    path.write_bytes(text + bytes(4096))
    with pytest.raises(CorruptError, match="not a SQLite database"):
        opened(path)  # perhaps a store whose beginning is overwritten
    assert path.read_bytes() == text + bytes(4096)


@pytest.mark.parametrize("setup", ["CREATE TABLE t (x)", "PRAGMA application_id = 99"])
@pytest.mark.parametrize("mode", ["delete", "wal"])
def test_another_applications_file_is_left_alone(path: Path, setup: str, mode: str) -> None:
    with closing(sqlite3.connect(path)) as other:
        other.execute(f"PRAGMA journal_mode = {mode}")
        other.execute(setup)
    before = path.read_bytes()
    with pytest.raises(ConfigError, match="another application"):
        opened(path)
    assert path.read_bytes() == before


def test_another_applications_log_is_not_written_back(path: Path) -> None:
    with closing(apsw.Connection(str(path))) as other:
        other.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        other.execute("PRAGMA journal_mode = WAL; CREATE TABLE t (x); INSERT INTO t VALUES (1)").fetchall()
    wal = path.with_name(path.name + "-wal")
    before = path.read_bytes(), wal.read_bytes()
    with pytest.raises(ConfigError, match="another application"):
        opened(path)
    assert (path.read_bytes(), wal.read_bytes()) == before


def test_an_empty_file_becomes_a_store(path: Path) -> None:
    path.touch()
    store = opened(path)
    assert run(store.apply([Create(STEPS, step(0))])) is None
    assert run(store.check()) == []
    run(store.close())


def test_an_empty_database_becomes_a_store(path: Path) -> None:
    with closing(sqlite3.connect(path)) as other:
        other.execute("PRAGMA user_version = 3")
    store = opened(path)
    assert run(store.apply([Create(STEPS, step(0))])) is None
    assert run(store.check()) == []
    run(store.tidy())
    run(store.close())


def test_a_newer_layout(path: Path) -> None:
    run(opened(path).close())
    with closing(apsw.Connection(str(path))) as other:
        other.execute(f"PRAGMA application_id = {APPLICATION_ID + 1}")
    before = path.read_bytes()
    with pytest.raises(UnsupportedError, match="Update holdfast"):
        opened(path)
    assert path.read_bytes() == before


def test_a_table_that_is_gone(path: Path) -> None:
    run(opened(path).close())
    with closing(apsw.Connection(str(path))) as other:
        other.execute("DROP VIEW log; DROP VIEW threads; DROP TABLE steps")
    store = opened(path)
    with pytest.raises(CorruptError):
        run(store.read([Scan(STEPS, ())]))
    with pytest.raises(CorruptError):
        run(store.apply([Create(STEPS, step(0))]))
    assert run(store.apply([Create(LINES, row(LINES, ("t", "l")))])) is None
    run(store.close())


def test_triggers_in_the_file_are_not_run(path: Path) -> None:
    run(opened(path).close())
    with closing(apsw.Connection(str(path))) as other:
        other.execute("CREATE TRIGGER evil AFTER INSERT ON steps BEGIN DELETE FROM steps; END")
    store = opened(path)
    assert run(store.apply([Create(STEPS, step(0))])) is None
    assert run(store.read([Get(STEPS, [step(0).key])])) == [[step(0)]]
    run(store.close())


def test_opening_takes_no_longer_for_a_large_store(path: Path, tmp_path: Path) -> None:
    """Counted in instructions of SQLite's machine, which are the same on every computer."""

    def instructions(path: Path) -> int:
        count = 0

        def more() -> bool:
            nonlocal count
            count += 1
            return False

        def hook(connection: apsw.Connection) -> None:
            connection.set_progress_handler(more, 1)

        apsw.connection_hooks.append(hook)
        try:
            store = opened(path)
        finally:
            apsw.connection_hooks.remove(hook)
        run(store.close())
        return count

    for name, lines in (("small", 10), ("large", 20_000)):
        store = opened(tmp_path / name)
        rows = [Create(LINES, row(LINES, ("t", f"{n}"))) for n in range(lines)]
        assert run(store.apply(rows)) is None
        run(store.close())
    assert 0 < instructions(tmp_path / "large") <= instructions(tmp_path / "small")


def test_what_a_dead_process_left_in_the_log_is_written_back(path: Path) -> None:
    store = opened(path)
    assert run(store.apply([Create(STEPS, step(0))])) is None
    store._connections.drop_writer()  # as if the process had died
    wal = path.with_name(path.name + "-wal")
    assert wal.stat().st_size > 0
    again = opened(path)
    assert wal.stat().st_size == 0
    assert run(again.read([Get(STEPS, [step(0).key])])) == [[step(0)]]
    run(again.close())
    run(store.close())


def test_a_log_in_use_does_not_keep_from_opening(store: SQLiteBackend, path: Path) -> None:
    assert run(store.apply([Create(STEPS, step(0))])) is None
    reader = store._connections.acquire(threading.get_ident())
    reader.execute("BEGIN; SELECT count(*) FROM steps").fetchall()
    assert run(store.apply([Create(STEPS, step(1))])) is None
    again = opened(path)
    assert run(again.apply([Create(STEPS, step(2))])) is None
    reader.execute("COMMIT")
    store._connections.release(threading.get_ident(), good=True)
    run(again.close())


# What is in the file


def test_a_person_can_read_the_file(path: Path) -> None:
    store = opened(path)
    batch: Batch = [
        Create(LINES, row(LINES, ("tenant", "line"), created=CREATED)),
        Create(BRANCHES, row(BRANCHES, ("tenant", "line", 1))),
        *(Create(STEPS, step(n)) for n in range(3)),
        Create(LINES, row(LINES, ("tenant", "new"), created=CREATED)),
    ]
    assert run(store.apply(batch)) is None
    run(store.close())
    with closing(sqlite3.connect(path)) as shell:
        threads = shell.execute("SELECT * FROM threads ORDER BY thread")
        assert [column[0] for column in threads.description] == [
            *("tenant", "thread", "created", "steps", "branches", "time")
        ]
        assert threads.fetchall() == [
            ("tenant", "line", "2023-11-14T22:13:20.123Z", 3, 2, "2023-11-14T22:13:20.123Z"),
            ("tenant", "new", "2023-11-14T22:13:20.123Z", 0, 1, None),
        ]
        log = shell.execute("SELECT * FROM log WHERE seq = 1")
        assert [column[0] for column in log.description] == [
            *("tenant", "thread", "branch", "seq", "id", "time", "kind", "metadata", "bytes")
        ]
        assert log.fetchall() == [
            ("tenant", "line", 0, 1, "id-000001", "2023-11-14T22:13:20.123Z", "kind", "{}", 4),
        ]
        assert shell.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def shapes(space: Table) -> Iterator[str]:
    for by in ("", *space.indexes):
        width = len(space.order(by))
        for prefix in range(width + 1):
            for start, stop in itertools.product(range(width - prefix + 1), repeat=2):
                for reverse, bodies in itertools.product((False, True), repeat=2):
                    yield STATEMENTS[space.name].scan(by, prefix, start, stop, reverse, bodies)


@pytest.mark.parametrize("space", TABLES, ids=lambda space: space.name)
def test_every_query_uses_an_index(store: SQLiteBackend, space: Table) -> None:
    connection = store._connections.writer().connection

    def plan(sql: str) -> str:
        width = sql.count("?")
        return "; ".join(row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {sql}", (0,) * width))

    statements = STATEMENTS[space.name]
    points = [statements.get, statements.expect, *statements.delete[1:]]
    for sql in points:
        assert plan(sql).startswith(f"SEARCH {space.name} USING "), sql
    for sql in shapes(space):
        found = plan(sql)
        assert "TEMP B-TREE" not in found, sql
        if "WHERE true ORDER" in sql:  # all of it, in order
            assert "USING INDEX" in found or f"{space.name} (" in "".join(create_statements()), sql
        else:
            assert found.startswith(f"SEARCH {space.name} USING "), sql


def test_an_index_is_followed_by_the_key() -> None:
    assert STEPS.order("id") == ("tenant", "line", "id", "revision", "branch", "seq")


# Writing


@pytest.mark.parametrize("by", ["id", ""])
def test_a_commit_between_the_looks_at_two_indexes_is_no_damage(store: SQLiteBackend, path: Path, by: str) -> None:
    run(store.apply([Create(STEPS, step(0))]))
    numbers = itertools.count(1)

    def commit_before_the_second_look(_: apsw.Cursor, sql: str, __: Any) -> bool:
        if "INDEXED BY" in sql:
            run(store.apply([Create(STEPS, step(next(numbers)))]))
        return True

    with closing(apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)) as connection:
        cursor = connection.cursor()
        cursor.exec_trace = commit_before_the_second_look
        prefix = ("tenant", "line") if by else ("tenant", "line", 0)
        ((found,),) = read_rows(cursor, [Scan(STEPS, prefix, reverse=True, limit=1, by=by)])
    assert found == step(1)
    assert next(numbers) == 3  # the indexes were compared twice


def test_a_step_that_its_index_lacks_is_damage(path: Path) -> None:
    store = opened(path)
    run(store.apply([Create(STEPS, step(0))]))
    run(store.close())
    with closing(sqlite3.connect(path)) as other:
        index = other.execute("SELECT * FROM sqlite_schema WHERE name = 'steps_id'").fetchone()
        other.executescript("PRAGMA writable_schema = 1; DELETE FROM sqlite_schema WHERE name = 'steps_id'")
    with closing(apsw.Connection(str(path))) as other:
        key, columns, body = step(1)
        other.execute(STATEMENTS["steps"].insert, (*key, *columns, body))
        other.execute("PRAGMA writable_schema = 1")
        other.execute("INSERT INTO sqlite_schema VALUES (?, ?, ?, ?, ?)", index)
    store = opened(path)
    with pytest.raises(CorruptError, match="do not agree on the last one"):
        run(store.read([Scan(STEPS, ("tenant", "line"), reverse=True, limit=1, by="id")]))
    run(store.close())


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("steps", "sql = replace(sql, 'kind TEXT', 'kinds TEXT')"),
        ("steps_id", "sql = replace(sql, 'revision', 'branch')"),
        ("words", "sql = replace(sql, 'body BLOB', 'bodi BLOB')"),
    ],
)
def test_a_definition_that_was_changed_is_found(path: Path, name: str, change: str) -> None:
    run(opened(path).close())
    with closing(sqlite3.connect(path)) as other:
        other.executescript("CREATE TABLE mine (steps); CREATE INDEX mine_too ON steps (time); ANALYZE; VACUUM")
    store = opened(path, read_only=True)
    assert run(store.check()) == []
    run(store.close())
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("PRAGMA writable_schema = 1")
        assert other.execute(f"UPDATE sqlite_schema SET {change} WHERE name = ?", (name,)).rowcount == 1
    store = opened(path, read_only=True)
    try:
        assert f"the definition of {'index' if '_' in name else 'table'} {name} was changed" in run(store.check())
    finally:
        run(store.close())


def test_a_value_that_does_not_fit_is_one_batchs_fault(store: SQLiteBackend) -> None:
    bad: list[Batch] = [
        [Create(NODES, Row(("t", "\ud800", 0, b"n"))), Create(STEPS, step(100))],
        [Create(STEPS, step(101)), Create(NODES, Row(("t", "l", 1 << 70, b"n")))],
        [Create(STEPS, step(102)), Create(NODES, Row(("t", "l", "text", b"n")))],
        [Create(NODES, Row(("t", object(), 0, b"n")))],  # type: ignore[arg-type]
        [Create(NODES, Row(("t", "l", 0)))],
    ]
    good: list[Batch] = [[Create(STEPS, step(n)), Ensure(STEPS, step(n))] for n in range(len(bad))]

    async def main() -> list[Any]:
        mixed = [batch for pair in zip(good, bad, strict=True) for batch in pair]
        outcomes: list[Any] = await asyncio.gather(
            *(arun(store.apply(batch)) for batch in mixed), return_exceptions=True
        )
        return outcomes

    outcomes = asyncio.run(main())
    assert outcomes[::2] == [None] * len(good)
    assert all(isinstance(outcome, InvalidError) for outcome in outcomes[1::2])
    assert [row.key[3] for row in run(store.read([Scan(STEPS, ())]))[0]] == list(range(len(good)))
    for batch in bad:
        with pytest.raises(InvalidError, match="store.db"):
            run(store.apply(batch))
    with pytest.raises(InvalidError):
        run(store.read([Get(NODES, [("t", "\ud800", 0, b"n")])]))
    assert run(store.apply([Create(STEPS, step(100))])) is None


def test_a_body_that_sqlite_refuses(store: SQLiteBackend) -> None:
    store._connections.writer().connection.limit(apsw.SQLITE_LIMIT_LENGTH, 1_000)
    with pytest.raises(TooLargeError):
        run(store.apply([Create(STEPS, step(0, body=bytes(2_000)))]))
    assert run(store.apply([Create(STEPS, step(0))])) is None


def test_a_batch_that_fails_takes_nothing_of_its_group_along(store: SQLiteBackend) -> None:
    assert run(store.apply([Create(STEPS, step(0))])) is None
    fails: Batch = [Create(NODES, Row(("t", "l", 0, b"n"))), Put(STEPS, step(0, body=b"new")), Create(STEPS, step(0))]

    async def main() -> list[int | None]:
        batches: list[Batch] = [[Create(STEPS, step(n))] for n in range(1, 20)]
        batches[5:5] = [fails, [Expect(STEPS, ("no",) * 4, ())], [Create(STEPS, step(0))], []]
        return await asyncio.gather(*(arun(store.apply(batch)) for batch in batches))

    outcomes = asyncio.run(main())
    assert outcomes == [None] * 5 + [2, 0, 0, None] + [None] * 14
    steps, nodes = run(store.read([Scan(STEPS, ()), Scan(NODES, ())]))
    assert steps == [step(n) for n in range(20)]
    assert nodes == []


def test_sixty_four_tasks(store: SQLiteBackend) -> None:
    async def task(k: int) -> None:
        for n in range(10):
            assert await arun(store.apply([Create(STEPS, step(n, f"{k}"))])) is None
            assert await arun(store.read([Get(STEPS, [step(n, f"{k}").key])])) == [[step(n, f"{k}")]]

    async def main() -> None:
        await asyncio.gather(*(task(k) for k in range(64)))

    asyncio.run(main())
    assert len(run(store.read([Scan(STEPS, (), bodies=False)]))[0]) == 640


@pytest.mark.nightly
def test_the_log_does_not_grow_without_end_under_readers_that_overlap(
    store: SQLiteBackend, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if each takes longer than what a checkpoint waits for it at first."""
    monkeypatch.setattr(sqlite_backend, "_LARGE_LOG_PAGES", 500)
    monkeypatch.setattr(sqlite_backend, "_CHECKPOINT_PAGES", 200)
    store._checkpoint_at = 0  # it is counted from the next commit on
    assert run(store.apply([Create(STEPS, step(9))])) is None
    stop, reads = threading.Event(), itertools.count()

    def read() -> None:
        while not stop.is_set():
            cursor = store._connections.acquire(threading.get_ident())
            cursor.execute("BEGIN; SELECT count(*) FROM steps").fetchall()
            next(reads)
            stop.wait(0.3)
            cursor.execute("COMMIT")
            store._connections.release(threading.get_ident(), good=True)

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
        stop.wait(0.1)  # so that there is always one
    wal = path.with_name(path.name + "-wal")
    largest = written = 0
    try:
        while written < 12_000_000:
            assert run(store.apply([Put(STEPS, step(0, f"{written % 5}", bytes(200_000)))])) is None
            written += 200_000
            largest = max(largest, wal.stat().st_size)
    finally:
        stop.set()
        for reader in readers:
            reader.join()
    assert next(reads) > 3
    assert 2_000_000 < largest < 8_000_000


def test_tidying_gives_room_back(store: SQLiteBackend, path: Path) -> None:
    rows = [Create(NODES, Row(("t", "l", 0, bytes([n])), (), bytes(200_000))) for n in range(100)]
    assert run(store.apply(rows)) is None
    full = run(store.size())
    assert full > 20_000_000
    assert run(store.apply([Delete(NODES, ("t",))])) is None
    run(store.tidy())
    assert path.stat().st_size < 1_000_000
    assert store._connections.writer().connection.pragma("freelist_count") == 0
    run(store.tidy())
    run(store.close())
    with pytest.raises(UnavailableError):
        run(store.tidy())


def test_size_counts_the_log(store: SQLiteBackend, path: Path) -> None:
    before = run(store.size())
    assert run(store.apply([Create(STEPS, step(0, body=bytes(500_000)))])) is None
    assert run(store.size()) > before + 500_000


# Waiting for others


def test_a_lock_that_is_not_given_back(store: SQLiteBackend, path: Path) -> None:
    impatient = opened(path, busy_timeout=0.2)
    blocker = store._connections.writer()
    blocker.execute("BEGIN IMMEDIATE")
    began = time.monotonic()
    with pytest.raises(TransientError, match="busy_timeout"):
        run(impatient.apply([Create(STEPS, step(0))]))
    assert 0.2 <= time.monotonic() - began < 60
    assert run(impatient.read([Scan(STEPS, ())])) == [[]]
    blocker.execute("ROLLBACK")
    assert run(impatient.apply([Create(STEPS, step(0))])) is None
    run(impatient.close())


def test_a_lock_that_is_given_back(store: SQLiteBackend, path: Path) -> None:
    other = opened(path)
    blocker = store._connections.writer()
    blocker.execute("BEGIN IMMEDIATE")
    timer = threading.Timer(0.2, lambda: blocker.execute("ROLLBACK"))
    timer.start()
    assert run(other.apply([Create(STEPS, step(0))])) is None
    timer.join()
    run(other.close())


def test_what_sqlite_refuses_at_once_is_tried_again() -> None:
    tries = 0

    def action() -> str:
        nonlocal tries
        tries += 1
        if tries < 4:
            raise apsw.BusyError("not yet")
        return "done"

    assert sqlite_files.LockWait(10).retry(action, time.monotonic()) == "done"
    tries = -(10**9)
    with pytest.raises(apsw.BusyError):
        sqlite_files.LockWait(0.05).retry(action, time.monotonic())


# Closing


def test_closing_waits_for_readers_and_writers(path: Path) -> None:
    store = opened(path)
    stop = threading.Event()
    trouble: list[HoldfastError] = []
    made: list[int] = []

    def work(k: int) -> None:
        for n in itertools.count():
            try:
                assert run(store.apply([Create(STEPS, step(n, f"{k}"))])) is None
                made.append(n)
                run(store.read([Get(STEPS, [step(n, f"{k}").key])]))
            except HoldfastError as error:
                trouble.append(error)
                return

    workers = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for worker in workers:
        worker.start()
    time.sleep(0.05)
    closers = [threading.Thread(target=lambda: run(store.close())) for _ in range(2)]
    for thread in closers:
        thread.start()
    for thread in [*closers, *workers]:
        thread.join(120)
        assert not thread.is_alive()
    stop.set()
    assert [type(error) for error in trouble] == [UnavailableError] * 4
    assert not path.with_name(path.name + "-wal").exists()
    store = opened(path)
    assert len(run(store.read([Scan(STEPS, (), bodies=False)]))[0]) == len(made)
    run(store.close())


def test_connections_beyond_what_is_kept_are_closed(store: SQLiteBackend) -> None:
    barrier = threading.Barrier(20)
    cursors = []

    def borrow() -> None:
        cursors.append(store._connections.acquire(threading.get_ident()))
        barrier.wait(120)
        store._connections.release(threading.get_ident(), good=True)

    threads = [threading.Thread(target=borrow) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(map(id, cursors))) == 20
    assert len(store._connections._idle) == 16
