"""`holdfast encryption-keys`: the keys of an encrypted store."""

from __future__ import annotations

import stat
from collections.abc import Callable
from pathlib import Path

import pytest

import holdfast
from holdfast.encryption import Encryption, LocalKeys
from holdfast.security.encryption.provider import FileKeys
from tests.interfaces.cli.kit import Result, run
from tests.security.encryption.test_rotation import a_week_later


def test_keys_are_added_rotated_and_destroyed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, url = tmp_path / "key", f"sqlite:///{tmp_path}/new.db"

    def hf(*arguments: str) -> Result:
        return run(*arguments, store=url)

    added = hf("encryption-keys", "add", "--file", str(path), "--json").records[0]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert added["id"] == FileKeys(path).key_id
    with holdfast.open(url, encryption=Encryption(FileKeys(path))) as store:
        store.thread("t").put({"text": "planted"})
    refused = hf("threads")
    assert refused.code != 0
    assert "without a key" in refused.err
    monkeypatch.setenv("HOLDFAST_ENCRYPTION", f"file:{path}")
    assert "t" in hf("threads").out
    (wrapping, digest) = hf("encryption-keys", "list", "--json").records
    assert (wrapping["kind"], digest["kind"]) == ("wrapping", "digest")
    assert {wrapping["master"], digest["master"]} == {added["id"]}
    assert wrapping["id"] in hf("encryption-keys").out
    # A second master key, before the first.
    second = hf("encryption-keys", "add", "--file", str(path), "--json").records[0]["id"]
    new = hf("encryption-keys", "rotate", "--json").records[0]
    assert new["master"] == second
    assert hf("encryption-keys", "destroy", wrapping["id"], "--yes").code == 4
    assert hf("encryption-keys", "reencrypt", "--json").records[0]["rows"] > 0
    assert hf("encryption-keys", "check").out.startswith("5 keys checked, 0 problems")
    assert "can be destroyed from" in hf("encryption-keys", "destroy", wrapping["id"], "--yes").err
    assert "is kept" in hf("encryption-keys", "destroy", wrapping["id"], "--cancel").err
    assert "at least 7d" in hf("encryption-keys", "destroy", wrapping["id"], "--wait", "0s", "--yes").err
    hf("encryption-keys", "destroy", wrapping["id"], "--yes")
    with holdfast.open(url, encryption=Encryption(FileKeys(path))) as store:
        a_week_later(store)
        store.encryption_keys.destroy(wrapping["id"])
    assert len(hf("encryption-keys", "list", "--json").records) == 2
    path.write_text("\n".join(path.read_text().splitlines()[:1]))  # without the old master key
    assert "planted" in hf("show", "t").out
    assert second not in path.read_text()


def test_a_key_is_printed(hf: Callable[..., Result], tmp_path: Path) -> None:
    printed = hf("encryption-keys", "add")
    assert LocalKeys(printed.out.strip()).key_id in printed.err
    blocked = hf("encryption-keys", "add", "--file", str(tmp_path / "none" / "key"))
    assert blocked.code != 0
    assert "cannot be written" in blocked.err


def test_a_store_that_is_not_encrypted(hf: Callable[..., Result]) -> None:
    for command in ("list", "check", "rotate", "reencrypt"):
        result = hf("encryption-keys", command)
        assert result.code == 1
        assert "not encrypted" in result.err
