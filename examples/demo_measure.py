"""The demo's agent, measured: without a saver, with Holdfast, and with LangGraph's SqliteSaver."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.sqlite import SqliteSaver

from examples.demo_agent import CONFIG, ToolLog, build, task
from holdfast.langgraph import HoldfastSaver

Opened = Callable[[], AbstractContextManager[BaseCheckpointSaver[Any]]]


ROUNDS = 2
"""How often everything is measured, in turn: a machine that pauses for a moment must not decide the result."""


@dataclass
class Figures:
    """What was measured with a saver: seconds, and bytes."""

    run: float
    read: float
    size: int
    checkpoints: int


def measure(progress: Callable[[str], object]) -> tuple[float, Figures, Figures]:
    """The seconds without a saver, and the figures with Holdfast and with SqliteSaver: the best of all rounds."""
    rounds = [_round(f"run {number} of {ROUNDS}", progress) for number in range(1, ROUNDS + 1)]
    bare, ours, theirs = zip(*rounds, strict=True)
    return min(bare), _best(ours), _best(theirs)


def _round(name: str, progress: Callable[[str], object]) -> tuple[float, Figures, Figures]:
    with TemporaryDirectory() as directory:
        here = Path(directory)
        ours, theirs = here / "holdfast.db", here / "sqlite.db"
        progress(f"{name}: without a saver")
        bare = _run(None, here)
        progress(f"{name}: with Holdfast")
        holdfast = _measure(lambda: HoldfastSaver.from_conn_string(f"sqlite:///{ours.as_posix()}"), ours)
        progress(f"{name}: with SqliteSaver")
        return bare, holdfast, _measure(lambda: SqliteSaver.from_conn_string(str(theirs)), theirs)


def _best(rounds: Sequence[Figures]) -> Figures:
    return Figures(
        min(each.run for each in rounds),
        min(each.read for each in rounds),
        min(each.size for each in rounds),
        rounds[0].checkpoints,
    )


def _measure(opened: Opened, file: Path) -> Figures:
    with opened() as saver:
        run = _run(saver, file.parent)
        latest = saver.get_tuple(CONFIG)
        assert latest is not None
        checkpoints = latest.metadata["step"] + 2  # LangGraph counts them from -1
    # Closed savers leave everything in the file itself.
    return Figures(run, _read(opened), file.stat().st_size, checkpoints)


def _run(saver: BaseCheckpointSaver[Any] | None, here: Path) -> float:
    graph = build(saver, ToolLog(here / "tools.log"))
    start = time.perf_counter()
    graph.invoke(task(), CONFIG, durability=None if saver is None else "sync")
    return time.perf_counter() - start


def _read(opened: Opened) -> float:
    """The seconds to read the latest state, by a saver that has not seen it."""
    with opened() as saver:
        graph = build(saver, ToolLog(Path()))
        start = time.perf_counter()
        graph.get_state(CONFIG)
        return time.perf_counter() - start
