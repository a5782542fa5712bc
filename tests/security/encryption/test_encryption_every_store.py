"""Encryption on every kind of store: nothing to be found, rotation, and two that have it open."""

from __future__ import annotations

from pathlib import Path

import pytest

import holdfast
from holdfast.backends.registry import backend_for
from holdfast.backends.runtime.drivers import run
from holdfast.encryption import Encryption, LocalKeys
from holdfast.errors import DeniedError
from holdfast.store.store import Store
from holdfast.testing.security.stored_rows import check_sealed_rows
from tests.security.encryption.planted import contents_of, find_planted, plant, planted, rows_of
from tests.servers.places import place
from tests.support.nightly import mostly_nightly

_KINDS = ("sqlite", "memory", "file", "postgres", "mongodb", "redis", "s3")


@pytest.mark.parametrize("kind", mostly_nightly(_KINDS, daily=["memory"]))
def test_an_encrypted_store(kind: str, tmp_path: Path) -> None:
    names, url = (
        planted(20 if kind == "memory" else 200),
        place(kind, tmp_path),
    )
    keys = LocalKeys(b"1" * 32)
    store = holdfast.open(url, encryption=Encryption(keys))
    plant(store, names)
    raw = run(backend_for(url).open(url)) if kind != "memory" else store._engine.context.stored.inner  # type: ignore[attr-defined]
    assert find_planted(names, (*rows_of(raw), *contents_of(tmp_path))) == set()
    other = holdfast.open(url, encryption=Encryption(keys)) if kind != "memory" else store
    other.thread("chat").put({"n": 100})
    store.encryption_keys.rotate()
    assert store.encryption_keys.reencrypt().rows
    other.thread("chat").put({"n": 101})
    assert store.thread("chat").get().state == {"n": 101}
    assert other.maintenance.verify(level="decode").findings == []
    assert find_planted(names, (*rows_of(raw), *contents_of(tmp_path))) == set()
    with holdfast.open("memory://", encryption=False) as plain:
        store.maintenance.copy_to(plain)
        assert {each.hash for each in plain.thread("chat").log().all()} == {
            each.hash for each in store.thread("chat").log().all()
        }
        assert plain.maintenance.verify(heads=store.maintenance.heads(kinds="thread"), kinds="thread").ok
        with holdfast.open("memory://", encryption=Encryption(LocalKeys(b"2" * 32))) as sealed:
            plain.maintenance.copy_to(sealed)
            assert len(sealed.artifacts.list()) == len(names["artifact"])
            assert sealed.maintenance.verify(heads=store.maintenance.heads(kinds="thread"), kinds="thread").ok
    if kind != "memory":
        with pytest.raises(DeniedError, match="without a key"):
            holdfast.open(url, encryption=False)
        run(raw.close())
        other.close()
    store.close()


@pytest.mark.nightly  # by day, `test_stores` has attacks on SQLite
@pytest.mark.parametrize("kind", _KINDS)
def test_attacks_are_found(kind: str, tmp_path: Path) -> None:
    """Flip, swap, replay, downgrade and truncate, in every table."""
    keys, url = Encryption(LocalKeys(b"1" * 32)), place(kind, tmp_path)
    with holdfast.open(url, encryption=keys) as store:
        if kind == "memory":
            other = Store(store._engine, "other")
            run(store._engine.context.rows.check_store(store._engine.context.stored, "other"))
            assert check_sealed_rows(store, other) > 200
        else:
            with holdfast.open(url, tenant="other", encryption=keys) as other:
                assert check_sealed_rows(store, other) > 200
