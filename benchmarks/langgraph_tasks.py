"""Many asyncio tasks on one file, each with a thread of its own."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Any

from langchain_core.runnables import RunnableConfig

from benchmarks.langgraph_checks import check_messages
from benchmarks.langgraph_log import counted
from benchmarks.langgraph_savers import ASYNC_SAVERS, ASYNC_SQLITE, ON_DISK, OURS, REFERENCE, Saver
from benchmarks.langgraph_work import Line, Put, chat
from benchmarks.measure import Cost, Figure, Meter, Result, Row, missing, turns
from benchmarks.store_cases import folder

_TASKS = 64
_ROUNDS = 20
_REPEATS = 3
_CALLS = 2 * _TASKS * _ROUNDS


def _states() -> list[dict[str, Any]]:
    """A small agent's: two messages more each step, of which it keeps the last four."""
    messages = chat(_ROUNDS + 2)
    return [{"messages": messages[2 * turn : 2 * turn + 4], "step": turn, "next": "agent"} for turn in range(_ROUNDS)]


class _Agents:
    """The tasks, each with all that it will put."""

    def __init__(self, saver: Saver) -> None:
        self._saver = saver
        self._states = _states()
        self._lines = [Line(saver, f"agent {number}") for number in range(_TASKS)]
        self._plans = [
            [(line.next(state, "messages", "step"), line.config) for state in self._states] for line in self._lines
        ]

    async def work(self) -> None:
        await asyncio.gather(*map(self._task, self._plans))

    async def _task(self, plan: list[tuple[Put, RunnableConfig]]) -> None:
        for turn, (put, stored) in enumerate(plan):
            await self._saver.aput(*put)
            writes = [("messages", [self._states[turn]["messages"][-1]]), ("next", "agent")]
            await self._saver.aput_writes(stored, writes, f"task {turn}")

    async def check(self, fresh: bool) -> None:
        task = f"task {_ROUNDS - 1}"
        for line in self._lines:
            found = await self._saver.aget_tuple(line.config)
            assert found is not None
            assert found.pending_writes is not None
            assert [write[:2] for write in found.pending_writes] == [(task, "messages"), (task, "next")]
            if fresh:
                check_messages(found.checkpoint["channel_values"]["messages"], self._states[-1]["messages"])


async def _timed(name: str, path: str) -> Cost:
    async with ASYNC_SAVERS[name](path) as saver:
        agents = _Agents(saver)
        with Meter() as meter:
            await agents.work()
        await agents.check(fresh=name != REFERENCE)
    return meter.cost


async def _counted(name: str, path: str) -> int:
    async with ASYNC_SAVERS[name](path) as saver:
        agents = _Agents(saver)
        with counted(path) as count:
            await agents.work()
    return count.commits


_MEMORY = Path("/dev/shm")
"""Where flushing costs nothing, and only the work of the processor is left."""


def _compare(place: str) -> tuple[dict[str, Cost], dict[str, float]]:
    """The best run of each saver, in turns, and how many calls a second that is."""
    best: dict[str, Cost] = {}
    for number, name in enumerate(turns(ASYNC_SAVERS, _REPEATS)):
        taken = asyncio.run(_timed(name, f"{place}/{number}.db"))
        best[name] = min(best.get(name, taken), taken)
    return best, {name: _CALLS / each.wall * 1000 for name, each in best.items()}


def tasks_on_one_file() -> Result:
    """64 asyncio tasks that put checkpoints and writes, on 64 threads of one file"""
    with folder() as place:
        best, rates = _compare(place)
        commits = {name: asyncio.run(_counted(name, f"{place}/{name}.db")) for name in best if name in ON_DISK}
    ours, theirs = rates[OURS], rates[ASYNC_SQLITE]
    note = f"{ours:,.0f} calls a second against {theirs:,.0f}"
    figure = Figure("64 tasks: calls, Holdfast / AsyncSqliteSaver", ours / theirs, "x", 1.1, None, note, goal=2)
    rows = [
        Row(
            "64 tasks, aput and aput_writes, per call",
            name,
            each.wall / _CALLS,
            each.cpu / _CALLS,
            None if each.written is None else each.written / _CALLS,
            commits[name] / _CALLS if name in commits else None,
        )
        for name, each in best.items()
    ]
    return Result([figure], rows)


def tasks_on_one_file_in_memory() -> Result:
    """The same 64 tasks on a file in a memory file system, where nobody waits for a disk"""
    what = "64 tasks in a memory file system: calls, Holdfast / AsyncSqliteSaver"
    if not _MEMORY.is_dir():
        return Result([missing(what, f"there is no {_MEMORY}")])
    with tempfile.TemporaryDirectory(dir=_MEMORY, prefix="holdfast-bench-") as place:
        best, rates = _compare(place)
    ours, theirs = rates[OURS], rates[ASYNC_SQLITE]
    note = f"{ours:,.0f} calls a second against {theirs:,.0f}"
    rows = [
        Row("64 tasks in a memory file system, per call", name, each.wall / _CALLS, each.cpu / _CALLS)
        for name, each in best.items()
    ]
    return Result([Figure(what, ours / theirs, "x", 0.5, None, note, goal=1)], rows)


CASES = (tasks_on_one_file, tasks_on_one_file_in_memory)
