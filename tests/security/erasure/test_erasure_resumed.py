"""Erasures that failed on the way: the certificate of the next attempt covers both."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.encryption import Encryption, LocalKeys
from holdfast.errors import TransientError
from holdfast.maintenance.erasure import eraser
from tests.security.erasure.people import few_states, found_in, opened_rows, plant_few


def _fail(*_: object) -> Any:
    raise TransientError("the connection was lost")


def test_what_was_done_before_it_failed_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certificates = []
    for name in ("whole.db", "resumed.db"):
        with holdfast.open(tmp_path / name, encryption=Encryption(LocalKeys(b"1" * 32))) as store:
            store.hooks.after("state.set", record=True, name="watch")(lambda _: None)
            plant_few(store)
            store.access.grant("user:u-1/agent:x", "read", thread="group")
            store.access.grant("user:u-2", "read", thread="group")
            assert store.hooks.drain(30)
            if name == "resumed.db":
                with monkeypatch.context() as patch:
                    patch.setattr(eraser, "new_salt", _fail)
                    with pytest.raises(TransientError):
                        store.erasure.erase("u-1")
                assert found_in(opened_rows(store))["u-1"] == set()
                assert store.erasure.certificates() == []
            certificate = store.erasure.erase("u-1").certificate
            assert certificate is not None
            assert certificate.retained[2:] == ("rights that name the person: 1 grants, groups, roles and freezes",)
            counts = certificate.keys_destroyed, certificate.steps_removed
            certificates.append((certificate.erased, certificate.rewritten, counts))
            assert store.jobs.list() == []
    assert certificates[0] == certificates[1]
    assert certificates[0] == ({"details of audit records": 1, "scopes": 1, "threads": 2}, {"threads": 1}, (1, 5))


def test_nothing_is_erased_without_the_key_that_signs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with holdfast.open(tmp_path / "a.db") as store:
        plant_few(store)
        before = few_states(store, "u-1")
        with monkeypatch.context() as patch:
            patch.setattr(eraser, "find_signer", _fail)
            with pytest.raises(TransientError):
                store.erasure.erase("u-1")
        assert few_states(store, "u-1") == before
        assert store.erasure.erase("u-1").certificate is not None
