"""Every object of a repository in turn, damaged in every way: all that does not depend on it restores as it was,
`verify` names it, and the next backup and a repair each bring the newest state back."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any, NamedTuple, TypeAlias

import pytest

import holdfast
from holdfast import Store
from holdfast.backends.interface import Put, Scan
from holdfast.backends.runtime.drivers import run
from holdfast.backends.tables import REFS
from holdfast.encryption import Encryption, LocalKeys
from holdfast.engine.namespaces import short_name
from holdfast.maintenance.backup import pruner
from holdfast.maintenance.backup.format import pack_name
from holdfast.maintenance.backup.repacker import pack_map
from holdfast.maintenance.backup.repository import open_repository
from holdfast.maintenance.backup_status import RECORD, SETTING
from holdfast.store.backups import Backups
from tests.maintenance.test_backup import files
from tests.support.cases import case
from tests.support.nightly import by_day, mostly_nightly

MASTER, BACKUP = LocalKeys(b"m" * 32), LocalKeys(b"b" * 32)

States: TypeAlias = dict[str, Any]


class Subject(NamedTuple):
    """A repository, the store that it has backups of, the state of each thread in each backup, and the packs that it
    needs there."""

    repository: Path
    store: Store
    keys: LocalKeys | None
    states: Mapping[str, States]
    packs: Mapping[str, Mapping[str, set[str]]]
    encryption: Any

    def new_store(self) -> Store:
        return holdfast.open("memory://", encryption=self.encryption)

    @contextmanager
    def unchanged_record(self) -> Iterator[None]:
        """Put back what the store remembers of its last backup, after a backup into a copy of the repository."""
        backend = self.store._engine.context.backend
        (rows,) = run(backend.read([Scan(REFS, ("", "", SETTING))]))
        try:
            yield
        finally:
            run(backend.apply([Put(REFS, row) for row in rows if str(row.key[3]).startswith(RECORD)]))

    def is_needed(self, name: str) -> bool:
        """Return whether somebody would miss an object."""
        needed = {each for threads in self.packs.values() for packs in threads.values() for each in packs}
        return name.removeprefix("copies/") in needed if "packs/" in name else not name.startswith(UNNOTICED)

    def backups(self, repository: Path | None = None, store: Store | None = None) -> Backups[Store]:
        return (store or self.store).backups(repository or self.repository, keys=self.keys)


def states_of(store: Store) -> States:
    return {each.thread: store.thread(each.thread).get().state for each in store.threads().all()}


def fill_plain(store: Store, backups: Backups[Store]) -> Iterator[str]:
    for number in range(6):
        store.thread("chat").put({"n": number, "messages": [f"message {each}" for each in range(number)]})
    store.thread("chat").tag("early", at=2)
    store.thread("large").put({"text": "long text " * 7_000})
    store.state(agent="researcher")["goal"] = "find"
    yield backups.create(reason="first").id
    for number in range(3):
        store.thread("chat").put({"n": f"more {number}"})
        store.thread(f"new {number}").put({"text": os.urandom(3000).hex()})
        yield backups.create().id
    backups.pin(backups.list()[1].id)


def fill_repacked(store: Store, backups: Backups[Store]) -> Iterator[str]:
    for number in range(5):
        store.thread("chat").put({"n": number})
        store.thread(f"stays {number}").put({"n": number})
        store.thread("goes").put({"text": os.urandom(2000).hex()})
        backups.create()
        store.thread("goes").delete()
        backups.prune(keep_last=2, grace=0)
    assert list((store_path(backups) / "repacks").iterdir())
    yield backups.create().id


def store_path(backups: Backups[Store]) -> Path:
    return Path(str(backups._target))


FILL: dict[str, Callable[[Store, Backups[Store]], Iterator[str]]] = {
    "plain": fill_plain,
    "encrypted": fill_plain,
    "repacked": fill_repacked,
    "encrypted and repacked": fill_repacked,
}


@contextmanager
def subject_of(kind: str, folder: Path) -> Iterator[Subject]:
    keys = BACKUP if "encrypted" in kind else None
    encryption: Any = Encryption(MASTER) if keys else False
    with holdfast.open(folder / "store.db", encryption=encryption) as store, pytest.MonkeyPatch.context() as patch:
        patch.setattr(pruner, "MAX_REPACKS", 2)
        backups = store.backups(folder / "repository", keys=keys)
        states = {id: states_of(store) for id in FILL[kind](store, backups)}
        assert backups.verify().ok
        packs = run(needed_packs(folder / "repository", keys))
        yield Subject(folder / "repository", store, keys, states, packs, encryption)


async def needed_packs(folder: Path, keys: LocalKeys | None) -> dict[str, dict[str, set[str]]]:
    """Return the packs that each thread of each backup needs."""
    found: dict[str, dict[str, set[str]]] = {}
    async with open_repository(folder, {}, keys=keys) as repository:
        places = await pack_map(repository)
        for backup in await repository.backups():
            found[backup.id] = {
                entry.name: {pack_name(places.locate(part).pack) for chunk in entry.chunks for part in chunk[:2]}
                for entry in await repository.entries(backup.manifest)
            }
            pages = {pack_name(places.locate(part).pack) for part in backup.manifest.pages}
            found[f"lists of {backup.id}"] = {"": pages}
    return found


def flipped(path: Path, other: Path, random: Random) -> None:
    data = bytearray(path.read_bytes())
    data[random.randrange(len(data))] ^= 1 << random.randrange(8)
    path.write_bytes(data)


def truncated(path: Path, other: Path, random: Random) -> None:
    os.truncate(path, random.randrange(1, path.stat().st_size))


def emptied(path: Path, other: Path, random: Random) -> None:
    os.truncate(path, 0)


def deleted(path: Path, other: Path, random: Random) -> None:
    path.unlink()


def swapped(path: Path, other: Path, random: Random) -> None:
    """Exchange an object with another of its folder."""
    data = path.read_bytes()
    path.write_bytes(other.read_bytes())
    other.write_bytes(data)


def of_another_version(path: Path, other: Path, random: Random) -> None:
    """Flip a bit of the byte with the version, which no digest covers."""
    data = bytearray(path.read_bytes())
    data[5] ^= random.choice((1, 16))  # an older version, or a newer one
    path.write_bytes(data)


Damage: TypeAlias = Callable[[Path, Path, Random], None]
DAMAGE: tuple[Damage, ...] = (flipped, truncated, emptied, deleted, swapped)

UNNOTICED = ("locks", "sweeps", "records/notices", "records/withdrawals", "records/damage", "removed")
"""Folders of objects that nothing needs once they are done with, or that others say again: that one is deleted is not
noticed."""


def damaged_copies(
    subject: Subject, folder: Path, random: Random, sample: int, kinds: Sequence[Damage] = DAMAGE
) -> Iterator[tuple[Path, str, set[str]]]:
    """Yield copies of a repository, in each of which one object is damaged, or two are exchanged, the kind of damage,
    and the names of these objects."""
    names = sorted(str(path.relative_to(subject.repository)) for path in files(subject.repository))
    by_folder: dict[str, list[str]] = {}
    for name in names:
        by_folder.setdefault(re.sub("/../[0-9a-f]{64}$|/[^/]*$", "", name), []).append(name)
    for siblings in by_folder.values():
        for name in random.sample(siblings, min(sample, len(siblings))):
            others = [each for each in siblings if each != name]
            for damage in kinds if sample > 1 else random.sample(kinds, 1):
                if damage is swapped and not others:
                    continue
                copy = folder / "damaged"
                shutil.rmtree(copy, ignore_errors=True)
                shutil.copytree(subject.repository, copy)
                other = random.choice(others) if damage is swapped else name
                damage(copy / name, copy / other, random)
                yield copy, damage.__name__, {name, other}


@pytest.mark.parametrize(
    ("kind", "sample"), mostly_nightly([*((kind, 1000) for kind in FILL), ("plain", 1)], daily=[("plain", 1)])
)
def test_every_object_in_turn(kind: str, sample: int, tmp_path: Path, subtests: pytest.Subtests) -> None:
    damage_every_object(kind, sample, DAMAGE, tmp_path, subtests)


@pytest.mark.parametrize("kind", [*FILL])
@pytest.mark.nightly  # by day, other damage to each kind of object
def test_another_version_in_any_object_is_damage(kind: str, tmp_path: Path, subtests: pytest.Subtests) -> None:
    damage_every_object(kind, by_day(1000, 3), [of_another_version], tmp_path, subtests)


def damage_every_object(
    kind: str, sample: int, kinds: Sequence[Damage], folder: Path, subtests: pytest.Subtests
) -> None:
    random = Random(kind)
    with subject_of(kind, folder) as subject:
        assert len(subject.states) > (0 if "repacked" in kind else 3)
        count = 0
        for repository, damage, names in damaged_copies(subject, folder, random, sample, kinds):
            with case(subtests, damage, *sorted(names)):
                check_others(subject, repository, names)
                check_verify(subject, repository, damage, names)
                shutil.rmtree(folder / "repaired", ignore_errors=True)
                shutil.copytree(repository, folder / "repaired")
                check_create(subject, repository)
                check_repair(subject, folder / "repaired", names)
                count += 1
    assert count > (10 if sample > 1 else 5)


def check_others(subject: Subject, repository: Path, names: set[str]) -> None:
    """Restore from each backup what does not need a damaged object: all of it is as it was."""
    for backup, expected in subject.states.items():
        needing = {thread for thread, packs in subject.packs[backup].items() if packs & names}
        chosen = sorted(expected.keys() - needing) if needing else None
        if chosen == []:
            continue
        with subject.new_store() as new:
            subject.backups(repository, new).restore(backup, threads=chosen)
            assert states_of(new) == {thread: expected[thread] for thread in chosen or expected}


def check_verify(subject: Subject, repository: Path, damage: str, names: set[str]) -> None:
    """Require that `verify` names the damaged object, and says nothing of others."""
    with subject.new_store() as other:
        report = subject.backups(repository, other).verify()
    if damage == "deleted":
        names = {name for name in names if subject.is_needed(name)}
        if not names:
            return
    assert not report.ok
    where = " ".join(f"{finding.what} {finding.where}" for finding in report.findings)
    for name in names:
        number = name.rpartition("/")[2].lstrip("0")
        assert name in where or (name.startswith("removed") and f".{number} is missing" in where), report.findings


def check_create(subject: Subject, repository: Path) -> None:
    """Require that the next backup has everything, whatever is damaged in those before it."""
    with subject.unchanged_record():
        made = subject.backups(repository).create()
        assert not made.damaged
    with subject.new_store() as new:
        subject.backups(repository, new).restore()
        assert states_of(new) == states_of(subject.store)


def check_repair(subject: Subject, repository: Path, names: set[str]) -> None:
    """Require that a repair leaves nothing that `verify` finds, that what it lists as lost needs a damaged pack, that
    all the rest is as it was, and that the newest backup has everything."""
    needing = {
        (backup, short_name(thread))
        for backup, threads in subject.packs.items()
        for thread, packs in threads.items()
        if packs & names
    }
    backups = subject.backups(repository)
    with subject.unchanged_record():
        before = files(repository)
        planned = backups.repair(dry_run=True)
        assert files(repository) == before
        report = backups.repair()
        assert (report.rebuilt, report.lost) == (planned.rebuilt, planned.lost)
        lost = {(each.backup, each.thread) for each in report.lost if each.thread or each.backup}
        # Where nothing says that it was removed, a backup that is not there is lost.
        assert lost <= needing or (not any(thread for _, thread in lost) and next(iter(names)).startswith("removed"))
        verified = backups.verify()
        assert verified.ok, verified.findings
        assert not backups.repair().is_changed
    for backup, expected in subject.states.items():
        chosen = sorted(thread for thread in expected if (backup, thread) not in lost)
        if chosen:
            with subject.new_store() as new:
                subject.backups(repository, new).restore(backup, threads=chosen)
                assert states_of(new) == {thread: expected[thread] for thread in chosen}
    with subject.new_store() as new:
        subject.backups(repository, new).restore()
        assert states_of(new) == states_of(subject.store)
