"""What others do in the middle of a read, a change or a transaction: prune, delete, make anew, let time pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from msgspec.structs import astuple

from holdfast import Store
from holdfast.backends.interface import Query, Row
from holdfast.backends.memory import MemoryBackend
from holdfast.backends.runtime.drivers import run
from holdfast.engine.rewrite.rewriter import RewritePlan
from holdfast.engine.row_format import Branch, StepRef
from holdfast.errors import ConflictError, InvalidError
from holdfast.state.scope_state import State
from tests.state.kit import Clock, store_on
from tests.state.test_transactions import refused
from tests.support.interference import InterferingBackend


class Reading(InterferingBackend):
    """Counts the bytes that are read."""

    taken = 0

    async def read(self, queries: Sequence[Query]) -> list[list[Row]]:
        found = await super().read(queries)
        self.taken += sum(len(row.body) for rows in found for row in rows)
        return found


def prune(store: Store, state: State) -> None:
    """Leave only the latest step."""

    async def choose(points: Sequence[StepRef], branches: Sequence[Branch]) -> RewritePlan:
        return RewritePlan(frozenset(point[:2] for point in points[:-1] if not point.pruned))

    run(store._engine.rewriter.rewrite(state._handle.line(state.scope), choose))


def delete(store: Store, state: State) -> None:
    run(store._engine.lines.delete(state._handle.line(state.scope)))


def test_what_was_the_latest_is_pruned_while_it_is_read() -> None:
    backend, clock = InterferingBackend(), Clock()
    mine, theirs = store_on(backend, clock), store_on(backend, clock)
    state, other = mine.state(agent="a"), theirs.state(agent="a")
    state.batch({"n": 1, "m": 1})

    def meanwhile() -> None:
        other["n"] += 1
        prune(theirs, other)

    looks: list[Callable[[], Any]] = [
        lambda: state["n"],
        lambda: dict(state)["n"],
        lambda: state.list_items()[-1].value,
    ]
    for number, look in enumerate(looks, 2):
        mine._engine.context.cache.clear()
        with backend.interfere(meanwhile, "read", after=True):
            assert look() == number
    mine._engine.context.cache.clear()
    with backend.interfere(lambda: delete(theirs, other), "read", after=True):
        assert state.get("n") is None
    assert list(state) == []


def test_a_transaction_begins_anew_where_its_reads_are_pruned() -> None:
    store = store_on(MemoryBackend(), Clock())
    state, calls = store.state(agent="a"), list[int]()
    state.batch({"n": 1, "m": 1})

    def work(together: Any) -> None:
        seen = together.state(agent="a")
        calls.append(seen["n"])
        if len(calls) == 1:
            state["n"] = 5
            state["n"] = 6
            prune(store, state)
            store._engine.context.cache.clear()
        seen["sum"] = calls[-1] + seen["m"]

    store.transaction(work)
    assert (calls, state["sum"]) == ([1, 6], 7)


@pytest.mark.parametrize("written", ["a", "b"])
def test_a_scope_made_anew_is_another_one(written: str) -> None:
    """Versions start anew with it, and tell nothing of what was read before."""
    backend, clock = InterferingBackend(), Clock()
    mine, theirs = store_on(backend, clock), store_on(backend, clock)
    mine.state(agent="a")["n"] = 1

    def meanwhile() -> None:
        other = theirs.state(agent="a")
        delete(theirs, other)
        other["n"] = 100
        other["m"] = 1

    with refused() as caught, backend.interfere(meanwhile), mine.transaction() as together:
        seen = together.state(agent="a")["n"]
        together.state(agent=written)["n"] = seen + 1
    assert caught.value.code == "version-mismatch"
    assert dict(mine.state(agent="a")) == {"n": 100, "m": 1}


@pytest.mark.parametrize("written", ["a", "b"])
def test_what_expires_before_the_end_is_out_of_date(written: str) -> None:
    clock = Clock()
    store = store_on(MemoryBackend(), clock)
    store.state(agent="a").set("lock", "mine", ttl=10)
    with refused(), store.transaction() as together:
        assert together.state(agent="a")["lock"] == "mine"
        together.state(agent=written)["done"] = True
        clock.sleep(10)
    assert "done" not in store.state(agent=written)


def test_a_default_is_the_same_at_each_attempt() -> None:
    backend = InterferingBackend()
    store = store_on(backend, Clock())
    state, default = store.state(agent="a"), list[int]()
    state["x"] = 1
    with backend.interfere(lambda: store_on(backend, Clock()).state(agent="a").set("beside", 1)):
        assert state.change("k", lambda value: value.append(1) or value, default=default) == [1]
    assert default == []


def test_a_batch_names_each_key_once() -> None:
    state = store_on(MemoryBackend(), Clock()).state(agent="a")
    with pytest.raises(InvalidError, match="twice"):
        state.batch({"caf\u00e9": 1, "cafe\u0301": 2})


def test_a_rollback_brings_back_when_keys_expire() -> None:
    clock = Clock()
    state = store_on(MemoryBackend(), clock).state(agent="a")
    state.set("long", 1, ttl=1000)
    state.set("short", 1, ttl=10)
    expires = state.item("long").expires
    state.batch({"long": 2, "short": 2})
    assert state.rollback(2, "long") == 1
    assert astuple(state.item("long"))[1::2] == (1, expires)
    state.expire("long", None)
    clock.sleep(20)
    assert state.rollback(2) == 2
    assert [(item.key, item.value, item.expires) for item in state.list_items()] == [("long", 1, expires)]


def test_popping_is_one_change() -> None:
    backend, clock = InterferingBackend(), Clock()
    mine, theirs = store_on(backend, clock).state(agent="a"), store_on(backend, clock).state(agent="a")
    mine["job"] = 1
    with backend.interfere(lambda: theirs.set("job", 2)):
        assert mine.pop("job") == 2, "what it takes away is what it returns"
    mine["job"] = 3
    with backend.interfere(lambda: theirs.pop("job")):
        assert mine.pop("job", "none") == "none"
    mine.update({"a": None, "b": 2})
    with backend.interfere(lambda: theirs.pop("a")):
        assert mine.popitem() == ("b", 2)
    theirs["none"] = None
    assert mine.popitem() == ("none", None)
    with pytest.raises(KeyError):
        mine.popitem()


def test_a_default_is_set_by_one() -> None:
    backend, clock = InterferingBackend(), Clock()
    mine, theirs = store_on(backend, clock).state(agent="a"), store_on(backend, clock).state(agent="a")
    with backend.interfere(lambda: theirs.set("leader", "them")):
        assert mine.setdefault("leader", "me") == "them"
    assert mine["leader"] == "them"


def test_an_update_is_one_step() -> None:
    state = store_on(MemoryBackend(), Clock()).state(agent="a")
    state.update({"a": 1}, b=2)
    state.update()
    assert [(past.key, past.version) for past in state.history()] == [("a", 1), ("b", 1)]


def test_keys_that_go_while_others_are_read_are_no_error() -> None:
    backend = InterferingBackend()
    state = store_on(backend, Clock()).state(agent="a")
    state.update({"a": 1, "b": 2})
    items, values = iter(state.items()), iter(state.values())
    assert (next(items), next(values)) == (("a", 1), 1)
    del state["b"]
    assert (list(items), list(values)) == ([("b", 2)], [2])
    assert (list(state.items()), list(state.values()), ("a", 1) in state.items()) == ([("a", 1)], [1], True)


def test_a_request_past_its_deadline_is_not_answered() -> None:
    clock = Clock()
    requests = store_on(MemoryBackend(), clock).sharing.requests("planner")
    requests.ask("soon", timeout=5)
    request = requests.take(lease=60)
    assert request is not None
    clock.sleep(5)
    with pytest.raises(ConflictError, match="deadline") as caught:
        requests.answer(request, "late")
    assert caught.value.code == "lease-lost"


def test_pages_of_the_history_leave_nothing_out() -> None:
    """Also where a page ends in the middle of a step, or with a deletion."""
    state = store_on(MemoryBackend(), Clock()).state(agent="a")
    state.update({f"k{number}": number for number in range(5)})
    del state["k1"]
    state.batch({"k0": 1}, delete=["k2", "k3"])
    whole = state.history()
    assert len(whole) == 9
    for limit in (1, 2, 4):
        assert list(state.history(limit=limit).all()) == whole
    assert [past.step for past in state.history("k1", cursor=state.history(limit=4).next)] == [1]


def test_a_patch_does_not_read_the_rest() -> None:
    backend = Reading()
    store = store_on(backend, Clock())
    state = store.state(agent="a")
    state["big"] = {f"key {number}": "text " * 100 for number in range(2000)}
    for number in range(130):  # until it is folded
        state["other"] = number
    changes: list[Callable[[], object]] = [
        lambda: state.patch("big", {"key 5": 1}),
        lambda: state.set("big", 1),
        lambda: state.delete("big"),
    ]
    for change in changes:
        store._engine.context.cache.clear()
        backend.taken = 0
        change()
        assert backend.taken < 100_000
