"""A process is killed during automatic saves: it loses at most the last interval, and nothing with write-through."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import pytest

import holdfast
from tests.agents.autosaved import patiently, timely
from tests.support.kills import count_kill

Turn: TypeAlias = tuple[int, float]
"""The number of a turn, and when it was taken, in seconds since 1970."""


def killed(url: str, settings: dict[str, Any], beat: float, ripe: Callable[[list[Turn]], bool]) -> list[Turn]:
    """Have an agent work until its turns are ripe, and kill it. Returns all turns that it told of."""
    command = [sys.executable, "-m", "tests.agents.autosaved_worker", url, json.dumps(settings), str(beat)]
    turns: list[Turn] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        while not (turns and ripe(turns)):
            turns.append(turn(process.stdout.readline()))
        process.kill()
        turns += [turn(line) for line in process.stdout if line.endswith("\n")]
    assert process.returncode == -signal.SIGKILL, "it ended by itself"
    count_kill()
    return turns


def turn(line: str) -> Turn:
    """Read what the worker says of a turn."""
    number, when = line.split()
    return int(number), float(when)


def at_least(count: int, turns: list[Turn]) -> bool:
    """Say whether so many turns were told of."""
    return len(turns) >= count


def saved(url: str) -> int:
    """How many turns are there; they are in order, and none is there twice."""
    with holdfast.open(url) as store:
        messages = store.agents.messages("a")
        assert not store.maintenance.verify().findings
    assert [message["content"] for message in messages] == [str(number) for number in range(len(messages))]
    return len(messages)


@pytest.mark.parametrize("rounds", [1, pytest.param(4, marks=pytest.mark.nightly)])
@pytest.mark.parametrize(
    ("settings", "window"),
    [({"interval": 0.1, "changes": 10_000}, 0.1), ({"interval": 1000.0, "changes": 20}, 20 * 0.005)],
    ids=["by-interval", "by-changes"],
)
def test_what_is_lost_was_done_in_the_window(
    tmp_path: Path, settings: dict[str, Any], window: float, rounds: int
) -> None:
    url = f"sqlite:///{tmp_path}/a.db"

    def old(turns: list[Turn]) -> list[int]:
        # A save takes a moment, and on a busy machine a thread has to wait for its turn.
        return [number for number, when in turns if when < turns[-1][1] - window - 0.6]

    def lived() -> None:
        turns = killed(url, settings, 0.005, lambda turns: len(old(turns)) > 10)
        found, last = saved(url), old(turns)[-1]
        timely(found > last, f"{found} turns are there, of {last}")

    for _ in range(rounds):
        patiently(lived)


@pytest.mark.nightly
@pytest.mark.parametrize("rounds", [2, pytest.param(10, marks=pytest.mark.nightly)])
def test_in_write_through_nothing_is_lost(tmp_path: Path, rounds: int) -> None:
    url, chance = f"sqlite:///{tmp_path}/a.db", random.Random(11)
    for _ in range(rounds):
        enough = partial(at_least, chance.randrange(5, 60))
        turns = killed(url, {"write_through": True}, 0.0, enough)
        # The one that was under way may be there, and not have been told of.
        assert saved(url) - turns[-1][0] - 1 in (0, 1)
