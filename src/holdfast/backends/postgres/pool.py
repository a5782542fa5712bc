"""Connections to PostgreSQL, kept for the next to use them. Lives in the store's loop.

Not a general pool: one that connects only when asked, tells at once why it cannot, and never gives a connection on
which something was broken off to anybody else.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import psycopg
from psycopg import AsyncConnection

from holdfast.backends.async_backend import ServerInterrupted
from holdfast.backends.postgres.binary_values import value
from holdfast.backends.postgres.connection import PostgresConnection, ServerInfo
from holdfast.backends.postgres.errors import PREPARED, READ_ONLY, translate_connecting
from holdfast.backends.postgres.options import PostgresOptions
from holdfast.backends.postgres.schema import OLDEST, newest
from holdfast.errors import ConfigError

_LOOK = """
SELECT pg_backend_pid() = $1::bigint,
  current_setting('server_version_num')::int, pg_is_in_recovery(), pg_encoding_to_char(d.encoding),
  current_setting('synchronous_commit') <> 'off' AND current_setting('fsync')::bool,
  current_setting('default_transaction_isolation') = 'read committed', to_regclass($2::text) IS NOT NULL,
  CASE WHEN pg_backend_pid() = $1::bigint THEN set_config('plan_cache_mode', 'force_generic_plan', false)
    || set_config('enable_seqscan', 'off', false) || set_config('enable_bitmapscan', 'off', false)
    || set_config('enable_mergejoin', 'off', false) || set_config('enable_hashjoin', 'off', false)
    || set_config('jit', 'off', false) END
FROM pg_database d WHERE d.datname = current_database()
"""
"""A pooler tells a client another process number than the server's own. Only where there is none may the session be
changed: plans are made once, and read the tables by index alone, also when they were made for nearly empty ones."""


class ConnectionPool:
    """The connections of one store."""

    def __init__(self, settings: PostgresOptions) -> None:
        self._settings = settings
        self._idle: list[PostgresConnection] = []
        self._used: set[PostgresConnection] = set()
        self._free = asyncio.Semaphore(settings.pool_size)
        self._unprepared = False
        self.ended = False

    @contextlib.asynccontextmanager
    async def use(self) -> AsyncIterator[PostgresConnection]:
        """A connection, for as long as the block takes."""
        async with self._free:
            link = self._take() or await self._connect()
            self._used.add(link)
            try:
                yield link
            except BaseException as error:
                self._left(link, error)
                raise
            else:
                self._idle.append(link)
            finally:
                self._used.discard(link)

    def end(self) -> None:
        """Close all, also those on which somebody is still reading, and make no more."""
        self.ended = True
        self._close_idle()
        for link in self._used:
            link.close()

    def _close_idle(self) -> None:
        while self._idle:
            self._idle.pop().close()

    def _take(self) -> PostgresConnection | None:
        while self._idle:
            link = self._idle.pop()
            if link.open:
                return link
        return None

    def _left(self, link: PostgresConnection, error: BaseException) -> None:
        """Keep a connection only where the server just said no."""
        state = error.sqlstate if isinstance(error, psycopg.Error) else None
        useless = state in (*PREPARED, READ_ONLY)
        if link.idle and state is not None and not useless:
            self._idle.append(link)
            return
        lost = not link.open and isinstance(error, psycopg.OperationalError)
        link.close()
        if state in PREPARED:
            self._unprepared = True
        if useless or lost:
            self._close_idle()  # what befell this one has most likely befallen the others

    async def _connect(self) -> PostgresConnection:
        settings = self._settings
        link = None
        try:
            connection = await AsyncConnection.connect(settings.conninfo, autocommit=True, prepare_threshold=None)
            link = PostgresConnection(connection)
            bound = [value(link.pid), value(newest(settings.schema))]
            ((*found, _),) = await link.ask(_LOOK, bound)
            link.look = ServerInfo(*found)
            self._suits(link.look)
        except BaseException as error:
            if link is not None:
                link.close()
            if isinstance(error, psycopg.Error):
                raise translate_connecting(error, settings.url, settings.schema, link is not None) from error
            raise
        link.prepares = link.look.direct and not self._unprepared
        return link

    def _suits(self, look: ServerInfo) -> None:
        where = self._settings.url
        if look.version < OLDEST:
            raise ConfigError(
                f"the server is PostgreSQL {look.version // 10_000}", where=where, hint="It must be 15 or newer"
            )
        if look.encoding != "UTF8":
            raise ConfigError(
                f"the database is encoded in {look.encoding}",
                where=where,
                hint="Names can be any text: make a database with ENCODING 'UTF8'",
            )
        if look.standby:
            raise ServerInterrupted("the server is a standby, which lags behind and takes no changes")
