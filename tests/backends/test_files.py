"""Files: the suite for all backends, and what is its own."""

from __future__ import annotations

import errno
import gc
import os
import shutil
import stat
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.backends.conformance.histories import Histories
from holdfast.backends.conformance.processes import Processes
from holdfast.backends.conformance.rows import step
from holdfast.backends.fsutil import flush_folder
from holdfast.backends.interface import Create, Delete, Put, Scan
from holdfast.backends.object_store import local, shard_log, shard_view
from holdfast.backends.object_store.local import FileBackend
from holdfast.backends.object_store.object_storage import deadline_in
from holdfast.backends.runtime.drivers import run
from holdfast.backends.tables import STEPS, TABLES
from holdfast.errors import ConfigError, CorruptError, TransientError, UnavailableError
from holdfast.testing import BackendConformance, Stores
from tests.backends.daily_conformance import DailyConformance
from tests.damaged import flipped
from tests.support.nightly import by_day


class TestConformance(DailyConformance):
    lacks = frozenset({"words", "times"})

    @pytest.fixture
    def stores(self, tmp_path: Path) -> Stores:
        return Stores(f"file://{tmp_path}/store")


@pytest.mark.nightly
@pytest.mark.no_cover
class TestConformanceInFull(BackendConformance):
    lacks = TestConformance.lacks
    stores = TestConformance.stores


@pytest.mark.nightly
@pytest.mark.no_cover
class TestKilledOften(Processes):
    lacks = TestConformance.lacks
    stores = TestConformance.stores


@pytest.mark.nightly
@pytest.mark.no_cover
class TestManyHistories(Histories):
    lacks = TestConformance.lacks
    stores = TestConformance.stores


def opened(path: Path, **options: Any) -> FileBackend:
    return run(FileBackend.open(f"file://{path}", **options))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def store(path: Path) -> Iterator[FileBackend]:
    store = opened(path)
    yield store
    run(store.close())


def names(path: Path) -> set[str]:
    """The files of a store, without those that are being written."""
    found = (str(each.relative_to(path)) for each in path.rglob("*") if each.is_file())
    return {name for name in found if not name.startswith("new/")}


# Opening


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("file://agents", "file:agents"),
        ("file:", "file:agents"),
        ("file:///", "file:agents"),
        ("file:a?mode=fast", "file:agents"),
        ("file:a?grace=soon", "'soon'"),
        ("file:a?timeout=0", "'0'"),
    ],
)
def test_a_wrong_url_is_explained(url: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as caught:
        run(FileBackend.open(url))
    assert says in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_path_is_relative_to_where_one_is_and_stays_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    store = run(FileBackend.open("file:a%20b/c?grace=30"))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert run(store.apply([Create(STEPS, step())])) is None
    run(store.close())
    assert (tmp_path / "a b" / "c" / "tenant=tenant" / "line=line" / "birth").exists()


def test_a_directory_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ConfigError, match="cannot be used"):
        opened(tmp_path / "file" / "store")


def test_a_directory_of_something_else_is_left_alone(path: Path) -> None:
    path.mkdir()
    (path / "format").write_text("Dear diary")
    with pytest.raises(ConfigError, match="contains other data"):
        opened(path)
    assert (path / "format").read_text() == "Dear diary"


# What is on the disk


def test_people_find_their_way(path: Path) -> None:
    with holdfast.open(f"file://{path}", tenant="acme") as store:
        store.thread("chat-1").put({"n": 1})
    assert names(path) == {"format", "tenant=acme/line=chat-1/birth"}


def test_of_deleted_threads_nothing_is_left(path: Path) -> None:
    store = opened(path, grace=10)
    for seq in range(40):
        assert run(store.apply([Create(STEPS, step(seq))])) is None
    assert run(store.apply([Delete(space, ("tenant", "line")) for space in TABLES])) is None
    run(store.tidy())
    assert b"body" in b"".join((path / name).read_bytes() for name in names(path)), "the time of grace is not over"

    async def tidy() -> None:
        assert store._open is not None
        await store._open.garbage_collector.tidy(grace=-1.0)

    for _ in range(3):
        run(store._run_once(tidy))
    run(store.close())
    assert names(path) == {"format"}
    assert [each.name for each in path.iterdir() if each.is_dir()] == ["new"]


def test_tidying_gives_room_back(path: Path) -> None:
    store = opened(path, grace=10)
    for seq in range(100):
        assert run(store.apply([Create(STEPS, step(seq, body=os.urandom(5_000)))])) is None
    before = run(store.size())
    kept = run(store.read([Scan(STEPS, ("tenant", "line", 0), (90,))]))
    for seq in range(90):
        assert run(store.apply([Delete(STEPS, ("tenant", "line", 0, seq))])) is None

    async def tidy() -> None:
        assert store._open is not None
        await store._open.garbage_collector.tidy(grace=-1.0)

    for _ in range(3):
        run(store._run_once(tidy))
    assert run(store.size()) < before / 5
    assert run(store.read([Scan(STEPS, ())])) == kept
    run(store.close())


def test_what_writers_that_died_left_is_removed(path: Path, store: FileBackend) -> None:
    old, young = path / "new" / "old", path / "new" / "young"
    for each in (old, young):
        each.write_bytes(b"half a fi")
    os.utime(old, (time.time() - 3600, time.time() - 3600))
    run(store.tidy())
    assert not old.exists()
    assert young.exists()


def test_pages_of_a_listing_follow_each_other(path: Path, store: FileBackend) -> None:
    files = [f"folder/{first}/{number:02}" for first in ("a", "a.b", "b") for number in range(4)]
    for name in files:
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(b"content")

    async def listed() -> list[list[str]]:
        storage = store._opened().storage
        after = ["", "folder/a.b/!", "folder/a/02", "folder/b/03"]
        with deadline_in(5.0):
            return [[info.name for info in await storage.list_page("folder", each)] for each in after]

    every, of_a, following, none = run(store._run_in_loop(listed))
    assert every == of_a == sorted(files)
    assert following == sorted(files)[sorted(files).index("folder/a/02") + 1 :]
    assert none == []


def test_damage_is_found_and_named(path: Path, store: FileBackend) -> None:
    assert run(store.apply([Create(STEPS, step(body=b"body" * 100))])) is None
    birth = path / "tenant=tenant" / "line=line" / "birth"
    birth.write_bytes(flipped(birth.read_bytes()))
    other = opened(path)
    with pytest.raises(CorruptError, match="line=line/birth"):
        run(other.read([Scan(STEPS, ())]))
    (wrong,) = run(other.check())
    assert "line=line/birth" in wrong
    run(other.close())


def test_a_missing_file_is_damage_too(path: Path, store: FileBackend) -> None:
    for seq in range(33):
        assert run(store.apply([Put(STEPS, step(seq, body=bytes(300_000) if seq == 3 else b"small"))])) is None
    (large,) = [name for name in names(path) if name.endswith("/03") and (path / name).stat().st_size > 300_000]
    (path / large).unlink()
    other = opened(path)
    with pytest.raises(CorruptError, match="missing"):
        run(other.read([Scan(STEPS, ())]))
    run(other.close())


# A disk that fails


def failing(monkeypatch: pytest.MonkeyPatch, name: str, number: int, times: int) -> None:
    real: Callable[..., Any] = getattr(os, name)
    left = times

    def fail(*arguments: Any) -> Any:
        nonlocal left
        if left:
            left -= 1
            raise OSError(number, os.strerror(number))
        return real(*arguments)

    monkeypatch.setattr(os, name, fail)


@pytest.mark.parametrize("call", ["write", "fsync", "link"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_reported_at_once(
    path: Path, monkeypatch: pytest.MonkeyPatch, call: str, number: int, caplog: pytest.LogCaptureFixture
) -> None:
    store = opened(path)
    tries = 0

    def full(*_: Any) -> None:
        nonlocal tries
        tries += 1
        raise OSError(number, os.strerror(number))

    def write(seq: int) -> int:
        run(store.apply([Create(STEPS, step(seq))]))
        return seq

    with monkeypatch.context() as patched:
        patched.setattr(os, call, full)
        with ThreadPoolExecutor(8) as pool:  # so that groups of several fail, and further batches wait meanwhile
            failures = [one.exception() for one in [pool.submit(write, seq) for seq in range(40)]]
        for failure in failures:
            assert isinstance(failure, TransientError)
            assert (failure.code, "disk is full" in str(failure), "server" in str(failure)) == (
                "disk-full",
                True,
                False,
            )
        assert 1 <= tries <= 40, "it is not tried again"
        assert names(path) == {"format"}
        assert list((path / "new").iterdir()) == []
    assert run(store.apply([Create(STEPS, step())])) is None
    run(store.close())
    gc.collect()
    assert caplog.records == [], "a task failed in the background"


@pytest.mark.parametrize("number", [errno.EIO, errno.EFBIG])
@pytest.mark.parametrize("call", ["fsync", "write"])
def test_a_disk_that_fails_once(path: Path, monkeypatch: pytest.MonkeyPatch, call: str, number: int) -> None:
    store = opened(path)
    with monkeypatch.context() as patched:
        failing(patched, call, number, 1)
        with pytest.raises(UnavailableError, match="disk failed") as failure:
            run(store.apply([Create(STEPS, step(0))]))
        assert failure.value.code == "write-failed"
    assert run(store.read([Scan(STEPS, ())])) == [[]]
    assert run(store.apply([Create(STEPS, step(1))])) is None
    assert run(store.read([Scan(STEPS, ())])) == [[step(1)]]
    run(store.close())


def test_a_folder_that_cannot_be_flushed_makes_no_promise(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = opened(path)
    assert run(store.apply([Create(STEPS, step(0))])) is None
    real = os.fsync

    def fail(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.ENOSPC, "no space left on device")
        real(descriptor)

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", fail)
        with pytest.raises(UnavailableError, match="flushed"):
            run(store.apply([Create(STEPS, step(1))]))
        for action in (lambda: store.apply([Create(STEPS, step(2))]), lambda: store.read([Scan(STEPS, ())])):
            with pytest.raises(UnavailableError, match="flushed"):
                run(action())
    assert step(0) in run(store.read([Scan(STEPS, ())]))[0]  # once it could be flushed
    assert run(store.apply([Create(STEPS, step(3))])) is None
    run(store.close())


def test_a_folder_that_cannot_be_opened_to_be_flushed_makes_no_promise(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(path)
    assert run(store.apply([Create(STEPS, step(0))])) is None
    assert run(store.apply([Create(STEPS, step(1))])) is None
    real_link, real_open, linked = os.link, os.open, False

    def link(*arguments: Any) -> None:
        nonlocal linked
        real_link(*arguments)
        linked = True

    def fail(name: Any, *arguments: Any) -> int:
        nonlocal linked
        if linked:
            linked = False
            raise OSError(errno.EMFILE, "too many open files")
        return real_open(name, *arguments)

    with monkeypatch.context() as patched:
        patched.setattr(os, "link", link)
        patched.setattr(os, "open", fail)
        with pytest.raises(UnavailableError, match="flushed"):
            run(store.apply([Create(STEPS, step(2))]))
    run(store.close())


def test_a_file_that_another_swept_is_not_missed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = opened(path)
    real = os.link

    def link(source: Path, target: Path) -> None:
        real(source, target)
        source.unlink()  # as by one who tidies, while this process was paused

    monkeypatch.setattr(os, "link", link)
    assert run(store.apply([Create(STEPS, step(0))])) is None
    run(store.close())


# Power cuts


class Disk:
    """Knows which files a power cut would leave: those whose names, and those of whose folders, were flushed."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._root = root
        self.safe: set[Path] = set()
        self._flush = flush_folder
        self._lock = threading.Lock()
        monkeypatch.setattr(local, "flush_folder", self._flushed)

    def _flushed(self, folder: Path) -> None:
        self._flush(folder)
        with self._lock, os.scandir(folder) as entries:
            self.safe = {each for each in self.safe if each.parent != folder} | {Path(each.path) for each in entries}

    def after_a_cut(self, target: Path) -> None:
        """Make of a directory what would be left of the store."""
        target.mkdir()
        for name in sorted(names(self._root)):
            way = [self._root / part for part in [name, *map(str, Path(name).parents)][:-1]]
            if all(each in self.safe for each in way):
                (target / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(self._root / name, target / name)


def test_what_was_acknowledged_survives_a_power_cut(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard_log, "EPOCH_ENTRIES", 4)
    monkeypatch.setattr(shard_view, "EPOCH_ENTRIES", 4)
    disk = Disk(path, monkeypatch)
    stores = [opened(path) for _ in range(2)]
    expected: dict[tuple[Any, ...], bytes] = {}
    for number in range(by_day(24, 14)):
        changes = [Put(STEPS, step(number, line=line, body=b"%d" % number)) for line in "ab"[: 1 + number % 3 // 2]]
        assert run(stores[number % 2].apply(changes)) is None
        expected |= {change.row.key: change.row.body for change in changes}
        cut = tmp_path / f"cut-{number}"
        disk.after_a_cut(cut)
        left = opened(cut)
        (rows,) = run(left.read([Scan(STEPS, ())]))
        assert {row.key: row.body for row in rows} == expected
        run(left.close())
    for store in stores:
        run(store.close())


def test_a_name_that_another_has_not_flushed_is_flushed_by_who_goes_by_it(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(path, monkeypatch)
    first, second = opened(path), opened(path)
    assert run(first.apply([Put(STEPS, step(0, line=line, body=b"0")) for line in "ab"])) is None
    # As if the first had linked its decision, and the power went before it could flush.
    disk.safe = {each for each in disk.safe if each.parent.name != "transactions"}
    assert run(second.apply([Put(STEPS, step(1, line="a", body=b"1"))])) is None
    disk.after_a_cut(tmp_path / "cut")
    left = opened(tmp_path / "cut")
    (rows,) = run(left.read([Scan(STEPS, ())]))
    assert [row.body for row in rows] == [b"0", b"1", b"0"]
    for store in (first, second, left):
        run(store.close())


# Forks


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks here")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_goes_on(store: FileBackend) -> None:
    assert run(store.apply([Create(STEPS, step(0))])) is None
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = 0 if run(store.apply([Create(STEPS, step(1))])) is None else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert run(store.apply([Create(STEPS, step(1))])) == 0
    assert len(run(store.read([Scan(STEPS, ())]))[0]) == 2
