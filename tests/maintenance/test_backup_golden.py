"""The format of backups is frozen: a repository as version 1 wrote it is read, verified and restored."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import holdfast

GOLDEN = Path(__file__).parents[1] / "golden" / "backup-v1.json"
"""The objects of a repository by name, in base64; `python -m tests.maintenance.test_backup_golden` writes a new one."""


def unpack(folder: Path) -> None:
    """Write the objects of the golden file into a directory."""
    for name, data in json.loads(GOLDEN.read_text(encoding="utf-8")).items():
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


def write_golden(folder: Path) -> None:
    """Write the golden file. Only for a new version of the format: an existing file never changes."""
    with holdfast.open("memory://") as store:
        for number in range(40):
            store.put("chat", {"n": number})
        store.thread("chat").tag("early", at=3)
        store.put("other", {"text": "long text " * 10_000})
        backups = store.backups(folder)
        backups.create(reason="first")
        store.put("chat", {"n": 41})
        store.state(agent="researcher")["goal"] = "find"
        backups.create()
    objects = {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
    text = json.dumps({name: base64.b64encode(data).decode() for name, data in objects.items()}, indent=1)
    GOLDEN.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        write_golden(Path(folder) / "repository")
