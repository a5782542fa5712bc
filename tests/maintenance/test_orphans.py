"""Rows that belong to nothing go; what somebody may be about to complete does not."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.backends.interface import Backend, Delete, Put, Row
from holdfast.backends.runtime.drivers import run
from holdfast.backends.tables import FOLDS, HEADS, LINES, NODES, OBJECTS, QUARANTINE, REFS, STEPS, WORDS
from holdfast.engine.checked_rows import CheckedBackend
from holdfast.engine.leases import Lease
from holdfast.engine.model.steps import PendingWriteRow
from holdfast.engine.row_format import Line
from holdfast.store.store import Store
from tests.engine.lines import Backends, Clock, store_on
from tests.engine.pruned import LARGE, LINE, filled, rows_of
from tests.maintenance.kit import copied
from tests.support.interference import InterferingBackend, Moment, at_every_moment

DAY = 24 * 3600 * 10**9


def put(on: Backend, *changes: Any) -> None:
    assert run(CheckedBackend(on).apply(changes)) is None


def found(report: Any) -> set[tuple[str, str, bool]]:
    return {(each.thread, each.what, each.waits) for each in report.found}


def states(store: Store) -> dict[str, Any]:
    return {each.id: store.thread("t").get(each.id).state for each in store.thread("t").log().all()}


def everything(on: Backend) -> dict[str, list[Row]]:
    return {name: rows for name, rows in rows_of(on).items() if rows}


def test_a_store_in_order_has_none(shared: Backend) -> None:
    store = filled(shared)
    store.maintenance.build_index()
    store.thread("t").label("good", "4")
    store.thread("t").pin("3")
    store.thread("t").hold(reason="not for this")
    store.thread("t").release()
    run(store._engine.writes.put(LINE, "7", [PendingWriteRow("", "task", 0, "c", b"\xc0")]))
    store.maintenance.prune(keep_last=3)
    before = everything(shared)
    told: list[Any] = []
    report = store.maintenance.sweep_orphans(grace="0s", progress=lambda *how: told.append(how))
    assert (report.found, report.rows, report.bytes, report.problems) == ([], 0, 0, {})
    assert everything(shared) == before
    assert told == [(1, 2, "t"), (2, 2, "␞audit")]


def litter(on: Backend, store: Store) -> None:
    """Rows of each kind that belong to nothing, in a thread that is there."""
    form = int(rows_of(on)["lines"][0].columns[2])
    put(
        on,
        Put(NODES, Row((*LINE, form + 1, b"left"), (), b"x" * 100)),
        Put(NODES, Row((*LINE, form + 5, b"left"), (), b"x" * 100)),
        Put(OBJECTS, Row((*LINE, b"nobody's", 0), (), b"x" * 100)),
        Put(OBJECTS, Row((*LINE, b"nobody's", 1), (), b"x" * 100)),
        Put(REFS, Row((*LINE, "label", "lost", "nowhere"), ("nowhere", 1))),
        Put(REFS, Row((*LINE, "orphan", "digest", ""), ("", 1))),
        Put(FOLDS, Row((*LINE, 0, 99), (form, b"hash"), b"x")),
        Put(WORDS, Row((*LINE, 0, 99), (1, "word"))),
    )
    run(store._engine.writes.put(LINE, "0never", [PendingWriteRow("", "task", 0, "c", b"\xc0")]))


def test_what_belongs_to_nothing_goes(shared: Backend) -> None:
    clock = Clock()
    store = filled(shared, clock=clock)
    run(store._engine.writes.put(LINE, "9 to come", [PendingWriteRow("", "task", 0, "c", b"\xc0")]))
    before, whole = everything(shared), states(store)
    litter(shared, store)
    clock.now += 2 * DAY
    store.thread("t").put({"n": "new"}, id="99", branch="side")
    before = everything(shared) | {name: before[name] for name in before if name not in ("steps", "lines")}
    planned = store.maintenance.sweep_orphans(dry_run=True)
    report = store.maintenance.sweep_orphans()
    assert found(report) == {("t", "no checkpoint", False), ("t", "old form", False), ("t", "unused value", False)}
    assert (planned.found, planned.rows, planned.bytes) == (report.found, report.rows, report.bytes)
    assert report.rows == 9
    left = everything(shared)
    assert {name: left[name] for name in ("writes", "objects", "nodes", "folds")} == {
        name: before[name] for name in ("writes", "objects", "nodes", "folds")
    }
    assert "refs" not in left
    assert "words" not in left
    assert {id: state for id, state in states(store).items() if id != "99"} == whole
    assert store.maintenance.sweep_orphans().found == []


def test_writes_may_come_before_their_checkpoint(shared: Backend) -> None:
    clock = Clock()
    store = filled(shared, clock=clock)
    for id in ("5a", "9"):
        run(store._engine.writes.put(LINE, id, [PendingWriteRow("", "task", 0, "c", b"\xc0")]))
    assert store.maintenance.sweep_orphans().found == []
    clock.now += DAY // 2
    store.thread("t").put({"n": "new"}, id="85")
    clock.now += DAY // 2 + 10**9
    report = store.maintenance.sweep_orphans()
    assert report.rows == 1, "the thread went on without it, long ago"
    assert [row.key[2] for row in rows_of(shared)["writes"]] == ["9"]
    clock.now += DAY
    assert store.maintenance.sweep_orphans().rows == 1, "nothing came for long"
    assert rows_of(shared)["writes"] == []


def test_a_thread_of_writes_alone(shared: Backend) -> None:
    clock = Clock()
    store = store_on(shared, clock=clock)
    run(store._engine.writes.put(LINE, "1", [PendingWriteRow("", "task", 0, "c", b"\xc0")]))
    assert store.maintenance.sweep_orphans().found == []
    clock.now += 2 * DAY
    assert store.maintenance.sweep_orphans().rows == 1


def test_a_thread_that_is_not_there_waits(shared: Backend) -> None:
    clock = Clock()
    store = filled(shared, clock=clock)
    whole = states(store)
    put(
        shared,
        Delete(LINES, tuple(LINE)),
        Put(HEADS, Row(tuple(LINE), ("", "", "", "", "c", "", "", "", "", 1, "", 1))),
    )
    planned = store.maintenance.sweep_orphans(dry_run=True)
    assert found(planned) == {("t", "no thread", True)}
    assert rows_of(shared)["refs"] == [], "a dry run writes nothing down"
    assert found(store.maintenance.sweep_orphans()) == {("t", "no thread", True)}
    clock.now += DAY // 2
    assert found(store.maintenance.sweep_orphans()) == {("t", "no thread", True)}
    assert len(rows_of(shared)["refs"]) == 1
    run(shared.apply([Delete(STEPS, (*LINE, 1, 1))]))  # somebody is at work on it
    clock.now += DAY
    assert found(store.maintenance.sweep_orphans()) == {("t", "no thread", True)}
    clock.now += DAY
    planned = store.maintenance.sweep_orphans(dry_run=True)
    report = store.maintenance.sweep_orphans()
    assert found(report) == {("t", "no thread", False)}
    assert (planned.rows, planned.bytes) == (report.rows, report.bytes)
    assert report.rows > len(whole)
    assert everything(shared) == {}


def test_a_copy_under_way_is_left(shared: Backend) -> None:
    clock = Clock()
    store = store_on(shared, clock=clock)
    put(shared, Put(NODES, Row((*LINE, 1, b"half"), (), b"x")))
    lease = Lease(store._engine.context, LINE, "copy")
    run(lease.acquire())
    assert store.maintenance.sweep_orphans(grace="0s").found == []
    clock.now += 2 * DAY  # whoever had it is dead
    assert store.maintenance.sweep_orphans(grace="0s").rows == 2
    assert everything(shared) == {}


def test_a_rewrite_under_way_is_left(shared: Backend) -> None:
    clock = Clock()
    store = filled(shared, clock=clock)
    form = int(rows_of(shared)["lines"][0].columns[2])
    put(shared, Put(NODES, Row((*LINE, form + 1, b"being made"), (), b"x")))
    lease = Lease(store._engine.context, LINE, "rewrite")
    run(lease.acquire())
    assert store.maintenance.sweep_orphans(grace="0s").found == []
    assert store.maintenance.sweep_orphans(grace="0s", dry_run=True).found == []
    run(lease.release())
    assert store.maintenance.sweep_orphans(grace="0s").rows == 1


def test_what_is_held_in_quarantine_or_a_setting_stays(shared: Backend) -> None:
    store = filled(shared)
    store.maintenance.build_index()
    litter(shared, store)
    store.thread("t").hold(reason="case 17")
    put(shared, Put(QUARANTINE, Row(("", "gone", 1), ("steps", 1, "damaged"), b"x")))
    assert store.maintenance.sweep_orphans(grace="0s").found == []
    store.thread("t").release()
    assert store.maintenance.sweep_orphans(grace="0s").rows >= 9
    assert rows_of(shared, Line("", "gone"))["quarantine"]
    assert rows_of(shared, Line("", ""))["refs"], "the mark that there is an index"


def test_a_damaged_thread_is_left_and_reported(shared: Backend) -> None:
    store = filled(shared)
    litter(shared, store)
    row = rows_of(shared)["steps"][3]
    run(shared.apply([Put(STEPS, row._replace(body=row.body[:-1]))]))
    before = everything(shared)
    report = store.maintenance.sweep_orphans(grace="0s")
    assert list(report.problems) == ["t"]
    assert report.found == []
    assert everything(shared) == before


def test_a_thread_whose_own_row_is_damaged_is_no_stray_and_does_not_hide_others(shared: Backend) -> None:
    store = filled(shared)
    (row,) = rows_of(shared)["lines"]
    run(shared.apply([Put(LINES, row._replace(body=row.body[:-1]))]))
    put(shared, Put(NODES, Row(("", "gone", 1, b"node"), (), b"x")))
    before = everything(shared)
    report = store.maintenance.sweep_orphans(grace="0s")
    assert list(report.problems) == ["t"]
    assert [each.thread for each in report.found] == ["gone"]
    assert everything(shared) == before


@pytest.mark.nightly
def test_others_save_meanwhile(fresh: Backends) -> None:
    def scenario(moment: Moment) -> None:
        backend = InterferingBackend(fresh())
        store = copied(backend, filled, fold_every=3)
        litter(backend, store)
        other = store_on(backend.inner, fold_every=3)
        expected = states(other)
        new = {"large": f"{LARGE}{moment.at}"}

        def act() -> None:
            expected["99"] = new
            other.thread("t").put(new, id="99")

        with moment.interfere(backend, act):
            report = store.maintenance.sweep_orphans(grace="0s")
        assert not report.problems
        cold = store_on(backend.inner, fold_every=3, cache_bytes=0)
        assert states(cold) == expected
        assert found(cold.maintenance.sweep_orphans(grace="0s")) == set()

    at_every_moment(scenario, at_least=4)


@pytest.mark.usefixtures("impatient")
def test_it_gives_up_where_others_never_stop(shared: Backend) -> None:
    backend = InterferingBackend(shared)
    store = filled(backend)
    litter(shared, store)
    other = store_on(shared, fold_every=3)
    with backend.interfere(lambda: other.thread("t").put({"n": "more"}), times=None):
        report = store.maintenance.sweep_orphans(grace="0s")
    assert "gave up checking a thread" in report.problems["t"]


def test_a_thread_that_is_deleted_meanwhile(fresh: Backends) -> None:
    def scenario(moment: Moment) -> None:
        backend = InterferingBackend(fresh())
        store, other = copied(backend, filled, fold_every=3), store_on(backend.inner)
        litter(backend, store)
        with moment.interfere(backend, lambda: other.thread("t").delete()):
            report = store.maintenance.sweep_orphans(grace="0s")
        assert not report.problems
        assert len(other.threads()) == (not moment.came)
        assert everything(backend) == {} or not moment.came

    at_every_moment(scenario, at_least=4)
