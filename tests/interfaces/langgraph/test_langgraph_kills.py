"""A graph is killed at any moment, again and again, and goes on in another process where it was."""

from __future__ import annotations

import subprocess
import sys
from itertools import count
from pathlib import Path

import pytest

from holdfast.langgraph import HoldfastSaver
from tests.agents.autosaved import patiently, timely
from tests.interfaces.langgraph.killed import JOBS, PHASES, ROUNDS, graph_on
from tests.interfaces.langgraph.sessions import on
from tests.servers.places import DURABLE, place

LOG = [
    "in",
    *(
        name
        for number in range(1, ROUNDS + 1)
        for name in (f"plan {number}", *(f"job {number}.{job}" for job in range(JOBS)), f"end {number}")
    ),
]


def told(url: str, thread: str, *more: int) -> list[list[str]]:
    """Have a graph killed in many attempts, and then run to its end. Returns what it told."""
    command = [sys.executable, "-m", "tests.interfaces.langgraph.killed", url, thread, *map(str, more)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    # A line that was cut off by a kill has the next one, which begins with a tab, right behind it.
    return [line.split("\t") for line in done.stdout.splitlines()]


NO_FORK = pytest.mark.skipif(sys.platform == "win32", reason="there is no fork")


@pytest.mark.nightly
@NO_FORK
def test_a_graph_that_is_killed_in_every_phase_goes_on(tmp_path: Path) -> None:
    url = place("sqlite", tmp_path)
    lines = told(url, "t")
    assert [what for what, *_ in lines].count("ends") == 1
    assert lines.count(["", "killed"]) == len(PHASES)
    assert check(url, "t", lines) == len(PHASES) - 1, "the first was killed before it saved anything"


@pytest.mark.nightly
@NO_FORK
@pytest.mark.parametrize(
    ("kind", "seed"),
    [("sqlite", 1), ("sqlite", 2), ("sqlite", 3), *((kind, 4) for kind in DURABLE if kind != "sqlite")],
)
def test_a_killed_graph_goes_on(tmp_path: Path, kind: str, seed: int) -> None:
    url, tries = place(kind, tmp_path), count()
    patiently(lambda: _killed(url, f"t{next(tries)}", seed, 25 if kind == "sqlite" else 8))


def _killed(url: str, thread: str, seed: int, attempts: int) -> None:
    went_on = check(url, thread, told(url, thread, seed, attempts))
    timely(went_on > 0, "it was too quick to be killed")


def check(url: str, thread: str, lines: list[list[str]]) -> int:
    """See that nothing ran again that was saved, and that all is there. Returns how many attempts went on."""
    saved: set[str] = set()
    went_on = 0
    for what, *names in lines:
        if what == "starts":
            assert saved.isdisjoint(names), f"{names} ran again after its writes were saved"
        elif what == "saved" and "killed" not in names:
            saved.update(names)
        went_on += (what, names) == ("begins", ["again"])
    assert lines[-1] == ["ends"]
    with HoldfastSaver.from_conn_string(url) as saver:
        state = graph_on(saver).get_state(on(thread))
        assert state.values == {"log": LOG, "round": ROUNDS}
        assert state.next == ()
        walked = 0
        config = state.config
        while config is not None:
            found = saver.get_tuple(config)
            assert found is not None, "a checkpoint is gone"
            config, walked = found.parent_config, walked + 1
    assert walked == 2 + ROUNDS * 3
    return went_on
