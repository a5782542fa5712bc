"""Stores that data is copied between: each has its own erasures, and a copy has those of its original."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import holdfast
from holdfast.errors import DeniedError
from holdfast.store.store import Store
from tests.security.erasure.people import few_states, found_in, opened_rows, plant, plant_few
from tests.support.nightly import mostly_nightly


def _copy_one(source: Store, target: Store, _: Path) -> None:
    source.maintenance.copy_to(target, threads=["harmless"])


def _copy_all(source: Store, target: Store, _: Path) -> None:
    source.maintenance.copy_to(target)


def _repair(source: Store, target: Store, _: Path) -> None:
    assert target.maintenance.repair(source).ok
    assert target.maintenance.repair(source, thread="harmless").ok


@pytest.mark.parametrize("transfer", [_copy_one, _copy_all, _repair])
def test_another_store_does_not_erase_here(transfer: Callable[[Store, Store, Path], None], tmp_path: Path) -> None:
    with holdfast.open("memory://") as staging, holdfast.open(tmp_path / "a.db") as store:
        plant_few(store)
        store.thread("u-1 chat").hold(reason="case 7")
        before = few_states(store, "u-1")
        staging.thread("harmless").put({"n": 1})
        staging.erasure.erase("u-1")
        transfer(staging, store, tmp_path)
        assert store.thread("harmless").get().state == {"n": 1}
        assert few_states(store, "u-1") == before
        assert store.erasure.certificates() == []
        transfer(staging, store, tmp_path)
        with holdfast.open("memory://") as other:
            store.maintenance.copy_to(other)
            assert few_states(other, "u-1") == before
        assert store.maintenance.verify().findings == []
        assert store.audit.verify().findings == []


def test_an_import_of_everything_from_another_store_does_not_erase_here(tmp_path: Path) -> None:
    with holdfast.open("memory://") as staging, holdfast.open("memory://") as store, holdfast.open("memory://") as new:
        store.thread("chat").put({"text": "hello"}, metadata={"subject": "u-1"})
        store.maintenance.export(tmp_path / "chat.jsonl")
        staging.thread("harmless").put({"n": 1})
        staging.erasure.erase("u-1")
        staging.maintenance.export(tmp_path / "all.jsonl", kinds="all")
        with holdfast.open("memory://") as other:
            other.thread("chat").put({"text": "hello"}, metadata={"subject": "u-1"})
            assert "harmless" in other.maintenance.import_(tmp_path / "all.jsonl", kinds="all").threads
            assert other.erasure.certificates() == []
            assert other.thread("chat").get().state == {"text": "hello"}
        # A new store is a copy.
        new.maintenance.import_(tmp_path / "all.jsonl", kinds="all")
        assert new.erasure.certificates() == staging.erasure.certificates()
        assert new.maintenance.import_(tmp_path / "chat.jsonl").threads == ()


@pytest.mark.parametrize("recorded", mostly_nightly([False, True], daily=[True]))
def test_an_older_copy_loses_it_too(recorded: bool, tmp_path: Path) -> None:
    copy = tmp_path / "copy.db"
    with holdfast.open(tmp_path / "a.db") as store:
        plant(store)
        store.artifacts.register(b"planted-u-1-large." * 7_000, metadata={"subject": "u-1"})
        before = states = few_of(store)
        if recorded:
            store.maintenance.export(tmp_path / "old.jsonl")
        store.maintenance.copy_to(copy)
        assert b"planted-u-1" in stored_bytes(copy)  # the control
        store.erasure.erase("u-1")
        for _ in range(2):
            store.maintenance.copy_to(copy)
            assert b"planted-u-1" not in stored_bytes(copy)
            with holdfast.open(copy) as other:
                assert found_in(opened_rows(other))["u-1"] == set()
                assert few_of(other) == before
                assert other.erasure.certificates() == store.erasure.certificates()
                assert other.audit.verify().findings == []
                assert other.maintenance.verify(level="decode").findings == []
            store.thread("more").put({"n": 1})
        assert few_of(store) == states


def test_an_older_copy_with_a_hold_stays_as_it_is(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db") as store, holdfast.open(tmp_path / "copy.db") as copy:
        plant_few(store)
        store.maintenance.copy_to(copy)
        copy.thread("u-1 file").hold(reason="case 7")
        store.erasure.erase("u-1")
        store.thread("new").put({"n": 1})
        held = few_states(copy, "u-1")
        for _ in range(2):
            with pytest.raises(DeniedError, match="case 7"):
                store.maintenance.copy_to(copy)
            assert few_states(copy, "u-1") == held
            assert copy.erasure.certificates() == []
        store.maintenance.copy_to(copy, threads=["new"])
        copy.thread("u-1 file").release()
        store.maintenance.copy_to(copy)
        assert found_in(opened_rows(copy))["u-1"] == set()


def test_a_thread_whose_audit_was_erased_can_be_copied_elsewhere(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db") as store, holdfast.open("memory://") as other:
        store.hooks.before("checkpoint.save", record=True, inline=True, name="watch")(lambda _: None)
        plant_few(store)
        other.thread("own").put({"n": 1})
        store.erasure.erase("u-1")
        store.maintenance.copy_to(other, threads=["group"])
        store.maintenance.export(tmp_path / "group.jsonl", threads=["group"])
        for each in (store, other):
            report = each.audit.verify()
            assert report.findings == []


def stored_bytes(file: Path) -> bytes:
    """Return all bytes of a store in a file, free space and the log included."""
    return b"".join(each.read_bytes() for each in sorted(file.parent.glob(f"{file.name}*")))


def few_of(store: Store) -> object:
    return (
        [(each.id, each.hash) for each in store.thread("u-2 chat").log()],
        store.thread("group").get().state["messages"][-1],
        dict(store.state(user="u-2", agent="writer").items()),
    )
