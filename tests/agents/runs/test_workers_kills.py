"""Workers that are killed at every write: each run ends, and each effect is made once, unless the worker died in it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

import holdfast
from holdfast.backends.interface import Batch, Scan
from holdfast.backends.runtime.drivers import run
from holdfast.backends.sqlite.backend import SQLiteBackend
from holdfast.backends.tables import JOBS, JOURNAL, REFS
from tests.agents.runs.graphs import buying, chain, logging_nodes, write_ledger
from tests.support.kills import count_kill, kill, run_in_child
from tests.support.nightly import mostly_nightly

NO_KILL = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")


def kill_at_batch(number: int, after: bool) -> None:
    """Kill this process before or after its n-th batch, of whatever kind."""
    original, count = SQLiteBackend.apply, 0

    async def apply(self: SQLiteBackend, batch: Batch) -> int | None:
        nonlocal count
        count += 1
        if count == number and not after:
            kill()
        answer = await original(self, batch)
        if count == number:
            kill()
        return answer

    pytest.MonkeyPatch().setattr(SQLiteBackend, "apply", apply)


def left_over(path: Path) -> list[object]:
    """What is left of claims and queues."""
    with holdfast.open(path) as store:
        queries = [Scan(JOBS, ()), Scan(JOURNAL, ()), Scan(REFS, ())]
        jobs, beats, refs = run(store._handle.engine.context.backend.read(queries))
        places = [row.key for row in jobs if str(row.key[2]).startswith(("\x01busy", "\x01due"))]
        return [*places, *beats, *(row.key for row in refs if row.key[2:4] in (("lease", "run"), ("lease", "runs")))]


@NO_KILL
@pytest.mark.parametrize("after", [False, True])
def test_a_workflow_ends_wherever_its_worker_is_killed(tmp_path: Path, after: bool) -> None:
    struck = 0
    for number in range(1, 60):
        path, ledger = tmp_path / f"{number}.db", tmp_path / f"{number}.txt"
        with holdfast.open(path) as store:
            id = store.runs.submit("t", ["o"], graph="buy").id

        def work(report: Callable[[str], None], path: Path = path, ledger: Path = ledger, number: int = number) -> None:
            kill_at_batch(number, after)
            with holdfast.open(path) as store:
                store.worker(buying(ledger)).run_due()

        _, killed = run_in_child(work)
        struck += killed
        with holdfast.open(path) as store:
            store.worker(buying(ledger)).run_due()
            ended = store.runs.get(id)
        assert (ended.state, ended.result) == ("done", [f"paid {part}" for part in range(5)])
        effects = Counter(ledger.read_text().split("\n")[:-1])
        assert len(effects) == 5
        assert sum(effects.values()) - 5 <= killed
        assert left_over(path) == []
        if not killed:
            break
    assert struck > 10  # the claim, five steps of two batches each, and the end


@NO_KILL
def test_a_graph_ends_wherever_its_worker_is_killed(tmp_path: Path) -> None:
    struck = 0
    for number in range(1, 60):
        path = tmp_path / f"{number}.db"
        with holdfast.open(path) as store:
            id = store.runs.submit("t", {"log": ["in"]}, graph="chain").id

        def work(report: Callable[[str], None], path: Path = path, number: int = number) -> None:
            kill_at_batch(number, after=True)
            with holdfast.open(path) as store:
                store.worker(chain(*logging_nodes(3))).run_due()

        _, killed = run_in_child(work)
        struck += killed
        with holdfast.open(path) as store:
            store.worker(chain(*logging_nodes(3))).run_due()
            assert store.runs.get(id).state == "done"
            assert store.thread("t").get().state["log"] == ["in", "n0", "n1", "n2"]
            assert len(store.thread("t").branches()) == 1
            events = list(store.runs.follow(id))
            assert [each.name for each in events[:-1]] == [each.id for each in store.thread("t").log()][::-1]
        assert left_over(path) == []
        if not killed:
            break
    assert struck > 6


WORKER = """
import sys
from pathlib import Path
import holdfast
from tests.agents.runs.graphs import buying, write_ledger
path, ledger, struck = map(Path, sys.argv[1:])
with holdfast.open(path) as store:
    print("ready", flush=True)
    started = lambda what: write_ledger(struck, what)
    store.worker(buying(ledger, started), lease=1.5, concurrency=2).work()
"""


def start_worker(*paths: Path) -> subprocess.Popen[str]:
    root = Path(__file__).parents[3]
    worker = subprocess.Popen(
        [sys.executable, "-c", WORKER, *map(str, paths)], stdout=subprocess.PIPE, text=True, cwd=root
    )
    assert worker.stdout is not None
    assert worker.stdout.readline() == "ready\n"
    return worker


@NO_KILL
@pytest.mark.time_limit(600)
@pytest.mark.parametrize(("runs", "strikes"), mostly_nightly([(30, 4), (2000, 200)], daily=[(30, 4)]))
def test_workers_that_are_killed_and_stopped_do_all_runs(tmp_path: Path, runs: int, strikes: int) -> None:
    path, ledger, started = tmp_path / "a.db", tmp_path / "ledger", tmp_path / "started"
    with holdfast.open(path) as store:
        ids = [store.runs.submit(f"t{number}", [f"o{number}"], graph="buy").id for number in range(runs)]
        workers = [start_worker(path, ledger, started) for _ in range(4 if runs > 100 else 2)]
        killed = 0
        stopped: list[subprocess.Popen[str]] = []
        for strike in range(strikes):
            seen = len(started.read_text()) if started.exists() else 0
            deadline = time.monotonic() + 60
            while (len(started.read_text()) if started.exists() else 0) == seen and time.monotonic() < deadline:
                time.sleep(0.005)
            victim = workers.pop(0)
            if strike % 2:
                victim.send_signal(signal.SIGSTOP)
                stopped.append(victim)
            else:
                victim.kill()
                victim.wait()
                count_kill()
                killed += 1
            workers.append(start_worker(path, ledger, started))
        states = Counter(store.runs.wait(id, timeout=240).state for id in ids)
        assert states == {"done": runs}
        for victim in stopped:  # they are woken long after others did their runs
            victim.send_signal(signal.SIGCONT)
        time.sleep(1)
        for each in (*workers, *stopped):
            each.send_signal(signal.SIGKILL)
            each.wait()
        assert killed == (strikes + 1) // 2
        effects = Counter(ledger.read_text().split("\n")[:-1])
        assert set(effects) == {f"o{number} {part}" for number in range(runs) for part in range(5)}
        # In doubt are only steps whose function had started: two runs at a time are in a worker that is struck.
        assert sum(effects.values()) - len(effects) <= 2 * strikes
        for number, id in enumerate(ids[:: max(runs // 50, 1)]):
            assert [each.state for each in store.runs.steps(id)] == ["done"] * 5, number
    assert left_over(path) == []


def test_a_ledger_is_written_line_by_line(tmp_path: Path) -> None:
    write_ledger(tmp_path / "l", "a")
    write_ledger(tmp_path / "l", "b")
    assert (tmp_path / "l").read_text() == "a\nb\n"
