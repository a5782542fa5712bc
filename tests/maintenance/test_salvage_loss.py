"""Pages of a SQLite file are zeroed, and holds damaged: a repair finds what is left, and forgets no loss."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path
from random import Random

import apsw
import pytest

import holdfast
from holdfast.backends.runtime.drivers import run
from holdfast.engine.leases import Lease
from holdfast.engine.row_format import Line
from holdfast.errors import CorruptError, DeniedError, HoldfastError
from tests.support.nightly import mostly_nightly

THREADS = [f"thread {number:02}" for number in range(12)]
STEPS = 6


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store, and a copy of it in `copy.db`."""
    path = tmp_path_factory.mktemp("good") / "agents.db"
    with holdfast.open(path) as store:
        for thread in THREADS:
            for n in range(STEPS):
                store.thread(thread).put({"n": n, "text": f"{thread} said something, at some length. " * 8})
        store.thread(THREADS[5]).tag("v1")
        store.thread(THREADS[6]).pin(reason="for later")
        store.thread(THREADS[7]).hold(reason="case 7")
        store.maintenance.copy_to(f"sqlite:///{path.parent}/copy.db")
    return path


def zeroed(good: Path, folder: Path, table: str, kind: str) -> Path:
    """A copy of the store with one page of nothing but zeros."""
    path = folder / "agents.db"
    shutil.copy(good, path)
    connection = apsw.Connection(str(path))
    size = int(connection.pragma("page_size"))
    sql = "SELECT pageno FROM dbstat WHERE name = ? AND pagetype = ? ORDER BY pageno"
    pages = [number for (number,) in connection.execute(sql, (table, kind))]
    connection.close()
    assert pages, f"{table} has no such page"
    data = bytearray(path.read_bytes())
    number = pages[len(pages) // 2]
    data[(number - 1) * size : number * size] = bytes(size)
    path.write_bytes(data)
    return path


def readable(store: holdfast.Store) -> set[str]:
    found = set()
    for thread in THREADS:
        with suppress(HoldfastError):
            found |= {thread} if store.thread(thread).get().state["n"] == STEPS - 1 else set()
    return found


PAGES = [("steps", "leaf"), ("steps", "internal"), ("refs", "leaf"), ("lines", "leaf")]


@pytest.mark.parametrize(("table", "kind"), mostly_nightly(PAGES, daily=PAGES[1:3]))
def test_no_loss_is_forgotten_until_a_copy_restores_it(good: Path, tmp_path: Path, table: str, kind: str) -> None:
    with holdfast.open(zeroed(good, tmp_path, table, kind)) as store:
        report = store.maintenance.repair()
        assert not report.ok
        assert [each.code for each in report.left] == ["lost-rows"]
        assert report.files is not None
        left = readable(store)
        named = {each.line for each in report.files.lost}
        if (table, kind) == ("steps", "leaf"):
            assert set(THREADS) - left <= named
            assert {each.table for each in report.files.lost} == {"steps"}
            assert named
        else:
            assert left == set(THREADS)  # the leaves are intact, or it is another table
            assert not named
        # A hold may be among what is gone.
        with pytest.raises(DeniedError):
            store.thread(THREADS[1]).delete()
        assert [each.code for each in store.maintenance.repair().left] == ["lost-rows"]  # and it stays so

        assert store.maintenance.repair(f"sqlite:///{good.parent}/copy.db").ok
        assert readable(store) == set(THREADS)
        assert [len(store.thread(thread).log()) for thread in THREADS] == [STEPS] * len(THREADS)
        assert [each.reason for each in store.thread(THREADS[7]).holds()] == ["case 7"]
        assert [each.reason for each in store.thread(THREADS[6]).pins()] == ["for later"]
        assert list(store.thread(THREADS[5]).tags()) == ["v1"]
        assert store.maintenance.verify(level="decode").ok
        with pytest.raises(DeniedError, match="case 7"):
            store.thread(THREADS[7]).delete()
        store.thread(THREADS[1]).delete()


def test_a_loss_is_not_forgotten_while_a_thread_cannot_be_compared(good: Path, tmp_path: Path) -> None:
    copy = f"sqlite:///{good.parent}/copy.db"
    with holdfast.open(zeroed(good, tmp_path, "refs", "leaf")) as store:
        assert not store.maintenance.repair().ok
        lease = Lease(store._engine.context, Line("", THREADS[7]), "rewrite")
        run(lease.acquire())
        report = store.maintenance.repair(copy)
        assert len(report.problems) == 1, "another process is rewriting the thread"
        assert [each.code for each in report.left] == ["lost-rows"]
        with pytest.raises(DeniedError, match="may have been lost"):
            store.thread(THREADS[7]).delete()
        run(lease.release())
        assert store.maintenance.repair(copy).ok
        with pytest.raises(DeniedError, match="case 7"):
            store.thread(THREADS[7]).delete()


DAMAGES = ["time = time + 1", "name = 'another case'", "kind = 'hole'", "body = zeroblob(length(body))"]


@pytest.mark.parametrize("damage", mostly_nightly(DAMAGES, daily=DAMAGES[2:]))
def test_a_damaged_hold_that_no_copy_has_is_not_forgotten(good: Path, tmp_path: Path, damage: str) -> None:
    path, copy = tmp_path / "agents.db", f"sqlite:///{good.parent}/copy.db"
    shutil.copy(good, path)
    connection = apsw.Connection(str(path))
    connection.execute(f"UPDATE refs SET {damage} WHERE kind = 'hold'")
    connection.close()
    with holdfast.open(path) as store:
        with pytest.raises(CorruptError, match="may have been a hold"):
            store.thread(THREADS[7]).delete()
        with pytest.raises(CorruptError):
            store.maintenance.prune(THREADS[7], keep_last=1)
        assert len(store.thread(THREADS[7]).log()) == STEPS
        assert [each.code for each in store.maintenance.repair(dry_run=True).left] == ["lost-rows"]
        assert [each.code for each in store.maintenance.repair().left] == ["lost-rows"]
        assert [each.space for each in store.maintenance.quarantine()] == ["refs"]
        assert store.maintenance.verify().damage[0].code == "lost-rows"
        with pytest.raises(DeniedError, match="may have been lost"):
            store.thread(THREADS[7]).delete()
        assert store.maintenance.repair(copy).ok
        with pytest.raises(DeniedError, match="case 7"):
            store.thread(THREADS[7]).delete()
        store.thread(THREADS[1]).delete()


def test_a_damaged_tag_or_pin_is_no_hold(good: Path, tmp_path: Path) -> None:
    path = tmp_path / "agents.db"
    shutil.copy(good, path)
    connection = apsw.Connection(str(path))
    connection.execute("UPDATE refs SET time = time + 1 WHERE kind IN ('tag', 'pin')")
    connection.close()
    with holdfast.open(path) as store:
        store.thread(THREADS[5]).delete()
        assert store.maintenance.repair().ok
        assert len(store.maintenance.quarantine()) == 1
        store.thread(THREADS[6]).delete()


def test_a_copy_restores_checkpoints_from_the_middle_of_a_thread(tmp_path: Path) -> None:
    """The first repair leaves stubs of what is lost. What was pruned stays so, though the copy has it."""
    path, copy = tmp_path / "good.db", f"sqlite:///{tmp_path}/copy.db"
    with holdfast.open(path) as store:
        for n in range(40):
            store.thread("chat").put({"n": n, f"part {n % 5}": Random(n).randbytes(700)})
        store.maintenance.copy_to(copy)
        store.maintenance.prune("chat", keep_last=38)
        before = [each.id for each in store.thread("chat").log()]
    assert len(before) == 38
    with holdfast.open(zeroed(path, tmp_path, "steps", "leaf")) as store:
        assert store.maintenance.repair().lost
        assert len(store.thread("chat").log()) < 38
        assert store.maintenance.repair(copy).ok
        assert [each.id for each in store.thread("chat").log()] == before
        assert [store.thread("chat").get(each).state["n"] for each in before] == list(range(39, 1, -1))
        assert store.maintenance.verify(level="decode").findings == []


def test_a_loss_can_be_accepted(good: Path, tmp_path: Path) -> None:
    with holdfast.open(zeroed(good, tmp_path, "refs", "leaf")) as store:
        assert not store.maintenance.repair().ok
        assert not store.maintenance.repair(dry_run=True, accept_loss=True).ok
        assert store.maintenance.repair(accept_loss=True).ok
        assert store.maintenance.verify().ok
        store.thread(THREADS[7]).delete()  # the hold is gone, and somebody said that this is right


def test_a_damaged_index_alone_loses_nothing(good: Path, tmp_path: Path) -> None:
    with holdfast.open(zeroed(good, tmp_path, "steps_id", "leaf")) as store:
        report = store.maintenance.repair()
        assert readable(store) == set(THREADS)
        assert report.files is not None
        assert report.files.lost == []


DAMAGED_HOLDS = {
    "time": "time = time + 1",
    "reason": "name = 'case 6'",
    "kind": "kind = 'hole'",
    "thread": f"line = '{THREADS[8]}'",
    "name": "line = 'thread :7'",
}


@pytest.mark.parametrize("column", mostly_nightly(DAMAGED_HOLDS, daily=["name"]))
def test_a_damaged_hold_forbids_deleting_until_a_copy_restores_it(good: Path, tmp_path: Path, column: str) -> None:
    path, empty = tmp_path / "agents.db", f"sqlite:///{tmp_path}/empty.db"
    shutil.copy(good, path)
    holdfast.open(empty).close()
    connection = apsw.Connection(str(path))
    connection.execute(f"UPDATE refs SET {DAMAGED_HOLDS[column]} WHERE kind = 'hold'")
    assert connection.changes() == 1
    connection.close()
    with holdfast.open(path) as store:
        assert [each.code for each in store.maintenance.verify().damage] == ["damaged-row"]
        report = store.maintenance.repair()
        assert [each.code for each in report.left] == ["lost-rows"]
        assert len(report.repaired) == 1
        assert len(list(store.threads())) == len(THREADS)
        for thread in THREADS[6:9]:
            with pytest.raises(DeniedError, match="may have been lost"):
                store.thread(thread).delete()
        # A store that knows nothing of these threads restores no hold of theirs.
        assert [each.code for each in store.maintenance.repair(empty).left] == ["lost-rows"]
        assert store.maintenance.repair(f"sqlite:///{good.parent}/copy.db").ok
        with pytest.raises(DeniedError, match="case 7"):
            store.thread(THREADS[7]).delete()
        store.thread(THREADS[8]).delete()


def test_a_damaged_hold_is_repaired_at_once_if_there_is_a_copy(good: Path, tmp_path: Path) -> None:
    for column, change in DAMAGED_HOLDS.items():
        path = tmp_path / f"{column}.db"
        shutil.copy(good, path)
        connection = apsw.Connection(str(path))
        connection.execute(f"UPDATE refs SET {change} WHERE kind = 'hold'")
        connection.close()
        with holdfast.open(path) as store:
            assert store.maintenance.repair(f"sqlite:///{good.parent}/copy.db").ok
            assert store.maintenance.verify().findings == []
            with pytest.raises(DeniedError, match="case 7"):
                store.thread(THREADS[7]).delete()
            store.thread(THREADS[8]).delete()
