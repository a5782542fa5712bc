"""Migration of all states of a store: how many a second, in one process and in two, with verification and the log.

What is measured is wall time of the whole run, and the memory of the process that runs it.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TypedDict

import holdfast
from benchmarks.measure import Figure
from holdfast.schemas import Migration, Schema, SchemaSet, add, rename

STATES = 100_000
_BATCH = 500


class Old(TypedDict):
    """A small state."""

    msgs: list[str]
    count: int


class New(TypedDict):
    """The same a version later."""

    messages: list[str]
    count: int
    plan: list[str]


OLD = SchemaSet(Schema("chat", "1.0.0", Old))
NEW = SchemaSet(
    Schema("chat", "1.0.0", Old),
    Schema("chat", "2.0.0", New),
    Migration("chat", "1.0.0", "2.0.0", rename("msgs", "messages"), add("plan", default=[])),
)


def bulk_migration(states: int = STATES) -> list[Figure]:
    """The rate of an upgrade of many small states on SQLite, by one process and by two, and the memory of one."""
    figures = []
    for processes in (1, 2):
        with tempfile.TemporaryDirectory() as directory:
            path = str(Path(directory) / "states.db")
            _fill(path, states)
            command = [sys.executable, "-m", "benchmarks.migrations", path]
            start = time.perf_counter()
            runs = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(processes)]
            outputs = [run.communicate()[0].split() for run in runs]
            seconds = time.perf_counter() - start
            if sum(int(migrated) for migrated, _ in outputs) != states:
                raise RuntimeError(f"not all states were migrated: {outputs}")
            title = "process" if processes == 1 else "processes"
            figures.append(Figure(f"upgrade of {states:,} states, {processes} {title}", states / seconds, "states/s"))
            if processes == 1:
                figures.append(Figure("memory of an upgrade", float(outputs[0][1]), "MB"))
    return figures


def _fill(path: str, states: int) -> None:
    with holdfast.open(path) as store:
        store.schemas.attach(OLD, threads="chat-*", validate="off")
        for start in range(0, states, _BATCH):
            with store.transaction() as together:
                for number in range(start, min(states, start + _BATCH)):
                    together.put(f"chat-{number:06}", {"msgs": ["hello", f"m{number}"], "count": number})


def _migrate(path: str) -> None:
    with holdfast.open(path) as store:
        report = store.schemas.up(NEW, check_first=False)
    sys.stdout.write(f"{report.migrated} {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f}\n")


CASES = (bulk_migration,)


if __name__ == "__main__":
    _migrate(sys.argv[1])
