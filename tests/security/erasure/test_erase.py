"""Erasing one person: what is gone, what stays, and the certificate."""

from __future__ import annotations

from pathlib import Path

import pytest

import holdfast
from holdfast.encryption import Encryption, LocalKeys
from tests.security.encryption.planted import contents_of
from tests.security.erasure.people import KINDS, by_subject, collect_garbage, found_in, opened_rows, plant, states_of
from tests.servers.places import place
from tests.support.nightly import mostly_nightly

_STORES = ("sqlite", "memory", "file", "postgres", "mongodb", "redis", "s3")
_CASES = [(kind, encrypted) for kind in _STORES for encrypted in (False, True)]


@pytest.mark.parametrize(
    ("kind", "encrypted"), mostly_nightly(_CASES, daily=[("sqlite", False), ("sqlite", True), ("file", False)])
)
def test_one_person_is_gone_and_the_other_is_not(kind: str, encrypted: bool, tmp_path: Path) -> None:
    url, encryption = place(kind, tmp_path), Encryption(LocalKeys(b"1" * 32)) if encrypted else False
    with holdfast.open(url, encryption=encryption) as store:
        plant(store)
        before = states_of(store, "u-2")
        everything = found_in(opened_rows(store))
        assert everything["u-1"] & everything["u-2"] >= KINDS
        plan = store.erasure.erase("u-1", dry_run=True)
        assert {"thread u-1 chat", "thread u-1 file", "agent notes u-1", "session s u-1"} < set(plan.names)
        assert states_of(store, "u-2") == before
        if encrypted:
            own = {"u-1 chat", "u-1 file", "␞user:u-1/agent:writer", "␞user:u-1/session:s u-1"}
            assert by_subject(store, "u-1") == own | {"group"}  # in which u-1 was the first
            store.keys.rotate()
        report = store.erasure.erase("u-1")
        assert (report.erased["threads"], report.erased["agents"], report.erased["artifacts"]) == (2, 1, 2)
        assert report.rewritten["threads"] == 2
        left = found_in(opened_rows(store))
        assert left["u-1"] == set()
        assert left["u-2"] >= KINDS - {"deleted"}
        collect_garbage(store)
        assert found_in(contents_of(tmp_path))["u-1"] == set()
        assert states_of(store, "u-2") == before
        assert store.get("group").state["owner"] == "nobody's"
        assert store.maintenance.verify(level="decode").findings == []
        assert store.audit.verify().findings == []
        assert store.jobs.list() == []
        assert store.erasure.erase("u-1", dry_run=True).names == ()
        if encrypted:
            assert report.certificate is not None
            assert report.certificate.keys_destroyed == 2  # those before and after the rotation
            store.keys.reencrypt()
            assert store.keys.check().ok
            assert states_of(store, "u-2") == before
    if kind != "memory":
        with holdfast.open(url, encryption=encryption) as store:
            assert states_of(store, "u-2") == before
