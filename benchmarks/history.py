"""Looking at a long history on SQLite: 10,000 steps and 1,000 branches, each look in a store just opened."""

from __future__ import annotations

import gc
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage

import holdfast
from benchmarks.measure import Figure, Result

_STEPS, _BRANCHES = 10_000, 1_000
_ROUNDS = 5

Look = Callable[[holdfast.Store], object]

_LOOKS: dict[str, tuple[Look, float]] = {
    "log, first page": (lambda store: store.thread("agent").log(limit=50), 100),
    "diff of neighbours at the end": (lambda store: store.thread("agent").diff(), 100),
    "diff of neighbours in the middle": (
        lambda store: store.thread("agent").diff(f"#{_STEPS // 2}", f"#{_STEPS // 2 + 1}"),
        100,
    ),
    "diff of a branch and its neighbour": (lambda store: store.thread("agent").diff("branch-500", "branch-501"), 100),
    "diff with one message of 10,000 edited": (lambda store: store.thread("agent").diff("before", "edited"), 100),
    "diff of two threads, one message edited": (lambda store: store.thread("agent").diff("before", other="copy"), 500),
    "blame of the first message": (lambda store: store.thread("agent").blame("messages[0]", "main"), 100),
    "blame of a message in the middle": (
        lambda store: store.thread("agent").blame(f"messages[{_STEPS // 2}]", "main"),
        100,
    ),
    "blame of the last 50 messages": (lambda store: store.thread("agent").blame("messages[-50:]", "main"), 100),
    "blame of a key of 1,000": (lambda store: store.thread("agent").blame("memory.key-500", "main"), 100),
    "history of a message": (lambda store: store.thread("agent").history(f"messages[{_STEPS // 2}]", "main"), 100),
    "history of a channel, first 20": (lambda store: store.thread("agent").history("messages", "main", limit=20), 500),
}
"""What is looked at, and how many milliseconds it may take."""


def _message(number: int) -> BaseMessage:
    kind = AIMessage if number % 2 else HumanMessage
    return kind(f"message {number}: " + f"words and more words {number} " * 8, id=f"m{number}")


def _fill(store: holdfast.Store) -> None:
    """A conversation of 10,000 messages, one a step, and a memory of 1,000 entries; then branches all along it."""
    messages: list[BaseMessage] = []
    memory = {f"key-{number}": f"value {number} " * 4 for number in range(1_000)}
    ids = []
    for number in range(_STEPS):
        messages = [*messages, _message(number)]
        if number % 50 == 0:
            memory = {**memory, f"key-{number % 1_000}": f"changed at {number}"}
        metadata = {"author": "agent"}
        ids.append(
            store.thread("agent").put({"messages": messages, "memory": memory, "n": number}, metadata=metadata).id
        )
    store.thread("agent").tag("before", ids[-1])
    for number in range(_BRANCHES):
        name = f"branch-{number}"
        store.thread("agent").fork(name, at=ids[number * (_STEPS // _BRANCHES)])
        store.thread("agent").update({"n": -number}, branch=name)
    edited = [*messages]
    edited[_STEPS // 3] = HumanMessage("edited", id=edited[_STEPS // 3].id)
    last = store.thread("agent").put({"messages": edited, "memory": memory, "n": _STEPS}, parent=ids[-1])
    store.thread("agent").tag("edited", last.id)
    store.thread("copy").put({"messages": edited, "memory": memory, "n": _STEPS})


def _median(url: str, look: Look) -> float:
    """How long it takes in a store just opened, in milliseconds."""
    times = []
    for _ in range(_ROUNDS):
        with holdfast.open(url) as store:
            gc.collect()
            start = time.perf_counter()
            look(store)
            times.append((time.perf_counter() - start) * 1000)
    return statistics.median(times)


def looking_at_a_long_history() -> Result:
    """Log, differences and blame in a thread of 10,000 steps and 1,000 branches, cold, on SQLite"""
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{Path(folder)}/history.db"
        with holdfast.open(url) as store:
            _fill(store)
        return Result([Figure(what, _median(url, look), "ms", ceiling=most) for what, (look, most) in _LOOKS.items()])


CASES = (looking_at_a_long_history,)
