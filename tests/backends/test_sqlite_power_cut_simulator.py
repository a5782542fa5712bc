"""The power-cut simulator loses what a disk may lose, and nothing else."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

import apsw
import apsw.sqlite_extra
import pytest

from tests.support.sqlite.powercut import Labels, Log, check_cuts, images, record
from tests.support.sqlite.recording import Create, Delete, Existing, Mark, Recorder, Sync, Truncate, Write

COMMITS = 30


def connect(path: Path, vfs: str, synchronous: str = "full") -> apsw.Connection:
    connection = apsw.Connection(str(path), vfs=vfs)
    connection.pragma("locking_mode", "exclusive")
    connection.pragma("journal_mode", "wal")
    connection.pragma("synchronous", synchronous)
    connection.pragma("wal_autocheckpoint", 10)
    return connection


def workload(synchronous: str) -> Callable[[Path, Recorder], None]:
    def run(directory: Path, recorder: Recorder) -> None:
        with closing(connect(directory / "x.db", recorder.vfs, synchronous)) as connection:
            connection.execute("CREATE TABLE t (n INTEGER PRIMARY KEY, body BLOB)")
            recorder.mark("made")
            for n in range(COMMITS):
                with connection:
                    connection.execute("INSERT INTO t VALUES (?, ?)", (n, bytes([n]) * 700))
                    connection.execute("INSERT INTO t VALUES (?, ?)", (1000 + n, bytes([n]) * 300))
                    if n >= 5:
                        connection.execute("DELETE FROM t WHERE n % 1000 = ?", (n - 5,))
                recorder.mark(n)

    return run


def verify(directory: Path, labels: Labels, vfs: str = "unix") -> None:
    """Every acknowledged commit is there and whole, and the file is sound."""
    if not labels:
        return
    with closing(apsw.Connection(str(directory / "x.db"), vfs=vfs)) as connection:
        assert connection.pragma("integrity_check") == "ok"
        rows: list[Any] = connection.execute("SELECT n, body FROM t ORDER BY n").fetchall()
        numbers = [n for n, _ in rows if n < 1000]
        assert [n - 1000 for n, _ in rows if n >= 1000] == numbers
        assert all(set(body) == {n % 1000} for n, body in rows)
        last = labels[-1] if labels[-1] != "made" else -1
        assert (numbers[-1] if numbers else -1) in (last, last + 1)
        assert numbers == list(range(max(0, numbers[-1] - 4), numbers[-1] + 1) if numbers else ())


@pytest.fixture(scope="module")
def full() -> Log:
    return record(workload("full"))


@pytest.mark.parametrize("seed", range(3))
def test_flushed_commits_survive_every_cut(full: Log, seed: int) -> None:
    assert check_cuts(full, verify, cuts=400, seed=seed) == 400


@pytest.mark.parametrize("synchronous", ["normal", "off"])
def test_acknowledged_commits_that_were_not_flushed_are_lost(synchronous: str) -> None:
    log = record(workload(synchronous))
    with pytest.raises((AssertionError, apsw.Error)) as caught:
        check_cuts(log, verify, cuts=400, seed=1)
    assert "power cut" in caught.value.__notes__[-1]
    assert "of 400 (seed 1)" in caught.value.__notes__[-1]


def test_without_a_flush_for_every_commit_the_file_stays_sound() -> None:
    """What SQLite promises for synchronous=NORMAL: images must not be worse than disks are."""

    def sound(directory: Path, labels: Labels) -> None:
        with closing(apsw.Connection(str(directory / "x.db"))) as connection:
            assert connection.pragma("integrity_check") == "ok"
            if connection.execute("SELECT count(*) FROM sqlite_schema").get:
                numbers = [n for (n,) in connection.execute("SELECT n FROM t WHERE n < 1000 ORDER BY n")]
                assert numbers == list(range(max(0, numbers[-1] - 4), numbers[-1] + 1) if numbers else ())

    check_cuts(record(workload("normal")), sound, cuts=600, seed=2)


def test_without_flushes_the_file_breaks() -> None:
    def sound(directory: Path, labels: Labels) -> None:
        with closing(apsw.Connection(str(directory / "x.db"))) as connection:
            assert connection.pragma("integrity_check") == "ok"

    with pytest.raises((AssertionError, apsw.CorruptError, apsw.NotADBError)):
        check_cuts(record(workload("off")), sound, cuts=600, seed=2)


def test_cuts_are_fast(full: Log) -> None:
    started = time.process_time()
    check_cuts(full, verify, cuts=200, seed=9)
    assert time.process_time() - started < 2


# The log


def test_the_log_tells_what_happened_and_when(full: Log) -> None:
    labels = [event.label for event in full if isinstance(event, Mark)]
    assert labels == ["made", *range(COMMITS)]
    names = {event.name for event in full if isinstance(event, Create)}
    assert names == {"x.db", "x.db-journal", "x.db-wal"}
    writes = [event for event in full if isinstance(event, Write)]
    assert sum(len(event.data) for event in writes) > COMMITS * 4096
    for place, event in enumerate(full):
        if isinstance(event, Mark) and event.label != "made":
            before = [one for one in full[:place] if not isinstance(one, Mark)]
            flushed = max(at for at, one in enumerate(before) if isinstance(one, Sync))
            commit = max(at for at, one in enumerate(before) if isinstance(one, Write))
            assert commit < flushed, "acknowledged with a write that was not flushed"


def test_files_from_before_are_there_whatever_happens(tmp_path: Path) -> None:
    def before(directory: Path) -> None:
        with closing(connect(directory / "x.db", "unix")) as connection:
            connection.execute("CREATE TABLE t (n INTEGER PRIMARY KEY, body BLOB)")

    def run(directory: Path, recorder: Recorder) -> None:
        before(directory)
        with closing(connect(directory / "x.db", recorder.vfs)) as connection:
            connection.execute("INSERT INTO t VALUES (1, x'00')")
            recorder.mark("inserted")

    log = record(run)
    assert isinstance(log[0], Existing)

    def there(directory: Path, labels: Labels) -> None:
        if (directory / "x.db").exists():
            with closing(apsw.Connection(str(directory / "x.db"))) as connection:
                assert connection.execute("SELECT count(*) FROM t").get >= len(labels)
        else:
            assert not labels

    check_cuts(log, there, cuts=3 * len(log), seed=3)


def test_only_the_directory_is_recorded(tmp_path: Path) -> None:
    def run(directory: Path, recorder: Recorder) -> None:
        with closing(connect(tmp_path / "elsewhere.db", recorder.vfs)) as connection:
            connection.execute("CREATE TABLE t (n)")
            connection.execute("CREATE TEMP TABLE u (n)")
            connection.pragma("temp_store", 1)
            connection.pragma("journal_mode", "delete")
            connection.execute("INSERT INTO t VALUES (randomblob(20000))")

    assert record(run) == ()


def test_the_vfs_is_gone_after_recording() -> None:
    before = apsw.vfs_names()
    record(workload("full"))
    assert apsw.vfs_names() == before


# Images


def contents(log: Log, count: int = 400, seed: int = 5) -> set[bytes | None]:
    """What the file named "f" may hold at the end of a log."""
    rng = Random(seed)
    found: set[bytes | None] = set()
    for image in images(log, rng, count * (len(log) + 1)):
        if image.point == len(log):
            found.add(bytes(image.files["f"]) if "f" in image.files else None)
    return found


def test_flushed_writes_are_there() -> None:
    log: Log = [Create(1, "f"), Write(1, 0, b"old"), Sync(1, False)]
    assert contents(log) == {b"old"}


def test_unflushed_writes_may_be_there() -> None:
    log: Log = [Create(1, "f"), Write(1, 0, b"old"), Sync(1, False), Write(1, 1, b"new")]
    # The last one: the size was written, and the data was not.
    assert contents(log) == {b"old", b"onew", b"old\0", b"one"}


def test_writes_are_torn_at_sectors() -> None:
    log: Log = [Create(1, "f"), Write(1, 0, b"-" * 2048), Sync(1, False), Write(1, 100, b"+" * 1500)]
    pieces = [412, 512, 512, 64]
    found = contents(log, 2000)
    assert {content[:100] + content[1600:] for content in found if content} == {b"-" * 548}
    patterns = set()
    for content in found:
        assert content is not None
        middle, pattern = content[100:1600], ""
        for size in pieces:
            (value,) = set(middle[:size])
            pattern += chr(value)
            middle = middle[size:]
        patterns.add(pattern)
    assert len(patterns) == 16, "every sector may be there or not"


def test_unflushed_writes_may_be_reordered() -> None:
    log: Log = [
        Create(1, "f"),
        Write(1, 0, b"a"),
        Write(1, 1, b"b"),
        Sync(1, False),
        Write(1, 0, b"A"),
        Write(1, 1, b"B"),
    ]
    assert contents(log) == {b"ab", b"Ab", b"aB", b"AB"}


def test_truncations_may_be_lost() -> None:
    log: Log = [Create(1, "f"), Write(1, 0, b"abcd"), Sync(1, False), Truncate(1, 2), Write(1, 3, b"X")]
    assert {b"abcd", b"ab", b"abcX", b"ab\0X"} <= contents(log) <= {b"abcd", b"ab", b"abcX", b"ab\0X", b"ab\0\0"}
    assert contents([*log, Sync(1, False)]) == {b"ab\0X"}


def test_names_are_settled_by_flushes() -> None:
    made: Log = [Create(1, "f"), Write(1, 0, b"1"), Sync(1, False)]
    assert contents(made[:2]) == {None, b"", b"1", b"\0"}
    assert contents(made) == {b"1"}
    assert contents([*made, Delete("f", False)]) == {None, b"1"}
    assert contents([*made, Delete("f", True)]) == {None}
    anew: Log = [*made, Delete("f", False), Create(2, "f")]
    assert contents(anew) == {None, b"1", b""}
    assert contents([*anew, Sync(2, False)]) == {b""}
    other: Log = [*made, Delete("f", False), Create(2, "g")]
    assert contents([*other, Sync(2, False)]) == {None, b"1"}, "only its own name"
    assert contents([*other, Sync(2, True)]) == {None}, "the directory, and so every name"


def test_every_point_is_cut(full: Log) -> None:
    points = [image.point for image in images(full, Random(1), len(full) + 1)]
    assert points == list(range(len(full) + 1))
    few = [image.point for image in images(full, Random(1), 20)]
    assert few == sorted(few)
    assert len(set(few)) == 20


def test_the_same_seed_cuts_the_same(full: Log) -> None:
    assert list(images(full, Random(4), 50)) == list(images(full, Random(4), 50))
    assert list(images(full, Random(4), 50)) != list(images(full, Random(5), 50))


def test_what_verifying_left_is_cleared_away(full: Log) -> None:
    looks = 0

    def litter(directory: Path, labels: Labels) -> None:
        nonlocal looks
        assert {path.name for path in directory.iterdir()} <= {"x.db", "x.db-journal", "x.db-wal"}
        (directory / "left").mkdir()
        (directory / "left" / "file").touch()
        (directory / "x.db-shm").touch()
        looks += 1

    assert check_cuts(full, litter, cuts=10) == looks == 10


def test_a_failure_says_where_it_was_cut() -> None:
    log: Log = [Create(1, "f"), Write(1, 3, b"abc"), Sync(1, False)]

    def fail(directory: Path, labels: Labels) -> None:
        raise RuntimeError

    with pytest.raises(RuntimeError) as caught:
        check_cuts(log, fail, cuts=4)
    assert "after event 0 (the beginning)" in caught.value.__notes__[0]
    assert "no files" in caught.value.__notes__[0]
    described = [image.describe(log) for image in images(log, Random(0), 4)]
    assert "write of 3 bytes at 3 of 1" in described[2]
    assert "f: 6 bytes" in described[3]
