"""A run beside what else is done to its thread or its store."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
from holdfast import Store
from holdfast.backends.interface import Scan
from holdfast.backends.runtime.drivers import run
from holdfast.backends.tables import JOBS, LINES, REFS
from holdfast.errors import ConflictError
from tests.agents.runs.graphs import chain, logging_nodes


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with holdfast.open(tmp_path / "a.db") as opened:
        yield opened


class _Held:
    """A run that a worker has, in its second node, until the test goes on."""

    def __init__(self, store: Store) -> None:
        self._reached, self._go_on = threading.Event(), threading.Event()

        def around(name: str) -> None:
            if name == "n1":
                self._reached.set()
                assert self._go_on.wait(50)

        self.run = store.runs.submit("t", {"log": ["secret"]}, graph="chain")
        self.worker = store.worker(chain(*logging_nodes(3, around))).start()
        assert self._reached.wait(50)

    def go_on(self) -> None:
        self._go_on.set()
        self.worker.stop()


def rows_of_thread(store: Store) -> list[object]:
    queries = [Scan(LINES, ("", "t")), Scan(REFS, ("", "t")), Scan(JOBS, ("",))]
    return [row.key for rows in run(store._handle.engine.context.backend.read(queries)) for row in rows]


def test_a_thread_that_is_deleted_while_it_is_run_stays_deleted(store: Store) -> None:
    held = _Held(store)
    assert rows_of_thread(store)
    store.thread("t").delete()
    held.go_on()
    assert rows_of_thread(store) == []
    assert store.threads() == []
    assert store.runs.list() == []


def test_a_thread_that_is_pruned_while_it_is_run_goes_on(store: Store) -> None:
    held = _Held(store)
    removed = store.maintenance.prune(keep_last=1)
    assert removed.dropped > 0
    held.go_on()
    store.worker(chain(*logging_nodes(3))).run_due()
    assert store.runs.get(held.run.id).state == "done"
    assert store.thread("t").get().state["log"] == ["secret", "n0", "n1", "n2"]
    assert store.maintenance.verify().found == 0


def test_a_worker_works_for_its_tenant_only(tmp_path: Path) -> None:
    with (
        holdfast.open(tmp_path / "a.db", tenant="one") as one,
        holdfast.open(tmp_path / "a.db", tenant="two") as two,
    ):
        mine, other = (each.runs.submit("t", {"log": []}, graph="chain") for each in (one, two))
        one.worker(chain(*logging_nodes(1))).run_due()
        assert one.runs.get(mine.id).state == "done"
        assert two.runs.get(other.id).state == "queued"
        assert [each.id for each in one.runs.list()] == [mine.id]


def test_the_version_of_the_code_that_began_a_run_is_told(store: Store) -> None:
    held = _Held(store)
    held.go_on()
    assert store.runs.get(held.run.id).state == "queued"
    store.worker(chain(*logging_nodes(3)), code="2.0").run_due()
    ended = store.runs.get(held.run.id)
    assert (ended.state, ended.code, ended.attempts) == ("done", "2.0", 2)


def test_a_graph_that_a_program_runs_is_not_run_by_it_twice(store: Store) -> None:
    held = _Held(store)
    assert store.thread("t").status().status == "running"
    with pytest.raises(ConflictError), store.thread("t").running():
        pass
    held.go_on()
    assert store.thread("t").status().status == "unfinished"


def test_a_restored_thread_goes_on_by_a_new_run(store: Store, tmp_path: Path) -> None:
    held = _Held(store)
    backups = store.backups(tmp_path / "backups")
    backups.create()
    held.go_on()
    with holdfast.open(tmp_path / "restored.db") as restored:
        restored.backups(tmp_path / "backups").restore()
        assert restored.runs.list() == []
        assert restored.thread("t").status().status == "unfinished"
        again = restored.runs.submit("t", graph="chain")
        restored.worker(chain(*logging_nodes(3))).run_due()
        assert restored.runs.get(again.id).state == "done"
        assert restored.thread("t").get().state["log"] == ["secret", "n0", "n1", "n2"]
