"""Keys that were destroyed, and are put back by somebody who can write to the database: the store refuses them."""

from __future__ import annotations

from pathlib import Path

import pytest

import holdfast
from holdfast.backends.interface import Put, Row, Scan
from holdfast.backends.runtime.drivers import run
from holdfast.backends.tables import KEYS, TABLES
from holdfast.encryption import Encryption, LocalKeys
from holdfast.errors import CorruptError, DeniedError
from holdfast.security.encryption.key_rows import DESTROYING, SUBJECT, WRAPPING, KeyRow
from holdfast.store import Store
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
        store.put("t", {"n": 1})
        (old,) = key_rows(store, WRAPPING)
        store.keys.rotate()
        store.keys.reencrypt()
        store.keys.destroy(old.id.hex())
        a_week_later(store)
        store.keys.destroy(old.id.hex())
        (new,) = key_rows(store, WRAPPING)
        with opened(path, hide_names=hide_names) as again:
            again.put("control", {"n": 1})
            assert again.keys.check().ok
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
        store.put("t", {"n": 1}, metadata={"subject": "u-1"})
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
            assert again.get("t").state == {"n": 1}, "the control: they are the rows of the thread"
        store.erasure.erase("u-1")
        restore_rows()
        put_back(store, key)
        with opened(path, hide_names=hide_names) as again:
            if not hide_names:  # which are not known of such a line
                assert any("destroyed" in each for each in again.keys.check().problems)
            with pytest.raises(CorruptError) as refused:
                again.get("t")
            assert refused.value.code == "tampered"
        if hide_names:
            return
        put_back(store, key, DESTROYING)  # which alone is not refused: but the state is authenticated
        with opened(path, hide_names=hide_names) as again, pytest.raises(DeniedError) as denied:
            again.get("t")
        assert denied.value.code == "key-wrong"


def test_the_key_of_a_person_without_lines_is_listed_where_names_are_hidden(tmp_path: Path) -> None:
    with opened(tmp_path / "a.db", hide_names=True) as store:
        store.put("t", {"n": 1}, metadata={"subject": "u-1"})
        store.delete("t")
    with opened(tmp_path / "a.db", hide_names=True) as store:
        assert store.keys.list()[0].lines == 2, "that of the person, and that of the settings"
        store.keys.rotate()
        store.keys.reencrypt()
        assert store.keys.check().ok
