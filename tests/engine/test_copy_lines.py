"""Lines are copied under other names: the copy is like the original in everything, and one of its own."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.backends.interface import Backend, Batch, Create, Put, Row
from holdfast.backends.runtime.drivers import run
from holdfast.backends.tables import LINES, STEPS, TABLES
from holdfast.engine.copy.within_store import LineCopier
from holdfast.engine.model.steps import PendingWriteRow
from holdfast.engine.row_format import Line
from holdfast.errors import ConflictError, CorruptError, NotFoundError, UnavailableError
from holdfast.store.store import Store
from tests.codec.values import identical
from tests.damaged import flipped
from tests.engine.lines import KINDS, Backends, Clock, backend, store_on, writes_of
from tests.engine.pruned import (
    LARGE,
    LINE,
    Mortal,
    Picture,
    after,
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

COPY = Line("", "copy")
OTHER = Line("else", "t")


def copy(store: Store, names: Mapping[Line, Line] | None = None) -> None:
    run(LineCopier(store._engine).copy({LINE: COPY} if names is None else names))


def check_copy(on: Backend, line: Line = LINE, to: Line = COPY) -> None:
    """The copy has the same rows as the line, under its own name; and all of its states can be read."""
    one, other = rows_of(on, line), rows_of(on, to)
    for space in TABLES[1:]:
        assert [(row.key[2:], row.columns) for row in one[space.name]] == [
            (row.key[2:], row.columns) for row in other[space.name]
        ], space.name
    (mine,), its = one["lines"], other["lines"]
    assert [mine.columns[2:]] == [row.columns[2:] for row in its]
    store = store_on(on)
    pictures = Picture(store, line), Picture(store, to)
    assert pictures[0].stubs == pictures[1].stubs
    assert pictures[0].steps.keys() == pictures[1].steps.keys()
    for place, each in pictures[0].steps.items():
        found = pictures[1].steps[place]
        assert (found.point, found.header) == (each.point, each.header)
        assert identical(found.state, each.state)
    for id in {each.point.id for each in pictures[0].steps.values()}:
        assert writes_of(store, to, id) == writes_of(store, line, id)


@pytest.mark.parametrize("kind", mostly_nightly(KINDS, daily=["memory"]))
@given(
    script=scripts(),
    more=scripts(),
    fold_every=st.sampled_from([2, 3, 32]),
    bits=st.tuples(st.integers(0, 1 << 30), st.integers(0, 1 << 30)),
)
@settings(max_examples=examples(25))
def test_any_history(kind: str, script: list[Any], more: list[Any], fold_every: int, bits: tuple[int, int]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        on = backend(kind, Path(folder))
        store = store_on(on, fold_every=fold_every, clock=Clock())
        thread = Thread(store)
        go_on(thread, script)
        decorate(store, sorted(thread.saved), bits[0])
        if bits[1] & 1:
            places = sorted(Picture(store).steps)
            prune(store, dropping(place for at, place in enumerate(places) if (bits[1] >> (at + 1)) & 1))
        before = rows_of(on)
        copy(store)
        assert rows_of(on) == before, "the source is as it was"
        check_copy(on)
        copied = rows_of(on, COPY)
        after(thread, Picture(store))
        go_on(thread, more)
        thread.check()
        assert rows_of(on, COPY) == copied, "what happens to the one does not happen to the other"
        store.thread("t").delete()
        again = store_on(on, fold_every=fold_every, clock=store._engine.context.clock)
        copy(again, {COPY: LINE})
        check_copy(on, COPY, LINE)
        run(on.close())


def test_a_copy_goes_on_by_itself(shared: Backend) -> None:
    store = filled(shared)
    store.thread("t").tag("best", "4")
    store.thread("t").label("good", "5")
    copy(store)
    assert store.thread("copy").tags() == {"best": "4"}
    assert store.thread("copy").labels() == {"good": ["5"]}
    assert store.thread("copy").info().steps == store.thread("t").info().steps
    assert [each.hash for each in store.thread("copy").log().all()] == [
        each.hash for each in store.thread("t").log().all()
    ]
    saved = store.thread("copy").put({"new": LARGE}, id="90", parent="7")
    assert (saved.step, saved.branch) == (8, 0)
    assert store.thread("copy").put({"side": "on"}, id="91", branch="side").step == 6
    store.thread("copy").put({"n": "revised"}, id="2")
    store.maintenance.compact("copy")
    prune(store, dropping_ids("3"), COPY)
    assert store.thread("copy").get("2").state == {"n": "revised"}
    assert store.thread("copy").get("90").state == {"new": LARGE}
    assert store.thread("t").get("2").state["n"] == 2
    with pytest.raises(NotFoundError):
        store.thread("t").get("90")


def test_several_at_once(shared: Backend) -> None:
    store = filled(shared)
    store.thread("u").put({"n": 1}, id="0")
    copy(store, {LINE: OTHER, Line("", "u"): Line("", "v")})
    check_copy(shared, LINE, OTHER)
    check_copy(shared, Line("", "u"), Line("", "v"))
    copy(store, {})


def test_all_or_none(shared: Backend) -> None:
    store = filled(shared)
    store.thread("u").put({"n": 1}, id="0")
    store.thread("v").put({"mine": 1}, id="0")
    before = rows_of(shared, Line("", "v"))
    with pytest.raises(ConflictError, match="a thread with that name already exists"):
        copy(store, {LINE: COPY, Line("", "u"): Line("", "v")})
    assert rows_of(shared, Line("", "v")) == before
    with pytest.raises(NotFoundError):
        store.thread("copy").get()
    assert store.threads(prefix="copy") == []
    with pytest.raises(ConflictError):
        copy(store, {LINE: LINE})
    with pytest.raises(NotFoundError):
        copy(store, {Line("", "nothing"): COPY})


def test_a_line_that_only_has_writes(shared: Backend) -> None:
    store = store_on(shared)
    run(store._engine.writes.put(LINE, "1", [PendingWriteRow("", "task", 0, "c", b"\x01")]))
    copy(store)
    check_copy(shared)


def test_more_rows_than_a_page(shared: Backend) -> None:
    store = store_on(shared, fold_every=3)
    for n in range(300):
        store.thread("t").put({"n": n, "list": [n] * (n % 7)}, id=f"{n:04}", labels=["all"])
    copy(store)
    check_copy(shared)
    assert len(store.thread("copy").labels()["all"]) == 300


CHANGES: dict[str, Callable[[Store], object]] = {
    "append": lambda store: store.thread("t").put({"new": 0, "large": f"{LARGE}0"}, id="90", parent="7"),
    "fold": lambda store: [
        store.thread("t").put({"new": n, "large": f"{LARGE}{n}"}, id=f"9{n}", parent=None if n else "7")
        for n in range(7)
    ],
    "branch": lambda store: store.thread("t").put({"branch": 1}, id="90", parent="2"),
    "compact": lambda store: store.maintenance.compact("t"),
    "prune": lambda store: prune(store, dropping_ids("0", "4", "7")),
    "revise": lambda store: store.thread("t").put({"n": "revised"}, id="6"),
    "write": lambda store: run(store._engine.writes.put(LINE, "5", [PendingWriteRow("", "task", 0, "c", b"\x01")])),
}


def states_of(store: Store, thread: str = "t") -> dict[str, Any]:
    return {each.id: store.thread(thread).get(each.id).state for each in store.thread(thread).log().all()}


@pytest.mark.parametrize("change", mostly_nightly(CHANGES, daily=["append", "prune"]))
def test_the_source_changes_meanwhile(fresh: Backends, change: str) -> None:
    def scenario(moment: Moment) -> None:
        backend = InterferingBackend(fresh())
        store = filled(backend)
        clock = store._engine.context.clock
        other = store_on(backend.inner, fold_every=3, clock=clock)
        before = states_of(other)
        with moment.interfere(backend, lambda: CHANGES[change](other)):
            copy(store)
        now = states_of(other)
        cold = store_on(backend.inner, clock=clock)
        copied = states_of(cold, "copy")
        assert copied.items() >= {id: now[id] for id in before.keys() & now.keys()}.items() or copied == before
        assert all(state in (before.get(id), now.get(id)) for id, state in copied.items())
        assert cold.thread("copy").info().steps >= len(copied)
        cold.maintenance.compact("copy")
        cold.thread("copy").put({"on": 1}, id="99")
        assert states_of(cold, "copy") == copied | {"99": {"on": 1}}

    at_every_moment(scenario, at_least=5, stride=by_day(1, 2))


@pytest.mark.usefixtures("impatient")
def test_a_source_that_keeps_changing_is_given_up(shared: Backend) -> None:
    backend = InterferingBackend(shared)
    store = filled(backend)
    other = store_on(shared, clock=store._engine.context.clock)

    def fork() -> None:
        other.thread("t").fork(f"fork {len(other.thread('t').branches())}", at="1")

    def commits(batch: Batch) -> bool:
        return any(isinstance(each, Create) and each.space is LINES for each in batch)

    with pytest.raises(ConflictError, match="gave up copying"), backend.interfere(fork, times=None, where=commits):
        copy(store)
    assert store_on(shared).threads(prefix="copy") == []


def test_the_target_is_made_meanwhile(fresh: Backends) -> None:
    refused = 0

    def scenario(moment: Moment) -> None:
        nonlocal refused
        backend = InterferingBackend(fresh())
        store = filled(backend)
        clock = store._engine.context.clock
        other = store_on(backend.inner, fold_every=2, clock=clock)
        made = False
        with moment.interfere(backend, lambda: other.thread("copy").put({"mine": 0}, id="0")), suppress(ConflictError):
            copy(store)
            made = True
        if made:  # and theirs, if it came, is a revision of its first checkpoint
            assert states_of(other, "copy") == states_of(other) | ({"0": {"mine": 0}} if moment.came else {})
            return
        refused += 1
        for n in range(1, 9):
            other.thread("copy").put({"mine": n, "large": LARGE}, id=str(n))
        for each in (other, store_on(backend.inner, fold_every=2, clock=clock)):
            assert [state["mine"] for state in states_of(each, "copy").values()] == list(range(8, -1, -1))
            assert [writes_of(each, COPY, str(n)) for n in range(9)] == [[]] * 9
            each.maintenance.compact("copy")

    stride = by_day(1, 2)
    at_every_moment(scenario, stride=stride)
    assert refused >= 13 // stride


def test_a_copy_that_takes_long_renews_its_lease(fresh: Backends) -> None:
    shared, clock = fresh(), Clock()
    filled(shared, clock=clock)

    def slow() -> int:
        clock.now += 10 * 10**9
        return clock()

    copy(store_on(shared, clock=slow))
    check_copy(shared)


def test_what_is_left_of_an_interrupted_copy_does_no_harm(fresh: Backends) -> None:
    shared, clock = fresh(), Clock()
    store = filled(shared, clock=clock)
    run(store._engine.writes.put(LINE, "5", [PendingWriteRow("", "task", 0, "c", b"\x01")]))
    killed = Counter[str]()
    for lives in range(100):
        clock.now += 3600 * 10**9  # whoever was killed is taken for dead
        try:
            copy(store_on(Mortal(shared, lives), fold_every=3, clock=clock))
            break
        except UnavailableError:
            pass
        clock.now += 3600 * 10**9
        if store.threads(prefix="copy"):  # killed when all was done but for tidying up
            check_copy(shared)
            store.thread("copy").delete()
            killed["after"] += 1
        elif lives % 2:  # somebody else takes the name
            killed["name taken"] += 1
            others = store_on(shared, fold_every=2, clock=store._engine.context.clock)
            for n in range(9):
                others.thread("copy").put({"mine": n}, id=f"my {n}")
            cold = store_on(shared, fold_every=2, clock=store._engine.context.clock)
            assert [cold.thread("copy").get(f"my {n}").state for n in range(9)] == [{"mine": n} for n in range(9)]
            assert writes_of(cold, COPY, "my 5") == []
            cold.maintenance.compact("copy")
            assert [cold.thread("copy").get(f"my {n}").state for n in range(9)] == [{"mine": n} for n in range(9)]
            cold.thread("copy").delete()
        else:  # or it is tried again, perhaps after something else was left
            killed["tried again"] += 1
            store.thread("t").put({"n": lives})
            copy(store)
            check_copy(shared)
            store.thread("copy").delete()
    else:
        pytest.fail("the copy never ended")
    assert killed["name taken"] >= 7, killed
    assert killed["tried again"] >= 7, killed
    assert killed["after"], killed
    check_copy(shared)


def test_damage_is_found_and_not_copied(tmp_path: Path) -> None:
    on = backend("memory", tmp_path)
    store = filled(on)
    step = rows_of(on)["steps"][3]
    run(on.apply([Put(STEPS, Row(step.key, step.columns, flipped(step.body)))]))
    with pytest.raises(CorruptError):
        copy(store)
    assert store.threads(prefix="copy") == []
