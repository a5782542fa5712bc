"""The core of the codec in Python and the native one, beside each other: CPU of calls and of chats, in processes that
take turns; and how many of its calls the native one leaves to Python."""

from __future__ import annotations

import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
from typing import Any

from benchmarks.call_costs import IN_MEMORY, measure_calls
from benchmarks.langgraph_savers import OURS, SAVERS
from benchmarks.langgraph_work import Chat
from benchmarks.measure import Figure, Result, Table, cost, missing, turns
from holdfast._core import NATIVE, PYTHON, native

_ROOT = pathlib.Path(__file__).resolve().parents[1]
_ROUNDS = 3
_TURNS = 150
_DECLINED = 0.01
"""The most of its calls that the native core may leave to the one in Python."""


def calls_of_both_cores() -> Result:
    """CPU of calls and of a chat with the native core, beside the one in Python"""
    if native is None:
        return Result([missing("cores: CPU, python / native", "the native core was not built")])
    runs: dict[str, list[dict[str, Any]]] = {PYTHON: [], NATIVE: []}
    for name in turns(runs, _ROUNDS):
        runs[name].append(_measure_apart(name))
    taken = {
        name: {call: statistics.median(each["cpu"][call] for each in found) for call in found[0]["cpu"]}
        for name, found in runs.items()
    }
    ratios = {call: taken[PYTHON][call] / taken[NATIVE][call] for call in taken[NATIVE]}
    rows = [
        (call, [f"{taken[PYTHON][call]:.0f}", f"{taken[NATIVE][call]:.0f}", f"{ratio:.2f}"])
        for call, ratio in ratios.items()
    ]
    worst = min(ratios, key=ratios.__getitem__)
    calls = [[sum(each[place] for each in run["counts"]) for place in (1, 2)] for run in runs[NATIVE]]
    share = max(declined / made for made, declined in calls)
    note = f"{calls[-1][1]} of {calls[-1][0]}"
    figures = [
        Figure("cores: CPU, python / native", ratios[worst], "x", 0.7, None, f"worst: {worst}"),
        Figure("cores: calls in a chat that the native one declines", share, "", None, _DECLINED, note),
    ]
    return Result(figures, tables=[Table("CPU in µs", [PYTHON, NATIVE, "python / native"], rows)])


def _measure_apart(core: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.cores"]
    environment = {**os.environ, "HOLDFAST_CORE": core}
    ran = subprocess.run(command, cwd=_ROOT, env=environment, capture_output=True, check=True, text=True)
    found: dict[str, Any] = json.loads(ran.stdout)
    return found


def _measure(folder: str) -> dict[str, Any]:
    spent = {call: cpu for call, (cpu, _) in measure_calls(folder).items()}
    before = [] if native is None else native.counts()
    with SAVERS[OURS](f"{folder}/chat.db") as saver:
        chat = Chat(saver, _TURNS)
        spent[f"turn of a chat of {_TURNS} turns, with LangGraph's own time"] = statistics.median(
            1000 * cost(chat.turn).cpu for _ in range(_TURNS)
        )
    after = [] if native is None else native.counts()
    counts = [(now[0], now[1] - then[1], now[2] - then[2]) for now, then in zip(after, before, strict=True)]
    return {"cpu": spent, "counts": counts}


CASES = (calls_of_both_cores,)

if __name__ == "__main__":
    with tempfile.TemporaryDirectory(dir=IN_MEMORY) as place:
        print(json.dumps(_measure(place)))
