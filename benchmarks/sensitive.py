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
    """Counts the processor time that is spent in protection, inside of the put that it is part of."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.spent = 0

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._inner, name)

        async def timed(*arguments: Any) -> Any:
            start = time.thread_time_ns()
            result = await method(*arguments)
            self.spent += time.thread_time_ns() - start
            return result

        return timed


def protected_put() -> list[Figure]:
    """The share of protection in a put of a chat with 500 messages and one more, on SQLite: of its time, and of the
    processor time alone, without the disk."""
    messages = chat((_HELD + _PUTS) // 2 + 1)
    figures = []
    for formats in ("credentials", "all"):
        spent, puts, cpu = [], [], []
        with tempfile.TemporaryDirectory() as folder, holdfast.open(pathlib.Path(folder) / "chat.db") as store:
            store.redaction.protect(formats=formats, keys=_FixedKeys())
            engine: Any = store._engine
            engine.appender.protection = timed = _Timed(engine.protection)
            store.thread("chat").put({"messages": messages[:_HELD]})
            for count in range(_HELD + 1, _HELD + _PUTS):
                timed.spent, start, start_cpu = 0, time.perf_counter_ns(), time.thread_time_ns()
                store.thread("chat").put({"messages": messages[:count]})
                puts.append((time.perf_counter_ns() - start) / 1e6)
                cpu.append((time.thread_time_ns() - start_cpu) / 1e6)
                spent.append(timed.spent / 1e6)
        added = statistics.median(spent)
        for what, whole, ceiling in (("a put", puts, 10), ("the processor time of a put", cpu, 15)):
            median = statistics.median(whole)
            name = f"protection of {formats} in {what}"
            figures.append(
                Figure(name, added / median * 100, "%", ceiling=ceiling, goal=10, note=f"of {median:.2f} ms")
            )
    return figures


CASES = (protected_put,)
