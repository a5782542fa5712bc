"""`mongodb://` and `mongodb+srv://`: rows as documents, in a replica set.

A group of batches is one transaction, acknowledged when most of the servers have it on disk. Reads are of a snapshot
that the primary gives of what most of the servers have.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import parse_qsl

from pymongo import AsyncMongoClient
from pymongo.driver_info import DriverInfo
from pymongo.errors import PyMongoError
from pymongo.uri_parser import split_options

from holdfast.backends import urls
from holdfast.backends.async_backend import TIMEOUT, GroupStamp, ServerBackend
from holdfast.backends.interface import Batch, Capabilities, Query, Row, WordMatch, WordMatches
from holdfast.backends.mongodb.commit_group import MAX_BATCH, MAX_BODY, weight_of
from holdfast.backends.mongodb.committer import Committer
from holdfast.backends.mongodb.errors import Sessionless, errors_of, translated
from holdfast.backends.mongodb.maintenance import damage, size, tidy
from holdfast.backends.mongodb.orphaned_transactions import DRIVER
from holdfast.backends.mongodb.reader import answer
from holdfast.backends.mongodb.row_mapping import Document
from holdfast.backends.mongodb.schema import Collections
from holdfast.backends.mongodb.text_search import find_matches
from holdfast.backends.mongodb.transaction_limit import room
from holdfast.backends.runtime.group_commit import Outcome, body_bytes
from holdfast.errors import ConfigError, TooLargeError

_DATABASE = "holdfast"
_OPTIONS: dict[str, object] = {"timeout": TIMEOUT, "prefix": ""}

_SELECTION_MS = 2_000
"""For how long the driver looks for a primary. Then it is tried again from here, until the store's own deadline."""
_CONNECT_MS = 5_000

_FEW = 1_000
_LIGHT = 4 << 20
"""A batch of no more rows and no more bytes fits into a transaction of any server."""


class MongoDBBackend(ServerBackend):
    """A store in a MongoDB database. `_connect` and what follows it run in the store's loop only."""

    schemes = ("mongodb", "mongodb+srv")

    def __init__(self, address: str, prefix: str, timeout: float) -> None:
        super().__init__(urls.redacted_url(address), timeout)
        self._address = address
        self._prefix = prefix
        self._client: AsyncMongoClient[Document] | None = None
        self._users: Counter[Collections] = Counter()
        self._renewing = False

    @classmethod
    async def open(cls, url: str, **options: Any) -> MongoDBBackend:
        """`timeout`: for how many seconds to go on trying. `prefix`: what the names of all collections start with."""
        if url.partition("://")[0] not in cls.schemes:
            raise ConfigError(
                "this names no MongoDB", where=urls.redacted_url(url), hint="Open mongodb://localhost/agents"
            )
        address, found = urls.split_options(url, _OPTIONS, options)
        prefix = found.get("prefix", "")
        if not isinstance(prefix, str) or "$" in prefix or "\0" in prefix or prefix.startswith((".", "system.")):
            raise ConfigError(
                f"prefix cannot be {prefix!r}",
                where=urls.redacted_url(url),
                hint="It is text without $, such as holdfast_",
            )
        timeout = urls.parse_duration(url, "timeout", found.get("timeout", TIMEOUT), least=0.1)
        store = cls(address, prefix, timeout)
        await store.start()
        return store

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            durable=True, shared=True, max_body=MAX_BODY, max_batch=MAX_BATCH, projected=True, words=True
        )

    async def apply(self, batch: Batch) -> int | None:
        if len(batch) > _FEW or body_bytes(batch) > _LIGHT:
            weight, most = weight_of(batch), await self._run_in_loop(self._room)
            if most is not None and weight > most:
                raise TooLargeError(
                    f"a change of about {weight} bytes is over the {most} that this store makes at once: a fifth of the"
                    " server's cache",
                    where=self.url,
                    hint="Save less at a time, or give the server more cache (storage.wiredTiger.engineConfig"
                    ".cacheSizeGB). Without readable rows (project=False), a change takes less",
                )
        return await super().apply(batch)

    async def match_words(self, match: WordMatch) -> WordMatches:
        return await self._run_in_loop(lambda: self._match(match))

    async def size(self) -> int:
        return await self._run_in_loop(self._size)

    async def check(self) -> list[str]:
        return await self._run_in_loop(self._check)

    async def tidy(self) -> None:
        await self._run_in_loop(self._tidy)

    async def _connect(self) -> object:
        client = self._new_client()
        try:
            with errors_of(self.url):
                layout = Collections(client.get_default_database(_DATABASE), self._prefix)
                await layout.prepare(self.url)
        except BaseException:
            await client.close()
            raise
        self._client = client
        self._layout = layout
        self._committer = Committer(layout)
        return client, layout

    async def _disconnect(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    async def _answer(self, queries: Sequence[Query]) -> list[list[Row]]:
        async with self._used() as layout, layout.database.client.start_session(snapshot=True) as session:
            return await answer(layout, session, queries)

    async def _commit(self, batches: list[Batch], stamp: GroupStamp) -> list[Outcome]:
        async with self._used():
            return await self._committer.commit(batches, stamp)

    async def _room(self) -> int | None:
        async with self._used() as layout:
            return await room(layout)

    async def _match(self, match: WordMatch) -> WordMatches:
        async with self._used() as layout, layout.database.client.start_session(snapshot=True) as session:
            return await find_matches(layout, session, match)

    async def _size(self) -> int:
        async with self._used() as layout:
            return await size(layout)

    async def _check(self) -> list[str]:
        async with self._used() as layout:
            return await damage(layout)

    async def _tidy(self) -> None:
        async with self._used() as layout:
            await tidy(layout)

    @asynccontextmanager
    async def _used(self) -> AsyncIterator[Collections]:
        """The collections, through a client that is not closed meanwhile."""
        layout = self._layout
        self._users[layout] += 1
        try:
            with errors_of(self.url):
                yield layout
        except Sessionless:
            # Its driver would keep the connection, and fail with it for ever.
            if layout is self._layout and not self._renewing:
                self._renewing = True
                try:
                    self._abandoned.append(await self._connect())
                finally:
                    self._renewing = False
            raise
        finally:
            self._users[layout] -= 1
            if layout is not self._layout and not self._users[layout]:
                del self._users[layout]
                await layout.database.client.close()

    def _new_client(self) -> AsyncMongoClient[Document]:
        """A client with our settings, where the URL says nothing else."""
        settings: dict[str, Any] = {
            "serverSelectionTimeoutMS": _SELECTION_MS,
            "connectTimeoutMS": _CONNECT_MS,
            "socketTimeoutMS": int(1000 * min(self._timeout, TIMEOUT * 10)),
        }
        query = self._address.partition("?")[2]
        said = {name.lower() for name, _ in parse_qsl(query)}
        try:
            if query:
                split_options(query)  # raises where the client would only warn, and go on without the option
            return AsyncMongoClient(
                self._address,
                driver=DriverInfo(DRIVER),
                **{name: value for name, value in settings.items() if name.lower() not in said},
            )
        except (PyMongoError, ValueError, TypeError) as error:
            if isinstance(error, PyMongoError):
                raise translated(error, self.url) from error
            raise ConfigError(f"MongoDB cannot be used so: {error}", where=self.url, hint="Mend the URL") from error
