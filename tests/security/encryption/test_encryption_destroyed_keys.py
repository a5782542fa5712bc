"""Keys that somebody who can write to the database puts back, removes, or gives another state: the store refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

import holdfast
from holdfast import Store
from holdfast.backends.interface import Change, Delete, Put, Row, Scan
from holdfast.backends.runtime.drivers import run
from holdfast.backends.tables import KEYS, TABLES
from holdfast.encryption import Encryption, LocalKeys
from holdfast.errors import CorruptError, DeniedError
from holdfast.security.encryption.key_rows import DESTROYING, LIST, SUBJECT, WRAPPING, KeyRow, digest_list
from holdfast.testing.security.stored_rows import database
from tests.security.encryption.test_rotation import a_week_later


def opened(path: Path, *, hide_names: bool) -> Store:
    return holdfast.open(path, encryption=Encryption(LocalKeys(b"1" * 32), hide_names=hide_names))


def key_rows(store: Store, kind: str) -> list[KeyRow]:
    (rows,) = run(database(store).read([Scan(KEYS, ())]))
    return [stored_key(row) for row in rows if row.key[2] == kind]


def stored_key(row: Row) -> KeyRow:
    return KeyRow(*row.key, *row.columns, row.body)  # type: ignore[arg-type, call-arg]


def put_back(store: Store, row: KeyRow, state: str = "") -> None:
    """Store the row of a key as it was, or with another state, and a checksum that is right."""
    stored = Row(row.key, row.columns, row.wrapped)
    if state:
        stored = KeyRow.of(stored)._replace(state=state).stored()
    run(database(store).apply([Put(KEYS, stored)]))


@pytest.mark.parametrize("hide_names", [False, True], ids=["names", "hidden"])
def test_a_destroyed_key_of_the_tenant_is_refused(hide_names: bool, tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with opened(path, hide_names=hide_names) as store:
        store.thread("t").put({"n": 1})
        (old,) = key_rows(store, WRAPPING)
        store.encryption_keys.rotate()
        store.encryption_keys.reencrypt()
        store.encryption_keys.destroy(old.id.hex())
        a_week_later(store)
        store.encryption_keys.destroy(old.id.hex())
        (new,) = key_rows(store, WRAPPING)
        with opened(path, hide_names=hide_names) as again:
            again.thread("control").put({"n": 1})
            assert again.encryption_keys.check().ok
        put_back(store, old)
        if not hide_names:  # where the checksum needs names that are hidden
            put_back(store, new, "retired")
        with pytest.raises(CorruptError) as refused:
            opened(path, hide_names=hide_names)
        assert refused.value.code == "tampered"


@pytest.mark.parametrize("hide_names", [False, True], ids=["names", "hidden"])
def test_what_was_erased_cannot_be_put_back(hide_names: bool, tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with opened(path, hide_names=hide_names) as store:
        store.thread("t").put({"n": 1}, metadata={"subject": "u-1"})
        (line,) = {row.line for row in key_rows(store, "data")} - {
            row.line for row in key_rows(store, "data") if row.wrapped_by.count(":") < 2
        }
        db = database(store)
        saved = {
            table: [row for row in run(db.read([Scan(table, ())]))[0] if row.key[1:2] == (line,)] for table in TABLES
        }
        (key,) = key_rows(store, SUBJECT)

        def restore_rows() -> None:
            run(db.apply([Put(table, row) for table, rows in saved.items() for row in rows]))

        restore_rows()
        put_back(store, key)
        with opened(path, hide_names=hide_names) as again:
            assert again.thread("t").get().state == {"n": 1}, "the control: they are the rows of the thread"
        store.erasure.erase("u-1")
        restore_rows()
        put_back(store, key)
        with opened(path, hide_names=hide_names) as again:
            if not hide_names:  # which are not known of such a line
                assert any("destroyed" in each for each in again.encryption_keys.check().problems)
            with pytest.raises(CorruptError) as refused:
                again.thread("t").get()
            assert refused.value.code == "tampered"
        if hide_names:
            return
        put_back(store, key, DESTROYING)  # which alone is not refused: but the state is authenticated
        with opened(path, hide_names=hide_names) as again, pytest.raises(DeniedError) as denied:
            again.thread("t").get()
        assert denied.value.code == "key-wrong"


@pytest.mark.parametrize("hide_names", [False, True], ids=["names", "hidden"])
def test_a_rotation_cannot_be_turned_back(hide_names: bool, tmp_path: Path, subtests: pytest.Subtests) -> None:
    path = tmp_path / "a.db"
    with opened(path, hide_names=hide_names) as store:
        store.thread("t").put({"n": 1})
        db = database(store)
        first = run(db.read([Scan(KEYS, ("", ""))]))[0]
        store.encryption_keys.rotate()
        store.encryption_keys.reencrypt()
        rows = run(db.read([Scan(KEYS, ("", ""))]))[0]
        old, new = (row for row in rows if row.key[2] == WRAPPING)
        digest = next(row for row in rows if row.key[2] == "digest")
        (listed,) = (row for row in rows if row.key[2] == LIST)
        (listed_first,) = (row for row in first if row.key[2] == LIST)

        def with_state(row: Row, state: str, time: int = 0) -> Row:
            key = KeyRow.of(row)
            return key._replace(state=state, time=time or key.time).stored()

        altered: dict[str, list[Change]] = {
            "the old one is active again": [
                Put(KEYS, with_state(old, "active")),
                Put(KEYS, with_state(new, "retired")),
            ],
            "both are": [Put(KEYS, with_state(old, "active"))],
            "it need not wait": [Put(KEYS, with_state(old, "destroying 1"))],
            "another time": [Put(KEYS, with_state(old, "retired", 1))],
            "the new one is gone": [Delete(KEYS, new.key), Put(KEYS, with_state(old, "active"))],
            "the old one is gone": [Delete(KEYS, old.key)],
            "the row of before": [Put(KEYS, next(row for row in first if row.key == old.key))],
            "the list of before": [Put(KEYS, listed_first)],
            "no list": [Delete(KEYS, listed.key)],
            "a list of one's own": [
                Put(KEYS, with_state(old, "active")),
                Put(
                    KEYS,
                    with_state(
                        listed,
                        digest_list(map(KeyRow.of, [with_state(old, "active"), new, digest])),
                    ),
                ),
            ],
        }
        for what, changes in altered.items():
            if hide_names and what not in ("the row of before", "the list of before", "no list", "the old one is gone"):
                continue  # whoever does not know the names cannot make a checksum, either
            with subtests.test(what):
                run(db.apply(changes))
                with pytest.raises(CorruptError) as refused:
                    opened(path, hide_names=hide_names)
                assert refused.value.code == "tampered"
                assert any("not those that it had" in each for each in store.encryption_keys.check().problems)
                for call in (
                    store.encryption_keys.rotate,
                    lambda: store.encryption_keys.destroy(KeyRow.unchecked(old).id.hex()),
                ):
                    with pytest.raises(CorruptError):
                        call()
                run(db.apply([Put(KEYS, row) for row in rows]))
                with opened(path, hide_names=hide_names) as again:
                    assert again.encryption_keys.check().ok, "the control"


def test_the_state_of_the_key_of_a_line_is_authenticated(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with opened(path, hide_names=False) as store:
        store.thread("t").put({"n": 1})
        (key,) = (row for row in key_rows(store, "data") if row.line == "t")
        put_back(store, key, "retired")
        assert store.encryption_keys.check().problems
    with opened(path, hide_names=False) as again, pytest.raises(DeniedError) as denied:
        again.thread("t").get()
    assert denied.value.code == "key-wrong"


def test_the_key_of_a_person_without_lines_is_listed_where_names_are_hidden(tmp_path: Path) -> None:
    with opened(tmp_path / "a.db", hide_names=True) as store:
        store.thread("t").put({"n": 1}, metadata={"subject": "u-1"})
        store.thread("t").delete()
    with opened(tmp_path / "a.db", hide_names=True) as store:
        assert store.encryption_keys.list()[0].lines == 2, "that of the person, and that of the settings"
        store.encryption_keys.rotate()
        store.encryption_keys.reencrypt()
        assert store.encryption_keys.check().ok
