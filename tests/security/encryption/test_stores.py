"""Encrypted stores: what a thief finds, and what somebody who can write to the store achieves."""

from __future__ import annotations

import hashlib
import os
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import holdfast
from holdfast.backends.interface import Backend, Create, Delete, Put, Row, Scan
from holdfast.backends.registry import backend_for
from holdfast.backends.runtime.drivers import run
from holdfast.backends.tables import (
    EVENTS,
    JOURNAL,
    KEYS,
    LINES,
    LINKS,
    METADATA,
    NODES,
    QUARANTINE,
    REFS,
    STEPS,
    TABLES,
    WORDS,
    WRITES,
    Table,
)
from holdfast.codec.envelope import wrap
from holdfast.encryption import Encryption, LocalKeys, generate_key
from holdfast.engine.checked_rows import CHECKSUMS
from holdfast.engine.sealed_rows import UNSEALED
from holdfast.errors import ConfigError, CorruptError, DeniedError, HoldfastError, InvalidError, UnsupportedError
from holdfast.security.encryption.provider import EnvironmentKeys
from holdfast.store.checkpointer import Checkpointer
from holdfast.store.store import Store
from holdfast.testing.security.stored_rows import database
from tests.security.encryption.planted import contents_of, find_planted, plant, planted, rows_of


def open_raw(path: Path) -> Backend:
    url = f"sqlite:///{path}"
    return run(backend_for(url).open(url))


# Nothing in the clear ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [20, pytest.param(200, marks=pytest.mark.nightly)])
def test_nothing_that_was_saved_can_be_found(tmp_path: Path, encryption: Encryption, count: int) -> None:
    names = planted(count)
    every = {each for kind in names.values() for each in kind}
    assert len(every) == count
    for folder, key in (("clear", None), ("sealed", encryption)):
        (tmp_path / folder).mkdir()
        store = holdfast.open(tmp_path / folder / "a.db", encryption=key)
        plant(store, names)
        in_files = find_planted(names, contents_of(tmp_path / folder))  # with the log, and freed pages
        raw = open_raw(tmp_path / folder / "a.db")
        in_tables = find_planted(names, rows_of(raw))
        run(raw.close())
        if key is None:
            assert in_files | in_tables == every  # the control: the search finds them all
        else:
            # Names of branches are in columns, and sealed; those of threads, tags and tasks are in keys.
            assert in_files | in_tables == set()
            assert store.thread("chat").get().state["n"] == 39
        store.close()
        assert (find_planted(names, contents_of(tmp_path / folder)) == set()) is (key is not None)


def test_one_field_in_the_clear_is_caught(tmp_path: Path, encryption: Encryption) -> None:
    """The search fails for a store that is encrypted but for one field."""
    names = planted(20)
    with holdfast.open(tmp_path / "a.db", encryption=encryption) as store:
        plant(store, names)
    raw = open_raw(tmp_path / "a.db")
    run(raw.apply([Put(METADATA, Row(("", "chat", "1", "k"), (names["metadata"][0],)))]))
    run(raw.close())
    assert find_planted(names, contents_of(tmp_path)) == {names["metadata"][0]}


def test_a_guess_cannot_be_confirmed(tmp_path: Path, encryption: Encryption) -> None:
    """No digest of content is in the clear that somebody who guesses it could compute."""
    guess = b"the salary is 123456" * 4000
    state = {"note": "the salary is 123456"}
    with holdfast.open(tmp_path / "a.db", encryption=encryption) as store:
        store.thread("t").put({**state, "big": guess})
        store.artifacts.register(guess, id="a")
        assert [each.id for each in store.artifacts.list(sha256=hashlib.sha256(guess).hexdigest())] == ["a"]
        assert store.artifacts.verify("a").stored
    codec = holdfast.codec.default_codec
    digests = [
        hashlib.sha256(each).digest()
        for each in (guess, codec.pack(guess), codec.pack(state), codec.pack(state["note"]), state["note"].encode())
    ]
    raw = open_raw(tmp_path / "a.db")
    found = b"".join(rows_of(raw))
    run(raw.close())
    for digest in digests:
        for form in (digest[:15], digest[:20].hex().encode(), digest.hex()[:30].encode()):
            assert form not in found
    with holdfast.open(tmp_path / "b.db") as store:  # the control: without encryption there is one
        store.artifacts.register(guess, id="a")
    raw = open_raw(tmp_path / "b.db")
    assert digests[0].hex().encode() in b"".join(rows_of(raw))
    run(raw.close())


def test_equal_texts_look_different_in_other_threads(tmp_path: Path, encryption: Encryption) -> None:
    with holdfast.open(tmp_path / "a.db", encryption=encryption) as store:
        for name in ("a", "b"):
            store.thread(name).put({"n": 1}, id="1", metadata={"who": "same"})
    raw = open_raw(tmp_path / "a.db")
    (rows,) = run(raw.read([Scan(STEPS, ())]))
    run(raw.close())
    place = list(STEPS.columns).index("metadata")
    assert len({row.columns[place] for row in rows}) == 2
    assert len({row.body[:44] for row in rows}) == 2  # each has a key of its own


# Errors -----------------------------------------------------------------------------------------------------------


def test_four_errors(tmp_path: Path, encryption: Encryption, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.db"
    with holdfast.open(path, encryption=encryption) as store:
        store.thread("t").put({"n": 1})
    monkeypatch.delenv("HOLDFAST_KEY", raising=False)
    codes = {}
    for name, key in (
        ("none", None),
        ("not set", Encryption(EnvironmentKeys())),
        ("another", Encryption(LocalKeys(generate_key()))),
    ):
        with pytest.raises(DeniedError) as caught:
            holdfast.open(path, encryption=key)
        codes[name] = caught.value.code
    assert codes == {"none": "key-missing", "not set": "key-missing", "another": "key-wrong"}
    for altered, code in ((flip, "corrupt"), (forge, "tampered")):
        raw = open_raw(path)
        (row,) = run(raw.read([Scan(STEPS, ())]))[0]
        run(raw.apply([Put(STEPS, row._replace(body=altered(row.body)))]))
        with holdfast.open(path, encryption=encryption) as store, pytest.raises(CorruptError) as found:
            store.thread("t").get()
        assert found.value.code == code
        run(raw.apply([Put(STEPS, row)]))
        run(raw.close())
    with holdfast.open(path, encryption=encryption) as store:
        assert store.thread("t").get().state == {"n": 1}  # the control
    with holdfast.open(tmp_path / "b.db") as store:
        store.thread("t").put({"n": 1})
    with pytest.raises(ConfigError) as refused:
        holdfast.open(tmp_path / "b.db", encryption=encryption)
    assert refused.value.code == "not-encrypted"
    with pytest.raises(ConfigError) as refused:
        holdfast.open(tmp_path / "b.db").encryption_keys.list()
    assert refused.value.code == "not-encrypted"


def test_what_would_be_in_the_clear_is_refused_by_name(tmp_path: Path) -> None:
    keys = LocalKeys(generate_key())
    with holdfast.open(tmp_path / "a.db", encryption=Encryption(keys)) as store:
        store.thread("t").put({"text": "planted"})
        for act in (store.maintenance.build_index, lambda: store.maintenance.export(tmp_path / "file", format="json")):
            with pytest.raises(UnsupportedError) as caught:
                act()
            assert caught.value.code == "clear-refused"
        assert [each.thread for each in store.search("planted")] == ["t"]  # by decrypting
        assert not (tmp_path / "file").exists()
    with pytest.raises(UnsupportedError, match="readable"):
        holdfast.open(tmp_path / "a.db", encryption=Encryption(keys), project=True)
    allowed = Encryption(keys, clear=("words", "export", "readable"))
    with holdfast.open(tmp_path / "a.db", encryption=allowed, project=True) as store:
        store.maintenance.build_index()
        assert store.maintenance.project() == 1
        assert store.maintenance.export(tmp_path / "file").threads == 1


def test_a_filter_that_is_no_text_is_refused(tmp_path: Path, encryption: Encryption) -> None:
    with holdfast.open(tmp_path / "a.db", encryption=encryption) as store:
        store.artifacts.register(b"x", producer="a")
        assert [each.producer for each in store.artifacts.list(producer="a")] == ["a"]
        with pytest.raises(InvalidError, match="lone surrogates"):
            store.artifacts.list(producer="\ud800")


def test_no_copy_mixes_rows_in_the_clear_with_others(tmp_path: Path, encryption: Encryption) -> None:
    path = tmp_path / "a.db"
    with holdfast.open(tmp_path / "plain.db") as plain, holdfast.open(path, encryption=encryption) as store:
        plain.thread("t").put({"n": 1})
        store.thread("s").put({"n": 2})
        with pytest.raises(DeniedError, match="without a key"):
            plain.maintenance.copy_to(tmp_path / "a.db")
        with pytest.raises(ConfigError, match="not encrypted"):
            store.maintenance.copy_to(tmp_path / "plain.db")
        assert [each.thread for each in store.threads()] == ["s"]
        assert [each.thread for each in plain.threads()] == ["t"]
        plain.maintenance.copy_to(store)
        store.maintenance.copy_to(tmp_path / "new.db")
        assert store.thread("t").get().state == {"n": 1}
    with holdfast.open(tmp_path / "new.db", encryption=encryption) as copy:
        assert copy.thread("s").get().state == {"n": 2}
    every = [row.columns[0] for each in ("a.db", "new.db") for row in _keys_of(tmp_path / each) if row.key[2] == "data"]
    assert len(set(every)) == len(every) >= 4  # a copy has keys of its own


def _keys_of(path: Path) -> list[Row]:
    raw = open_raw(path)
    rows = run(raw.read([Scan(KEYS, ())]))[0]
    run(raw.close())
    return rows


# Attacks ----------------------------------------------------------------------------------------------------------


def flip(body: bytes) -> bytes:
    return body[:-9] + bytes([body[-9] ^ 1]) + body[-8:]


def forge(body: bytes) -> bytes:
    """Flip a bit, and correct the CRC, which anybody can compute."""
    from zlib import crc32

    changed = flip(body)[:-4]
    return changed + crc32(changed).to_bytes(4, "big")


class Victim:
    """A store with two threads, a tenant beside it, and everything as it was before."""

    def __init__(self, folder: Path, encryption: Encryption) -> None:
        self.path, self.encryption = folder / "a.db", encryption
        for tenant in ("", "other"):
            with self.open(tenant) as store:
                for name in ("a", "b"):
                    for number in range(5):
                        store.thread(name).put(
                            {"who": f"{tenant}{name}{number}", "items": list(range(number))}, id=f"{number}"
                        )
                    Checkpointer(store).put_writes(name, "4", [("answer", name)], task_id="task")
                    store.thread(name).tag("v1")
                store.state(agent="r")["x"] = tenant
        self.raw = open_raw(self.path)

    def open(self, tenant: str = "") -> Store:
        return holdfast.open(self.path, tenant=tenant, encryption=self.encryption)

    def rows(self, table: Table, tenant: str, line: str) -> list[Row]:
        return run(self.raw.read([Scan(table, (tenant, line))]))[0]

    def put(self, table: Table, row: Row) -> None:
        run(self.raw.apply([Put(table, row)]))

    def read_all(self) -> None:
        with self.open() as store:
            for name in ("a", "b"):
                for number in range(5):
                    assert store.thread(name).get(f"{number}").state["who"] == f"{name}{number}"
                assert store.thread(name).get("v1").id == "4"
                found = Checkpointer(store).get_tuple(name)
                assert found is not None
                assert [each.value for each in found.pending_writes] == [name]
            for finding in store.maintenance.verify(level="decode").findings:
                raise CorruptError(finding.message)


@pytest.fixture
def victim(tmp_path: Path, encryption: Encryption) -> Iterator[Victim]:
    made = Victim(tmp_path, encryption)
    made.read_all()  # the control
    yield made
    run(made.raw.close())


_ATTACKED = (STEPS, LINES, WRITES, REFS)


def _swap_bodies(victim: Victim, table: Table) -> None:
    one, two = victim.rows(table, "", "a")[-1], victim.rows(table, "", "b")[-1]
    victim.put(table, one._replace(body=two.body))


def _take_from_tenant(victim: Victim, table: Table) -> None:
    one, two = victim.rows(table, "", "a")[-1], victim.rows(table, "other", "a")[-1]
    victim.put(table, one._replace(columns=two.columns, body=two.body))


def _take_from_line(victim: Victim, table: Table) -> None:
    one, two = victim.rows(table, "", "a")[-1], victim.rows(table, "", "b")[-1]
    victim.put(table, one._replace(columns=two.columns, body=two.body))


def _downgrade(victim: Victim, table: Table) -> None:
    """Replace a row by one in the clear, as a store without encryption has it."""
    row = victim.rows(table, "", "a")[-1]
    with holdfast.open(victim.path.with_name("plain.db")) as store:
        for number in range(5):
            store.thread("a").put({"who": f"a{number}", "items": list(range(number))}, id=f"{number}")
        Checkpointer(store).put_writes("a", "4", [("answer", "a")], task_id="task")
        store.thread("a").tag("v1")
    plain = open_raw(victim.path.with_name("plain.db"))
    found = run(plain.read([Scan(table, ("", "a"))]))[0][-1]
    run(plain.close())
    victim.put(table, CHECKSUMS.encode(table, CHECKSUMS.decode(table, found))._replace(key=row.key))


def _truncate(victim: Victim, table: Table) -> None:
    row = victim.rows(table, "", "a")[-1]
    victim.put(table, row._replace(body=row.body[:40]))


def _flip_column(victim: Victim, table: Table) -> None:
    row = victim.rows(table, "", "a")[-1]
    columns = list(row.columns)
    for number, value in enumerate(columns):
        if isinstance(value, int):
            columns[number] = value + 1
            break
    victim.put(table, row._replace(columns=tuple(columns)))


def _forge(victim: Victim, table: Table) -> None:
    row = victim.rows(table, "", "a")[-1]
    victim.put(table, row._replace(body=forge(row.body)))


@pytest.mark.parametrize("table", _ATTACKED, ids=lambda table: table.name)
def test_attacks_are_detected(victim: Victim, table: Table) -> None:
    attacks: list[Callable[[Victim, Table], None]] = [
        _swap_bodies,
        _take_from_tenant,
        _take_from_line,
        _downgrade,
        _truncate,
        _flip_column,
        _forge,
    ]
    for attack in attacks:
        if attack is _flip_column and table is WRITES:
            continue  # it has no numbers in columns
        before = victim.rows(table, "", "a")
        attack(victim, table)
        assert victim.rows(table, "", "a") != before, attack
        with pytest.raises(HoldfastError) as caught:
            victim.read_all()
        assert caught.value.code in ("tampered", "corrupt"), (attack, caught.value)
        for row in before:
            victim.put(table, row)
    victim.read_all()


def test_rows_from_earlier_are_detected(victim: Victim) -> None:
    """Rows of a thread that was deleted do not open in one of the same name; a cut-off end is found given heads."""
    old = victim.rows(STEPS, "", "a")
    with victim.open() as store:
        store.thread("a").delete()
        store.thread("a").put({"who": "new"}, id="0")
        store.thread("a").put({"who": "newer"}, id="1")
        heads = store.maintenance.heads()
        assert store.maintenance.verify(heads=heads).ok  # the control
    replaced, last = victim.rows(STEPS, "", "a")
    for each in old:  # of a thread that was deleted, whose key is gone
        victim.put(STEPS, each)
    with victim.open() as store, pytest.raises(CorruptError) as caught:
        store.thread("a").get()
    assert caught.value.code == "tampered"
    run(victim.raw.apply([Delete(STEPS, ("", "a"))]))
    victim.put(STEPS, replaced)  # a cut-off end
    with victim.open() as store:
        assert store.thread("a").get().state == {"who": "new"}
        assert not store.maintenance.verify(heads=heads).ok
    victim.put(STEPS, last)


def test_keys_of_another_line_or_tenant_do_not_decrypt(victim: Victim) -> None:
    (mine,), (theirs,), (foreign,) = (
        victim.rows(KEYS, tenant, line) for tenant, line in (("", "a"), ("", "b"), ("other", "a"))
    )
    for other in (theirs, foreign):
        opened = CHECKSUMS.decode(KEYS, other)
        victim.put(KEYS, CHECKSUMS.encode(KEYS, Row(mine.key, opened.columns, opened.body)))
        with victim.open() as store, pytest.raises(DeniedError) as caught:
            store.thread("a").get()
        assert caught.value.code in ("key-wrong", "key-missing")
        with victim.open() as store:
            assert not store.encryption_keys.check().ok
    victim.put(KEYS, mine)
    victim.read_all()
    with sqlite3.connect(victim.path) as connection:  # a destroyed key: what it sealed is gone, and nothing else
        connection.execute("DELETE FROM keys WHERE tenant = '' AND line = 'a'")
    connection.close()
    with victim.open() as store:
        with pytest.raises(DeniedError) as gone:
            store.thread("a").get()
        assert gone.value.code == "key-missing"
        assert store.thread("b").get().state["who"] == "b4"


def test_deleting_a_thread_destroys_its_key(victim: Victim) -> None:
    assert victim.rows(KEYS, "", "a")
    with victim.open() as store, victim.open() as another:
        assert another.thread("a").get().state["who"] == "a4"  # it has the key in memory
        store.thread("a").delete()
        assert victim.rows(KEYS, "", "a") == []
        another.thread("a").put({"who": "new"})  # and does not use it any more
        assert store.thread("a").get().state == {"who": "new"}
        (key,) = victim.rows(KEYS, "", "a")
        assert {row.body[12:44] for row in victim.rows(STEPS, "", "a")} == {key.columns[0]}


def test_every_row_of_every_table_is_sealed(tmp_path: Path, encryption: Encryption) -> None:
    with holdfast.open(tmp_path / "a.db", encryption=encryption) as store:
        plant(store, planted(20))
        store.jobs.add("nightly", "prune", schedule="every 1h", settings={"keep_last": 2})
        with pytest.raises(DeniedError):
            store.as_identity(agent="r").state(agent="victim")["x"] = 1
    raw = open_raw(tmp_path / "a.db")
    counts = {}
    for table in TABLES:
        rows = run(raw.read([Scan(table, ())]))[0]
        counts[table.name] = len(rows)
        if table.name not in UNSEALED:
            assert all(row.body[:6] == b"HF\x02\0\0\1" for row in rows), table
    run(raw.close())
    used = (STEPS, NODES, LINES, WRITES, REFS, LINKS, EVENTS, KEYS)
    assert [table.name for table in used if not counts[table.name]] == []
    assert not counts["words"]
    assert not counts["metadata"]


def test_a_forked_child_seals_with_keys_of_its_own(tmp_path: Path, encryption: Encryption) -> None:
    store = holdfast.open(tmp_path / "a.db", encryption=encryption)
    store.thread("t").put({"n": 0})
    child = os.fork()
    if not child:
        try:
            store.thread("t").put({"n": 1})
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    store.thread("t").put({"n": 2})
    assert [store.thread("t").get(each.id).state["n"] for each in store.thread("t").log().all()] == [2, 1, 0]
    store.close()
    raw = open_raw(tmp_path / "a.db")
    bodies = [row.body for row in run(raw.read([Scan(STEPS, ())]))[0]]
    run(raw.close())
    assert len({body[12:44] for body in bodies}) == 1  # one key
    assert len({body[44:60] for body in bodies}) == 2  # two derived from it
    assert len({body[60:72] for body in bodies}) == 3  # and a nonce for each


def test_two_processes_create_the_key_of_a_thread_at_once(tmp_path: Path, encryption: Encryption) -> None:
    """Whoever is second uses the key of the first."""
    one, two = (holdfast.open(tmp_path / "a.db", encryption=Encryption(LocalKeys(b"m" * 32))) for _ in range(2))
    keys = two._engine.context.rows.store_keys  # type: ignore[attr-defined]
    apply, moments = keys.backend.apply, list[object]()

    async def meanwhile(batch):  # type: ignore[no-untyped-def]
        if not moments and any(isinstance(change, Create) and change.space is KEYS for change in batch):
            moments.append(one.thread("t").put({"n": 1}))
        return await apply(batch)

    two._engine.context.backend.inner.inner.apply = meanwhile  # type: ignore[attr-defined]
    two.thread("t").put({"n": 2})
    assert moments
    assert [one.thread("t").get(each.id).state["n"] for each in one.thread("t").log().all()] == [2, 1]
    one.close()
    two.close()
    raw = open_raw(tmp_path / "a.db")
    assert len(run(raw.read([Scan(KEYS, ("", "t"))]))[0]) == 1
    run(raw.close())


def test_a_row_in_the_clear_is_refused_in_every_table(tmp_path: Path, encryption: Encryption) -> None:
    """In the place of a row, and beside it. Tables whose rows are not sealed change no answer."""
    path = tmp_path / "a.db"
    in_clear, sealed = holdfast.open(tmp_path / "clear.db", project=True), holdfast.open(path, encryption=encryption)
    with in_clear as clear, sealed as store:
        for each in (clear, store):
            plant(each, planted(10))
            each.as_identity(user="u").thread("own").put({"n": 1}, metadata={"planted": "no"})
            each.jobs.add("nightly", "prune", schedule="every 1h", settings={"keep_last": 2})
            each.access.grant("user:u", "read", thread="chat")
        clear.maintenance.build_index()
        clear.thread("planted").put({"text": "planted words"}, metadata={"planted": "yes"})
        stored, decoded = database(store), store._engine.context.backend
        run(decoded.apply([Put(QUARANTINE, Row(("", "chat", 0), ("steps", 1, "damaged"), wrap(b"row")))]))
        attacked = set[str]()
        for table in TABLES:
            if table.name in UNSEALED:
                continue
            ((row, *_),) = run(stored.read([Scan(table, (), limit=1)]))
            (opened,) = run(decoded.read([Scan(table, (), limit=1)]))
            for what, plain in (
                ("the same", CHECKSUMS.encode(table, Row(row.key, opened[0].columns, opened[0].body))),
                ("its own columns", CHECKSUMS.encode(table, Row(row.key, row.columns, opened[0].body))),
                ("another line", CHECKSUMS.encode(table, Row(("", "nobody's", *row.key[2:]), *opened[0][1:]))),
            ):
                run(stored.apply([Put(table, plain)]))
                with pytest.raises(CorruptError) as refused:
                    run(decoded.read([Scan(table, plain.key)]))
                assert refused.value.code == "tampered", (table.name, what)
                run(stored.apply([Delete(table, plain.key), Put(table, row)]))
            run(decoded.read([Scan(table, ())]))  # the control
            attacked.add(table.name)
        assert attacked == {table.name for table in TABLES} - UNSEALED
        before = store.search("planted").all(), store.threads(where="meta.planted=yes").all()
        for table in TABLES:
            if table.name in UNSEALED and table not in (KEYS, JOURNAL):
                (rows,) = run(database(clear).read([Scan(table, ())]))
                assert rows or table not in (METADATA, WORDS), table.name
                run(stored.apply([Put(table, row) for row in rows]))
    with holdfast.open(path, encryption=encryption) as store:
        after = store.search("planted").all(), store.threads(where="meta.planted=yes").all()
        assert [list(each) for each in after] == [list(each) for each in before]
