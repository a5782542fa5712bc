"""A process that changes state: `python -m tests.state.state_worker URL WHAT NAME COUNT`. Begins when it is told to."""

from __future__ import annotations

import sys
import time
from typing import Any

import holdfast
from holdfast.store.store import Store


def count_up(store: Store, _: str, count: int) -> None:
    """Increment one counter in transactions."""

    def work(together: Any) -> None:
        together.state(workflow="w")["counter"] = together.state(workflow="w").get("counter", 0) + 1

    for _number in range(count):
        store.transaction(work)


def own_keys(store: Store, name: str, count: int) -> None:
    """Write keys of one's own to a scope that all share, on the version that each must have: a conflict is an error."""
    state, version = store.state(workflow="w"), 0
    for number in range(count):
        version = state.set(name, number, expected=version)
    if state.item(name).version != version:
        raise AssertionError(name)


def tell_the_time(store: Store, _: str, count: int) -> None:
    """Write what time it is, now and then."""
    state = store.state(agent="a")
    for number in range(count):
        state[f"k{number}"] = time.time()
        time.sleep(0.15)


def append_messages(store: Store, name: str, count: int) -> None:
    """Append to one thread, and count there."""
    for number in range(count):
        store.thread("t").append("messages", [name, number])
        store.thread("t").increment("n")


def main(url: str, what: str, name: str, count: str) -> None:
    with holdfast.open(url) as store:
        work = {"count": count_up, "keys": own_keys, "time": tell_the_time, "append": append_messages}[what]
        print("ready", flush=True)
        sys.stdin.readline()
        work(store, name, int(count))


if __name__ == "__main__":
    main(*sys.argv[1:])
