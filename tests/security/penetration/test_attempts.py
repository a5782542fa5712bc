"""The penetration test of `docs/penetration-test.md`: attempts to break in, each with its result. Run them all by
`python -m pytest tests/security/penetration`."""

from __future__ import annotations

import contextlib
import itertools
import logging
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
from holdfast import snapshots
from holdfast.agents import PersistentAgent
from holdfast.backends.interface import Delete, Put, Scan
from holdfast.backends.runtime.drivers import run
from holdfast.backends.tables import EVENTS, KEYS, REFS, STEPS, TABLES
from holdfast.encryption import Encryption, LocalKeys, generate_key
from holdfast.engine.patterns import matcher
from holdfast.errors import ConfigError, DeniedError, HoldfastError, NotFoundError
from holdfast.history.query import Field
from holdfast.security.encryption.provider import FileKeys
from holdfast.store.store import Store
from holdfast.testing.security.stored_rows import database, reopened
from tests.security.encryption.planted import contents_of, find_planted, plant, planted

ROOT = Path(__file__).resolve().parents[3]
KEYS_1 = Encryption(LocalKeys(b"1" * 32))


class Noted(PersistentAgent, name="penetration: noted"):
    note: str = ""


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with holdfast.open(tmp_path / "a.db", encryption=KEYS_1) as opened:
        yield opened


# Encryption ----------------------------------------------------------------------------------------------------------


def test_e1_the_whole_store_is_replaced_by_one_in_the_clear(tmp_path: Path) -> None:
    """Refused: a store without keys does not open with a key."""
    with holdfast.open(tmp_path / "a.db", encryption=KEYS_1) as store:
        store.thread("t").put({"n": 1})
    with holdfast.open(tmp_path / "b.db", encryption=False) as forged:
        forged.thread("t").put({"n": "forged"})
    for path in tmp_path.glob("a.db*"):
        path.unlink()
    shutil.copy(tmp_path / "b.db", tmp_path / "a.db")
    with pytest.raises(ConfigError) as caught:
        holdfast.open(tmp_path / "a.db", encryption=KEYS_1)
    assert caught.value.code == "not-encrypted"


def test_e2_the_whole_store_is_replaced_by_one_with_another_key(tmp_path: Path) -> None:
    """Refused: the key is wrong."""
    with holdfast.open(tmp_path / "a.db", encryption=Encryption(LocalKeys(b"2" * 32))) as forged:
        forged.thread("t").put({"n": "forged"})
    with pytest.raises(DeniedError) as caught:
        holdfast.open(tmp_path / "a.db", encryption=KEYS_1)
    assert caught.value.code == "key-wrong"


def test_e3_all_keys_are_deleted_and_rows_put_in_the_clear(store: Store) -> None:
    """Refused: with rows in the clear in the place of sealed ones, nothing opens."""
    store.thread("t").put({"n": 1})
    backend = database(store)
    with holdfast.open("memory://", encryption=False) as plain:
        plain.thread("t").put({"n": "forged"})
        rows = {table: run(database(plain).read([Scan(table, ("", "t"))]))[0] for table in TABLES}
    for table, found in rows.items():
        run(backend.apply([Delete(table, ("", "t"))]))
        run(backend.apply([Put(table, row) for row in found]))
    run(backend.apply([Delete(KEYS, ("", "t"))]))
    with reopened(store) as again, pytest.raises(HoldfastError) as caught:
        again.thread("t").get()
    assert caught.value.code in ("tampered", "corrupt", "key-missing", "key-wrong")


def test_e4_the_store_is_rolled_back_as_a_whole(tmp_path: Path) -> None:
    """Not found by reading; found given heads."""
    with holdfast.open(tmp_path / "a.db", encryption=KEYS_1) as store:
        store.thread("t").put({"n": 1})
    shutil.copy(tmp_path / "a.db", tmp_path / "old.db")
    with holdfast.open(tmp_path / "a.db", encryption=KEYS_1) as store:
        store.thread("t").put({"n": 2})
        heads = store.maintenance.heads()
    for path in tmp_path.glob("a.db*"):
        path.unlink()
    shutil.copy(tmp_path / "old.db", tmp_path / "a.db")
    with holdfast.open(tmp_path / "a.db", encryption=KEYS_1) as store:
        assert store.thread("t").get().state == {"n": 1}
        assert not store.maintenance.verify(heads=heads).ok


def test_e5_an_older_version_of_a_tag_is_put_back(store: Store) -> None:
    """Not found by reading: a row that changes in place has no version that a reader knows. Found given heads."""
    store.thread("t").put({"n": 1}, id="1")
    store.thread("t").tag("released", at="1")
    old = run(database(store).read([Scan(REFS, ("", "t"))]))[0]
    store.thread("t").put({"n": 2}, id="2")
    store.thread("t").tag("released", at="2", move=True)
    assert store.thread("t").get(at="released").state == {"n": 2}
    heads = store.maintenance.heads()
    run(database(store).apply([Put(REFS, row) for row in old]))
    with reopened(store) as again:
        assert again.thread("t").get(at="released").state == {"n": 1}
        assert again.maintenance.verify().ok
        found = again.maintenance.verify(heads=heads)
    assert not found.ok
    assert "replayed-name" in {each.code.value for each in found.findings}


def test_e6_what_is_saved_is_in_no_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Nothing: at the level DEBUG, also for rows that were tampered with."""
    names = planted(20)
    with caplog.at_level(logging.DEBUG), holdfast.open(tmp_path / "a.db", encryption=KEYS_1) as store:
        plant(store, names)
        (row, *_) = run(database(store).read([Scan(STEPS, ("", "chat"))]))[0]
        run(database(store).apply([Put(STEPS, row._replace(body=row.body[:-1]))]))
        with reopened(store) as again:
            again.maintenance.verify()
    assert find_planted(names, [caplog.text.encode()]) == set()


def test_e7_files_beside_the_store_have_it_in_the_clear(tmp_path: Path) -> None:
    """Backups and exports are sealed. What is meant for others to read is refused unless it is allowed by name."""
    names = planted(20)
    with holdfast.open(tmp_path / "a.db", encryption=KEYS_1) as store:
        plant(store, names)
        store.backups(tmp_path / "backups").create()
        assert store.backups(tmp_path / "backups").verify(level="decode").ok
        assert store.backups(tmp_path / "backups").drill().ok
        assert find_planted(names, contents_of(tmp_path)) == set()
        store.maintenance.export(tmp_path / "sealed.jsonl", kinds="all")
        with pytest.raises(HoldfastError) as caught:
            store.maintenance.export(tmp_path / "export.jsonl", format="json")
        assert caught.value.code == "clear-refused"
        assert find_planted(names, contents_of(tmp_path)) == set()
    with holdfast.open(tmp_path / "plain.db", encryption=False) as plain:  # the control
        plant(plain, names)
        plain.backups(tmp_path / "plain").create()
        plain.maintenance.export(tmp_path / "plain.jsonl")
    assert find_planted(names, [(tmp_path / "plain.jsonl").read_bytes()])
    assert find_planted(names, contents_of(tmp_path / "plain"))


def test_e8_a_key_file_that_others_can_read(tmp_path: Path) -> None:
    """Refused, also behind a link."""
    path = tmp_path / "key"
    path.write_text(generate_key())
    path.chmod(0o644)
    (tmp_path / "link").symlink_to(path)
    for each in (path, tmp_path / "link"):
        with pytest.raises(HoldfastError):
            holdfast.open("memory://", encryption=Encryption(FileKeys(each)))


def test_e9_snapshots_of_an_agent_of_an_encrypted_store(store: Store, tmp_path: Path) -> None:
    """Encrypted, with a key of the file that the master key encrypts. (Found by this test: it was in the clear.)"""
    planted_note = {"note": ["plantednotex0001q"]}
    agent = Noted().attach(store, "n")
    agent.note = "plantednotex0001q"
    agent.save()
    snapshots.snapshot(agent, tmp_path / "sealed.hfsnap")
    store.audit.export(tmp_path / "audit.jsonl")
    assert not find_planted(planted_note, contents_of(tmp_path))
    with holdfast.open("memory://", encryption=False) as thief, pytest.raises(HoldfastError) as caught:
        snapshots.restore(tmp_path / "sealed.hfsnap", store=thief)
    assert caught.value.code == "key-missing"
    with holdfast.open(tmp_path / "b.db", encryption=Encryption(LocalKeys(b"1" * 32), clear=["export"])) as allowed:
        agent = Noted().attach(allowed, "n")
        agent.note = "plantednotex0001q"
        agent.save()
        snapshots.snapshot(agent, tmp_path / "n.hfsnap")
    assert find_planted(planted_note, [(tmp_path / "n.hfsnap").read_bytes()])  # the control


# Access --------------------------------------------------------------------------------------------------------------


def test_a1_whether_a_thread_exists_is_told_by_its_error(store: Store) -> None:
    """It is not: a thread of another's and one that does not exist give the same error."""
    store.as_identity(agent="victim").thread("theirs").put({"n": 1})
    intruder = store.as_identity(agent="intruder")
    found = []
    for name in ("theirs", "missing"):
        with pytest.raises((DeniedError, NotFoundError)) as caught:
            intruder.thread(name).get()
        found.append((type(caught.value), str(caught.value).replace(name, "NAME")))
    assert found[0] == found[1]


def test_a2_words_of_anothers_thread_are_searched_for(store: Store, tmp_path: Path) -> None:
    """Nothing is found, counted or hinted at by a cursor."""
    with holdfast.open(tmp_path / "clear.db", encryption=False) as clear:
        for each in (store, clear):
            victim, intruder = each.as_identity(agent="victim"), each.as_identity(agent="intruder")
            for number in range(30):
                victim.thread(f"v{number}").put({"text": "the word zanzibar"}, metadata={"who": "zanzibar"})
            intruder.thread("mine").put({"text": "mine"})
            for query in ("zanzibar", "zanz*", "meta.who=zanzibar", "thread:v*", "step>=0", "-mine"):
                page = intruder.search(query, limit=1)
                assert [match.thread for match in page.all() if match.thread != "mine"] == []
            assert [each.thread for each in intruder.threads(limit=1).all()] == ["mine"]


def test_a3_a_token_of_a_reader_writes(store: Store) -> None:
    """A token says that it only reads; one that was revoked, altered or cut is none."""
    from holdfast.interfaces.http.authentication import Authenticator

    text = store.access.issue_token("agent:reader", read_only=True).secret
    authenticator = Authenticator(store, start_token=False)
    assert authenticator.by_token(text).read_only
    swapped = text[:-1] + ("A" if text[-1] != "A" else "B")
    for other in (swapped, text[:-1], text + "A", text.upper(), f" {text}", "", "hf_start_", "hf_start_x"):
        with pytest.raises(DeniedError):
            authenticator.by_token(other)
    store.access.revoke_token(store.access.tokens()[0])
    with pytest.raises(DeniedError):
        authenticator.by_token(text)


def test_a4_a_role_is_given_by_whoever_has_it(store: Store) -> None:
    """No identity has access to roles, groups, grants of others, keys, the audit or hooks."""
    acting = store.as_identity(agent="intruder")
    reached = [name for name in dir(acting) if not name.startswith("_")]
    forbidden = {"access", "audit", "keys", "hooks", "maintenance", "jobs", "export", "import_", "copy_to", "backups"}
    assert not forbidden & set(reached)


# Audit ---------------------------------------------------------------------------------------------------------------


def test_u1_records_are_altered_removed_or_cut_off(store: Store) -> None:
    """Found by `audit.verify`; the end, given heads."""
    alice = store.as_identity(agent="alice")
    for number in range(5):
        alice.state(agent="alice")["k"] = number
    with pytest.raises(DeniedError):
        alice.state(agent="bob")["k"] = 1
    assert store.audit.verify().ok
    heads = store.maintenance.heads(kinds="all")
    backend = database(store)
    rows = run(backend.read([Scan(EVENTS, ())]))[0]
    assert len(rows) > 3
    undetected = []
    for row in rows:
        run(backend.apply([Delete(EVENTS, row.key)]))
        with reopened(store) as again:
            try:
                if again.audit.verify().ok and again.maintenance.verify(heads=heads, kinds="all").ok:
                    undetected.append(row.key)
            except HoldfastError:
                pass
        run(backend.apply([Put(EVENTS, row)]))
    assert undetected == []
    with reopened(store) as again:
        assert again.audit.verify().ok


def test_u2_names_forge_lines_of_the_audit(store: Store) -> None:
    """Control characters are escaped, so that a record is one line."""
    intruder = store.as_identity(agent="intruder")
    for key in ("a\nagent:admin allowed", "\x1b[2Jx", "a\r\nb"):
        with pytest.raises(HoldfastError):
            intruder.state(agent="victim")[key] = 1
    run(store._flush_audit())
    for record in store.audit.query(kind="denied"):
        assert not re.search(r"[\x00-\x1f\x7f]", f"{record.scope}{record.key}{record.actor}")


# Filters -------------------------------------------------------------------------------------------------------------


def test_f1_patterns_take_for_ever(store: Store) -> None:
    """Each is compared in time that grows with its length, not exponentially."""
    store.thread("a" * 60).put({"text": "a" * 2000}, metadata={"who": "a" * 2000})
    start = time.process_time()
    for pattern in ("*a" * 16 + "b", "**a" * 40 + "b", "a*" * 200, "?" * 500, "*" * 900):
        with contextlib.suppress(HoldfastError):  # too many stars are refused
            matcher(pattern)("a" * 2000)
        for query in (f"meta.who:{pattern}", f"thread:{pattern}"):
            try:
                store.threads(where=query)
                store.thread("a" * 60).log(where=query)
            except HoldfastError:
                continue
    assert time.process_time() - start < 10
    for pattern in map("".join, itertools.product("ab*", repeat=4)):  # and they match the same as before
        plain = re.compile(".*".join(map(re.escape, pattern.split("*"))))
        for text in map("".join, itertools.product("ab", repeat=4)):
            assert bool(Field("thread", ":", pattern).pattern.fullmatch(text)) == bool(plain.fullmatch(text))


# What the document says ----------------------------------------------------------------------------------------------


def test_every_attempt_is_in_the_document() -> None:
    text = (ROOT / "docs" / "penetration-test.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"^\| ([A-Z]\d+) \|", text, re.MULTILINE))
    own = {name.split("_")[1].upper() for name in globals() if re.match(r"test_[a-z]\d+_", name)}
    assert own
    assert own <= listed
    for name in re.findall(r"`(tests/[\w/]+\.py)`", text):
        assert (ROOT / name).exists(), name
