"""Repositories of backups: pruning, locks, suspensions, drills, following, kills."""

from __future__ import annotations

import asyncio
import itertools
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Store
from holdfast.backends.runtime.drivers import run
from holdfast.engine.context import EngineContext
from holdfast.engine.engine import Engine
from holdfast.errors import DeniedError
from holdfast.maintenance.backup import pruner
from holdfast.maintenance.backup.creator import BackupCreator
from holdfast.maintenance.backup.format import Repack, Slice, pack_name
from holdfast.maintenance.backup.repacker import PackMap
from holdfast.maintenance.backup.repository import Repository, open_repository
from holdfast.maintenance.backup.storage import RepositoryStorage
from holdfast.maintenance.backup.store_record import store_id
from holdfast.maintenance.doctor.result import CheckResult
from tests.maintenance.kit import DAY, Clock, timed
from tests.maintenance.test_backup import both_places, contents, files, fill
from tests.support.interference import Interference, InterferingBackend
from tests.support.nightly import mostly_nightly


def packs(repository: Path) -> list[Path]:
    return [path for path in files(repository) if path.relative_to(repository).parts[0] == "packs"]


def test_retention_and_the_two_phases_of_pruning(repository: Path) -> None:
    clock = Clock()
    store = timed(clock)
    backups = store.backups(repository)
    for day in range(10):
        store.thread("chat").put({"n": day, "text": os.urandom(3000).hex()})
        store.thread("chat").delete() if day == 4 else None
        backups.create(reason="migration" if day in (1, 2) else "")
        clock.now += DAY
    backups.pin("4", reason="the auditors")
    planned = backups.prune(keep_last=3, max_unused=1, dry_run=True)
    kept = {verdict.id.rpartition(".")[2]: verdict.reasons for verdict in planned.verdicts if verdict.kept}
    assert kept.keys() == {"3", "4", "8", "9", "10"}
    assert kept["3"] == ("pinned: last before a migration",)
    assert kept["4"] == ("pinned: the auditors",)
    assert len(backups.list()) == 10
    before = len(packs(repository))
    pruned = backups.prune(keep_last=3, max_unused=1)
    assert pruned.verdicts == planned.verdicts
    assert pruned.recorded == planned.recorded > 0
    assert (pruned.removed, pruned.deleted, len(packs(repository))) == (5, 0, before)
    assert not backups.prune(keep_last=3, max_unused=1).deleted, "the grace period is not over"
    clock.now += 2 * DAY
    swept = backups.prune(keep_last=3, max_unused=1)
    assert swept.deleted == pruned.recorded
    assert len(packs(repository)) == before - swept.deleted
    assert backups.verify(level="hashes").ok
    for number in ("3", "4", "8", "9", "10"):
        with holdfast.open("memory://") as new:
            new.backups(repository).restore(number)


def test_a_legal_hold_keeps_the_only_way_to_what_is_held(repository: Path) -> None:
    clock = Clock()
    store = timed(clock)
    backups = store.backups(repository)

    def kept(by: Store = store) -> dict[str, tuple[str, ...]]:
        report = by.backups(repository).prune(keep_last=1, dry_run=True)
        return {verdict.id.rpartition(".")[2]: verdict.reasons for verdict in report.verdicts if verdict.kept}

    for number in range(6):
        store.thread("case").put({"n": number})
    store.thread("other").put({"n": 1})
    for number in range(4):
        backups.create()
        clock.now += DAY
        store.thread("case").put({"n": 6 + number})
        if number == 0:
            store.maintenance.prune(keep_last=2)
    assert kept().keys() == {"4"}
    store.thread("case").hold(reason="Smith v. Jones")
    assert kept() == {"1": ("legal hold on case: Smith v. Jones",), "4": ("latest", "last")}
    backups.create()
    with holdfast.open("memory://") as another:  # it knows of the hold from the newest backup
        assert kept(another) == {"1": ("legal hold on case: Smith v. Jones",), "5": ("latest", "last")}
    backups.prune(keep_last=1, max_bytes=1)
    assert [each.number for each in backups.list()] == [1, 5]
    with backups.open("1") as past:
        assert len(past.thread("case").log()) == 6
    store.thread("case").release()
    assert kept().keys() == {"5"}


def test_legal_holds_that_cannot_be_read_keep_everything(repository: Path) -> None:
    with holdfast.open("memory://") as store, holdfast.open("memory://") as another:
        for number in range(2):
            store.thread("case").put({"n": number})
            store.backups(repository).create()
        for path in packs(repository):
            path.write_bytes(b"")
        planned = another.backups(repository).prune(keep_last=1, dry_run=True)
        assert [each.kept for each in planned.verdicts] == [True, True]
        assert "cannot be read" in planned.verdicts[0].reasons[0]


def test_packs_that_are_mostly_garbage_are_repacked(repository: Path) -> None:
    store = timed(Clock())
    backups = store.backups(repository)
    for number in range(4):
        store.thread(f"stays-{number}").put({"n": number})
        store.thread("goes").put({"text": os.urandom(8000).hex()})
        backups.create()
        store.thread("goes").delete()
    backups.create()
    assert backups.prune(keep_last=1, grace=0, max_unused=1).repacked == 0
    store.thread("goes").put({"text": os.urandom(8000).hex()})
    backups.create()
    before = {path for path in packs(repository) if path.stat().st_size > 6000}
    with backups.open() as opened:
        planned = backups.prune(keep_last=1, grace=0, dry_run=True)
        assert planned.repacked >= 3
        assert backups.prune(keep_last=1, grace=0).repacked == planned.repacked
        assert before <= {*packs(repository)}, "the old ones stay until the grace period is over"
        assert backups.prune(keep_last=1, grace=0).deleted >= 3
        assert sum(path.stat().st_size for path in packs(repository)) < 25_000
        # Whoever has begun to read, and manifests that name the old packs, find the new ones.
        assert opened.thread("stays-1").get().state == {"n": 1}
    assert backups.verify(level="decode").ok
    for number in range(2):  # also once more what was repacked before
        store.thread(f"stays-{number}").delete()
        backups.create()
        expected = contents(store)
        backups.prune(keep_last=1, grace=0, max_unused=0)
        with holdfast.open("memory://") as new:
            new.backups(repository).restore()
            assert contents(new) == expected, "it has what the store had"
    assert backups.verify(level="decode").ok


def test_damage_is_not_repacked(repository: Path) -> None:
    store = timed(Clock())
    backups = store.backups(repository)
    store.thread("stays").put({"text": "a" * 500})
    store.thread("goes").put({"text": os.urandom(8000).hex()})
    backups.create()
    store.thread("goes").delete()
    backups.create()
    (pack,) = [path for path in packs(repository) if path.stat().st_size > 6000]
    data = bytearray(pack.read_bytes())
    data[60:-60] = bytes(len(data) - 120)
    pack.write_bytes(data)
    assert backups.prune(keep_last=1, grace=0).repacked == 0
    assert pack.exists()
    assert not backups.verify().ok


def test_records_of_repacking_stay_few(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pruner, "MAX_REPACKS", 2)
    clock = Clock()
    store = timed(clock)
    backups = store.backups(repository)
    repacked, records = 0, list[int]()
    for number in range(8):
        store.thread(f"stays-{number}").put({"n": number})
        store.thread("goes").put({"text": os.urandom(2000).hex()})
        backups.create()
        store.thread("goes").delete()
        repacked += backups.prune(keep_last=1, grace=0).repacked > 0
        records.append(len(list((repository / "repacks").glob("*"))))
        clock.now += DAY
    assert repacked > 4 > max(records), records
    assert backups.verify(level="hashes").ok
    backups.create()
    expected = contents(store)
    with holdfast.open("memory://") as new:
        new.backups(repository).restore()
        assert contents(new) == expected
    first = min((repository / "repacks").iterdir())
    data = first.read_bytes()
    for place in both_places(repository, first):
        place.write_bytes(data[:-1])
    report = backups.prune(keep_last=1, grace=0)
    assert [each.id for each in report.unreadable] == [f"repacks/{first.name}"]
    assert (report.deleted, report.recorded, report.repacked) == (0, 0, 0), "nobody can say what is needed"
    assert "damaged-object" in {each.code for each in backups.verify().findings}
    first.write_bytes(data)
    assert [each.code for each in backups.verify().findings] == ["damaged-copy"]
    both_places(repository, first)[1].write_bytes(data)
    assert backups.verify().ok


def test_new_packs_that_are_lost_cost_what_is_in_them() -> None:
    def part(pack: bytes, start: int = 0) -> Slice:
        return Slice(pack * 32, 0, 99, b"d" * 32, start, 10)

    def names(*packs: bytes) -> set[str]:
        return {pack_name(pack * 32) for pack in packs}

    record = Repack(1, [(b"a" * 32, 0, start, part(new, start)) for start, new in ((0, b"b"), (10, b"c"))])
    assert PackMap([record], dict.fromkeys(names(b"b", b"c"), 99)).names({b"a" * 32}) == names(b"b", b"c")
    begun = PackMap([record], dict.fromkeys(names(b"a", b"b"), 99))
    assert begun.names({b"a" * 32}) == names(b"a")
    assert begun.locate(part(b"a")) == part(b"a")
    lost = PackMap([record], dict.fromkeys(names(b"b"), 99))
    assert lost.is_damaged
    assert lost.names({b"a" * 32}) == names(b"b", b"c"), "what is left is needed, and what is missing is known"
    assert lost.locate(part(b"a")) == part(b"b")


def test_a_size_budget(repository: Path) -> None:
    store = timed(Clock())
    backups = store.backups(repository)
    for number in range(3):
        store.thread(f"chat-{number}").put({"text": os.urandom(5000).hex()})
        backups.create()
    assert backups.prune(max_bytes=10**6, dry_run=True).removed == 0
    report = backups.prune(max_bytes=1, dry_run=True)
    assert [each.reasons for each in report.verdicts] == [("over the size limit",)] * 2 + [("latest", "fits")]


def test_nothing_is_deleted_while_deletion_is_suspended(repository: Path) -> None:
    store = timed(Clock())
    backups = store.backups(repository)
    for number in range(3):
        store.thread("chat").put({"n": number})
        backups.create()
    backups.suspend_deletion(reason="an incident")
    with pytest.raises(DeniedError, match="an incident"):
        backups.prune(keep_last=1)
    assert len(backups.list()) == 3
    assert backups.allow_deletion()
    assert backups.prune(keep_last=1).removed == 2


def test_a_lock_is_reported_respected_and_broken_safely(repository: Path) -> None:
    clock = Clock()
    store = timed(clock)
    store.thread("chat").put({"n": 1})
    backups = store.backups(repository)
    backups.create()

    async def crash(repository: Repository) -> BackupCreator:
        await repository.lock(await store_id(store._engine, ""), 2)
        return BackupCreator(store._engine, repository, None, None, "")

    async def scenario() -> None:
        async with open_repository(repository, {}) as opened:
            creator = await crash(opened)
            store_name = await store_id(store._engine, "")
            before = await opened.chain(store_name)
            assert [lock.number for lock in backups.verify().locks] == [2]
            assert backups.prune(keep_last=1, break_locks=True).locks == ()
            # The process that had the lock was only slow: it cannot finish under its number, and starts again.
            assert await creator._make(store_name, before, "late") is None
            made = await creator.create("late")
            assert made.manifest.number == 3

    run(scenario())
    assert [each.number for each in backups.list()] == [1, 3]
    assert backups.verify().ok


def test_a_running_backup_is_safe_from_pruning(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pruning before every object that a backup creates, with no grace at all."""
    clock = Clock()
    store = timed(clock)
    for number in range(3):
        store.thread("chat").put({"n": number})
        store.backups(repository).create()
    create, struck = RepositoryStorage.create, Counter[str]()

    async def prune_first(self: RepositoryStorage, name: str, data: bytes) -> bool:
        monkeypatch.setattr(RepositoryStorage, "create", create)
        struck[name.partition("/")[0]] += 1
        for _ in range(2):
            clock.now += DAY
            timed(clock).backups(repository).prune(keep_last=1, grace=0)
        created = await create(self, name, data)
        for _ in range(2):
            clock.now += DAY
            timed(clock).backups(repository).prune(keep_last=1, grace=0)
        monkeypatch.setattr(RepositoryStorage, "create", prune_first)
        return created

    store.thread("chat").put({"n": "last"})
    monkeypatch.setattr(RepositoryStorage, "create", prune_first)
    store.backups(repository).create()
    monkeypatch.setattr(RepositoryStorage, "create", create)
    assert struck.keys() == {"locks", "packs", "copies", "backups"}
    assert store.backups(repository).verify(level="decode").ok
    with holdfast.open("memory://") as new:
        new.backups(repository).restore()
        assert contents(new) == contents(store)


def test_a_drill_proves_a_backup(repository: Path) -> None:
    store = timed(Clock())
    fill(store)
    backups = store.backups(repository)
    backups.create()
    report = backups.drill()
    assert report.ok
    assert report.lines == backups.list()[0].lines
    assert report.compared
    (check,) = [each for each in run_doctor(store) if each.code == "backup-drill"]
    assert check.ok
    damaged = max(packs(repository), key=lambda path: path.stat().st_size)
    data = bytearray(damaged.read_bytes())
    data[60] ^= 1
    damaged.write_bytes(data)
    assert not backups.drill().ok
    (check,) = [each for each in run_doctor(store) if each.code == "backup-drill"]
    assert not check.ok
    status = store.status().details
    assert str(status["last_drill"]).endswith(", failed")
    assert status["last_backup"]
    (last,) = [each for each in run_doctor(store) if each.code == "backup-last"]
    assert last.ok


def run_doctor(store: Store) -> list[CheckResult]:
    from holdfast.maintenance.doctor.store_checks import checks

    return run(checks(store._handle))


def test_following_a_store(repository: Path, tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "agents.db") as store:
        store.thread("chat").put({"n": 0})
        done, lags = threading.Event(), list[float]()
        follower = threading.Thread(
            target=lambda: store.backups(repository).follow(
                interval=0.05, stop=done.is_set, report=lambda status: lags.append(status.lag)
            )
        )
        follower.start()
        for number in range(5):
            store.thread("chat").put({"n": number})
            time.sleep(0.1)
        done.set()
        follower.join()
        store.thread("chat").put({"n": "while nobody followed"})
        status = store.backups(repository).follow(stop=lambda: True)
        assert status.backups == 1
        assert max(lags) < 5
        with holdfast.open("memory://") as new:
            new.backups(repository).restore()
            assert contents(new) == contents(store)


def test_a_backup_is_open_as_a_store_and_repairs_one(repository: Path, tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "agents.db") as store:
        for number in range(40):
            store.thread("chat").put({"n": number})
        store.backups(repository).create()
        with store.backups(repository).open() as old:
            assert old.thread("chat").get(at=7).state == {"n": 7}
            with pytest.raises(DeniedError):
                old.thread("chat").put({"n": "never"})
        lost = store.thread("chat").get(at=9).hash
        run(_delete_step(store, 9))
        assert not store.maintenance.verify().ok
        with store.backups(repository).open() as old:
            store.maintenance.repair(old)
        assert store.maintenance.verify().ok
        assert store.thread("chat").get(at=9).hash == lost


async def _delete_step(store: Store, number: int) -> None:
    from holdfast.backends.interface import Delete
    from holdfast.backends.tables import STEPS

    await store._engine.context.backend.apply([Delete(STEPS, ("", "chat", 0, number))])
    store._engine.context.cache.clear()


def test_a_clock_that_went_back(repository: Path) -> None:
    clock = Clock()
    store = timed(clock)
    backups = store.backups(repository)
    made = []
    for change in (0, -DAY, DAY // 2, DAY):
        clock.now += change
        store.thread("chat").put({"n": change})
        made.append(backups.create())
    assert [each.number for each in made] == [1, 2, 3, 4]
    assert [each.time for each in made] == sorted(each.time for each in made)
    assert backups.verify().ok


def test_two_processes_make_backups_of_one_store(repository: Path, tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "agents.db") as store, holdfast.open(tmp_path / "agents.db") as other:
        store.thread("chat").put({"n": 0})
        made = list[int]()

        def work(one: Store) -> None:
            for number in range(5):
                one.thread(f"chat {id(one)}").put({"n": number})
                made.append(one.backups(repository).create().number)

        threads = [threading.Thread(target=work, args=(each,)) for each in (store, other)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(made) == list(range(1, 11))
        assert store.backups(repository).verify(level="hashes").ok
        with holdfast.open("memory://") as new:
            new.backups(repository).restore()
            assert contents(new) == contents(store)


FULL = """
import resource, signal, sys
import holdfast
with holdfast.open("memory://") as store:
    store.thread("chat").put({"text": "".join(map(str, range(200_000)))})
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
    try:
        store.backups(sys.argv[1]).create()
    except holdfast.errors.HoldfastError as error:
        print(error.code)
"""


def test_a_full_disk_is_an_error_and_loses_nothing(repository: Path, tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "agents.db") as store:
        store.thread("chat").put({"n": 1})
        store.backups(repository).create()
        done = subprocess.run([sys.executable, "-c", FULL, repository], capture_output=True, text=True, check=False)
        assert done.stdout, done.stderr
        assert store.backups(repository).verify().ok
        assert store.backups(repository).create().number == 2


def test_in_an_event_loop(repository: Path) -> None:
    async def scenario() -> None:
        async with await holdfast.aopen("memory://") as store:
            await store.thread("chat").put({"n": 1})
            made = await store.backups(repository).create()
            async with await store.backups(repository).open(made.id) as old:
                assert (await old.thread("chat").get()).state == {"n": 1}
        async with await holdfast.aopen("memory://") as new:
            await new.backups(repository).restore()
            assert (await new.thread("chat").get()).state == {"n": 1}

    asyncio.run(scenario())


class Crash(BaseException):
    """The process ends here."""


def crash_at(monkeypatch: pytest.MonkeyPatch, number: int, struck: Counter[str]) -> None:
    """Have the process end at a moment: before or after a call that changes a repository."""
    moments = itertools.count(1)

    def crashing(method: str) -> Any:
        original = getattr(RepositoryStorage, method)

        async def call(self: RepositoryStorage, *arguments: Any) -> Any:
            strike("before", method, arguments)
            result = await original(self, *arguments)
            strike("after", method, arguments)
            return result

        return call

    def strike(when: str, method: str, arguments: Sequence[Any]) -> None:
        if next(moments) == number:
            struck[f"{when} {_phase(method, arguments)}"] += 1
            raise Crash

    for method in ("create", "delete"):
        monkeypatch.setattr(RepositoryStorage, method, crashing(method))


def _phase(method: str, arguments: Sequence[Any]) -> str:
    name = arguments[0] if isinstance(arguments[0], str) else next(iter(arguments[0]), "nothing")
    return f"{method} {name.partition('/')[0]}"


PHASES = {
    "create": ["create locks", "create packs", "create backups"],
    "prune": [
        "create removed",
        "delete backups",
        "create repacks",
        "create packs",
        "create sweeps",
        "delete packs",
        "delete sweeps",
        "delete repacks",
        "delete locks",
    ],
}


@pytest.mark.parametrize("kind", mostly_nightly(PHASES, daily=["create"]))
def test_a_crash_at_any_change_of_a_repository(kind: str, tmp_path: Path) -> None:
    struck = Counter[str]()
    crashed, number = True, 0
    while crashed:
        number += 1
        clock = Clock()
        store = timed(clock)
        repository = tmp_path / f"{kind}-{number}"
        backups = store.backups(repository)
        if kind == "prune":  # a pack with what never changes, of which no garbage is made
            store.thread("stays").put({"text": os.urandom(5000).hex()})
            backups.create(), backups.create()
            store.thread("goes").put({"n": 1})
        for each in range(2 if kind == "create" else 3):
            store.thread("chat").put({"n": each})
            store.thread("garbage").put({"text": os.urandom(2000).hex()}) if kind == "prune" else None
            backups.create()
            store.thread("garbage").delete() if kind == "prune" else None
        if kind == "prune":
            assert backups.prune(keep_last=2, grace=0).repacked == 1
            store.thread("goes").delete()  # all that is needed of the pack that was repacked: its record is deleted
            backups.create()  # it leaves a lock that is not open any more
        clock.now += DAY
        store.thread("chat").put({"n": "last"})
        with pytest.MonkeyPatch.context() as patch:
            crash_at(patch, number, struck)
            patch.setattr(pruner, "MAX_REPACKS", 0)  # the record that is left is written again
            try:
                backups.create() if kind == "create" else backups.prune(keep_last=1, grace=0)
                crashed = False
            except Crash:
                pass
        assert backups.verify().ok
        backups.prune(keep_last=1, grace=0)
        backups.create()
        report = backups.verify(level="hashes")
        assert report.ok, report.findings
        with holdfast.open("memory://") as new:
            new.backups(repository).restore()
            assert contents(new) == contents(store)
    assert struck.keys() >= {f"{when} {what}" for when in ("before", "after") for what in PHASES[kind]}, struck


def test_a_crash_at_any_batch_of_a_restore(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.engine.copy.row_writer._JOINT_BYTES", 500)
    source = timed(Clock())
    fill(source)
    source.backups(tmp_path / "repository").create()
    expected = contents(source)
    struck = 0
    for number in itertools.count():
        backend = InterferingBackend()
        store = Store(Engine(EngineContext(backend)), "")

        def crash() -> None:
            raise Crash

        interference = Interference(crash, "apply", number, after=number % 2 == 1)
        try:
            with backend.armed(interference):
                store.backups(tmp_path / "repository").restore()
        except Crash:
            struck += 1
            assert contents(store) in (({}, {}), expected)
            store.backups(tmp_path / "repository").restore()
        assert contents(store) == expected
        if not interference.struck:
            break
    assert struck > 5
