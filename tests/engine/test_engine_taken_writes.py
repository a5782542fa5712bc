"""Pending writes that the next step takes over: they are still those of their own step."""

from __future__ import annotations

from collections import Counter
from itertools import count
from typing import Any

import pytest

from holdfast.backends.interface import Put, Scan
from holdfast.backends.memory import MemoryBackend
from holdfast.backends.runtime.drivers import run
from holdfast.backends.runtime.memory_cache import MemoryCache
from holdfast.backends.tables import STEPS
from holdfast.codec import Codec
from holdfast.engine.context import EngineContext
from holdfast.engine.copy.between_stores import StoreCopier
from holdfast.engine.copy.within_store import LineCopier
from holdfast.engine.engine import Engine
from holdfast.engine.integrity.findings import VerifyLevel
from holdfast.engine.integrity.verify import verify
from holdfast.engine.model.steps import PendingWriteRow
from holdfast.engine.row_format import Line, StepRef, open_writes
from holdfast.errors import UnavailableError
from holdfast.maintenance.repair.repairer import repair_line
from holdfast.maintenance.repair.sources import RepairSource
from holdfast.store.store import Store
from tests.engine.lines import Clock, store_on, writes_of
from tests.engine.pruned import LINE, Mortal, dropping_ids, prune, rows_of
from tests.support.interference import InterferingBackend, Moment, at_every_moment

ROWS = [
    PendingWriteRow("path 1", "task 1", 0, "messages", b"\x91\xa5hello"),
    PendingWriteRow("path 1", "task 1", 1, "branch:to:answer", b"\xc0"),
    PendingWriteRow("path 2", "task 0", 0, "messages", b"\x91\xa5world"),
]
MARK = PendingWriteRow("", "task 1", -1, "__error__", b"\xa6failed")


def saved(backend: Any, **more: Any) -> Store:
    """A thread of two steps, of which the second took over the writes after the first."""
    store = store_on(backend, clock=Clock(), **more)
    store.thread("t").put({"n": 1}, id="1")
    run(store._engine.writes.put(LINE, "1", ROWS[:2]))
    run(store._engine.writes.put(LINE, "1", ROWS[2:]))
    assert len(rows_of(backend)["writes"]) == 3
    store.thread("t").put({"n": 2}, id="2")
    return store


def taken(backend: Any, line: Line = LINE) -> dict[str, list[PendingWriteRow]]:
    """The writes that steps took over, by their ids."""
    (found,) = run(store_on(backend, cache_bytes=0)._engine.context.backend.read([Scan(STEPS, tuple(line))]))
    return {StepRef.of(row).id: writes for row in found if (writes := open_writes(row, 1 << 30))}


def test_writes_are_taken_over_and_found_where_they_were() -> None:
    backend = MemoryBackend()
    store = saved(backend)
    assert rows_of(backend)["writes"] == []
    assert taken(backend) == {"2": ROWS}
    for each in (store, store_on(backend)):
        assert writes_of(each, LINE, "1") == ROWS
        assert writes_of(each, LINE, "2") == []
        assert each.thread("t").get("2").state == {"n": 2}
    assert not run(verify(store._engine.context, LINE, VerifyLevel.DECODE)).findings


def test_writes_that_come_later_stay_rows() -> None:
    backend = MemoryBackend()
    store = saved(backend)
    late = PendingWriteRow("path 3", "task 3", 0, "messages", b"\x90")
    run(store._engine.writes.put(LINE, "1", [late, ROWS[0]._replace(packed=b"\x01")]))
    store.thread("t").put({"n": 3}, id="3")
    assert len(rows_of(backend)["writes"]) == 2
    # A write that is repeated is stored under the same key, and the first one counts.
    assert writes_of(store, LINE, "1") == [*ROWS, late]


def test_writes_of_others_stay_rows() -> None:
    backend, clock = MemoryBackend(), Clock()
    store, other = store_on(backend, clock=clock), store_on(backend, clock=clock)
    store.thread("t").put({"n": 1}, id="1")
    run(other._engine.writes.put(LINE, "1", ROWS[:1]))
    run(store._engine.writes.put(LINE, "1", ROWS[1:]))
    store.thread("t").put({"n": 2}, id="2")
    assert [row.key[3:] for row in rows_of(backend)["writes"]] == [("task 1", 0)]
    assert taken(backend) == {"2": ROWS[1:]}
    assert writes_of(store, LINE, "1") == writes_of(other, LINE, "1") == ROWS


def test_of_writes_under_one_key_the_first_is_kept_and_not_taken_over() -> None:
    backend, clock = MemoryBackend(), Clock()
    store, other = store_on(backend, clock=clock), store_on(backend, clock=clock)
    store.thread("t").put({"n": 1}, id="1")
    run(other._engine.writes.put(LINE, "1", ROWS[:1]))
    run(store._engine.writes.put(LINE, "1", [ROWS[0]._replace(packed=b"\x01"), ROWS[1]]))
    store.thread("t").put({"n": 2}, id="2")
    assert taken(backend) == {}
    assert writes_of(store, LINE, "1") == ROWS[:2]


def test_marks_and_large_writes_stay_rows() -> None:
    backend = MemoryBackend()
    store = store_on(backend, clock=Clock())
    store.thread("t").put({"n": 1}, id="1")
    run(store._engine.writes.put(LINE, "1", [ROWS[0], MARK]))
    store.thread("t").put({"n": 2}, id="2")
    assert taken(backend) == {"2": ROWS[:1]}
    assert writes_of(store, LINE, "1") == [MARK, ROWS[0]]
    large = [PendingWriteRow("", f"task {n}", 0, "c", bytes(100_000)) for n in range(3)]
    run(store._engine.writes.put(LINE, "2", large))
    store.thread("t").put({"n": 3}, id="3")
    assert taken(backend) == {"2": ROWS[:1]}
    assert writes_of(store, LINE, "2") == large


def test_a_step_near_the_limit_of_its_size_takes_over_nothing() -> None:
    backend = MemoryBackend()
    codec = Codec(max_bytes=600_000)
    store = Store(Engine(EngineContext(backend, MemoryCache(1 << 20), codec=codec, clock=Clock())), "")
    written = [PendingWriteRow("", "task", 0, "c", bytes(200_000))]
    for number, keys, expected in ((1, 1, {}), (2, 10, {"2": written}), (3, 500, {"2": written})):
        store.thread("t").put({f"{number} {n}": "x" * 1000 for n in range(keys)}, id=f"{number}")
        assert taken(backend) == expected
        run(store._engine.writes.put(LINE, f"{number}", written))
    assert writes_of(store, LINE, "1") == writes_of(store, LINE, "2") == written


def test_of_very_many_writes_most_stay_rows() -> None:
    """One batch removes the rows of those that are taken over."""
    backend = MemoryBackend()
    store = store_on(backend, clock=Clock(), cache_bytes=1 << 24)
    store.thread("t").put({"n": 1}, id="1")
    many = [PendingWriteRow("", f"task {n:04}", 0, "c", b"\x01") for n in range(3000)]
    for write in many:
        run(store._engine.writes.put(LINE, "1", [write]))
    store.thread("t").put({"n": 2}, id="2")
    assert 0 < len(taken(backend)["2"]) < 1000
    assert writes_of(store, LINE, "1") == many


def test_a_branch_takes_nothing_over() -> None:
    backend = MemoryBackend()
    store = saved(backend)
    run(store._engine.writes.put(LINE, "2", ROWS))
    store.thread("t").fork("side", at="2")
    store.thread("t").put({"n": "aside"}, id="3", branch="side")
    assert len(rows_of(backend)["writes"]) == 3
    store.thread("t").put({"n": 4}, id="4", parent="1")
    assert writes_of(store, LINE, "1") == writes_of(store, LINE, "2") == ROWS


def test_a_new_thread_of_the_same_name_takes_over_nothing_of_the_old_one() -> None:
    backend, clock = MemoryBackend(), Clock()
    store, other = store_on(backend, clock=clock), store_on(backend, clock=clock)
    store.thread("t").put({"n": 1}, id="1")
    run(store._engine.writes.put(LINE, "1", ROWS))
    other.thread("t").delete()
    other.thread("t").put({"n": 1}, id="1")
    store.thread("t").put({"n": 2}, id="2")
    assert taken(backend) == {}
    assert writes_of(store, LINE, "1") == []


def test_writes_are_rows_again_if_the_step_that_took_them_over_is_pruned() -> None:
    backend = MemoryBackend()
    store = saved(backend)
    store.thread("t").put({"n": 3}, id="3")
    prune(store, dropping_ids("2"))
    assert len(rows_of(backend)["writes"]) == 3
    assert writes_of(store, LINE, "1") == writes_of(store_on(backend), LINE, "1") == ROWS


def test_of_writes_under_one_key_the_first_counts_also_after_pruning() -> None:
    backend = MemoryBackend()
    store = saved(backend)
    run(store._engine.writes.put(LINE, "1", [ROWS[0]._replace(packed=b"\x01")]))
    assert writes_of(store, LINE, "1") == ROWS
    store.thread("t").put({"n": 3}, id="3")
    prune(store, dropping_ids("2"))
    assert writes_of(store, LINE, "1") == writes_of(store_on(backend), LINE, "1") == ROWS


def test_nothing_is_left_of_the_writes_after_a_pruned_step() -> None:
    backend = MemoryBackend()
    store = saved(backend)
    assert taken(backend)  # as it is otherwise
    prune(store, dropping_ids("1"))
    assert taken(backend) == {}
    assert rows_of(backend)["writes"] == []
    assert store_on(backend).thread("t").get("2").state == {"n": 2}
    assert not run(verify(store._engine.context, LINE, VerifyLevel.DECODE)).findings


def test_a_revised_step_keeps_its_writes() -> None:
    backend = MemoryBackend()
    store = saved(backend)
    store.thread("t").put({"n": "revised"}, id="1")
    assert store.thread("t").get("1").state == {"n": "revised"}
    assert writes_of(store, LINE, "1") == ROWS
    store.thread("t").put({"n": "revised again"}, id="1")
    assert writes_of(store_on(backend), LINE, "1") == ROWS


def test_nothing_is_lost_if_the_store_fails_at_any_call() -> None:
    failed, inner = 0, MemoryBackend()
    for lives in count(1):
        inner = MemoryBackend()
        backend = Mortal(inner, lives)
        store = store_on(backend, clock=Clock())
        written = False
        try:
            store.thread("t").put({"n": 1}, id="1")
            run(store._engine.writes.put(LINE, "1", ROWS))
            written = True
            store.thread("t").put({"n": 2}, id="2")
        except UnavailableError:
            failed += 1
            if written:
                assert writes_of(store_on(inner), LINE, "1") == ROWS
            continue
        break
    assert failed > 3
    assert taken(inner) == {"2": ROWS}


@pytest.mark.parametrize("what", ["append", "write", "prune", "fork"])
def test_whatever_others_do_meanwhile(what: str) -> None:
    """Each write is found once, whether the step that was stored next took it over, or somebody else's was first."""
    late = PendingWriteRow("path 9", "task 9", 0, "messages", b"\x90")

    def scenario(moment: Moment) -> None:
        inner, clock = MemoryBackend(), Clock()
        backend = InterferingBackend(inner)
        store, other = store_on(backend, clock=clock), store_on(inner, clock=clock)
        store.thread("t").put({"n": 0}, id="0")
        store.thread("t").put({"n": 1}, id="1")

        def act() -> None:
            if what == "append":
                other.thread("t").put({"n": "other"}, id="1.5")
            elif what == "write":
                run(other._engine.writes.put(LINE, "1", [late]))
            elif what == "prune":
                prune(other, dropping_ids("0"))
            else:
                other.thread("t").fork("side", at="1")

        with moment.interfere(backend, act):
            run(store._engine.writes.put(LINE, "1", ROWS))
            store.thread("t").put({"n": 2}, id="2", parent="1")
        expected = [*ROWS, late] if what == "write" and moment.came else ROWS
        for each in (store, other, store_on(inner)):
            assert writes_of(each, LINE, "1") == expected
        rows = {row.key[3:] for row in rows_of(inner)["writes"]}
        inside = [write[1:3] for writes in taken(inner).values() for write in writes]
        assert len(rows) + len(inside) == len(expected)

    at_every_moment(scenario, ["apply"], at_least=2)


def test_a_copy_has_the_writes_too() -> None:
    backend = MemoryBackend()
    store = saved(backend)
    run(store._engine.writes.put(LINE, "2", ROWS[:1]))
    run(LineCopier(store._engine).copy({LINE: Line("", "copy")}))
    for id, writes in (("1", ROWS), ("2", ROWS[:1])):
        assert writes_of(store, Line("", "copy"), id) == writes


@pytest.mark.parametrize("takes", [True, False])
def test_a_copy_has_the_writes_before_its_last_step_whatever_others_do_meanwhile(takes: bool) -> None:
    new, later = Line("", "copy"), 0

    def scenario(moment: Moment) -> None:
        nonlocal later
        inner, clock = MemoryBackend(), Clock()
        backend = InterferingBackend(inner)
        store, writer, other = (store_on(each, clock=clock) for each in (backend, inner, inner))
        store.thread("t").put({"n": 1}, id="1")
        run(writer._engine.writes.put(LINE, "1", ROWS[:1]))

        def act() -> None:
            run(writer._engine.writes.put(LINE, "1", ROWS[1:]))
            (writer if takes else other).thread("t").put({"n": 2}, id="2")

        with moment.interfere(backend, act):
            run(LineCopier(store._engine).copy({LINE: new}))
        if any(StepRef.of(row).id == "2" for row in rows_of(inner, new)["steps"]):
            later += 1
            assert writes_of(store_on(inner), new, "1") == ROWS

    at_every_moment(scenario, at_least=2)
    assert later


@pytest.mark.parametrize("takes", [True, False])
def test_a_copy_in_another_store_has_the_writes_after_its_last_step_whatever_others_do_meanwhile(takes: bool) -> None:
    ends: Counter[int] = Counter()

    def scenario(moment: Moment) -> None:
        inner, target, clock = MemoryBackend(), MemoryBackend(), Clock()
        backend = InterferingBackend(inner)
        store, writer, other = (store_on(each, clock=clock) for each in (backend, inner, inner))
        store.thread("t").put({"n": 1}, id="1")
        run(writer._engine.writes.put(LINE, "1", ROWS))

        def act() -> None:
            (writer if takes else other).thread("t").put({"n": 2}, id="2")

        with moment.interfere(backend, act):
            run(StoreCopier(store._engine, store_on(target)._engine)._copy(LINE))
        steps = len(rows_of(target)["steps"])
        ends[steps] += 1
        if steps:
            assert writes_of(store_on(target), LINE, "1") == ROWS

    at_every_moment(scenario, ["read"], at_least=2)
    assert set(ends) >= {1, 2}


def test_a_copy_that_is_brought_up_to_date_has_no_writes_of_pruned_steps() -> None:
    source, target = MemoryBackend(), MemoryBackend()
    store = saved(source, fold_every=1)  # every step is folded: pruning the one before changes nothing else of it
    other = store_on(target, clock=Clock())
    for copied in ({"2": ROWS}, {}):
        run(StoreCopier(store._engine, other._engine, None).copy(None, None))
        assert taken(target) == taken(source) == copied
        prune(store, dropping_ids("1"))


@pytest.mark.parametrize("late", [False, True])
def test_a_revised_step_keeps_its_writes_if_the_next_one_was_revised_before(late: bool) -> None:
    backend = MemoryBackend()
    store = saved(backend)
    store.thread("t").put({"n": "revised"}, id="2")  # on a branch of its own: the older revision has the writes
    if late:
        run(store._engine.writes.put(LINE, "1", [ROWS[0]._replace(packed=b"\x01")]))
    assert writes_of(store, LINE, "1") == ROWS
    store.thread("t").put({"n": "revised"}, id="1")
    assert writes_of(store, LINE, "1") == writes_of(store_on(backend), LINE, "1") == ROWS
    assert writes_of(store, LINE, "2") == []


def test_a_repair_restores_no_writes_of_a_step_that_was_pruned() -> None:
    backend, copy = MemoryBackend(), MemoryBackend()
    store = saved(backend)
    run(StoreCopier(store._engine, store_on(copy)._engine, None).copy(None, None))
    assert taken(copy) == {"2": ROWS}
    prune(store, dropping_ids("1"))
    damaged = rows_of(backend)["steps"][1]
    assert StepRef.of(damaged).id == "2"
    run(backend.apply([Put(STEPS, damaged._replace(body=damaged.body[:8] + bytes(8) + damaged.body[16:]))]))
    mended = run(repair_line(store_on(backend)._engine, LINE, [RepairSource(store_on(copy)._engine)]))
    assert mended is not None
    assert (mended.restored, mended.lost) == (1, [])
    assert taken(backend) == {}
    assert store_on(backend).thread("t").get("2").state == {"n": 2}
