"""Files and objects: written completely or not at all, listed, and deleted with care."""

from __future__ import annotations

import asyncio
import errno
import itertools
import json
import os
import socket
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import obstore
import pytest
from langchain_core.messages import HumanMessage

from holdfast import snapshots
from holdfast.agents.snapshots.container import HEAD_BYTES
from holdfast.agents.snapshots.locations import PlainDirectory, SnapshotBucket, locate
from holdfast.backends.object_store.object_storage import ObjectInfo
from holdfast.backends.runtime.drivers import run
from holdfast.errors import (
    ConfigError,
    DeniedError,
    SnapshotCorruptError,
    SnapshotExistsError,
    SnapshotInvalidError,
    SnapshotNotFoundError,
    SnapshotTooLargeError,
    TransientError,
    UnavailableError,
)
from tests import servers
from tests.snapshots.kit import forged
from tests.support.cases import case

HELLO = [HumanMessage("hello")]
NUMBERS = itertools.count()


@cache
def bucket() -> tuple[str, dict[str, Any]]:
    return servers.s3()


@pytest.fixture(params=["path", "text", "url", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Any, dict[str, Any]]:
    """Where snapshots may lie, and the options to get there."""
    match request.param:
        case "path":
            return tmp_path, {}
        case "text":
            return str(tmp_path), {}
        case "url":
            return f"file://{tmp_path}", {}
    url, options = bucket()
    return f"{url}/{os.getpid()}-{next(NUMBERS)}/deep", options


def under(folder: Any, name: str) -> Any:
    return folder / name if isinstance(folder, Path) else f"{folder}/{name}"


def test_it_is_there_and_listed_and_gone(place: tuple[Any, dict[str, Any]]) -> None:
    folder, options = place
    one, two = under(folder, "one.hfsnap"), under(folder, "two and a half.hfsnap")
    assert not snapshots.exists(one, **options)
    for look in (snapshots.info, snapshots.verify, snapshots.restore, snapshots.delete):
        with pytest.raises(SnapshotNotFoundError):
            look(one, **options)
    first = snapshots.snapshot(HELLO, one, description="first", **options)
    second = snapshots.snapshot([], two, **options)
    assert snapshots.exists(one, **options)
    assert snapshots.info(one, **options) == first == snapshots.verify(one, **options)
    assert snapshots.restore(one, **options) == HELLO
    listed = snapshots.list(folder, **options)
    assert [(each.name, each.info, each.problem) for each in listed] == [
        ("one.hfsnap", first, ""),
        ("two and a half.hfsnap", second, ""),
    ]
    assert [each.size for each in listed] == [first.size, second.size]
    assert [each.source for each in listed] == [first.source, second.source]
    page = snapshots.list(folder, limit=1, **options)
    assert [each.name for each in page] == ["one.hfsnap"]
    assert list(page.all()) == listed
    snapshots.delete(one, **options)
    assert [each.name for each in snapshots.list(folder, **options)] == ["two and a half.hfsnap"]


def test_what_is_there_is_not_overwritten_unasked(place: tuple[Any, dict[str, Any]]) -> None:
    folder, options = place
    target = under(folder, "x.hfsnap")
    first = snapshots.snapshot(HELLO, target, **options)
    with pytest.raises(SnapshotExistsError, match="overwrite"):
        snapshots.snapshot([], target, **options)
    assert snapshots.verify(target, **options) == first
    second = snapshots.snapshot([], target, overwrite=True, **options)
    assert snapshots.verify(target, **options) == second
    assert [each.name for each in snapshots.list(folder, **options)] == ["x.hfsnap"]


# Objects --------------------------------------------------------------------------------------------------------


def test_asyncio_reaches_buckets_too() -> None:
    url, options = bucket()
    folder = f"{url}/{os.getpid()}-{next(NUMBERS)}"

    async def work() -> None:
        info = await snapshots.asnapshot(HELLO, f"{folder}/x.hfsnap", **options)
        assert await snapshots.arestore(f"{folder}/x.hfsnap", **options) == HELLO
        assert snapshots.info(f"{folder}/x.hfsnap", **options) == info  # a sync call inside of a loop
        assert [each.info for each in snapshots.list(folder, **options)] == [info]
        snapshots.delete(f"{folder}/x.hfsnap", **options)
        with pytest.raises(SnapshotNotFoundError):
            snapshots.delete(f"{folder}/x.hfsnap", force=True, **options)

    asyncio.run(work())


def test_info_reads_only_the_start_of_an_object(monkeypatch: pytest.MonkeyPatch) -> None:
    url, options = bucket()
    target = f"{url}/{os.getpid()}-{next(NUMBERS)}.hfsnap"
    snapshots.snapshot([HumanMessage(os.urandom(200_000).hex())], target, **options)
    asked: list[int] = []
    real = obstore.get_range_async

    def counted(*args: Any, length: int, **kwargs: Any) -> Any:
        asked.append(length)
        return real(*args, length=length, **kwargs)

    monkeypatch.setattr(obstore, "get_range_async", counted)
    assert snapshots.info(target, **options).size > 200_000
    assert asked == [HEAD_BYTES]


def test_what_is_damaged_in_a_bucket_is_shown_and_deleted_only_by_force() -> None:
    url, options = bucket()
    folder = f"{url}/{os.getpid()}-{next(NUMBERS)}"
    for name, data in (("bad.hfsnap", b"not a snapshot"), ("empty.hfsnap", b""), ("other.txt", b"x")):
        run(locate(f"{folder}/{name}", options).write(data, overwrite=True))
    assert [(each.name, bool(each.problem)) for each in snapshots.list(folder, **options)] == [
        ("bad.hfsnap", True),
        ("empty.hfsnap", True),
    ]
    for name in ("bad.hfsnap", "empty.hfsnap"):
        with pytest.raises(SnapshotInvalidError, match="force"):
            snapshots.delete(f"{folder}/{name}", **options)
        snapshots.delete(f"{folder}/{name}", force=True, **options)
    assert snapshots.list(folder, **options) == []


def test_an_object_whose_name_is_none_is_listed_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    url, options = bucket()
    folder = f"{url}/{os.getpid()}-{next(NUMBERS)}"
    snapshots.snapshot(HELLO, f"{folder}/x.hfsnap", **options)

    async def listed(self: Any, prefix: str) -> list[ObjectInfo]:
        return [ObjectInfo("turned\u202ename.hfsnap", 1, 0.0), ObjectInfo("x.hfsnap", 1, 0.0)]

    monkeypatch.setattr(SnapshotBucket, "list_objects", listed)
    bad, other = snapshots.list(folder, **options)
    assert "control characters" in bad.problem
    assert bad.source.endswith("/turned\u202ename.hfsnap")
    assert "should have" in other.problem


TRICKS = [
    *("../x.hfsnap", "a/../../x.hfsnap", "./x.hfsnap", "a//x.hfsnap"),
    *("%2e%2e/x.hfsnap", "a%00.hfsnap", "a\nb.hfsnap"),
]


def test_tricks_in_names_of_objects_are_refused(subtests: pytest.Subtests) -> None:
    for name in TRICKS:
        with case(subtests, name):
            url, options = bucket()
            for look in (snapshots.info, snapshots.exists, snapshots.delete, snapshots.restore):
                with pytest.raises(SnapshotInvalidError):
                    look(f"{url}/{name}", **options)
            with pytest.raises(SnapshotInvalidError):
                snapshots.snapshot([], f"{url}/{name}", **options)
            with pytest.raises(SnapshotInvalidError):
                snapshots.list(f"{url}/{name}", **options)


def test_a_service_that_does_not_answer_is_told() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        options: dict[str, Any] = {
            "endpoint": f"http://127.0.0.1:{taken.getsockname()[1]}",
            "access_key_id": "a",
            "secret_access_key": "b",
            "timeout": 0.3,
        }
        for look in (snapshots.info, snapshots.exists):
            with pytest.raises(TransientError, match="does not answer"):
                look("s3://bucket/x.hfsnap", **options)
        with pytest.raises(TransientError, match="does not answer"):
            snapshots.snapshot([], "s3://bucket/x.hfsnap", **options)


def test_secrets_of_a_bucket_are_not_shown() -> None:
    url, options = bucket()
    query = "&".join(f"{name}={value}" for name, value in options.items())
    target = f"{url}/{os.getpid()}-{next(NUMBERS)}.hfsnap?{query}"
    info = snapshots.snapshot([], target)
    assert "secret" not in info.source
    assert options["secret_access_key"] not in info.source
    assert snapshots.exists(target)


# Names ----------------------------------------------------------------------------------------------------------


WRONG_NAMES: list[tuple[Any, ...]] = [
    ("", SnapshotInvalidError, "neither"),
    (5, SnapshotInvalidError, "neither"),
    (None, SnapshotInvalidError, "neither"),
    (b"x.hfsnap", SnapshotInvalidError, "neither"),
    ("a\0b.hfsnap", SnapshotInvalidError, "NUL"),
    ("file:a%00b.hfsnap", SnapshotInvalidError, "NUL"),
    ("x.json", SnapshotInvalidError, "must end in .hfsnap"),
    ("dir/.hfsnap", SnapshotInvalidError, "must end in .hfsnap"),
    (".hfsnap", SnapshotInvalidError, "must end in .hfsnap"),
    ("s3://bucket/x", SnapshotInvalidError, "must end in .hfsnap"),
    ("ftp://host/x.hfsnap", ConfigError, "cannot be stored at ftp"),
    ("sqlite:///x.hfsnap", ConfigError, "cannot be stored at sqlite"),
    ("file://host/x.hfsnap", ConfigError, "does not name a file"),
    ("file:x.hfsnap?mode=w&a=.hfsnap", ConfigError, "does not name a file"),
    ("s3:///x.hfsnap", SnapshotInvalidError, "empty parts"),
    ("s3://x.hfsnap", SnapshotInvalidError, "does not name an object"),
    ("missing/x.hfsnap", ConfigError, "no such directory"),
    ("x" * 300 + ".hfsnap", SnapshotInvalidError, "cannot be written"),
]


def test_a_wrong_name_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests) -> None:
    monkeypatch.chdir(tmp_path)
    for target, error, why in WRONG_NAMES:
        with case(subtests, target, error, why):
            with pytest.raises(error, match=why):
                snapshots.snapshot([], target)
            assert list(tmp_path.iterdir()) == []


def test_what_is_too_large_is_not_written(tmp_path: Path) -> None:
    path = tmp_path / "x.hfsnap"
    with pytest.raises(SnapshotTooLargeError, match="limit"):
        snapshots.snapshot(HELLO, path, limit=10)
    assert not path.exists()
    with pytest.raises(SnapshotInvalidError, match="limit"):
        snapshots.snapshot(HELLO, path, limit=True)


def test_a_file_takes_no_options(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="endpoint"):
        snapshots.snapshot([], tmp_path / "x.hfsnap", endpoint="http://localhost")


def test_a_path_with_a_scheme_in_it_is_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("s3:").mkdir()
    snapshots.snapshot([], Path("s3://x.hfsnap"))
    assert snapshots.exists(Path("s3:/x.hfsnap"))


def test_links_directories_and_pipes_are_left_alone(tmp_path: Path) -> None:
    target = tmp_path / "real.hfsnap"
    snapshots.snapshot(HELLO, target)
    outside = tmp_path / "precious.txt"
    outside.write_text("x")
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "link.hfsnap").symlink_to(target)
    (folder / "out.hfsnap").symlink_to(outside)
    (folder / "directory.hfsnap").mkdir()
    os.mkfifo(folder / "pipe.hfsnap")
    (folder / "nowhere.hfsnap").symlink_to("nothing")
    listed = snapshots.list(folder)
    assert len(listed) == 5
    assert all(each.info is None and "not a file" in each.problem for each in listed)
    for name in ("link", "out", "directory", "pipe", "nowhere"):
        for force in (False, True):
            with pytest.raises((SnapshotInvalidError, SnapshotNotFoundError)):
                snapshots.delete(folder / f"{name}.hfsnap", force=force)
    assert target.exists()
    assert outside.exists()
    assert snapshots.restore(folder / "link.hfsnap") == HELLO
    for name in ("directory", "pipe"):
        with pytest.raises(SnapshotCorruptError, match="not a file"):
            snapshots.info(folder / f"{name}.hfsnap")
        assert not snapshots.exists(folder / f"{name}.hfsnap")


def test_only_snapshots_are_deleted(tmp_path: Path) -> None:
    other = tmp_path / "notes.txt"
    other.write_bytes(forged({}))
    with pytest.raises(SnapshotInvalidError, match="must end in"):
        snapshots.delete(other, force=True)
    bad = tmp_path / "bad.hfsnap"
    bad.write_bytes(b"no")
    with pytest.raises(SnapshotInvalidError, match="force=True"):
        snapshots.delete(bad)
    snapshots.delete(bad, force=True)
    assert other.exists()
    assert not bad.exists()


def test_what_is_deleted_meanwhile_is_not_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b", "c"):
        snapshots.snapshot(HELLO, tmp_path / f"{name}.hfsnap")
    scan = os.scandir

    class Scan:
        """A directory of which a file goes while it is read."""

        def __init__(self, path: Path) -> None:
            with scan(path) as entries:
                self._found = list(entries)

        def __enter__(self) -> Any:
            (tmp_path / "b.hfsnap").unlink()
            return iter(self._found)

        def __exit__(self, *error: object) -> None: ...

    monkeypatch.setattr(os, "scandir", Scan)
    assert [each.name for each in snapshots.list(tmp_path)] == ["a.hfsnap", "c.hfsnap"]
    monkeypatch.undo()

    async def listed(self: Any, prefix: str) -> list[ObjectInfo]:
        return [
            ObjectInfo("a.hfsnap", snapshots.info(tmp_path / "a.hfsnap").size, 0.0),
            ObjectInfo("b.hfsnap", 9, 0.0),
        ]

    monkeypatch.setattr(PlainDirectory, "list_objects", listed)
    assert [(each.name, each.problem) for each in snapshots.list(tmp_path)] == [("a.hfsnap", "")]


def test_a_file_of_a_time_that_no_calendar_has_is_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    size = snapshots.snapshot(HELLO, tmp_path / "a.hfsnap").size

    async def listed(self: Any, prefix: str) -> list[ObjectInfo]:
        return [ObjectInfo("a.hfsnap", size, 1e15)]

    monkeypatch.setattr(PlainDirectory, "list_objects", listed)
    (entry,) = snapshots.list(tmp_path)
    assert entry.modified.year == 1970
    assert entry.info is not None


def test_what_is_cut_off_is_listed_as_such(tmp_path: Path) -> None:
    path = tmp_path / "cut.hfsnap"
    snapshots.snapshot(HELLO, path)
    path.write_bytes(path.read_bytes()[:-1])
    (listed,) = snapshots.list(tmp_path)
    assert "should have" in listed.problem
    with pytest.raises(SnapshotNotFoundError, match="directory"):
        snapshots.list(path)
    with pytest.raises(SnapshotNotFoundError, match="directory"):
        snapshots.list(tmp_path / "missing")


# Durability -----------------------------------------------------------------------------------------------------


def test_it_is_flushed_before_it_has_its_name_and_then_its_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, seen = tmp_path / "x.hfsnap", []
    real = os.fsync

    def fsync(file: int) -> None:
        seen.append((str(Path(f"/proc/self/fd/{file}").readlink()) if Path("/proc").exists() else "", path.exists()))
        real(file)

    monkeypatch.setattr(os, "fsync", fsync)
    for overwrite in (False, True):
        seen.clear()
        snapshots.snapshot(HELLO, path, overwrite=overwrite)
        assert len(seen) == 2
        assert seen[0][1] is overwrite
        assert seen[1][1]
        if seen[0][0]:
            assert seen[0][0].endswith(".part")
            assert Path(seen[1][0]) == tmp_path.resolve()


@pytest.mark.parametrize("step", ["fsync", "link", "replace"])
def test_whatever_fails_nothing_is_left_behind(step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.hfsnap"
    first = snapshots.snapshot(HELLO, path) if step == "replace" else None

    def fail(*args: Any, **kwargs: Any) -> None:
        raise OSError(errno.ENOSPC, "no room")

    monkeypatch.setattr(Path if step == "replace" else os, step, fail)
    with pytest.raises(UnavailableError, match="no room"):
        snapshots.snapshot([], path, overwrite=step == "replace")
    monkeypatch.undo()
    assert [each.info for each in snapshots.list(tmp_path)] == ([] if first is None else [first])
    assert len(list(tmp_path.iterdir())) == (0 if first is None else 1)


def test_a_file_system_without_links_will_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_links(*args: Any) -> None:
        raise OSError(errno.EPERM, "no links here")

    monkeypatch.setattr(os, "link", no_links)
    path = tmp_path / "x.hfsnap"
    first = snapshots.snapshot(HELLO, path)
    with pytest.raises(SnapshotExistsError):
        snapshots.snapshot([], path)
    assert snapshots.verify(path) == first
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("call", ["open", "scandir", "stat"])
def test_what_this_user_may_not_do_is_told(call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(*args: Any, **kwargs: Any) -> None:
        raise PermissionError(errno.EACCES, "not for you")

    monkeypatch.setattr(Path if call == "stat" else os, call, denied)
    look: Any = {"open": snapshots.info, "scandir": snapshots.list, "stat": snapshots.exists}[call]
    with pytest.raises(DeniedError, match="not for you"):
        look(tmp_path / "x.hfsnap")


KILLED = """
import json, os, sys
from pathlib import Path
from holdfast.backends.runtime.drivers import run
from holdfast.agents.snapshots.locations import locate

folder, overwrite = Path(sys.argv[1]), sys.argv[2] == "overwrite"
path = folder / "x.hfsnap"
left = -1

def step(event, args):
    global left
    if left >= 0 and event in ("open", "os.link", "os.rename", "os.remove", "os.fsync"):
        left -= 1
        if left < 0:
            os.kill(os.getpid(), 9)

real = os.fsync
def fsync(file):
    step("os.fsync", ())
    real(file)

os.fsync = fsync
sys.addaudithook(step)
found = []
while True:
    for each in folder.iterdir():
        each.unlink()
    if overwrite:
        path.write_bytes(b"old" * 1000)
    child = os.fork()
    if not child:
        left = len(found)
        run(locate(path, {}).write(b"new" * 1000, overwrite=overwrite))
        os._exit(0)
    killed = os.waitpid(child, 0)[1] != 0
    found.append(path.read_bytes().decode() if path.exists() else "")
    if not killed:
        break
sys.stdout.write(json.dumps(found))
"""


@pytest.mark.parametrize("way", ["create", "overwrite"])
def test_killed_at_any_step_it_is_the_old_one_or_the_new_one(way: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path), way], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    before, after = "old" * 1000 if way == "overwrite" else "", "new" * 1000
    assert len(found) > 4
    changed = found.index(after)
    assert found == [before] * changed + [after] * (len(found) - changed)
    assert 2 <= changed < len(found) - 1
