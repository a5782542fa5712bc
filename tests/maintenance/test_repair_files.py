"""Stores whose own files are damaged: every flipped byte is found, and mended from a copy or salvaged."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import pytest
from msgspec.structs import astuple

import holdfast
from holdfast.backends.object_store.salvage import ShardRebuild
from holdfast.backends.runtime.drivers import run
from holdfast.backends.sqlite import salvage as salvaging
from holdfast.backends.sqlite.salvage import salvage
from holdfast.backends.urls import compose
from holdfast.engine.checked_rows import CHECKSUMS
from holdfast.errors import ConflictError, CorruptError, HoldfastError, TransientError, UnavailableError
from holdfast.maintenance.verify.heads import StoreHeads
from holdfast.store.store import Store
from tests.support.nightly import mostly_nightly

Truth = dict[str, dict[str, Any]]


def url(kind: str, folder: Path) -> str:
    return f"sqlite:///{folder}/store.db" if kind == "sqlite" else f"file://{folder}"


def everything(store: Store) -> Truth:
    return {
        thread.thread: {
            each.id: (store.thread(thread.thread).get(each.id).state, each.hash)
            for each in store.thread(thread.thread).log()
        }
        for thread in store.threads()
    }


def made(kind: str, folder: Path) -> tuple[Truth, StoreHeads]:
    """A small store, closed; what is in it, and its heads."""
    template, truth, heads = template_of(kind)
    shutil.copytree(template, folder)
    return truth, heads


@cache
def template_of(kind: str) -> tuple[Path, Truth, StoreHeads]:
    """A store that is made once for all tests, and copied for each."""
    folder = Path(_templates.name, kind)
    folder.mkdir()
    with holdfast.open(url(kind, folder)) as store:
        for turn in range(34):
            for thread in ("chat", "notes") if turn < 8 else ("chat",):
                store.thread(thread).put({"messages": [f"{thread} message {n}" for n in range(turn)], "turn": turn})
        store.thread("chat").tag("end")
        store.thread("chat").fork("side", at=store.thread("chat").log(limit=3)[-1].id)
        store.thread("chat").put({"x": 1}, branch="side")
        return folder, everything(store), store.maintenance.heads()


_templates = tempfile.TemporaryDirectory(prefix="holdfast-repair-")


def flipped(folder: Path, broken: Path, chance: Random, at: int | None = None) -> str:
    """A copy of a store with one bit flipped; says where."""
    shutil.rmtree(broken, ignore_errors=True)
    shutil.copytree(folder, broken)
    files = sorted(path for path in broken.rglob("*") if path.is_file())
    sizes = [path.stat().st_size for path in files]
    place = chance.randrange(sum(sizes)) if at is None else at
    for path, size in zip(files, sizes, strict=True):
        if place < size:
            data = bytearray(path.read_bytes())
            data[place] ^= 1 << chance.randrange(8)
            path.write_bytes(data)
            return f"{path.relative_to(broken)}, byte {place}"
        place -= size
    raise AssertionError


def check_flip(kind: str, folder: Path, broken: Path, truth: Truth, heads: StoreHeads, what: str, *, copy: bool) -> str:
    """A flipped bit is found, or makes no difference; and it is mended."""
    try:
        store = holdfast.open(url(kind, broken))
    except HoldfastError:
        return "does not open"
    with store:
        report = store.maintenance.verify(heads=heads)
        if report.ok:
            assert everything(store) == truth, what
            return "no difference"
        done = store.maintenance.repair(url(kind, folder) if copy else ())
        assert done.ok, (what, done.left)
        now = everything(store)
        if copy:
            assert now == truth, what
        else:
            assert all(truth[thread][id] == each for thread, found in now.items() for id, each in found.items()), what
        assert store.maintenance.verify(level="decode").damage == [], what
        return "mended"


@pytest.mark.torture
@pytest.mark.parametrize("copy", [True, False])
@pytest.mark.parametrize("kind", ["sqlite", "file"])
def test_a_flipped_bit_anywhere_is_found_and_mended(tmp_path: Path, kind: str, copy: bool) -> None:
    truth, heads = made(kind, tmp_path / "whole")
    chance = Random(f"{kind}{copy}")
    outcomes = []
    for _ in range(3 if kind == "sqlite" else 8):
        what = flipped(tmp_path / "whole", tmp_path / "broken", chance)
        outcomes.append(check_flip(kind, tmp_path / "whole", tmp_path / "broken", truth, heads, what, copy=copy))
    assert "mended" in outcomes, outcomes  # not every object of a store of files is still needed


@pytest.mark.torture
@pytest.mark.parametrize("shard", range(16))
@pytest.mark.parametrize("kind", ["sqlite", "file"])
def test_every_byte(tmp_path: Path, kind: str, shard: int) -> None:
    truth, heads = made(kind, tmp_path / "whole")
    size = sum(path.stat().st_size for path in (tmp_path / "whole").rglob("*") if path.is_file())
    chance = Random(shard)
    for place in range(shard, size, 16):
        what = flipped(tmp_path / "whole", tmp_path / "broken", chance, place)
        check_flip(kind, tmp_path / "whole", tmp_path / "broken", truth, heads, what, copy=bool(place % 2))


def broken_page(path: Path) -> None:
    """Damage a page in the middle of a file."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def test_the_damaged_file_is_kept(tmp_path: Path) -> None:
    made("sqlite", tmp_path / "whole")
    path = tmp_path / "whole" / "store.db"
    broken_page(path)
    before = path.read_bytes()
    done = salvage(str(path), CHECKSUMS.is_intact)
    assert Path(done.damaged).read_bytes() == before
    assert done.rows > 40
    with holdfast.open(f"sqlite:///{path}") as store:
        assert store.maintenance.verify().ok or store.maintenance.repair().ok


def test_a_file_that_another_process_has_open_is_left_alone(tmp_path: Path) -> None:
    made("sqlite", tmp_path / "whole")
    path = tmp_path / "whole" / "store.db"
    code = (
        "import sys, holdfast\n"
        "store = holdfast.open(sys.argv[1])\n"
        "store.threads()\n"
        "print('open', flush=True)\n"
        "sys.stdin.read()\n"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", code, f"sqlite:///{path}"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert other.stdout is not None
        assert other.stdout.readline() == "open\n"
        with pytest.raises(ConflictError, match="another process"):
            salvage(str(path), CHECKSUMS.is_intact)
    finally:
        other.communicate("")
    assert salvage(str(path), CHECKSUMS.is_intact).holes == []


@pytest.mark.parametrize("step", ["_free_name", "link", "flush_folder", "replace"])
def test_an_interrupted_salvage_leaves_the_old_file_or_the_new(
    tmp_path: Path, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    truth, _ = made("sqlite", tmp_path / "whole")
    path = tmp_path / "whole" / "store.db"

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr({"link": os, "replace": Path}.get(step, salvaging), step, interrupted)
        with pytest.raises(KeyboardInterrupt):
            salvage(str(path), CHECKSUMS.is_intact)
    with holdfast.open(f"sqlite:///{path}") as store:
        assert everything(store) == truth
    salvage(str(path), CHECKSUMS.is_intact)
    with holdfast.open(f"sqlite:///{path}") as store:
        assert everything(store) == truth
    assert not list(path.parent.glob("*.salvage*"))


_PAGE = 4096


@pytest.mark.parametrize(
    ("start", "stop"),
    mostly_nightly(
        [(0, 1), (16, 24), (28, 32), (0, _PAGE), (-1, -1)], daily=[(16, 24), (28, 32), (0, _PAGE), (-1, -1)]
    ),
)
def test_a_file_without_its_beginning_or_its_list_of_tables_is_salvaged(tmp_path: Path, start: int, stop: int) -> None:
    truth, _ = made("sqlite", tmp_path / "whole")
    path = tmp_path / "whole" / "store.db"
    data = bytearray(path.read_bytes())
    pages = [slice(start, stop)]
    if start < 0:  # all that the list of tables takes but its beginning
        places = range(_PAGE, len(data), _PAGE)
        pages = [slice(place, place + _PAGE) for place in places if b"CREATE TABLE" in data[place : place + _PAGE]]
    for page in pages:
        data[page] = bytes(255 - byte for byte in data[page])
    path.write_bytes(data)
    with pytest.raises(CorruptError):
        holdfast.open(f"sqlite:///{path}")
    told = salvage(str(path), CHECKSUMS.is_intact, into=str(tmp_path / "other.db"))
    assert path.read_bytes() == data
    done = salvage(str(path), CHECKSUMS.is_intact)
    assert (told.rows, told.refused) == (done.rows, done.refused)
    assert Path(done.damaged).read_bytes() == data
    with holdfast.open(f"sqlite:///{path}") as store:
        assert store.maintenance.repair().ok
        assert everything(store) == truth


@pytest.mark.parametrize("data", [b"short", b"something else, and long\n" * 1_000])
def test_a_file_that_is_no_store_is_left_alone(tmp_path: Path, data: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(salvaging, "_MAX_FAILED", 500)  # of as many ranges as there are, each fails
    path = tmp_path / "store.db"
    path.write_bytes(data)
    with pytest.raises(CorruptError, match="nothing in the file can be read"):
        salvage(str(path), CHECKSUMS.is_intact)
    assert path.read_bytes() == data
    assert [each.name for each in tmp_path.iterdir()] == ["store.db"]


def contents(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and not path.name.endswith("-shm")
    }


def break_something(kind: str, folder: Path) -> None:
    if kind == "sqlite":
        data = bytearray((folder / "store.db").read_bytes())
        for page in range(10, 14):
            data[page * _PAGE : page * _PAGE + 8] = bytes(8)
        (folder / "store.db").write_bytes(data)
    else:
        entry = next(folder.glob("tenant=/line=chat/log/*.00000001.*/00"))
        entry.write_bytes(entry.read_bytes()[:-1])


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("kind", "copy"),
    mostly_nightly(
        list(itertools.product(["sqlite", "file"], [True, False])), daily=[("sqlite", False), ("file", True)]
    ),
)
def test_a_dry_run_tells_the_same_and_changes_nothing(tmp_path: Path, kind: str, copy: bool) -> None:
    truth, _ = made(kind, tmp_path / "whole")
    shutil.copytree(tmp_path / "whole", tmp_path / "broken")
    break_something(kind, tmp_path / "broken")
    source = url(kind, tmp_path / "whole") if copy else ()
    with holdfast.open(url(kind, tmp_path / "broken")) as store:
        before = contents(tmp_path / "broken")
        told = store.maintenance.repair(source, dry_run=True)
        assert contents(tmp_path / "broken") == before
        done = store.maintenance.repair(source)
        assert told.dry_run
        assert told.files is not None
        assert done.files is not None
        assert (astuple(told.files)[:2], told.lost, told.rebuilt) == (astuple(done.files)[:2], done.lost, done.rebuilt)
        for one, other in zip(told.repaired, done.repaired, strict=True):
            assert (one.thread, one.restored, one.rebuilt, one.quarantined, one.left) == (
                other.thread, other.restored, other.rebuilt, other.quarantined, other.left
            )  # fmt: skip
        if copy:
            assert done.ok
            assert everything(store) == truth
        found = store.maintenance.verify(level="decode").findings
        assert [each.code for each in found] == (["lost-rows"] if kind == "sqlite" and not copy else [])
        again = store.maintenance.repair(source)
        assert (again.files, again.repaired) == (None, [])


def chat(folder: Path, pattern: str) -> Path:
    return next(folder.glob(f"tenant=/line=chat/{pattern}"))


@pytest.mark.parametrize(
    ("how", "pattern"),
    mostly_nightly(
        list(itertools.product(["flipped", "cut", "missing"], ["birth", "fold/*", "log/*.00000001.*/01"])),
        daily=[("flipped", "birth"), ("cut", "fold/*"), ("missing", "log/*.00000001.*/01")],
    ),
)
def test_a_damaged_or_missing_file_of_a_thread_is_found_and_mended(tmp_path: Path, pattern: str, how: str) -> None:
    truth, _ = made("file", tmp_path / "whole")
    shutil.copytree(tmp_path / "whole", tmp_path / "broken")
    path = chat(tmp_path / "broken", pattern)
    data = path.read_bytes()
    if how == "missing":
        path.unlink()
    else:
        data = data[:90] if how == "cut" else data[:67] + bytes([data[67] ^ 1]) + data[68:]
        path.write_bytes(data)
    with holdfast.open(url("file", tmp_path / "broken")) as store:
        backend: Any = store._engine.context.backend
        assert run(backend.check()) != []
        done = store.maintenance.repair(url("file", tmp_path / "whole"))
        assert done.ok
        assert everything(store) == truth
        assert store.maintenance.verify(level="decode").findings == []
    if how != "missing":
        kept = tmp_path / "broken" / "damaged"
        assert data in [each.read_bytes() for each in kept.rglob("*") if each.is_file()]


def test_what_was_deleted_before_a_thread_was_made_anew_does_not_come_back(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    with holdfast.open(url("file", tmp_path / "store") + "?grace=10") as store:
        backend: Any = store._engine.context.stored
        for number in range(40):
            store.thread("chat").put({"secret": number}, id=f"old {number}")
        store.thread("chat").delete()
        opened = backend._opened()
        run(backend._run_once(lambda: opened.garbage_collector.tidy(-1.0)))
        store.thread("chat").put({"x": 1}, id="new 1")
        store.thread("chat").put({"x": 2}, id="new 2")
        truth = everything(store)
    birth = chat(tmp_path / "store", "birth")
    birth.write_bytes(birth.read_bytes()[:-1])
    with holdfast.open(url("file", tmp_path / "store")) as store:
        assert store.maintenance.repair().ok
        now = everything(store)["chat"]
        assert now.items() <= truth["chat"].items()
        assert store.maintenance.verify(level="decode").findings == []


@pytest.mark.nightly
def test_a_writer_of_another_process_loses_nothing_that_it_was_told_is_stored(tmp_path: Path) -> None:
    truth, _ = made("file", tmp_path / "whole")
    entry = chat(tmp_path / "whole", "log/*.00000001.*/01")
    with (
        holdfast.open(url("file", tmp_path / "whole")) as other,
        holdfast.open(url("file", tmp_path / "whole")) as store,
    ):
        other.thread("chat").put({"before": 1}, id="before")
        entry.write_bytes(entry.read_bytes()[:-1])
        assert store.maintenance.repair(()).files is not None
        with pytest.raises(HoldfastError):
            other.thread("chat").put({"after": 1}, id="after")
        assert "after" not in [each.id for each in store.thread("chat").log().all()]
    with holdfast.open(url("file", tmp_path / "whole")) as store:
        store.thread("chat").put({"later": 1}, id="later")
        assert store.thread("chat").get("later").state == {"later": 1}
        assert len(everything(store)["notes"]) == len(truth["notes"])


def test_of_a_repair_that_was_cut_short_before_the_switch_nothing_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made("file", tmp_path / "whole")
    entry = chat(tmp_path / "whole", "log/*.00000001.*/01")
    entry.write_bytes(entry.read_bytes()[:-1])

    async def interrupted(*_: object) -> None:
        raise UnavailableError("the power is out")

    with holdfast.open(url("file", tmp_path / "whole")) as store:
        readable = store.threads()
        with monkeypatch.context() as patched:
            patched.setattr(ShardRebuild, "_write_first_object", interrupted)
            with pytest.raises(UnavailableError):
                store.maintenance.repair()
    with holdfast.open(url("file", tmp_path / "whole")) as store:
        assert store.threads() == readable
        assert store.maintenance.repair().ok
        assert store.maintenance.verify(level="decode").findings == []


@pytest.mark.parametrize("kind", ["mirror", "write-behind"])
def test_a_store_with_a_copy_is_repaired_from_that_and_the_copy_stays_whole(tmp_path: Path, kind: str) -> None:
    local, remote = f"sqlite:///{tmp_path}/store.db", f"sqlite:///{tmp_path}/copy.db"
    both = compose(kind, local=local, remote=remote)
    with holdfast.open(both) as store:
        for number in range(60):
            store.thread("chat").put({"n": number, "data": Random(number).randbytes(200)})  # it cannot be compressed
        truth = everything(store)
    path = tmp_path / "store.db"
    data = path.read_bytes()
    place = data.index(Random(30).randbytes(200)[:50]) // _PAGE * _PAGE
    path.write_bytes(data[:place] + bytes(_PAGE) + data[place + _PAGE :])
    with holdfast.open(both) as store:
        done = store.maintenance.repair()
        assert done.ok
        assert done.lost == []
        assert everything(store) == truth
    for each in (local, remote):
        with holdfast.open(each, read_only=True) as store:
            assert everything(store) == truth
            assert store.maintenance.verify(level="decode").damage == []


def test_what_was_written_in_a_transaction_stays_and_what_was_void_does_not(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    with holdfast.open(url("file", tmp_path / "store")) as store:
        for number in range(3):
            with store.transaction() as together:
                together.put("chat", {"n": number}, id=f"{number}")
                together.put("notes", {"n": number}, id=f"{number}")
        truth = everything(store)
    for thread in ("chat", "notes"):
        last = max((tmp_path / "store").glob(f"tenant=/line={thread}/log/*/*"))
        shutil.copy(last, last.with_name("30"))  # far behind the end: something between is missing
    decisions = sorted(each.name for each in (tmp_path / "store" / "transactions").iterdir())
    assert len(decisions) == 3
    for name in decisions:
        broken = tmp_path / name
        shutil.copytree(tmp_path / "store", broken)
        decision = broken / "transactions" / name
        data = b"?" + decision.read_bytes()[1:]
        decision.write_bytes(data)
        with holdfast.open(url("file", broken)) as store:
            done = store.maintenance.repair()
            assert done.files is not None
            assert len(done.files.damaged) == 2
            assert done.ok
            now = everything(store)
            assert all(found.items() <= truth[thread].items() for thread, found in now.items())
            assert {thread: list(found) for thread, found in now.items()} in (
                {}, *({"chat": kept, "notes": kept} for kept in [list(truth["chat"])[at:] for at in range(4)])
            )  # fmt: skip
            assert store.maintenance.verify(level="decode").findings == []
        assert data in [each.read_bytes() for each in broken.rglob("*") if each.is_file()]


def test_a_thread_with_a_long_name_of_which_nothing_can_be_read(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    name = "long " * 60
    with holdfast.open(url("file", tmp_path / "store")) as store:
        store.thread(name).put({"x": 1})
        store.thread("chat").put({"x": 1})
    birth = next(birth for birth in (tmp_path / "store").glob("tenant=/*/birth") if "chat" not in str(birth))
    data = birth.read_bytes()[:90]
    birth.write_bytes(data)
    with holdfast.open(url("file", tmp_path / "store")) as store:
        done = store.maintenance.repair()
        assert done.files is not None
        assert [each.thread for each in store.threads()] == ["chat"]
        assert store.maintenance.verify(level="decode").findings == []
    kept = tmp_path / "store" / "damaged"
    assert data in [each.read_bytes() for each in kept.rglob("birth")]


def test_a_file_that_cannot_be_read_and_is_open_elsewhere_is_left_alone(tmp_path: Path) -> None:
    made("sqlite", tmp_path / "whole")
    path = tmp_path / "whole" / "store.db"
    code = (
        "import sys, holdfast\n"
        "store = holdfast.open(sys.argv[1])\n"
        "store.threads()\n"
        "print('open', flush=True)\n"
        "sys.stdin.read()\n"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", code, f"sqlite:///{path}"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert other.stdout is not None
        assert other.stdout.readline() == "open\n"
        with path.open("r+b") as file:
            file.write(bytes(100))
        with pytest.raises(ConflictError, match="another process"):
            salvage(str(path), CHECKSUMS.is_intact)
    finally:
        other.kill()
        other.communicate()


def test_a_full_disk_leaves_the_store_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    truth, _ = made("sqlite", tmp_path / "whole")
    path = tmp_path / "whole" / "store.db"
    before = path.read_bytes()

    async def full(*_: object) -> None:
        raise TransientError("the disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(salvaging._Copy, "_flush", full)
        with pytest.raises(TransientError):
            salvage(str(path), CHECKSUMS.is_intact)
    assert path.read_bytes() == before
    with holdfast.open(f"sqlite:///{path}") as store:
        assert everything(store) == truth
    salvage(str(path), CHECKSUMS.is_intact)
    assert not list(path.parent.glob("*.salvage*"))


@pytest.mark.parametrize("swaps", mostly_nightly([2, 16], daily=[2]))
def test_pages_that_changed_places_are_salvaged_around(tmp_path: Path, swaps: int) -> None:
    truth, _ = made("sqlite", tmp_path / "whole")
    data = (tmp_path / "whole" / "store.db").read_bytes()
    pages = [data[at : at + _PAGE] for at in range(0, len(data), _PAGE)]
    chance = Random(4)
    for number in range(swaps):
        path = tmp_path / f"{number}.db"
        one, other = chance.sample(range(2, len(pages)), 2)
        swapped = list(pages)
        swapped[one], swapped[other] = pages[other], pages[one]
        path.write_bytes(b"".join(swapped))
        salvage(str(path), CHECKSUMS.is_intact)
        with holdfast.open(f"sqlite:///{path}") as store:
            assert store.maintenance.repair().ok, (one, other)
            for thread, found in everything(store).items():
                assert found.items() <= truth[thread].items(), (one, other)
