"""Increment, append, add to set and max: no concurrent change is lost, and no merge drops one."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.errors import ConflictError, DeniedError, InvalidError, UnsupportedError
from holdfast.hooks import HookContext
from holdfast.state import AddToSet, Append, Increment, Max
from holdfast.store.store import Store
from tests.servers.places import DURABLE, place
from tests.state.kit import Clock, awaited
from tests.support.nightly import mostly_nightly


def test_a_saver_and_an_increment_add_up(store: Store) -> None:
    state = store.state(agent="a")
    base = state.set("n", 0)
    # Two savers that each add 1 to what they read: a merge sees two equal values.
    state.set("n", 1, expected=base)
    state.set("n", 1, expected=base, on_conflict="merge")
    assert state["n"] == 1
    # An operator says what was meant.
    base = state.set("n", 0)
    assert state.increment("n") == 1
    state.set("n", 1, expected=base, on_conflict="merge")
    assert state["n"] == 2


def test_every_operator_survives_a_merge(store: Store) -> None:
    state = store.state(agent="a")
    base = state.set("stats", {"n": 1, "log": ["a"], "tags": {"x"}, "best": 3, "title": "old"})
    state.patch("stats", {"n": Increment(2), "log": Append("b"), "tags": AddToSet("y"), "best": Max(5)})
    state.patch("stats", {"n": Increment(2), ("below", "count"): Increment()})
    mine = {"n": 2, "log": ["a", "c"], "tags": {"x", "z"}, "best": 4, "title": "new"}
    state.set("stats", mine, expected=base, on_conflict="merge")
    assert state["stats"] == {
        "n": 6,
        "log": ["a", "c", "b"],
        "tags": {"x", "y", "z"},
        "best": 5,
        "title": "new",
        "below": {"count": 1},
    }


def test_documents(store: Store) -> None:
    plan = store.sharing.document("plan")
    assert plan.patch({"visits": Increment(), "notes": Append("first")}) == 1
    base = plan.read()
    plan.patch({"visits": Increment(), "notes": Append("second")}, remove=[])
    merged = plan.save({"visits": 2, "notes": ["first", "mine"], "x": 1}, base.version)
    assert merged.value == {"visits": 3, "notes": ["first", "mine", "second"], "x": 1}
    with pytest.raises(ConflictError, match="visits"):
        plan.save({"notes": []}, base.version)
    chosen = plan.save({"notes": []}, base.version, on_conflict=lambda conflict: conflict.theirs)
    assert chosen.value["visits"] == 3
    assert [entry.action for entry in plan.history()] == ["edit"] * 4


def test_results_and_starts(store: Store) -> None:
    state = store.state(agent="a")
    assert [state.increment("n"), state.increment("n", 2.5), state.increment("n", -1)] == [1, 3.5, 2.5]
    assert [state.append("log", "a"), state.append("log", {"b": 1}, None)] == [1, 3]
    assert [state.add_to_set("tags", "x", "y"), state.add_to_set("tags", "y")] == [2, 2]
    assert [state.max("best", 2), state.max("best", 1), state.max("best", 3)] == [2, 2, 3]
    assert dict(state) == {"n": 2.5, "log": ["a", {"b": 1}, None], "tags": {"x", "y"}, "best": 3}
    assert state.get_at("n", 2) == 3.5
    state.rollback(2, "n")
    assert state["n"] == 3.5


def test_what_has_expired_is_not_counted(store: Store, clock: Clock) -> None:
    state = store.state(agent="a")
    state.set("n", 10, ttl=60)
    assert state.increment("n") == 11
    assert state.item("n").expires is not None
    clock.sleep(61)
    assert state.increment("n") == 1
    assert state.item("n").expires is None
    assert state["n"] == 1


def test_many_steps_and_folds(store: Store) -> None:
    """Each of many increments is read from the changes since the last fold, and from nodes."""
    state = store.state(agent="a")
    state.batch({"other": 0, "log": [], "large": "x" * 100_000})
    for number in range(120):
        assert state.increment("n") == number + 1
        assert state.append("log", number) == number + 1
        state.max("large", "y" * 100_000 if number == 60 else "a")
    assert state["large"] == "y" * 100_000
    assert state["log"] == list(range(120))
    assert state.get_at("n", 31) == 10
    assert not store.maintenance.verify().findings


def test_wrong_types(store: Store) -> None:
    state = store.state(agent="a")
    state.batch({"text": "a", "n": 1, "items": [{"n": 1}], "stats": {"text": "a"}})
    wrong: list[Callable[[], Any]] = [
        lambda: state.increment("text"),
        lambda: state.append("n", 1),
        lambda: state.add_to_set("items", 1),
        lambda: state.max("items", 1),
        lambda: state.patch("stats", {"text": Increment()}),
        lambda: state.patch("items", {(0, "n"): Increment()}),
    ]
    version = state.item("text").version
    for attempt in wrong:
        with pytest.raises(InvalidError, match=r"key '|stats|items"):
            attempt()
    with pytest.raises(UnsupportedError):  # of a checkpoint, a merge could not tell what was meant
        store.thread("chat").put({"n": Increment()})
    assert state.item("text").version == version
    assert state.increment("n") == 2


def test_transactions(store: Store) -> None:
    state = store.state(agent="a")
    base = state.set("n", 1)
    with store.transaction() as transaction:
        inside = transaction.state(agent="a")
        assert [inside.increment("n"), inside.increment("n", 2)] == [2, 4]
        assert inside.append("log", 1) == 1
        assert inside.add_to_set("tags", "x") == 1
        assert inside.max("best", 2) == 2
        inside.patch("stats", {"n": Increment(5)})
        assert inside["stats"] == {"n": 5}
        with pytest.raises(InvalidError):
            inside.increment("log")
        inside.set("set", 1)
        assert inside.increment("set") == 2
    assert dict(state) == {"best": 2, "log": [1], "n": 4, "set": 2, "stats": {"n": 5}, "tags": {"x"}}
    state.set("n", 2, expected=base, on_conflict="merge")
    assert state["n"] == 5, "both increments are stored as operators"


def test_hooks_and_rights(store: Store) -> None:
    told: list[Any] = []

    @store.hooks.before("state.patch", key="n")
    def limit(context: HookContext) -> Any:
        told.append(context.value)
        return min(context.value, 2)

    state = store.state(agent="a")
    assert [state.increment("n") for _ in range(3)] == [1, 2, 2]
    assert told == [1, 2, 3]
    store.access.grant("agent:writer", "write", agent="a")
    with pytest.raises(DeniedError):  # the result tells the value
        store.as_identity(agent="writer").state(agent="a").increment("n")


def test_asyncio(store: Store) -> None:
    async def main() -> None:
        state = awaited(store).state(agent="a")
        await asyncio.gather(*(state.increment("n") for _ in range(20)))
        assert await state.get("n") == 20
        assert await state.append("log", 1) == 1

    asyncio.run(main())


@pytest.mark.parametrize("kind", mostly_nightly(DURABLE, daily=("sqlite", "file", "postgres")))
def test_concurrent_changes_on_every_store(kind: str, tmp_path: Path) -> None:
    url = place(kind, tmp_path)
    with holdfast.open(url, tenant="acme") as one, holdfast.open(url, tenant="acme") as two:
        base = one.state(agent="a").set("doc", {"n": 0})

        def work(store: Store, name: str) -> None:
            state = store.state(agent="a")
            for number in range(5):
                state.increment("n")
                state.append("log", f"{name} {number}")
                state.add_to_set("tags", name, number)
                state.max("best", number)
                state.patch("doc", {"n": Increment()})

        workers = [threading.Thread(target=work, args=each) for each in ((one, "one"), (two, "two"))]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        state = one.state(agent="a")
        assert sorted(state["log"]) == sorted(f"{name} {number}" for name in ("one", "two") for number in range(5))
        assert (state["n"], state["tags"], state["best"]) == (10, {"one", "two", *range(5)}, 4)
        two.state(agent="a").set("doc", {"n": 1}, expected=base, on_conflict="merge")
        assert state["doc"] == {"n": 11}
        assert not one.maintenance.verify().findings
