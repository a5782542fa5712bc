"""Backups beside damaged settings, a limit that cannot be met, rules by reason, and repositories without a backup."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
from holdfast import Store
from holdfast.encryption import Encryption, LocalKeys, generate_key
from holdfast.errors import CorruptError
from holdfast.interfaces.cli.exit_codes import FINDINGS, OK
from holdfast.maintenance.backup.repository import Repository
from tests.damaged import flipped
from tests.interfaces.cli import kit
from tests.maintenance.test_backup import files


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/store.db"


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    with holdfast.open(url) as store:
        yield store


def packs(repository: Path) -> set[Path]:
    return {path for path in files(repository) if path.relative_to(repository).parts[0] == "packs"}


def test_damaged_settings_are_left_out_like_damaged_threads(store: Store, repository: Path, tmp_path: Path) -> None:
    for number in range(3):
        store.thread(f"t{number}").put({"n": number})
    backups = store.backups(repository)
    backups.create()
    before = packs(repository)
    store.jobs.add("nightly", "verify", schedule="every 1d")
    store.maintenance.set_quota(threads=10)
    backups.create()
    for pack in packs(repository) - before:
        data = pack.read_bytes()
        size = len(data)
        for at in range(size // 4, size // 2):  # not the lists of lines at its end
            data = flipped(data, at)
        pack.write_bytes(data)
    with holdfast.open(tmp_path / "other.db") as other:
        restored = other.backups(repository)
        with pytest.raises(CorruptError):
            restored.restore("2")
        assert not list(other.threads())
        report = restored.restore("2", skip_damaged=True)
        assert [(each.name, each.action) for each in report.lines if each.action != "create"] == [
            ("settings and jobs", "damaged")
        ]
        assert [each.thread for each in other.threads().all()] == ["t0", "t1", "t2"]
        assert not other.jobs.list()


def test_a_limit_that_cannot_be_met_says_what_keeps_it(store: Store, url: str, repository: Path) -> None:
    backups = store.backups(repository)
    for number in range(4):
        store.thread("t").put({"n": number, "text": f"{number}" * 1000})
        backups.create(reason="release-1" if number == 1 else "")
    backups.pin("1", reason="evidence")
    assert not backups.prune(max_bytes=1 << 30, dry_run=True).excess
    report = backups.prune(max_bytes=100, keep_labels=["release-*"], dry_run=True)
    assert report.excess > 0
    kept = {each.id.partition(".")[2]: each.reasons for each in report.verdicts if each.kept}
    assert kept == {"1": ("pinned: evidence",), "2": ("label release-1",), "4": ("latest",)}
    options = ("--max-size", "100B", "--keep-label", "release-*", "--yes", "-r", repository)
    fits = kit.run("backup", "prune", "--max-size", "1GB", "--dry-run", "-r", repository, store=url)
    assert fits.code == OK
    told = kit.run("backup", "prune", *options, store=url)
    assert told.code == FINDINGS
    assert "over --max-size" in told.err
    assert "pinned: evidence" in told.err
    assert "label release-1" in told.err
    assert [each.number for each in backups.list()] == [1, 2, 4]


def test_other_reasons_keep_nothing(store: Store, repository: Path) -> None:
    backups = store.backups(repository)
    for reason in ("release-1", "daily", "migration of nothing"):
        store.thread("t").put({"reason": reason})
        backups.create(reason=reason)
    store.thread("t").put({"reason": "last"})
    backups.create()
    backups.prune(keep_labels=["release-*"])
    assert [each.reason for each in backups.list()] == ["release-1", ""]


def test_a_repository_without_a_backup_is_not_ok(
    store: Store, url: str, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.thread("t").put({"n": 1})

    async def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Repository, "commit", killed)
        with pytest.raises(KeyboardInterrupt):
            store.backups(repository).create()
    report = store.backups(repository).verify()
    assert [each.code for each in report.findings] == ["no-backup"]
    assert not report.ok
    assert len(report.locks) == 1
    told = kit.run("backup", "verify", "-r", repository, store=url)
    assert told.code == FINDINGS
    assert "OK" not in told.out
    store.backups(repository).create()
    told = kit.run("backup", "verify", "-r", repository, store=url)
    assert (told.code, told.out.strip().endswith("OK")) == (OK, True)
    with monkeypatch.context() as patched:
        patched.setattr(Repository, "commit", killed)
        store.thread("t").put({"n": 2})
        with pytest.raises(KeyboardInterrupt):
            store.backups(repository).create()
    told = kit.run("backup", "verify", "-r", repository, store=url)
    assert told.code == FINDINGS
    assert told.out.strip().endswith("OK, 1 not finished")


@pytest.mark.parametrize("hide_names", [False, True])
def test_reasons_of_an_encrypted_store_are_sealed(repository: Path, tmp_path: Path, hide_names: bool) -> None:
    encryption = Encryption(LocalKeys(generate_key()), hide_names=hide_names)
    with holdfast.open(tmp_path / "secret.db", encryption=encryption) as store:
        backups = store.backups(repository)
        for number, reason in enumerate(("before the merger", "", "daily", "")):
            store.thread("chat").put({"n": number})
            backups.create(reason=reason)
        backups.pin("3", reason="for the merger")
        assert [each.reason for each in backups.list()] == ["before the merger", "", "daily", ""]
        with holdfast.open("memory://") as stranger:
            found = stranger.backups(repository)
            assert [each.reason for each in found.list()] == ["(sealed)", "", "(sealed)", ""]
            kept = found.prune(keep_labels=["before *"], dry_run=True).verdicts
            assert [each.kept for each in kept] == [True, False, True, True], "nobody knows what they say"
        decided = backups.prune(keep_labels=["before *"]).verdicts
        assert [each.reasons for each in decided if each.kept] == [
            ("label before the merger",),
            ("pinned: for the merger",),
            ("latest",),
        ]
    with holdfast.open(tmp_path / "restored.db", encryption=encryption) as other:
        other.backups(repository).restore("latest")
        assert other.thread("chat").get().state == {"n": 3}
        assert other.maintenance.verify().ok


def test_reasons_of_a_plain_store_are_readable(store: Store, repository: Path) -> None:
    store.thread("t").put({})
    store.backups(repository).create(reason="before the merger")
    with holdfast.open("memory://") as stranger:
        assert [each.reason for each in stranger.backups(repository).list()] == ["before the merger"]
