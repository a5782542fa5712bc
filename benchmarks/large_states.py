"""States that are larger than the cache: what an update, and a read of one value, takes of 80 MB."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

import holdfast
from benchmarks.measure import Figure
from benchmarks.store_cases import folder

_ENTRIES = 80_000
_ROUNDS = 5


def state_of_80_mb() -> list[Figure]:
    """An update of a state of 80 MB, and one value of it: in the process that saved it, and in another"""
    chance = random.Random(1)
    state: dict[str, Any] = {
        "memory": {f"key {number}": chance.randbytes(500).hex() for number in range(_ENTRIES)},
        "plan": {"done": 0},
    }
    path = ("memory", "key 777")
    taken: dict[str, list[float]] = {}
    with folder() as place:
        url = f"sqlite:///{place}/large.db"
        with holdfast.open(url) as store:
            thread = store.thread("large")
            whole = _cpu(thread.put, state)
            for number in range(_ROUNDS):
                taken.setdefault("update", []).append(_cpu(thread.update, {"plan.done": number}))
                taken.setdefault("update of an entry", []).append(_cpu(thread.update, {path: number}))
            state = {**thread.get().state, "plan": {"done": -1}}
            again = _cpu(thread.put, state)
            store.thread("heavy").put({**state, "plan": {"done": -2}})
        for name, what in (("large", "one entry after opening"), ("heavy", "one entry, of the heavy step itself")):
            for _ in range(_ROUNDS):
                with holdfast.open(url) as store:
                    taken.setdefault(what, []).append(_cpu(_read_entry, store.thread(name), path))
        for name in ("heavy", "large"):
            with holdfast.open(url) as store:
                taken.setdefault("first update after opening", []).append(
                    _cpu(store.thread(name).update, {"plan.done": 9})
                )
    return [
        Figure("80 MB: put", whole, "ms", note="CPU, as all of these"),
        Figure("80 MB: put again, with one change", again, "ms"),
        *(Figure(f"80 MB: {name}", min(each), "ms", ceiling=20, goal=5) for name, each in taken.items()),
    ]


def _read_entry(thread: holdfast.Thread[Any], path: tuple[str, ...]) -> object:
    return thread.get(lazy=True).state.value(path)


def _cpu(job: Callable[..., object], *arguments: object) -> float:
    start = time.process_time()
    job(*arguments)
    return (time.process_time() - start) * 1000


CASES = (state_of_80_mb,)
