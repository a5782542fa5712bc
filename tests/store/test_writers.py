"""Many writers: whatever was acknowledged stays, with its own state."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Checkpoint, Store
from holdfast.errors import ConflictError, InvalidError
from tests.store.stores import over
from tests.support.interference import InterferingBackend
from tests.support.nightly import by_day


def at_once(count: int, work: Callable[[int], Any]) -> list[Any]:
    """What each of so many threads returns, or the error it ends with."""

    def guarded(n: int) -> Any:
        try:
            return work(n)
        except ConflictError as error:
            return error

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(guarded, range(count)))


def reachable(store: Store, thread: str, made: list[Checkpoint], states: dict[str, Any]) -> None:
    """Every checkpoint is there under its id, with its state; all parents are there; nothing else is."""
    log = list(store.thread(thread).log().all())
    assert sorted(each.id for each in log) == sorted(each.id for each in made)
    assert len({(each.branch, each.step) for each in log}) == len(log)
    ids = {each.id for each in log}
    store._engine.context.cache.clear()
    for each in made:
        found = store.thread(thread).get(each.id)
        assert found.state == states[each.id]
        assert (found.hash, found.parent) == (each.hash, each.parent)
        assert found.parent is None or found.parent in ids


def test_threads_on_one_parent_make_branches(store: Store) -> None:
    base = store.thread("t").put({"n": "base", "items": list(range(100))})
    made = at_once(8, lambda n: store.thread("t").put({"n": n, "items": list(range(100 + n))}, parent=base.id))
    assert {each.parent for each in made} == {base.id}
    assert sorted(each.branch for each in made) == list(range(8))
    states = {each.id: {"n": n, "items": list(range(100 + n))} for n, each in enumerate(made)}
    reachable(store, "t", [base, *made], {base.id: {"n": "base", "items": list(range(100))}, **states})
    assert [branch.name for branch in store.thread("t").branches()] == ["main", *[""] * 7]
    assert {branch.base for branch in store.thread("t").branches()[1:]} == {base.id}


def test_threads_without_a_parent_lose_nothing(store: Store) -> None:
    def work(n: int) -> list[Checkpoint]:
        return [store.thread("t").put({"writer": n, "m": m}, metadata={"n": n, "m": m}) for m in range(12)]

    made = [each for run in at_once(8, work) for each in run]
    assert len(made) == 96
    states = {each.id: {"writer": each.metadata["n"], "m": each.metadata["m"]} for each in made}
    reachable(store, "t", made, states)


def test_updates_of_different_places_all_arrive(store: Store) -> None:
    store.thread("t").put({"d": {}})
    at_once(8, lambda n: [store.thread("t").update({("d", f"{n}.{m}"): m}) for m in range(5)])
    assert store.thread("t").get().state == {"d": {f"{n}.{m}": m for n in range(8) for m in range(5)}}
    assert (store.thread("t").info().steps, store.thread("t").info().branches) == (41, 1)


def test_threads_on_one_branch_follow_each_other(store: Store) -> None:
    base = store.thread("t").put({"n": "base"})
    store.thread("t").put({"n": "main"})
    store.thread("t").fork("b", at=base.id)
    made = [
        each
        for run in at_once(8, lambda n: [store.thread("t").put({"n": n}, branch="b") for _ in range(4)])
        for each in run
    ]
    assert sorted((each.branch, each.step) for each in made) == [(1, step) for step in range(1, 33)]
    assert store.thread("t").get(at="main").state == {"n": "main"}
    assert store.thread("t").get(at="b").step == 32


def test_threads_with_one_new_id_make_one_checkpoint(store: Store) -> None:
    store.thread("t").put({"n": "base"}, id="0")
    at_once(8, lambda n: store.thread("t").put({"n": n}, id="1"))
    assert [(each.id, each.parent) for each in store.thread("t").log().all()] == [("1", "0"), ("0", None)]
    assert store.thread("t").get("1").state["n"] in range(8)


def test_a_name_has_one_winner(store: Store) -> None:
    ids = [store.thread("t").put({"n": n}).id for n in range(8)]
    lost = [
        each for each in at_once(8, lambda n: store.thread("t").tag("best", ids[n])) if isinstance(each, ConflictError)
    ]
    assert len(lost) == 7
    lost = [
        each for each in at_once(8, lambda n: store.thread("t").put({}, tag="new")) if isinstance(each, ConflictError)
    ]
    assert len(lost) == 7
    lost = [each for each in at_once(8, lambda n: store.thread("t").fork("b")) if isinstance(each, ConflictError)]
    assert len(lost) == 7
    assert len(store.thread("t").log()) == 9
    assert [each.name for each in store.thread("t").branches()] == ["main", "b"]


@pytest.mark.nightly
def test_writers_and_readers_go_on_while_a_thread_is_compacted(store: Store) -> None:
    made = [store.thread("t").put({"n": n, "items": [f"item {m}" for m in range(n)]}) for n in range(70)]
    states = {each.id: {"n": n, "items": [f"item {m}" for m in range(n)]} for n, each in enumerate(made)}

    def work(n: int) -> list[tuple[Checkpoint, Any]]:
        done: list[tuple[Checkpoint, Any]] = []
        for m in range(10):
            if n == 0:
                store.maintenance.compact("t")
            elif n < 4:
                state = {"n": n, "items": [f"item {m}"] * m}
                done.append((store.thread("t").put(state), state))
            else:
                id = made[n * 7 + m].id
                assert store.thread("t").get(id).state == states[id]
                assert dict(store.thread("t").get(id, lazy=True).state) == states[id]
        return done

    for run in at_once(8, work):
        assert isinstance(run, list), run
        made += [each for each, _ in run]
        states |= {each.id: state for each, state in run}
    reachable(store, "t", made, states)


def test_refuse_has_one_winner(store: Store) -> None:
    base = store.thread("t").put({"n": "base"})
    made = at_once(8, lambda n: store.thread("t").put({"n": n}, parent=base.id, on_conflict="raise"))
    (winner,) = [each for each in made if isinstance(each, Checkpoint)]
    losers = [each for each in made if isinstance(each, ConflictError)]
    assert len(losers) == 7
    assert f"another checkpoint follows {base.id} already (at thread 't'). Read the latest state" in str(losers[0])
    assert [each.id for each in store.thread("t").log().all()] == [winner.id, base.id]
    assert store.thread("t").get().state == {"n": made.index(winner)}
    assert store.thread("t").info().branches == 1


def test_merge_brings_both_sides_together(store: Store) -> None:
    thread = store.thread("t")
    base = thread.put({"a": 0, "b": 0, "log": []})
    first = thread.put({"a": 1, "b": 0, "log": ["one"]}, parent=base, on_conflict="merge")
    assert (first.kind, first.parent) == ("save", base.id)  # nobody was first
    merged = thread.put({"a": 0, "b": 2, "log": []}, parent=base, on_conflict="merge")
    assert (merged.kind, merged.parent) == ("merge", first.id)
    assert thread.get().state == {"a": 1, "b": 2, "log": ["one"]}
    third = thread.update({"b": 3}, parent=merged, on_conflict="merge")
    assert (third.kind, thread.get().id) == ("update", third.id)


def test_what_both_sides_changed_is_resolved_or_stays_on_a_branch(store: Store) -> None:
    thread = store.thread("t")
    base = thread.put({"n": 1})
    thread.put({"n": 5}, parent=base)
    with pytest.raises(ConflictError, match="both sides changed the same"):
        thread.put({"n": 7}, parent=base, id="mine", on_conflict="merge")
    assert thread.get("mine").state == {"n": 7}
    assert thread.get("main").state == {"n": 5}
    merged = thread.put({"n": 8}, parent=base, on_conflict=lambda conflict: max(conflict.ours, conflict.theirs))
    assert (merged.kind, thread.get(merged).state) == ("merge", {"n": 8})
    with pytest.raises(InvalidError, match="a transaction cannot merge"), store.transaction() as together:
        together.put("t", {}, parent=base, on_conflict="merge")


def test_refuse_at_the_start_of_a_thread() -> None:
    backend = InterferingBackend()
    store, other = over(backend), over(backend)
    with backend.interfere(lambda: other.thread("t").put({"n": "theirs"})):
        mine = store.thread("t").put({"n": "mine"})
    assert mine.step == 1
    assert store.thread("t").get(at=0).state == {"n": "theirs"}


def test_one_who_was_second_goes_on_top() -> None:
    backend = InterferingBackend()
    store, other = over(backend), over(backend)
    store.thread("t").put({"n": 0, "l": [1]})
    with backend.interfere(lambda: other.thread("t").update({"l": [1, 2], "theirs": 1})):
        mine = store.thread("t").update({"n": 1})
    assert (mine.branch, mine.step) == (0, 2)
    assert store.thread("t").get().state == {"n": 1, "l": [1, 2], "theirs": 1}


def test_an_update_without_a_parent_that_is_refused_changes_nothing() -> None:
    backend = InterferingBackend()
    store, other = over(backend), over(backend)
    store.thread("t").put({"n": 0})
    theirs = backend.interfere(lambda: other.thread("t").put({"n": "theirs"}))
    with pytest.raises(ConflictError, match="another checkpoint follows"), theirs:
        store.thread("t").update({"n": "mine"}, on_conflict="raise")
    assert store.thread("t").get().state == {"n": "theirs"}
    assert store.thread("t").update({"n": "mine"}, on_conflict="raise").step == 2


def test_a_thread_deleted_meanwhile_is_begun_anew() -> None:
    backend = InterferingBackend()
    store, other = over(backend), over(backend)
    for n in range(3):
        store.thread("t").put({"n": n})
    with backend.interfere(lambda: other.thread("t").delete()):
        again = store.thread("t").put({"n": "again"})
    assert (again.step, again.parent) == (0, None)
    assert over(backend).thread("t").get().state == {"n": "again"}


def test_two_stores_on_one_file(tmp_path: Any) -> None:
    url = f"sqlite:///{tmp_path}/store.db"
    with holdfast.open(url) as one, holdfast.open(url) as two:
        made = at_once(8, lambda n: [(one, two)[n % 2].thread("t").put({"n": n, "m": m}) for m in range(5)])
        flat = [each for run in made for each in run]
        states = {each.id: {"n": n, "m": m} for n, run in enumerate(made) for m, each in enumerate(run)}
        reachable(one, "t", flat, states)
        reachable(two, "t", flat, states)


def test_tasks_on_one_parent_make_branches(url: str) -> None:
    async def go() -> None:
        async with holdfast.aopen(url) as store:
            base, count = await store.thread("t").put({"n": "base"}), by_day(64, 24)
            puts = (store.thread("t").put({"n": n}, parent=base.id) for n in range(count))
            made = await asyncio.gather(*puts)
            assert sorted(each.branch for each in made) == list(range(count))
            for n, each in enumerate(made):
                assert (await store.thread("t").get(each.id)).state == {"n": n}
            refused = await asyncio.gather(
                *(store.thread("t").put({"n": n}, parent=made[0].id, on_conflict="raise") for n in range(8)),
                return_exceptions=True,
            )
            assert sum(isinstance(each, Checkpoint) for each in refused) == 1
            assert sum(isinstance(each, ConflictError) for each in refused) == 7

    asyncio.run(go())


def test_one_of_two_that_save_the_first_checkpoint_has_saved_it(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db") as one, holdfast.open(tmp_path / "a.db") as two:
        first = one.thread("chat").put({"by": "one"}, parent="", on_conflict="raise")
        assert first.step == 0
        with pytest.raises(ConflictError):
            two.thread("chat").put({"by": "two"}, parent="", on_conflict="raise")
        with pytest.raises(InvalidError, match="without a parent"):
            two.as_identity(user="alice").thread("alice's").put({}, parent="")
        assert two.thread("chat").get().state == {"by": "one"}
        with pytest.raises(ConflictError):
            two.thread("chat").append("messages", 1, parent="", on_conflict="raise")
        with pytest.raises(InvalidError, match="without a parent"):
            two.thread("chat").put({}, parent="", on_conflict="branch")
        one.thread("chat").delete()
        assert two.thread("chat").put({"by": "two"}, parent="", on_conflict="raise").step == 0
