"""Migrations of all states: branches that have no step of their own yet."""

from __future__ import annotations

from pathlib import Path

import holdfast
from tests.migration.test_bulk_refusals import ONE, TWO


def test_a_branch_without_a_step_of_its_own(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db") as store:
        store.schemas.attach(ONE, threads="*")
        for name in ("moved", "stays"):
            store.thread(name).put({"n": 1})
            store.thread(name).fork("side")
        store.thread("moved").update({"n": 2})
        store.schemas.detach(threads="*")
        assert store.schemas.plan(TWO).states == {"1.0.0": 4}
        report = store.schemas.up(TWO)
        assert (report.migrated, report.complete) == (4, True)
        assert store.schemas.status(TWO)[0].states == {"2.0.0": 4}
        moved, stays = store.thread("moved"), store.thread("stays")
        assert [each.get(at="side").state for each in (moved, stays)] == [{"m": 1}] * 2
        assert (moved.get().state, stays.get().state) == ({"m": 2}, {"m": 1})
        for thread in (moved, stays):
            assert thread.find().id == thread.find(at="main").id, "HEAD stays where it is"
        assert store.schemas.up(TWO, branches="named").skipped == 4
        moved.fork("empty")
        assert store.schemas.down(TWO, to="1.0.0").migrated == 5
        store.schemas.attach(ONE, threads="*")
        moved.update({"n": 7}, branch="side")
        assert [moved.get(at=each).state["n"] for each in ("main", "side", "empty")] == [2, 7, 2]
        assert store.maintenance.verify().ok
