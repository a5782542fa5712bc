"""A store in a schema of a PostgreSQL database.

`postgresql://user@host/database` is passed to libpq with all its parameters; the PG* variables, service and password
files count as everywhere. Poolers in transaction mode are fine: they are noticed, and then nothing depends on a
session.

Options, as arguments or in the URL's query:

- `schema`: the schema with Holdfast's tables, `holdfast` by default. It is made when a store is first opened, or
  beforehand by `setup`, if those who open it may not.
- `timeout`: for how many seconds to go on trying when the server cannot be reached, 30 by default.
- `pool_size`: how many connections to use at most, 8 by default.
- `tenant`: whose rows are to be seen, where `setup` turned row-level security on. `holdfast.open` passes its own.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any, TypeVar

import psycopg

from holdfast.backends.async_backend import GroupStamp, LoopTask, ServerBackend, ServerInterrupted
from holdfast.backends.interface import Batch, Capabilities, Get, Query, Row, WordMatch, WordMatches
from holdfast.backends.postgres import maintenance
from holdfast.backends.postgres.apply_function import PackedBatch, arguments, pack
from holdfast.backends.postgres.binary_values import BAD, BinaryValue, value
from holdfast.backends.postgres.connection import Found, PostgresConnection, Statement
from holdfast.backends.postgres.errors import bad_value, refused, translate
from holdfast.backends.postgres.options import SCHEMES, PostgresOptions, settings
from holdfast.backends.postgres.pool import ConnectionPool
from holdfast.backends.postgres.queries import TOGETHER, rows, rows_of_all, statement, statement_of_all
from holdfast.backends.postgres.schema import quoted
from holdfast.backends.postgres.setup import SchemaState, look_or_set_up
from holdfast.backends.postgres.text_search import PLANNED, is_found_nowhere, matches, matching
from holdfast.backends.runtime.group_commit import Outcome
from holdfast.errors import ConfigError, HoldfastError, TransientError, UnavailableError

T = TypeVar("T")


_MAX_BODY = 256 << 20
"""PostgreSQL takes less than 1 GB at a time, and has it in memory more than once."""

_READING = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
_WRITING = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE"
_TENANT = "SELECT set_config('holdfast.tenant', $1, true)"


class PostgresBackend(ServerBackend):
    """`postgresql://…`: a store in a PostgreSQL database."""

    schemes = SCHEMES
    takes_tenant = True

    def __init__(self, settings: PostgresOptions) -> None:
        super().__init__(settings.url, settings.timeout)
        self._settings = settings
        self._apply = f"SELECT {quoted(settings.schema)}.apply($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)"
        self._found: SchemaState | None = None

    @classmethod
    async def open(cls, url: str, **options: Any) -> PostgresBackend:
        """Open the store, and make its tables if they are not there. The module says which options there are."""
        store = cls(settings(url, options))
        await store.start()
        return store

    @property
    def capabilities(self) -> Capabilities:
        durable = self._found is not None and self._found.durable
        return Capabilities(durable, shared=True, max_body=_MAX_BODY, max_batch=_MAX_BODY, words=True)

    async def match_words(self, match: WordMatch) -> WordMatches:
        if is_found_nowhere(match):
            return WordMatches([], None)
        try:
            sought = matching(self._settings.schema, match)
        except BAD as error:
            raise bad_value(error, self.url) from error
        return matches(match, await self._run_in_loop(lambda: self._matched(sought)))

    async def size(self) -> int:
        return await self._run_in_loop(self._size)

    async def check(self) -> list[str]:
        return await self._long(self._check)

    async def tidy(self) -> None:
        await self._long(self._tidy)

    async def _long(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Work that takes as long as it needs, and is not begun again."""

        async def once() -> T:
            try:
                return await work()
            except ServerInterrupted as interrupted:
                raise TransientError(f"broken off: {interrupted}", where=self.url, hint="Try again") from interrupted

        asked: LoopTask[T] = LoopTask(lambda future: self._schedule(once, future))
        return await asked

    # In the store's loop

    async def _connect(self) -> object:
        self._connections = ConnectionPool(self._settings)
        async with self._using() as link:
            self._found = found = await look_or_set_up(link, self._settings)
        if found.guarded and self._settings.tenant is None:
            self._connections.end()
            raise ConfigError(
                f"the schema {self._settings.schema!r} has row-level security",
                where=self.url,
                hint="Open it for one tenant, with the option tenant",
            )
        tenant = self._settings.tenant
        self._tenant = value(tenant) if found.guarded and tenant is not None else None
        return self._connections

    async def _disconnect(self) -> None:
        self._connections.end()

    async def _answer(self, queries: Sequence[Query]) -> list[list[Row]]:
        asked = [query for query in queries if not isinstance(query, Get) or query.keys]
        answers = iter(await self._answers(asked) if asked else [])
        return [[] if isinstance(query, Get) and not query.keys else next(answers) for query in queries]

    async def _answers(self, queries: Sequence[Query]) -> list[list[Row]]:
        """What queries find, all as of one moment, in one round trip."""
        schema = self._settings.schema
        apart = self._tenant is not None or len(queries) > TOGETHER
        try:
            if apart or len(queries) == 1:
                made = [statement(schema, query) for query in queries]
            else:
                made = [statement_of_all(schema, queries)]
            async with self._using() as link:
                found = await (self._in_transaction(link, _READING, made) if apart else link.ask_all(made))
        except HoldfastError:  # some of which are such errors too
            raise
        except BAD as error:
            raise bad_value(error, self.url) from error
        if len(made) < len(queries):
            return rows_of_all(queries, found[0])
        return [rows(query, each) for query, each in zip(queries, found, strict=True)]

    async def _in_transaction(self, link: PostgresConnection, begin: str, made: Sequence[Statement]) -> list[Found]:
        """What statements find that are sent together, as one transaction."""
        before: list[Statement] = [(begin, ())]
        if self._tenant is not None:
            before.append((_TENANT, [self._tenant]))
        return (await link.ask_all([*before, *made, ("COMMIT", ())]))[len(before) : -1]

    async def _commit(self, batches: list[Batch], stamp: GroupStamp) -> list[Outcome]:
        packed = [self._packed(batch) for batch in batches]
        good = [each for each in packed if isinstance(each, PackedBatch)]
        made: list[int] = []
        if good:
            async with self._using(sent=True) as link:
                made = await self._make(link, arguments(self._settings.schema, stamp, good))
        answers = iter(made)
        return [self._outcome(next(answers)) if isinstance(each, PackedBatch) else each for each in packed]

    def _packed(self, batch: Batch) -> PackedBatch | Exception:
        try:
            return pack(batch)
        except BAD as error:
            return bad_value(error, self.url)

    async def _make(self, link: PostgresConnection, given: list[BinaryValue]) -> list[int]:
        if self._tenant is None and link.look.read_committed:
            found = await link.ask(self._apply, given)
        else:
            (found,) = await self._in_transaction(link, _WRITING, [(self._apply, given)])
        outcomes: list[int] = found[0][0]
        return outcomes

    def _outcome(self, outcome: int) -> Outcome:
        if outcome >= -1:
            return None if outcome == -1 else outcome
        return refused(outcome, self.url)

    async def _matched(self, sought: Statement) -> Found:
        async with self._using() as link:
            return (await self._in_transaction(link, _READING, [PLANNED, sought]))[1]

    async def _size(self) -> int:
        async with self._using() as link:
            return await maintenance.size(link, self._settings.schema)

    async def _check(self) -> list[str]:
        async with self._using() as link:
            return await maintenance.check(link, self._settings.schema)

    async def _tidy(self) -> None:
        async with self._using() as link:
            await maintenance.tidy(link, self._settings.schema)

    @contextlib.asynccontextmanager
    async def _using(self, sent: bool = False) -> AsyncIterator[PostgresConnection]:
        """A connection whose errors come out as ours."""
        try:
            async with self._connections.use() as link:
                yield link
        except psycopg.Error as error:
            if self._connections.ended:
                what, hint = "the store is closed", "Open it again"
                raise UnavailableError(what, where=self.url, hint=hint, code="closed") from error
            raise translate(error, self.url, self._settings.schema, sent) from error
