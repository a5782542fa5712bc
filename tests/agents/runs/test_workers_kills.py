"""Workers that are killed at every write: each run ends, and each effect is made once, unless the worker died in it."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
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

        def work(report: Callable[[str], None], path: Path = path, number: int = number, id: str = id) -> None:
            kill_at_batch(number, after=True)
            with holdfast.open(path) as store:
                store.worker(chain(*logging_nodes(3))).run_due()
                ended = store.runs.get(id)
                report(f"{ended.state} {ended.error}")

        reported, killed = run_in_child(work)
        struck += killed
        assert killed or reported == ["done "]
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


def start_worker(path: Path, ledger: Path, started: Path) -> int:
    """Start a worker in a process of its own. Returns the process."""
    child = os.fork()
    if not child:
        try:
            with holdfast.open(path) as store:
                worker = store.worker(buying(ledger, partial(write_ledger, started)), lease=1.5, concurrency=2)
                worker.work()
        finally:
            os._exit(1)
    return child


def finish_batches(stopped: Sequence[int]) -> None:
    """Let processes that are stopped go on for a moment: one that was stopped in the middle of a batch has the lock of
    the file, and nobody else writes."""
    for each in stopped:
        os.kill(each, signal.SIGCONT)
        time.sleep(0.01)
        os.kill(each, signal.SIGSTOP)


def length(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


@NO_KILL
@pytest.mark.time_limit(600)
@pytest.mark.parametrize(("runs", "strikes", "count"), mostly_nightly([(20, 4, 2), (2000, 200, 4)], daily=[(20, 4, 2)]))
def test_workers_that_are_killed_and_stopped_do_all_runs(tmp_path: Path, runs: int, strikes: int, count: int) -> None:
    path, ledger, started = tmp_path / "a.db", tmp_path / "ledger", tmp_path / "started"
    with holdfast.open(path) as store:
        ids = [store.runs.submit(f"t{number}", [f"o{number}"], graph="buy").id for number in range(runs)]
    workers, stopped, killed = [start_worker(path, ledger, started) for _ in range(count)], list[int](), 0
    try:
        for strike in range(strikes):
            seen, deadline, look = length(started), time.monotonic() + 60, time.monotonic() + 2
            while length(started) == seen and time.monotonic() < deadline:  # while steps are begun
                time.sleep(0.001)
                if time.monotonic() > look:
                    look += 2
                    finish_batches(stopped)
            assert length(started) > seen
            victim = workers.pop(0)
            if strike % 2:
                os.kill(victim, signal.SIGSTOP)
                stopped.append(victim)
            else:
                os.kill(victim, signal.SIGKILL)
                os.waitpid(victim, 0)
                count_kill()
                killed += 1
            workers.append(start_worker(path, ledger, started))
        with holdfast.open(path) as store:
            deadline = time.monotonic() + 300
            for id in ids:
                while store.runs.wait(id, timeout=2).state in ("queued", "running") and time.monotonic() < deadline:
                    finish_batches(stopped)
            assert Counter(store.runs.get(id).state for id in ids) == {"done": runs}
            ended = {id: store.runs.get(id) for id in ids}
            for victim in stopped:  # they are woken when others have done their runs
                os.kill(victim, signal.SIGCONT)
            last, deadline = store.runs.submit("last", ["last"], graph="buy"), time.monotonic() + 60
            assert store.runs.wait(last.id, timeout=60).state == "done"
            while length(ledger) and time.monotonic() < deadline and not quiet(ledger):
                pass
            assert {id: store.runs.get(id) for id in ids} == ended
            assert all(len(store.runs.steps(id)) == 5 for id in ids[:: max(runs // 50, 1)])
    finally:
        for each in (*workers, *stopped):
            os.kill(each, signal.SIGKILL)
            os.waitpid(each, 0)
    assert killed == (strikes + 1) // 2
    effects = Counter(ledger.read_text().split("\n")[:-1])
    assert set(effects) == {
        f"{order} {part}" for order in (*(f"o{n}" for n in range(runs)), "last") for part in range(5)
    }
    # In doubt are only steps whose function had started: a worker that is struck has two runs at a time.
    assert sum(effects.values()) - len(effects) <= 2 * strikes


def quiet(ledger: Path) -> bool:
    """Whether nothing was written for a while: those that were woken have noticed that their claims are gone."""
    before = length(ledger)
    time.sleep(0.5)
    return length(ledger) == before


def test_a_ledger_is_written_line_by_line(tmp_path: Path) -> None:
    write_ledger(tmp_path / "l", "a")
    write_ledger(tmp_path / "l", "b")
    assert (tmp_path / "l").read_text() == "a\nb\n"
