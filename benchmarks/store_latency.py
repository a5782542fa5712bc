"""How long appending and reading take on every store, warm and cold; and what readable rows cost."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import TypeVar

import holdfast
from benchmarks.langgraph_work import chat
from benchmarks.measure import Figure, Result, Table, missing, turns
from benchmarks.servers import STORES, Missing, Place

T = TypeVar("T")

_MESSAGES = 200
_WARM = 100
_COLD = 12


class _Agent:
    """A chat of 200 messages on one store, to which more come."""

    def __init__(self, place: Place, stack: ExitStack) -> None:
        self._place = place
        self._messages = chat((_MESSAGES + _WARM + _COLD) // 2 + 1)
        self._length = 0
        self._store = stack.enter_context(self._opened())
        self.times: dict[str, list[float]] = {}
        while self._length < _MESSAGES:
            self._append(self._store)

    def _append(self, store: holdfast.Store) -> None:
        self._length += 1
        store.thread("chat").put({"messages": self._messages[: self._length], "step": self._length})

    def warm(self) -> None:
        """One more, and a look, in the store that is open."""
        self._timed("append", partial(self._append, self._store))
        self._timed("read", partial(_read, self._store))

    def cold(self) -> None:
        """In stores that are opened for the purpose: new connections, and nothing remembered."""
        for what, action in (("first append", self._append), ("first read", _read)):
            gc.collect()
            with self._timed("open", self._opened) as store:
                self._timed(what, partial(action, store))

    def _opened(self) -> holdfast.Store:
        return holdfast.open(self._place.url, **self._place.options)

    def _timed(self, what: str, job: Callable[[], T]) -> T:
        start = time.perf_counter()
        result = job()
        self.times.setdefault(what, []).append((time.perf_counter() - start) * 1000)
        return result

    def median(self, what: str) -> float:
        return statistics.median(self.times[what])


def _read(store: holdfast.Store) -> object:
    return store.thread("chat").get().state


def latency_on_every_store() -> Result:
    """Appending a message and reading the latest state of a chat of 200, warm and cold, on every store"""
    figures: list[Figure] = []
    agents: dict[str, _Agent] = {}
    with ExitStack() as stack:
        for kind, opener in STORES.items():
            try:
                agents[kind] = _Agent(stack.enter_context(opener(None)), stack)
            except Missing as why:
                figures.append(missing(f"latency on {kind}", why))
        gc.collect()
        for kind in turns(agents, _WARM):
            agents[kind].warm()
        for kind in turns(agents, _COLD):
            agents[kind].cold()
    columns = ["append", "read", "open", "first append", "first read"]
    rows = [(kind, [f"{agent.median(what):.2f} ms" for what in columns]) for kind, agent in agents.items()]
    base = agents["sqlite"]
    for kind, agent in agents.items():
        if kind != "sqlite":
            taken, beside = agent.median("append"), base.median("append")
            note = f"{taken:.2f} ms against {beside:.2f} ms"
            figures.append(Figure(f"{kind}: append / on SQLite", taken / beside, "x", note=note))
    return Result(figures, tables=[Table("A chat of 200 messages on every store, medians", columns, rows)])


def readable_rows() -> Result:
    """What readable rows beside the log cost each step of a chat of 200 messages, on the stores that have them"""
    figures: list[Figure] = []
    rows = []
    for kind in ("sqlite", "postgresql", "mongodb"):
        try:
            with ExitStack() as stack:
                places = {project: stack.enter_context(STORES[kind](None)) for project in (False, True)}
                agents = {
                    project: _Agent(place._replace(options={**place.options, "project": project}), stack)
                    for project, place in places.items()
                }
                gc.collect()
                for project in turns(agents, _WARM):
                    agents[project].warm()
                sizes = {project: place.stored() for project, place in places.items()}
        except Missing as why:
            figures.append(missing(f"readable rows on {kind}", why))
            continue
        off, on = (agents[project].median("append") for project in (False, True))
        steps = _MESSAGES + _WARM
        note = f"{on:.2f} ms against {off:.2f} ms"
        figures.append(Figure(f"{kind}: append with readable rows / without", on / off, "x", note=note))
        sized = [f"{sizes[project] / steps:,.0f}" for project in (False, True)]
        rows.append((kind, [f"{off:.2f} ms", f"{on:.2f} ms", *sized]))
    columns = ["append", "with readable rows", "bytes a step", "with readable rows"]
    return Result(figures, tables=[Table("What readable rows cost", columns, rows)] if rows else [])


CASES = (latency_on_every_store, readable_rows)
