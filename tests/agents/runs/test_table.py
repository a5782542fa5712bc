"""Runs on a branch: a thread that is busy is copied as it was before."""

from __future__ import annotations

from pathlib import Path

import pytest

import holdfast
from holdfast import Store
from holdfast.agents.runs.table import RunTable
from holdfast.encryption import Encryption, LocalKeys
from holdfast.engine.row_format import Line
from holdfast.errors import ConflictError, DeniedError, InvalidError
from tests.agents.runs.graphs import asking, chain, logging_nodes

FIRST = ["a", "n0", "answered 1", "n1"]


def _busy(store: Store, thread: str = "t") -> str:
    """Have a thread with a run that is done, and one that waits for an answer. Returns the latter."""
    worker, first = store.worker(asking()), store.runs.submit(thread, {"log": ["a"]}, graph="asking")
    worker.run_due()
    store.runs.answer(first.id, "1")
    worker.run_due()
    busy = store.runs.submit(thread, {"log": ["b"]}, graph="asking").id
    worker.run_due()
    assert store.runs.get(busy).state == "waiting"
    return busy


@pytest.mark.parametrize("is_encrypted", [False, True])
def test_a_run_on_a_branch_begins_where_the_busy_one_began(tmp_path: Path, is_encrypted: bool) -> None:
    keys = Encryption(LocalKeys(b"m" * 32), hide_names=True) if is_encrypted else None
    with holdfast.open(tmp_path / "a.db", encryption=keys) as store:
        busy = _busy(store)
        before = store.thread("t").status()
        other = store.runs.submit("t", {"log": ["c"]}, graph="asking", on_busy="branch", idempotency_key="k")
        assert other.thread == f"t-{other.id}"
        again = store.runs.submit("t", {"log": ["c"]}, graph="asking", on_busy="branch", idempotency_key="k")
        assert again.id == other.id
        assert store.thread(other.thread).get().state["log"] == FIRST
        worker = store.worker(asking())
        worker.run_due()
        assert store.thread("t").status() == before
        store.runs.answer(other.id, "3")
        store.runs.answer(busy, "2")
        worker.run_due()
        assert store.thread("t").get().state["log"] == [*FIRST, "b", "n0", "answered 2", "n1"]
        assert store.thread(other.thread).get().state["log"] == [*FIRST, "c", "n0", "answered 3", "n1"]
        assert [each.state for each in store.runs.list()] == ["done"] * 3
        assert store.maintenance.verify().findings == []


def test_a_thread_without_a_checkpoint_and_one_that_is_free(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db") as store:
        store.runs.submit("t", {"log": []}, graph="chain")  # not begun: nothing is to be copied
        other = store.runs.submit("t", {"log": ["x"]}, graph="chain", on_busy="branch")
        free = store.runs.submit("free", {"log": []}, graph="chain", on_busy="branch")
        assert (other.thread, free.thread) == (f"t-{other.id}", "free")
        store.worker(chain(*logging_nodes(2))).run_due()
        assert store.thread("t").get().state["log"] == ["n0", "n1"]
        assert store.thread(other.thread).get().state["log"] == ["x", "n0", "n1"]
        with pytest.raises(InvalidError, match="branches"):
            store.runs.submit(None, agent="a", on_busy="branch")


def test_a_busy_thread_whose_beginning_was_pruned_is_not_copied(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db") as store:
        _busy(store)
        store.maintenance.prune(keep_last=1)
        with pytest.raises(ConflictError, match="pruned"):
            store.runs.submit("t", {"log": ["c"]}, graph="asking", on_busy="branch")
        assert (store.runs.list(state="queued"), [each.name for each in store.threads()]) == ([], ["t"])


def test_a_checkpoint_that_is_pruned_while_its_thread_is_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with holdfast.open(tmp_path / "a.db") as store:
        _busy(store)
        original, looks = RunTable._require_stored, list[str]()

        async def looked(self: RunTable, line: Line, base: str) -> None:
            looks.append(base)
            await original(self, line, base)
            if len(looks) == 2:  # just before the last batch
                store.maintenance.prune(keep_last=1)

        monkeypatch.setattr(RunTable, "_require_stored", looked)
        with pytest.raises(ConflictError, match="pruned"):
            store.runs.submit("t", {"log": ["c"]}, graph="asking", on_busy="branch")
        assert len(looks) == 3
        assert (store.runs.list(state="queued"), [each.name for each in store.threads()]) == ([], ["t"])


def test_the_branch_of_an_identity_is_its_own_and_is_erased_with_the_person(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db") as store:
        ada = store.as_identity(user="ada").runs
        worker, first = store.worker(asking()), ada.submit("t", {"log": ["a"]}, graph="asking")
        worker.run_due()
        ada.answer(first.id, "1")
        worker.run_due()
        ada.submit("t", {"log": ["b"]}, graph="asking")
        worker.run_due()
        other = ada.submit("t", {"log": ["c"]}, graph="asking", on_busy="branch")
        worker.run_due()
        assert ada.get(other.id).state == "waiting"
        with pytest.raises(DeniedError):
            store.as_identity(user="ben").runs.submit("t", {"log": []}, graph="asking", on_busy="branch")
        store.erasure.erase("ada")
        assert store.threads() == []
        assert store.runs.list() == []
