"""The index of words in a SQLite file, and giving room back."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

import holdfast
from holdfast.backends.conformance.rows import step
from holdfast.backends.interface import Batch, Create, Delete, Put, Row, Scan
from holdfast.backends.runtime.drivers import run
from holdfast.backends.runtime.group_commit import CommitQueue, Outcome
from holdfast.backends.sqlite.backend import SQLiteBackend
from holdfast.backends.tables import NODES, STEPS, WORDS
from holdfast.errors import CorruptError, HoldfastError
from tests.damaged import flipped
from tests.support.nightly import by_day


@pytest.fixture
def store(path: Path) -> Iterator[SQLiteBackend]:
    store = run(SQLiteBackend.open(f"sqlite:///{path}"))
    yield store
    run(store.close())


def test_tidying_gives_back_what_the_index_of_words_took(store: SQLiteBackend, path: Path) -> None:
    def words(seq: int) -> str:
        return " ".join(f"word{(seq * 31 + n * n) % 5000}" for n in range(60))

    for start in range(0, 4000, 500):
        rows = [Create(WORDS, Row(("t", f"l{n % 20}", 0, n), (n, words(n)))) for n in range(start, start + 500)]
        assert run(store.apply(rows)) is None
    full = run(store.size())
    for line in range(18):
        assert run(store.apply([Delete(WORDS, ("t", f"l{line}"))])) is None
    run(store.tidy())
    assert run(store.size()) < full / 3
    assert not Path(f"{path}-wal").stat().st_size, "the log is truncated"
    assert run(store.check()) == []
    (left,) = run(store.read([Scan(WORDS, ())]))
    assert len(left) == 400
    for row in left[:20]:
        assert row.key in run(store.match("t", [str(row.columns[1]).split()[0]], limit=1000)).keys


def test_a_large_removal_does_not_write_the_index_anew(store: SQLiteBackend) -> None:
    """FTS5 would, again and again, in the one transaction for which all writers wait. Tidying does, in parts."""

    def blocks() -> int:
        return int(store._connections.writer().execute("SELECT count(*) FROM words_index_data").get)

    words = [" ".join(f"word{(n * 31 + k * k) % 5000}" for k in range(40)) for n in range(2000)]
    for start in range(0, 2000, 100):
        rows = [Create(WORDS, Row(("t", "l", 0, n), (n, words[n]))) for n in range(start, start + 100)]
        assert run(store.apply(rows)) is None
    for _ in range(2):  # tidying leaves it so
        full = blocks()
        newest = run(store.read([Scan(WORDS, ("t",), reverse=True, limit=900, bodies=False)]))[0]
        assert run(store.apply([Delete(WORDS, row.key) for row in newest])) is None
        assert blocks() >= full
        assert run(store.check()) == [], "FTS5 remembers the index as it was, where others changed it"
        run(store.tidy())
        assert blocks() < full * 0.7
        assert run(store.check()) == []
    (left,) = run(store.read([Scan(WORDS, ())]))
    assert len(left) == 200
    assert [key[3] for key in run(store.match("t", ["word0"], limit=1000)).keys] == [
        n for n in reversed(range(200)) if "word0" in words[n].split()
    ]


def test_writers_are_not_kept_waiting_by_tidying(store: SQLiteBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [Create(NODES, Row(("t", "l", 0, n.to_bytes(2)), (), bytes(20_000))) for n in range(4000)]
    assert run(store.apply(rows)) is None
    assert run(store.apply([Delete(NODES, ("t",))])) is None
    events: list[str] = []
    part_started = threading.Semaphore(0)
    write, vacuum = store._commit, store._vacuum_part
    writer_waits = threading.Semaphore(0)

    def vacuum_part(cursor: apsw.Cursor) -> bool:
        part_started.release()
        assert writer_waits.acquire(timeout=60)
        events.append("part")
        return vacuum(cursor)

    def commit(batches: list[Batch], outcomes: list[Outcome]) -> None:
        if any(batches):
            writer_waits.release()
        write(batches, outcomes)
        events.extend("write" for batch in batches if batch)

    monkeypatch.setattr(store, "_vacuum_part", vacuum_part)
    monkeypatch.setattr(store, "_queue", CommitQueue(commit))
    tidying = threading.Thread(target=lambda: run(store.tidy()))
    tidying.start()
    written = 0
    while tidying.is_alive():
        if part_started.acquire(timeout=0.05):
            assert run(store.apply([Put(STEPS, step(written))])) is None
            written += 1
    tidying.join()
    assert written > 3
    assert events[:-1] == ["part", "write"] * (written - 1) + ["part"]
    assert len(run(store.read([Scan(STEPS, ())]))[0]) == written


def test_the_index_of_words_is_made_when_it_is_needed(store: SQLiteBackend) -> None:
    def tables() -> set[str]:
        connection = store._connections.writer().connection
        return {name for (name,) in connection.execute("SELECT name FROM sqlite_schema") if "words_index" in name}

    assert run(store.apply([Delete(WORDS, ("t",)), Create(STEPS, step(0))])) is None
    assert run(store.match("t", ["word"])).keys == run(store.match("t", [])).keys == []
    run(store.tidy())
    assert tables() == set()
    assert run(store.apply([Create(WORDS, Row(("t", "l", 0, 0), (0, "word"))), Create(STEPS, step(0))])) == 1
    assert tables() == set()
    assert run(store.apply([Put(WORDS, Row(("t", "l", 0, 0), (0, "word")))])) is None
    assert "words_index" in tables()
    assert run(store.apply([Delete(WORDS, ())])) is None
    assert tables() == set()


def test_an_index_of_words_that_is_damaged_is_damage(store: SQLiteBackend) -> None:
    assert run(store.apply([Create(WORDS, Row(("t", "l", 0, 0), (0, "word")))])) is None
    store._connections.writer().execute("DROP TABLE words_index_data")
    for change in (Create(WORDS, Row(("t", "l", 0, 1), (0, "word"))), Delete(WORDS, ("t",))):
        with pytest.raises(HoldfastError):
            run(store.apply([change]))
    with pytest.raises(HoldfastError):
        run(store.match("t", ["word"]))
    with pytest.raises(HoldfastError):
        run(store.tidy())
    assert run(store.check())


def test_an_index_of_words_that_is_none_is_damage(store: SQLiteBackend) -> None:
    assert run(store.apply([Create(WORDS, Row(("t", "l", 0, 0), (0, "word")))])) is None
    store._connections.writer().execute("DROP TABLE words_index; CREATE TABLE words_index (other)")
    with pytest.raises(CorruptError):
        run(store.match("t", ["word"]))


def test_a_flipped_bit_in_the_index_or_in_a_view_is_found_and_repaired(path: Path) -> None:
    with holdfast.open(path) as opened:
        opened.maintenance.build_index()
        for number in range(30):
            opened.thread("t").put({"text": f"hello world{number} common straße{number % 3}"})
        assert opened.maintenance.verify().ok
    connection = apsw.Connection(str(path))
    connection.pragma("wal_checkpoint", "truncate")
    blocks: list[Any] = connection.execute("SELECT id, block FROM words_index_data").fetchall()
    connection.close()
    data = path.read_bytes()
    places = [
        (number, block, at)
        for word in (b"ello", b"commo", b"co\x1e", b"hel\x1e")  # of the words, and of how they start
        for number, block in blocks
        if (at := block.find(word)) >= 0
    ]
    assert len(places) > 5
    for number, block, at in places[:: by_day(1, 4)]:
        path.write_bytes(data)
        connection = apsw.Connection(str(path))
        connection.execute("UPDATE words_index_data SET block = ? WHERE id = ?", (flipped(block, at), number))
        connection.close()
        with holdfast.open(path) as opened:
            assert opened.maintenance.verify().findings, f"byte {at}"
            opened.maintenance.repair()
            assert not opened.maintenance.verify().findings, f"byte {at}"
    path.write_bytes(data.replace(b"kind, metadata, length(body) AS bytes", b"KIND, metadata, length(body) AS bytes"))
    with holdfast.open(path) as opened:
        assert [each.message for each in opened.maintenance.verify().findings] == [
            "the definition of view log was changed"
        ]
        opened.maintenance.repair()
        assert opened.maintenance.verify().ok
