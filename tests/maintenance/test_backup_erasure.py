"""Backups of an encrypted store after an erasure: nothing of the person comes back, and everybody else's data does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Store
from holdfast.encryption import Encryption, LocalKeys
from tests.security.erasure.people import by_subject
from tests.support.nightly import mostly_nightly

MASTER, BACKUP = LocalKeys(b"1" * 32), LocalKeys(b"2" * 32)
WORD = "zzq"


@pytest.fixture
def hide_names() -> bool:
    return False


@pytest.fixture
def store(tmp_path: Path, hide_names: bool) -> Iterator[Store]:
    with holdfast.open(tmp_path / "agents.db", encryption=Encryption(MASTER, hide_names=hide_names)) as opened:
        yield opened


def restored(
    path: Path, repository: Path, keys: LocalKeys | None = None, *, hide_names: bool = False, **options: Any
) -> dict[str, Any]:
    """The states of all threads after a restore into a new store."""
    path.unlink(missing_ok=True)
    with holdfast.open(path, encryption=Encryption(MASTER, hide_names=hide_names)) as new:
        new.backups(repository, keys=keys).restore(**options)
        assert new.maintenance.verify(level="decode").ok
        return {each.thread: new.thread(each.thread).get().state for each in new.threads()}


@pytest.mark.parametrize(
    ("keys", "hide_names"),
    mostly_nightly([(None, False), (BACKUP, False), (BACKUP, True)], daily=[(BACKUP, True)]),
    ids=["plain", "encrypted", "hidden"],
)
def test_a_shared_thread_comes_back_without_the_person(
    store: Store, keys: LocalKeys | None, hide_names: bool, tmp_path: Path
) -> None:
    repository, new = tmp_path / "repository", tmp_path / "new.db"
    group = store.thread("group")
    group.put({"m": [WORD]}, metadata={"subject": "u-1"})  # so the thread's key is encrypted by that of u-1
    group.put({"m": [WORD, "ours"]}, metadata={"subject": "u-2"})
    store.thread("mine").put({"m": WORD}, metadata={"subject": "u-1"})
    backups = store.backups(repository, keys=keys)
    first = backups.create().id
    store.erasure.erase("u-1")
    # Before there is another backup, the store itself still has the key.
    report = store.backups(repository, keys=keys).restore(dry_run=True, in_place=True)
    assert {line.name: line.action for line in report.lines if line.kind == "thread"}["group"] != "erased"
    last = backups.create().id
    for pruned in (False, True):
        if pruned:
            assert backups.prune(keep_last=5).shredded == 2  # of the person, and of the thread
        assert restored(new, repository, keys, hide_names=hide_names, backup=last) == {"group": {"m": ["ours"]}}
        assert restored(new, repository, keys, hide_names=hide_names, backup=first) == {"group": {"m": ["ours"]}}
        found = backups.verify(level="decode")
        assert (found.findings, len(found.erased)) == ((), 1)
        assert hide_names or found.erased == ("mine",)  # a name that is hidden goes with the key
        assert backups.drill(backup=first).ok
    group.put({"m": ["ours", "more"]}, metadata={"subject": "u-2"})
    backups.create()
    backups.prune(keep_last=1)
    assert restored(new, repository, keys, hide_names=hide_names) == {"group": {"m": ["ours", "more"]}}


def test_a_person_who_comes_back_has_a_new_key(store: Store, tmp_path: Path) -> None:
    repository, new = tmp_path / "repository", tmp_path / "new.db"
    backups = store.backups(repository)
    store.thread("then").put({"m": WORD}, metadata={"subject": "u-1"})
    first = backups.create().id
    store.erasure.erase("u-1")
    store.thread("now").put({"m": "back"}, metadata={"subject": "u-1"})
    backups.create()
    for pruned in (False, True):
        if pruned:
            backups.prune(keep_last=5)
        assert restored(new, repository) == {"now": {"m": "back"}}
        assert restored(new, repository, backup=first) == {}
        assert backups.verify(level="decode").erased == ("then",)


def test_lines_without_the_key_of_their_person_are_erased_in_backups_too(tmp_path: Path) -> None:
    """Those of a store that was converted, and those that named the person late."""
    path, repository, new = tmp_path / "agents.db", tmp_path / "repository", tmp_path / "new.db"
    with holdfast.open(path, encryption=False) as store:
        store.thread("converted").put({"m": WORD}, metadata={"subject": "u-1"})
        store.state(user="u-1")["note"] = WORD
    with holdfast.open(path, encryption=Encryption(MASTER, mode="turning-on")) as store:
        store.encryption_keys.reencrypt()
    with holdfast.open(path, encryption=Encryption(MASTER)) as store:
        assert by_subject(store, "u-1") == {"converted", "␞user:u-1"}
        late = store.thread("late")
        late.put({"m": 1})
        late.put({"m": WORD}, metadata={"subject": "u-1"})
        store.artifacts.register(b"x" * 2**21, id="file", metadata={"subject": "u-1"})
        store.thread("other").put({"m": 1}, metadata={"subject": "u-2"})
        store.encryption_keys.rotate()
        store.thread("other").put({"m": 2}, metadata={"subject": "u-2"})
        backups = store.backups(repository)
        first = backups.create().id
        assert store.erasure.erase("u-1").certificate.keys_destroyed == 1  # type: ignore[union-attr]
        backups.create()
        for pruned in (False, True):
            if pruned:
                assert backups.prune(keep_last=5).shredded > 3
            erased = backups.verify(level="decode").erased
            assert {"converted", "late", "user:u-1"} < set(erased)
            assert len(erased) == 4, "and the content of the artifact"
            assert restored(new, repository, backup=first) == {"other": {"m": 2}}
