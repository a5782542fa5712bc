"""Savers on servers: LangGraph's own, set up as their documentation says, and Holdfast on the same servers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from typing import Any

from langgraph.checkpoint.mongodb import MongoDBSaver
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from psycopg import AsyncConnection, Connection
from psycopg.rows import DictRow, dict_row
from psycopg_pool import AsyncConnectionPool, ConnectionPool
from pymongo import MongoClient

from benchmarks.langgraph_reference import ReferenceSaver
from benchmarks.langgraph_savers import OURS, REFERENCE, Saver
from holdfast.langgraph import HoldfastSaver

LOG_ONLY = "Holdfast, log only"
POSTGRES, ASYNC_POSTGRES, MONGODB = "PostgresSaver", "AsyncPostgresSaver", "MongoDBSaver"

CONNECTIONS = 32
"""In their pool, all open from the start: as many as there are threads, so that nobody waits for one."""

_AS_DOCUMENTED: dict[str, Any] = {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}


@contextmanager
def _holdfast(url: str) -> Iterator[Saver]:
    with HoldfastSaver.from_conn_string(url) as saver:
        assert saver.store._handle.engine.context.backend.capabilities.durable, "Holdfast does not flush every commit"
        yield saver


@contextmanager
def _log_only(url: str) -> Iterator[Saver]:
    """Without readable rows, which the other savers do not have."""
    with HoldfastSaver.from_conn_string(url, project=False) as saver:
        yield saver


@contextmanager
def _postgres(url: str) -> Iterator[Saver]:
    """On one connection, which is a little faster than on a pool where nothing is done at the same time."""
    with PostgresSaver.from_conn_string(url) as saver:
        saver.setup()
        assert saver.supports_pipeline
        yield saver


@contextmanager
def _mongodb(url: str) -> Iterator[Saver]:
    client: MongoClient[dict[str, Any]] = MongoClient(url)
    with client:
        yield MongoDBSaver(client, db_name=client.get_default_database().name)


@contextmanager
def _reference(url: str) -> Iterator[Saver]:
    del url
    yield ReferenceSaver()


@contextmanager
def _postgres_pool(url: str) -> Iterator[Saver]:
    pool: ConnectionPool[Connection[DictRow]] = ConnectionPool(
        url, min_size=CONNECTIONS, max_size=CONNECTIONS, kwargs=_AS_DOCUMENTED, open=False
    )
    with pool:
        pool.wait()
        saver = PostgresSaver(pool)
        saver.setup()
        assert saver.supports_pipeline
        yield saver


@asynccontextmanager
async def _aholdfast(url: str) -> AsyncIterator[Saver]:
    async with HoldfastSaver.from_conn_string(url) as saver:
        yield saver


@asynccontextmanager
async def _alog_only(url: str) -> AsyncIterator[Saver]:
    async with HoldfastSaver.from_conn_string(url, project=False) as saver:
        yield saver


@asynccontextmanager
async def _apostgres_pool(url: str) -> AsyncIterator[Saver]:
    pool: AsyncConnectionPool[AsyncConnection[DictRow]] = AsyncConnectionPool(
        url, min_size=CONNECTIONS, max_size=CONNECTIONS, kwargs=_AS_DOCUMENTED, open=False
    )
    async with pool:
        await pool.wait()
        saver = AsyncPostgresSaver(pool)
        await saver.setup()
        assert saver.supports_pipeline
        yield saver


@asynccontextmanager
async def _areference(url: str) -> AsyncIterator[Saver]:
    del url
    yield ReferenceSaver()


Opener = Callable[[str], AbstractContextManager[Saver]]
AsyncOpener = Callable[[str], AbstractAsyncContextManager[Saver]]

ON_POSTGRES: dict[str, Opener] = {
    OURS: _holdfast,
    LOG_ONLY: _log_only,
    POSTGRES: _postgres,
    REFERENCE: _reference,
}
ON_MONGODB: dict[str, Opener] = {
    OURS: _holdfast,
    LOG_ONLY: _log_only,
    MONGODB: _mongodb,
    REFERENCE: _reference,
}
THREADED: dict[str, Opener] = {OURS: _holdfast, LOG_ONLY: _log_only, POSTGRES: _postgres_pool, REFERENCE: _reference}
ASYNC: dict[str, AsyncOpener] = {
    OURS: _aholdfast,
    LOG_ONLY: _alog_only,
    ASYNC_POSTGRES: _apostgres_pool,
    REFERENCE: _areference,
}
