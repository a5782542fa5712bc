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

import psycopg

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
def _worker(url: str) -> Iterator[int]:
    """Have a worker in a process of its own, which is yielded."""
    with subprocess.Popen([sys.executable, "-m", "benchmarks.runs", url]) as process:
        try:
            yield process.pid
        finally:
            process.kill()


def _measure(url: str, where: str, most: float, statements: Callable[[], int] | None = None) -> list[Figure]:
    with holdfast.open(url) as store, _worker(url) as process:
        latencies = list[float]()
        for number in range(_RUNS + 1):
            begun = time.monotonic_ns()
            started = store.runs.wait(store.runs.submit(None, None, graph=note).id, timeout=60).result
            if number:  # the first one waited for the process to start
                latencies.append((started - begun) / 1e6)
            time.sleep(_PAUSE)
        time.sleep(2)  # what is behind is stored, and statistics are sent
        before, asked = _spent(process), statements() if statements is not None else 0
        time.sleep(_IDLE)
        share = (_spent(process) - before) / _IDLE * 100
        found = [
            Figure(f"submit to start {where}, p50", statistics.median(latencies), "ms", ceiling=most),
            Figure(f"idle worker {where}", share, "% of a core", ceiling=1),
        ]
        if statements is not None:
            asking = (statements() - asked) / _IDLE
            found.append(Figure(f"transactions of an idle worker {where}", asking, "a second", ceiling=2))
        return found


def _spent(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) / _TICKS


def workers_on_sqlite() -> Result:
    """From submit to start, and an idle worker, on SQLite"""
    with tempfile.TemporaryDirectory() as name:
        return Result(_measure(f"sqlite:///{name}/agents.db", "on SQLite", 50))


def workers_on_postgres() -> Result:
    """From submit to start, and an idle worker, on PostgreSQL"""
    try:
        url = servers.postgres().fresh()
    except Missing as why:
        return Result([missing("workers on PostgreSQL", why)])

    def committed() -> int:
        with psycopg.connect(url, autocommit=True) as connection:
            found = connection.execute(
                "SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()"
            ).fetchone()
        assert found is not None
        return int(found[0])

    return Result(_measure(url, "on PostgreSQL", 20, committed))


CASES = (workers_on_sqlite, workers_on_postgres)


if __name__ == "__main__":
    with holdfast.open(sys.argv[1]) as opened:
        opened.worker(note).work()
