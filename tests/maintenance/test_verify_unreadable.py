"""Verifying a store some of whose rows cannot be read: that is reported, and never raised."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from holdfast.backends.interface import Get, Query, Row, Scan
from holdfast.backends.memory import MemoryBackend
from holdfast.backends.runtime.drivers import run
from holdfast.backends.runtime.memory_cache import MemoryCache
from holdfast.backends.tables import BRANCHES, FOLDS, LINES, NODES, OBJECTS, REFS, STEPS, TABLES, WRITES, Table
from holdfast.backends.wrappers import Wrapper
from holdfast.engine.context import EngineContext
from holdfast.engine.engine import Engine
from holdfast.errors import CorruptError
from holdfast.store.store import Store
from tests.support.nightly import mostly_nightly

LOG = (LINES, BRANCHES, STEPS, FOLDS, NODES, OBJECTS, WRITES, REFS)


class DamagedBackend(Wrapper):
    """Cannot answer queries of one kind about one table, from the n-th such query on."""

    def __init__(self, inner: MemoryBackend) -> None:
        super().__init__(inner)
        self.table: Table | None = None
        self.kind: type = Get
        self.first = 0
        self.struck = 0
        self._queries = 0

    def damage(self, table: Table | None, kind: type, first: int = 0) -> None:
        self.table, self.kind, self.first = table, kind, first
        self._queries = self.struck = 0

    async def read(self, queries: Sequence[Query]) -> list[list[Row]]:
        if any(query.space is self.table and isinstance(query, self.kind) for query in queries):
            self._queries += 1
            if self._queries > self.first:
                self.struck += 1
                raise CorruptError("a page is damaged")
        return await self.inner.read(queries)


@pytest.mark.parametrize("with_heads", mostly_nightly([False, True], daily=[True]), ids=["", "heads"])
def test_reads_of_any_table_may_fail_from_any_moment_on(with_heads: bool) -> None:
    backend = DamagedBackend(run(MemoryBackend.open("memory://")))
    context = EngineContext(backend, MemoryCache(1 << 20), fold_every=3, project=True)
    store = Store(Engine(context), "")
    for n in range(7):
        store.thread("t").put({"n": n, "large": [f"{n}" * 10_000]}, id=f"{n}", tag=f"v{n}")
    store.thread("t").fork("other", at="3")
    store.maintenance.build_index()
    heads = store.maintenance.heads() if with_heads else None
    assert store.maintenance.verify(level="decode", heads=heads).ok  # the control
    struck: set[tuple[str, str]] = set()
    for table in TABLES:
        for kind in (Get, Scan):
            for first in range(100):
                backend.damage(table, kind, first)
                report = store.maintenance.verify(level="decode", heads=heads)
                if not backend.struck:
                    break
                struck.add((table.name, kind.__name__))
                # What fails only later, or only by key, may have been read in another way.
                assert report.findings or first or kind is Get or table not in LOG, table.name
            else:
                pytest.fail(f"{table.name} was read endlessly")
    assert {("steps", "Scan"), ("folds", "Get"), ("lines", "Get"), ("nodes", "Get"), ("refs", "Get")} <= struck
    store.close()
