"""Migration of all states of a store: how many a second, in one process and in two, with verification and the log.

What is measured is wall time of the whole run, from the start of the process to its end, and the CPU time and the
memory of the process. The bounds are ratios, which hold on any machine: the CPU of a state beside that of a row that is
merely inserted, by the same batches; two processes beside one; PostgreSQL beside SQLite.
"""

from __future__ import annotations

import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple, TypedDict

import holdfast
from benchmarks.measure import Figure, missing
from holdfast.backends.interface import Create, Row
from holdfast.backends.runtime.drivers import run
from holdfast.backends.tables import STEPS
from holdfast.codec.envelope import wrap
from holdfast.schemas import Migration, Schema, SchemaSet, add, rename

STATES = 100_000
STATES_ON_SERVER = 20_000
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


class _Run(NamedTuple):
    """How a migration went: states a second, CPU seconds of a state, and megabytes."""

    rate: float
    cpu: float
    memory: float


def bulk_migration(states: int = STATES) -> list[Figure]:
    """The rate of an upgrade of many small states on SQLite, by one process and by two, and the memory of one."""
    with tempfile.TemporaryDirectory() as directory:
        filled, copy = Path(directory) / "filled.db", Path(directory) / "states.db"
        _fill(str(filled), states)
        found = []
        for processes in (1, 2):
            shutil.copy(filled, copy)
            found.append(_run(str(copy), states, processes))
            copy.unlink()
        bare = _insert_cpu(Path(directory) / "bare.db")
    one, two = found
    note = f"{one.cpu * 1e6:.0f} us against {bare * 1e6:.0f}"
    return [
        Figure(f"upgrade of {states:,} states, 1 process", one.rate, "states/s", floor=1500, goal=4000),
        Figure("upgrade of a state / insert of a row, CPU", one.cpu / bare, "x", None, 22, note),
        Figure("memory of an upgrade", one.memory, "MB", ceiling=200),
        Figure(f"upgrade of {states:,} states, 2 processes", two.rate, "states/s"),
        Figure("upgrade by 2 processes / by 1", two.rate / one.rate, "x", floor=1),
    ]


def bulk_migration_on_postgres(states: int = STATES_ON_SERVER) -> list[Figure]:
    """The rate of an upgrade of many small states on PostgreSQL, beside SQLite"""
    from benchmarks import servers  # the drivers of all stores, which a process that migrates does not need

    what = "upgrade on PostgreSQL / on SQLite"
    try:
        url = servers.postgres().fresh()
    except servers.Missing as error:
        return [missing(what, error)]
    with tempfile.TemporaryDirectory() as directory:
        rates = []
        for place in (str(Path(directory) / "states.db"), url):
            _fill(place, states)
            rates.append(_run(place, states, 1).rate)
    return [
        Figure(f"upgrade of {states:,} states on PostgreSQL", rates[1], "states/s"),
        Figure(what, rates[1] / rates[0], "x", floor=1 / 3),
    ]


def _run(place: str, states: int, processes: int) -> _Run:
    command = [sys.executable, "-m", "benchmarks.migrations", place]
    start = time.perf_counter()
    runs = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(processes)]
    outputs = [run.communicate()[0].split() for run in runs]
    seconds = time.perf_counter() - start
    if sum(int(migrated) for migrated, _, _ in outputs) != states:
        raise RuntimeError(f"not all states were migrated: {outputs}")
    cpu = sum(float(each) for _, each, _ in outputs)
    return _Run(states / seconds, cpu / states, max(float(memory) for _, _, memory in outputs))


def _fill(place: str, states: int) -> None:
    with holdfast.open(place) as store:
        store.schemas.attach(OLD, threads="chat-*", validate="off")
        for start in range(0, states, _BATCH):
            with store.transaction() as together:
                for number in range(start, min(states, start + _BATCH)):
                    together.put(f"chat-{number:06}", {"msgs": ["hello", f"m{number}"], "count": number})


def _insert_cpu(path: Path, rows: int = 20_000) -> float:
    """Return the CPU seconds of a row that is inserted, with its checksum, in batches."""
    body = wrap(bytes(150))
    columns = ("1f1e2453-6cdf-6f58-bef8-36477d85aed0", 0, 0, bytes(32), 1, "save", "", 1, 150, -1)
    batches = [
        [Create(STEPS, Row(("", f"chat-{number:06}", 0, 0), columns, body)) for number in range(start, start + _BATCH)]
        for start in range(0, rows, _BATCH)
    ]
    with holdfast.open(path) as store:
        backend = store._engine.context.backend
        start = time.process_time()
        for batch in batches:
            run(backend.apply(batch))
        return (time.process_time() - start) / rows


def _migrate(place: str) -> None:
    with holdfast.open(place) as store:
        start = time.process_time()
        report = store.schemas.up(NEW, check_first=False)
        cpu = time.process_time() - start
    sys.stdout.write(f"{report.migrated} {cpu} {_peak_megabytes():.0f}\n")


def _peak_megabytes() -> float:
    """Return the memory of this process at its peak. What Python's `resource` says may be that of the parent."""
    status = Path("/proc/self/status")
    if not status.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    (peak,) = [line.split()[1] for line in status.read_text().splitlines() if line.startswith("VmHWM:")]
    return int(peak) / 1024


CASES = (bulk_migration, bulk_migration_on_postgres)


if __name__ == "__main__":
    _migrate(sys.argv[1])
