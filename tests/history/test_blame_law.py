"""Blame and history agree with a comparison of every state with the one before."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.backends.memory import MemoryBackend
from holdfast.backends.runtime.drivers import run
from holdfast.codec import default_codec as codec
from holdfast.store.store import Store
from tests.engine.lines import store_on
from tests.support.nightly import examples

SIZES = (4, 200)
"""Short messages make lists that are saved whole; long ones make lists of which changes are saved."""

ABSENT = object()


def new_store(fold_every: int) -> Store:
    return store_on(run(MemoryBackend.open("memory://")), fold_every=fold_every)


def conversation(seed: int, steps: int, size: int) -> list[dict[str, Any]]:
    """States whose messages are appended, edited, removed and inserted, each with an id of its own."""
    chance = random.Random(seed)
    messages: list[dict[str, Any]] = []
    memory: dict[str, Any] = {}
    states: list[dict[str, Any]] = []
    for step in range(steps):
        messages, memory = [dict(each) for each in messages], dict(memory)
        what = chance.randrange(8)
        if what < 3 or not messages:
            messages += [{"id": f"{step}-{i}", "text": f"{step} " * size} for i in range(chance.randrange(1, 4))]
        elif what == 3:
            chance.choice(messages)["text"] = f"edited {step} " * size
        elif what == 4:
            del messages[chance.randrange(len(messages))]
        elif what == 5:
            messages.insert(chance.randrange(len(messages)), {"id": f"{step}", "text": f"{step} " * size})
        if what > 5:
            memory[chance.choice("abc")] = chance.choice([step, "same", "x" * size])
        elif chance.randrange(4) == 0 and memory:
            del memory[chance.choice(list(memory))]
        states.append({"messages": messages, "memory": memory, "step": step})
    return states


def by_id(state: dict[str, Any], id: str) -> Any:
    return next((each["text"] for each in state["messages"] if each["id"] == id), ABSENT)


def changed(values: list[Any]) -> list[int]:
    """The steps at which a value changed, the latest first."""
    before = [ABSENT, *values[:-1]]
    return [step for step in range(len(values) - 1, -1, -1) if packed(values[step]) != packed(before[step])]


def packed(value: Any) -> bytes:
    return b"" if value is ABSENT else codec.pack(value)


@given(st.integers(0, 10_000), st.sampled_from(SIZES), st.integers(1, 7), st.integers(2, 30))
@settings(max_examples=examples(15))
def test_messages(seed: int, size: int, fold_every: int, steps: int) -> None:
    store = new_store(fold_every)
    states = conversation(seed, steps, size)
    for state in states:
        store.thread("t").put(state)
    last = states[-1]["messages"]
    blamed = store.thread("t").blame("messages") if last else []
    assert [origin.value for origin in blamed] == last
    for place, message in enumerate(last):
        expected = changed([by_id(state, message["id"]) for state in states])
        assert blamed[place].writer.step == expected[0]
        (one,) = store.thread("t").blame(("messages", place, "text"))
        assert one.writer.step == expected[0]
        found = store.thread("t").history(f"messages[{place}]")
        assert [each.writer.step for each in found] == expected
        assert [each.writer.step for each in store.thread("t").history(f"messages[{place}].text")] == expected
        page = store.thread("t").history(f"messages[{place}]", limit=1)
        assert (page, list(page.all())) == (found[:1], found)
        assert (page.next is None) == (len(found) == 1)


@given(st.integers(0, 10_000), st.sampled_from(SIZES), st.integers(1, 7), st.integers(2, 30))
@settings(max_examples=examples(15))
def test_entries_and_channels(seed: int, size: int, fold_every: int, steps: int) -> None:
    store = new_store(fold_every)
    states = conversation(seed, steps, size)
    for state in states:
        store.thread("t").put(state)
    for key in "abc":
        values = [state["memory"].get(key, ABSENT) for state in states]
        expected = changed(values)
        if not expected:
            continue
        found = store.thread("t").history(("memory", key))
        assert [each.writer.step for each in found] == expected
        for each in found:
            (change,) = each.changes
            step = each.writer.step
            assert change.new == (None if values[step] is ABSENT else values[step])
            assert change.old == (None if not step or values[step - 1] is ABSENT else values[step - 1])
        if values[-1] is not ABSENT:
            (origin,) = store.thread("t").blame(f"memory.{key}")
            assert (origin.writer.step, origin.value) == (expected[0], values[-1])
    if states[-1]["memory"]:
        for origin in store.thread("t").blame("memory"):
            values = [state["memory"].get(origin.path[-1], ABSENT) for state in states]
            assert origin.writer.step == changed(values)[0]
    for channel in ("messages", "memory", "step"):
        expected = changed([state[channel] for state in states])
        assert [each.writer.step for each in store.thread("t").history(channel)] == expected


@pytest.mark.parametrize("size", SIZES)
def test_branches_are_followed_to_where_they_start(size: int) -> None:
    store = new_store(3)
    states = conversation(5, 12, size)
    for state in states:
        store.thread("t").put(state)
    store.thread("t").fork("side", at=store.thread("t").find("#7").id)
    base = states[7]
    mine = {**base, "messages": [*base["messages"], {"id": "new", "text": "new " * size}]}
    store.thread("t").put(mine, branch="side")
    blamed = store.thread("t").blame("messages", "side")
    assert blamed[-1].writer.branch == 1
    for origin, message in zip(blamed, base["messages"], strict=False):
        assert origin.writer.branch == 0
        assert origin.writer.step == changed([by_id(state, message["id"]) for state in states[:8]])[0]
