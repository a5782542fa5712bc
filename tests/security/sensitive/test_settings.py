"""Policies by settings: whoever writes, by a program, the command line or HTTP, has them."""

from __future__ import annotations

import base64
from pathlib import Path
from random import Random

import pytest

import holdfast
from holdfast.errors import ConfigError, DeniedError, InvalidError
from tests.interfaces.cli import kit
from tests.interfaces.http.kit import ServedStore
from tests.security.sensitive.samples import github_token

SECRET = github_token(Random("settings"))
KEY = base64.b64encode(b"k" * 32).decode()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOLDFAST_REDACTION_KEYS", KEY)
    for name in ("HOLDFAST_REDACTION", "HOLDFAST_CONFIG", "HOLDFAST_STORE", "HOLDFAST_ENCRYPTION"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def configure(folder: Path, sensitive: str) -> None:
    entry = f"redaction = {sensitive}\n" if sensitive else ""
    (folder / "holdfast.toml").write_text(f'[stores.default]\nurl = "agents.db"\n{entry}')


def written(folder: Path) -> bool:
    """Whether the secret is in the database."""
    return any(SECRET.encode() in path.read_bytes() for path in folder.glob("agents.db*"))


@pytest.mark.parametrize("protected", [False, True], ids=["control", "protected"])
def test_the_command_line_and_http_are_protected(folder: Path, protected: bool) -> None:
    configure(folder, '"tokenise"' if protected else "")
    done = kit.run("state", "set", "user:alice", "note", SECRET, "--text", "--create", "--store", "stores.default")
    assert done.code == 0, done
    assert written(folder) is not protected
    (folder / "agents.db").unlink()
    with holdfast.open() as store:
        store.thread("chat").put({"plan": "x"})
        with ServedStore(store, write=True) as served:
            fork = {"branch": "edited", "at": "HEAD", "changes": {"plan": SECRET}}
            assert served.change("POST", "/threads/chat/forks", fork).status == 201
        state = store.thread("chat").get(at="edited").state
    assert (state["plan"] == SECRET) is not protected
    assert written(folder) is not protected


def test_the_variable_and_tables(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    configure(folder, '["redact:personal", { action = "refuse", formats = ["github-token"], scope = "support-*" }]')
    with holdfast.open("stores.default") as store:
        store.thread("chat").put({"text": f"{SECRET} of alice@example.org"})
        assert store.thread("chat").get().state["text"].startswith(f"{SECRET} of [redacted:email:")
        with pytest.raises(DeniedError):
            store.thread("support-1").put({"text": SECRET})
    monkeypatch.setenv("HOLDFAST_REDACTION", "redact refuse:email")
    with holdfast.open("agents.db") as store:
        assert [each.action for each in store.redaction.list()] == ["redact", "refuse"]
    with holdfast.open("agents.db", read_only=True) as store:
        assert store.redaction.list() == []


@pytest.mark.parametrize(
    ("setting", "error"),
    [
        ("5", ConfigError),
        ('{ acton = "redact" }', ConfigError),
        ('{ action = "redact", scope = 5 }', ConfigError),
        ('{ action = "encrypt", keys = "aws-kms:alias/x" }', ConfigError),
        ('"protect"', InvalidError),
        ('"redact:emial"', InvalidError),
    ],
)
def test_wrong_settings_are_errors(folder: Path, setting: str, error: type[Exception]) -> None:
    configure(folder, setting)
    with pytest.raises(error):
        holdfast.open()


def test_settings_of_jobs_are_refused(folder: Path) -> None:
    configure(folder, '"tokenise:all"')
    with holdfast.open() as store:
        with pytest.raises(DeniedError) as denied:
            store.jobs.add("heads", "heads", settings={"folder": f"/mnt/{SECRET}"})
        assert denied.value.code == "redaction-refused"
        assert SECRET not in str(denied.value)
        assert not written(folder)
        store.jobs.add("heads", "heads", settings={"folder": "/mnt/heads"})
        store.thread("chat").put({"n": 1}, metadata={"subject": "u-1"})
        assert store.erasure.erase("alice@example.org").erased == {}, "an erasure names its subject all the same"
