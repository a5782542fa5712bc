"""Damage and races of repositories: what is lost is what is damaged, and nothing else."""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

import pytest

import holdfast
from holdfast import Store
from holdfast.backends.interface import Row
from holdfast.backends.runtime.drivers import run
from holdfast.backends.tables import REFS
from holdfast.codec.envelope import unpack_body, unwrap, wrap
from holdfast.encryption import LocalKeys, generate_key
from holdfast.engine.checked_rows import CHECKSUMS
from holdfast.errors import (
    ConfigError,
    ConflictError,
    CorruptError,
    DeniedError,
    InvalidError,
    TransientError,
    UnavailableError,
)
from holdfast.maintenance.backup.creator import BackupCreator
from holdfast.maintenance.backup.follower import FollowStatus
from holdfast.maintenance.backup.format import Manifest
from holdfast.maintenance.backup.pruner import RepositoryPruner
from holdfast.maintenance.backup.reader import BACKUP_ROWS, LineRow
from holdfast.maintenance.backup.records import suspend_deletion
from holdfast.maintenance.backup.repository import Backup, Repository, open_repository
from holdfast.maintenance.doctor.result import CheckResult
from holdfast.maintenance.doctor.store_checks import checks
from tests.maintenance.kit import DAY, Clock, timed
from tests.maintenance.test_backup import both_places, files, remove_both
from tests.support.nightly import mostly_nightly


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


def flip_both(repository: Path, path: Path, at: int = -1) -> None:
    for place in both_places(repository, path):
        flip(place, at)


@pytest.mark.parametrize(("damaged", "at"), mostly_nightly([*product([0, 2], [-1, 5])], daily=[(0, 5), (2, -1)]))
def test_a_damaged_manifest_costs_one_backup(store: Store, repository: Path, damaged: int, at: int) -> None:
    backups = store.backups(repository)
    made = []
    for number in range(3):
        store.thread("chat").put({"n": number, "text": os.urandom(2000).hex()})
        made.append(backups.create())
    flip_both(repository, manifests(repository)[damaged], at)
    assert [each.number for each in backups.list()] == [number + 1 for number in range(3) if number != damaged]
    for number in range(3):
        with holdfast.open("memory://") as new:
            restorer = new.backups(repository)
            if number == damaged:
                with pytest.raises((CorruptError, holdfast.errors.UnsupportedError)):
                    restorer.restore(str(number + 1))
                continue
            restorer.restore(str(number + 1))
            assert new.thread("chat").get().state["n"] == number
    with holdfast.open("memory://") as new:
        new.backups(repository).restore(made[1].time)
    before = packs(repository)
    pruned = backups.prune(keep_last=1, grace=0)
    assert [each.id for each in pruned.unreadable] == [made[damaged].id]
    backups.prune(keep_last=1, grace=0)
    assert packs(repository) == before, "nobody knows what the damaged one needs"
    store.thread("chat").put({"n": 3})
    assert backups.create().number == 4
    assert [each.code for each in backups.verify().findings] == ["damaged-manifest"]
    flip_both(repository, manifests(repository)[0 if damaged == 0 else -2], at)
    assert backups.verify().ok, "the chain goes on where it was"
    backups.prune(keep_last=1, grace=0)
    backups.prune(keep_last=1, grace=0)
    assert packs(repository) < before | packs(repository)
    with holdfast.open("memory://") as new:
        new.backups(repository).restore()
        assert new.thread("chat").get().state == {"n": 3}


def test_lost_lists_of_the_newest_backup_cost_only_that(store: Store, repository: Path) -> None:
    backups = store.backups(repository)
    store.thread("chat").put({"n": 1})
    store.state(agent="researcher")["goal"] = "find"
    store.access.grant("agent:writer", "read", agent="researcher")
    backups.create()
    store.access.revoke(next(iter(store.access.grants())))
    backups.create()
    before = packs(repository)
    store.thread("chat").put({"n": 2})
    backups.create()
    for path in packs(repository) - before:
        path.unlink()
    with holdfast.open("memory://") as new:
        new.backups(repository).restore("1")
        assert new.thread("chat").get().state == {"n": 1}
        assert not list(new.access.grants()), "rights are those of the newest that can be read"
    backups.create()
    with holdfast.open("memory://") as new:
        new.backups(repository).restore()
        assert new.thread("chat").get().state == {"n": 2}


def test_the_number_of_a_removed_backup_is_not_used_again(
    store: Store, repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backups = store.backups(repository)
    store.thread("chat").put({"n": 0})
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
                other.thread("chat").delete()
                other.thread("chat").put({"n": number, "text": os.urandom(2000).hex()})
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
        store.thread("chat").put({"n": number})
        backups.create()
    late = manifests(repository)[1]
    data = late.read_bytes()
    backups.prune(keep_last=1)
    for place in both_places(repository, late):
        place.write_bytes(data)  # as if it had been created between two looks at the numbers
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
    store.thread("chat").put({"n": 1})
    backups.create()
    store.thread("chat").put({"n": 2})
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
        store.thread("chat").put({"n": 1})
        made = store.backups(repository).create()

    async def check() -> None:
        async with open_repository(repository, {}) as opened:
            for numbers in ([1], [*range(1, 5)], [*range(1, 30)], [3, 500, 501], [*range(7, 40, 3), 77]):
                folder = repository / "backups" / made.store
                for path in folder.iterdir():
                    path.unlink()
                (repository / "copies/backups" / made.store / f"{1:010d}").unlink(missing_ok=True)
                for number in numbers:
                    (folder / f"{number:010d}").touch()
                assert await opened.last_number(made.store) == numbers[-1]

    monkeypatch.setattr("holdfast.maintenance.backup.repository.PAGE", 4)
    monkeypatch.setattr("holdfast.backends.object_store.local.PAGE", 4)
    run(check())


@pytest.mark.parametrize("reason", [5, None, b"x", ["a"], "\ud800", "x" * 10**6])
def test_a_reason_is_text(store: Store, repository: Path, reason: Any) -> None:
    backups = store.backups(repository)
    store.thread("chat").put({"n": 1})
    backups.create()
    before = files(repository)
    for call in (
        lambda: backups.create(reason=reason),
        lambda: backups.pin("1", reason=reason),
        lambda: backups.suspend_deletion(reason=reason),
    ):
        with pytest.raises(holdfast.errors.InvalidError, match="reason"):
            call()
    assert files(repository) == before


def test_backups_of_the_own_tenant_are_a_chain_of_their_own(store: Store, repository: Path, tmp_path: Path) -> None:
    backups = store.backups(repository)
    store.thread("chat").put({"n": 1})
    with holdfast.open(tmp_path / "store.db", tenant="acme") as acme:
        acme.thread("theirs").put({"n": 1})
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
        new.backups(repository).restore()  # without a name, the latest of the whole store
    with holdfast.open(tmp_path / "new.db", tenant="acme") as acme:
        assert acme.thread("theirs").get().state == {"n": 1}
        assert not list(acme.access.grants())


@pytest.mark.nightly
@pytest.mark.parametrize("first", ["original", "copy"])
def test_a_copy_of_a_store_gets_an_id_of_its_own(repository: Path, tmp_path: Path, first: str) -> None:
    places = {"original": tmp_path / "original.db", "copy": tmp_path / "copy.db"}
    with holdfast.open(places["original"]) as store:
        store.thread("base").put({"n": 0})
        store.backups(repository).create()
    shutil.copy(places["original"], places["copy"])
    for name in (first, *places.keys() - {first}):
        with holdfast.open(places[name]) as store:
            store.thread(name).put({"n": 1})
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
        if number:
            store.thread("chat").delete()
        store.thread("chat").put({"n": number})
        backups.create()
    backups.add_key(second)
    backups.pin("3", reason="the auditors")
    backups.prune(keep_last=1)
    backups.suspend_deletion(reason="an incident")
    assert backups.verify().ok
    random = Random(1)
    folders = {"/".join(path.relative_to(repository).parts[:2]): path for path in files(repository)}
    chosen = {folder: path for folder, path in folders.items() if not folder.startswith(("packs", "backups"))}
    struck = {folder.partition("/")[0] if "records" not in folder else folder for folder in chosen}
    people = {"records/pins", "records/suspensions", "records/notices"}
    assert struck >= {"holdfast-backups", "keys", "removed", "sweeps", *people}
    for folder, path in chosen.items():
        data = path.read_bytes()
        for at in (5, random.randrange(6, len(data))):
            path.write_bytes(data[:at] + bytes([data[at] ^ 1 << random.randrange(8)]) + data[at + 1 :])
            try:
                assert not backups.verify().ok, f"{path} at {at}"
            except (CorruptError, holdfast.errors.UnsupportedError):
                assert folder.startswith(("holdfast", "keys")), "the only key that is given"
        path.unlink()
        if folder in ("records/pins", "records/suspensions"):
            assert "missing-record" in [each.code for each in backups.verify().findings]
        path.write_bytes(data)
    for path in (repository / "keys").iterdir():
        data = path.read_bytes()
        remove_both(repository, path)
        with contextlib.suppress(DeniedError):  # the only key that is given
            assert "missing-record" in [each.code for each in backups.verify().findings]
        for place in both_places(repository, path):
            place.write_bytes(data)
    backups.allow_deletion()
    backups.unpin("3")
    backups.remove_key(second.key_id)
    assert backups.verify().ok, "somebody removed them with Holdfast"


def test_a_damaged_master_key_does_not_lock_out_the_others(store: Store, repository: Path) -> None:
    first, second = (LocalKeys(generate_key()) for _ in range(2))
    backups = store.backups(repository, keys=first)
    store.thread("chat").put({"n": 1})
    backups.create()
    (path,) = (repository / "keys").iterdir()
    backups.add_key(second)
    for at in (5, -1):
        flip_both(repository, path, at)
        assert len(store.backups(repository, keys=second).list()) == 1
        with pytest.raises((CorruptError, holdfast.errors.UnsupportedError)):
            backups.list()
        assert [each.code for each in store.backups(repository, keys=second).verify().findings] == ["damaged-key"]
        flip_both(repository, path, at)


def test_a_suspension_stops_deletion_at_once(store: Store, repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = (LocalKeys(generate_key()) for _ in range(2))
    backups = store.backups(repository, keys=first)
    for number in range(5):
        store.thread("chat").put({"n": number})
        backups.create()
    backups.pin("1")
    backups.add_key(second)
    backups.suspend_deletion(reason="an incident")
    for call in (lambda: backups.unpin("1"), lambda: backups.remove_key(second.key_id)):
        with pytest.raises(DeniedError, match="an incident"):
            call()
    backups.allow_deletion()
    remove, done = Repository.remove, list[Backup]()

    async def suspend_after_one(self: Repository, backup: Backup, reason: str, now: int) -> None:
        await remove(self, backup, reason, now)
        done.append(backup)
        await suspend_deletion(self, "meanwhile", now)

    monkeypatch.setattr(Repository, "remove", suspend_after_one)
    with pytest.raises(DeniedError, match="meanwhile"):
        backups.prune(keep_last=1)
    assert [each.number for each in backups.list()] == [1, 3, 4, 5]
    assert len(done) == 1


def test_all_that_is_done_to_a_repository_is_in_the_audit(store: Store, repository: Path) -> None:
    backups = store.backups(repository, keys=(key := LocalKeys(generate_key())))
    for number in range(4):
        store.thread("chat").put({"n": number})
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
        store.thread("chat").put({"n": number})
        store.backups(repository).create()
    store.jobs.add("thin", "prune-backups", settings={"repository": str(repository), "keep_last": 1})
    store.jobs.run("thin")
    (entry,) = [each for each in store.audit.query().all() if each.action == "prune-backups"]
    assert len(entry.detail["removed"]) == 2


def test_policies_that_mean_nothing_for_backups_are_refused(repository: Path) -> None:
    clock = Clock()
    store = timed(clock)
    backups = store.backups(repository)
    for number in range(4):
        store.thread("chat").put({"n": number})
        backups.create(reason="migration" if number == 1 else "")
        clock.now += DAY
    for rules in ({"keep_where": "x"}, {"max_thread_bytes": 1}, {"keep_tagged": False}):
        with pytest.raises(InvalidError, match=next(iter(rules))):
            backups.prune(keep_last=1, **rules)
        with pytest.raises(InvalidError):
            store.jobs.add("thin", "prune-backups", settings={"repository": str(repository), "keep_last": 1, **rules})
    clock.now += 4000 * DAY
    planned = backups.prune(keep_within="2d", dry_run=True)
    assert [each.kept for each in planned.verdicts] == [False, True, True, True], "the clock is ahead"


def test_following_ships_settings_and_goes_on_after_errors(
    store: Store, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors = [TransientError("a"), UnavailableError("b"), ConflictError("c"), CorruptError("d"), DeniedError("e")]
    seen: list[str] = []
    create = BackupCreator.create

    async def fail(self: BackupCreator, reason: str) -> Backup:
        if errors:
            raise errors.pop(0)
        return await create(self, reason)

    made, steps = list[str](), iter(range(1000))

    def report(status: FollowStatus) -> None:
        seen.append(status.error)
        if status.last and status.last not in made:
            made.append(status.last)
            if len(made) == 1:
                store.maintenance.set_quota(threads=100)
            elif len(made) == 2:
                store.jobs.add("tidy", "tidy", schedule="every 1h")

    monkeypatch.setattr(BackupCreator, "create", fail)
    backups = store.backups(repository)
    store.thread("chat").put({"n": 1})
    backups.follow(interval=0.01, stop=lambda: len(made) == 3 or next(steps) > 500, report=report)
    assert seen[:5] == ["a", "b", "c", "d", "e"]
    assert len(made) == 3, "the quota and the job each made a backup"
    steps = iter(range(1000))
    status = backups.follow(interval=0.01, stop=lambda: next(steps) > 20)
    assert status.backups == 1, "its own record makes none"
    errors.append(ConfigError("the repository is no directory"))
    with pytest.raises(ConfigError):
        backups.follow(interval=0.01, stop=lambda: next(steps) > 500)


@pytest.mark.nightly
def test_concurrent_prunes_and_private_files(store: Store, repository: Path, tmp_path: Path) -> None:
    for number in range(12):
        store.thread("chat").put({"n": number})
        store.backups(repository).create()
    failures: list[BaseException] = []

    def prune() -> None:
        try:
            with holdfast.open(tmp_path / "store.db") as other:
                for last in (8, 4, 1):
                    other.backups(repository).prune(keep_last=last, grace=0)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=prune) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert store.backups(repository).verify(level="decode").ok
    assert len(store.backups(repository).list()) == 1
    for path in (repository, *repository.rglob("*")):
        assert path.stat().st_mode & 0o077 == 0, path


def test_doctor_misses_a_repository(store: Store, repository: Path) -> None:
    store.thread("chat").put({"n": 1})
    store.backups(repository).create()

    def last() -> CheckResult:
        (found,) = [each for each in run(checks(store._handle)) if each.code == "backup-last"]
        return found

    assert last().ok
    remove_both(repository, manifests(repository)[0])
    assert "not there any more" in last().found
    shutil.rmtree(repository)
    assert not last().ok


def test_a_tenant_sees_its_own_threads_in_a_backup(store: Store, repository: Path, tmp_path: Path) -> None:
    store.thread("secret").put({"n": 1})
    with holdfast.open(tmp_path / "store.db", tenant="acme") as acme:
        acme.thread("theirs").put({"n": 1})
        store.backups(repository).create()
        store.thread("secret-2").put({"n": 1})
        acme.thread("theirs").put({"n": 2})
        store.backups(repository).create()
        assert {each.name for each in acme.backups(repository).show()[1]} == {"theirs"}
        assert {each.name for each in acme.backups(repository).diff("1")} == {"theirs"}
    assert {each.name for each in store.backups(repository).show()[1]} == {"secret", "secret-2", "theirs"}


def test_rows_of_backups_are_checked_where_they_can_differ() -> None:
    """A row that a digest of its block protects has no checksum that could differ; any other one is checked."""
    row = Row(("", "thread", "tag", "name", ""), ("id", 0), wrap(b"text " * 100))
    stored = CHECKSUMS.encode(REFS, row)
    unpacked = unpack_body(stored.body)
    assert unpacked is not None
    in_pack = LineRow(row.columns, unpacked, is_unpacked=True)
    as_stored = LineRow(row.columns, stored.body)
    assert in_pack.stored(REFS.name, row.key) == as_stored.stored(REFS.name, row.key) == stored
    opened, whole = in_pack.in_backup(REFS.name, row.key), as_stored.in_backup(REFS.name, row.key)
    for each in (opened, whole):
        assert BACKUP_ROWS.decode(REFS, each) == BACKUP_ROWS.salvage(REFS, each) == row
        assert not BACKUP_ROWS.is_intact(REFS, each._replace(columns=("other", 0)))
        assert not BACKUP_ROWS.is_intact(REFS, each._replace(body=each.body[:-1] + b"?"))
    assert unwrap(opened.body) == unwrap(row.body)
    empty = CHECKSUMS.encode(REFS, row._replace(body=b""))
    found = LineRow(row.columns, unpack_body(empty.body) or b"", is_unpacked=True).in_backup(REFS.name, row.key)
    assert BACKUP_ROWS.decode(REFS, found).body == b""
    shorter = LineRow(row.columns, unpacked[:-1], is_unpacked=True)
    with pytest.raises(CorruptError, match="the size of a record"):
        shorter.in_backup(REFS.name, row.key)
