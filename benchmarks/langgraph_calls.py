"""The processor time of single calls of a saver, as a graph makes them, at few messages and at many.

A turn is three `put`, two `put_writes` and one `get_tuple`. Of each the median over some turns is taken; what was read
last is kept, as programs keep the result of a run. The files are in memory where the system has such a folder: after a
flush the caches of the processor are cold, for as long as the disk is slow.
"""

from __future__ import annotations

import pathlib
import statistics
import tempfile
import time
import uuid
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from benchmarks.langgraph_savers import OURS, SAVERS, SQLITE, Saver
from benchmarks.langgraph_work import Line, chat
from benchmarks.measure import Figure, Result, Table, turns

_IN_MEMORY = pathlib.Path("/dev/shm")
_TURNS = 24
_CALLS = ("put", "put_writes", "get_tuple")
_SHORT, _FEW, _MANY = 10, 20, 300

_WANTED = {("put", _FEW): 0.35, ("put_writes", _FEW): 0.18, ("get_tuple", _MANY): 1.3}
"""Milliseconds of CPU on the machine that the figures were first taken on, when nothing else runs on it."""

_BUSY = 3
"""How many times as long it may take: processor time on a machine that is shared is not that of a quiet one."""


class _Thread:
    """A thread with some messages, whose turns are taken call by call."""

    def __init__(self, saver: Saver, count: int) -> None:
        self._saver = saver
        self._messages = chat(count // 2 + 2 * _TURNS)
        self._line = Line(saver, f"{count} messages")
        self._kept: Any = None
        self.spent: dict[str, list[float]] = {call: [] for call in _CALLS}
        self.turns: list[float] = []
        self._line.put({"messages": self._messages[:count]}, "messages")

    def _timed(self, call: str, function: Callable[..., Any], *arguments: Any) -> Any:
        start = time.thread_time_ns()
        result = function(*arguments)
        self.spent[call].append((time.thread_time_ns() - start) / 1e6)
        return result

    def _write(self, channel: str, message: Any, node: str) -> None:
        writes = [(channel, [message]), ("branch:to:answer", None)]
        task = str(uuid.uuid4())
        self._timed("put_writes", self._saver.put_writes, self._line.config, writes, task, f"~__pregel_pull, {node}")

    def turn(self) -> None:
        before = sum(map(sum, self.spent.values()))
        self._turn()
        self.turns.append(sum(map(sum, self.spent.values())) - before)

    def _turn(self) -> None:
        latest = {"configurable": {"thread_id": self._line.config["configurable"]["thread_id"], "checkpoint_ns": ""}}
        self._kept = self._timed("get_tuple", self._saver.get_tuple, latest)
        held = self._kept.checkpoint["channel_values"]["messages"]
        question, answer = self._messages[len(held) : len(held) + 2]
        asked: dict[str, Any] = {"messages": held, "__start__": {"messages": [question]}}
        self._timed("put", self._saver.put, *self._line.next(asked, "__start__"))
        self._write("messages", question, "__start__")
        known: dict[str, Any] = {"messages": [*held, question], "branch:to:answer": None}
        self._timed("put", self._saver.put, *self._line.next(known, *known))
        self._write("messages", answer, "answer")
        self._timed("put", self._saver.put, *self._line.next({"messages": [*held, question, answer]}, "messages"))


def saver_calls() -> Result:
    """CPU of put, put_writes and get_tuple at 10, 20 and 300 messages, beside SqliteSaver"""
    figures, rows = [], []
    with tempfile.TemporaryDirectory(dir=_IN_MEMORY if _IN_MEMORY.exists() else None) as place, ExitStack() as stack:
        savers = {name: stack.enter_context(SAVERS[name](f"{place}/{name}.db")) for name in (OURS, SQLITE)}
        for count in (_SHORT, _FEW, _MANY):
            threads = {name: _Thread(saver, count) for name, saver in savers.items()}
            for name in turns(threads, _TURNS):
                threads[name].turn()
            if count == _SHORT:
                ours, theirs = (statistics.median(threads[name].turns) for name in (OURS, SQLITE))
                note = f"{theirs:.1f} ms against {ours:.1f} ms"
                name = f"thread of {count} messages: CPU of a turn, SqliteSaver / Holdfast"
                figures.append(Figure(name, theirs / ours, "x", 0.5, None, note, goal=1.2))
            for call in _CALLS:
                ours, theirs = (statistics.median(threads[name].spent[call]) for name in (OURS, SQLITE))
                rows.append((f"{call}, {count} messages", [f"{ours:.2f}", f"{theirs:.2f}"]))
                wanted = _WANTED.get((call, count))
                if wanted is not None:
                    name = f"{call} at {count} messages: CPU"
                    note = f"SqliteSaver {theirs:.2f} ms"
                    figures.append(Figure(name, ours, "ms", None, _BUSY * wanted, note, goal=wanted))
    return Result(figures, tables=[Table("CPU of a saver's calls, ms", [OURS, SQLITE], rows)])


CASES = (saver_calls,)
