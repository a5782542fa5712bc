"""Files that are written from an encrypted store are encrypted, too: exports, the exported audit, and snapshots."""

from __future__ import annotations

import base64
import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Store, snapshots
from holdfast.access import check_audit
from holdfast.agents import PersistentAgent
from holdfast.encryption import Encryption, LocalKeys
from holdfast.errors import CorruptError, DeniedError
from tests.interfaces.cli import kit

KEYS, OTHERS = LocalKeys(b"f" * 32), LocalKeys(b"g" * 32)
PLANTED = (b"planted-scope", b"planted-key", b"planted-value")


class Clerk(PersistentAgent, name="tests: clerk"):
    """An agent with a list."""

    notes: list[str] = []


def write(store: Store, number: int = 0) -> None:
    state = store.as_identity(agent="clerk").state(agent="clerk")
    state["plan"] = number
    store.state(user="planted-scope")["planted-key"] = "planted-value"


def found_in(path: Path) -> set[bytes]:
    data = path.read_bytes()
    data += gzip.decompress(data) if data.startswith(b"\x1f\x8b") else b""
    return {each for each in PLANTED if each in data}


@pytest.fixture
def store(tmp_path: Path) -> Any:
    with holdfast.open(tmp_path / "a.db", encryption=Encryption(KEYS)) as opened:
        yield opened


def test_an_exported_audit_is_encrypted_and_checked_with_the_key(store: Store, tmp_path: Path) -> None:
    path, clear = tmp_path / "audit.jsonl", tmp_path / "clear.jsonl"
    write(store)
    done = store.audit.export(path)
    assert found_in(path) == set()
    checked = check_audit(path, done.heads, keys=KEYS)
    assert checked.ok
    assert (checked.steps, checked.rows) == (done.steps, done.rows)
    assert checked.rows > 1
    codes = []
    for keys in (None, OTHERS):
        with pytest.raises(DeniedError) as denied:
            check_audit(path, keys=keys)
        codes.append(denied.value.code)
    assert codes == ["key-missing", "key-wrong"]
    with holdfast.open(tmp_path / "a.db", encryption=Encryption(KEYS, clear=["export"])) as allowed:
        allowed.audit.export(clear)
    assert found_in(clear) >= {b"planted-scope"}, "the search finds names that are not encrypted"
    assert check_audit(clear, done.heads).ok
    with pytest.raises(CorruptError, match="not encrypted") as downgraded:
        check_audit(clear, keys=KEYS)
    assert downgraded.value.code == "tampered"


def removed(lines: list[bytes], _: list[bytes]) -> list[bytes]:
    return [*lines[:2], *lines[3:]]


def swapped(lines: list[bytes], _: list[bytes]) -> list[bytes]:
    return [*lines[:2], lines[3], lines[2], *lines[4:]]


def cut(lines: list[bytes], _: list[bytes]) -> list[bytes]:
    return lines[:-1]


def foreign(lines: list[bytes], other: list[bytes]) -> list[bytes]:
    return [*lines[:2], other[2], *lines[3:]]


def another_header(lines: list[bytes], other: list[bytes]) -> list[bytes]:
    return [other[0], *lines[1:]]


def longer(lines: list[bytes], _: list[bytes]) -> list[bytes]:
    return [*lines, lines[-1]]


def in_the_clear(lines: list[bytes], _: list[bytes]) -> list[bytes]:
    return [*lines[:2], b'{"heads": {}}\n', *lines[3:]]


def test_a_changed_audit_is_detected(store: Store, tmp_path: Path) -> None:
    paths = [tmp_path / "1.jsonl", tmp_path / "2.jsonl"]
    for number in range(3):
        write(store, number)
    for path in paths:
        store.audit.export(path)
    lines, other = [path.read_bytes().splitlines(keepends=True) for path in paths]
    assert len(lines) > 6
    changes: list[Callable[[list[bytes], list[bytes]], list[bytes]]]
    changes = [removed, swapped, cut, foreign, another_header, in_the_clear]
    for change in changes:
        paths[0].write_bytes(b"".join(change(lines, other)))
        with pytest.raises(CorruptError):
            check_audit(paths[0], keys=KEYS)
    paths[0].write_bytes(b"".join(lines))
    assert check_audit(paths[0], keys=KEYS).ok


@pytest.mark.parametrize("name", ["export.jsonl", "export.jsonl.gz"])
def test_an_export_is_encrypted_and_imported_with_the_key(name: str, store: Store, tmp_path: Path) -> None:
    path, clear = tmp_path / name, tmp_path / f"clear-{name}"
    for number in range(5):
        store.thread("planted-scope").put({"planted-key": "planted-value", "n": number}, tag=f"t{number}")
    assert store.maintenance.export(path).threads == 1
    assert found_in(path) == set()
    with holdfast.open(tmp_path / "a.db", encryption=Encryption(KEYS, clear=["export"])) as allowed:
        allowed.maintenance.export(clear)
    assert found_in(clear) >= {b"planted-scope"}, "the search finds names that are not encrypted"
    with holdfast.open("memory://", encryption=Encryption(KEYS)) as there:
        there.maintenance.import_(path)
        assert there.thread("planted-scope").get(at="t2").hash == store.thread("planted-scope").get(at="t2").hash
    codes = []
    for encryption in (False, Encryption(OTHERS)):
        with holdfast.open("memory://", encryption=encryption) as stranger:
            with pytest.raises(DeniedError) as denied:
                stranger.maintenance.import_(path)
            assert not stranger.threads()
        codes.append(denied.value.code)
    assert codes == ["key-missing", "key-wrong"]
    if path.suffix != ".gz":
        lines = path.read_bytes().splitlines(keepends=True)
        store.maintenance.export(tmp_path / "other.jsonl")
        other = (tmp_path / "other.jsonl").read_bytes().splitlines(keepends=True)
        for change in (removed, swapped, cut, foreign, another_header, in_the_clear, longer):
            path.write_bytes(b"".join(change(lines, other)))
            with holdfast.open("memory://", encryption=Encryption(KEYS)) as there:
                with pytest.raises(CorruptError):
                    there.maintenance.import_(path)
                assert not there.threads()


def test_the_command_checks_an_encrypted_audit(store: Store, tmp_path: Path) -> None:
    write(store)
    path, key = tmp_path / "audit.jsonl", tmp_path / "key"
    store.audit.export(path)
    key.write_text(base64.b64encode(b"f" * 32).decode(), encoding="ascii")
    key.chmod(0o600)
    assert kit.run("--json", "audit", "check", path).error["code"] == "key-missing"
    assert "OK" in kit.run("audit", "check", path, "--keys", f"file:{key}").out


def test_a_snapshot_of_an_agent_is_encrypted(store: Store, tmp_path: Path) -> None:
    path, clear = tmp_path / "clerk.hfsnap", tmp_path / "clear.hfsnap"
    agent = Clerk().attach(store, "planted-scope")
    agent.notes.append("planted-value")
    info = snapshots.snapshot(agent, path)
    assert found_in(path) == set()
    assert (info.kind, info.name) == ("persistent", "")
    assert snapshots.verify(path).sha256 == info.sha256, "to check that it is whole needs no key"
    with holdfast.open(tmp_path / "a.db", encryption=Encryption(KEYS, clear=["export"])) as allowed:
        snapshots.snapshot(snapshots.StoredAgent(allowed, "planted-scope"), clear)
    assert found_in(clear) == {b"planted-scope", b"planted-value"}
    assert snapshots.restore(path, store=store, agent_id="copy").notes == ["planted-value"]
    with holdfast.open("memory://", encryption=Encryption(KEYS)) as there:
        assert snapshots.restore(path, store=there).notes == ["planted-value"]
    codes = []
    for encryption in (False, Encryption(OTHERS)):
        with (
            holdfast.open("memory://", encryption=encryption) as stranger,
            pytest.raises(DeniedError) as denied,
        ):
            snapshots.restore(path, store=stranger)
        codes.append(denied.value.code)
    assert codes == ["key-missing", "key-wrong"]
