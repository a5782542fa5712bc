"""What protection of sensitive data adds to a save: only what is new is searched, whatever the state weighs."""

from __future__ import annotations

import pathlib
import statistics
import tempfile
import time
from contextlib import ExitStack

import holdfast
from benchmarks.cases import chat
from benchmarks.measure import Figure, turns
from holdfast.store.store import Store

_HELD, _PUTS = 500, 60


class _FixedKeys:
    """Keys of a benchmark."""

    def keys(self) -> tuple[bytes, ...]:
        return (b"k" * 32,)


def protected_put() -> list[Figure]:
    """A put of a chat with 500 messages and one more, on SQLite: without policies, and with one for credentials, or for
    all formats."""
    messages = chat((_HELD + _PUTS) // 2 + 1)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        stores: dict[str, Store] = {}
        for name in ("none", "credentials", "all"):
            store = stores[name] = stack.enter_context(holdfast.open(pathlib.Path(folder) / f"{name}.db"))
            if name != "none":
                store.sensitive.protect(formats=name, keys=_FixedKeys())
            store.put("chat", {"messages": messages[:_HELD]})
        spent: dict[str, list[float]] = {name: [] for name in stores}
        done = dict.fromkeys(stores, _HELD)
        for name in turns(stores, _PUTS):
            done[name] += 1
            state = {"messages": messages[: done[name]]}
            start = time.thread_time_ns()
            stores[name].put("chat", state)
            spent[name].append((time.thread_time_ns() - start) / 1e6)
    best = {name: statistics.median(each) for name, each in spent.items()}
    return [
        Figure("a put of a chat with 500 messages, without policies", best["none"], "ms"),
        *(
            Figure(
                f"sensitive data: {name}, added to that put",
                (best[name] / best["none"] - 1) * 100,
                "%",
                ceiling=10 if name == "credentials" else 20,
            )
            for name in ("credentials", "all")
        ),
    ]


CASES = (protected_put,)
