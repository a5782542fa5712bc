"""What becomes of a SQLite store whose disk fails, whose caller is interrupted, or whose file may not be written."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

from holdfast.backends.interface import Create, Delete, Get, Put, Row, Scan
from holdfast.backends.runtime.drivers import run
from holdfast.backends.sqlite import backend as sqlite
from holdfast.backends.sqlite import errors as sqlite_errors
from holdfast.backends.sqlite import use_lock
from holdfast.backends.sqlite.backend import SQLiteBackend
from holdfast.backends.tables import NODES
from holdfast.errors import (
    ConfigError,
    CorruptError,
    DeniedError,
    HoldfastError,
    InvalidError,
    TooLargeError,
    TransientError,
    UnavailableError,
)
from tests.support.sqlite.vfs_faults import DiskFault, FaultyVFS, disk_full, read_error, sync_error, write_error

ROOT = Path(__file__).resolve().parents[2]


def node(number: int, size: int = 500) -> Row:
    return Row(("tenant", "line", 0, b"%06d" % number), (), bytes(size))


def everything(store: SQLiteBackend) -> list[int]:
    return [int(row.key[3]) for row in run(store.read([Scan(NODES, ())]))[0]]


def _name(fault: DiskFault) -> str:
    return f"{apsw.mapping_extended_result_codes.get(fault.code) or apsw.mapping_result_codes[fault.code]}-{fault.nth}"


@pytest.fixture
def disk() -> Iterator[FaultyVFS]:
    disk = FaultyVFS()
    yield disk
    disk.unregister()


def opened(path: Path, disk: FaultyVFS | None = None, **options: Any) -> SQLiteBackend:
    if disk is not None:
        options |= {"vfs": disk.name, "exclusive": True}
    return run(SQLiteBackend.open(f"sqlite:///{path}", **options))


@pytest.mark.parametrize(
    "fault", [sync_error(1, ending="-wal"), write_error(1, ending="-wal"), write_error(2, ending="-wal")], ids=_name
)
def test_a_store_whose_disk_failed_once_opens_its_file_again(path: Path, disk: FaultyVFS, fault: DiskFault) -> None:
    for number, action in enumerate(ACTIONS):
        store = opened(path.with_name(f"{number}.db"), disk)
        assert run(store.apply([Create(NODES, node(0))])) is None
        disk.restart([fault])
        with pytest.raises(UnavailableError, match="may or may not be stored"):
            run(store.apply([Create(NODES, node(1))]))
        assert len(disk.struck) == 1
        run(action(store))
        found = everything(store)
        assert found in ([0], [0, 1])
        assert run(store.apply([Create(NODES, node(3))])) is None
        assert everything(store) == [*found, 3]
        assert run(store.check()) == []
        run(store.close())


@pytest.mark.parametrize("fault", [sync_error(1, times=10**9), write_error(1, times=10**9)], ids=_name)
def test_a_store_does_nothing_while_its_disk_fails(path: Path, disk: FaultyVFS, fault: DiskFault) -> None:
    store = opened(path, disk)
    assert run(store.apply([Create(NODES, node(0))])) is None
    disk.restart([fault])
    with pytest.raises(UnavailableError, match="may or may not be stored"):
        run(store.apply([Create(NODES, node(1))]))
    for action in ACTIONS:
        struck = len(disk.struck)
        with pytest.raises(UnavailableError, match="may or may not be stored") as failure:
            run(action(store))
        assert failure.value.code == "write-failed"
        assert len(disk.struck) == struck + 1  # each call tries once to open the file again
    disk.restart([])
    assert everything(store) in ([0], [0, 1])
    run(store.close())


ACTIONS: tuple[Callable[[SQLiteBackend], Coroutine[Any, Any, object]], ...] = (
    lambda store: store.apply([Put(NODES, node(0))]),
    lambda store: store.read([Scan(NODES, ())]),
    lambda store: store.apply([]),
    lambda store: store.tidy(),
)


def test_after_a_failed_flush_the_log_has_to_be_written_back(path: Path, disk: FaultyVFS) -> None:
    store = opened(path, disk)
    disk.restart([sync_error(1, ending="-wal")])
    with pytest.raises(UnavailableError):
        run(store.apply([Create(NODES, node(1))]))
    disk.restart([])
    other = opened(path)  # another process, as far as this one's memory of the failure goes
    reader = other._connections.acquire(threading.get_ident())
    sqlite._failed.add(str(path))
    try:
        assert run(other.apply([Create(NODES, node(2))])) is None
        reader.execute("BEGIN; SELECT count(*) FROM nodes").fetchall()
        assert run(other.apply([Create(NODES, node(3))])) is None
        with pytest.raises(TransientError):
            opened(path, busy_timeout=0.1)
        assert use_lock._locks[str(path)].users == 1  # of `other`: one that could not be opened locks nothing
        reader.execute("COMMIT")
        run(opened(path, busy_timeout=60).close())
        assert str(path) not in sqlite._failed
    finally:
        sqlite._failed.discard(str(path))
    other._connections.release(threading.get_ident(), good=True)
    run(other.close())
    run(store.close())


def test_a_failure_to_write_the_log_back_when_opening(path: Path, disk: FaultyVFS) -> None:
    store = opened(path, disk)
    assert run(store.apply([Create(NODES, node(0))])) is None
    store._connections.drop_writer()
    disk.restart([sync_error(1, ending="store.db")])
    with pytest.raises(UnavailableError, match="writing failed"):
        opened(path, disk)
    assert disk.struck
    again = opened(path, disk)
    assert everything(again) == [0]
    run(again.close())
    run(store.close())


@pytest.mark.parametrize("times", [1, 3])
def test_a_full_disk_loses_nothing(path: Path, disk: FaultyVFS, times: int) -> None:
    store = opened(path, disk)
    assert run(store.apply([Create(NODES, node(0))])) is None
    disk.restart([disk_full(1, times=times, ending="-wal")])
    for _ in range(times):
        with pytest.raises(TransientError, match="disk is full"):
            run(store.apply([Create(NODES, node(1)), Create(NODES, node(2))]))
        assert everything(store) == [0]
    assert run(store.apply([Create(NODES, node(1))])) is None
    assert everything(store) == [0, 1]
    run(store.close())


def test_a_failure_to_read_changes_nothing(path: Path, disk: FaultyVFS) -> None:
    store = opened(path, disk)
    assert run(store.apply([Create(NODES, node(n, 5_000)) for n in range(50)])) is None
    writer = store._connections.writer().connection
    for action in (
        lambda: store.read([Scan(NODES, ()), Scan(NODES, ())]),
        store.check,
        lambda: store.apply([Create(NODES, node(100)), Delete(NODES, ())]),
    ):
        writer.execute("PRAGMA shrink_memory")
        disk.restart([read_error(5)])
        with pytest.raises(TransientError, match="reading failed"):
            run(action())
        assert disk.struck
    disk.restart([])
    assert everything(store) == list(range(50))
    run(store.close())


@pytest.mark.parametrize("size", [1_000_000])
@pytest.mark.parametrize("fault", [sync_error(1, ending="store.db"), disk_full(1, ending="store.db")], ids=_name)
def test_what_is_committed_stays_so_if_the_log_cannot_be_written_back(
    path: Path, disk: FaultyVFS, fault: DiskFault, size: int
) -> None:
    store = opened(path, disk)
    disk.restart([fault])
    for n in range(40):  # the log is written back when it is large enough
        if disk.struck:
            break
        assert run(store.apply([Create(NODES, node(n, size))])) is None
    assert disk.struck
    if fault.code == apsw.SQLITE_FULL:
        assert everything(store) == list(range(n))
        assert run(store.apply([Create(NODES, node(n))])) is None
        n += 1
    else:
        assert everything(store) == list(range(n))  # the file was opened again
    run(store.close())
    again = opened(path, disk)
    assert everything(again) == list(range(n))
    run(again.close())


@pytest.mark.parametrize("fault", [write_error(1, ending="-wal"), disk_full(1, ending="-wal")], ids=_name)
def test_a_failure_while_tidying(path: Path, disk: FaultyVFS, fault: DiskFault) -> None:
    store = opened(path, disk)
    assert run(store.apply([Create(NODES, node(n, 50_000)) for n in range(20)])) is None
    assert run(store.apply([Delete(NODES, (*node(0).key[:3],))])) is None
    disk.restart([fault])
    with pytest.raises(UnavailableError if fault.code != apsw.SQLITE_FULL else TransientError):
        run(store.tidy())
    run(store.close())
    again = opened(path, disk)
    run(again.tidy())
    assert everything(again) == []
    run(again.close())


def test_a_rollback_that_fails_closes_the_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = opened(path)
    writer = store._connections.writer()

    class Failing:
        connection = writer.connection

        def execute(self, sql: str, *bindings: Any) -> Any:
            if sql == "ROLLBACK":
                raise apsw.IOError("no")
            if sql.startswith("INSERT"):
                raise apsw.FullError("full")
            return writer.execute(sql, *bindings)

    monkeypatch.setattr(store._connections, "_writer", Failing())
    with pytest.raises(UnavailableError):
        run(store.apply([Create(NODES, node(0))]))
    assert everything(store) == []
    assert run(store.apply([Create(NODES, node(0))])) is None
    assert everything(store) == [0]
    run(store.close())


class ReadOnlyVFS(apsw.VFS):
    """Opens files for reading only, as SQLite does by itself where writing is not allowed."""

    def __init__(self) -> None:
        super().__init__("holdfast-test-read-only", "unix")

    def xOpen(self, name: Any, flags: list[int]) -> apsw.VFSFile:
        if flags[0] & apsw.SQLITE_OPEN_MAIN_DB:
            writing = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE
            flags[0] = flags[0] & ~writing | apsw.SQLITE_OPEN_READONLY
        return apsw.VFSFile("unix", name, flags)


def test_a_file_that_may_not_be_written(path: Path) -> None:
    run(opened(path).close())
    vfs = ReadOnlyVFS()
    with pytest.raises(DeniedError, match="may not write to the file"):
        opened(path, vfs="holdfast-test-read-only", exclusive=True)
    vfs.unregister()


def test_a_vfs_without_a_log_is_explained() -> None:
    with pytest.raises(ConfigError, match="write-ahead log"):
        run(SQLiteBackend.open("sqlite:////holdfast-test", vfs="memdb", exclusive=False))


def test_synchronous_off_is_for_tests_of_tests(path: Path, disk: FaultyVFS) -> None:
    store = opened(path, disk, synchronous="off")
    assert store._connections.writer().connection.pragma("synchronous") == 0
    assert not store.capabilities.durable
    run(store.close())


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (apsw.CorruptError("x"), CorruptError),
        (apsw.NotADBError("x"), CorruptError),
        (apsw.SQLError("x"), CorruptError),
        (apsw.TooBigError("x"), TooLargeError),
        (apsw.ConstraintError("x"), InvalidError),
        (TypeError("x"), InvalidError),
        (apsw.BusyError("x"), TransientError),
        (apsw.ProtocolError("x"), TransientError),
        (apsw.FullError("x"), TransientError),
        (apsw.NoMemError("x"), TransientError),
        (apsw.ReadOnlyError("x"), DeniedError),
        (apsw.PermissionsError("x"), DeniedError),
        (apsw.CantOpenError("x"), UnavailableError),
        (apsw.InternalError("x"), UnavailableError),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else type(value).__name__,
)
def test_sqlites_errors_come_out_as_ours(error: Exception, kind: type[HoldfastError]) -> None:
    found = sqlite_errors.translate(error, "sqlite:///here")
    assert type(found) is kind
    assert "x" in found.what
    assert found.where == "sqlite:///here"


@pytest.mark.nightly
@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no timers that signal here")
def test_interruptions_at_any_moment(path: Path) -> None:
    """In a process of its own: what measures coverage would be interrupted too, and does not survive it."""
    script = "import sys; from pathlib import Path; from tests.backends.test_sqlite_faults import storm\n"
    command = [sys.executable, "-W", "ignore", "-c", script + "storm(Path(sys.argv[1]))", str(path)]
    subprocess.run(command, cwd=ROOT, check=True, timeout=300)


def storm(path: Path) -> None:
    """Ctrl-C, hundreds of times, while this thread writes and reads and others do too: nothing is lost or left open."""
    store = opened(path, synchronous="normal")
    stop = threading.Event()
    acknowledged: set[int] = set()
    trouble: list[BaseException] = []

    def others(k: int) -> None:
        n = k * 1_000_000
        while not stop.is_set():
            try:
                n += 1
                assert run(store.apply([Create(NODES, node(n)), Put(NODES, node(0))])) is None
                acknowledged.add(n)
                assert run(store.read([Get(NODES, [node(n).key])])) == [[node(n)]]
            except BaseException as error:
                trouble.append(error)
                return

    class Interrupt(BaseException):
        pass

    armed = False

    def interrupt(*_: object) -> None:
        nonlocal armed
        if armed:
            armed = False  # another must not come in the middle of this one
            raise Interrupt

    threads = [threading.Thread(target=others, args=(k,)) for k in (1, 2)]
    for thread in threads:
        thread.start()
    previous = signal.signal(signal.SIGALRM, interrupt)
    interrupts = n = 0
    end = time.monotonic() + 1
    refused = []
    try:
        while time.monotonic() < end or (interrupts <= 50 and time.monotonic() < end + 120):
            n += 1
            # Once each time: a machine that is slower than the timer would never get anywhere.
            signal.setitimer(signal.ITIMER_REAL, random.uniform(0.00005, 0.002))
            try:
                armed = True
                if run(store.apply([Create(NODES, node(n)), Put(NODES, node(0))])) is not None:
                    refused.append(n)
                acknowledged.add(n)
                run(store.read([Get(NODES, [node(n).key]), Get(NODES, [node(0).key])]))
                armed = False
            except Interrupt:
                armed = False
                interrupts += 1
    finally:
        armed = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
        stop.set()
        for thread in threads:
            thread.join(120)
    assert not any(thread.is_alive() for thread in threads)
    assert trouble == []
    assert refused == []
    assert interrupts > 50
    assert run(store.apply([Create(NODES, node(999_999))])) is None
    assert not store._connections.writer().connection.in_transaction
    assert acknowledged <= set(everything(store))
    assert store._connections._in_use == {}
    run(store.close())
