"""Many processes on one store: nothing of what they did is lost, and those who touch different keys never meet."""

from __future__ import annotations

import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

import holdfast
from tests.servers.places import place
from tests.support.nightly import mostly_nightly


def at_once(url: str, what: str, processes: int, count: int) -> None:
    """Run so many processes, from the same moment on."""
    pipe = subprocess.PIPE
    command = [sys.executable, "-m", "tests.state.state_worker", url, what]
    with ExitStack() as stack:
        workers = [
            stack.enter_context(subprocess.Popen([*command, f"p{n}", str(count)], stdin=pipe, stdout=pipe, text=True))
            for n in range(processes)
        ]
        for worker in workers:
            assert worker.stdout is not None
            assert worker.stdout.readline() == "ready\n"
        for worker in workers:
            assert worker.stdin is not None
            worker.stdin.write("go\n")
            worker.stdin.flush()
        for worker in workers:
            worker.wait()
        assert [worker.returncode for worker in workers] == [0] * processes


@pytest.mark.parametrize(
    ("kind", "processes", "count"),
    mostly_nightly(
        [("sqlite", 2, 10), ("postgres", 2, 10), ("sqlite", 16, 6), ("postgres", 4, 6)],
        daily=[("sqlite", 2, 10)],
    ),
)
def test_a_counter_loses_nothing(kind: str, processes: int, count: int, tmp_path: Path) -> None:
    url = place(kind, tmp_path)
    with holdfast.open(url) as store:
        at_once(url, "count", processes, count)
        state = store.state(workflow="w")
        assert state["counter"] == processes * count
        assert [past.version for past in state.history(limit=1000)] == list(range(processes * count, 0, -1))
        assert store.maintenance.verify().findings == []


@pytest.mark.parametrize(
    ("kind", "processes", "count"),
    mostly_nightly([("sqlite", 4, 15), ("postgres", 2, 10), ("postgres", 4, 15)], daily=[("postgres", 2, 10)]),
)
def test_different_keys_of_one_scope_never_conflict(kind: str, processes: int, count: int, tmp_path: Path) -> None:
    url = place(kind, tmp_path)
    with holdfast.open(url) as store:
        at_once(url, "keys", processes, count)
        assert dict(store.state(workflow="w")) == {f"p{n}": count - 1 for n in range(processes)}
        assert len(store.state(workflow="w").history(limit=1000)) == processes * count
