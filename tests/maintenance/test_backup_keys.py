"""Encrypted repositories, and backups of encrypted stores."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Store
from holdfast.backends.interface import Delete, Put, Scan
from holdfast.backends.runtime.drivers import run
from holdfast.backends.tables import KEYS, REFS
from holdfast.encryption import Encryption, LocalKeys, generate_key
from holdfast.engine.checked_rows import mark_row, marked_tables
from holdfast.errors import ConfigError, CorruptError, DeniedError, QuotaError, UnsupportedError
from holdfast.maintenance.backup.format import HEADER, seal_object
from holdfast.security.encryption import provider as passphrase
from holdfast.security.encryption.key_rows import destroyed_changes
from holdfast.security.encryption.provider import FileKeys, PassphraseKeys
from tests.interfaces.cli import kit
from tests.maintenance.test_backup import LARGE, both_places, contents, files, fill
from tests.maintenance.test_backup_damage import manifests
from tests.security.encryption.planted import contents_of, find_planted
from tests.security.encryption.test_rotation import a_week_later
from tests.support.nightly import by_day, mostly_nightly

SECRET = "the code of the vault is swordfish"
MASTER, BACKUP = LocalKeys(generate_key()), LocalKeys(generate_key())


@pytest.fixture(autouse=True)
def _cheap_passphrases(monkeypatch: pytest.MonkeyPatch) -> None:
    """By day, a key is derived from a passphrase at a small cost."""
    monkeypatch.setattr(passphrase, "_COST", by_day(passphrase._COST, 1 << 8))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with holdfast.open(tmp_path / "agents.db", encryption=Encryption(MASTER)) as opened:
        yield opened


def private(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    path.chmod(0o600)
    return path


def test_an_encrypted_repository_shows_nothing_and_is_opened_by_its_keys(repository: Path, tmp_path: Path) -> None:
    with holdfast.open("memory://") as store:
        store.thread("chat").put({"text": SECRET})
        backups = store.backups(repository, keys=BACKUP)
        backups.create(reason=SECRET)
        recovery = PassphraseKeys(private(tmp_path / "recovery", "correct horse battery staple"))
        assert backups.add_key(recovery) == "passphrase"
        listed = backups.keys()
        assert {each.master for each in listed} == {BACKUP.key_id, "passphrase"}
        for path, data in files(repository).items():
            assert SECRET.encode() not in data, path
            assert b"chat" not in data
        for keys in (BACKUP, recovery, f"passphrase:{tmp_path / 'recovery'}"):
            with holdfast.open("memory://") as new:
                new.backups(repository, keys=keys).restore()
                assert new.thread("chat").get().state == {"text": SECRET}
        backups.remove_key(BACKUP.key_id)
        with pytest.raises(DeniedError, match="needs master key"):
            backups.list()
        assert len(store.backups(repository, keys=recovery).list()) == 1


def test_wrong_missing_tampered_and_corrupt_are_four_errors(repository: Path, tmp_path: Path) -> None:
    with holdfast.open("memory://") as store:
        store.thread("chat").put({"n": 1})
        backups = store.backups(repository, keys=BACKUP)
        backups.create()
        with pytest.raises(DeniedError) as missing:
            store.backups(repository).list()
        with pytest.raises(DeniedError) as wrong:
            store.backups(repository, keys=LocalKeys(generate_key())).list()
        places = both_places(repository, manifests(repository)[0])
        data = places[0].read_bytes()
        for place in places:
            place.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
        with pytest.raises(CorruptError) as corrupt:
            backups.show("1")
        content = data[HEADER:-1] + bytes([data[-1] ^ 1])
        name = str(places[0].relative_to(repository))
        for place in places:  # by somebody who knows the format
            place.write_bytes(seal_object(b"M", content, name))
        with pytest.raises(CorruptError) as tampered:
            backups.show("1")
        codes = [each.value.code for each in (missing, wrong, corrupt, tampered)]
        assert codes == ["key-missing", "key-wrong", "corrupt", "tampered"]
        assert [each.code for each in backups.verify().findings] == ["damaged-manifest"]
        plain = tmp_path / "plain"
        store.backups(plain).create()
        with pytest.raises(ConfigError, match="not encrypted"):
            store.backups(plain, keys=BACKUP).create()


def test_an_object_under_another_name_is_tampered(repository: Path) -> None:
    with holdfast.open("memory://") as store:
        backups = store.backups(repository, keys=BACKUP)
        for number in range(2):
            store.thread("chat").put({"n": number})
            backups.create()
        first, second = manifests(repository)
        name = str(second.relative_to(repository))
        for place in both_places(repository, second):
            place.write_bytes(seal_object(b"M", first.read_bytes()[HEADER:], name))
        with pytest.raises(CorruptError) as error:
            backups.restore()
        assert error.value.code == "tampered"


@pytest.mark.parametrize("keys", mostly_nightly([BACKUP, None], daily=[BACKUP]), ids=["encrypted", "plain"])
def test_a_sealed_store_stays_sealed_and_comes_back(
    store: Store, keys: LocalKeys | None, repository: Path, tmp_path: Path
) -> None:
    fill(store)
    store.thread("vault").put({"text": SECRET})
    backups = store.backups(repository, keys=keys)
    backups.create()
    store.encryption_keys.rotate()
    store.thread("vault").put({"text": SECRET + "!"})
    backups.create()
    assert backups.verify(level="decode").ok
    assert backups.drill().ok
    for data in files(repository).values():
        assert SECRET.encode() not in data
    # Another machine: of an encrypted repository, its key is enough. The target has keys of its own.
    master = LocalKeys(generate_key()) if keys is not None else LocalKeys(*MASTER.keys())
    with holdfast.open(tmp_path / "new.db", encryption=Encryption(master)) as new:
        new.backups(repository, keys=keys).restore()
        assert contents(new)[1] == contents(store)[1]  # type: ignore[index]
        new.backups(repository, keys=keys).restore(threads=["vault"], at="HEAD~1", as_thread="other vault")
        assert new.thread("other vault").get().state == {"text": SECRET}
        assert new.maintenance.verify(level="decode").ok
    assert SECRET.encode() not in (tmp_path / "new.db").read_bytes()
    with holdfast.open("memory://") as clear:
        with pytest.raises(UnsupportedError, match="not encrypted"):
            clear.backups(repository, keys=keys).restore()
        assert clear.backups(repository, keys=keys).verify().ok, "checking needs no key of the store"
        if keys is None:
            with pytest.raises(DeniedError, match="master key is needed"):
                clear.backups(repository).verify(level="decode")


def test_an_empty_machine_needs_the_repository_and_a_recovery_key_alone(
    store: Store, repository: Path, tmp_path: Path
) -> None:
    """All that the table in docs/backup-format.md says is restored."""
    fill(store)
    store.maintenance.set_quota(threads=3)
    run(store._engine.context.backend.apply([Put(REFS, mark_row("", ["nodes"], 1))]))
    store.thread("other").hold(reason="a case")
    report = store.artifacts.register(b"figures", name="report.csv", type="dataset")
    store.sharing.topic("news").publish("hello")
    store.sessions.start(id="visit").state["n"] = 1
    writer = store.as_identity("agent:writer")
    assert writer.state(agent="researcher")["goal"] == "find"
    audit = [each.action for each in store.audit.query().all()]
    recovery = PassphraseKeys(private(tmp_path / "recovery", "an old sofa, a red kite and 17 spoons"))
    backups = store.backups(repository, keys=BACKUP)
    backups.create()
    backups.add_key(recovery)
    expected = contents(store)
    with holdfast.open(tmp_path / "new.db", encryption=Encryption(LocalKeys(generate_key()))) as new:
        new.backups(repository, keys=recovery).restore()
        assert contents(new)[1] == expected[1]  # type: ignore[index]
        assert new.thread("chat").get(at="early").state["n"] == 5
        assert {each.name for each in new.thread("chat").branches()} == {"main", "draft"}
        assert new.as_identity("agent:writer").state(agent="researcher")["goal"] == "find"
        assert new.artifacts.read(report.id) == b"figures"
        assert [each.value for each in new.sharing.topic("news").read()] == ["hello"]
        assert new.sessions.get("visit").status == "active"
        assert [each.action for each in new.audit.query().all()][-len(audit) :] == audit
        assert new.jobs.get("tidy").paused
        assert run(marked_tables(new._engine.context.backend, "")) == ["nodes"]
        assert new.maintenance.quota() == store.maintenance.quota()
        with pytest.raises(QuotaError):
            new.thread("a fourth thread").put({})
        with pytest.raises(DeniedError, match="a case"):
            new.thread("other").delete()
        # Settings of a store that has some are its own, and so is it that it has none.
        new.maintenance.set_quota(threads=50)
        new.backups(repository, keys=recovery).restore()
        assert new.maintenance.quota().limits.threads == 50
    store.maintenance.set_quota()
    backups.restore(in_place=True)
    assert store.maintenance.quota().limits.threads is None


def erase(store: Store, thread: str) -> None:
    """Destroy the keys of a thread, as an erasure of a person does."""
    keys = store._engine.context.rows.store_keys  # type: ignore[attr-defined]
    ids = [row.columns[0] for row in run(keys.backend.read([Scan(KEYS, ("", thread))]))[0]]
    run(store._engine.context.backend.apply([Delete(KEYS, ("", thread)), *destroyed_changes("", ids, 1)]))


def test_what_was_erased_by_its_key_is_erased_in_backups(store: Store, repository: Path, tmp_path: Path) -> None:
    store.thread("vault").put({"text": SECRET})
    store.thread("deleted").put({"n": 1})
    store.thread("other").put({"n": 1})
    backups = store.backups(repository, keys=BACKUP)
    backups.create()
    store.thread("deleted").delete()
    store.thread("other").put({"n": 2})
    erase(store, "vault")
    backups.restore("1", threads=["deleted"])
    assert store.thread("deleted").get().state == {"n": 1}, "deleting a thread does not reach its backups"
    store.thread("vault").delete()
    assert [each.action for each in backups.restore("1", threads=["vault"]).lines] == ["erased"]
    backups.create()
    report = backups.verify(level="decode")
    assert report.ok, report.findings
    assert report.erased == ("vault",)
    with holdfast.open(tmp_path / "new.db", encryption=Encryption(LocalKeys(generate_key()))) as new:
        restored = new.backups(repository, keys=BACKUP).restore("1")
        assert {each.name: each.action for each in restored.lines if each.kind == "thread"} == {
            "vault": "erased",
            "deleted": "create",
            "other": "create",
        }
        assert new.backups(repository, keys=BACKUP).drill("1").ok
    rings = sum(len(data) for path, data in files(repository).items() if "keyrings" in path.parts)
    assert backups.prune(keep_last=5).shredded == 1
    assert sum(len(data) for path, data in files(repository).items() if "keyrings" in path.parts) < rings
    assert backups.verify(level="decode").erased == ("vault",)
    assert backups.prune(keep_last=5).shredded == 0


def test_a_destroyed_key_does_not_come_back(store: Store, repository: Path, tmp_path: Path) -> None:
    store.thread("chat").put({"n": 1})
    old = store.encryption_keys.list()[0].id
    backups = store.backups(repository, keys=BACKUP)
    backups.create()
    store.encryption_keys.rotate()
    store.encryption_keys.reencrypt()
    store.encryption_keys.destroy(old)
    a_week_later(store)
    store.encryption_keys.destroy(old)
    assert old not in [each.id for each in store.encryption_keys.list()]
    store.thread("chat").put({"n": 2})
    backups.create()
    with holdfast.open(tmp_path / "new.db", encryption=Encryption(LocalKeys(generate_key()))) as new:
        restored = new.backups(repository, keys=BACKUP).restore("1").lines
        assert {each.name: each.action for each in restored}["chat"] == "erased"
        new.backups(repository, keys=BACKUP).restore("2")
        assert new.thread("chat").get(at="HEAD~1").state == {"n": 1}, "it was encrypted anew before"
    assert old not in [each.id for each in store.encryption_keys.list()]


def test_files_of_keys(tmp_path: Path, repository: Path) -> None:
    path = private(tmp_path / "backup.key", generate_key())
    short = private(tmp_path / "short", "1234")
    with holdfast.open("memory://") as store:
        store.backups(repository, keys=f"file:{path}").create()
        os.environ["HOLDFAST_BACKUP_KEYS"] = f"file:{path}"
        try:
            assert len(store.backups(repository).list()) == 1
        finally:
            del os.environ["HOLDFAST_BACKUP_KEYS"]
        backups = store.backups(repository, keys=FileKeys(path))
        with pytest.raises(ConfigError, match="12 characters"):
            backups.add_key(PassphraseKeys(short))
        with pytest.raises(DeniedError, match="no master key"):
            backups.add_key(PassphraseKeys(tmp_path / "nothing"))
        with pytest.raises(holdfast.errors.InvalidError):
            backups.remove_key(backups.keys()[0].master)


def test_keys_on_the_command_line(tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = private(tmp_path / "backup.key", generate_key())
    private(tmp_path / "recovery", "correct horse battery staple")
    monkeypatch.setenv("HOLDFAST_BACKUPS", str(repository))
    monkeypatch.setenv("HOLDFAST_STORE", str(tmp_path / "agents.db"))
    with holdfast.open(tmp_path / "agents.db") as store:
        store.thread("chat").put({"n": 1})
    assert kit.run("backup", "create", "-k", f"file:{path}").code == 0
    assert kit.run("--json", "backup", "list").error["code"] == "key-missing"
    (added,) = kit.run(
        "--json", "backup", "add-key", f"passphrase:{tmp_path / 'recovery'}", "-k", f"file:{path}"
    ).records
    assert added == {"key": "passphrase"}
    monkeypatch.setenv("HOLDFAST_BACKUP_KEYS", f"passphrase:{tmp_path / 'recovery'}")
    listed = kit.run("--json", "backup", "keys").records
    assert {each["key"] for each in listed} == {"passphrase", FileKeys(path).key_id}
    assert "passphrase" in kit.run("backup", "keys").out
    assert kit.run("backup", "keys", "--remove", FileKeys(path).key_id).code == 0
    assert kit.run("--json", "backup", "list", "-k", f"file:{path}").error["code"] == "key-wrong"
    assert kit.run("backup", "verify").code == 0


@pytest.mark.parametrize("is_encrypted", [True, False])
def test_what_was_erased_does_not_come_back(repository: Path, tmp_path: Path, is_encrypted: bool) -> None:
    options: dict[str, Any] = {"encryption": Encryption(MASTER)} if is_encrypted else {}
    with holdfast.open(tmp_path / "agents.db", **options) as store:
        store.thread("theirs").put({"text": SECRET})
        store.erasure.set_subject("u-1842", "theirs")
        store.thread("theirs").put({"text": f"{SECRET}!"})
        store.thread("other").put({"text": "stays"})
        backups = store.backups(repository)
        backups.create()
        with holdfast.open(tmp_path / "before.db", **options) as new:
            new.backups(repository).restore()
            assert new.thread("theirs").get().state == {"text": f"{SECRET}!"}, "the control: it is in the backup"
        store.erasure.erase("u-1842")
        report = backups.restore("1", in_place=True)
        assert not store.threads(prefix="theirs"), report
        assert store.thread("other").get().state == {"text": "stays"}
        assert backups.verify().ok
        backups.create()
    with holdfast.open(tmp_path / "new.db", **options) as new:  # by the ledger in the newest backup, or the lost key
        report = new.backups(repository).restore("1")
        assert {each.name: each.action for each in report.lines}["theirs"] == "erased"
        assert [each.name for each in new.threads()] == ["other"]


NAMES = ("planted divorce", "planted-payroll", "planted.move", "planted-layoffs", "planted whistle")
"""Names that are searched for: of a thread, a user, an agent, a tag and a branch's thread."""


def fill_names(store: Store) -> None:
    """Store something under each of the names."""
    thread, user, agent, tag, other = NAMES
    for number in range(9):
        store.thread(thread).put({"n": number})
    store.thread(thread).tag(tag, at=5)
    store.state(user=user, session="s1")["step"] = 1
    store.state(agent=agent)["goal"] = "find"
    store.thread(other).put({"text": LARGE})
    store.jobs.add("tidy", "tidy", schedule="every 1h")


@pytest.mark.parametrize("hidden", [True, False], ids=["hidden", "control"])
def test_hidden_names_stay_hidden_in_a_backup_and_come_back(hidden: bool, repository: Path, tmp_path: Path) -> None:
    encryption = Encryption(MASTER, hide_names=hidden)
    with holdfast.open(tmp_path / "agents.db", encryption=encryption) as store:
        fill_names(store)
        thread, _, _, tag, other = NAMES
        backups = store.backups(repository)
        backups.create()
        before = datetime.now(UTC)
        store.thread(thread).put({"n": "later"})
        store.thread(other).delete()
        backups.create()
        packs = sorted((repository / "packs").rglob("*"))
        backups.create()
        assert packs == sorted((repository / "packs").rglob("*")), "that it has backups is no change of a store"
        assert {each.name for each in backups.show()[1]} >= {thread}
        assert [each.name for each in backups.diff("2") if each.name == other] == []
        assert [(each.name, each.change) for each in backups.diff("1", "2") if each.name == other] == [
            (other, "removed")
        ]
        assert backups.verify(level="decode").ok
        report = backups.drill()
        assert report.ok, report
        assert report.compared
        assert backups.follow(stop=lambda: True).backups == 1
        found = find_planted({"names": list(NAMES)}, contents_of(repository))
        assert found == (set() if hidden else set(NAMES))
        expected = contents(store)
        store.thread(thread).put({"n": "newer"})
        backups.restore("latest", threads=[thread], in_place=True)
        assert store.thread(thread).get().state == {"n": "later"}
    with holdfast.open(tmp_path / "new.db", encryption=encryption) as new:
        new.backups(repository).restore()
        assert contents(new) == expected
        assert new.thread(thread).get(at=tag).state == {"n": 5}
        new.backups(repository).restore(before, threads=[other])
        assert new.thread(other).get().state == {"text": LARGE}
        assert new.maintenance.verify(level="decode").ok
        new.backups(repository).restore("1", threads=[thread], as_thread="aside")
        assert new.thread("aside").get().state == {"n": 8}
        assert new.jobs.get("tidy").paused
    with holdfast.open(tmp_path / "new.db", encryption=encryption) as again, again.backups(repository).open() as seen:
        assert contents(again)[1].items() >= expected[1].items()  # type: ignore[index]
        assert seen.thread(thread).get().state == {"n": "later"}


def test_hidden_names_are_shown_to_nobody_without_the_key_and_not_by_a_restore(
    repository: Path, tmp_path: Path
) -> None:
    with holdfast.open("memory://", encryption=Encryption(MASTER, hide_names=True)) as store:
        fill_names(store)
        store.backups(repository).create()
    for options in ({}, {"encryption": Encryption(LocalKeys(generate_key()), hide_names=True)}):
        with holdfast.open("memory://", **options) as stranger:  # type: ignore[arg-type]
            backups = stranger.backups(repository)
            assert backups.verify().ok
            names = {each.name for each in backups.show()[1]}
            assert len(names) > 3
            assert names.isdisjoint(NAMES)
            with pytest.raises((DeniedError, UnsupportedError)):
                backups.restore()
    with holdfast.open(tmp_path / "shown.db", encryption=Encryption(MASTER)) as shown:
        with pytest.raises(UnsupportedError, match="hides names") as refused:
            shown.backups(repository).restore()
        assert refused.value.code == "clear-refused"
        assert not shown.threads()


def test_a_person_who_is_erased_has_no_name_in_a_backup_any_more(repository: Path) -> None:
    with holdfast.open("memory://", encryption=Encryption(MASTER, hide_names=True)) as store:
        backups = store.backups(repository)
        store.thread("letters of carol").put({"text": SECRET}, metadata={"subject": "carol"})
        store.thread("other").put({"n": 1})
        backups.create()
        assert {each.name for each in backups.show()[1]} >= {"letters of carol", "other"}
        store.erasure.erase("carol")
        backups.create()
        shown = {each.name for each in backups.show("1")[1]}
        assert "other" in shown
        assert "letters of carol" not in shown
        report = backups.verify(level="decode")
        assert report.ok
        assert len(report.erased) == 1
        with holdfast.open("memory://", encryption=Encryption(MASTER, hide_names=True)) as new:
            assert "erased" in {each.action for each in new.backups(repository).restore("1").lines}
            assert [each.thread for each in new.threads()] == ["other"]
