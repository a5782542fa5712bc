"""Puts `HoldfastStore` in the place of LangGraph's stores, for LangGraph's own tests. Copied beside them."""

from __future__ import annotations

from typing import Any

import langgraph.store.memory
import langgraph.store.sqlite

import holdfast
from holdfast.langgraph import HoldfastStore


class SqliteStore(HoldfastStore):
    """The store that tests open by a path, or in memory."""

    @classmethod
    def from_conn_string(cls, conn_string: Any, **options: Any) -> Any:
        """Open a store."""
        return super().from_conn_string("memory://" if conn_string == ":memory:" else conn_string, **options)


class AsyncSqliteStore(SqliteStore):
    """The same with the names that LangGraph's async class has."""

    setup = HoldfastStore.asetup  # type: ignore[assignment]
    sweep_ttl: Any = HoldfastStore.asweep_ttl

    async def start_ttl_sweeper(self, *args: Any) -> Any:  # type: ignore[override]
        """Start the sweeper."""
        return HoldfastStore.start_ttl_sweeper(self, *args)


class InMemoryStore(HoldfastStore):
    """A store in memory."""

    def __init__(self, *, index: Any = None) -> None:
        super().__init__(holdfast.open("memory://"), index=index)


langgraph.store.sqlite.SqliteStore = SqliteStore  # type: ignore[assignment,misc]
langgraph.store.sqlite.AsyncSqliteStore = AsyncSqliteStore  # type: ignore[assignment,misc]
langgraph.store.memory.InMemoryStore = InMemoryStore  # type: ignore[assignment,misc]
