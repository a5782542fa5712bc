"""One connection to PostgreSQL: statements go out through libpq, and their results come back.

psycopg makes the connection, reads values and knows the errors. In between this speaks with libpq itself: a cursor's
way through psycopg takes three times as long, and a round trip is all that most calls here do.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import psycopg
from psycopg import AsyncConnection
from psycopg.adapt import Transformer
from psycopg.errors import error_from_result
from psycopg.pq import ExecStatus, Format, TransactionStatus
from psycopg.pq.abc import PGresult

from holdfast.backends.postgres.binary_values import BinaryValue

Statement: TypeAlias = tuple[str, Sequence[BinaryValue]]
Found: TypeAlias = list[tuple[Any, ...]]

_MAX_PREPARED = 256
_MAX_SEEN = 4096
"""How many statements are prepared, and remembered to see whether they come again."""


class _Command(NamedTuple):
    """A statement, and the name under which it is prepared, or is to be."""

    sql: str
    name: bytes = b""
    fresh: bool = False


class ServerInfo(NamedTuple):
    """What a server says of itself."""

    direct: bool
    """Whether it is the server itself, and no pooler, that is spoken to."""
    version: int
    standby: bool
    encoding: str
    durable: bool
    read_committed: bool
    set_up: bool


class PostgresConnection:
    """A connection. Lives in one loop, and serves one caller at a time."""

    look: ServerInfo

    def __init__(self, connection: AsyncConnection[Any]) -> None:
        self._connection = connection  # which would close itself if it were let go
        self._libpq = connection.pgconn
        self._loop = asyncio.get_running_loop()
        self._socket = self._libpq.socket
        self._transformer = Transformer(connection)
        self._answer: asyncio.Future[list[PGresult]] | None = None
        self._results: list[PGresult] = []
        self._pipelined = False
        self._names = itertools.count(1)
        self._once: set[str] = set()
        self._prepared: dict[str, bytes] = {}
        self.prepares = False
        """Whether to prepare statements that are used again."""
        self.open = True
        # Also while nobody waits: so that a connection that the server ends is not used again.
        self._loop.add_reader(self._socket, self._readable)

    @property
    def pid(self) -> int:
        """The number of the server's process, or what a pooler says it is."""
        return self._libpq.backend_pid

    @property
    def idle(self) -> bool:
        """Whether it is open, and in no transaction."""
        return self.open and self._libpq.transaction_status == TransactionStatus.IDLE

    def close(self) -> None:
        """Close it, whatever is under way."""
        if self.open:
            self.open = False
            self._loop.remove_reader(self._socket)
            self._loop.remove_writer(self._socket)
            self._libpq.finish()
            if self._answer is not None and not self._answer.done():
                self._answer.set_exception(psycopg.OperationalError("the connection was closed"))

    async def ask(self, sql: str, bound: Sequence[BinaryValue] = ()) -> Found:
        """What a statement finds, in one round trip."""
        (found,) = await self.ask_all([(sql, bound)])
        return found

    async def ask_all(self, statements: Sequence[Statement]) -> list[Found]:
        """What statements find that are sent together, in one round trip."""
        commands = [self._command(sql) for sql, _ in statements]
        fresh = [command.sql for command in commands if command.fresh]
        pipelined = bool(fresh) or len(statements) > 1
        if pipelined:
            self._libpq.enter_pipeline_mode()
        for command, (_, bound) in zip(commands, statements, strict=True):
            self._send(command, bound)
        if pipelined:
            self._libpq.pipeline_sync()
        results = iter(await self._exchange(pipelined))
        wanted = []
        for command in commands:
            if command.fresh:
                next(results)
                self._prepared[command.sql] = command.name
            wanted.append(next(results))
        return [self._rows(result) for result in wanted]

    async def run(self, script: str) -> None:
        """Run statements that bind nothing and find nothing."""
        self._libpq.send_query(script.encode())
        await self._exchange(pipelined=False)

    def _command(self, sql: str) -> _Command:
        if not self.prepares:
            return _Command(sql)
        name = self._prepared.get(sql)
        if name is not None:
            return _Command(sql, name)
        if sql in self._once and len(self._prepared) < _MAX_PREPARED:
            return _Command(sql, b"holdfast_%d" % next(self._names), fresh=True)
        if len(self._once) < _MAX_SEEN:
            self._once.add(sql)
        return _Command(sql)

    def _send(self, command: _Command, bound: Sequence[BinaryValue]) -> None:
        types = [value.type for value in bound]
        data = [value.data for value in bound]
        formats = [Format.BINARY] * len(bound)
        if command.fresh:
            self._libpq.send_prepare(command.name, command.sql.encode(), types)
        if command.name:
            self._libpq.send_query_prepared(command.name, data, formats, Format.BINARY)
        else:
            self._libpq.send_query_params(command.sql.encode(), data, types, formats, Format.BINARY)

    def _rows(self, result: PGresult) -> Found:
        if result.status != ExecStatus.TUPLES_OK:
            return []
        self._transformer.set_pgresult(result)
        return self._transformer.load_rows(0, result.ntuples, tuple)

    async def _exchange(self, pipelined: bool) -> list[PGresult]:
        """Send what is waiting to be sent, and wait for the results of all of it. The first error is raised."""
        answer = self._answer = self._loop.create_future()
        self._results, self._pipelined = [], pipelined
        try:
            self._write()
            results: list[PGresult] = await answer
        except asyncio.CancelledError:
            self.close()  # without waiting for a server that may hang
            raise
        finally:
            self._answer = None
        if pipelined and self.open:
            self._libpq.exit_pipeline_mode()
        for result in results:
            if result.status == ExecStatus.FATAL_ERROR:
                raise error_from_result(result)
        return results

    # Called by the loop

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
                return  # the rest is yet to come
            else:
                pause = True  # the end of one command's results

    def _write(self) -> None:
        try:
            if self._libpq.flush():
                self._loop.add_writer(self._socket, self._write)
            else:
                self._loop.remove_writer(self._socket)
        except psycopg.Error as error:
            self._fail(error)

    def _fail(self, error: psycopg.Error) -> None:
        """The connection is lost."""
        if self._answer is not None and not self._answer.done():
            if any(result.status == ExecStatus.FATAL_ERROR for result in self._results):
                self._answer.set_result(self._results)  # the server said why
            else:
                self._answer.set_exception(error)
        self.close()
