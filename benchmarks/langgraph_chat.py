"""A chat of 500 turns, the savers side by side: what each adds to LangGraph's own time, and what it leaves on disk."""

from __future__ import annotations

import gc
import itertools
import statistics
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

from langgraph.checkpoint.base import CheckpointTuple
from langgraph.checkpoint.sqlite import SqliteSaver

import holdfast
from benchmarks.langgraph_checks import check_messages, check_saver
from benchmarks.langgraph_log import counted
from benchmarks.langgraph_savers import MEMORY, ON_DISK, OURS, REFERENCE, SAVERS, SQLITE, disk
from benchmarks.langgraph_work import DOCUMENT, Chat, thread
from benchmarks.measure import Cost, Curve, Figure, Job, Meter, Result, Row, cost, costs, turns, typical
from benchmarks.store_cases import folder
from holdfast.interfaces.langgraph.databases import export_database, import_database

_TURNS = 500
_THREAD = "chat"
"""The thread of it; another one is that of a check of the saver."""
_BLOCK = 25
"""Turns that one saver makes before it is the next one's turn: noise shall hit all alike."""

_HISTORY = 20


class _Run:
    """One saver's chat, with what each turn took."""

    def __init__(self, name: str, path: str) -> None:
        self.name, self.path = name, path
        self.costs: list[Cost] = []
        self.sizes: list[float] = []
        self._open = ExitStack()
        saver = self._open.enter_context(SAVERS[name](path))
        if name != REFERENCE:
            check_saver(saver)
        self.chat = Chat(saver, _TURNS)

    def block(self) -> None:
        gc.collect()
        self.costs += [cost(self.chat.turn) for _ in range(_BLOCK)]
        self.sizes.append(disk(self.path))

    def get_state(self) -> dict[str, Any]:
        values: dict[str, Any] = self.chat.graph.get_state(self.chat.config).values
        return values

    def get_history(self) -> list[Any]:
        return list(self.chat.graph.get_state_history(self.chat.config, limit=_HISTORY))

    def check(self) -> None:
        values = self.get_state()
        if self.name == REFERENCE:
            assert values["messages"] == self.chat.messages
        else:
            check_messages(values["messages"], self.chat.messages)
            check_messages(self.get_state()["messages"], values["messages"])
        assert values["document"] == DOCUMENT
        # A turn makes three checkpoints: one before the question, one with it, and one with the answer.
        lengths = [len(snapshot.values.get("messages", [])) for snapshot in self.get_history()]
        assert lengths == [2 * _TURNS - 2 * (back // 3) - back % 3 for back in range(_HISTORY)]

    def close(self) -> None:
        self._open.close()

    @property
    def wall(self) -> float:
        return sum(each.wall for each in self.costs)

    @property
    def cpu(self) -> float:
        return sum(each.cpu for each in self.costs)

    def written(self, start: int, stop: int) -> float | None:
        """Bytes per turn, in the mean over these turns."""
        sizes = [each.written for each in self.costs[start:stop] if each.written is not None]
        return statistics.mean(sizes) if sizes else None

    def curves(self) -> list[Curve]:
        ends = [float(turn) for turn in range(_BLOCK, _TURNS + 1, _BLOCK)]
        found = [Curve("milliseconds per turn", self.name, ends, self.medians())]
        if self.name in ON_DISK:
            found.append(Curve("bytes on disk, with the log", self.name, ends, self.sizes))
        return found

    def medians(self) -> list[float]:
        """The median time of each block of turns, in milliseconds."""
        return [statistics.median(each.wall for each in block) for block in self._blocks()]

    def means(self) -> list[float]:
        """The mean CPU time of each block of turns, in milliseconds."""
        return [statistics.mean(each.cpu for each in block) for block in self._blocks()]

    def _blocks(self) -> list[list[Cost]]:
        return [self.costs[start : start + _BLOCK] for start in range(0, _TURNS, _BLOCK)]


def _commits(name: str, path: str) -> float | None:
    """Commits per turn, in a short chat of its own."""
    if name not in ON_DISK:
        return None
    with SAVERS[name](path) as saver:
        chat = Chat(saver, 12)
        chat.turn()
        with counted(path) as count:
            for _ in range(10):
                chat.turn()
    return count.commits / 10


def _reopened(name: str, path: str, action: Callable[[Chat], object]) -> Job:
    """Open the saver anew, read, and close."""

    def job() -> None:
        with SAVERS[name](path) as saver:
            action(Chat(saver, 0))

    return job


def _state(chat: Chat) -> object:
    return chat.graph.get_state(chat.config)


def _history(chat: Chat) -> object:
    return list(chat.graph.get_state_history(chat.config, limit=_HISTORY))


def _reading(
    what: str, jobs: dict[str, Job], rounds: int, floor: float | None = None, goal: float | None = None
) -> Figure:
    # Not the best of many: collecting garbage belongs to what reading costs an application.
    taken = {name: typical(found).wall for name, found in costs(jobs, rounds).items()}
    note = ", ".join(f"{name} {each:.1f} ms" for name, each in taken.items())
    ratio = taken[SQLITE] / taken[OURS]
    return Figure(f"chat: {what}, SqliteSaver / Holdfast", ratio, "x", floor, None, note, goal)


def chat_of_500_turns() -> Result:
    """A chat of 500 turns, with every saver"""
    with folder() as place:
        runs = {name: _Run(name, f"{place}/{name}.db") for name in SAVERS}
        for name in turns(runs, _TURNS // _BLOCK):
            runs[name].block()
        for run in runs.values():
            run.check()
        figures = _added(runs)
        warm = {name: run for name, run in runs.items() if name != REFERENCE}
        figures += [
            _reading("get_state", {name: run.get_state for name, run in warm.items()}, 15, 3.5),
            _reading("20 steps of history", {name: run.get_history for name, run in warm.items()}, 5, 4),
        ]
        for run in runs.values():
            run.close()
        sizes = {name: disk(run.path) for name, run in runs.items() if name in ON_DISK}
        note = ", ".join(f"{name} {size / 1e6:.2f} MB" for name, size in sizes.items())
        ratio = sizes[SQLITE] / sizes[OURS]
        figures.append(Figure("chat: disk, SqliteSaver / Holdfast", ratio, "x", 250, None, note, goal=400))
        for what, action, rounds in (("get_state", _state, 7), ("20 steps of history", _history, 3)):
            jobs = {name: _reopened(name, runs[name].path, action) for name in sizes}
            figures.append(_reading(f"open and {what}", jobs, rounds))
        rows = [
            Row(
                "chat of 500 turns, per turn",
                name,
                run.wall / _TURNS,
                run.cpu / _TURNS,
                run.written(0, _TURNS),
                _commits(name, f"{place}/{name}-counted.db"),
                sizes.get(name),
            )
            for name, run in runs.items()
        ]
        there, row_there = _imported(runs[SQLITE].path, f"{place}/imported.db")
        back, row_back = _exported(f"{place}/imported.db", f"{place}/exported.db", runs[SQLITE].path)
    curves = [curve for run in runs.values() for curve in run.curves()]
    return Result([*figures, there, back], [*rows, row_there, row_back], curves)


def _imported(theirs: str, ours: str) -> tuple[Figure, Row]:
    """Import the database of SqliteSaver, which compares each checkpoint."""
    with Meter() as meter, holdfast.open(ours) as store:
        report = import_database(store, theirs, [_THREAD])
    assert (report.threads, report.checkpoints) == (1, 3 * _TURNS)
    note = f"{report.checkpoints} checkpoints in {meter.cost.wall / 1000:.0f} s, {meter.cost.cpu / 1000:.0f} s of CPU"
    figure = Figure("chat: disk, SqliteSaver / its import", disk(theirs) / disk(ours), "x", 250, None, note, goal=400)
    wall, cpu = (each / report.checkpoints for each in (meter.cost.wall, meter.cost.cpu))
    return figure, Row("import of the chat, per checkpoint", OURS, wall, cpu, disk=disk(ours))


def _exported(ours: str, new: str, theirs: str) -> tuple[Figure, Row]:
    """Export it back, and have LangGraph's saver read each checkpoint of both databases."""
    with Meter() as meter, holdfast.open(ours) as store:
        count = export_database(store, new, ())
    with SqliteSaver.from_conn_string(theirs) as one, SqliteSaver.from_conn_string(new) as other:
        saved = zip(one.list(thread(_THREAD)), other.list(None), strict=True)
        equal = sum(_comparable(each) == _comparable(found) for each, found in saved)
    assert equal == count == 3 * _TURNS, f"{equal} of {count} checkpoints are as they were"
    note = f"{count} checkpoints in {meter.cost.wall / 1000:.0f} s, {meter.cost.cpu / 1000:.0f} s of CPU, each equal"
    figure = Figure("chat: disk, SqliteSaver / its export back", disk(theirs) / disk(new), "x", 0.9, None, note)
    wall, cpu = (each / count for each in (meter.cost.wall, meter.cost.cpu))
    return figure, Row("export of the chat, per checkpoint", OURS, wall, cpu, disk=disk(new))


def _comparable(saved: CheckpointTuple) -> tuple[Any, ...]:
    return (*saved[:4], sorted(saved.pending_writes or (), key=repr))


def _slope(xs: Sequence[float], ys: Sequence[float]) -> tuple[float, float]:
    """The line through most of these points: the median of all slopes (Theil and Sen), so that bursts don't bend it."""
    pairs = itertools.combinations(zip(xs, ys, strict=True), 2)
    slope = statistics.median((later[1] - earlier[1]) / (later[0] - earlier[0]) for earlier, later in pairs)
    return slope, statistics.median(y - slope * x for x, y in zip(xs, ys, strict=True))


def _added(runs: dict[str, _Run]) -> list[Figure]:
    own, ours = runs[REFERENCE], runs[OURS]
    figures = []
    for name, floor, goal in ((SQLITE, 2.4, 4.0), (MEMORY, 1.35, 2.5)):
        theirs = runs[name].wall - own.wall, runs[name].cpu - own.cpu
        mine = ours.wall - own.wall, ours.cpu - own.cpu
        note = f"{theirs[0] / 1000:.2f} s against {mine[0] / 1000:.2f} s, LangGraph's own {own.wall / 1000:.2f} s"
        figures.append(Figure(f"chat: {name} adds / Holdfast adds", theirs[0] / mine[0], "x", floor, None, note, goal))
        note = f"{theirs[1] / 1000:.2f} s against {mine[1] / 1000:.2f} s"
        figures.append(Figure(f"chat: CPU {name} adds / Holdfast adds", theirs[1] / mine[1], "x", None, None, note))
    # By CPU, and means: flushing does not depend on the length, and collecting garbage does.
    beyond = [mine - theirs for mine, theirs in zip(ours.means(), own.means(), strict=True)]
    held = [2.0 * (start + _BLOCK / 2) for start in range(0, _TURNS, _BLOCK)]
    slope, base = _slope(held, beyond)
    note = f"and {base:.2f} ms per turn"
    figures.append(Figure("chat: CPU added per turn and message held", slope * 1000, "µs", None, 15, note, goal=10))
    early, late = ours.written(100, 200), ours.written(_TURNS - 100, _TURNS)
    if early is not None and late is not None:
        note = f"{late / 1000:.1f} KB a turn against {early / 1000:.1f} KB"
        figures.append(Figure("chat: bytes written, turns 400-500 / 100-200", late / early, "x", None, 1.2, note))
    return figures


CASES = (chat_of_500_turns,)
