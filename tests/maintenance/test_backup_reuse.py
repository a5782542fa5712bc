"""What a new backup reuses is checked; and a repair brings back what it can, and lists the rest."""

from __future__ import annotations

import os
import sqlite3
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

import holdfast
from holdfast import Store
from holdfast.errors import CorruptError, DeniedError
from holdfast.maintenance.backup import reused_packs
from holdfast.maintenance.backup.creator import BackupCreator
from holdfast.maintenance.backup.storage import RepositoryStorage
from tests.maintenance.kit import Clock, timed
from tests.maintenance.test_backup import contents, files, remove_both
from tests.maintenance.test_backup_damage import flip, flip_both, manifests


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with holdfast.open(tmp_path / "store.db") as store:
        yield store


def packs(repository: Path) -> list[Path]:
    """Return the packs, the oldest first."""
    return sorted((repository / "packs").glob("*/*"), key=lambda path: path.stat().st_mtime_ns)


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count which packs are read as a whole."""
    counts, get = Counter[str](), RepositoryStorage.get

    async def counted(self: RepositoryStorage, name: str, start: int = 0, length: int | None = None) -> bytes | None:
        counts[name] += name.startswith("packs/") and length is None
        return await get(self, name, start, length)

    monkeypatch.setattr(RepositoryStorage, "get", counted)
    return counts


@pytest.mark.parametrize("damage", ["flipped", "truncated", "deleted"])
def test_backups_on_top_of_a_damaged_pack_can_be_restored(store: Store, repository: Path, damage: str) -> None:
    backups = store.backups(repository)
    for number in range(20):
        store.thread(f"chat {number}").put({"text": os.urandom(500).hex()})
    backups.create()
    (first,) = packs(repository)
    if damage == "flipped":
        flip(first, 60)
    elif damage == "truncated":
        os.truncate(first, 100)
    else:
        first.unlink()
    for number in range(3):
        store.thread("more").put({"n": number})
        assert not backups.create().damaged
        with holdfast.open("memory://") as new:
            new.backups(repository).restore()
            assert contents(new) == contents(store)


@pytest.mark.nightly
def test_a_line_that_is_damaged_in_the_store_too_is_reported(store: Store, repository: Path) -> None:
    """There is nowhere to take it from, and the backup has all the rest."""
    store.thread("chat").put({"text": os.urandom(500).hex()})
    store.thread("other").put({"n": 1})
    backups = store.backups(repository)
    backups.create()
    (first,) = packs(repository)
    first.unlink()
    with sqlite3.connect(str(repository.with_name("store.db"))) as connection:
        connection.execute("UPDATE steps SET body = x'00' WHERE line = 'chat'")
    made = backups.create()
    assert made.damaged == ("chat",)
    with holdfast.open("memory://") as new:
        with pytest.raises(CorruptError):
            new.backups(repository).restore(threads=["chat"])
        new.backups(repository).restore(threads=["other"])
        assert new.thread("other").get().state == {"n": 1}


def test_packs_are_read_in_turn_the_oldest_check_first(
    repository: Path, read: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    store = timed(clock)
    backups = store.backups(repository)
    for number in range(12):
        store.thread(f"chat {number}").put({"text": os.urandom(20_000).hex()})
        backups.create()
        clock.now += 10**9
    sizes = {str(path.relative_to(repository)): path.stat().st_size for path in packs(repository)}
    monkeypatch.setattr(reused_packs, "CHECKED_BYTES", 3 * 40_000)
    read.clear()
    rounds: list[set[str]] = []
    for _ in range(12):
        read.clear()
        backups.create()
        rounds.append({name for name, count in read.items() if count})
        clock.now += 10**9
    read_bytes = [sum(sizes[name] for name in each) for each in rounds]
    most = 3 * 40_000 + 3 * max(sizes.values())  # packs are read in groups by their names, which are random here
    assert all(40_000 < each <= most for each in read_bytes), "some in each backup, and not all"
    assert most < sum(sizes.values())
    assert {name for each in rounds for name in each} >= {name for name, size in sizes.items() if size > 20_000}
    again = [first & second for first, second in pairwise(rounds)]
    assert not any(again), "none twice before the others"
    oldest = str(store.status().details["oldest_backup_check"])
    clock.now += 3600 * 10**9
    monkeypatch.setattr(reused_packs, "CHECKED_BYTES", 1 << 30)
    backups.create()
    assert str(store.status().details["oldest_backup_check"]) > oldest


def test_all_is_read_after_a_verification_that_found_damage(
    store: Store, repository: Path, read: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reused_packs, "CHECKED_BYTES", 1)
    backups = store.backups(repository)
    for number in range(8):
        store.thread(f"chat {number}").put({"text": os.urandom(5000).hex()})
        backups.create()
    flip(packs(repository)[3], 60)
    with holdfast.open("memory://") as other:
        assert not other.backups(repository).verify().ok
        assert not other.backups(repository).verify().ok
    assert len([*(repository / "records/damage").iterdir()]) == 1, "it is said once"
    read.clear()
    store.thread("more").put({"n": 1})
    backups.create()
    assert sum(1 for count in read.values() if count) >= 8
    with holdfast.open("memory://") as new:
        new.backups(repository).restore()
        assert contents(new) == contents(store)
    read.clear()
    backups.create()
    assert sum(1 for count in read.values() if count) <= 2, "once"


def test_following_checks_once_an_hour(store: Store, repository: Path, read: Counter[str]) -> None:
    store.thread("chat").put({"n": 0})
    backups = store.backups(repository)
    backups.create()
    rounds = iter(range(5))

    def stop() -> bool:
        number = next(rounds)
        store.thread("chat").put({"n": number})
        return number == 4

    read.clear()
    assert backups.follow(interval=0.001, stop=stop).backups > 2
    assert not +read


@pytest.mark.parametrize("number", [1, 2])
def test_the_first_manifests_that_are_missing_are_lost(number: int, store: Store, repository: Path) -> None:
    backups = store.backups(repository)
    for n in range(4):
        store.thread("chat").put({"n": n})
        backups.create()
    for each in manifests(repository)[:number]:
        remove_both(repository, each)
    assert [each.code for each in backups.verify().findings] == ["missing-backup"]
    report = backups.repair()
    lost = [(each.backup.rpartition(".")[2], each.what) for each in report.lost]
    assert lost == [(str(each + 1), "its manifest is lost") for each in range(number)]
    assert backups.verify().ok
    assert [each.number for each in backups.list()] == [*range(number + 1, 6)]


def test_a_manifest_that_is_lost_twice_leaves_a_gap(store: Store, repository: Path) -> None:
    backups = store.backups(repository)
    for number in range(4):
        store.thread("chat").put({"n": number})
        backups.create()
    flip_both(repository, manifests(repository)[1])
    report = backups.repair()
    assert [(each.backup.rpartition(".")[2], each.what) for each in report.lost] == [("2", "its manifest is lost")]
    assert backups.verify().ok
    assert [each.number for each in backups.list()] == [1, 3, 4, 5]
    remove_both(repository, manifests(repository)[2])
    (finding,) = backups.verify().findings
    assert finding.code == "missing-backup"
    assert [each.backup.rpartition(".")[2] for each in backups.repair().lost] == ["4"]
    flip_both(repository, manifests(repository)[-1])
    assert len(backups.repair().lost) == 1, "the last one"
    assert backups.verify().ok
    assert [each.number for each in backups.list()] == [1, 3, 5, 7]
    for backup, n in (("1", 0), ("3", 2), ("7", 3)):
        with holdfast.open("memory://") as new:
            new.backups(repository).restore(backup)
            assert new.thread("chat").get().state == {"n": n}
    assert backups.prune(keep_last=1, grace=0).removed == 3


def test_a_repair_takes_bodies_from_the_store(store: Store, repository: Path) -> None:
    """Of an old backup, too, if the index of its chunks is intact."""
    backups = store.backups(repository)
    for number in range(40):
        store.thread(f"chat {number}").put({"text": os.urandom(3000).hex()})
    first = backups.create()
    expected = contents(store)
    store.thread("chat 0").put({"n": 1})
    backups.create()
    largest = max(packs(repository), key=lambda path: path.stat().st_size)
    flip(largest, largest.stat().st_size // 2)
    with holdfast.open("memory://") as new, pytest.raises(CorruptError):
        new.backups(repository).restore(first.id)
    report = backups.repair()
    assert report.rebuilt
    assert not report.lost
    assert backups.verify(level="decode").ok
    with holdfast.open("memory://") as new:
        new.backups(repository).restore(first.id)
        assert contents(new) == expected
    assert [each.detail["lost"] for each in store.audit.query().all() if each.action == "repair-backups"] == [0]


@pytest.mark.nightly
def test_a_repair_lists_what_neither_repository_nor_store_have(store: Store, repository: Path) -> None:
    backups = store.backups(repository)
    store.thread("gone").put({"text": os.urandom(500).hex()})
    store.thread("chat").put({"n": 1})
    first = backups.create()
    store.thread("gone").delete()
    backups.create()
    packs(repository)[0].unlink()
    before = files(repository)
    backups.suspend_deletion(reason="an incident")
    with pytest.raises(DeniedError, match="an incident"):
        backups.repair()
    backups.allow_deletion()
    assert before.items() <= files(repository).items()
    report = backups.repair()
    assert (first.id, "gone") in {(each.backup, each.thread) for each in report.lost}
    verified = backups.verify()
    assert verified.ok
    assert "gone" in verified.lost
    with holdfast.open("memory://") as new:
        with pytest.raises(CorruptError):
            new.backups(repository).restore(first.id, threads=["gone"])
        new.backups(repository).restore()
        assert new.thread("chat").get().state == {"n": 1}
    assert not backups.repair().is_changed


@pytest.mark.parametrize("killed", [False, True])
def test_a_backup_after_a_repair_has_what_a_pack_lost_in_part(
    killed: bool, store: Store, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The repair moves the intact part of the pack and deletes it; it may be killed before it makes a backup."""
    backups = store.backups(repository)
    for number in range(20):
        store.thread(f"chat {number}").put({"text": os.urandom(500).hex()})
    backups.create()
    first = max(packs(repository), key=lambda path: path.stat().st_size)
    flip(first, 60)  # an index, without which nothing can be taken from the store
    if killed:
        with monkeypatch.context() as patch:
            patch.setattr(BackupCreator, "create", kill)
            with pytest.raises(KeyboardInterrupt):
                backups.repair()
        backups.create()
    else:
        assert backups.repair().lost
    with holdfast.open("memory://") as new:
        new.backups(repository).restore()
        for number in range(20):
            assert new.thread(f"chat {number}").get().state == store.thread(f"chat {number}").get().state


async def kill(*_: object) -> None:
    """End a repair when it begins its backup."""
    raise KeyboardInterrupt
