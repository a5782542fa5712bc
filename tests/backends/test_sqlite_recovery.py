"""A SQLite store opens its file again after a failure, if it is the same file and nothing acknowledged is missing."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import apsw
import pytest

import holdfast
from holdfast import Store
from holdfast.backends.interface import Create, Delete, Get, Put, Row
from holdfast.backends.runtime.drivers import run
from holdfast.backends.sqlite.backend import SQLiteBackend
from holdfast.backends.sqlite.database_file import LastRow, last_row
from holdfast.backends.tables import NODES, STEPS
from holdfast.errors import CorruptError, HoldfastError, TransientError, UnavailableError
from tests.support.nightly import by_day, mostly_nightly
from tests.support.sqlite.vfs_faults import FaultyVFS, write_error

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="files are limited, replaced and mounted as on Linux")


@pytest.fixture
def store(path: Path) -> Iterator[Store]:
    with holdfast.open(path) as store:
        yield store


def numbers(store: Store, name: str = "t") -> list[object]:
    """The numbers in the states of a thread, the latest first."""
    thread = store.thread(name)
    return [thread.get(at=each.id).state["n"] for each in thread.log().all()]


@contextlib.contextmanager
def file_limit(size: int) -> Iterator[None]:
    """Writing beyond a size fails with EFBIG."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


@linux_only
def test_a_file_that_may_not_grow(store: Store) -> None:
    thread = store.thread("t")
    for n in range(3):
        thread.put({"n": n})
    large = {"n": 3, "text": os.urandom(100_000).hex()}
    with file_limit(1 << 16):  # the file is larger already
        for _ in range(2):
            with pytest.raises(UnavailableError) as failure:
                thread.put(large)
            assert failure.value.code == "write-failed"
    assert thread.get().state == {"n": 2}
    thread.put(large)
    assert thread.get().state == large
    assert numbers(store) == [3, 2, 1, 0]
    assert store.maintenance.verify().ok


@linux_only
def test_threads_that_read_and_write_while_the_file_may_not_grow(path: Path, store: Store) -> None:
    """All of them work again in the end, and see everything that was acknowledged."""
    acknowledged: list[list[int]] = [[] for _ in range(4)]
    failures = [0] * 4
    limited, free = threading.Event(), threading.Event()
    trouble: list[BaseException] = []

    def write(k: int) -> None:
        thread = store.thread(f"t{k}")
        n = 0
        try:
            while n < 5 or not free.is_set() or acknowledged[k][-1] < n - 1:
                try:
                    thread.put({"n": n, "text": os.urandom(2_000).hex()})
                    acknowledged[k].append(n)
                    assert thread.get().state["n"] == n
                    n += 1
                except UnavailableError:
                    failures[k] += 1
                    limited.set()
        except BaseException as error:
            trouble.append(error)
            limited.set()

    threads = [threading.Thread(target=write, args=(k,)) for k in range(4)]
    store.thread("t").put({"n": 0})
    with file_limit(Path(path).stat().st_size + 300_000):
        for each in threads:
            each.start()
        assert limited.wait(60)
    free.set()
    for each in threads:
        each.join(60)
    assert not trouble
    assert sum(failures) > 0
    for k in range(4):
        assert set(acknowledged[k]) <= set(numbers(store, f"t{k}"))
    assert store.maintenance.verify().ok


def test_what_was_acknowledged_and_is_missing(path: Path, tmp_path: Path) -> None:
    """The disk loses a commit while it fails: the store says so, and does not continue."""
    disk = FaultyVFS()
    store = run(SQLiteBackend.open(f"sqlite:///{path}", vfs=disk.name, exclusive=True))
    rows = [Row(("tenant", "line", 0, b"%d" % n), (), b"") for n in range(2)]
    assert run(store.apply([Create(NODES, rows[0])])) is None
    before = tmp_path / "before-wal"
    shutil.copy(f"{path}-wal", before)
    assert run(store.apply([Create(NODES, rows[1])])) is None
    disk.restart([write_error(1, ending="-wal")])
    with pytest.raises(UnavailableError):
        run(store.apply([Create(NODES, Row(("tenant", "line", 0, b"x"), (), b""))]))
    log = Path(f"{path}-wal")
    complete = log.read_bytes()
    log.write_bytes(before.read_bytes())
    for _ in range(2):
        with pytest.raises(CorruptError, match="the last acknowledged changes are missing") as failure:
            run(store.read([Get(NODES, [rows[0].key])]))
        assert failure.value.code == "lost-writes"
    with pytest.raises(CorruptError):
        run(store.apply([Put(NODES, rows[0])]))
    run(store.close())
    log.write_bytes(complete)
    store = run(SQLiteBackend.open(f"sqlite:///{path}", vfs=disk.name, exclusive=True))
    assert run(store.read([Get(NODES, [row.key for row in rows])])) == [rows]
    run(store.close())
    disk.unregister()


def test_the_last_row_that_was_created() -> None:
    first, second = (Row(("tenant", "line", 0, key), (), b"body") for key in (b"1", b"2"))
    step = Row(("tenant", "line", 0, 7), ("id",), b"")
    last = last_row(None, [Create(NODES, first), Create(NODES, second), Put(STEPS, step)])
    assert last == LastRow(NODES, second.key, ())
    assert last_row(last, [Delete(NODES, first.key), Delete(STEPS, ("tenant",))]) == last
    assert last_row(last, [Delete(NODES, ("tenant", "line"))]) is None
    assert last_row(LastRow(STEPS, step.key, ("old",)), [Put(STEPS, step)]) == LastRow(STEPS, step.key, ("id",))


# Files that are deleted or replaced


@linux_only
@pytest.mark.parametrize("first", ["get", "put"])
@pytest.mark.parametrize("endings", [("",), ("", "-wal", "-shm")], ids=["file", "all files"])
def test_a_deleted_file(path: Path, store: Store, first: str, endings: tuple[str, ...]) -> None:
    thread = store.thread("t")
    thread.put({"n": 0})
    for ending in endings:
        Path(f"{path}{ending}").unlink()
    for call in calls(store, first):
        with pytest.raises(UnavailableError, match="the file was deleted or replaced") as failure:
            call()
        assert failure.value.code == "file-replaced"
    assert not path.exists()


def calls(store: Store, first: str) -> list[Callable[[], object]]:
    """A change, and reads until a moment has passed, in either order."""

    def read() -> None:
        until = time.monotonic() + 10
        while time.monotonic() < until:
            store.thread("t").get()

    def write() -> None:
        store.thread("t").put({"n": 3})

    return [write, read] if first == "put" else [read, write]


@linux_only
@pytest.mark.parametrize("first", ["get", "put"])
def test_a_replaced_file_stays_as_it_is(path: Path, store: Store, first: str) -> None:
    """Its name is that of a log which belongs to the old file, and SQLite would apply that log to it."""
    thread = store.thread("t")
    for n in range(3):
        thread.put({"n": n})
    other = path.with_name("other.db")
    with holdfast.open(other) as another:
        another.thread("t").put({"n": "other"})
    old = path.with_name("old.db")
    path.rename(old)
    other.rename(path)
    content = path.read_bytes()
    for call in calls(store, first):
        with pytest.raises(UnavailableError, match="the file was deleted or replaced"):
            call()
    store.close()
    assert path.read_bytes() == content
    with holdfast.open(path) as new:
        assert new.thread("t").get().state == {"n": "other"}
        assert new.maintenance.verify().ok
    with holdfast.open(old) as moved:
        assert numbers(moved)[-3:] == [2, 1, 0]


@linux_only
def test_a_file_that_is_replaced_and_then_closed(path: Path, store: Store) -> None:
    store.thread("t").put({"n": 0})
    path.rename(path.with_name("old.db"))
    with holdfast.open(path.with_name("other.db")) as another:
        another.thread("t").put({"n": "other"})
    path.with_name("other.db").rename(path)
    store.close()
    with holdfast.open(path) as new:
        assert new.thread("t").get().state == {"n": "other"}
    with holdfast.open(path.with_name("old.db")) as moved:
        assert numbers(moved) == [0]


@linux_only
def test_a_log_that_was_deleted(path: Path, store: Store) -> None:
    """That is noticed within a moment, and what is in it is written to the file while it is still open."""
    thread = store.thread("t")
    thread.put({"n": 0})
    Path(f"{path}-wal").unlink()
    acknowledged, failure = 0, None
    while failure is None and acknowledged < 10_000:
        try:
            thread.put({"n": acknowledged + 1})
            acknowledged += 1
        except UnavailableError as error:
            failure = error
    assert "the write-ahead log of the file was deleted or replaced" in str(failure)
    assert numbers(store) == list(range(acknowledged, -1, -1))
    thread.put({"n": "more"})
    store.close()
    with holdfast.open(path) as again:
        assert numbers(again) == ["more", *range(acknowledged, -1, -1)]
        assert again.maintenance.verify().ok


@linux_only
def test_a_file_that_is_moved_back(path: Path, store: Store) -> None:
    thread = store.thread("t")
    thread.put({"n": 0})
    path.rename(path.with_name("elsewhere.db"))
    with pytest.raises(UnavailableError):
        thread.put({"n": 1})
    path.with_name("elsewhere.db").rename(path)
    assert numbers(store)[-1] == 0
    thread.put({"n": 2})
    assert thread.get().state == {"n": 2}


@linux_only
def test_a_file_that_another_process_uses_is_not_replaced(path: Path, store: Store) -> None:
    """The control: another process opens the file, writes to it, writes the log back, and closes it."""
    script = """if True:
        import sys, holdfast
        with holdfast.open(sys.argv[1]) as store:
            store.thread("t").put({"n": int(sys.argv[2])})
            store.maintenance.compact("t")
    """
    for n in range(0, 4, 2):
        store.thread("t").put({"n": n})
        subprocess.run([sys.executable, "-c", script, str(path), str(n + 1)], check=True, timeout=60)
        assert store.thread("t").get().state == {"n": n + 1}
    assert numbers(store) == [3, 2, 1, 0]


@linux_only
def test_a_log_that_is_deleted_while_no_connection_is_open(path: Path, store: Store) -> None:
    """Before a fork all connections are closed; the last other process then deletes the log, as SQLite does."""
    store.thread("t").put({"n": 0})
    backend = store._engine.context.stored
    assert isinstance(backend, SQLiteBackend)
    backend._connections.before_fork()
    with holdfast.open(path) as other:
        other.thread("t").put({"n": 1})
    assert not Path(f"{path}-wal").exists()
    backend._connections.after_fork_in_parent()
    store.thread("t").put({"n": 2})
    assert numbers(store) == [2, 1, 0]


# Full disks


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = shutil.which("mount") and subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={by_day(16, 8)}m", "tmpfs", str(folder)], check=False, capture_output=True
    )
    if not mounted or mounted.returncode:
        pytest.skip("this user may not mount a small disk")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(store: Store) -> int:
    """Save until that fails. Returns how many checkpoints were acknowledged."""
    for n in range(100_000):
        try:
            store.thread(f"t{n % 20}").put({"n": n, "text": os.urandom(15_000).hex()})
        except TransientError:
            return n
    raise AssertionError


@linux_only
@pytest.mark.parametrize("reopened", mostly_nightly([False, True], daily=[False]), ids=["open", "reopened"])
def test_space_can_be_freed_on_a_disk_that_the_store_has_filled(small_disk: Path, reopened: bool) -> None:
    path = small_disk / "store.db"
    store = holdfast.open(path)
    count = fill(store)
    assert count > by_day(300, 150)
    with pytest.raises(TransientError, match="disk is full"):
        store.thread("t0").put({"more": True})
    if reopened:
        store.close()
        store = holdfast.open(path)
    assert sum(each.steps for each in store.threads().all()) == count
    assert store.thread("t0").delete()
    assert store.maintenance.prune(keep_last=2).dropped > count // 2
    store.thread("t1").put({"text": os.urandom(250_000).hex()})
    assert store.maintenance.verify().ok
    store.close()


@linux_only
def test_a_disk_without_a_free_byte(small_disk: Path) -> None:
    """The store opens, and can be read. Once there is space, it can be written, by other processes too."""
    path = small_disk / "store.db"
    with holdfast.open(path) as store:
        store.thread("t").put({"n": 0})
    filler = small_disk / "filler"
    with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(1 << 12))
    with holdfast.open(path, read_only=True) as reader:
        assert reader.thread("t").get().state == {"n": 0}
    with holdfast.open(path) as store:
        assert store.thread("t").get().state == {"n": 0}
        for change in (lambda: store.thread("t").put({"n": 1}), lambda: store.thread("t").delete()):
            with pytest.raises(HoldfastError) as failure:
                change()
            assert failure.value.code == "disk-full"
        filler.unlink()
        store.thread("t").put({"n": 1})
        with holdfast.open(path, busy_timeout=1) as other:
            other.thread("t").put({"n": 2})
        assert numbers(store) == [2, 1, 0]


def test_the_control_of_a_full_disk(small_disk: Path) -> None:
    """SQLite itself cannot delete on a disk that is filled to the last byte: hence the reserve."""
    connection = apsw.Connection(str(small_disk / "plain.db"))
    connection.execute("PRAGMA journal_mode = WAL").fetchall()
    connection.execute("CREATE TABLE t (n INTEGER PRIMARY KEY, body BLOB)")
    with contextlib.suppress(apsw.FullError):
        while True:
            connection.execute("INSERT INTO t (body) VALUES (randomblob(20000))")
    with pytest.raises(apsw.FullError):
        connection.execute("DELETE FROM t WHERE n % 2")
    connection.close()
