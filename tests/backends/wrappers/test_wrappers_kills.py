"""Processes that are killed in the middle of copying: nothing that was acknowledged is lost, nothing is made twice."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from holdfast.backends.conformance.processes import KILLED
from holdfast.backends.runtime.drivers import run
from holdfast.backends.tables import NODES
from tests.backends.wrappers.pairs import contents_at, files, opened, pair_url, settled
from tests.support.kills import count_kill

WRITER = """
import sys
from holdfast.backends.interface import Create, Delete, Put, Row
from holdfast.backends.tables import NODES, STEPS
from holdfast.backends.runtime.drivers import run
from holdfast.backends.conformance.rows import row_of, step
from tests.backends.wrappers.pairs import opened

url, writer = sys.argv[1:]
store = opened(url)
print("ready", flush=True)
for n in range(100_000):
    # A row that is there once, and one that moves on: an entry made twice or left out would show.
    changes = [Create(NODES, row_of(NODES, "t", writer, 0, b"%08d" % n, body=b"x" * (n * 37 % 3000)))]
    changes += [Delete(STEPS, step(n - 1, line=writer).key)] if n else []
    assert run(store.apply([*changes, Create(STEPS, step(n, line=writer))])) is None
    print(n, flush=True)
"""


def killed(url: str, writer: str, after: int, rng: random.Random) -> int:
    """The last number that a process said before it was killed."""
    with subprocess.Popen([sys.executable, "-c", WRITER, url, writer], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        last = -1
        for _ in range(after):
            last = int(process.stdout.readline())
        time.sleep(rng.random() * 0.005)
        process.kill()
        rest = process.stdout.read()
    assert process.returncode == KILLED, "it ended before it was killed"
    count_kill()
    said = rest[: rest.rfind("\n") + 1].split()
    return int(said[-1]) if said else last


def kill_and_look(folder: Path, kind: str, rounds: int, seed: int) -> None:
    rng = random.Random(seed)
    url = pair_url(folder, kind)
    local, remote = files(folder)
    expected: dict[str, int] = {}
    for number in range(rounds):
        writer = f"w{number:03}"
        expected[writer] = killed(url, writer, rng.randrange(1, 40), rng)
        if kind == "mirror":
            # Also before anything was caught up: the copy has what was acknowledged.
            _has(remote, expected, at_least=True)
        if rng.random() < 0.5:
            store = opened(url)
            settled(store)
            run(store.close())
            assert contents_at(remote) == contents_at(local)
    store = opened(url)
    settled(store)
    assert run(store.check()) == []
    run(store.close())
    assert contents_at(remote) == contents_at(local)
    _has(remote, expected, at_least=False)


def _has(url: str, expected: dict[str, int], *, at_least: bool) -> None:
    found = contents_at(url)
    for writer, last in expected.items():
        numbers = [int(bytes(str(row.key[3]), "latin1")[2:-1]) for row in found[NODES.name] if row.key[1] == writer]
        steps = [row.key[3] for row in found["steps"] if row.key[1] == writer]
        assert numbers == list(range(len(numbers)))
        assert steps == [len(numbers) - 1]
        assert len(numbers) - 1 >= last, "acknowledged, and not there"
        assert at_least or len(numbers) - 1 <= last + 1


@pytest.mark.nightly
@pytest.mark.parametrize("kind", ["write-behind", "mirror"])
@pytest.mark.parametrize("rounds", [2, pytest.param(20, marks=pytest.mark.nightly)])
def test_nothing_is_lost_when_a_process_is_killed(tmp_path: Path, kind: str, rounds: int) -> None:
    kill_and_look(tmp_path, kind, rounds, seed=1)


@pytest.mark.torture
@pytest.mark.parametrize("kind", ["write-behind", "mirror"])
def test_nothing_is_lost_in_a_hundred_kills(tmp_path: Path, kind: str) -> None:
    kill_and_look(tmp_path, kind, rounds=200, seed=2)
