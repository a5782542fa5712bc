"""Every page of a SQLite file is looked at, and none counts as damaged that is only being written."""

from __future__ import annotations

from pathlib import Path

import apsw

from holdfast.backends.conformance.rows import step
from holdfast.backends.interface import Create, Delete, Scan
from holdfast.backends.runtime.drivers import run
from holdfast.backends.sqlite.backend import SQLiteBackend
from holdfast.backends.sqlite.database_file import damaged_pages
from holdfast.backends.tables import STEPS
from holdfast.errors import CorruptError

SIZE = 4096


def opened(path: Path) -> SQLiteBackend:
    return run(SQLiteBackend.open(f"sqlite:///{path}"))


def flip(path: Path, page: int) -> None:
    with path.open("r+b") as file:
        file.seek((page - 1) * SIZE + 1000)
        byte = file.read(1)
        file.seek(-1, 1)
        file.write(bytes([byte[0] ^ 1]))


def pages(path: Path) -> int:
    return path.stat().st_size // SIZE


def test_a_damaged_page_that_is_free_is_found(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    store = opened(path)
    run(store.apply([Create(STEPS, step(n, body=bytes(3000))) for n in range(20)]))
    run(store.apply([Delete(STEPS, ())]))
    run(store.close())
    shell = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    assert shell.pragma("freelist_count") > 5
    shell.close()
    assert damaged_pages(str(path), SIZE, pages(path)) == []
    flip(path, pages(path))
    store = opened(path)
    assert run(store.read([Scan(STEPS, ())])) == [[]]
    (found,) = run(store.check())
    assert found == f"the checksums of 1 of {pages(path)} pages are wrong: {pages(path)}"
    run(store.close())


def test_a_page_that_is_in_the_log_counts_as_that_has_it(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    store = opened(path)
    run(store.apply([Create(STEPS, step(0))]))
    run(store.tidy())
    run(store.apply([Create(STEPS, step(1))]))
    logged = {
        int.from_bytes(frame[:4], "big")
        for log in [(tmp_path / "store.db-wal").read_bytes()[32:]]
        for frame in (log[at : at + 4] for at in range(0, len(log), SIZE + 24))
    }
    page = max(logged & set(range(2, pages(path) + 1)))
    flip(path, page)  # as a power cut would leave it that comes while the log is written back
    assert damaged_pages(str(path), SIZE, pages(path)) == []
    assert run(store.check()) == []
    run(store.close())


def test_connections_are_kept_where_only_the_file_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    store = opened(path)
    run(store.apply([Create(STEPS, step(n, body=bytes(3000))) for n in range(50)]))
    run(store.close())
    flip(path, pages(path) - 5)
    store = opened(path)
    kept = set()
    for _ in range(5):
        for queries in ([Scan(STEPS, ())], [Scan(STEPS, (), limit=1), Scan(STEPS, ())]):
            try:
                run(store.read(queries))
            except CorruptError:
                (idle,) = store._connections._idle
                assert not idle.connection.in_transaction
                kept.add(id(idle))
    assert len(kept) == 1
    run(store.close())
