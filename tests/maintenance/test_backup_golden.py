"""The format of backups is frozen: a repository as version 1 wrote it is read, verified and restored."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import holdfast
from holdfast.encryption import Encryption, LocalKeys
from tests.maintenance.test_backup_keys import erase

GOLDEN = Path(__file__).parents[1] / "golden" / "backup-v1.json"
"""The objects of a repository by name, in base64; `python -m tests.maintenance.test_backup_golden` writes new ones."""

ENCRYPTED = GOLDEN.with_name("backup-v1-encrypted.json")
"""An encrypted repository with a backup of an encrypted store."""

MASTER, BACKUP = LocalKeys(b"m" * 32), LocalKeys(b"b" * 32)


def unpack(folder: Path, golden: Path = GOLDEN) -> None:
    """Write the objects of a golden file into a directory."""
    for name, data in json.loads(golden.read_text(encoding="utf-8")).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(data))


def test_a_repository_of_version_1_is_read(tmp_path: Path) -> None:
    unpack(tmp_path / "repository")
    with holdfast.open("memory://") as store:
        backups = store.backups(tmp_path / "repository")
        assert backups.verify(level="decode").ok
        assert [(each.number, each.reason, each.lines) for each in backups.list()] == [(1, "first", 2), (2, "", 3)]
        backups.restore("1")
        assert store.get("chat").state == {"n": 39}
        assert store.get("chat", at="early").state == {"n": 3}
    with holdfast.open("memory://") as store:
        store.backups(tmp_path / "repository").restore()
        assert store.get("chat").state == {"n": 41}
        assert store.state(agent="researcher")["goal"] == "find"
        made = store.backups(tmp_path / "repository").create()
        assert made.number == 1, "another store has numbers of its own"


def test_an_encrypted_repository_of_version_1_is_read(tmp_path: Path) -> None:
    unpack(tmp_path / "repository", ENCRYPTED)
    with holdfast.open(tmp_path / "new.db", encryption=Encryption(LocalKeys(b"n" * 32))) as store:
        backups = store.backups(tmp_path / "repository", keys=BACKUP)
        assert backups.verify(level="decode").ok
        assert {each.name: each.action for each in backups.restore("1").lines if each.kind == "thread"} == {
            "chat": "create",
            "erased": "erased",
        }
        assert store.get("chat").state == {"n": 39}


def write_golden(folder: Path) -> None:
    """Write the golden files. Only for a new version of the format: an existing file never changes."""
    with holdfast.open("memory://") as store:
        for number in range(40):
            store.put("chat", {"n": number})
        store.thread("chat").tag("early", at=3)
        store.put("other", {"text": "long text " * 10_000})
        backups = store.backups(folder / "plain")
        backups.create(reason="first")
        store.put("chat", {"n": 41})
        store.state(agent="researcher")["goal"] = "find"
        backups.create()
    _write(folder / "plain", GOLDEN)
    with holdfast.open(folder / "store.db", encryption=Encryption(MASTER)) as store:
        for number in range(40):
            store.put("chat", {"n": number})
        store.put("erased", {"n": 1})
        backups = store.backups(folder / "encrypted", keys=BACKUP)
        backups.create()
        erase(store, "erased")
        store.delete("erased")
        store.put("chat", {"n": 40})
        backups.create()
    _write(folder / "encrypted", ENCRYPTED)


def _write(folder: Path, golden: Path) -> None:
    objects = {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
    text = json.dumps({name: base64.b64encode(data).decode() for name, data in objects.items()}, indent=1)
    golden.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as created:
        write_golden(Path(created))
