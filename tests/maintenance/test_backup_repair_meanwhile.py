"""A repair of a repository while others make backups and prune: nothing of theirs is lost, in any phase of it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Store
from holdfast.backends.runtime.drivers import run
from holdfast.errors import DeniedError
from holdfast.maintenance.backup.format import REPOSITORY
from holdfast.maintenance.backup.repository import Backup, Repository
from holdfast.maintenance.backup.repository_repairer import RepositoryRepairer
from holdfast.maintenance.backup.storage import open_storage
from holdfast.store.backups import Backups
from tests.maintenance.test_backup_damage import flip
from tests.maintenance.test_backup_objects import states_of
from tests.maintenance.test_backup_reuse import packs
from tests.servers.places import place
from tests.support.nightly import mostly_nightly

PHASES = (
    *("_repair_objects", "_close_gaps", "_read_packs", "_needed", "_rescue", "_delete_useless", "_merge_repacks"),
    "_settle_records",
)
"""The phases of a repair, before which somebody else does something."""


def change(store: Store, backups: Backups[Store]) -> None:
    store.thread("chat").put({"n": "meanwhile"})
    store.thread("new").put({"text": "meanwhile " * 100})
    backups.create()


def prune(store: Store, backups: Backups[Store]) -> None:
    for _ in range(2):  # the second deletes what the first has recorded
        backups.prune(keep_last=2, grace=0, max_unused=0.1)


def change_and_prune(store: Store, backups: Backups[Store]) -> None:
    change(store, backups)
    prune(store, backups)


def fill(store: Store, backups: Backups[Store]) -> None:
    for number in range(6):
        store.thread("chat").put({"n": number})
        store.thread(f"stays {number}").put({"n": number, "text": "stays " * number})
        store.thread("goes").put({"text": f"goes {number} " * 500})
        backups.create()
        store.thread("goes").delete()


def in_another_thread(work: Callable[[], object]) -> threading.Thread:
    failed: list[BaseException] = []

    def call() -> None:
        try:
            work()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    thread.failed = failed  # type: ignore[attr-defined]
    return thread


def wait_for(thread: threading.Thread) -> None:
    thread.join()
    for error in thread.failed:  # type: ignore[attr-defined]
        raise error


@contextmanager
def before(phase: str, work: Callable[[], object]) -> Iterator[list[str]]:
    """Do something once before a phase of a repair."""
    met, original = list[str](), getattr(RepositoryRepairer, phase)

    async def call(self: Any, *arguments: Any) -> Any:
        if not met:
            met.append(phase)
            work()
        return await original(self, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RepositoryRepairer, phase, call)
        yield met


def check(store: Store, repository: str | Path) -> None:
    """Require that the repository is whole, and that its newest backup has what the store has."""
    backups = store.backups(repository)
    backups.repair()
    assert backups.verify(level="hashes").ok
    backups.create()
    for backup in backups.list():
        with holdfast.open("memory://") as new:
            new.backups(repository).restore(backup.id, skip_damaged=True)
    with holdfast.open("memory://") as new:
        new.backups(repository).restore()
        assert states_of(new) == states_of(store)


@pytest.mark.parametrize("phase", mostly_nightly(PHASES, daily=["_needed"]))
@pytest.mark.parametrize("work", mostly_nightly([change, prune, change_and_prune], daily=[change_and_prune]))
def test_others_go_on_meanwhile(work: Callable[[Store, Backups[Store]], None], phase: str, tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    with holdfast.open(tmp_path / "store.db") as store, holdfast.open(tmp_path / "store.db") as other:
        backups = store.backups(repository)
        fill(store, backups)
        prune(store, backups)
        store.thread("chat").put({"n": "last"})
        last = backups.create()
        flip(packs(repository)[-1], 60)
        (repository / "backups").joinpath(last.store, f"{last.number:010d}").write_bytes(b"damaged")

        def meanwhile() -> None:
            wait_for(in_another_thread(lambda: work(other, other.backups(repository))))

        with before(phase, meanwhile) as met:
            report = backups.repair()
        assert met or phase == "_merge_repacks"
        named = {each.backup for each in report.lost if not each.thread}
        assert not named, "a sound backup is not given up"
        newest = backups.list()[-1]
        with holdfast.open("memory://") as new:
            new.backups(repository).restore(newest.id)
            assert states_of(new) == states_of(store)
        check(store, repository)


def test_a_backup_that_is_not_finished_keeps_its_packs(tmp_path: Path) -> None:
    repository, written, repaired = tmp_path / "repository", threading.Event(), threading.Event()
    commit = Repository.commit

    async def late(self: Repository, manifest: Any) -> Backup | None:
        if threading.current_thread() is not threading.main_thread():
            written.set()
            assert repaired.wait(60)
        return await commit(self, manifest)

    with holdfast.open(tmp_path / "store.db") as store, holdfast.open(tmp_path / "store.db") as other:
        backups = store.backups(repository)
        fill(store, backups)
        makers = list[threading.Thread]()

        def begin() -> None:
            makers.append(in_another_thread(lambda: change(other, other.backups(repository))))
            assert written.wait(60)

        with pytest.MonkeyPatch.context() as patch, before("_needed", begin) as met:
            patch.setattr(Repository, "commit", late)
            report = backups.repair()
        repaired.set()
        wait_for(makers[0])
        assert met
        assert not report.is_changed
        with holdfast.open("memory://") as new:
            new.backups(repository).restore()
            assert new.thread("new").get().state == {"text": "meanwhile " * 100}
        check(store, repository)


@pytest.mark.nightly  # a repair beside a writer and a prune by day
def test_a_suspension_stops_a_repair_that_is_running(tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    with holdfast.open(tmp_path / "store.db") as store, holdfast.open(tmp_path / "store.db") as other:
        backups = store.backups(repository)
        fill(store, backups)
        flip(packs(repository)[-1], 60)
        before_repair = {path.name for path in packs(repository)}

        def suspend() -> None:
            wait_for(in_another_thread(lambda: other.backups(repository).suspend_deletion(reason="stop")))

        with before("_needed", suspend), pytest.raises(DeniedError):
            backups.repair()
        assert before_repair <= {path.name for path in packs(repository)}
        backups.allow_deletion()
        check(store, repository)


@pytest.mark.nightly
@pytest.mark.time_limit(300)
def test_a_repository_in_a_bucket_is_repaired(tmp_path: Path) -> None:
    url = place("s3", tmp_path)
    with holdfast.open(tmp_path / "store.db") as store:
        backups = store.backups(url)
        fill(store, backups)
        assert backups.verify().ok
        with damaged_bucket(url) as names:
            assert len(names) > 3
        assert not backups.verify().ok
        report = backups.repair()
        assert report.is_changed
        # The pack may be the one with the settings of the tenant.
        assert {each.what for each in report.lost if not each.thread} <= {"the settings of the tenant"}
        assert backups.verify().ok
        with holdfast.open("memory://") as new:
            new.backups(url).restore()
            assert states_of(new) == states_of(store)


@contextmanager
def damaged_bucket(url: str) -> Iterator[list[str]]:
    """Flip a bit in a pack, empty a manifest, and delete the copy of another."""

    async def damage() -> list[str]:
        storage = open_storage(url, {})
        try:
            pack, *_ = [info.name for info in await storage.list_objects("packs")]
            data = bytearray(await storage.get(pack) or b"")
            data[60] ^= 1
            await storage.replace(pack, bytes(data))
            first, second, *_ = [info.name for info in await storage.list_objects("backups")]
            await storage.replace(first, b"")
            await storage.delete([f"copies/{second}"])
            await storage.replace(REPOSITORY, b"?")
            return [pack, first, second, REPOSITORY]
        finally:
            await storage.close()

    yield run(damage())
