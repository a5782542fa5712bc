"""Runs of a thread that is busy: on a branch, which is copied as it was before; and behind a run that waits."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Store
from holdfast.agents.runs import table
from holdfast.agents.runs.record import record_key
from holdfast.agents.runs.table import RunTable
from holdfast.backends.interface import Get, Put
from holdfast.backends.runtime.drivers import run
from holdfast.backends.tables import REFS
from holdfast.codec.envelope import BodyKind, wrap
from holdfast.encryption import Encryption, LocalKeys
from holdfast.engine.context import EngineContext
from holdfast.engine.optimistic import Attempts
from holdfast.engine.row_format import Line
from holdfast.errors import ConflictError, DeniedError, InvalidError, QuotaError
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
        with pytest.raises(InvalidError, match="wait for each other"):
            store.runs.submit(None, agent="a", on_busy="pass")


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


# Behind a run that waits for an answer ------------------------------------------------------------------------------


def _states(store: Store, *ids: str) -> list[str]:
    return [store.runs.get(id).state for id in ids]


def test_a_run_passes_one_that_waits(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db") as store:
        busy, worker = _busy(store), store.worker(asking())
        queued = store.runs.submit("t", {"log": ["c"]}, graph="asking").id
        worker.run_due()
        assert _states(store, busy, queued) == ["waiting", "queued"]  # the control: it waits for the answer
        passing = store.runs.submit("t", {"log": ["d"]}, graph="asking", on_busy="pass").id
        assert _states(store, busy, queued, passing) == ["cancelled", "queued", "queued"]
        worker.run_due()  # also the one between begins to wait, and is passed
        assert _states(store, busy, queued, passing) == ["cancelled", "cancelled", "waiting"]
        store.runs.answer(passing, "2")
        worker.run_due()
        assert store.thread("t").get().state["log"] == [*FIRST, "b", "n0", "c", "n0", "d", "n0", "answered 2", "n1"]
        assert _states(store, passing) == ["done"]
        assert store.maintenance.verify().findings == []


def test_a_run_that_begins_to_wait_while_another_is_submitted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with holdfast.open(tmp_path / "a.db") as store:
        first, worker = store.runs.submit("t", {"log": ["a"]}, graph="asking").id, store.worker(asking())
        original, times = RunTable.conditions, list[int]()

        async def conditions(self: RunTable, line: Line, attempts: Attempts) -> Any:
            if not times:  # it was looked at, and was queued
                worker.run_due()
                assert _states(store, first) == ["waiting"]
            times.append(attempts.count)
            return await original(self, line, attempts)

        monkeypatch.setattr(RunTable, "conditions", conditions)
        second = store.runs.submit("t", {"log": ["b"]}, graph="asking", on_busy="pass").id
        assert len(times) > 1
        assert _states(store, first, second) == ["cancelled", "queued"]
        worker.run_due()
        assert _states(store, second) == ["waiting"]


def test_any_run_behind_may_pass_one_that_begins_to_wait(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db") as store:
        first, second = (store.runs.submit("t", {"log": [each]}, graph="asking").id for each in "ab")
        third = store.runs.submit("t", {"log": ["c"]}, graph="asking", on_busy="pass").id
        store.worker(asking()).run_due()
        assert _states(store, first, second, third) == ["cancelled", "cancelled", "waiting"]
        assert {store.runs.get(each).error_code for each in (first, second)} == {"passed"}


def test_a_run_for_later_passes_nobody_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with holdfast.open(tmp_path / "a.db") as store:
        busy, worker = _busy(store), store.worker(asking())
        later = store.runs.submit("t", {"log": ["c"]}, graph="asking", on_busy="pass", when="2h").id
        assert _states(store, busy) == ["waiting"]
        store.runs.answer(busy, "2")
        worker.run_due()
        other = store.runs.submit("t", {"log": ["d"]}, graph="asking").id  # due before that
        worker.run_due()
        assert _states(store, busy, other, later) == ["done", "waiting", "queued"]
        now = time.time_ns()
        monkeypatch.setattr(EngineContext, "clock", lambda _: now + 3 * 3600 * 10**9)
        worker.run_due()  # it settles what waits
        worker.run_due()
        assert _states(store, other, later) == ["cancelled", "waiting"]


def test_a_run_that_is_done_again_passes_one_that_waits(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db") as store:
        first = store.runs.submit("t", {"log": ["a"]}, graph="asking", on_busy="pass").id
        store.runs.cancel(first)
        busy, worker = _busy(store), store.worker(asking())
        store.runs.retry(first)
        worker.run_due()
        worker.run_due()
        assert _states(store, busy, first) == ["cancelled", "waiting"]


@pytest.mark.parametrize("before", [True, False], ids=["before", "while it ends"])
def test_a_run_that_was_answered_is_not_passed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: bool) -> None:
    with holdfast.open(tmp_path / "a.db") as store:
        first, worker = store.runs.submit("t", {"log": ["a"]}, graph="asking").id, store.worker(asking())
        original = RunTable.finish

        async def finish(self: RunTable, held: Any, state: Any, **fields: Any) -> Any:
            if state == "waiting":
                monkeypatch.setattr(RunTable, "finish", original)
                store.thread("t").answer("1")  # it is asked already
                if not before:
                    store.runs.submit("t", {"log": ["b"]}, graph="asking", on_busy="pass")
            return await original(self, held, state, **fields)

        monkeypatch.setattr(RunTable, "finish", finish)
        worker.run_due()
        if before:
            store.runs.submit("t", {"log": ["b"]}, graph="asking", on_busy="pass")
        worker.run_due()
        worker.run_due()
        assert _states(store, first) == ["done"]
        assert store.thread("t").get().state["log"] == ["a", "n0", "answered 1", "n1", "b", "n0"]


def test_a_run_that_is_refused_passes_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with holdfast.open(tmp_path / "a.db") as store:
        busy = _busy(store)
        store.runs.submit("t", {"log": ["c"]}, graph="asking")
        monkeypatch.setattr(table, "MAX_WAITING", 1)
        with pytest.raises(QuotaError):
            store.runs.submit("t", {"log": ["d"]}, graph="asking", on_busy="pass")
        assert _states(store, busy) == ["waiting"]


def test_a_damaged_run_passes_nobody(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db") as store:
        first = store.runs.submit("t", {"log": ["a"]}, graph="asking").id
        second = store.runs.submit("t", {"log": ["b"]}, graph="asking", on_busy="pass").id
        backend, key = store._handle.engine.context.backend, record_key(Line("", "t"), second)
        (rows,) = run(backend.read([Get(REFS, [key])]))
        run(backend.apply([Put(REFS, rows[0]._replace(body=wrap(b"\xc1", codec=BodyKind.RAW)))]))
        store.worker(asking()).run_due()
        assert _states(store, first) == ["waiting"]


def test_what_follows_a_run_that_is_passed_is_submitted_once(tmp_path: Path) -> None:
    told = list[str]()

    @holdfast.workflow
    def tell(id: str) -> None:
        told.append(id)

    with holdfast.open(tmp_path / "a.db") as store:
        worker = store.worker(asking(), tell)
        first = store.runs.submit("t", {"log": ["a"]}, graph="asking", then=tell).id
        second = store.runs.submit("t", {"log": ["b"]}, graph="asking", on_busy="pass", then=tell).id
        worker.run_due()
        assert sorted(told) == [first, second]
        third = store.runs.submit("t", {"log": ["c"]}, graph="asking", on_busy="pass").id
        worker.run_due()
        assert sorted(told) == [first, second]  # it was told when it asked
        assert _states(store, first, second, third) == ["cancelled", "cancelled", "waiting"]


def test_who_may_not_change_the_thread_passes_nobody(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db") as store:
        busy = _busy(store)
        with pytest.raises(DeniedError):
            store.as_identity(user="ben").runs.submit("t", {"log": []}, graph="asking", on_busy="pass")
        assert _states(store, busy) == ["waiting"]
