"""A pool of connections to PostgreSQL, in the store's loop.

It connects only on demand, reports at once why it cannot, and never reuses a connection on which a call was cancelled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import psycopg
from psycopg import AsyncConnection

from holdfast.backends.async_backend import ServerInterrupted, ServerUnreachable
from holdfast.backends.connection_errors import attempt_seconds
from holdfast.backends.postgres.binary_values import bind
from holdfast.backends.postgres.connection import PostgresConnection, ServerInfo
from holdfast.backends.postgres.errors import PREPARED_STATES, READ_ONLY_STATE, translate_connect_error
from holdfast.backends.postgres.options import PostgresOptions
from holdfast.backends.postgres.schema import OLDEST_SERVER, newest_table
from holdfast.backends.postgres.standby import PLACE, Place
from holdfast.errors import ConfigError

_SESSION_SETTINGS = {
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_mergejoin": "off",
    "enable_hashjoin": "off",
    "jit": "off",
}
"""Plans are made once, and read the tables by index alone, even if they were made when the tables were nearly empty."""

_SERVER_INFO = f"""
SELECT pg_catalog.pg_backend_pid() = $1::bigint,
  pg_catalog.current_setting('server_version_num')::int, pg_catalog.pg_is_in_recovery(),
  pg_catalog.pg_encoding_to_char(d.encoding),
  pg_catalog.current_setting('synchronous_commit') <> 'off' AND pg_catalog.current_setting('fsync')::bool,
  pg_catalog.current_setting('default_transaction_isolation') = 'read committed',
  pg_catalog.to_regclass($2::text) IS NOT NULL,
  CASE WHEN pg_catalog.pg_backend_pid() = $1::bigint THEN
    {" || ".join(f"pg_catalog.set_config('{name}', '{value}', false)" for name, value in _SESSION_SETTINGS.items())} END
FROM pg_catalog.pg_database d WHERE d.datname = pg_catalog.current_database()
"""  # noqa: S608 - constants
"""A pooler reports another process number than the server's own. Only without one may the session be changed."""


class ConnectionPool:
    """The connections of one store to a primary, or to a standby of it."""

    place: Place
    """The data of the server that was connected last; set for a store that reads from a standby."""

    def __init__(self, options: PostgresOptions, *, primary: ConnectionPool | None = None) -> None:
        """With a `primary`, it is a pool of connections to a standby of that."""
        self._options = options
        self._is_standby = primary is not None
        self._has_place = primary is not None or options.read_from is not None
        self.standby: ConnectionPool | None = None
        if options.read_from is not None and primary is None:
            self.standby = ConnectionPool(options.read_from, primary=self)
        self._idle: list[PostgresConnection] = []
        self._used: set[PostgresConnection] = set()
        self._free = asyncio.Semaphore(options.pool_size)
        self._never_prepare = False
        self.closed: bool = False

    def use(self, translate: Callable[[psycopg.Error], Exception]) -> ConnectionUse:
        """Take a connection for the length of a block. The driver's errors in it are translated."""
        return ConnectionUse(self, translate)

    async def acquire(self) -> PostgresConnection:
        """Take a connection, until `release`."""
        await self._free.acquire()
        try:
            connection = self._pop_idle() or await self._connect()
        except BaseException:
            self._free.release()
            raise
        self._used.add(connection)
        return connection

    def release(self, connection: PostgresConnection, error: BaseException | None) -> None:
        """Return a connection, after an error or without one."""
        try:
            if error is None:
                self._idle.append(connection)
            else:
                self._release_after_error(connection, error)
        finally:
            self._used.discard(connection)
            self._free.release()

    def close(self) -> None:
        """Close all connections, also those in use, and open no more."""
        self.closed = True
        self.close_idle()
        for connection in self._used:
            connection.close()
        if self.standby is not None:
            self.standby.close()

    def close_idle(self) -> None:
        """Close the connections that nobody uses."""
        while self._idle:
            self._idle.pop().close()

    def _pop_idle(self) -> PostgresConnection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.open:
                return connection
        return None

    def _release_after_error(self, connection: PostgresConnection, error: BaseException) -> None:
        """Reuse a connection only if the server refused a statement; else close it."""
        state = error.sqlstate if isinstance(error, psycopg.Error) else None
        useless = state in (*PREPARED_STATES, READ_ONLY_STATE)
        if connection.idle and state is not None and not useless:
            self._idle.append(connection)
            return
        lost = not connection.open and isinstance(error, psycopg.OperationalError)
        connection.close()
        if state in PREPARED_STATES:
            self._never_prepare = True
        if useless or lost:
            self.close_idle()  # the others are most likely in the same state

    async def _connect(self) -> PostgresConnection:
        options = self._options
        connection = None
        try:
            async with asyncio.timeout(attempt_seconds(options.timeout)):
                opened = await AsyncConnection.connect(options.conninfo, autocommit=True, prepare_threshold=None)
                connection = PostgresConnection(opened)
                bound = [bind(connection.pid), bind(newest_table(options.schema))]
                ((*info, _),) = await connection.query(_SERVER_INFO, bound)
            connection.server = ServerInfo(*info)
            self._check_server(connection.server)
            if self._has_place:
                connection.place = self.place = Place(*(await connection.query(*PLACE))[0])
        except BaseException as error:
            if connection is not None:
                connection.close()
            if isinstance(error, TimeoutError):
                raise ServerUnreachable("no answer came in time") from error
            if isinstance(error, psycopg.Error):
                raise translate_connect_error(error, options.url, options.schema, connection is not None) from error
            raise
        connection.prepares = connection.server.direct and not self._never_prepare
        return connection

    def _check_server(self, server: ServerInfo) -> None:
        where = self._options.url
        if server.version < OLDEST_SERVER:
            raise ConfigError(
                f"the server is PostgreSQL {server.version // 10_000}", where=where, hint="It must be 15 or newer"
            )
        if server.encoding != "UTF8":
            raise ConfigError(
                f"the database is encoded in {server.encoding}",
                where=where,
                hint="Names can be any text: create a database with ENCODING 'UTF8'",
            )
        if self._is_standby:
            if not server.standby:
                raise ServerInterrupted("the server is no standby")
        elif server.standby:
            raise ServerInterrupted("the server is a standby, which lags behind and takes no changes")


class ConnectionUse:
    """A connection of a pool for the length of a block: a class, since a generator takes several times as long."""

    __slots__ = ("_connection", "_pool", "_translate")
    _connection: PostgresConnection

    def __init__(self, pool: ConnectionPool, translate: Callable[[psycopg.Error], Exception]) -> None:
        self._pool = pool
        self._translate = translate

    async def __aenter__(self) -> PostgresConnection:
        self._connection = connection = await self._pool.acquire()
        return connection

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._pool.release(self._connection, error)
        if isinstance(error, psycopg.Error):
            raise self._translate(error) from error
