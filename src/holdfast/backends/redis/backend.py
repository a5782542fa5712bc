"""A store in Redis or Valkey: fast, in memory, and as safe as the server's append-only file is set up to be.

`redis://host:6379/0`; `rediss://` is encrypted, and `valkey://` and `valkeys://` are the same by another name. User,
password and the parameters of redis-py for connections go into the URL as redis-py has them.

Options, as arguments or in the URL's query:

- `prefix`: what all keys start with, in braces; `holdfast` by default. Several stores may be in one database.
- `durable`: `server` (the default) takes the server as it is: what is acknowledged is durable only if it writes an
  append-only file and flushes it with every change (`appendfsync always`). `waitaof` has every group of batches wait
  until the server says that it was flushed.
- `replicas`: how many replicas must have a group of batches before it is acknowledged, 0 by default; with `waitaof`,
  have it on their disks.
- `timeout`: for how many seconds to go on trying when the server cannot be reached, 30 by default.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

from redis import exceptions

from holdfast.backends.async_backend import TIMEOUT, GroupStamp, ServerBackend, ServerInterrupted
from holdfast.backends.interface import Batch, Capabilities, Query, Row
from holdfast.backends.redis import errors, key_layout
from holdfast.backends.redis.connections import Command, RedisConnections, address
from holdfast.backends.redis.key_layout import KEY_LAYOUTS, Argument, KeyLayout
from holdfast.backends.redis.lua_scripts import CHECKING, COMMITTING, OPEN, READING
from holdfast.backends.redis.server_info import RedisServer, ask_server
from holdfast.backends.runtime.group_commit import Outcome
from holdfast.backends.urls import parse_choice, parse_duration, parse_int, redacted_url, split_options
from holdfast.errors import ConfigError, HoldfastError, InvalidError

MAX_BODY = 128 << 20
MAX_BATCH = 256 << 20

_FORMAT = b"1"
_OPTIONS = {"prefix": "holdfast", "durable": "server", "replicas": 0, "timeout": TIMEOUT}
_PREFIX = re.compile(r"[\w.:-]{1,200}", re.ASCII)

_PATIENCE = 10.0
"""For how many seconds to wait for an answer before the connection is taken to be lost."""

_READERS = 16
"""How many reads are under way at a time."""

_REMEMBERED = 2 * 86_400
"""For how many seconds the server remembers the last group of a client."""

_PAGE = 500
_SAMPLED = 250


class RedisBackend(ServerBackend):
    """`redis://host:port/number`: a store in a Redis or Valkey server."""

    schemes = ("redis", "rediss", "valkey", "valkeys")

    def __init__(self, url: str, arguments: dict[str, Any], options: dict[str, Any]) -> None:
        super().__init__(redacted_url(url), parse_duration(url, "timeout", options["timeout"], least=0.1))
        self._arguments = arguments
        self._prefix = _prefix(url, options["prefix"])
        self._waits = parse_choice(url, "durable", options["durable"], ("server", "waitaof")) == "waitaof"
        self._replicas = parse_int(url, "replicas", options["replicas"], most=1000)
        self._store = f"{{{self._prefix}}}:store"
        self._id = b""
        self._server = RedisServer()

    @classmethod
    async def open(cls, url: str, **options: Any) -> RedisBackend:
        """Open the store, and make it if it is not there. The module says which options there are."""
        scheme = url.partition("://")[0]
        if scheme not in cls.schemes:
            raise ConfigError("this is no URL of a Redis server", where=redacted_url(url), hint="redis://host:6379/0")
        bare, found = split_options(url, _OPTIONS, options)
        store = cls(url, address(bare), {**_OPTIONS, **found})
        await store.start()
        return store

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            durable=self._waits or self._server.flushes, shared=True, max_body=MAX_BODY, max_batch=MAX_BATCH
        )

    async def size(self) -> int:
        await self.tidy()
        total = 0
        for shape in KEY_LAYOUTS.values():
            total += await self._run_in_loop(partial(self._size_of, shape))
        return total

    async def check(self) -> list[str]:
        await self.tidy()
        wrong: dict[str, None] = {}
        for shape in KEY_LAYOUTS.values():
            for part in await self._parts(shape):
                name = f"{shape.space.name}:{part.decode(errors='replace')}"
                start = b"-"
                while start:
                    start, found = await self._run_in_loop(partial(self._check_rows, shape, part, start))
                    wrong.update((f"{name} {what}", None) for what in found)
        return list(wrong)

    async def tidy(self) -> None:
        await self._run_in_loop(
            self._there
        )  # what is deleted is freed at once, and what was remembered of clients expires

    async def status(self) -> dict[str, int | float | str]:
        """The server's name and version, its memory, and how it keeps what it is given."""
        server = await self._run_in_loop(lambda: ask_server(self._links))
        return server.status()

    # In the loop

    async def _connect(self) -> object:
        self._links = RedisConnections(self._arguments, min(_PATIENCE, self._timeout / 2), self.url)
        self._reading = asyncio.Semaphore(_READERS)
        try:
            await self._links.ask(("EXISTS", self._store))  # in a cluster, this leads to the right node
            self._server = await ask_server(self._links)
            self._suits()
            await (self._there() if self._id else self._find())
            await self._wait_works()
        except BaseException:
            await self._links.close()
            raise
        return self._links

    async def _find(self) -> None:
        """Find the store, or make it."""
        columns = [part for shape in KEY_LAYOUTS.values() for part in (shape.space.name, " ".join(shape.space.columns))]
        made: list[Argument] = ["id", secrets.token_hex(16), "format", _FORMAT, "created", int(time.time()), *columns]
        ((found, version),) = await self._links.run(OPEN, [self._store], made)
        if version != _FORMAT:
            raise ConfigError(
                f"the store has the format {version!r}, and this release knows {_FORMAT.decode()}",
                where=self.url,
                hint="Use the release that wrote it, or another prefix",
            )
        self._id = found

    async def _disconnect(self) -> None:
        await self._links.close()

    async def _there(self) -> None:
        """See that the server has the store."""
        await self._links.read(READING, [self._store], [self._id])

    async def _answer(self, queries: Sequence[Query]) -> list[list[Row]]:
        arguments: list[Argument] = [self._id]
        for query in queries:
            arguments += _understood(query, self.url)
        async with self._reading:
            answers = await self._links.read(READING, [self._store], arguments)
        return [key_layout.found(query, *answers[3 * place : 3 * place + 3]) for place, query in enumerate(queries)]

    async def _commit(self, batches: list[Batch], stamp: GroupStamp) -> list[Outcome]:
        arguments: list[Argument] = [self._id, f"{stamp.client}:{stamp.slot}", stamp.number, _REMEMBERED]
        outcomes: list[Outcome] = [None] * len(batches)
        sent = []
        for place, batch in enumerate(batches):
            try:
                changes = _written(batch, self.url)
            except HoldfastError as error:
                outcomes[place] = error
            else:
                sent.append(place)
                arguments += changes
        if not sent:
            return outcomes
        waits = self._wait_command()
        said, *waited = await self._links.run(COMMITTING, [self._store], arguments, *waits)
        if waits:
            self._see_waited(waited[0])
        for place, outcome in zip(sent, said.split()[1:], strict=True):
            outcomes[place] = None if outcome == b"-" else int(outcome)
        return outcomes

    # Waiting for the disk

    def _wait_command(self) -> list[Command]:
        milliseconds = int(1000 * min(_PATIENCE, self._timeout / 2) / 2)
        if self._waits:
            return [("WAITAOF", 1, self._replicas, milliseconds)]
        return [("WAIT", self._replicas, milliseconds)] if self._replicas else []

    def _see_waited(self, answer: Any) -> None:
        """Raise unless as many have it as are wanted. The group is then sent again, and waited for again."""
        if isinstance(answer, exceptions.RedisError):
            raise ServerInterrupted(f"the server made the change and did not wait: {answer}", sent=True)
        local, replicas = answer if self._waits else (1, answer)
        if local < 1:
            raise ServerInterrupted("the server did not flush its append-only file in time", sent=True)
        if replicas < self._replicas:
            raise ServerInterrupted(f"{replicas} of {self._replicas} replicas have the change", sent=True)

    async def _wait_works(self) -> None:
        """See at once whether the server can wait for its disk at all."""
        if not self._waits:
            return
        (answer,) = await self._links.ask(("WAITAOF", 1, 0, 1))
        if isinstance(answer, exceptions.ResponseError):
            raise ConfigError(
                f"the server cannot wait for its append-only file: {answer}",
                where=self.url,
                hint="Set appendonly yes; WAITAOF is in Valkey, and in Redis from 7.2",
            )

    def _suits(self) -> None:
        policy = self._server.policy
        if policy not in ("", "noeviction"):
            raise ConfigError(
                f"the server drops keys when its memory is full: maxmemory-policy is {policy}",
                where=self.url,
                hint="Set it to noeviction, or use a server of its own",
            )

    # Looking after it

    async def _size_of(self, shape: KeyLayout) -> int:
        """About how much memory a space takes: that of some parts, for all."""
        listed = self._listed(shape)
        count, parts = await self._told(("ZCARD", listed), ("ZRANDMEMBER", listed, _SAMPLED))
        if not parts:
            return 0
        orders = ["", ".keys", *(f".by-{index.name}" for index in shape.indexes)]
        keys = [f"{listed}{order}:".encode() + part for part in parts for order in orders]
        found = await self._told(*(("MEMORY", "USAGE", key, "SAMPLES", 20) for key in keys))
        return sum(size or 0 for size in found) * int(count) // len(parts)

    async def _check_rows(self, shape: KeyLayout, part: bytes, start: bytes) -> tuple[bytes, list[str]]:
        """Where to go on looking, and what is wrong with the rows of a part up to there."""
        arguments: list[Argument] = [self._id, shape.number, part, start, _PAGE]
        ((last, found),) = await self._links.run(CHECKING, [self._store], arguments)
        return b"(" + last if last else b"", [what.decode(errors="replace") for what in found]

    async def _parts(self, shape: KeyLayout) -> list[bytes]:
        """The parts of a space: those that are listed, and those that there are."""
        listed = self._listed(shape)
        (found,) = await self._run_in_loop(lambda: self._told(("ZRANGE", listed, 0, -1)))
        parts = set(found)
        start = f"{listed}:".encode()
        cursor: bytes | None = None
        while cursor != b"0":
            command = ("SCAN", cursor or b"0", "MATCH", start + b"*", "COUNT", 1000)
            ((cursor, keys),) = await self._run_in_loop(partial(self._told, command))
            parts |= {key[len(start) :] for key in keys}
        return sorted(parts)

    def _listed(self, shape: KeyLayout) -> str:
        return f"{{{self._prefix}}}:{shape.space.name}"

    async def _told(self, *commands: Command) -> list[Any]:
        answers = await self._links.ask(*commands)
        for answer in answers:
            if isinstance(answer, exceptions.RedisError):
                raise errors.answered(answer, self.url) from answer
        return answers


def _prefix(url: str, value: object) -> str:
    if not isinstance(value, str) or not _PREFIX.fullmatch(value):
        raise ConfigError(
            f"prefix cannot be {value!r}",
            where=redacted_url(url),
            hint="It is made of letters, digits, and . : _ -",
        )
    return value


def _understood(query: Query, where: str) -> list[Argument]:
    try:
        return key_layout.query(query)
    except UnicodeEncodeError as error:
        raise InvalidError(f"a name is no text: {error}", where=where) from error


def _written(batch: Batch, where: str) -> list[Argument]:
    """A batch as the script takes it."""
    arguments: list[Argument] = [len(batch)]
    try:
        for change in batch:
            arguments += key_layout.change(change)
    except UnicodeEncodeError as error:
        raise InvalidError(f"a name is no text: {error}", where=where) from error
    return arguments
