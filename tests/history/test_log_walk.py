"""The walk over a line from its ends."""

from __future__ import annotations

import contextlib
import random
from pathlib import Path

import pytest

import holdfast
from holdfast.backends.interface import Delete
from holdfast.backends.runtime.drivers import run
from holdfast.backends.tables import STEPS
from holdfast.engine.branch_graph import Position
from holdfast.engine.row_format import Line
from holdfast.errors import CorruptError, NotFoundError
from holdfast.history.log_walk import LogWalk, StepLabels, VisitedStep, abbreviations
from tests.support.nightly import mostly_nightly

LINE = Line("", "t")


def walked(store: holdfast.Store, page: int = 7) -> list[VisitedStep]:
    """All steps of a line, from the ends of its branches."""
    labels = StepLabels(store._engine, LINE)
    run(labels.load())
    walk = LogWalk(store._engine, LINE, labels.branches)
    run(walk.start(run(labels.ends())))
    found: list[VisitedStep] = []
    while visits := run(walk.page(page)):
        found += visits
    return found


@pytest.mark.parametrize("seed", mostly_nightly(range(6), daily=[0, 1]))
def test_every_step_comes_once_and_before_those_that_it_follows(seed: int) -> None:
    chance = random.Random(seed)
    with holdfast.open("memory://") as store:
        store.thread("t").put({"n": 0}, id="a000")
        for number in range(1, 120):
            if chance.random() < 0.15:
                id = chance.choice(store.thread("t").log()).id
                store.thread("t").fork(f"b{number}", at=id)
            branch = chance.choice([each.name for each in store.thread("t").branches() if each.name])
            store.thread("t").put({"n": number}, id=f"a{number:03}", branch=branch)
        found = walked(store)
        assert sorted(visit.point.id for visit in found) == [f"a{number:03}" for number in range(120)]
        order = {visit.position: number for number, visit in enumerate(found)}
        for visit in found:
            assert all(order[parent] > order[visit.position] for parent in visit.parents)


def test_labels_of_steps() -> None:
    with holdfast.open("memory://") as store:
        for number in range(3):
            store.thread("t").put({"n": number}, id=f"c{number}")
        store.thread("t").fork("empty", at="c2")
        store.thread("t").fork("other", at="c0")
        store.thread("t").put({"n": 9}, id="b1", branch="other")
        store.thread("t").tag("good", "c1")
        store.thread("t").label("seen", "c1")
        labels = StepLabels(store._engine, LINE)
        run(labels.load())
        walk = LogWalk(store._engine, LINE, labels.branches)
        run(walk.start([Position(0, 2), Position(0, 2)]))
        visits = run(walk.page(10))
        assert [visit.point.id for visit in visits] == ["c2", "c1", "c0"]
        names = [each.texts() for each in run(labels.of(visits))]
        assert names == [["HEAD -> main", "empty"], ["tag: good", "label: seen"], []]
        assert labels.name(1) == "empty"
        assert labels.name(7) == "branch 7"


def test_revisions_that_were_replaced_are_left_out() -> None:
    with holdfast.open("memory://") as store:
        for number in range(4):
            store.thread("t").put({"n": number}, id=f"c{number}")
        store.thread("t").put({"n": 100}, id="c1", parent="c0")  # another content: a new revision, with its children
        found = walked(store)
        assert sorted(visit.point.id for visit in found) == ["c0", "c1", "c2", "c3"]
        assert store.thread("t").get("c1").state == {"n": 100}


def test_short_ids() -> None:
    with holdfast.open("memory://") as store:
        for id in ("abcd", "abcde1", "abcde2", "xyz"):
            store.thread("t").put({}, id=id)
        ids = ["abcd", "abcde1", "xyz"]
        assert run(abbreviations(store._engine, LINE, ids, 2)) == ["abcd", "abcde1", "xyz"]
        assert run(abbreviations(store._engine, LINE, ["xyz"], 2)) == ["xy"]
        assert run(abbreviations(store._engine, LINE, [], 2)) == []


def test_it_does_not_start_where_there_is_no_step() -> None:
    with holdfast.open("memory://") as store:
        store.thread("t").put({}, id="c0")
        walk = LogWalk(store._engine, LINE, [])
        run(walk.start([Position(0, 5), Position(0, 0)]))
        assert [visit.point.id for visit in run(walk.page(5))] == ["c0"]
        assert run(walk.page(5)) == []


@pytest.mark.parametrize("reopened", [False, True])
@pytest.mark.parametrize("lost", [(0, 2), (0, 0), (1, 0)])
def test_a_step_that_is_lost_is_no_gap_in_a_log(lost: tuple[int, int], reopened: bool, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/a.db"
    with holdfast.open(url) as store:
        for number in range(5):
            store.thread("t").put({"n": number}, id=f"c{number}")
        store.thread("t").fork("other", at="c1")
        for number in range(3):
            store.thread("t").put({"n": number}, id=f"b{number}", branch="other")
        assert len(walked(store)) == len(store.thread("t").log()) == 8
        run(store._engine.context.backend.apply([Delete(STEPS, (*LINE, *lost))]))
        with holdfast.open(url) if reopened else contextlib.nullcontext(store) as found:
            for read in (
                walked,
                lambda store: store.thread("t").log(),
                lambda store: list(store.thread("t").log(limit=2).all()),
            ):
                with pytest.raises(CorruptError, match="the checkpoint before this one .* is missing"):
                    read(found)


def test_pruned_steps_and_deleted_threads_are_not_lost() -> None:
    with holdfast.open("memory://") as store:
        for number in range(6):
            store.thread("t").put({"n": number}, id=f"c{number}")
        store.maintenance.prune(["t"], keep_last=2)
        assert [each.id for each in store.thread("t").log()] == ["c5", "c4"]
        assert len(walked(store)) == 6
        walk = LogWalk(store._engine, LINE, [])
        run(walk.start([Position(0, 5)]))
        assert [visit.point.id for visit in run(walk.page(1))] == ["c5"]
        for number in range(40):
            store.thread("long").put({"n": number}, id=f"c{number:02}")
        walk = LogWalk(store._engine, Line("", "long"), [])
        run(walk.start([Position(0, 39)]))
        store.thread("long").delete()
        with pytest.raises(NotFoundError, match="no longer exists"):
            run(walk.page(40))
