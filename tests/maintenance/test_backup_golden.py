"""The format of backups is frozen: a repository as version 2 wrote it is read, verified and restored."""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path

import pytest

import holdfast
from holdfast.backends.runtime.drivers import run
from holdfast.encryption import Encryption, LocalKeys
from holdfast.errors import UnsupportedError
from holdfast.maintenance.backup import pruner
from holdfast.maintenance.backup.format import pack_name
from holdfast.maintenance.backup.repository import open_repository
from tests.maintenance.test_backup import files
from tests.maintenance.test_backup_keys import erase

GOLDEN = Path(__file__).parents[1] / "golden" / "backup-v2.json"
"""The objects of a repository by name, in base64; `python -m tests.maintenance.test_backup_golden` writes new ones."""

ENCRYPTED = GOLDEN.with_name("backup-v2-encrypted.json")
"""An encrypted repository with a backup of an encrypted store."""

REPACKED = GOLDEN.with_name("backup-v2-repacked.json")
"""A repository of which packs were repacked and deleted, and some of the new ones once more. Records were merged."""

MASTER, BACKUP = LocalKeys(b"m" * 32), LocalKeys(b"b" * 32)


def unpack(folder: Path, golden: Path = GOLDEN) -> None:
    """Write the objects of a golden file into a directory."""
    for name, data in json.loads(golden.read_text(encoding="utf-8")).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(data))


def test_a_repository_of_version_2_is_read(tmp_path: Path) -> None:
    unpack(tmp_path / "repository")
    with holdfast.open("memory://") as store:
        backups = store.backups(tmp_path / "repository")
        assert backups.verify(level="decode").ok
        assert [(each.number, each.reason, each.lines) for each in backups.list()] == [(1, "first", 2), (2, "", 3)]
        backups.restore("1")
        assert store.thread("chat").get().state == {"n": 39}
        assert store.thread("chat").get(at="early").state == {"n": 3}
    with holdfast.open("memory://") as store:
        store.backups(tmp_path / "repository").restore()
        assert store.thread("chat").get().state == {"n": 41}
        assert store.state(agent="researcher")["goal"] == "find"
        made = store.backups(tmp_path / "repository").create()
        assert made.number == 1, "another store has numbers of its own"


def test_a_repository_of_version_1_is_refused(tmp_path: Path) -> None:
    unpack(tmp_path / "repository")
    for path in (tmp_path / "repository").rglob("*"):
        if path.is_file():
            data = path.read_bytes()
            path.write_bytes(data[:5] + b"\1" + data[6:])
    before = files(tmp_path / "repository")
    with holdfast.open("memory://") as store:
        store.thread("chat").put({"n": 1})
        backups = store.backups(tmp_path / "repository")
        for call in (backups.create, backups.list, backups.verify, backups.restore, backups.repair):
            with pytest.raises(UnsupportedError, match="format 1") as refused:
                call()
            assert refused.value.code == "older-format"
    assert files(tmp_path / "repository") == before


def test_an_encrypted_repository_of_version_2_is_read(tmp_path: Path) -> None:
    unpack(tmp_path / "repository", ENCRYPTED)
    with holdfast.open(tmp_path / "new.db", encryption=Encryption(LocalKeys(b"n" * 32))) as store:
        backups = store.backups(tmp_path / "repository", keys=BACKUP)
        assert backups.verify(level="decode").ok
        assert {each.name: each.action for each in backups.restore("1").lines if each.kind == "thread"} == {
            "chat": "create",
            "erased": "erased",
        }
        assert store.thread("chat").get().state == {"n": 39}


def test_a_repacked_repository_of_version_2_is_read(tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    unpack(repository, REPACKED)
    old, named, packs = run(packs_of(repository))
    assert old & named - packs, "the backups name packs that were repacked, and are gone"
    with holdfast.open("memory://") as store:
        backups = store.backups(repository)
        assert backups.verify(level="decode").ok
        backups.restore()
        states = {each.thread: store.thread(each.thread).get().state for each in store.threads()}
        assert states == {"chat": {"n": 7}} | {f"stays-{number}": {"n": number} for number in range(8)}
        assert store.thread("chat").get(at="HEAD~3").state == {"n": 4}
        # It can be pruned further, also by another store.
        assert backups.prune(keep_last=1, grace=0, max_unused=0).repacked
        assert backups.prune(keep_last=1, grace=0).deleted
        assert backups.verify(level="decode").ok


async def packs_of(folder: Path) -> tuple[set[str], set[str], set[str]]:
    """Return the packs of a repository that were repacked, those that backups name, and those that there are."""
    async with open_repository(folder, {}) as repository:
        old = {pack_name(each[0]) for repack in (await repository.repacks()).values() for each in repack.slices}
        backups = await repository.backups()
        named = {pack_name(pack) for each in backups for pack in await repository.packs_of(each.manifest)}
        return old, named, {*await repository.pack_sizes()}


def write_golden(folder: Path) -> None:
    """Write the golden files that there are not. Only for a new version of the format: an existing one never
    changes."""
    for golden, fill in ((GOLDEN, _fill_plain), (ENCRYPTED, _fill_encrypted), (REPACKED, _fill_repacked)):
        if not golden.exists():
            fill(folder / golden.stem)
            _write(folder / golden.stem, golden)


def _fill_plain(folder: Path) -> None:
    with holdfast.open("memory://") as store:
        for number in range(40):
            store.thread("chat").put({"n": number})
        store.thread("chat").tag("early", at=3)
        store.thread("other").put({"text": "long text " * 10_000})
        backups = store.backups(folder)
        backups.create(reason="first")
        store.thread("chat").put({"n": 41})
        store.state(agent="researcher")["goal"] = "find"
        backups.create()


def _fill_encrypted(folder: Path) -> None:
    with holdfast.open(folder.with_name("store.db"), encryption=Encryption(MASTER)) as store:
        for number in range(40):
            store.thread("chat").put({"n": number})
        store.thread("erased").put({"n": 1})
        backups = store.backups(folder, keys=BACKUP)
        backups.create()
        erase(store, "erased")
        store.thread("erased").delete()
        store.thread("chat").put({"n": 40})
        backups.create()


def _fill_repacked(folder: Path) -> None:
    with holdfast.open("memory://") as store, pytest.MonkeyPatch.context() as patch:
        patch.setattr(pruner, "MAX_REPACKS", 2)
        backups = store.backups(folder)
        for number in range(8):
            store.thread("chat").put({"n": number})
            store.thread(f"stays-{number}").put({"n": number})
            store.thread("goes").put({"text": os.urandom(1000).hex()})
            backups.create()
            store.thread("goes").delete()
            backups.prune(keep_last=2, grace=0)
        backups.create()
        backups.prune(keep_last=2, grace=0)


def _write(folder: Path, golden: Path) -> None:
    objects = {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
    text = json.dumps({name: base64.b64encode(data).decode() for name, data in objects.items()}, indent=1)
    golden.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as created:
        write_golden(Path(created))
