"""Verifying finds every flipped byte in the files of a small store, except where a SQLite file has no content: in free
space, in counters and in what is left to other tools."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from random import Random

import pytest

import holdfast
from holdfast.backends.interface import Row, Scan
from holdfast.backends.registry import backend_for
from holdfast.backends.runtime.drivers import run
from holdfast.backends.sqlite.backend import SQLiteBackend
from holdfast.backends.tables import TABLES
from holdfast.errors import HoldfastError
from holdfast.maintenance.verify.heads import StoreHeads
from tests.damaged import flipped
from tests.engine.lines import store_on
from tests.support.nightly import mostly_nightly


def url(kind: str, folder: Path) -> str:
    return f"sqlite:///{folder}/store.db" if kind == "sqlite" else f"file://{folder}"


def made(kind: str, folder: Path) -> StoreHeads:
    """A thread with two branches, folded states, a large value, a name and a tag; and in SQLite, free pages."""
    folder.mkdir()
    ticks = count(1_700_000_000_000_000_000, 1_000_000)
    backend = run(backend_for(url(kind, folder)).open(url(kind, folder)))
    with store_on(backend, fold_every=4, clock=ticks.__next__) as store:
        for turn in range(6):
            store.thread("chat").put({"messages": [f"message {n}" for n in range(turn)], "turn": turn}, id=str(turn))
        store.thread("chat").put({"large": Random(1).randbytes(70_000)}, id="6")
        store.thread("chat").fork("side", at="3")
        store.thread("chat").put({"x": 1}, branch="side", id="7")
        store.thread("chat").label("good", "2")
        store.thread("chat").tag("end", "7")
        if kind == "sqlite":
            for turn in range(6):
                store.thread("gone").put({"text": Random(turn).randbytes(20_000)})
            store.thread("gone").delete()
        return store.maintenance.heads()


def outcome(kind: str, folder: Path, heads: StoreHeads | None) -> str:
    """What becomes of a damaged store: `not opened`, `found` or `sound`."""
    try:
        store = holdfast.open(url(kind, folder), read_only=True)
    except HoldfastError:
        return "not opened"
    with store:
        report = store.maintenance.verify(heads=heads)
        return "found" if not report.ok or (heads is not None and report.findings) else "sound"


def flips(folder: Path, places: Iterator[tuple[Path, int]]) -> Iterator[str]:
    """Flip a bit at each place in turn; says where."""
    for path, place in places:
        before = path.read_bytes()
        path.write_bytes(before[:place] + bytes([before[place] ^ (1 << place % 8)]) + before[place + 1 :])
        yield f"{path.relative_to(folder)}, byte {place}"
        path.write_bytes(before)


def files_in(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.stat().st_size)


def spread(folder: Path, each: int) -> Iterator[tuple[Path, int]]:
    """Places in each file, or in each page of a database: the first, the last, and some between."""
    chance = Random(1)
    for path in files_in(folder):
        size = path.stat().st_size
        page = 4096 if path.suffix == ".db" else size
        for start in range(0, size, page):
            for place in {0, page - 1, *(chance.randrange(page) for _ in range(each - 2))}:
                yield path, start + place


HEADER = range(100)
"""The bytes of a SQLite file that say what it is."""


def rows_in(folder: Path) -> list[list[Row]]:
    """All rows of a SQLite file as they are stored, by their keys and by every index."""
    scans = [Scan(table, (), by=by) for table in TABLES for by in ("", *table.indexes)]
    backend = run(SQLiteBackend.open(url("sqlite", folder), read_only=True))
    try:
        return run(backend.read(scans))
    finally:
        run(backend.close())


def check(kind: str, folder: Path, places: Iterator[tuple[Path, int]]) -> Counter[str]:
    """Flip a bit at each place, and count the outcomes. Only where nothing is stored may it be sound."""
    seen = Counter[str]()
    content = rows_in(folder) if kind == "sqlite" else []
    for where in flips(folder, places):
        found = outcome(kind, folder, None)
        assert found != "sound" or (content and rows_in(folder) == content), where
        seen[found] += 1
    assert outcome(kind, folder, None) == "sound"
    return seen


@pytest.mark.nightly
def test_every_page_of_a_sqlite_file_is_looked_at(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    made("sqlite", folder)
    assert check("sqlite", folder, spread(folder, 2))["found"] > 50


def test_the_header_of_a_sqlite_file(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    made("sqlite", folder)
    seen = check("sqlite", folder, iter([(folder / "store.db", place) for place in HEADER][::4]))
    assert seen["found"] + seen["not opened"] > 5


@pytest.mark.nightly
def test_every_file_of_a_store_of_files_is_looked_at(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    made("file", folder)
    assert check("file", folder, spread(folder, 2))["found"] > 20


@pytest.mark.nightly
def test_every_missing_file_is_found_against_heads(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    heads = made("file", folder)
    assert outcome("file", folder, heads) == "sound"
    for path in files_in(folder):
        away = path.rename(tmp_path / "away")
        assert outcome("file", folder, heads) != "sound", path
        away.rename(path)


@pytest.mark.parametrize("every", mostly_nightly([1, 12], daily=[12]))
def test_what_holds_nothing_any_more_is_not_looked_at(tmp_path: Path, every: int) -> None:
    """Objects of a store of files whose rows were written together elsewhere: without them it is the same store."""
    folder = tmp_path / "store"
    made("file", folder)
    with holdfast.open(url("file", folder)) as store:
        for turn in range(40):
            store.thread("chat").put({"turn": turn}, branch="main")
        heads = store.maintenance.heads()
    harmless = 0
    for path in list(files_in(folder))[::every]:
        data = path.read_bytes()
        path.write_bytes(flipped(data))
        if outcome("file", folder, heads) == "sound":
            away = path.rename(tmp_path / "away") if path.name != "birth" else None
            assert outcome("file", folder, heads) == "sound", path
            harmless += 1
            if away is not None:
                away.rename(path)
        path.write_bytes(data)
    assert harmless


def test_a_version_that_is_not_known_is_a_finding(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    made("file", folder)
    (birth,) = folder.rglob("birth")
    data = bytearray(birth.read_bytes())
    data[5] ^= 64
    birth.write_bytes(data)
    with holdfast.open(url("file", folder), read_only=True) as store:
        assert "version" in store.maintenance.verify().damage[0].message


@pytest.mark.parametrize("lengths", mostly_nightly([[0, 5000], [1, 100]], daily=[[0, 5000]]))
def test_a_cut_off_file(tmp_path: Path, lengths: list[int]) -> None:
    for kind in ("sqlite", "file"):
        folder = tmp_path / kind
        made(kind, folder)
        path = max(files_in(folder), key=lambda path: path.stat().st_size)
        for length in lengths:
            shutil.copytree(folder, tmp_path / "cut")
            cut = tmp_path / "cut" / path.relative_to(folder)
            cut.write_bytes(path.read_bytes()[:length])
            assert outcome(kind, tmp_path / "cut", None) != "sound", (kind, length)
            shutil.rmtree(tmp_path / "cut")


@pytest.mark.torture
@pytest.mark.parametrize("shard", range(64))
@pytest.mark.parametrize("kind", ["sqlite", "file"])
def test_every_byte(tmp_path: Path, kind: str, shard: int) -> None:
    folder = tmp_path / "store"
    made(kind, folder)
    every = [(path, place) for path in files_in(folder) for place in range(path.stat().st_size)]
    check(kind, folder, iter(every[shard::64]))
