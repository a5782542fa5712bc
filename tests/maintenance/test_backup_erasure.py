"""Backups of an encrypted store after an erasure: nothing of the person comes back, and everybody else's data does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.encryption import Encryption, LocalKeys
from holdfast.store import Store

MASTER, BACKUP = LocalKeys(b"1" * 32), LocalKeys(b"2" * 32)
WORD = "zzq"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with holdfast.open(tmp_path / "agents.db", encryption=Encryption(MASTER)) as opened:
        yield opened


def restored(path: Path, repository: Path, keys: LocalKeys | None = None, **options: Any) -> dict[str, Any]:
    """The states of all threads after a restore into a new store."""
    path.unlink(missing_ok=True)
    with holdfast.open(path, encryption=Encryption(MASTER)) as new:
        new.backups(repository, keys=keys).restore(**options)
        assert new.maintenance.verify(level="decode").ok
        return {each.thread: new.get(each.thread).state for each in new.threads()}


@pytest.mark.parametrize("keys", [None, BACKUP], ids=["plain", "encrypted"])
def test_a_shared_thread_comes_back_without_the_person(store: Store, keys: LocalKeys | None, tmp_path: Path) -> None:
    repository, new = tmp_path / "repository", tmp_path / "new.db"
    group = store.thread("group")
    group.put({"m": [WORD]}, metadata={"subject": "u-1"})  # so the thread's key is encrypted by that of u-1
    group.put({"m": [WORD, "ours"]}, metadata={"subject": "u-2"})
    store.put("mine", {"m": WORD}, metadata={"subject": "u-1"})
    backups = store.backups(repository, keys=keys)
    first = backups.create().id
    store.erasure.erase("u-1")
    # Before there is another backup, the store itself still has the key.
    report = store.backups(repository, keys=keys).restore(dry_run=True, in_place=True)
    assert {line.name: line.action for line in report.lines if line.kind == "thread"}["group"] != "erased"
    last = backups.create().id
    for pruned in (False, True):
        if pruned:
            assert backups.prune(keep_last=5).shredded == 1
        assert restored(new, repository, keys, backup=last) == {"group": {"m": ["ours"]}}
        assert restored(new, repository, keys, backup=first) == {"group": {"m": ["ours"]}}
        found = backups.verify(level="decode")
        assert (found.findings, found.erased) == ((), ("mine",))
        assert backups.drill(backup=first).ok
    group.put({"m": ["ours", "more"]}, metadata={"subject": "u-2"})
    backups.create()
    backups.prune(keep_last=1)
    assert restored(new, repository, keys) == {"group": {"m": ["ours", "more"]}}


def test_a_person_who_comes_back_has_a_new_key(store: Store, tmp_path: Path) -> None:
    repository, new = tmp_path / "repository", tmp_path / "new.db"
    backups = store.backups(repository)
    store.put("then", {"m": WORD}, metadata={"subject": "u-1"})
    first = backups.create().id
    store.erasure.erase("u-1")
    store.put("now", {"m": "back"}, metadata={"subject": "u-1"})
    backups.create()
    for pruned in (False, True):
        if pruned:
            backups.prune(keep_last=5)
        assert restored(new, repository) == {"now": {"m": "back"}}
        assert restored(new, repository, backup=first) == {}
        assert backups.verify(level="decode").erased == ("then",)
