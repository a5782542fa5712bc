"""Steps are dropped from lines: those that stay are as they were, and of the others at most their places are left."""

from __future__ import annotations

import tempfile
import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import holdfast
from holdfast.backends.interface import Backend, Batch, Delete, Get, Put
from holdfast.backends.runtime.drivers import run
from holdfast.backends.sqlite.backend import SQLiteBackend
from holdfast.backends.tables import FOLDS, LINES, OBJECTS, REFS, STEPS, WRITES
from holdfast.engine.integrity.findings import VerifyLevel
from holdfast.engine.integrity.verify import verify
from holdfast.engine.leases import pause_key
from holdfast.engine.model.steps import PendingWriteRow
from holdfast.engine.rewrite.rewriter import RewritePlan
from holdfast.engine.row_format import Branch, Line, StepRef, write_row
from holdfast.errors import ConflictError, NotFoundError, UnavailableError
from holdfast.store.store import Store
from tests.codec.values import identical
from tests.engine.lines import KINDS, Backends, Clock, backend, store_on, writes_of
from tests.engine.pruned import (
    LARGE,
    LINE,
    Mortal,
    Picture,
    after,
    check_pruned,
    decorate,
    dropping,
    dropping_ids,
    filled,
    go_on,
    prune,
    rows_of,
)
from tests.engine.test_histories import Thread, scripts
from tests.support.interference import InterferingBackend, Moment, at_every_moment
from tests.support.nightly import by_day, examples, mostly_nightly
from tests.support.sqlite.powercut import Labels, check_cuts, record
from tests.support.sqlite.recording import Recorder


@pytest.mark.parametrize("kind", mostly_nightly(KINDS, daily=["memory"]))
@given(
    script=scripts(),
    more=scripts(),
    fold_every=st.sampled_from([2, 3, 4, 32]),
    cache=st.sampled_from([0, 20_000, 1 << 24]),
    bits=st.lists(st.integers(0, (1 << 40) - 1) | st.just((1 << 40) - 1), min_size=6, max_size=6),
)
@settings(max_examples=examples(15))
def test_what_stays_is_as_it_was(
    kind: str, script: list[Any], more: list[Any], fold_every: int, cache: int, bits: list[int]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        on = backend(kind, Path(folder))
        also = backend(kind, Path(folder)) if kind == "sqlite" else on
        clock = Clock()
        store = store_on(on, fold_every=fold_every, cache_bytes=cache, clock=clock)
        other = store_on(also, fold_every=fold_every, cache_bytes=cache, clock=clock)
        thread = Thread(store)
        for number, steps in enumerate((script, more, [])):
            go_on(thread, steps)
            decorate(thread.store, sorted(thread.saved), bits[number])
            writes = {str(row.key[2]) for row in rows_of(on)["writes"]}
            before = Picture(store)
            Picture(other)  # so that it remembers what is about to go
            places = sorted(before.steps)
            dropped = {place for at, place in enumerate(places) if (bits[number + 3] >> at) & 1}
            prune(store, dropping(dropped))
            if not dropped:
                continue
            now = check_pruned(store, before, dropped, writes)
            check_pruned(other, before, dropped, writes)
            after(thread, now)
            thread.store = other  # goes on with what it remembers
            thread.check()
        check_pruned(
            store_on(on, clock=clock), Picture(other), set(), {str(row.key[2]) for row in rows_of(on)["writes"]}
        )
        store.maintenance.compact("t")
        thread.check()
        run(also.close())
        run(on.close())


def test_the_end_of_a_branch_leaves_nothing(shared: Backend) -> None:
    store = filled(shared)
    prune(store, dropping_ids("6", "7", "81"))
    assert [StepRef.of(row).pruned for row in rows_of(shared)["steps"]] == [False] * 7
    assert store.thread("t").put({"n": "new"}, id="9", parent="5").branch == 0
    assert store.thread("t").put({"side": "new"}, id="91", branch="side").step == 5
    assert store.thread("t").info().steps == 9


def test_stubs_are_left_where_others_follow(shared: Backend) -> None:
    store = filled(shared)
    prune(store, dropping_ids("0", "3", "4", "5", "6", "7", "80"))
    stubs = [point[:2] for point in map(StepRef.of, rows_of(shared)["steps"]) if point.pruned]
    assert stubs == [(0, 0), (0, 3), (1, 0)]
    assert store.thread("t").get("81").parent is None
    assert store.thread("t").get("81").state == {"side": 2}
    assert store.thread("t").get("1").parent is None
    assert [each.base for each in store.thread("t").branches()] == [None, None]
    for number in (0, 3):
        with pytest.raises(NotFoundError, match="pruned"):
            store.thread("t").get(at=f"side#{number}")
    with pytest.raises(NotFoundError, match="was pruned"):
        store.thread("t").get(at="side#4")
    assert store.thread("t").get().id == "2"  # what is left of HEAD's branch
    prune(store, dropping_ids("81"))
    assert [StepRef.of(row).id for row in rows_of(shared)["steps"]] == ["", "1", "2"]
    assert [each.name for each in store.thread("t").branches()] == ["main"]


def test_the_size_counts_what_is_left(shared: Backend) -> None:
    """A branch's last place may be a stub, when another branch starts there."""
    store = filled(shared)
    prune(store, dropping_ids("3", "4", "5", "6", "7"))
    with_stub = store.thread("t").info().bytes
    prune(store, dropping_ids("80", "81"))
    assert 0 < store.thread("t").info().bytes < with_stub


def test_a_fork_without_steps_goes_with_what_it_starts_from(shared: Backend) -> None:
    store = filled(shared)
    store.thread("t").fork("stays", at="2")
    store.thread("t").fork("goes", at="5")
    prune(store, dropping_ids("5"))
    assert [each.name for each in store.thread("t").branches()] == ["main", "side", "stays"]
    assert store.thread("t").put({"x": 1}, branch="stays").parent == "2"
    assert store.thread("t").fork("goes", at="6").base == "6"


def test_everything_goes(shared: Backend) -> None:
    store = filled(shared)
    store.thread("t").tag("best", "4")
    everything = dropping_ids(*(each.id for each in store.thread("t").log().all()))
    prune(store, everything)
    rows = rows_of(shared)
    assert {name for name, found in rows.items() if found} == {"lines"}
    assert store.thread("t").log() == []
    assert (store.thread("t").info().steps, store.thread("t").info().bytes, store.thread("t").info().latest) == (
        0,
        0,
        None,
    )
    prune(store, everything)
    store.maintenance.compact("t")
    assert store.thread("t").put({"n": "again"}, id="0").step == 0
    assert store.thread("t").get().state == {"n": "again"}


def test_old_revisions_go_alone(shared: Backend) -> None:
    store = filled(shared)
    store.thread("t").put({"n": "revised"}, id="6")
    before = Picture(store)
    old = {place for place, each in before.steps.items() if before.last()[each.point.id] is not each}
    assert len(old) == 2
    prune(store, dropping(old))
    check_pruned(store, before, old)
    assert store.thread("t").get("6").state == {"n": "revised"}


def test_changes_are_made_with_the_rest_or_without_dropping_anything(shared: Backend) -> None:
    store = filled(shared)
    packed = store._engine.context.codec.pack("carried")

    async def choose(points: Sequence[StepRef], branches: Sequence[Branch]) -> RewritePlan:
        return RewritePlan(frozenset(), [Put(WRITES, write_row(LINE, "5", PendingWriteRow("", "t", 0, "c", packed)))])

    prune(store, choose)
    assert [each.packed for each in writes_of(store, LINE, "5")] == [packed]
    assert rows_of(shared)["refs"] == [], "the lease was given back"


def test_one_at_a_time(shared: Backend) -> None:
    backend = InterferingBackend(shared)
    store = filled(backend)
    other = store_on(shared, clock=store._engine.context.clock)

    def second() -> None:
        with pytest.raises(ConflictError, match="another rewrite of the thread is in progress"):
            prune(other, dropping_ids("1"))

    with backend.interfere(second, at=2):
        prune(store, dropping_ids("0"))
    assert [each.id for each in other.thread("t").log().all()] == ["81", "80", "7", "6", "5", "4", "3", "2", "1"]


class Leaping(Clock):
    """A clock by which everything takes long."""

    def __call__(self) -> int:
        self.now += 20 * 10**9
        return self.now


def test_a_slow_one_keeps_its_lease(shared: Backend) -> None:
    store = filled(shared, clock=Leaping())
    before = Picture(store)
    prune(store, dropping([(0, 1), (0, 4)]))
    check_pruned(store, before, {(0, 1), (0, 4)})


def test_no_such_thread(shared: Backend) -> None:
    with pytest.raises(NotFoundError):
        prune(store_on(shared), dropping_ids("0"))
    assert rows_of(shared)["refs"] == []


# Meanwhile --------------------------------------------------------------------------------------------------------


def states_of(store: Store) -> dict[str, Any]:
    return {each.id: store.thread("t").get(each.id).state for each in store.thread("t").log().all()}


@pytest.mark.nightly
@pytest.mark.parametrize(
    "dropped",
    [
        pytest.param(("0", "4", "5"), marks=pytest.mark.nightly, id="early"),
        pytest.param(("6", "7", "81"), marks=pytest.mark.nightly, id="late"),
        pytest.param(("3", "80"), id="base"),
    ],
)
def test_others_go_on_meanwhile(fresh: Backends, dropped: tuple[str, ...]) -> None:
    def scenario(moment: Moment) -> None:
        backend = InterferingBackend(fresh())
        store = filled(backend)
        clock = store._engine.context.clock
        other = store_on(backend.inner, fold_every=3, clock=clock)
        expected = states_of(other)

        def act() -> None:
            for n in range(4):
                other.thread("t").put(expected.setdefault(f"9{n}", {"new": n, "large": f"{LARGE}{n}"}), id=f"9{n}")

        with moment.interfere(backend, act):
            prune(store, dropping_ids(*dropped))
        for id in dropped:
            del expected[id]
        for each in (store, other, store_on(backend.inner, clock=clock)):
            assert states_of(each) == expected
            assert each.thread("t").info().steps == len(expected)
        prune(other, dropping_ids("91"))
        expected.pop("91", None)
        assert states_of(store) == expected

    at_every_moment(scenario, at_least=7, stride=by_day(1, 3))


def test_branches_are_opened_meanwhile(fresh: Backends) -> None:
    def scenario(moment: Moment) -> None:
        backend = InterferingBackend(fresh())
        store = filled(backend)
        other = store_on(backend.inner, fold_every=3, clock=store._engine.context.clock)
        expected = states_of(other)

        def act() -> None:
            expected["90"] = {"on": "an old one"}
            other.thread("t").put(expected["90"], id="90", parent="5")
            other.thread("t").fork("fork", at="6")

        with moment.interfere(backend, act):
            prune(store, dropping_ids("0", "4", "7"))
        for id in ("0", "4", "7"):
            del expected[id]
        for each in (store, other):
            assert states_of(each) == expected
            assert not moment.came or each.thread("t").get(at="fork").id == "6"

    at_every_moment(scenario, at_least=7, stride=by_day(1, 3))


@pytest.mark.usefixtures("impatient")
def test_a_thread_that_keeps_growing_is_given_up(shared: Backend) -> None:
    backend = InterferingBackend(shared)
    store = store_on(backend, fold_every=3)
    other = store_on(shared, fold_every=3, clock=store._engine.context.clock)
    for n in range(3):
        store.thread("t").put({"n": n}, id=str(n))

    def grow() -> None:
        other.thread("t").put({"n": "more"}, parent=str(other.thread("t").log(limit=1)[0].id))
        other.thread("t").fork(f"fork {len(other.thread('t').branches())}")

    def commits(batch: Batch) -> bool:
        return any(isinstance(each, Put) and each.space is LINES for each in batch)

    with pytest.raises(ConflictError, match="gave up"), backend.interfere(grow, times=None, where=commits):
        prune(store, dropping_ids("0"))
    assert len(store.thread("t").log()) > 6
    prune(store, dropping_ids("0"))
    assert list(store.thread("t").log().all())[-1].id == "1"


def test_a_writer_that_is_always_ahead(shared: Backend) -> None:
    """It appends before each attempt to switch, in a thread of its own, until it has to wait."""
    backend = InterferingBackend(shared)
    store = store_on(backend, fold_every=3)
    other = store_on(shared, fold_every=3, clock=store._engine.context.clock)
    for n in range(10):
        store.thread("t").put({"n": n}, id=f"{n:03}")
    writers: list[threading.Thread] = []

    def append() -> None:
        writer = threading.Thread(
            target=other.thread("t").put, args=({"n": "more"},), kwargs={"id": f"{len(writers) + 10:03}"}
        )
        writers.append(writer)
        writer.start()
        while writer.is_alive() and not run(shared.read([Get(REFS, [pause_key(Line("", "t"))])]))[0]:
            writer.join(0.001)

    def switches(batch: Batch) -> bool:
        return any(isinstance(each, Delete) and each.space is FOLDS for each in batch)

    backend.most_batches = len(backend.batches) + 100
    with backend.interfere(append, times=None, where=switches) as interference:
        prune(store, dropping_ids("000", "003"))
    for writer in writers:
        writer.join()
    assert interference.struck == 2  # one append was faster, and one had to wait
    assert [each.id for each in reversed(list(other.thread("t").log().all()))] == [
        f"{n:03}" for n in range(12) if n not in (0, 3)
    ]
    assert run(verify(store._engine.context, Line("", "t"), VerifyLevel.DECODE)).findings == []


# Killed -----------------------------------------------------------------------------------------------------------


def test_killed_at_any_point(fresh: Backends) -> None:
    shared, left, stride = fresh(), Counter[int](), by_day(1, 2)
    for lives in range(0, 1000, stride):
        store = filled(shared)
        before = Picture(store)
        dropped = {(0, 0), (0, 4), (0, 7), (1, 0)}
        try:
            prune(store_on(Mortal(shared, lives), fold_every=3), dropping(dropped))
            break
        except UnavailableError:
            pass
        later = store_on(shared, fold_every=3, clock=Clock(Clock().now + 3600 * 10**9))
        now = Picture(later)
        assert now.steps.keys() in (before.steps.keys(), before.steps.keys() - dropped)
        left[len(now.steps)] += 1
        for place, each in now.steps.items():
            assert identical(each.state, before.steps[place].state)
        prune(later, dropping(dropped))
        later.maintenance.compact("t")
        check_pruned(later, before, dropped)
        later.thread("t").delete()
    else:
        pytest.fail("it never ended")
    assert left[10] >= 14 // stride, "killed before the switch"
    assert left[6] >= 2 // stride, "killed after it"


@pytest.mark.parametrize("cuts", mostly_nightly([40, 300], daily=[40]))
def test_power_cuts(cuts: int) -> None:
    states: dict[str, Any] = {}
    dropped = ("0", "2", "5", "7", "80")

    def workload(folder: Path, recorder: Recorder) -> None:
        url = f"sqlite:///{folder}/store.db"
        opened = run(SQLiteBackend.open(url, vfs=recorder.vfs, exclusive=True, synchronous="full"))
        store = filled(opened, clock=Clock())
        states.update({each.id: store.thread("t").get(each.id).state for each in store.thread("t").log().all()})
        recorder.mark("filled")
        prune(store, dropping_ids(*dropped))
        recorder.mark("pruned")
        run(opened.close())

    left = {"before": 0, "after": 0}

    def verify(folder: Path, labels: Labels) -> None:
        if not labels:
            return
        opened = run(SQLiteBackend.open(f"sqlite:///{folder}/store.db"))
        store = store_on(opened, fold_every=3, clock=Clock(Clock().now + 3600 * 10**9))
        try:
            found = {each.id: store.thread("t").get(each.id).state for each in store.thread("t").log().all()}
            kept = {id: state for id, state in states.items() if id not in dropped}
            assert found == kept or (found == states and "pruned" not in labels)
            left["before" if found == states else "after"] += 1
            before = Picture(store)
            prune(store, dropping_ids("1", "0"))
            check_pruned(store, before, {(0, 0), (0, 1)} & before.steps.keys())
            assert run(opened.check()) == []
        finally:
            run(opened.close())

    check_cuts(record(workload), verify, cuts=cuts)
    assert all(left.values()), "some cuts are before the switch, and some after it"


def test_nothing_else_is_touched(shared: Backend) -> None:
    store = filled(shared)
    store.thread("u").put({"large": LARGE + "0"}, id="0", tag="mine")
    before = rows_of(shared, Line("", "u"))
    assert [len(before[space.name]) for space in (LINES, STEPS, OBJECTS, REFS)] == [1, 1, 1, 1]
    prune(store, dropping_ids("0", "1", "2"))
    assert rows_of(shared, Line("", "u")) == before


def test_a_checkpoint_that_is_saved_again_as_before_has_its_own_parent(shared: Backend) -> None:
    """It has the same hash at another position, and what is known of one is not said of the other."""
    store = store_on(shared, clock=lambda: 1_700_000_000_000_000_000)
    store.thread("t").put({"n": 1}, id="1")
    for state in ("a", "b", "a"):
        store.thread("t").put({"n": state}, id="2", parent="1")
        store.thread("t").put({"n": 3}, id="3", parent="2")
    points = [StepRef.of(row) for row in rows_of(shared)["steps"]]
    assert [point[:2] for point in points if point.hash == points[-1].hash] == [(0, 2), (2, 1)]
    parents = {
        (0, 0): None,
        (0, 1): (0, 0),
        (0, 2): (0, 1),
        (1, 0): (0, 0),
        (1, 1): (1, 0),
        (2, 0): (0, 0),
        (2, 1): (2, 0),
    }
    for order in (points, points[::-1]):
        for reader in (store_on(shared), store_on(shared, cache_bytes=0), store):
            for point in order:
                (info,) = run(reader._engine.step_info.describe(LINE, [point]))
                assert info.point == point
                assert next((parent[:2] for parent in info.header.parents), None) == parents[point[:2]]


def test_compacting_leaves_no_large_value_that_nothing_needs() -> None:
    with holdfast.open("memory://") as store:
        thread = store.thread("chat")
        for number in range(20):  # heavy changes are folded early, at places that a prune moves
            messages = [{"role": "user", "content": f"message {number}"}] * (number + 1)
            thread.put({"value": number, "large": f"number {number:04}" * 14_000, "messages": messages})
        thread.put({"n": 0})
        for number in range(60):
            thread.update({"n": number})
        store.maintenance.prune("chat", keep_last=78)
        assert store.maintenance.verify(level="decode").findings == []
        store.maintenance.compact("chat")
        assert store.maintenance.verify(level="decode").findings == []
        assert len(list(thread.log())) == 78
