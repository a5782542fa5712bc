"""What encryption costs: a durable step and a cold read of a chat on SQLite, with and without it, in turns.

The time of the processor is measured: that is what encryption takes, and other programs hardly change it. Of a durable
step, the time in which the disk writes is left out, so that its cost in percent is rather too high.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import holdfast
from benchmarks.cases import chat
from benchmarks.measure import Figure, turns
from holdfast.encryption import Encryption, LocalKeys, generate_key

_TURNS = 60
_CHATS = 16
_ROUNDS = 100
_CEILING = 15.0


def encryption() -> list[Figure]:
    """The cost of encryption, in percent of a durable step and of a cold read."""
    steps: dict[str, list[float]] = {"clear": [], "sealed": []}
    small: dict[str, list[float]] = {"clear": [], "sealed": []}
    reads: dict[str, list[float]] = {"clear": [], "sealed": []}
    messages = chat(_TURNS)
    keys: dict[str, Any] = {"clear": False, "sealed": Encryption(LocalKeys(generate_key()))}
    with tempfile.TemporaryDirectory() as directory:
        stores = {who: holdfast.open(Path(directory) / f"{who}.db", encryption=key) for who, key in keys.items()}
        for number in range(_TURNS * _CHATS):
            turn, thread = number // _CHATS, "chat" if number % _CHATS == 0 else f"chat {number % _CHATS}"
            for who in turns(stores, 1) if number % 2 else reversed([*stores]):
                start = time.process_time()
                stores[who].thread(thread).put({"messages": messages[: 2 * turn + 2]}, metadata={"step": turn})
                steps[who].append(time.process_time() - start)
        for number in range(600):  # what does not depend on the size
            for who in turns(stores, 1) if number % 2 else reversed([*stores]):
                start = time.process_time()
                stores[who].thread("chat").update({"count": number})
                small[who].append(time.process_time() - start)
        for who in turns(stores, _ROUNDS):
            stores[who]._engine.context.cache.clear()
            start = time.process_time()
            stores[who].thread("chat").get()
            reads[who].append(time.process_time() - start)
        for store in stores.values():
            store.close()
        size = {who: (Path(directory) / f"{who}.db").stat().st_size for who in stores}
        opened: dict[str, list[float]] = {"clear": [], "sealed": []}
        for who in turns(stores, _ROUNDS):  # with the keys, which a new process reads
            key = keys[who] and Encryption(keys[who].keys)
            start = time.process_time()
            with holdfast.open(Path(directory) / f"{who}.db", encryption=key) as store:
                store.thread("chat").get()
                opened[who].append(time.process_time() - start)
    return [
        _cost("a durable step", steps, _CEILING),
        _cost("a small durable step", small, _CEILING),
        _cost("a cold read", reads, _CEILING),
        _cost("opening a store and reading", opened),
        Figure("encryption, size of the file", 100.0 * (size["sealed"] / size["clear"] - 1), "% more"),
    ]


def _cost(what: str, times: dict[str, list[float]], ceiling: float | None = None) -> Figure:
    clear, sealed = (statistics.median(times[who]) * 1e6 for who in ("clear", "sealed"))
    note = f"{clear:.0f} µs, encrypted {sealed:.0f} µs"
    # Of each with the one beside it: the speed of the machine changes within a run.
    cost = statistics.median(other / one for one, other in zip(times["clear"], times["sealed"], strict=True)) - 1
    return Figure(f"encryption, {what}", 100 * cost, "% more", ceiling=ceiling, note=note)


CASES = (encryption,)
