"""The key that signs certificates: it outlives changes of encryption, and nobody else puts another one there."""

from __future__ import annotations

from pathlib import Path

import pytest

import holdfast
from holdfast import Store
from holdfast.backends.interface import Delete, Put, Scan
from holdfast.backends.runtime.drivers import run
from holdfast.backends.tables import KEYS, SIGNING
from holdfast.encryption import Encryption, LocalKeys
from holdfast.errors import CorruptError
from holdfast.security.encryption.cipher import Cipher
from holdfast.security.encryption.key_rows import KeyRow
from holdfast.testing.security.stored_rows import database

OLD, NEW = b"1" * 32, b"2" * 32


def signing_row(store: Store) -> KeyRow:
    (rows,) = run(database(store).read([Scan(KEYS, ("", "", SIGNING))]))
    return KeyRow.of(rows[0])


def test_it_is_encrypted_anew_with_the_others(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with holdfast.open(path, encryption=Encryption(LocalKeys(OLD))) as store:
        for user in ("u-1", "u-2"):
            store.thread(user).put({"n": 1}, metadata={"subject": user})
        first = store.erasure.erase("u-1").certificate
        assert first is not None
    with holdfast.open(path, encryption=Encryption(LocalKeys(NEW, OLD))) as store:
        store.encryption_keys.rotate()
        assert {key.master for key in store.encryption_keys.list()} == {LocalKeys(NEW).key_id}
    with holdfast.open(path, encryption=Encryption(LocalKeys(NEW))) as store:
        assert store.encryption_keys.check().ok
        second = store.erasure.erase("u-2").certificate
        assert second is not None
        assert second.public_key == first.public_key == store.erasure.public_key()


def test_turning_encryption_on_and_off_keeps_it(tmp_path: Path) -> None:
    path, keys = tmp_path / "a.db", LocalKeys(OLD)
    with holdfast.open(path, encryption=False) as store:
        store.thread("t").put({"n": 1})
        public, private = store.erasure.public_key(), signing_row(store).wrapped
    assert private in path.read_bytes()
    with holdfast.open(path, encryption=Encryption(keys, mode="turning-on")) as store:
        assert store.erasure.public_key() == public
        store.encryption_keys.reencrypt()
    assert private not in path.read_bytes()
    with holdfast.open(path, encryption=Encryption(keys)) as store:
        assert store.encryption_keys.check().ok
        store.encryption_keys.rotate()
        assert store.erasure.public_key() == public
    with holdfast.open(path, encryption=Encryption(keys, mode="turning-off")) as store:
        store.encryption_keys.reencrypt()
    with holdfast.open(path, encryption=False) as store:
        assert store.erasure.public_key() == public
        assert signing_row(store).wrapped == private


def test_one_in_the_clear_is_refused_by_an_encrypted_store(tmp_path: Path) -> None:
    """Whoever can write to the database, and has no key, cannot have the store sign with a key of theirs."""
    with holdfast.open(tmp_path / "a.db", encryption=Encryption(LocalKeys(OLD))) as store:
        store.thread("t").put({"n": 1}, metadata={"subject": "u-1"})
        mine = b"a" * 32
        planted = KeyRow("", "", SIGNING, 0, Cipher(mine).key_id, "", "active", 1, mine)
        run(database(store).apply([Put(KEYS, planted.stored())]))
        for call in (store.erasure.public_key, store.encryption_keys.rotate, lambda: store.erasure.erase("u-1")):
            with pytest.raises(CorruptError) as refused:
                call()
            assert refused.value.code == "tampered"
        assert store.encryption_keys.check().problems
        assert store.thread("t").get().state == {"n": 1}, "nothing is erased that no certificate can be made of"


def test_one_that_was_deleted_is_reported(tmp_path: Path) -> None:
    """The next erasure creates another: then nobody can check the certificates with the key of the store."""
    with holdfast.open(tmp_path / "a.db", encryption=Encryption(LocalKeys(OLD))) as store:

        def created() -> list[str]:
            return [each.actor for each in store.audit.query() if each.action == "create-signing-key"]

        for user in ("u-1", "u-2"):
            store.thread(user).put({"n": 1}, metadata={"subject": user})
        first = store.erasure.erase("u-1").certificate
        assert first is not None
        assert store.encryption_keys.check().ok
        assert len(created()) == 1
        run(database(store).apply([Delete(KEYS, ("", "", SIGNING))]))
        assert [first.public_key[:16] in each for each in store.encryption_keys.check().problems] == [True]
        store.erasure.erase("u-2")
        assert [first.public_key[:16] in each for each in store.encryption_keys.check().problems] == [True]
        assert len(created()) == 2
