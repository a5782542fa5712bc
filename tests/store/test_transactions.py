"""Several checkpoints at once: all or none."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import holdfast
from holdfast import Store
from holdfast.errors import ConflictError, InvalidError, NotFoundError, UnsupportedError


def test_all_are_saved_when_the_block_ends(store: Store) -> None:
    store.thread("worker").put({"task": None, "done": 0})
    plan = ["search"]
    with store.transaction() as together:
        together.put("planner", {"plan": plan}, tag="planned", metadata={"m": 1})
        together.update("worker", {"task": "search"}, remove=["done"], labels=["busy"])
        plan.append("too late")
        assert together.checkpoints == []
        with pytest.raises(NotFoundError):
            store.thread("planner").get()
    planner, worker = together.checkpoints
    assert (planner.thread, worker.thread) == ("planner", "worker")
    assert store.thread("planner").get(at="planned").state == {"plan": ["search"]}
    assert store.thread("planner").get().metadata == {"m": 1}
    assert store.thread("worker").get().state == {"task": "search"}
    assert store.thread("worker").labels() == {"busy": [worker.id]}


def test_one_thread_twice(store: Store) -> None:
    store.thread("t").put({"a": 0})
    with store.transaction() as together:
        together.put("t", {"a": 1})
        together.update("t", {"b": 2})
        together.update("t", {("c", "d"): 3}, remove=["a"])
    assert [each.step for each in together.checkpoints] == [1, 2, 3]
    assert [store.thread("t").get(each.id).state for each in together.checkpoints] == [
        {"a": 1},
        {"a": 1, "b": 2},
        {"b": 2, "c": {"d": 3}},
    ]
    assert together.checkpoints[2].parent == together.checkpoints[1].id


def test_a_new_thread_many_times_across_a_fold(store: Store) -> None:
    with store.transaction() as together:
        for n in range(70):
            together.put("t", {"items": [f"item {m}" for m in range(n)], "big": "x" * 70_000})
    store._engine.context.cache.clear()
    assert len(store.thread("t").log()) == 70
    assert store.thread("t").get(at=50).state["items"] == [f"item {m}" for m in range(50)]


def test_a_block_that_fails_saves_nothing(store: Store) -> None:
    with pytest.raises(ZeroDivisionError), store.transaction() as together:  # noqa: PT012 - the block is what fails
        together.put("t", {"a": 1})
        together.put("u", {"a": 1 / 0})
    with pytest.raises(UnsupportedError, match=r"a\.b"), store.transaction() as together:  # noqa: PT012 - the block is what fails
        together.put("t", {"a": 1})
        together.put("u", {"a": {"b": object()}})
    assert (store.threads(), together.checkpoints) == ([], [])


def test_an_empty_transaction_saves_nothing(store: Store) -> None:
    with store.transaction() as together:
        pass
    assert (store.threads(), together.checkpoints) == ([], [])


FAILING: dict[str, dict[str, Any]] = {
    "a taken tag": {"tag": "taken"},
    "a taken place": {"parent": "1", "on_conflict": "raise"},
    "an id that is there": {"id": "1"},
}


@pytest.mark.parametrize("last", [False, True], ids=["first", "last"])
@pytest.mark.parametrize("why", FAILING)
def test_one_that_fails_stops_all(store: Store, why: str, last: bool) -> None:
    store.thread("b").put({"n": 1}, id="1", tag="taken")
    store.thread("b").put({"n": 2}, id="2")
    with pytest.raises(ConflictError) as caught, store.transaction() as together:  # noqa: PT012 - the block is what fails
        if last:
            together.put("a", {"n": 1}, tag="x", labels=["y"])
        together.put("b", {"n": 3}, **FAILING[why])
        if not last:
            together.put("c", {"n": 1}, tag="x", labels=["y"])
    assert "'b'" in str(caught.value)
    assert together.checkpoints == []
    assert [each.thread for each in store.threads()] == ["b"]
    assert [each.id for each in store.thread("b").log().all()] == ["2", "1"]
    assert (store.thread("a").tags(), store.thread("a").labels(), store.thread("c").tags()) == ({}, {}, {})


def test_an_update_that_can_not_be_made_stops_all(store: Store) -> None:
    store.thread("t").put({"n": 1})
    with pytest.raises(NotFoundError, match="nothing to remove"), store.transaction() as together:  # noqa: PT012 - the block is what fails
        together.put("new", {"n": 1})
        together.update("t", {}, remove=["zz"])
    assert [each.thread for each in store.threads()] == ["t"]


def test_on_a_parent_that_has_a_follower_a_branch_is_opened(store: Store) -> None:
    store.thread("t").put({"n": 1}, id="1")
    store.thread("t").put({"n": 2}, id="2")
    with store.transaction() as together:
        together.put("t", {"n": 3}, parent="1", id="3")
        together.put("u", {"n": 1})
    assert (together.checkpoints[0].parent, together.checkpoints[0].branch) == ("1", 1)


def test_several_branches_of_one_thread(store: Store) -> None:
    store.thread("t").put({"n": 0}, id="0")
    with store.transaction() as together:
        for n in range(1, 4):
            together.put("t", {"n": n}, id=str(n), parent="0")
    assert [each.parent for each in together.checkpoints] == ["0", "0", "0"]


def test_one_id_twice_is_refused(store: Store) -> None:
    with pytest.raises(InvalidError), store.transaction() as together:  # noqa: PT012 - the block is what fails
        together.put("t", {"n": 1}, id="1")
        together.put("t", {"n": 2}, id="1")


def test_a_reader_sees_all_or_none(url: str) -> None:
    """Two threads are always written together: whoever reads the second, and then the first, finds it as new."""

    async def go() -> None:
        async with holdfast.aopen(url) as store:

            async def write() -> None:
                for n in range(50):
                    async with store.transaction() as together:
                        together.put("a", {"n": n})
                        together.put("b", {"n": n})

            async def read() -> None:
                while not writing.done():
                    try:
                        second = (await store.thread("b").get()).state["n"]
                    except NotFoundError:
                        continue
                    finally:
                        await asyncio.sleep(0)
                    assert (await store.thread("a").get()).state["n"] >= second

            writing = asyncio.create_task(write())
            await asyncio.gather(writing, read(), read())
            assert (await store.thread("a").get()).state == (await store.thread("b").get()).state == {"n": 49}

    asyncio.run(go())
