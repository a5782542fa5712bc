"""Damage and races of repositories: what is lost is what is damaged, and nothing else."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

import holdfast
from holdfast.backends.runtime.drivers import run
from holdfast.encryption import LocalKeys, generate_key
from holdfast.errors import CorruptError, DeniedError
from holdfast.maintenance.backup.format import Manifest
from holdfast.maintenance.backup.pruner import RepositoryPruner
from holdfast.maintenance.backup.records import freeze
from holdfast.maintenance.backup.repository import Backup, Repository, open_repository
from holdfast.store import Store
from tests.maintenance.test_backup import files


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    return tmp_path / "repository"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with holdfast.open(tmp_path / "store.db") as store:
        yield store


def manifests(repository: Path) -> list[Path]:
    return sorted(path for path in files(repository) if path.relative_to(repository).parts[0] == "backups")


def packs(repository: Path) -> set[Path]:
    return {path for path in files(repository) if path.relative_to(repository).parts[0] == "packs"}


def flip(path: Path, at: int = -1) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("damaged", [0, 2])
@pytest.mark.parametrize("at", [-1, 5])
def test_a_damaged_manifest_costs_one_backup(store: Store, repository: Path, damaged: int, at: int) -> None:
    backups = store.backups(repository)
    made = []
    for number in range(3):
        store.put("chat", {"n": number, "text": os.urandom(2000).hex()})
        made.append(backups.create())
    flip(manifests(repository)[damaged], at)
    assert [each.number for each in backups.list()] == [number + 1 for number in range(3) if number != damaged]
    for number in range(3):
        with holdfast.open("memory://") as new:
            restorer = new.backups(repository)
            if number == damaged:
                with pytest.raises((CorruptError, holdfast.errors.UnsupportedError)):
                    restorer.restore(str(number + 1))
                continue
            restorer.restore(str(number + 1))
            assert new.get("chat").state["n"] == number
    with holdfast.open("memory://") as new:
        new.backups(repository).restore(made[1].time)
    before = packs(repository)
    pruned = backups.prune(keep_last=1, grace=0)
    assert [each.id for each in pruned.unreadable] == [made[damaged].id]
    backups.prune(keep_last=1, grace=0)
    assert packs(repository) == before, "nobody knows what the damaged one needs"
    store.put("chat", {"n": 3})
    assert backups.create().number == 4
    assert [each.code for each in backups.verify().findings] == ["damaged-manifest"]
    flip(manifests(repository)[0 if damaged == 0 else -2], at)
    assert backups.verify().ok, "the chain goes on where it was"
    backups.prune(keep_last=1, grace=0)
    backups.prune(keep_last=1, grace=0)
    assert packs(repository) < before | packs(repository)
    with holdfast.open("memory://") as new:
        new.backups(repository).restore()
        assert new.get("chat").state == {"n": 3}


def test_lost_lists_of_the_newest_backup_cost_only_that(store: Store, repository: Path) -> None:
    backups = store.backups(repository)
    store.put("chat", {"n": 1})
    store.state(agent="researcher")["goal"] = "find"
    store.access.grant("agent:writer", "read", agent="researcher")
    backups.create()
    store.access.revoke(next(iter(store.access.grants())))
    backups.create()
    before = packs(repository)
    store.put("chat", {"n": 2})
    backups.create()
    for path in packs(repository) - before:
        path.unlink()
    with holdfast.open("memory://") as new:
        new.backups(repository).restore("1")
        assert new.get("chat").state == {"n": 1}
        assert not list(new.access.grants()), "rights are those of the newest that can be read"
    backups.create()
    with holdfast.open("memory://") as new:
        new.backups(repository).restore()
        assert new.get("chat").state == {"n": 2}


def test_the_number_of_a_removed_backup_is_not_used_again(
    store: Store, repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backups = store.backups(repository)
    store.put("chat", {"n": 0})
    backups.create()
    commit, late = Repository.commit, [True, True]

    async def slow(self: Repository, manifest: Manifest) -> Backup | None:
        if late.pop() if late else False:
            late.clear()
            thread = threading.Thread(target=others)
            thread.start()
            thread.join()
        return await commit(self, manifest)

    def others() -> None:
        with holdfast.open(tmp_path / "store.db") as other:
            for number in range(2):
                other.delete("chat")
                other.put("chat", {"n": number, "text": os.urandom(2000).hex()})
                other.backups(repository).create()
            for _ in range(2):
                other.backups(repository).prune(keep_last=1, grace=0)

    monkeypatch.setattr(Repository, "commit", slow)
    assert backups.create().number == 4
    assert [each.number for each in backups.list()] == [3, 4]
    assert backups.verify().ok


def test_a_manifest_that_comes_after_its_number_was_removed_does_not_count(store: Store, repository: Path) -> None:
    backups = store.backups(repository)
    for number in range(3):
        store.put("chat", {"n": number})
        backups.create()
    late = manifests(repository)[1]
    data = late.read_bytes()
    backups.prune(keep_last=1)
    late.write_bytes(data)  # as if it had been created between two looks at the numbers
    assert [each.number for each in backups.list()] == [3]
    with pytest.raises(holdfast.errors.NotFoundError):
        backups.show("2")
    assert backups.verify().ok
    backups.prune(keep_last=1)
    assert not late.exists()


def test_a_running_backup_is_safe_from_a_prune_whose_clock_is_ahead(
    store: Store, repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backups = store.backups(repository)
    store.put("chat", {"n": 1})
    backups.create()
    store.put("chat", {"n": 2})
    sweeping, swept, written, finished = (threading.Event() for _ in range(4))
    commit, sweep = Repository.commit, RepositoryPruner._sweep

    async def slow_commit(self: Repository, manifest: Manifest) -> Backup | None:
        if threading.current_thread().name == "creating":
            written.set()
            finished.wait(30)
        return await commit(self, manifest)

    async def slow_sweep(self: RepositoryPruner, *arguments: Any) -> tuple[int, int]:
        if threading.current_thread().name == "pruning":
            self._now += 10 * 86400 * 10**9
            sweeping.set()
            swept.wait(30)
        return await sweep(self, *arguments)

    def prune() -> None:
        with holdfast.open(tmp_path / "store.db") as other:
            other.backups(repository).prune(keep_last=5)

    def create() -> None:
        with holdfast.open(tmp_path / "store.db") as other:
            other.backups(repository).create()

    monkeypatch.setattr(Repository, "commit", slow_commit)
    monkeypatch.setattr(RepositoryPruner, "_sweep", slow_sweep)
    threads = [threading.Thread(target=prune, name="pruning"), threading.Thread(target=create, name="creating")]
    threads[0].start()
    assert sweeping.wait(30)
    threads[1].start()
    assert written.wait(30)
    assert backups.prune(keep_last=5).recorded > 0, "the packs of the running backup seem to be unused"
    swept.set()
    threads[0].join()
    finished.set()
    threads[1].join()
    assert backups.verify().ok
    assert backups.list()[-1].number == 2


def test_the_last_number_is_found_without_listing_all(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with holdfast.open("memory://") as store:
        store.put("chat", {"n": 1})
        made = store.backups(repository).create()

    async def check() -> None:
        async with open_repository(repository, {}) as opened:
            for numbers in ([1], [*range(1, 5)], [*range(1, 30)], [3, 500, 501], [*range(7, 40, 3), 77]):
                folder = repository / "backups" / made.store
                for path in folder.iterdir():
                    path.unlink()
                for number in numbers:
                    (folder / f"{number:010d}").touch()
                assert await opened.last_number(made.store) == numbers[-1]

    monkeypatch.setattr("holdfast.maintenance.backup.repository.PAGE", 4)
    monkeypatch.setattr("holdfast.backends.object_store.local.PAGE", 4)
    run(check())


@pytest.mark.parametrize("reason", [5, None, b"x", ["a"], "\ud800", "x" * 10**6])
def test_a_reason_is_text(store: Store, repository: Path, reason: Any) -> None:
    backups = store.backups(repository)
    store.put("chat", {"n": 1})
    backups.create()
    before = files(repository)
    for call in (
        lambda: backups.create(reason=reason),
        lambda: backups.pin("1", reason=reason),
        lambda: backups.freeze(reason=reason),
    ):
        with pytest.raises(holdfast.errors.InvalidError, match="reason"):
            call()
    assert files(repository) == before


def test_backups_of_the_own_tenant_are_a_chain_of_their_own(store: Store, repository: Path, tmp_path: Path) -> None:
    backups = store.backups(repository)
    store.put("chat", {"n": 1})
    with holdfast.open(tmp_path / "store.db", tenant="acme") as acme:
        acme.put("theirs", {"n": 1})
        acme.state(agent="researcher")["goal"] = "find"
        acme.access.grant("agent:writer", "read", agent="researcher")
        whole = backups.create()
        acme.access.revoke(next(iter(acme.access.grants())))
        backups.create()
    own = backups.create(tenants="own")
    assert own.store != whole.store
    assert own.number == 1
    assert {each.tenant for each in backups.show()[1]} == {"", "acme"}, "the latest is of the whole store"
    assert {each.tenant for each in backups.show(own.id)[1]} == {""}
    for _ in range(2):
        backups.prune(keep_last=1, grace=0)
    assert {each.id for each in backups.list()} == {f"{whole.id[:-1]}2", own.id}
    assert backups.create(tenants="own").number == 2, "it goes on with its own chain"
    assert backups.verify().ok
    with holdfast.open(tmp_path / "new.db") as new:
        new.backups(repository).restore(f"{whole.id[:-1]}2")
    with holdfast.open(tmp_path / "new.db", tenant="acme") as acme:
        assert acme.get("theirs").state == {"n": 1}
        assert not list(acme.access.grants())


@pytest.mark.parametrize("first", ["original", "copy"])
def test_a_copy_of_a_store_gets_an_id_of_its_own(repository: Path, tmp_path: Path, first: str) -> None:
    places = {"original": tmp_path / "original.db", "copy": tmp_path / "copy.db"}
    with holdfast.open(places["original"]) as store:
        store.put("base", {"n": 0})
        store.backups(repository).create()
    shutil.copy(places["original"], places["copy"])
    for name in (first, *places.keys() - {first}):
        with holdfast.open(places[name]) as store:
            store.put(name, {"n": 1})
            store.backups(repository).create()
    for name, place in places.items():
        with holdfast.open(place) as store:
            backups = store.backups(repository)
            assert {each.name for each in backups.show()[1]} == {"base", name}
            assert backups.drill().ok
            assert backups.create().reason == ""
            assert backups.verify().ok
    with holdfast.open("memory://") as other:
        assert len({each.store for each in other.backups(repository).list()}) == 2
    moved = places["copy"].rename(tmp_path / "moved.db")
    with holdfast.open(moved) as store:
        before = store.backups(repository).show()[0]
        assert store.backups(repository).create().id == f"{before.id.partition('.')[0]}.{before.number + 1}"


def test_every_flipped_byte_and_missing_record_is_found(store: Store, repository: Path, tmp_path: Path) -> None:
    first, second = (LocalKeys(generate_key()) for _ in range(2))
    backups = store.backups(repository, keys=first)
    for number in range(3):
        store.put("chat", {"n": number})
        backups.create()
    backups.add_key(second)
    backups.pin("2", reason="the auditors")
    backups.prune(keep_last=1)
    backups.freeze(reason="an incident")
    backups.create()
    assert backups.verify().ok
    random = Random(1)
    folders = {"/".join(path.relative_to(repository).parts[:2]): path for path in files(repository)}
    chosen = {folder: path for folder, path in folders.items() if not folder.startswith(("packs", "backups"))}
    struck = {folder.partition("/")[0] if "records" not in folder else folder for folder in chosen}
    assert struck == {"holdfast-backups", "keys", "locks", "removed", "sweeps", "records/pins", "records/freezes"}
    for folder, path in chosen.items():
        data = path.read_bytes()
        for at in (5, random.randrange(6, len(data))):
            path.write_bytes(data[:at] + bytes([data[at] ^ 1 << random.randrange(8)]) + data[at + 1 :])
            try:
                assert not backups.verify().ok, f"{path} at {at}"
            except (CorruptError, holdfast.errors.UnsupportedError):
                assert folder.startswith(("holdfast", "keys")), "the only key that is given"
        path.unlink()
        if folder.startswith(("records", "keys")):
            try:
                assert "missing-record" in [each.code for each in backups.verify().findings]
            except DeniedError:
                assert folder.startswith("keys"), "the only key that is given"
        path.write_bytes(data)
    backups.unfreeze()
    backups.unpin("2")
    backups.remove_key(second.key_id)
    assert backups.verify().ok, "somebody removed them with Holdfast"


def test_a_damaged_master_key_does_not_lock_out_the_others(store: Store, repository: Path) -> None:
    first, second = (LocalKeys(generate_key()) for _ in range(2))
    backups = store.backups(repository, keys=first)
    store.put("chat", {"n": 1})
    backups.create()
    (path,) = (repository / "keys").iterdir()
    backups.add_key(second)
    for at in (5, -1):
        flip(path, at)
        assert len(store.backups(repository, keys=second).list()) == 1
        with pytest.raises((CorruptError, holdfast.errors.UnsupportedError)):
            backups.list()
        assert [each.code for each in store.backups(repository, keys=second).verify().findings] == ["damaged-key"]
        flip(path, at)


def test_a_freeze_stops_all_deletion_at_once(store: Store, repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = (LocalKeys(generate_key()) for _ in range(2))
    backups = store.backups(repository, keys=first)
    for number in range(5):
        store.put("chat", {"n": number})
        backups.create()
    backups.pin("1")
    backups.add_key(second)
    backups.freeze(reason="an incident")
    for call in (lambda: backups.unpin("1"), lambda: backups.remove_key(second.key_id)):
        with pytest.raises(DeniedError, match="an incident"):
            call()
    backups.unfreeze()
    remove, done = Repository.remove, list[Backup]()

    async def freeze_after_one(self: Repository, backup: Backup, reason: str, now: int) -> None:
        await remove(self, backup, reason, now)
        done.append(backup)
        await freeze(self, "meanwhile", now)

    monkeypatch.setattr(Repository, "remove", freeze_after_one)
    with pytest.raises(DeniedError, match="meanwhile"):
        backups.prune(keep_last=1)
    assert [each.number for each in backups.list()] == [1, 3, 4, 5]
    assert len(done) == 1


def test_all_that_is_done_to_a_repository_is_in_the_audit(store: Store, repository: Path) -> None:
    backups = store.backups(repository, keys=(key := LocalKeys(generate_key())))
    for number in range(4):
        store.put("chat", {"n": number})
        backups.create()
    backups.pin("4", reason="a test")
    backups.unpin("4")
    backups.add_key(key2 := LocalKeys(generate_key()))
    backups.remove_key(key2.key_id)
    assert key.key_id != key2.key_id

    async def die() -> None:
        async with open_repository(repository, {}, keys=key) as opened:
            await opened.lock(backups_store, 5)

    backups_store = backups.list()[0].store
    run(die())
    backups.prune(keep_last=4, break_locks=True)
    found = {each.action: each.detail for each in store.audit.query().all()}
    assert found["pin-backup"]["reason"] == "a test"
    assert {"unpin-backup", "add-backup-key", "remove-backup-key"} <= found.keys()
    assert len(found["prune-backups"]["locks"]) == 1


def test_a_scheduled_prune_is_in_the_audit(store: Store, repository: Path) -> None:
    for number in range(3):
        store.put("chat", {"n": number})
        store.backups(repository).create()
    store.jobs.add("thin", "prune-backups", settings={"repository": str(repository), "keep_last": 1})
    store.jobs.run("thin")
    (entry,) = [each for each in store.audit.query().all() if each.action == "prune-backups"]
    assert len(entry.detail["removed"]) == 2
