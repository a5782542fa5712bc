"""Limits for all workers of a tenant: how many runs of a graph, or of all, are done at a time.

A limit is a row among those that lead to runs, and what counts are the rows of runs that workers have. Whoever begins
a run that a limit is for counts them, and changes the row of the limit on condition that nobody else did meanwhile. So
nothing is to be given back: a run that ends, or is queued again since its worker died, does not count any more.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import msgspec

from holdfast.agents.runs.record import place_scan
from holdfast.backends.interface import Change, Delete, Expect, Put, Row
from holdfast.backends.tables import JOBS, Key
from holdfast.engine.context import EngineContext
from holdfast.engine.optimistic import Attempts
from holdfast.engine.run_rows import BUSY, LIMIT, RECORD, graph_digest, run_place

ALL = ""
"""Stands for all graphs and workflows: no graph has an empty name."""


class RunLimit(msgspec.Struct, frozen=True):
    """A limit for all workers of a tenant."""

    graph: str
    """Of which graph or workflow; empty, if of all."""
    most: int
    running: int
    """How many are being done now, those included that programs do themselves."""


class StoredLimit(NamedTuple):
    """A limit as it is stored. Its version changes whenever it lets a run begin."""

    graph: str
    most: int
    version: int

    @classmethod
    def of(cls, row: Row) -> StoredLimit:
        """Return the limit in a row."""
        _, graph, _, most, version = row.columns
        return cls(str(graph), int(most), int(version))

    def key(self, tenant: str) -> Key:
        """Return the key of the row."""
        return run_place(tenant, LIMIT, graph_digest(self.graph))

    def replaced(self, tenant: str, most: int) -> list[Change]:
        """Return the changes that store it anew, unless it was changed meanwhile."""
        key = self.key(tenant)
        before = self._columns if self.version else None
        return [
            Expect(JOBS, key, before),
            Put(JOBS, Row(key, self._replace(most=most, version=self.version + 1)._columns)),
        ]

    @property
    def _columns(self) -> tuple[str, str, str, int, int]:
        return (RECORD, self.graph, "", self.most, self.version)


class NoRoom(Exception):
    """So many runs are being done as a limit allows."""

    def __init__(self, graph: str) -> None:
        super().__init__(graph)
        self.graph = graph
        """For which graph the limit is."""


async def find_room(context: EngineContext, tenant: str, graph: str) -> list[Change]:
    """Return the changes by which limits let a run of a graph begin. `NoRoom` if one does not."""
    limits, running = await _read(context, tenant)
    changes: list[Change] = []
    for limit in limits:
        if limit.graph not in (graph, ALL):
            continue
        if _count(running, limit.graph) >= limit.most:
            raise NoRoom(limit.graph)
        changes += limit.replaced(tenant, limit.most)
    return changes


async def list_limits(context: EngineContext, tenant: str) -> list[RunLimit]:
    """Return the limits of a tenant, and how many runs count."""
    limits, running = await _read(context, tenant)
    found = [RunLimit(each.graph, each.most, _count(running, each.graph)) for each in limits]
    return sorted(found, key=lambda each: each.graph)


async def set_limit(context: EngineContext, tenant: str, graph: str, most: int | None) -> None:
    """Set or remove the limit for a graph."""
    attempts = Attempts("limiting runs", f"graph {graph!r}", context.metrics)
    while True:
        await attempts.begin()
        limits, _ = await _read(context, tenant)
        before = next((each for each in limits if each.graph == graph), StoredLimit(graph, 0, 0))
        if most is None:
            batch: list[Change] = [Delete(JOBS, before.key(tenant))]
        else:
            batch = before.replaced(tenant, most)
        if await context.backend.apply(batch) is None:
            return


async def _read(context: EngineContext, tenant: str) -> tuple[list[StoredLimit], Counter[str]]:
    """Return the limits of a tenant, and how many runs of each graph workers and programs have."""
    busy = place_scan(tenant, BUSY, "", None)._replace(bodies=False)
    rows, held = await context.backend.read([place_scan(tenant, LIMIT, "", None), busy])
    return [StoredLimit.of(row) for row in rows], Counter(str(row.columns[1]) for row in held)


def _count(running: Counter[str], graph: str) -> int:
    return running.total() if graph == ALL else running[graph]
