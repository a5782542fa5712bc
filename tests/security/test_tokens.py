"""When a token was last used: beside the rights, in every store, through backups, copies and encryption."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
from holdfast.backends.runtime.drivers import run
from holdfast.encryption import Encryption, LocalKeys, generate_key
from holdfast.state.access_api import note_token_use
from holdfast.store.store import Store

STORES = ("memory", "file", "encrypted", "tenant")


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """A store of a kind."""
    if request.param == "memory":
        opened = holdfast.open("memory://")
    elif request.param == "file":
        opened = holdfast.open(f"file://{tmp_path}/files")
    elif request.param == "encrypted":
        opened = holdfast.open(tmp_path / "a.db", encryption=Encryption(LocalKeys(generate_key())))
    else:
        opened = holdfast.open(tmp_path / "a.db", tenant="acme")
    with opened:
        yield opened


def test_the_last_use_of_a_token_is_stored_and_changes_nothing_else(store: Store, tmp_path: Path) -> None:
    first, second = (store.access.issue_token("user:alice", name=name) for name in ("a", "b"))
    records = len(store.audit.query(kind="access"))
    run(note_token_use(store, first.id))
    used = {each.name: each.used for each in store.access.tokens()}
    assert (used["a"] is None, used["b"]) == (False, None)
    assert len(store.audit.query(kind="access")) == records, "to use a token is no change of rights"
    assert store.audit.verify().ok
    assert store.maintenance.verify().ok
    assert store.maintenance.sweep_orphans(grace="0s").rows == 0
    assert {each.name: each.used for each in store.access.tokens()} == used
    store.access.revoke_token(first.id)
    (ended,) = (each for each in store.access.tokens(dead=True) if each.name == "a")
    assert (ended.live, ended.used) == (False, used["a"])
    assert [each.id for each in store.access.tokens()] == [second.id]


def test_a_restored_store_knows_the_last_use(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db") as store:
        token = store.access.issue_token("user:alice")
        run(note_token_use(store, token.id))
        (stored,) = store.access.tokens()
        repository = store.backups(tmp_path / "backups")
        repository.create()
        assert repository.verify().ok
        with holdfast.open(tmp_path / "b.db") as other:
            other.backups(tmp_path / "backups").restore("1")
            (restored,) = other.access.tokens()
            assert restored.used == stored.used
            assert other.maintenance.verify().ok


def test_who_may_only_read_the_store_stores_no_use(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db") as store:
        token = store.access.issue_token("user:alice")
        with pytest.raises(holdfast.errors.DeniedError):
            run(note_token_use(store.as_identity("user:alice"), token.id))
    with holdfast.open(tmp_path / "a.db", read_only=True) as store:
        with pytest.raises(holdfast.errors.HoldfastError):
            run(note_token_use(store, token.id))
        assert store.access.tokens()[0].used is None
