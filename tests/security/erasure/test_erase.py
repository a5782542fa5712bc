"""Erasing one person: what is gone, what stays, and the certificate."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Literal

import pytest

import holdfast
from holdfast.encryption import Encryption, LocalKeys
from holdfast.engine.namespaces import LineKind
from holdfast.erasure import Certificate
from holdfast.errors import ConflictError, CorruptError, DeniedError, InvalidError, NotFoundError
from tests.security.encryption.planted import contents_of
from tests.security.erasure.people import (
    KINDS,
    by_subject,
    collect_garbage,
    few_states,
    found_in,
    opened_rows,
    plant,
    plant_few,
    states_of,
)
from tests.servers.places import place
from tests.support.nightly import mostly_nightly

_STORES = ("sqlite", "memory", "file", "postgres", "mongodb", "redis", "s3")
_COMPOSITIONS = ("cache", "mirror", "write-behind", "tiered")
_CASES = [(kind, encrypted) for kind in _STORES for encrypted in (False, True)]
_CASES += [(kind, False) for kind in _COMPOSITIONS]


@pytest.mark.parametrize(("kind", "encrypted"), mostly_nightly(_CASES, daily=[("sqlite", True)]))
def test_one_person_is_gone_and_the_other_is_not(kind: str, encrypted: bool, tmp_path: Path) -> None:
    url = place(kind, tmp_path)
    encryption: Encryption | Literal[False] = Encryption(LocalKeys(b"1" * 32)) if encrypted else False
    with holdfast.open(url, encryption=encryption) as store:
        plant(store)
        before = states_of(store, "u-2")
        everything = found_in(opened_rows(store))
        assert everything["u-1"] & everything["u-2"] >= KINDS
        plan = store.erasure.erase("u-1", dry_run=True)
        deleted = {"delete thread u-1 chat", "delete thread u-1 file", "delete agent notes u-1", "delete session s u-1"}
        assert {*deleted, "rewrite thread group"} < set(plan.names)
        assert states_of(store, "u-2") == before
        if encrypted:
            own = {"u-1 chat", "u-1 file", "␞user:u-1/agent:writer", "␞user:u-1/session:s u-1"}
            assert by_subject(store, "u-1") == own | {"group"}  # in which u-1 was the first
            store.encryption_keys.rotate()
        report = store.erasure.erase("u-1")
        assert (report.erased["threads"], report.erased["agents"], report.erased["artifacts"]) == (2, 1, 2)
        assert report.rewritten["threads"] == 2
        left = found_in(opened_rows(store))
        assert left["u-1"] == set()
        assert left["u-2"] >= KINDS - {"deleted", "noted"}
        collect_garbage(store)
        assert found_in(contents_of(tmp_path))["u-1"] == set()
        assert states_of(store, "u-2") == before
        assert store.thread("group").get().state["owner"] == "nobody's"
        assert store.maintenance.verify(level="decode").findings == []
        assert store.audit.verify().findings == []
        assert store.jobs.list() == []
        assert store.erasure.erase("u-1", dry_run=True).names == ()
        if encrypted:
            assert report.certificate is not None
            assert report.certificate.keys_destroyed == 2  # those before and after the rotation
            store.encryption_keys.reencrypt()
            assert store.encryption_keys.check().ok
            assert states_of(store, "u-2") == before
    if kind != "memory":
        with holdfast.open(url, encryption=encryption) as store:
            assert states_of(store, "u-2") == before


@pytest.mark.parametrize("kind", ["sqlite", "file", "postgres"])
def test_the_usual_data(kind: str, tmp_path: Path) -> None:
    with holdfast.open(place(kind, tmp_path)) as store:
        plant_few(store)
        before = few_states(store, "u-2")
        assert len(found_in(opened_rows(store))["u-1"]) == 4
        plan = store.erasure.erase("u-1", dry_run=True)
        assert (plan.steps, plan.keys) == (4, 0)  # and one of another person, with a state that has some of it
        report = store.erasure.erase("u-1")
        assert (report.erased, report.rewritten) == ({"scopes": 1, "threads": 2}, {"threads": 1})
        assert (report.steps, report.keys) == (5, 0)
        assert found_in(opened_rows(store))["u-1"] == set()
        assert few_states(store, "u-2") == before
        assert store.maintenance.verify(level="decode").findings == []
        if kind == "file":
            assert "tidy" in report.certificate.unreachable[0]  # type: ignore[union-attr]
            collect_garbage(store)
        if kind == "postgres":
            return
    assert found_in(contents_of(tmp_path))["u-1"] == set()


def test_what_was_erased_does_not_come_back(tmp_path: Path) -> None:
    old, file = tmp_path / "old.db", tmp_path / "old.jsonl"
    with holdfast.open(tmp_path / "a.db") as store:
        plant_few(store)
        store.maintenance.copy_to(old)
        store.maintenance.export(file, kinds="all")
        store.erasure.erase("u-1")
        store.thread("u-1 chat").put({"text": "u-1 is back"}, metadata={"subject": "u-1"})
        with holdfast.open(old) as copy:
            assert len(found_in(opened_rows(copy))["u-1"]) == 4  # the control
            store.thread("u-2 file").delete()
            for name in ("u-1 file", "u-2 file"):
                assert store.maintenance.repair(copy, thread=name).ok
            assert found_in(opened_rows(store))["u-1"] == set()
            assert store.thread("u-2 file").get().state == copy.thread("u-2 file").get().state
            with pytest.raises(ConflictError):
                copy.maintenance.copy_to(store)  # the group has another history since
            copy.maintenance.copy_to(store, threads=["u-1 file", "u-2 chat"])
        with pytest.raises(ConflictError):
            store.maintenance.import_(file, threads=["group"])
        store.thread("u-2 chat").delete()
        assert store.maintenance.import_(file, threads=["u-1 file", "u-1 chat", "u-2 chat"]).threads == ("u-2 chat",)
        store.maintenance.import_(file, threads=["group"], as_thread="group again")
        assert store.thread("group again").get().state["messages"] == ["ours", "planted-u-2-group."]
        assert found_in(opened_rows(store))["u-1"] == set()
        assert store.thread("u-1 chat").get().state == {"text": "u-1 is back"}
        assert store.maintenance.verify(level="decode").findings == []
        # A new store, which has the ledger before the data comes.
        with holdfast.open("memory://") as other:
            store.maintenance.copy_to(other)
            with holdfast.open(old) as copy:
                copy.maintenance.copy_to(other, threads=["u-1 file"])
            assert found_in(opened_rows(other))["u-1"] == set()
            assert other.erasure.certificates() == store.erasure.certificates()


def test_a_hold_refuses_it(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db") as store:
        plant_few(store)
        before = {user: few_states(store, user) for user in ("u-1", "u-2")}
        cases: list[tuple[str, LineKind]] = [("u-1 file", "thread"), ("user:u-1", "scope"), ("group", "thread")]
        for name, kind in cases:
            if kind == "thread":
                store.thread(name).hold(reason="case 7")
            else:
                store.maintenance.hold(name, kind=kind, reason="case 7")
            assert store.erasure.erase("u-1", dry_run=True).held == (f"{kind} {name}",)
            with pytest.raises(DeniedError, match="nothing was erased.*case 7") as refused:
                store.erasure.erase("u-1")
            assert refused.value.code == "erase-held"
            assert {user: few_states(store, user) for user in ("u-1", "u-2")} == before
            assert store.jobs.list() == []
            if kind == "thread":
                store.thread(name).release()
            else:
                store.maintenance.release(name, kind=kind)
        assert store.erasure.certificates() == []
        assert store.erasure.erase("u-1").certificate is not None


def test_a_certificate_is_checked_with_the_public_key_alone(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db") as store:
        store.thread("chat").put({"text": "hello"}, metadata={"subject": "u-1"})
        certificate, key = store.erasure.erase("u-1").certificate, store.erasure.public_key()
    assert certificate is not None
    again = Certificate.from_json(certificate.to_json())
    assert again == certificate
    again.check(key)
    assert again.is_about("u-1")
    assert not again.is_about("u-2")
    with pytest.raises(CorruptError, match="another key"):
        again.check("00" * 32)
    with pytest.raises(InvalidError, match="64 hex digits"):
        again.check("key")
    document = json.loads(certificate.to_json())
    for name, value in document.items():
        if name == "format":
            continue
        other = (value + 1) if isinstance(value, int) else [*value, "x"] if isinstance(value, list) else {"x": 1}
        changed = {**document, name: f"{value[:-4]}0000" if isinstance(value, str) else other}
        with pytest.raises(CorruptError) as refused:
            Certificate.from_json(json.dumps(changed)).check()
        assert refused.value.code == "certificate-invalid"
    for broken in ("", "{}", "[]", "null", json.dumps({**document, "more": 1}), json.dumps({**document, "erased": 3})):
        with pytest.raises(CorruptError):
            Certificate.from_json(broken)


def test_a_tenant_is_one_person(tmp_path: Path) -> None:
    for tenant in ("a", "b"):
        with holdfast.open(tmp_path / "a.db", tenant=tenant) as store:
            store.thread("chat").put({"text": f"planted in {tenant}"})
            store.artifacts.register(b"planted" * 3)
            store.state(agent="x")["key"] = "planted"
    with holdfast.open(tmp_path / "a.db", tenant="a") as store:
        store.erasure.set_subject("u-1")
        assert store.erasure.subject() == "u-1"
        report = store.erasure.erase("u-1")
        assert report.erased == {"artifacts": 1, "scopes": 1, "threads": 1}
        assert [each.thread for each in store.threads(kind="all")] == ["␞artifacts", "␞audit", "␞erasures"]
        tables = [row for row in opened_rows(store) if b"planted" in row]
        assert len(tables) > 0
        assert not [row for row in tables if b"planted in b" not in row and b"'a'" in row]
        assert store.erasure.subject() is None
        assert store.maintenance.verify().findings == []
    with holdfast.open(tmp_path / "a.db", tenant="b") as store:
        assert store.thread("chat").get().state == {"text": "planted in b"}
        assert store.erasure.erase("u-1", dry_run=True).names == ()


def test_what_cannot_be_erased_says_so() -> None:
    with holdfast.open("memory://") as store:
        for wrong in ("", "␞x", "a\n", 3):
            with pytest.raises(InvalidError):
                store.erasure.erase(wrong)  # type: ignore[arg-type]
        with pytest.raises(NotFoundError):
            store.erasure.set_subject("u-1", "nothing")
        report = store.erasure.erase("u-1")  # nothing is there: that is certified, too
        assert report.erased == {}
        assert report.certificate is not None


def test_with_asyncio() -> None:
    async def erase() -> None:
        async with holdfast.aopen("memory://") as store:
            await store.thread("chat").put({"text": "planted"}, metadata={"user_id": "u-1"})
            assert (await store.erasure.erase("u-1", dry_run=True)).names == ()
            report = await store.erasure.erase("u-1", metadata_keys=["user_id"])
            assert report.erased == {"threads": 1}

    asyncio.run(erase())


def test_an_identity_erases_its_own_person_with_the_right_to_all_of_it(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db") as store:
        plant_few(store)
        before = {user: few_states(store, user) for user in ("u-1", "u-2")}
        alice, agent = store.as_identity(user="u-1"), store.as_identity(agent="x")
        for who, subject in ((alice, "u-1"), (alice, "u-2"), (agent, "u-1"), (store.as_identity(user="u-3"), "u-3")):
            with pytest.raises(DeniedError, match="may not erase everything of this person"):
                who.erasure.erase(subject)
        for pattern in ("u-1 chat", "u-1 file"):
            store.access.grant("user:u-1", "erase", thread=pattern)
        with pytest.raises(DeniedError):
            alice.erasure.erase("u-1")  # not from the group
        with pytest.raises(DeniedError):
            alice.erasure.erase("u-1", dry_run=True)
        assert {user: few_states(store, user) for user in ("u-1", "u-2")} == before
        assert store.erasure.certificates() == []
        store.access.grant("user:u-1", "erase", thread="group")
        with pytest.raises(DeniedError):
            store.as_identity(user="u-1", mode="read-only").erasure.erase("u-1")
        planned = alice.erasure.erase("u-1", dry_run=True)
        assert (planned.erased["threads"], planned.certificate) == (2, None)
        assert {user: few_states(store, user) for user in ("u-1", "u-2")} == before
        report = alice.erasure.erase("u-1")
        assert report.erased["threads"] == 2
        assert few_states(store, "u-2") == before["u-2"]
        assert found_in(opened_rows(store))["u-1"] == set()
        erased = [each for each in store.audit.query().all() if each.action == "erase" and each.outcome == "ok"]
        assert {each.actor for each in erased} == {"user:u-1"}


def test_a_thread_that_only_its_owner_wrote_is_deleted_with_its_name() -> None:
    with holdfast.open("memory://") as store:
        for name in ("own", "helped", "shared", "given"):
            store.as_identity(user="u-1").thread(name).put({"text": "words of mine"})
        store.thread("helped").put({"text": "words of the store"})
        store.access.grant("user:u-2", ["read", "write"], thread="shared")
        store.as_identity(user="u-2").thread("shared").put({"text": "words of somebody else"})
        store.access.set_owner("given", "user:u-2")
        store.thread("own").fork("other")
        plan = store.erasure.erase("u-1", dry_run=True)
        assert set(plan.names) == {
            "delete thread own",
            *(f"rewrite thread {name}" for name in ("helped", "shared", "given")),
        }
        report = store.erasure.erase("u-1")
        assert (report.erased["threads"], report.rewritten) == (1, {"threads": 3})
        assert [each.thread for each in store.threads()] == ["given", "helped", "shared"]
        assert store.thread("shared").get().state == {"text": "words of somebody else"}
        assert store.maintenance.verify().findings == []


def test_a_dry_run_names_what_is_there() -> None:
    with holdfast.open("memory://") as store:
        for id in ("open", "ended"):
            store.sessions.start(id, user="u-1").state["cart"] = 1
        store.sessions.get("ended").end()
        plan = store.erasure.erase("u-1", dry_run=True)
        assert plan.names == ("delete session user:u-1/session:open", "delete session ended", "delete session open")
        assert plan.erased == {"session records": 2, "sessions": 1}
        erased = store.erasure.erase("u-1").erased
        assert {kind: erased[kind] for kind in plan.erased} == plan.erased
