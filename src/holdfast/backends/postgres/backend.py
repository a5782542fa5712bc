"""A store in a schema of a PostgreSQL database.

`postgresql://user@host/database` is passed to libpq with all its parameters; the PG* variables, service and password
files apply. Poolers in transaction mode are detected; then nothing depends on the session.

Options, as arguments or in the URL's query:

- `schema`: the schema with Holdfast's tables, `holdfast` by default. It is created when a store is first opened, or
  beforehand by `setup`, if those who open it may not create it.
- `timeout`: for how many seconds to retry when the server cannot be reached any more, 30 by default.
- `connect_timeout`: for how long opening retries to reach the server, as `30` or `30s`; by default it does not. libpq's
  own of that name, for one attempt, is 10 seconds, or as the variable PGCONNECT_TIMEOUT says.
- `pool_size`: the most connections to use, 8 by default.
- `read_from`: the URL of a standby that answers reads, once it has what this process has seen (`standby`).
- `max_lag`: for how many seconds what others write may be missing in its answers, 10 by default.
- `tenant`: whose rows are visible, where `setup` turned row-level security on. `holdfast.open` passes its own.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from hashlib import blake2b
from typing import Any, ClassVar, TypeVar

import psycopg
from psycopg import AsyncConnection

from holdfast.backends.async_backend import GroupStamp, ServerBackend
from holdfast.backends.interface import (
    Batch,
    Capabilities,
    Changes,
    Get,
    Query,
    Row,
    Scan,
    WordMatch,
    WordMatches,
    closed_error,
    reads_may_lag,
)
from holdfast.backends.postgres import maintenance
from holdfast.backends.postgres.apply_function import GROUP_LINES, PackedBatch, build_arguments, pack
from holdfast.backends.postgres.binary_values import VALUE_ERRORS, BinaryValue, bind
from holdfast.backends.postgres.connection import PostgresConnection, ResultRows, Statement
from holdfast.backends.postgres.errors import bad_value_error, rejection_error, translate
from holdfast.backends.postgres.maintenance import build_query, parse_since, read_changes
from holdfast.backends.postgres.options import SCHEMES, PostgresOptions, read_options
from holdfast.backends.postgres.pool import ConnectionPool, ConnectionUse
from holdfast.backends.postgres.queries import (
    MAX_COMBINED,
    PLANNER_SETTINGS,
    build_combined_statement,
    build_count,
    build_search,
    build_statement,
    cannot_match,
    read_matches,
    read_rows,
    split_rows,
)
from holdfast.backends.postgres.schema import quote_name
from holdfast.backends.postgres.setup import SchemaState, ensure_schema
from holdfast.backends.postgres.standby import POSITION, Lines, StandbyReader, lines_of, may_lag
from holdfast.backends.runtime.group_commit import Outcome
from holdfast.errors import ConfigError, HoldfastError

_MAX_BODY = 256 << 20
"""PostgreSQL takes less than 1 GB in one message, and has it in memory more than once."""

_BEGIN_READ = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
_BEGIN_WRITE = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE"
_SET_TENANT = "SELECT pg_catalog.set_config('holdfast.tenant', $1, true)"

T = TypeVar("T")


class PostgresBackend(ServerBackend):
    """`postgresql://…`: a store in a PostgreSQL database."""

    schemes: ClassVar[tuple[str, ...]] = SCHEMES
    takes_tenant = True
    announces = True
    group_lines: ClassVar[int] = GROUP_LINES

    def __init__(self, options: PostgresOptions) -> None:
        super().__init__(options.url, options.timeout, options.connect_timeout)
        self._options = options
        self._apply_sql = f"SELECT {quote_name(options.schema)}.apply({', '.join(f'${at}' for at in range(1, 13))})"
        self._schema_state: SchemaState | None = None
        self._standby: StandbyReader | None = None

    @classmethod
    async def open(cls, url: str, **options: Any) -> PostgresBackend:
        """Open the store, and create its tables if they do not exist. The module documents the options."""
        store = cls(read_options(url, options))
        await store.start()
        return store

    @property
    def capabilities(self) -> Capabilities:
        state = self._schema_state
        return Capabilities(
            state is not None and state.durable,
            shared=True,
            max_body=_MAX_BODY,
            max_batch=_MAX_BODY,
            words=True,
            joint_batches=True,
            times=state is not None,
            fresh=self._options.read_from is None,
            lags=self._options.read_from is not None,
        )

    async def read(self, queries: Sequence[Query]) -> list[list[Row]]:
        if self._options.read_from is None or not reads_may_lag.get():
            return await super().read(queries)
        return await self._run_in_loop(lambda: self._answer(queries, lags=may_lag(queries)))

    async def status(self) -> dict[str, int | float | str]:
        standby = self._standby
        return {} if standby is None else standby.status()

    async def match_words(self, match: WordMatch) -> WordMatches:
        if cannot_match(match):
            return WordMatches([], None)
        try:
            search = build_search(self._options.schema, match)
        except VALUE_ERRORS as error:
            raise bad_value_error(error, self.url) from error
        lags = self._options.read_from is not None and reads_may_lag.get()
        _, found = await self._run_in_loop(lambda: self._query_tenant([PLANNER_SETTINGS, search], lags=lags))
        return read_matches(match, found)

    async def changes(self, since: str | None = None) -> Changes:
        snapshot, place = parse_since(since, self.url)
        query = build_query(self._options.schema, snapshot)
        return read_changes(snapshot, place, await self._run_in_loop(lambda: self._read_changes(query)))

    async def count_rows(self, scans: Sequence[Scan]) -> list[int]:
        statements = [build_count(self._options.schema, scan) for scan in scans]
        return [int(rows[0][0]) for rows in await self._run_in_loop(lambda: self._query_tenant(statements))]

    async def size(self) -> int:
        return await self._run_in_loop(lambda: self._use(maintenance.size, _BEGIN_READ))

    async def check(self) -> list[str]:
        return await self._run_once(lambda: self._use(maintenance.check, _BEGIN_READ))

    async def tidy(self) -> None:
        await self._run_once(lambda: self._use(maintenance.tidy, _BEGIN_WRITE))

    async def purge(self) -> list[str]:
        return await self._run_once(lambda: self._use(maintenance.purge, _BEGIN_WRITE))

    # In the store's loop

    async def _connect(self) -> ConnectionPool:
        self._pool = ConnectionPool(self._options)
        self._standby = None
        async with self._connection() as connection:
            self._schema_state = state = await ensure_schema(connection, self._options)
        tenant = self._options.tenant
        if state.row_security and not tenant:
            self._pool.close()
            raise ConfigError(
                f"the schema {self._options.schema!r} has row-level security, which hides the rows of the tenant "
                "without a name",
                where=self.url,
                hint="Open it for one tenant, with the option tenant",
            )
        self._tenant = bind(tenant) if state.row_security and tenant else None
        if self._pool.standby is not None and self._options.read_from is not None:
            standby = StandbyReader(self._pool, self._pool.standby, self._options.read_from)
            try:
                await standby.look()
            except BaseException:
                self._pool.close()
                raise
            self._standby = standby
        return self._pool

    async def _disconnect(self) -> None:
        self._pool.close()

    async def _answer(self, queries: Sequence[Query], *, lags: bool = False) -> list[list[Row]]:
        sent = [query for query in queries if not isinstance(query, Get) or query.keys]
        results = iter(await self._query_rows(sent, lags) if sent else [])
        return [[] if isinstance(query, Get) and not query.keys else next(results) for query in queries]

    async def _query_rows(self, queries: Sequence[Query], lags: bool) -> list[list[Row]]:
        """Run queries on one snapshot, in one round trip."""
        schema = self._options.schema
        separate = self._tenant is not None or len(queries) > MAX_COMBINED
        try:
            if separate or len(queries) == 1:
                statements = [build_statement(schema, query) for query in queries]
            else:
                statements = [build_combined_statement(schema, queries)]
            lines = lines_of(queries) if self._standby is not None else None
            if separate:
                results = await self._query_tenant(statements, lines, lags=lags)
            else:
                results = await self._query(statements, lines, lags)
        except HoldfastError:  # some of which are ValueErrors too
            raise
        except VALUE_ERRORS as error:
            raise bad_value_error(error, self.url) from error
        if len(statements) < len(queries):
            return split_rows(queries, results[0])
        return [read_rows(query, result) for query, result in zip(queries, results, strict=True)]

    async def _query_tenant(
        self, statements: Sequence[Statement], lines: Lines | None = None, *, lags: bool = False
    ) -> list[ResultRows]:
        """Run statements that read in one transaction, for the tenant."""
        before = self._before(_BEGIN_READ)
        return (await self._query([*before, *statements, ("COMMIT", ())], lines, lags))[len(before) : -1]

    async def _query(self, statements: Sequence[Statement], lines: Lines | None, lags: bool) -> list[ResultRows]:
        """Run statements that read: on a standby, if they may lag and it has what was seen of the lines, or else on
        the primary."""
        standby = self._standby
        if standby is not None and lags:
            found = await standby.query(statements, lines)
            if found is not None:
                return found
        async with self._connection() as connection:
            if standby is None:
                return await connection.query_all(statements)
            *results, ((position,),) = await connection.query_all([*statements, POSITION])
        standby.note(lines, position)
        return results

    async def _read_changes(self, query: Statement) -> ResultRows:
        return (await self._query_tenant([query]))[0]

    async def _in_transaction(
        self, connection: PostgresConnection, begin: str, statements: Sequence[Statement]
    ) -> list[ResultRows]:
        """Run statements as one transaction, sent together."""
        before = self._before(begin)
        return (await connection.query_all([*before, *statements, ("COMMIT", ())]))[len(before) : -1]

    def _before(self, begin: str) -> list[Statement]:
        """Return the statements that begin a transaction, for the tenant."""
        return [(begin, ())] if self._tenant is None else [(begin, ()), (_SET_TENANT, [self._tenant])]

    async def _commit(self, batches: list[Batch], stamp: GroupStamp) -> list[Outcome]:
        packed = [self._pack(batch) for batch in batches]
        valid = [each for each in packed if isinstance(each, PackedBatch)]
        results: list[int] = []
        if valid:
            async with self._connection(sent=True) as connection:
                results = await self._call_apply(
                    connection, build_arguments(self._options.schema, stamp, valid), batches
                )
        rest = iter(results)
        return [self._outcome(next(rest)) if isinstance(each, PackedBatch) else each for each in packed]

    def _pack(self, batch: Batch) -> PackedBatch | Exception:
        try:
            return pack(batch)
        except VALUE_ERRORS as error:
            return bad_value_error(error, self.url)

    async def _call_apply(
        self, connection: PostgresConnection, arguments: list[BinaryValue], batches: list[Batch]
    ) -> list[int]:
        if self._standby is not None:
            sent = [*self._before(_BEGIN_WRITE), (self._apply_sql, arguments), ("COMMIT", ()), POSITION]
            *_, rows, _, ((position,),) = await connection.query_all(sent)
            self._standby.note_batches(batches, position)
        elif self._tenant is None and connection.server.read_committed:
            rows = await connection.query(self._apply_sql, arguments)
        else:
            (rows,) = await self._in_transaction(connection, _BEGIN_WRITE, [(self._apply_sql, arguments)])
        outcomes: list[int] = rows[0][0]
        return outcomes

    def _outcome(self, outcome: int) -> Outcome:
        if outcome >= -1:
            return None if outcome == -1 else outcome
        return rejection_error(outcome, self.url)

    async def _announce(self, topic: str) -> None:
        # In a transaction of its own: one that notifies keeps all others that do waiting until it is flushed.
        async with self._connection() as connection:
            await connection.query("SELECT pg_catalog.pg_notify($1::text, '')", [bind(self._channel(topic))])

    async def _announcements(self, topic: str) -> AsyncGenerator[None]:
        async with await AsyncConnection.connect(self._options.conninfo, autocommit=True) as connection:
            found = await connection.execute("SELECT pg_catalog.pg_backend_pid()")
            if await found.fetchone() != (connection.info.backend_pid,):
                return  # a pooler, which may give the session to others
            await connection.execute(f"LISTEN {self._channel(topic)}".encode())
            yield
            async for _ in connection.notifies():
                yield

    def _channel(self, topic: str) -> str:
        return f"holdfast_{blake2b(f'{self._options.schema} {topic}'.encode(), digest_size=16).hexdigest()}"

    async def _use(self, work: maintenance.Work[T], begin: str) -> T:
        """Use a connection. Statements about rows are for the tenant, where row-level security is on."""
        async with self._connection() as connection:

            async def query(sql: str, bound: Sequence[BinaryValue] = (), /) -> ResultRows:
                return (await self._in_transaction(connection, begin, [(sql, bound)]))[0]

            return await work(connection, self._options.schema, connection.query if self._tenant is None else query)

    def _connection(self, sent: bool = False) -> ConnectionUse:
        """A connection of the pool for the length of a block."""
        return self._pool.use(self._translate_sent if sent else self._translate)

    def _translate(self, error: psycopg.Error, sent: bool = False) -> Exception:
        if self._pool.closed:
            return closed_error(self.url)
        return translate(error, self.url, self._options.schema, sent)

    def _translate_sent(self, error: psycopg.Error) -> Exception:
        return self._translate(error, sent=True)
