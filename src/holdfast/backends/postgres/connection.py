"""A connection to PostgreSQL that sends statements through libpq.

psycopg connects, reads values and translates errors. In between, this uses libpq itself: a cursor of psycopg takes
three times as long, and most calls here are a single round trip.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import psycopg
from psycopg import AsyncConnection
from psycopg.adapt import Transformer
from psycopg.errors import error_from_result
from psycopg.pq import ExecStatus, Format, TransactionStatus
from psycopg.pq.abc import PGresult

from holdfast.backends.postgres.binary_values import BinaryValue

if TYPE_CHECKING:
    from holdfast.backends.postgres.standby import Place

Statement: TypeAlias = tuple[str, Sequence[BinaryValue]]
ResultRows: TypeAlias = list[tuple[Any, ...]]

_MAX_PREPARED = 256
_MAX_SENT_ONCE = 4096
"""How many statements are prepared, and remembered to prepare them the second time."""


class _Command(NamedTuple):
    """A statement, and the name under which it is prepared."""

    sql: str
    name: bytes = b""
    prepare: bool = False
    """Whether it has to be prepared first."""


class ServerInfo(NamedTuple):
    """Settings and state of a server."""

    direct: bool
    """Whether the connection is to the server itself, and not to a pooler."""
    version: int
    standby: bool
    encoding: str
    durable: bool
    read_committed: bool
    set_up: bool


class PostgresConnection:
    """A connection, in one loop, for one caller at a time."""

    server: ServerInfo
    place: Place
    """Set for a store that reads from a standby."""

    def __init__(self, connection: AsyncConnection[Any]) -> None:
        self._connection = connection  # closed when it is garbage-collected
        self._libpq = connection.pgconn
        self._loop = asyncio.get_running_loop()
        self._socket = self._libpq.socket
        self._transformer = Transformer(connection)
        self._answer: asyncio.Future[list[PGresult]] | None = None
        self._results: list[PGresult] = []
        self._pipelined = False
        self._names = itertools.count(1)
        self._sent_once: set[str] = set()
        self._prepared: dict[str, bytes] = {}
        self.prepares = False
        """Whether to prepare statements that are used again."""
        self.open: bool = True
        # Also while idle, so that a connection that the server closed is not used again.
        self._loop.add_reader(self._socket, self._readable)

    @property
    def pid(self) -> int:
        """The process number of the server, as the server or a pooler reports it."""
        return self._libpq.backend_pid

    @property
    def idle(self) -> bool:
        """Whether it is open and in no transaction."""
        return self.open and self._libpq.transaction_status == TransactionStatus.IDLE

    def close(self) -> None:
        """Close it. A call that is running fails."""
        if self.open:
            self.open = False
            self._loop.remove_reader(self._socket)
            self._loop.remove_writer(self._socket)
            self._libpq.finish()
            if self._answer is not None and not self._answer.done():
                self._answer.set_exception(psycopg.OperationalError("the connection was closed"))

    async def query(self, sql: str, bound: Sequence[BinaryValue] = ()) -> ResultRows:
        """Run a statement in one round trip, and return its rows."""
        (rows,) = await self.query_all([(sql, bound)])
        return rows

    async def query_all(self, statements: Sequence[Statement]) -> list[ResultRows]:
        """Run statements in one round trip, and return the rows of each."""
        commands = [self._command(sql) for sql, _ in statements]
        pipelined = len(statements) > 1 or any(command.prepare for command in commands)
        if pipelined:
            self._libpq.enter_pipeline_mode()
        for command, (_, bound) in zip(commands, statements, strict=True):
            self._send(command, bound)
        if pipelined:
            self._libpq.pipeline_sync()
        results = iter(await self._exchange(pipelined))
        answers = []
        for command in commands:
            if command.prepare:
                next(results)
                self._prepared[command.sql] = command.name
            answers.append(next(results))
        return [self._rows(result) for result in answers]

    async def run(self, script: str) -> None:
        """Run statements without parameters and without results."""
        self._libpq.send_query(script.encode())
        await self._exchange(pipelined=False)

    def _command(self, sql: str) -> _Command:
        if not self.prepares:
            return _Command(sql)
        name = self._prepared.get(sql)
        if name is not None:
            return _Command(sql, name)
        if sql in self._sent_once and len(self._prepared) < _MAX_PREPARED:
            return _Command(sql, b"holdfast_%d" % next(self._names), prepare=True)
        if len(self._sent_once) < _MAX_SENT_ONCE:
            self._sent_once.add(sql)
        return _Command(sql)

    def _send(self, command: _Command, bound: Sequence[BinaryValue]) -> None:
        types = [value.type for value in bound]
        data = [value.data for value in bound]
        formats = [Format.BINARY] * len(bound)
        if command.prepare:
            self._libpq.send_prepare(command.name, command.sql.encode(), types)
        if command.name:
            self._libpq.send_query_prepared(command.name, data, formats, Format.BINARY)
        else:
            self._libpq.send_query_params(command.sql.encode(), data, types, formats, Format.BINARY)

    def _rows(self, result: PGresult) -> ResultRows:
        if result.status != ExecStatus.TUPLES_OK:
            return []
        self._transformer.set_pgresult(result)
        return self._transformer.load_rows(0, result.ntuples, tuple)

    async def _exchange(self, pipelined: bool) -> list[PGresult]:
        """Send what libpq has queued, and wait for all results. Raises the first error."""
        answer = self._answer = self._loop.create_future()
        self._results, self._pipelined = [], pipelined
        try:
            self._write()
            results: list[PGresult] = await answer
        except asyncio.CancelledError:
            self.close()  # does not wait for a server that may hang
            raise
        finally:
            self._answer = None
        if pipelined and self.open:
            self._libpq.exit_pipeline_mode()
        for result in results:
            if result.status == ExecStatus.FATAL_ERROR:
                raise error_from_result(result)
        return results

    # Callbacks of the loop

    def _readable(self) -> None:
        try:
            self._libpq.consume_input()
            if self._answer is not None:
                self._take_results(self._answer)
        except psycopg.Error as error:
            self._fail(error)

    def _take_results(self, answer: asyncio.Future[list[PGresult]]) -> None:
        pause = False
        while not self._libpq.is_busy():
            result = self._libpq.get_result()
            if result is not None and result.status != ExecStatus.PIPELINE_SYNC:
                self._results.append(result)
                pause = False
            elif result is not None or not self._pipelined:
                if not answer.done():
                    answer.set_result(self._results)
                return
            elif pause:
                return  # more results will come
            else:
                pause = True  # the end of the results of one command

    def _write(self) -> None:
        try:
            if self._libpq.flush():
                self._loop.add_writer(self._socket, self._write)
            else:
                self._loop.remove_writer(self._socket)
        except psycopg.Error as error:
            self._fail(error)

    def _fail(self, error: psycopg.Error) -> None:
        """Close a lost connection, and fail the call that is running."""
        if self._answer is not None and not self._answer.done():
            if any(result.status == ExecStatus.FATAL_ERROR for result in self._results):
                self._answer.set_result(self._results)  # they say why
            else:
                self._answer.set_exception(error)
        self.close()
