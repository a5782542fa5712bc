"""How long a command, or a program, is at work until it has done something: most of that is importing."""

from __future__ import annotations

import os
import pathlib
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence

import holdfast
from benchmarks.measure import Figure, turns

_ROUNDS = 20

_PROGRAM = """
import sys
import holdfast
with holdfast.open(sys.argv[1]) as store:
    store.thread("another").put({"a": 1})
    assert store.thread("another").get().state == {"a": 1}
"""


def start_of_a_command() -> list[Figure]:
    """Commands that open a small SQLite store, and a program that saves and reads, beside a bare interpreter.

    It is CPU time of new processes, with compiled byte code. The goal is 0.12 s where a bare interpreter takes 18 ms.
    """
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{pathlib.Path(folder) / 'agents.db'}"
        with holdfast.open(url) as store:
            for count in range(3):
                store.thread("chat").put({"messages": [f"message {number}" for number in range(count)], "step": count})
        python = [sys.executable]
        command = [*python, "-m", "holdfast"]
        programs = {
            "bare": [*python, "-c", "pass"],
            "holdfast --version": [*command, "--version"],
            "holdfast threads": [*command, "threads", "--store", url],
            "holdfast log": [*command, "log", "chat", "--store", url],
            "open, put and get": [*python, "-c", _PROGRAM, url],
        }
        taken: dict[str, list[float]] = {name: [] for name in programs}
        for program in programs.values():
            _cpu(program)  # compiles the byte code
        for name in turns(programs, _ROUNDS):
            taken[name].append(_cpu(programs[name]))
    typical = {name: statistics.median(times) for name, times in taken.items()}
    bare = typical.pop("bare")
    bounds: dict[str, tuple[float | None, float | None]] = {
        "holdfast --version": (5, None),
        "holdfast threads": (10, 6.5),
        "holdfast log": (10.5, 6.5),
        "open, put and get": (None, None),
    }
    return [
        Figure(
            f"start: {name}, CPU / that of a bare interpreter",
            cpu / bare,
            "x",
            ceiling=bounds[name][0],
            goal=bounds[name][1],
            note=f"{cpu:.0f} ms against {bare:.0f} ms",
        )
        for name, cpu in typical.items()
    ]


def _cpu(program: Sequence[str]) -> float:
    """Milliseconds that a program is at work, not those that it waits for others."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("COV_", "COVERAGE_"))}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(program, env=environment, stdout=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) * 1000


CASES = (start_of_a_command,)
