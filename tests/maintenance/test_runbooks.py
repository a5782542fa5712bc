"""Each runbook of the guide, run command by command after what it is for has happened."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

import holdfast
from holdfast import Store
from holdfast.backends.interface import Delete
from holdfast.backends.runtime.drivers import run as drive
from holdfast.backends.tables import STEPS
from holdfast.encryption import Encryption, generate_key
from holdfast.errors import ConflictError
from holdfast.security.encryption.provider import FileKeys
from tests.docs.markdown import ROOT
from tests.interfaces.cli import kit

GUIDE = ROOT / "docs" / "guides" / "runbooks.md"
DAMAGED = 5


def runbooks() -> dict[str, list[list[str]]]:
    """Return the commands of each runbook, by blocks."""
    found: dict[str, list[list[str]]] = {}
    title, block = "", None
    for line in GUIDE.read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            title = line[3:]
            found[title] = []
        elif line == "```bash":
            block = list[str]()
            found[title].append(block)
        elif line == "```":
            block = None
        elif block is not None:
            block.append(line)
    return found


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOLDFAST_STORE", "agents.db")
    monkeypatch.setenv("HOLDFAST_BACKUPS", "backups")
    with holdfast.open("agents.db") as opened:
        for number in range(10):
            opened.thread("chat").put({"n": number})
        opened.thread("other").put({"n": 1})
        opened.state(agent="researcher")["goal"] = "find"
        opened.jobs.add("tidy", "tidy", schedule="every 1h")
        opened.backups("backups").create()
        yield opened


def follow_runbook(title: str, exits: Mapping[str, int] | None = None, block: int = 0) -> list[str]:
    """Run the commands of a runbook. `exits` are the codes of those, by their beginning, that do not end with 0."""
    outputs = []
    expected = dict(exits or {})
    for line in runbooks()[title][block]:
        program, *arguments = shlex.split(os.path.expandvars(line))
        assert program == "holdfast"
        result = kit.run(*arguments)
        code = next((expected.pop(start) for start in list(expected) if line.startswith(start)), 0)
        assert result.code == code, f"{line}: {result.code}\n{result.out}{result.err}"
        outputs.append(result.out)
    return outputs


def test_every_runbook_has_a_test() -> None:
    tested = {each.title for each in TESTED}
    assert tested == runbooks().keys()


class _Runbook:
    def __init__(self, title: str) -> None:
        self.title = title

    def __call__(self, test: Callable[..., None]) -> Callable[..., None]:
        TESTED.append(self)
        return test


TESTED: list[_Runbook] = []


@_Runbook("The disk is lost")
def test_the_disk_is_lost(store: Store) -> None:
    store.close()
    Path("agents.db").unlink()
    follow_runbook("The disk is lost")
    with holdfast.open("new.db") as new:
        assert new.thread("chat").get().state == {"n": 9}
        assert new.state(agent="researcher")["goal"] == "find"
        assert not new.jobs.get("tidy").paused


@_Runbook("The store is damaged")
def test_the_store_is_damaged(store: Store) -> None:
    drive(store._engine.context.backend.apply([Delete(STEPS, ("", "chat", 0, 4))]))
    follow_runbook("The store is damaged", {"holdfast verify": DAMAGED})
    with holdfast.open("agents.db") as repaired:
        assert repaired.thread("chat").get(at=4).state == {"n": 4}


@_Runbook("A thread was deleted")
def test_a_thread_was_deleted(store: Store) -> None:
    store.thread("chat").delete()
    store.backups("backups").create(reason="too late")
    with pytest.raises(AssertionError, match="does not have 'chat'"):
        follow_runbook("A thread was deleted")
    shutil.rmtree("backups")
    store.thread("chat").put({"n": 9})
    store.backups("backups").create(accept_loss=True)
    store.thread("chat").delete()
    follow_runbook("A thread was deleted")
    assert store.thread("chat").get().state == {"n": 9}


@_Runbook("A bad deploy wrote nonsense")
def test_a_bad_deploy(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    with holdfast.open("agents.db") as deployed:
        store.thread("chat").put({"n": "saved between two backups"})
        good = store.thread("chat").get().time
        for name in ("chat", "other"):
            deployed.thread(name).put({"n": "nonsense"})
        deployed.state(agent="researcher")["goal"] = "nonsense"
        store.backups("backups").create()
        monkeypatch.setenv("TIME", good.isoformat())
        outputs = follow_runbook("A bad deploy wrote nonsense")
        assert "switch" in outputs[1]
        with holdfast.open("agents.db") as again:
            assert again.thread("chat").get().state == {"n": "saved between two backups"}
            assert again.thread("other").get().state == {"n": 1}
            assert again.state(agent="researcher")["goal"] == "find"
            assert again.thread("chat").get(at="main").state == {"n": "nonsense"}
        with pytest.raises(ConflictError, match="was restored"):
            deployed.thread("chat").put({"n": "more nonsense"})


@_Runbook("A key was stolen")
def test_a_key_was_stolen(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    _private("new.key", generate_key())
    follow_runbook("A key was stolen")
    with holdfast.open("memory://") as new:
        new.backups("new-backups", keys="file:new.key").restore()
        assert new.thread("chat").get().state == {"n": 9}
    stolen, fresh = generate_key(), generate_key()
    _private("store.key", stolen)
    with holdfast.open("sealed.db", encryption=Encryption(FileKeys("store.key"))) as sealed:
        sealed.thread("chat").put({"n": 1})
    monkeypatch.setenv("HOLDFAST_STORE", "sealed.db")
    monkeypatch.setenv("HOLDFAST_ENCRYPTION", "file:store.key")
    _private("store.key", f"{fresh}\n{stolen}")
    follow_runbook("A key was stolen", block=1)
    _private("store.key", fresh)
    with holdfast.open("sealed.db") as sealed:
        assert sealed.thread("chat").get().state == {"n": 1}


@_Runbook("The bucket was ransomed")
def test_the_bucket_was_ransomed(store: Store) -> None:
    store.thread("chat").put({"n": 10})
    store.backups("backups").create()
    for path in sorted(Path("backups/packs").rglob("*")):
        if path.is_file():
            path.write_bytes(b"pay 3 bitcoins")
    outputs = follow_runbook("The bucket was ransomed", {"holdfast backup verify": DAMAGED})
    assert "damaged-pack" in outputs[1]
    with holdfast.open("memory://") as new:
        new.backups("other-backups").restore()
        assert new.thread("chat").get().state == {"n": 10}


def _private(name: str, text: str) -> None:
    path = Path(name)
    path.write_text(text + "\n", encoding="ascii")
    path.chmod(0o600)
