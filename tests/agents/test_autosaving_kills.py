"""A process is killed under auto-save: what is lost was done in the window; in write-through, nothing is."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import holdfast
from tests.agents.autosaved import patiently, timely

_ROUNDS = 2


def killed(url: str, settings: dict[str, Any], beat: float, seconds: float) -> list[tuple[int, float]]:
    """Have an agent work for a while, and kill it. Returns the turns that it told of, and when they were."""
    command = [sys.executable, "-m", "tests.agents.autosaved_worker", url, json.dumps(settings), str(beat)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        said = [process.stdout.readline()]  # it is under way
        time.sleep(seconds)
        process.kill()
        said += process.stdout.read().splitlines(keepends=True)
    assert process.returncode == -signal.SIGKILL, "it ended by itself"
    whole = [line.split() for line in said if line.endswith("\n")]
    return [(int(number), float(when)) for number, when in whole]


def saved(url: str) -> int:
    """How many turns are there; they are in order, and none is there twice."""
    with holdfast.open(url) as store:
        messages = store.agents.messages("a")
        assert not store.verify().findings
    assert [message["content"] for message in messages] == [str(number) for number in range(len(messages))]
    return len(messages)


@pytest.mark.parametrize(
    ("settings", "window"),
    [({"interval": 0.1, "changes": 10_000}, 0.1), ({"interval": 1000.0, "changes": 20}, 20 * 0.005)],
    ids=["by-interval", "by-changes"],
)
def test_what_is_lost_was_done_in_the_window(tmp_path: Path, settings: dict[str, Any], window: float) -> None:
    url, chance = f"sqlite:///{tmp_path}/a.db", random.Random(7)

    def lived() -> None:
        turns = killed(url, settings, 0.005, chance.uniform(1.2, 1.5))
        # A save takes a moment, and on a busy machine a thread has to wait for its turn.
        old = [number for number, when in turns if when < turns[-1][1] - window - 0.6]
        found = saved(url)
        timely(len(old) > 10, f"only {len(turns)} turns were taken")
        timely(found > old[-1], f"{found} turns are there, of {old[-1]}")

    for _ in range(_ROUNDS):
        patiently(lived)


def test_in_write_through_nothing_is_lost(tmp_path: Path) -> None:
    url, chance = f"sqlite:///{tmp_path}/a.db", random.Random(11)
    for _ in range(_ROUNDS):
        turns = killed(url, {"write_through": True}, 0.0, chance.uniform(0.05, 0.3))
        # The one that was under way may be there, and not have been told of.
        assert saved(url) - turns[-1][0] - 1 in (0, 1)
