"""The savers that are measured. All that keep files flush every commit, or nothing here could be compared."""

from __future__ import annotations

import pathlib
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

from benchmarks.langgraph_reference import ReferenceSaver
from holdfast.langgraph import HoldfastSaver

Saver = BaseCheckpointSaver[Any]

OURS, SQLITE, MEMORY, REFERENCE = "Holdfast", "SqliteSaver", "InMemorySaver", "reference"
ASYNC_SQLITE = "AsyncSqliteSaver"

_FULL = (2,)


@contextmanager
def _holdfast(path: str) -> Iterator[Saver]:
    with HoldfastSaver.from_conn_string(f"sqlite:///{path}") as saver:
        _check_flushes(saver)
        yield saver


@contextmanager
def _sqlite(path: str) -> Iterator[Saver]:
    with SqliteSaver.from_conn_string(path) as saver:
        saver.setup()
        assert saver.conn.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert saver.conn.execute("PRAGMA synchronous").fetchone() == _FULL, "SqliteSaver does not flush every commit"
        yield saver


@contextmanager
def _memory(path: str) -> Iterator[Saver]:
    del path
    yield InMemorySaver()


@contextmanager
def _reference(path: str) -> Iterator[Saver]:
    del path
    yield ReferenceSaver()


@asynccontextmanager
async def _aholdfast(path: str) -> AsyncIterator[Saver]:
    async with HoldfastSaver.from_conn_string(f"sqlite:///{path}") as saver:
        _check_flushes(saver)
        yield saver


@asynccontextmanager
async def _asqlite(path: str) -> AsyncIterator[Saver]:
    async with AsyncSqliteSaver.from_conn_string(path) as saver:
        await saver.setup()
        for pragma, wanted in (("journal_mode", ("wal",)), ("synchronous", _FULL)):
            async with saver.conn.execute(f"PRAGMA {pragma}") as cursor:
                assert await cursor.fetchone() == wanted, "AsyncSqliteSaver does not flush every commit"
        yield saver


@asynccontextmanager
async def _areference(path: str) -> AsyncIterator[Saver]:
    del path
    yield ReferenceSaver()


def _check_flushes(saver: HoldfastSaver) -> None:
    assert saver.store._handle.engine.context.backend.capabilities.durable, "Holdfast does not flush every commit"


SAVERS: dict[str, Callable[[str], AbstractContextManager[Saver]]] = {
    OURS: _holdfast,
    SQLITE: _sqlite,
    MEMORY: _memory,
    REFERENCE: _reference,
}
"""Each opens a saver on a file of this path, if it keeps files at all."""

ASYNC_SAVERS: dict[str, Callable[[str], AbstractAsyncContextManager[Saver]]] = {
    OURS: _aholdfast,
    ASYNC_SQLITE: _asqlite,
    REFERENCE: _areference,
}

ON_DISK = (OURS, SQLITE, ASYNC_SQLITE)


def disk(path: str) -> int:
    """Bytes of a file and of the log beside it; not of the log's index, which is memory under a name."""
    return sum(each.stat().st_size for each in map(pathlib.Path, (path, f"{path}-wal")) if each.exists())
