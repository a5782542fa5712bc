"""What schemas add to attaching, writing and reading: in CPU time, in memory, beside the same without a schema."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any, TypedDict

import holdfast
from benchmarks.measure import Figure
from holdfast.schemas import Migration, Schema, SchemaSet, add

_TIMES = 300


class Plan1(TypedDict):
    """The value of a key."""

    goal: str
    steps: list[str]


class Plan2(TypedDict):
    """The same a version later."""

    goal: str
    steps: list[str]
    done: int


SCHEMAS = SchemaSet(
    Schema("plan", "1.0.0", Plan1),
    Schema("plan", "2.0.0", Plan2),
    Migration("plan", "1.0.0", "2.0.0", add("done", default=0)),
)


def schema_checks() -> list[Figure]:
    """The check of an attached schema again, and what a schema adds to a write and to a read of a key"""
    with holdfast.open("memory://") as store:
        places: dict[str, dict[str, Any]] = {
            "threads": {"threads": "chat-*"},
            "scopes": {"scopes": "user:*"},
            "keys": {"scopes": "agent:*", "key": "plan"},
        }
        for place in places.values():
            store.schemas.attach(SCHEMAS, **place)
        again = max(_cpu(partial(store.schemas.attach, SCHEMAS, **place)) for place in places.values())
    ratios = _with_and_without()
    return [
        Figure("attach of a schema again", again * 1e6, "us", ceiling=1000),
        Figure("set of a key with a schema / without", ratios[0], "x", ceiling=2),
        Figure("get of a key with a schema / without", ratios[1], "x", ceiling=1.5),
    ]


def _with_and_without() -> tuple[float, float]:
    """Return how many times longer a set and a get of a key take with a schema of the key."""
    found = []
    for attached in (False, True):
        with holdfast.open("memory://") as store:
            if attached:
                store.schemas.attach(SCHEMAS, scopes="agent:*", key="plan")
            state = store.state(agent="a")
            value = {"goal": "x" * 50, "steps": ["y" * 20] * 10, "done": 0}
            found.append((_cpu(partial(state.set, "plan", value)), _cpu(partial(state.get, "plan"))))
    (plain_set, plain_get), (set_, get) = found
    return set_ / plain_set, get / plain_get


def _cpu(call: Callable[[], object]) -> float:
    """Return the CPU seconds of a call, the least of some rounds."""
    call()
    rounds = []
    for _ in range(5):
        start = time.process_time()
        for _ in range(_TIMES):
            call()
        rounds.append((time.process_time() - start) / _TIMES)
    return min(rounds)


CASES = (schema_checks,)
