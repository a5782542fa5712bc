"""What operations cost in rows and bytes: not more as a line grows longer, and no more than was asked for."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest

from holdfast.backends.memory import MemoryBackend
from holdfast.backends.runtime.drivers import run
from holdfast.engine.context import FOLD_EVERY
from tests.engine.lines import store_on
from tests.support.counting import CountingBackend
from tests.support.nightly import by_day, mostly_nightly


def counted() -> CountingBackend:
    return CountingBackend(run(MemoryBackend.open("memory://")))


def bytes_per_append(counting: CountingBackend, steps: int, of: Any) -> float:
    """The bytes that each of some appends writes, folds included."""
    counting.reset()
    for _ in range(steps):
        of()
    return counting.bytes_written.total() / steps


class Chat:
    """A conversation whose last forty messages are its state, so that only the history grows."""

    def __init__(self, counting: CountingBackend) -> None:
        self.store = store_on(counting, cache_bytes=8 << 20)
        self.messages: list[str] = []
        self.count = 0

    def turn(self) -> None:
        self.count += 1
        self.messages = [
            *self.messages[-40:],
            f"message {self.count}: " + random.Random(self.count).randbytes(150).hex(),
        ]
        self.store.thread("chat").put({"messages": self.messages, "turn": self.count})


@pytest.mark.parametrize("steps", mostly_nightly([1_000, 5_000], daily=[1_000]))
def test_an_append_writes_no_more_after_thousands_of_steps(steps: int) -> None:
    counting = counted()
    chat = Chat(counting)
    for _ in range(20):
        chat.turn()
    early = bytes_per_append(counting, 2 * FOLD_EVERY, chat.turn)
    while chat.count < steps:
        chat.turn()
    late = bytes_per_append(counting, 2 * FOLD_EVERY, chat.turn)
    assert late < 1.5 * early

    counting.reset()
    cold = store_on(counting)
    assert cold.thread("chat").get().state["messages"] == chat.messages
    assert counting.rows_read["steps"] <= FOLD_EVERY + 3
    assert counting.rows_read["nodes"] <= 4
    assert counting.reads <= 6


def test_a_growing_list_costs_what_is_added() -> None:
    counting = counted()
    store = store_on(counting, cache_bytes=64 << 20)
    messages: list[str] = []

    def turn() -> None:
        messages.append(f"message {len(messages)}: " + random.Random(len(messages)).randbytes(150).hex())
        store.thread("chat").put({"messages": messages})

    for _ in range(20):
        turn()
    early = bytes_per_append(counting, 2 * FOLD_EVERY, turn)
    for number in range(8_000 - len(messages)):
        messages.append(f"message {number}")
    store.thread("chat").put({"messages": messages})
    for _ in range(FOLD_EVERY):
        turn()
    late = bytes_per_append(counting, 2 * FOLD_EVERY, turn)
    assert late < 1.5 * early

    counting.reset()
    assert store_on(counting).thread("chat").get().state["messages"] == messages
    # The state is 8,000 items: segments of at most 64, and the indexes above them.
    assert counting.rows_read["nodes"] < 8_000 / 64 * 1.3 + 10
    assert counting.rows_read["steps"] <= FOLD_EVERY + 3


def test_a_set_in_a_map_of_many_keys_writes_little() -> None:
    counting = counted()
    store = store_on(counting, cache_bytes=64 << 20)
    size = by_day(100_000, 30_000)
    store.thread("map").put({"memory": {f"key {n:06}": f"value {n}" * 3 for n in range(size)}})
    for _ in range(FOLD_EVERY):
        store.thread("map").update({("memory", "key 000001"): "first fold"})
    keys = random.Random(1).sample(range(size), 4 * FOLD_EVERY)
    chosen = iter(keys)

    def change() -> None:
        store.thread("map").update({("memory", f"key {next(chosen):06}"): "a new value of some length, say"})

    assert bytes_per_append(counting, len(keys), change) < 5_000

    counting.reset()
    lazy = store_on(counting).thread("map").get(lazy=True).state
    assert lazy.value(("memory", f"key {keys[-1]:06}")) == "a new value of some length, say"
    assert lazy.value(f"memory.key {size - 1:06}").startswith(f"value {size - 1}")
    assert counting.bytes_read.total() < 300_000


def test_a_step_that_changes_a_large_value_in_part_costs_the_part() -> None:
    counting = counted()
    store = store_on(counting)
    text = [f"line {n} of a long report\n" for n in range(8000)]
    store.thread("report").put({"text": "".join(text)})
    text[4000] = "another line\n"
    counting.reset()
    store.thread("report").put({"text": "".join(text)})
    assert counting.bytes_written.total() < 2_000
    assert store_on(counting).thread("report").get().state["text"] == "".join(text)


def test_large_values_that_stay_are_not_written_again_nor_read() -> None:
    counting = counted()
    store = store_on(counting)
    picture = random.Random(2).randbytes(3 << 20)
    for turn in range(FOLD_EVERY * 2):
        store.thread("art").put({"picture": picture, "turn": turn})
    assert counting.bytes_written["objects"] < 1.1 * len(picture)
    counting.reset()
    cold = store_on(counting)
    cold.thread("art").put({"picture": picture, "turn": -1})
    assert counting.bytes_read["objects"] == 0
    assert cold.thread("art").get(lazy=True).state["turn"] == -1
    assert counting.bytes_read["objects"] == 0
    assert cold.thread("art").get().state["picture"] == picture
    assert counting.rows_read["objects"] == 4


def test_a_fork_copies_nothing() -> None:
    counting = counted()
    store = store_on(counting)
    for turn in range(100):
        store.thread("chat").put({"messages": [f"message {n}" for n in range(turn)]})
    counting.reset()
    store.thread("chat").fork("what if", at=50)
    assert counting.bytes_written.total() < 200
    store.thread("chat").put({"messages": ["other"]}, branch="what if")
    assert counting.bytes_written.total() < 2_000


@pytest.mark.parametrize("limit", [1 << 20, 8 << 20])
def test_the_cache_keeps_to_its_bound(limit: int) -> None:
    store = store_on(run(MemoryBackend.open("memory://")), cache_bytes=limit)
    for number in range(60):
        store.thread(f"chat {number}").put({"messages": [random.Random(number).randbytes(900) for _ in range(200)]})
    store._engine.context.cache.clear()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for number in range(60):
            store.thread(f"chat {number}").get()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert store._engine.context.cache.size <= limit
    assert after - before <= 1.3 * limit + 200_000
    assert after - before > 0.3 * limit  # it is used, too


def test_a_large_state_takes_at_most_four_times_its_size() -> None:
    size = 4 << 20
    backend = run(MemoryBackend.open("memory://"))
    store = store_on(backend)
    state = {"messages": [{"role": "user", "content": f"{number:09} " * 200} for number in range(size // 2000)]}
    calls: list[Callable[[], object]] = [
        lambda: store.thread("large").put(state),
        lambda: store_on(backend).thread("large").get(),
    ]
    for call in calls:
        tracemalloc.start()
        try:
            call()
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert size < peak < 4 * size
