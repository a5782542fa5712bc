"""Workers of runs: how soon one begins what was submitted, and what one takes that has nothing to do."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import holdfast
from benchmarks import servers
from benchmarks.measure import Figure, Result, missing
from benchmarks.servers import Missing

_RUNS = 100
_PAUSE = 0.05
"""Between two runs, in seconds: the worker waits again."""

_IDLE = 20.0
_TICKS = os.sysconf("SC_CLK_TCK")


@holdfast.workflow
def note() -> int:
    """Return when this began, by a clock that all processes of a machine share."""
    return time.monotonic_ns()


@contextmanager
def _worker(url: str, calls: Path) -> Iterator[int]:
    """Have a worker in a process of its own, which is yielded. A file grows by a byte with each call of its store."""
    with subprocess.Popen([sys.executable, "-m", "benchmarks.runs", url, str(calls)]) as process:
        try:
            yield process.pid
        finally:
            process.kill()


def _measure(url: str, where: str, most: float | None, folder: str, server: Callable[[], float | None]) -> list[Figure]:
    calls = Path(folder) / "calls"

    def spent(process: int) -> float:
        return time.process_time() + _spent(process) + (server() or 0) / 1000

    with holdfast.open(url) as store, _worker(url, calls) as process:
        latencies, cpu = list[float](), 0.0
        for number in range(_RUNS + 1):
            if number == 1:
                cpu = spent(process)
            begun = time.monotonic_ns()
            started = store.runs.wait(store.runs.submit(None, None, graph=note).id, timeout=60).result
            if number:  # the first one waited for the process to start
                latencies.append((started - begun) / 1e6)
            time.sleep(_PAUSE)
        cpu = (spent(process) - cpu) / _RUNS * 1000
        time.sleep(2)  # what is behind is stored
        before, asked = _spent(process), calls.stat().st_size
        time.sleep(_IDLE)
        share = (_spent(process) - before) / _IDLE * 100
        asking = (calls.stat().st_size - asked) / _IDLE
        return [
            Figure(f"submit to start {where}, p50", statistics.median(latencies), "ms", ceiling=most),
            Figure(f"processor time of such a run {where}, of all processes", cpu, "ms"),
            Figure(f"idle worker {where}", share, "% of a core", ceiling=1),
            Figure(f"statements of an idle worker {where}", asking, "a second", ceiling=2),
        ]


def _spent(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) / _TICKS


def workers_on_sqlite() -> Result:
    """From submit to start, and an idle worker, on SQLite"""
    with tempfile.TemporaryDirectory() as name:
        return Result(_measure(f"sqlite:///{name}/agents.db", "on SQLite", 50, name, lambda: None))


def workers_on_postgres() -> Result:
    """From submit to start, and an idle worker, on PostgreSQL"""
    return _on_server(servers.postgres, "PostgreSQL", servers.postgres_cpu, 20)


def workers_on_mongodb() -> Result:
    """From submit to start, and an idle worker, on MongoDB"""
    return _on_server(servers.mongodb, "MongoDB", servers.mongodb_cpu)


def workers_on_redis() -> Result:
    """From submit to start, and an idle worker, on Valkey"""
    return _on_server(servers.redis, "Valkey", lambda: None)


def _on_server(
    start: Callable[[], Any], name: str, server: Callable[[], float | None], most: float | None = None
) -> Result:
    try:
        url = start().fresh()
    except Missing as why:
        return Result([missing(f"workers on {name}", why)])
    with tempfile.TemporaryDirectory() as folder:
        return Result(_measure(url, f"on {name}", most, folder, server))


CASES = (workers_on_sqlite, workers_on_postgres, workers_on_mongodb, workers_on_redis)


def _work(url: str, calls: str) -> None:
    """Do runs, and count what is asked of the store."""
    with holdfast.open(url) as store, Path(calls).open("ab", buffering=0) as counted:
        stored: Any = store._handle.engine.context.stored

        def count(call: Any) -> Any:
            async def counting(*arguments: Any, **options: Any) -> Any:
                counted.write(b".")
                return await call(*arguments, **options)

            return counting

        stored.read, stored.apply = count(stored.read), count(stored.apply)
        store.worker(note).work()


if __name__ == "__main__":
    _work(*sys.argv[1:])
