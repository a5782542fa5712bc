"""Commands on a served store: with a token, and what they cannot do is refused by name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
from tests.interfaces.cli import kit
from tests.interfaces.http.kit import ServedStore


@pytest.fixture
def served(url: str) -> Iterator[ServedStore]:
    with holdfast.open(url) as store, ServedStore(store, write=True) as served:
        yield served


REFUSED: dict[tuple[str, ...], str] = {
    ("export", "all.hf"): "store.maintenance.export",
    ("import", "all.hf"): "store.maintenance.import_",
    ("copy", "other.db"): "store.maintenance.copy_to",
    ("backup", "create", "-r", "repo"): "Store.backups",
    ("audit", "export", "audit.jsonl"): "store.audit.export",
    ("repair", "--yes"): "store.maintenance.repair",
    ("jobs", "work", "--once"): "not a served one",
    ("jobs", "add", "b", "backup", "--set", "repository=/x"): "'backup'",
    ("alerts", "test"): "store.alerts.test",
    ("serve",): "cannot be served again",
}


def test_what_a_served_store_cannot_do_is_refused_by_name(
    served: ServedStore, tmp_path: Path, subtests: pytest.Subtests
) -> None:
    (tmp_path / "all.hf").write_bytes(b"")
    before = served.store.maintenance.heads().threads
    for words, name in REFUSED.items():
        with subtests.test(words=words):
            done = kit.run("--token", served.token, *words, "--json", store=served.url)
            assert (done.code, done.error["code"]) == (1, "unsupported"), done.err
            assert name in done.error["message"]
            assert served.token not in done.err
    assert served.store.maintenance.heads().threads == before


def test_the_token_is_an_option_or_in_the_environment(
    served: ServedStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    missing = kit.run("threads", "--json", store=served.url)
    assert (missing.code, missing.error["code"]) == (1, "config")
    assert "HOLDFAST_TOKEN" in missing.error["hint"]
    wrong = kit.run("threads", "--json", "--token", "hf_start_wrong", store=served.url)
    assert wrong.error["code"] == "unauthenticated"
    given = kit.run("threads", "--json", "--token", served.token, store=served.url)
    monkeypatch.setenv("HOLDFAST_TOKEN", served.token)
    (tmp_path / "holdfast.toml").write_text(f'[stores.default]\nurl = "{served.url}"\n')
    found = kit.run("threads", "--json")
    assert (given.code, found.code) == (0, 0)
    assert given.out == found.out
    assert "chat/anna" in found.out
    plain = kit.run("threads", "--json", store="http://agents.example.org")
    assert (plain.code, "https://" in plain.error["hint"]) == (1, True)
