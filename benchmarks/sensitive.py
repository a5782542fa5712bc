"""What protection of sensitive data adds to a save: only what is new is searched, whatever the state weighs."""

from __future__ import annotations

import pathlib
import statistics
import tempfile
import time
from typing import Any

import holdfast
from benchmarks.cases import chat
from benchmarks.measure import Figure

_HELD, _PUTS = 500, 100


class _FixedKeys:
    """Keys of a benchmark."""

    def keys(self) -> tuple[bytes, ...]:
        return (b"k" * 32,)


class _Timed:
    """Counts the time that is spent in protection, inside of the put that it is part of."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.spent = 0

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._inner, name)

        async def timed(*arguments: Any) -> Any:
            start = time.perf_counter_ns()
            result = await method(*arguments)
            self.spent += time.perf_counter_ns() - start
            return result

        return timed


def protected_put() -> list[Figure]:
    """The share of protection in a put of a chat with 500 messages and one more, on SQLite."""
    messages = chat((_HELD + _PUTS) // 2 + 1)
    figures = []
    for formats in ("credentials", "all"):
        shares, puts = [], []
        with tempfile.TemporaryDirectory() as folder, holdfast.open(pathlib.Path(folder) / "chat.db") as store:
            store.sensitive.protect(formats=formats, keys=_FixedKeys())
            engine: Any = store._engine
            engine.appender.protection = timed = _Timed(engine.protection)
            store.put("chat", {"messages": messages[:_HELD]})
            for count in range(_HELD + 1, _HELD + _PUTS):
                timed.spent, start = 0, time.perf_counter_ns()
                store.put("chat", {"messages": messages[:count]})
                puts.append(time.perf_counter_ns() - start)
                shares.append(timed.spent / puts[-1])
        note = f"of {statistics.median(puts) / 1e6:.2f} ms"
        figures.append(
            Figure(f"protection of {formats} in a put", statistics.median(shares) * 100, "%", ceiling=10, note=note)
        )
    return figures


CASES = (protected_put,)
