"""`mongodb://` and `mongodb+srv://`: rows as documents, in a replica set.

The small rows of a line are in one document, and most batches are one update of it. Others are in transactions. All are
acknowledged when a majority of the servers has them on disk. Reads use a snapshot on the primary of what the majority
has.
"""

from __future__ import annotations

import asyncio
import struct
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any, ClassVar, TypeVar
from urllib.parse import parse_qsl

from bson import encode
from pymongo import AsyncMongoClient
from pymongo.asynchronous.client_session import AsyncClientSession
from pymongo.driver_info import DriverInfo
from pymongo.errors import ConfigurationError, PyMongoError
from pymongo.server_description import ServerDescription
from pymongo.uri_parser import split_options

from holdfast.backends import urls
from holdfast.backends.async_backend import TIMEOUT, GroupStamp, ServerBackend, ServerUnreachable
from holdfast.backends.connection_errors import (
    answers_without_tls,
    attempt_seconds,
    certificate_error,
    certificate_file_error,
    error_chain,
    plain_server_error,
    tls_server_error,
    uses_tls,
    was_connected,
)
from holdfast.backends.interface import Batch, Capabilities, Changes, Query, Row, Scan, WordMatch, WordMatches
from holdfast.backends.mongodb.change_stream import announce, announcements, find_changes, parse_since
from holdfast.backends.mongodb.commit_group import MAX_BATCH, MAX_BODY, cache_weight, read_transaction_limit
from holdfast.backends.mongodb.committer import Committer
from holdfast.backends.mongodb.errors import SessionsUnsupported, translate, translate_errors
from holdfast.backends.mongodb.maintenance import DRIVER_NAME, find_damage, purge, size, tidy
from holdfast.backends.mongodb.reader import count_rows, find_matches, run_queries
from holdfast.backends.mongodb.row_mapping import Document
from holdfast.backends.mongodb.schema import Collections
from holdfast.backends.runtime.group_commit import Outcome, body_bytes
from holdfast.errors import ConfigError, TooLargeError

_DATABASE = "holdfast"
_OPTIONS: dict[str, object] = {"timeout": TIMEOUT, "connect_timeout": 0, "prefix": ""}

_SELECTION_MS = 2_000
"""How long the driver looks for a primary. Then the store retries, until its own deadline."""

_SMALL_ROWS = 1_000
_SMALL_BYTES = 4 << 20
"""A batch of no more rows and bytes fits into a transaction of any server."""


T = TypeVar("T")


class _Clients(list[AsyncMongoClient[Document]]):
    """The clients of a store, of which all but the last one are not used any more."""

    async def close(self) -> None:
        """Close all of them."""
        while self:
            await self.pop().close()


class MongoDBBackend(ServerBackend):
    """A store in a MongoDB database. `_connect` and what follows it run in the store's loop only."""

    schemes: ClassVar[tuple[str, ...]] = ("mongodb", "mongodb+srv")
    announces = True

    def __init__(self, address: str, prefix: str, timeout: float, connect_timeout: float) -> None:
        super().__init__(urls.redacted_url(address), timeout, connect_timeout)
        self._address = address
        self._prefix = prefix
        self._client: AsyncMongoClient[Document] | None = None
        self._clients = _Clients()
        self._use_counts: Counter[Collections] = Counter()
        self._reconnecting = False

    @classmethod
    async def open(cls, url: str, **options: Any) -> MongoDBBackend:
        """Open the store, and make its collections if they do not exist.

        - `prefix`: the start of the names of all collections.
        - `timeout`: for how many seconds to retry when the server cannot be reached any more, 30 by default.
        - `connect_timeout`: for how long opening retries to reach the server, as `30` or `30s`; by default it does not.
        """
        if url.partition("://")[0] not in cls.schemes:
            raise ConfigError(
                "this is not the URL of a MongoDB database",
                where=urls.redacted_url(url),
                hint="Open mongodb://localhost/agents",
            )
        urls.check_address(url)
        address, found = urls.split_options(url, _OPTIONS, options)
        prefix = found.get("prefix", "")
        if not isinstance(prefix, str) or "$" in prefix or "\0" in prefix or prefix.startswith((".", "system.")):
            raise urls.invalid_option(url, "prefix", prefix, "text without $, such as holdfast_")
        timeout = urls.parse_duration(url, "timeout", found.get("timeout", TIMEOUT), least=0.1)
        connect_timeout = urls.parse_duration(url, "connect_timeout", found.get("connect_timeout", 0))
        store = cls(address, prefix, timeout, connect_timeout)
        await store.start()
        return store

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            durable=True, shared=True, max_body=MAX_BODY, max_batch=MAX_BATCH, projected=True, words=True, times=True
        )

    async def apply(self, batch: Batch) -> int | None:
        if len(batch) > _SMALL_ROWS or body_bytes(batch) > _SMALL_BYTES:
            weight, most = cache_weight(batch), await self._run_in_loop(lambda: self._use(read_transaction_limit))
            if most is not None and weight > most:
                raise TooLargeError(
                    f"a change of about {weight} bytes is over the {most} that this store takes at once: a fifth of the"
                    " server's cache",
                    where=self.url,
                    hint="Save less at once, or give the server more cache (storage.wiredTiger.engineConfig"
                    ".cacheSizeGB). Without readable rows (project=False), a change takes less",
                )
        return await super().apply(batch)

    async def match_words(self, match: WordMatch) -> WordMatches:
        return await self._run_in_loop(
            lambda: self._use_snapshot(lambda collections, session: find_matches(collections, session, match))
        )

    async def changes(self, since: str | None = None) -> Changes:
        place, time = parse_since(since, self.url)
        return await self._run_in_loop(lambda: self._use(lambda collections: find_changes(collections, place, time)))

    async def count_rows(self, scans: Sequence[Scan]) -> list[int]:
        return await self._run_in_loop(
            lambda: self._use_snapshot(lambda collections, session: count_rows(collections, session, scans))
        )

    async def size(self) -> int:
        return await self._run_in_loop(lambda: self._use(size))

    async def check(self) -> list[str]:
        return await self._run_once(lambda: self._use(find_damage))

    async def tidy(self) -> None:
        await self._run_once(lambda: self._use(tidy))

    async def purge(self) -> list[str]:
        return await self._run_once(lambda: self._use(purge))

    def _on_new_loop(self) -> None:
        super()._on_new_loop()
        self._abandoned.append(self._clients)  # those of the parent, in a forked child
        self._clients = _Clients()

    async def _connect(self) -> _Clients:
        client = self._new_client()
        try:
            with translate_errors(self.url):
                await wait_for_server(client, attempt_seconds(self._timeout), self.url)
                collections = Collections(client.get_default_database(_DATABASE), self._prefix)
                await collections.prepare(self.url)
        except BaseException:
            await client.close()
            raise
        self._client = client
        self._collections = collections
        self._committer = Committer(collections, self.url)
        self._clients.append(client)
        return self._clients

    async def _disconnect(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await self._committer.close()
            await self._clients.close()

    async def _answer(self, queries: Sequence[Query]) -> list[list[Row]]:
        return await self._use_snapshot(lambda collections, session: run_queries(collections, session, queries))

    async def _commit(self, batches: list[Batch], stamp: GroupStamp) -> list[Outcome]:
        return await self._use(lambda _: self._committer.commit(batches, stamp))

    async def _announce(self, topic: str) -> None:
        await self._use(lambda collections: announce(collections, topic))

    async def _announcements(self, topic: str) -> AsyncGenerator[None]:
        async with self._open_collections() as collections, aclosing(announcements(collections, topic)) as found:
            async for _ in found:
                yield

    async def _use(self, work: Callable[[Collections], Coroutine[Any, Any, T]]) -> T:
        async with self._open_collections() as collections:
            return await work(collections)

    async def _use_snapshot(self, work: Callable[[Collections, AsyncClientSession], Coroutine[Any, Any, T]]) -> T:
        async with (
            self._open_collections() as collections,
            collections.database.client.start_session(snapshot=True) as session,
        ):
            return await work(collections, session)

    @asynccontextmanager
    async def _open_collections(self) -> AsyncIterator[Collections]:
        """The collections, whose client is not closed while the block runs."""
        collections = self._collections
        self._use_counts[collections] += 1
        try:
            with translate_errors(self.url):
                yield collections
        except SessionsUnsupported:
            # The driver would reuse the connection, and fail forever.
            if collections is self._collections and not self._reconnecting:
                self._reconnecting = True
                try:
                    await self._connect()
                finally:
                    self._reconnecting = False
            raise
        finally:
            self._use_counts[collections] -= 1
            if collections is not self._collections and not self._use_counts[collections]:
                del self._use_counts[collections]
                await collections.database.client.close()

    def _new_client(self) -> AsyncMongoClient[Document]:
        """Create a client, with defaults for what the URL does not set."""
        defaults: dict[str, Any] = {
            "serverSelectionTimeoutMS": _SELECTION_MS,
            "connectTimeoutMS": int(1000 * attempt_seconds(self._timeout)),
        }
        query = self._address.partition("?")[2]
        in_url = {name.lower() for name, _ in parse_qsl(query)}
        try:
            if query:
                split_options(query)  # raises where the client would only warn
            return AsyncMongoClient(
                self._address,
                driver=DriverInfo(DRIVER_NAME),
                **{name: value for name, value in defaults.items() if name.lower() not in in_url},
            )
        except (PyMongoError, ValueError, TypeError, OSError) as error:
            if isinstance(error, PyMongoError):
                raise translate(error, self.url) from error
            if isinstance(error, OSError):
                raise certificate_file_error(error, self.url, "tlsCAFile, tlsCertificateKeyFile") from error
            raise ConfigError(f"the MongoDB URL is invalid: {error}", where=self.url, hint="Correct the URL") from error


_POLL_SECONDS = 0.02

_TLS_HINT = "Check tls and tlsCAFile in the URL"
_HANDSHAKE = "SSL handshake failed: "
"""How the driver's message starts if a connection was made and not encrypted."""
_CERTIFICATE = "CERTIFICATE_VERIFY_FAILED"

_OP_MSG = 2013


async def wait_for_server(client: AsyncMongoClient[Document], seconds: float, where: str) -> None:
    """Wait until a server answers. Raises at once if none can be reached, or none is in the replica set of the URL.

    The driver itself would try to connect until its selection of a server times out, whatever the reason.
    """
    await client.aconnect()
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while True:
        servers = list(client.topology_description.server_descriptions().values())
        if not servers:  # the driver drops those that are in another set, or in none
            name = client.topology_description.replica_set_name
            raise _wrong_set_error(f"no server at this address is in the replica set {name!r}", where)
        if any(server.is_server_type_known for server in servers):
            return
        failed = [server for server in servers if server.error]
        if len(failed) == len(servers):
            for server in failed:
                await _check_error(server, where)
            raise ServerUnreachable("; ".join(map(_reason, failed)))
        if loop.time() >= deadline:
            names = ", ".join(":".join(map(str, server.address)) for server in servers)
            raise ServerUnreachable(f"{names}: no answer came in {seconds:g} s")
        await asyncio.sleep(_POLL_SECONDS)


async def _check_error(server: ServerDescription, where: str) -> None:
    """Raise if waiting does not help."""
    host, port = server.address
    assert server.error is not None  # noqa: S101 - checked before
    for error in error_chain(server.error):
        if isinstance(error, ConfigurationError):
            raise _wrong_set_error(str(error), where) from error
    if _CERTIFICATE in _reason(server):
        raise certificate_error(_reason(server), where, "Name the authority of its certificate with tlsCAFile")
    if port is None or not was_connected(server.error):
        return
    if _reason(server).startswith(_HANDSHAKE):
        if await answers_without_tls(host, port, _hello()):
            raise plain_server_error(where, _TLS_HINT)
    elif await uses_tls(host, port):
        raise tls_server_error(where, "Add tls=true to the URL")


def _wrong_set_error(what: str, where: str) -> ConfigError:
    return ConfigError(what, where=where, hint="Correct replicaSet in the URL: rs.status().set in mongosh is its name")


def _reason(server: ServerDescription) -> str:
    return str(server.error).partition(" (configured timeouts")[0]


def _hello() -> bytes:
    """The command `hello`, as a message of MongoDB's protocol."""
    body = struct.pack("<ib", 0, 0) + encode({"hello": 1, "$db": "admin"})
    return struct.pack("<iiii", 16 + len(body), 1, 0, _OP_MSG) + body
