"""Lazy states: only what is touched is read."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from typing import Any

import pytest

import holdfast
from holdfast import Store
from holdfast.backends.memory import MemoryBackend
from holdfast.errors import InvalidError, NotFoundError
from holdfast.store.lazy_state import AsyncLazyState, LazyState
from tests.store.stores import over
from tests.support.counting import CountingBackend

chance = random.Random(1)
LARGE = chance.randbytes(5_000_000)
MESSAGES = [{"role": "user", "id": n, "content": chance.randbytes(100).hex()} for n in range(5000)]
MEMORY = {f"key {n}": chance.randbytes(50).hex() for n in range(5000)}
STATE = {"large": LARGE, "messages": MESSAGES, "memory": MEMORY, "small": {"n": 1}}

FEW = 0.05
"""Less than this part of the bytes is few."""


class Reading:
    """A folded state, perhaps with steps since, in a store that counts what is read of it."""

    def __init__(self, steps_since: int) -> None:
        self.backend = CountingBackend(MemoryBackend())
        store = over(self.backend, fold_every=4)
        self.expected: dict[str, Any] = dict(STATE)
        for n in range(4 + steps_since):
            if n:
                added = {"role": "tool", "id": 5000 + n, "content": "short"}
                self.expected["messages"] = [*self.expected["messages"], added]
                self.expected["memory"] = {**self.expected["memory"], f"key {n}": f"new {n}"}
                self.expected["small"] = {"n": n}
            store.thread("t").put(self.expected)
        self.backend.reset()
        assert over(self.backend).thread("t").get().state == self.expected
        self.all = self.read()

    def read(self) -> int:
        """The bytes that were read since the last time."""
        found = sum(self.backend.bytes_read.values())
        self.backend.reset()
        return found

    def lazy(self) -> LazyState:
        """The state, in a store that remembers nothing."""
        self.backend.reset()
        state = over(self.backend).thread("t").get(lazy=True).state
        assert isinstance(state, LazyState)
        return state


@pytest.fixture(scope="module", params=[0, 3], ids=["folded", "with a tail"])
def reading(request: pytest.FixtureRequest) -> Reading:
    return Reading(request.param)


def test_one_key(reading: Reading) -> None:
    state = reading.lazy()
    assert state.value(("memory", "key 4321")) == MEMORY["key 4321"]
    assert state.has(("memory", "key 1"))
    assert not state.has(("memory", "key 9999"))
    assert reading.read() < FEW * reading.all
    assert reading.backend.rows_read["objects"] == 0


def test_the_last_messages(reading: Reading) -> None:
    state = reading.lazy()
    assert state.slice("messages", start=-3) == reading.expected["messages"][-3:]
    assert state.length("messages") == len(reading.expected["messages"])
    assert reading.read() < FEW * reading.all


def test_a_run_in_the_middle(reading: Reading) -> None:
    state = reading.lazy()
    for start, stop in ((100, 103), (0, 1), (4999, 5001), (3000, 2000), (-10, -5), (6000, None)):
        assert state.slice("messages", start=start, stop=stop) == reading.expected["messages"][start:stop]
    assert reading.read() < FEW * reading.all


def test_one_small_channel(reading: Reading) -> None:
    state = reading.lazy()
    assert state["small"] == reading.expected["small"]
    assert list(state) == list(STATE)
    assert len(state) == 4
    assert reading.read() < FEW * reading.all


def test_a_large_value_is_read_when_it_is_touched(reading: Reading) -> None:
    state = reading.lazy()
    assert state.names() == list(STATE)
    assert reading.backend.rows_read["objects"] == 0
    assert reading.read() < FEW * reading.all
    assert state["large"] == LARGE
    assert reading.backend.rows_read["objects"] == 5
    assert reading.read() > len(LARGE)


def test_whether_a_channel_is_there(reading: Reading) -> None:
    state = reading.lazy()
    assert state.has("large")
    assert not state.has("none")
    assert reading.read() < FEW * reading.all


def test_in_reads_no_values(reading: Reading) -> None:
    state = reading.lazy()
    assert "large" in state
    assert reading.read() < FEW * reading.all


def test_a_state_that_was_never_folded() -> None:
    backend = CountingBackend(MemoryBackend())
    writer = over(backend)
    writer.thread("t").put(STATE)
    writer.thread("t").update({("small", "n"): 2})
    backend.reset()
    state = over(backend).thread("t").get(lazy=True).state
    assert state["small"] == {"n": 2}
    assert backend.rows_read["objects"] == 0
    assert state.slice("messages", start=-2) == MESSAGES[-2:]
    assert state.value(("memory", "key 7")) == MEMORY["key 7"]
    assert state["large"] == LARGE


def test_a_lazy_state_is_a_mapping(store: Store) -> None:
    store.thread("t").put({"b": 1, "a": [1, {"x": (2,)}], "d": {}, "e": []})
    state = store.thread("t").get(lazy=True).state
    assert issubclass(type(state), Mapping)
    assert dict(state) == {"b": 1, "a": [1, {"x": (2,)}], "d": {}, "e": []}
    assert (list(state), len(state)) == (["b", "a", "d", "e"], 4)
    assert ("a" in state, "z" in state, 5 in state) == (True, False, False)
    assert state.get("z", "default") == "default"
    assert (state.length("e"), state.slice("e"), state.slice("a", stop=1)) == (0, [], [1])
    state["a"].append("mine alone")
    assert state["a"] == [1, {"x": (2,)}]


def test_what_is_not_there_or_no_list(store: Store) -> None:
    store.thread("t").put({"n": 1, "d": {"k": 1}, "l": [1]})
    state = store.thread("t").get(lazy=True).state
    with pytest.raises(KeyError, match="zz"):
        state["zz"]
    with pytest.raises(NotFoundError, match=r"nothing there \(at d\.z\.y\)"):
        state.value(("d", "z", "y"))
    assert (state.value(("l", 0)), state.value(("l", -1)), state.has(("l", 1)), state.has(("l", -2))) == (
        1,
        1,
        False,
        False,
    )
    with pytest.raises(NotFoundError, match=r"at l\[1\]"):
        state.value(("l", 1))
    for wrong in (state.length, state.slice):
        with pytest.raises(InvalidError, match=r"not a list \(at d\)"):
            wrong("d")
        with pytest.raises(NotFoundError, match="at zz"):
            wrong("zz")


def test_a_lazy_state_stays_as_it_was(store: Store) -> None:
    for n in range(40):
        store.thread("t").put({"items": [f"item {m}" for m in range(n * 50)], "n": n})
    state = store.thread("t").get(lazy=True).state
    old = store.thread("t").get(at=20, lazy=True).state
    store.thread("t").put({"n": "later"})
    store.maintenance.compact("t")
    store._engine.context.cache.clear()
    assert state["n"] == 39
    assert state.slice("items", start=-1) == ["item 1949"]
    assert old.length("items") == 1000


def test_lazy_on_branches(store: Store) -> None:
    store.thread("t").put({"n": 0})
    store.thread("t").put({"n": 1})
    store.thread("t").fork("b", at=0)
    store.thread("t").put({"n": "b"}, branch="b")
    assert store.thread("t").get(at="b", lazy=True).state["n"] == "b"
    assert store.thread("t").get(at=0, lazy=True).state["n"] == 0


def test_lazy_under_asyncio(url: str) -> None:
    async def go() -> None:
        async with holdfast.aopen(url) as store:
            await store.thread("t").put({"messages": MESSAGES[:500], "d": {"k": 1}})
            state = (await store.thread("t").get(lazy=True)).state
            assert isinstance(state, AsyncLazyState)
            assert await state.names() == ["messages", "d"]
            found = await asyncio.gather(*(state.slice("messages", start=n, stop=n + 1) for n in range(64)))
            assert found == [[message] for message in MESSAGES[:64]]
            assert await state.value(("d", "k")) == 1
            assert await state.length("messages") == 500
            assert not await state.has(("d", "z"))
            with pytest.raises(NotFoundError):
                await state.value("z")

    asyncio.run(go())
