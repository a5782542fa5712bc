"""Limits for all workers: how many runs of a graph, or of all, are done at a time, whoever does them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Store
from holdfast.agents.runs.record import DONE
from holdfast.agents.runs.table import HeldRun, RunTable
from holdfast.backends.runtime.drivers import run
from holdfast.encryption import Encryption, LocalKeys
from holdfast.errors import ClaimLostError, InvalidError
from tests import servers
from tests.support.nightly import mostly_nightly


class Counted:
    """Workflows that count how many of them are being done at a time. The first ones wait until there were so many as
    are expected, so that the speed of the machine does not matter."""

    def __init__(self, expected: int = 1) -> None:
        self.now = self.most = 0
        self._expected = expected
        self._changed = threading.Condition()

    def workflow(self, name: str) -> Any:
        def do(number: int) -> int:
            with self._changed:
                self.now += 1
                self.most = max(self.most, self.now)
                self._changed.notify_all()
                self._changed.wait_for(lambda: self.most >= self._expected, 20)
            with self._changed:
                self.now -= 1
            return number

        return holdfast.workflow(name=name)(do)


_STARTS: dict[str, Callable[[Path], str]] = {
    "sqlite": lambda folder: str(folder / "a.db"),
    "postgres": lambda folder: servers.postgres(),
    "mongodb": lambda folder: servers.mongodb(),
    "redis": lambda folder: servers.redis(),
}


@pytest.mark.parametrize("kind", mostly_nightly(_STARTS, daily=["sqlite"]))
def test_workers_together_do_no_more_runs_at_a_time_than_a_limit_says(kind: str, tmp_path: Path) -> None:
    url, counted, free = _STARTS[kind](tmp_path), Counted(2), Counted(3)
    with ExitStack() as stack:
        stores = [stack.enter_context(holdfast.open(url)) for _ in range(3)]
        stores[0].runs.limit("sell", 2)
        submitted = [stores[0].runs.submit(None, [n], graph=name).id for n in range(12) for name in ("sell", "free")]
        for store in stores:
            works = counted.workflow("sell"), free.workflow("free")
            stack.enter_context(store.worker(*works, concurrency=4, look_every=60))
        assert all(stores[0].runs.wait(each, timeout=60).state == "done" for each in submitted)
        assert [(each.graph, each.most, each.running) for each in stores[1].runs.limits()] == [("sell", 2, 0)]
    assert counted.most == 2
    assert free.most >= 3  # a control


def test_a_limit_of_all_graphs_is_one_of_a_tenant_and_zero_lets_none_begin(tmp_path: Path) -> None:
    counted = Counted()
    works = [counted.workflow(name) for name in ("a", "b")]
    with holdfast.open(tmp_path / "a.db", tenant="x") as store, holdfast.open(tmp_path / "a.db", tenant="y") as other:
        store.runs.limit(None, 1)
        store.runs.limit("a", 5)
        with store.worker(*works, concurrency=4), store.worker(*works, concurrency=4):
            submitted = [store.runs.submit(None, [n], graph=name).id for n in range(4) for name in ("a", "b")]
            assert all(store.runs.wait(each, timeout=60).state == "done" for each in submitted)
        assert counted.most == 1
        store.runs.limit(None, 0)
        waits, goes = store.runs.submit(None, [1], graph="a"), other.runs.submit(None, [1], graph="a")
        store.worker(*works).run_due()
        other.worker(*works).run_due()
        assert (store.runs.get(waits.id).state, other.runs.get(goes.id).state) == ("queued", "done")
        assert ([each.graph for each in store.runs.limits()], other.runs.limits()) == (["", "a"], [])
        with store.worker(*works, look_every=60):
            store.runs.limit(None, None)
            assert store.runs.wait(waits.id, timeout=60).state == "done"
        assert [each.graph for each in store.runs.limits()] == ["a"]
        for wrong in (-1, True, "2"):
            with pytest.raises(InvalidError):
                store.runs.limit("a", wrong)  # type: ignore[arg-type]
        with pytest.raises(InvalidError, match="name of a graph"):
            store.runs.limit("", 1)


def _claimed_by_one_that_died(store: Store, graph: str, life: float = 0.1) -> Any:
    """A run that is claimed, and of whose claim there is no further sign of life."""
    table = RunTable(store._handle)
    submitted = store.runs.submit(None, [1], graph=graph)
    (found,) = run(table.look([graph], 10, "")).due
    held = run(table.begin(found, life, "", is_graph=False, is_limited=True))
    assert isinstance(held, HeldRun)
    assert held.stored.id == submitted.id
    return table, held


def test_a_run_whose_worker_died_is_queued_again_by_workers_of_other_graphs_if_all_are_limited(tmp_path: Path) -> None:
    works = {name: Counted().workflow(name) for name in ("a", "b")}
    with holdfast.open(tmp_path / "a.db") as store:
        store.runs.limit(None, 1)
        table, held = _claimed_by_one_that_died(store, "a")
        waits = store.runs.submit(None, [2], graph="b")
        store.worker(works["b"]).run_due()
        assert store.runs.get(waits.id).state == "queued"  # the other one counts, as long as it may be alive
        with store.worker(works["b"], lease=0.1, look_every=0.05):
            assert store.runs.wait(waits.id, timeout=60).state == "done"
        assert store.runs.get(held.stored.id).state == "queued"
        with pytest.raises(ClaimLostError):  # it was not dead
            run(table.finish(held, DONE))
        store.worker(works["a"]).run_due()
        assert store.runs.get(held.stored.id).state == "done"


def test_a_run_that_is_taken_over_counts_once_and_a_deleted_one_not_at_all(tmp_path: Path) -> None:
    work = Counted().workflow("a")
    with holdfast.open(tmp_path / "a.db") as store:
        store.runs.limit("a", 1)
        _, held = _claimed_by_one_that_died(store, "a")
        with store.worker(work, lease=0.1, look_every=0.05):
            assert store.runs.wait(held.stored.id, timeout=60).state == "done"
        _, held = _claimed_by_one_that_died(store, "a", life=3600)
        waits = store.runs.submit(None, [2], graph="a")
        store.worker(work).run_due()
        assert store.runs.get(waits.id).state == "queued"
        store.thread(held.stored.thread).delete()
        store.worker(work).run_due()
        assert store.runs.get(waits.id).state == "done"


def test_the_names_of_limited_graphs_are_encrypted(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db", encryption=Encryption(LocalKeys(b"m" * 32), hide_names=True)) as store:
        store.runs.limit("a-secret-graph", 1)
        submitted = store.runs.submit(None, [1], graph="a-secret-graph")
        assert [each.graph for each in store.runs.limits()] == ["a-secret-graph"]
        store.worker(Counted().workflow("a-secret-graph")).run_due()
        assert store.runs.get(submitted.id).state == "done"
    files = [path for path in tmp_path.iterdir() if path.is_file()]
    assert files
    assert not any(b"a-secret-graph" in path.read_bytes() for path in files)


def test_a_limit_is_in_no_backup_and_stays_when_its_store_is_restored_in_place(tmp_path: Path) -> None:
    counted = Counted()
    work = counted.workflow("sell")
    with holdfast.open(tmp_path / "a.db") as store, holdfast.open(tmp_path / "restored.db") as restored:
        store.thread("t").put({"n": 1})
        store.runs.limit("sell", 1)
        backups = store.backups(tmp_path / "backups")
        backups.create()
        store.runs.limit("sell", 0)
        store.runs.limit(None, 7)
        waits = store.runs.submit("t", [1], graph="sell")
        store.thread("t").put({"n": 2})
        backups.restore(in_place=True)
        assert store.thread("t").get().state == {"n": 1}
        assert [(each.graph, each.most, each.running) for each in store.runs.limits()] == [("", 7, 0), ("sell", 0, 0)]
        store.worker(work).run_due()
        assert store.runs.get(waits.id).state == "queued"
        store.runs.limit("sell", None)
        store.worker(work).run_due()
        assert store.runs.get(waits.id).state == "done"
        restored.backups(tmp_path / "backups").restore()
        assert (restored.runs.limits(), restored.runs.list()) == ([], [])
        assert restored.thread("t").get().state == {"n": 1}
        assert store.maintenance.verify().found == restored.maintenance.verify().found == 0
