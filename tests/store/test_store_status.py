"""Statistics of a store: how much they read, and that they count correctly."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Store
from holdfast.backends.interface import Put, Query, Row
from holdfast.backends.memory import MemoryBackend
from holdfast.backends.runtime.drivers import run
from holdfast.backends.tables import LINES
from holdfast.backends.urls import compose
from holdfast.engine.namespaces import COUNTS, line_kind, name_ranges
from holdfast.engine.row_format import Line, LineInfo, info_row

NAMES = [
    *("a", "chat-1", "zebra", "␝", "␟", "␟child", "chat-1␟child:6f", "global", "agents:x", "\U0010ffff"),
    *("␞agents:notes", "␞agents:", "␞agent:researcher", "␞global", "␞global2", "␞globa"),
    *("␞user:alice", "␞user:alice/session:s1", "␞session:s2", "␞session:s2/agent:x", "␞workflow:w/step:f"),
    *("␞tool:t", "␞hook:h", "␞custom:c", "␞hooks", "␞sessions", "␞audit", "␞", "␞zz"),
]
"""Names of all kinds, and some next to the ends of the ranges."""


def add_lines(store: Store, names: list[str], tenant: str = "") -> None:
    rows = [info_row(Line(tenant, name), LineInfo(1, 1, 1, salt=bytes(16))) for name in names]
    assert run(store._engine.context.backend.apply([Put(LINES, row) for row in rows])) is None


def expected(names: list[str]) -> dict[str, int]:
    counts = {**dict.fromkeys(COUNTS.values(), 0), **Counter(COUNTS[line_kind(name)] for name in names)}
    counts["scopes"] += counts.pop("sessions")
    return counts


def found(store: Store, **options: Any) -> dict[str, int]:
    status = store.status(**options)
    return {name: getattr(status, name) for name in ("threads", "agents", "scopes", "system")}


def test_the_ranges_make_up_all_names() -> None:
    ranges = name_ranges()
    assert (ranges[0][1], ranges[-1][2]) == ("", "")
    assert [stop for _, _, stop in ranges[:-1]] == [start for _, start, _ in ranges[1:]]
    assert all(start < stop for _, start, stop in ranges[:-1])


def test_every_kind_is_counted(store: Store) -> None:
    """By each store: by itself, or by reading."""
    add_lines(store, NAMES)
    add_lines(store, ["t1", "t2", "␞agents:x"], tenant="another")
    assert found(store) == found(store, exact=True) == expected(NAMES)
    assert store.status().complete
    assert expected(NAMES)["scopes"] >= 9


@pytest.mark.parametrize("kind", ["retry", "cache", "readonly", "write-behind", "mirror", "tiered"])
def test_compositions_count_as_the_store_inside(tmp_path: Path, kind: str) -> None:
    first, second = f"sqlite:///{tmp_path}/a.db", f"sqlite:///{tmp_path}/b.db"
    parts = {
        "write-behind": {"local": first, "remote": second},
        "mirror": {"local": first, "remote": second},
        "tiered": {"hot": first, "cold": second},
    }.get(kind, {"store": first})
    with holdfast.open(compose(kind, **parts) if "store" not in parts else first) as store:
        for name in ("a", "b"):
            store.thread(name).put({})
    with holdfast.open(compose(kind, **parts)) as store:
        assert run(store._engine.context.backend.count_rows([])) == []
        assert store.status().threads == 2


class Counted(MemoryBackend):
    """Counts the rows that are read."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = 0

    async def read(self, queries: list[Query]) -> list[list[Row]]:  # type: ignore[override]
        rows = await super().read(queries)
        self.rows += sum(map(len, rows))
        return rows


class Uncounting(Counted):
    """A store that cannot count, such as files."""

    async def count_rows(self, scans: object) -> None:  # type: ignore[override]
        """Cannot."""


def opened(backend: MemoryBackend) -> Store:
    from holdfast.engine.context import EngineContext
    from holdfast.engine.engine import Engine

    return Store(Engine(EngineContext(backend)), "")


def rows_read(backend: Counted, call: Callable[[], object]) -> int:
    before = backend.rows
    call()
    return backend.rows - before


def test_what_is_read_does_not_grow(tmp_path: Path) -> None:
    backend = Uncounting()
    store = opened(backend)
    for start in range(0, 3_000, 1_000):
        add_lines(store, [f"t{n}" for n in range(start, start + 1_000)])
        add_lines(store, ["␞agents:x"])
        assert rows_read(backend, store.status) <= 1_001
    status = store.status()
    assert (status.threads + status.agents, status.complete) == (1_000, False)
    status = store.status(exact=True)
    assert (status.threads, status.agents, status.complete) == (3_000, 1, True)
    assert rows_read(backend, lambda: store.status(exact=True)) == 3_001


def test_sqlite_reads_no_rows_to_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with holdfast.open(f"sqlite:///{tmp_path}/a.db") as store:
        add_lines(store, [f"t{n}" for n in range(5_000)])
        backend = store._engine.context.backend
        read: list[Query] = []
        plain = type(backend).read

        async def noted(self: object, queries: list[Query]) -> list[list[Row]]:
            read.extend(query for query in queries if query.space is LINES)
            return await plain(backend, queries)

        monkeypatch.setattr(type(backend), "read", noted)
        assert store.status().threads == 5_000
        assert read == []
        assert store.threads(limit=1)
        assert read, "the test would notice"
