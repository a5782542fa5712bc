"""A store in Redis or Valkey: fast, in memory, and as safe as the server's append-only file is set up to be.

`redis://host:6379/0`; `rediss://` is encrypted, and `valkey://` and `valkeys://` are the same by another name. User,
password and the parameters of redis-py for connections go into the URL as redis-py has them.

Options, as arguments or in the URL's query:

- `prefix`: the start of all keys, in braces; `holdfast` by default. Several stores may be in one database.
- `durable`: with `server`, the default, a change is durable only if the server writes an append-only file and flushes
  it at every change (`appendfsync always`). With `waitaof`, every group of batches waits until it is flushed.
- `replicas`: how many replicas must have a group of batches before it is acknowledged, 0 by default; with `waitaof`,
  on their disks.
- `timeout`: for how many seconds to retry when the server cannot be reached any more, 30 by default.
- `connect_timeout`: for how long opening retries to reach the server, as `30` or `30s`; by default it does not.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from collections.abc import AsyncGenerator, Sequence
from functools import partial
from typing import Any, ClassVar

from redis import exceptions

from holdfast.backends.async_backend import TIMEOUT, GroupStamp, ServerBackend, ServerInterrupted
from holdfast.backends.connection_errors import attempt_seconds
from holdfast.backends.feed import build_token, parse_number, parse_token
from holdfast.backends.interface import Batch, Capabilities, Changes, Query, Row, Scan
from holdfast.backends.redis import errors, key_layout
from holdfast.backends.redis.connections import (
    Command,
    RedisConnections,
    RedisServerInfo,
    connection_arguments,
    read_server_info,
    rewrite_files,
)
from holdfast.backends.redis.key_layout import KEY_LAYOUTS, Argument, KeyLayout, decode_words
from holdfast.backends.redis.lua_scripts import CHANGES, CHECK, COMMIT, FORGET_DELETED, OPEN, READ
from holdfast.backends.runtime.group_commit import Outcome
from holdfast.backends.urls import invalid_option, parse_choice, parse_duration, parse_int, redacted_url, split_options
from holdfast.errors import ConfigError, HoldfastError, InvalidError

MAX_BODY = 128 << 20
MAX_BATCH = 256 << 20

_FORMAT = b"1"
_OPTIONS = {"prefix": "holdfast", "durable": "server", "replicas": 0, "timeout": TIMEOUT, "connect_timeout": 0}
_PREFIX = re.compile(r"[\w.:-]{1,200}", re.ASCII)

_MAX_READS = 16
"""The most reads at a time."""

_STAMP_SECONDS = 2 * 86_400
"""How long the server remembers the last group of a client."""

_PAGE = 500
_SAMPLE = 250


class RedisBackend(ServerBackend):
    """`redis://host:port/number`: a store in a Redis or Valkey server."""

    schemes: ClassVar[tuple[str, ...]] = ("redis", "rediss", "valkey", "valkeys")
    announces = True

    def __init__(self, url: str, arguments: dict[str, Any], options: dict[str, Any]) -> None:
        super().__init__(
            redacted_url(url),
            parse_duration(url, "timeout", options["timeout"], least=0.1),
            parse_duration(url, "connect_timeout", options["connect_timeout"]),
        )
        self._arguments = arguments
        self._prefix = _prefix(url, options["prefix"])
        self._waitaof = parse_choice(url, "durable", options["durable"], ("server", "waitaof")) == "waitaof"
        self._replicas = parse_int(url, "replicas", options["replicas"], most=1000)
        self._store = f"{{{self._prefix}}}:store"
        self._id = b""
        self._server = RedisServerInfo()

    @classmethod
    async def open(cls, url: str, **options: Any) -> RedisBackend:
        """Open the store, and create it if it does not exist. The module documents the options."""
        scheme = url.partition("://")[0]
        if scheme not in cls.schemes:
            raise ConfigError(
                "this is not the URL of a Redis server", where=redacted_url(url), hint="redis://host:6379/0"
            )
        bare, chosen = split_options(url, _OPTIONS, options)
        store = cls(url, connection_arguments(bare), {**_OPTIONS, **chosen})
        await store.start()
        return store

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            durable=self._waitaof or self._server.flushes_each_write,
            shared=True,
            max_body=MAX_BODY,
            max_batch=MAX_BATCH,
        )

    async def changes(self, since: str | None = None) -> Changes:
        if since is None:
            return await self._run_in_loop(lambda: self._find_changes("", None))
        place, number = parse_token(since, "redis", 2, self.url)
        parse_number(number, since, self.url)
        return await self._run_in_loop(lambda: self._find_changes(place, int(number)))

    async def count_rows(self, scans: Sequence[Scan]) -> list[int] | None:
        if any(len(scan.prefix) < KEY_LAYOUTS[scan.space].width for scan in scans):
            return None  # in several parts
        return await self._run_in_loop(lambda: self._count(scans))

    async def size(self) -> int:
        await self._run_in_loop(self._check_exists)
        total = 0
        for layout in KEY_LAYOUTS.values():
            total += await self._run_in_loop(partial(self._size_of, layout))
        return total

    async def check(self) -> list[str]:
        await self._run_in_loop(self._check_exists)
        findings: dict[str, None] = {}
        for layout in KEY_LAYOUTS.values():
            for part in await self._parts(layout):
                name = f"{layout.space.name}:{part.decode(errors='replace')}"
                start = b"-"
                while start:
                    start, page = await self._run_in_loop(partial(self._check_rows, layout, part, start))
                    findings.update((f"{name} {finding}", None) for finding in page)
        return list(findings)

    async def tidy(self) -> None:
        """Remove the names of deleted lines from the list of changes. Redis frees deleted rows at once, and the stamps
        of clients expire."""
        await self._run_in_loop(lambda: self._connections.run_script(FORGET_DELETED, [self._store], [self._id]))

    async def purge(self) -> list[str]:
        await self.tidy()
        return await self._run_once(lambda: rewrite_files(self._connections))

    async def status(self) -> dict[str, int | float | str]:
        """The server's name, version, memory and durability settings."""
        server = await self._run_in_loop(lambda: read_server_info(self._connections))
        return server.status()

    # In the loop

    async def _connect(self) -> RedisConnections:
        self._connections = RedisConnections(self._arguments, attempt_seconds(self._timeout), self.url)
        self._read_slots = asyncio.Semaphore(_MAX_READS)
        try:
            await self._connections.reach(("EXISTS", self._store))  # in a cluster, this finds the right node
            self._server = await read_server_info(self._connections)
            self._check_eviction()
            await (self._check_exists() if self._id else self._find_or_create())
            await self._check_waitaof()
        except BaseException:
            await self._connections.close()
            raise
        return self._connections

    async def _find_or_create(self) -> None:
        columns = [
            part for layout in KEY_LAYOUTS.values() for part in (layout.space.name, " ".join(layout.space.columns))
        ]
        fields: list[Argument] = ["id", secrets.token_hex(16), "format", _FORMAT, "created", int(time.time()), *columns]
        ((self._id, version),) = await self._connections.run_script(OPEN, [self._store], fields)
        if version != _FORMAT:
            raise ConfigError(
                f"the store has the format {version!r}, and this release knows {_FORMAT.decode()}",
                where=self.url,
                hint="Use the release that wrote it, or another prefix",
            )

    async def _disconnect(self) -> None:
        await self._connections.close()

    async def _check_exists(self) -> None:
        await self._connections.run_read_script(READ, [self._store], [self._id])

    async def _answer(self, queries: Sequence[Query]) -> list[list[Row]]:
        arguments: list[Argument] = [self._id]
        for query in queries:
            arguments += _encode_query(query, self.url)
        async with self._read_slots:
            answers = await self._connections.run_read_script(READ, [self._store], arguments)
        parts = zip(answers[::3], answers[1::3], answers[2::3], strict=True)
        return [key_layout.decode_rows(query, *part) for query, part in zip(queries, parts, strict=True)]

    async def _commit(self, batches: list[Batch], stamp: GroupStamp) -> list[Outcome]:
        arguments: list[Argument] = [self._id, f"{stamp.client}:{stamp.slot}", stamp.number, _STAMP_SECONDS]
        outcomes: list[Outcome] = [None] * len(batches)
        sent = []
        for position, batch in enumerate(batches):
            try:
                changes = _encode_batch(batch, self.url)
            except HoldfastError as error:
                outcomes[position] = error
            else:
                sent.append(position)
                arguments += changes
        if not sent:
            return outcomes
        wait = self._wait_command()
        reply, *wait_replies = await self._connections.run_script(COMMIT, [self._store], arguments, *wait)
        if wait:
            self._check_wait(wait_replies[0])
        for position, outcome in zip(sent, reply.split()[1:], strict=True):
            outcomes[position] = None if outcome == b"-" else int(outcome)
        return outcomes

    async def _announce(self, topic: str) -> None:
        await self._connections.execute(("PUBLISH", self._channel(topic), ""))

    def _announcements(self, topic: str) -> AsyncGenerator[None]:
        return self._connections.subscribe(self._channel(topic))

    def _channel(self, topic: str) -> str:
        return f"{{{self._prefix}}}:{topic}"

    async def _find_changes(self, place: str, since: int | None) -> Changes:
        arguments: list[Argument] = [self._id, "" if since is None else since]
        last, forgotten, history, found = await self._connections.run_read_script(CHANGES, [self._store], arguments)
        # The history of a server ends when it starts again, and when another one takes over, which may have less.
        here = f"{self._id.decode()}-{history.decode()}"
        lines = [(str(tenant), str(line)) for tenant, line in (decode_words((str, str), each) for each in found)]
        known = since is None or (place == here and int(forgotten) <= since <= int(last))
        return Changes(lines, build_token("redis", here, int(last)), complete=known)

    # Durability

    def _wait_command(self) -> list[Command]:
        milliseconds = int(1000 * attempt_seconds(self._timeout) / 2)
        if self._waitaof:
            return [("WAITAOF", 1, self._replicas, milliseconds)]
        return [("WAIT", self._replicas, milliseconds)] if self._replicas else []

    def _check_wait(self, answer: Any) -> None:
        """Raise unless enough servers have the group. It is then sent again, and waited for again."""
        if isinstance(answer, exceptions.RedisError):
            raise ServerInterrupted(f"the server applied the change and did not wait: {answer}", sent=True)
        local, replicas = answer if self._waitaof else (1, answer)
        if local < 1:
            raise ServerInterrupted("the server did not flush its append-only file in time", sent=True)
        if replicas < self._replicas:
            raise ServerInterrupted(f"{replicas} of {self._replicas} replicas have the change", sent=True)

    async def _check_waitaof(self) -> None:
        """Check when the store is opened that the server supports WAITAOF."""
        if not self._waitaof:
            return
        (answer,) = await self._connections.execute(("WAITAOF", 1, 0, 1))
        if isinstance(answer, exceptions.ResponseError):
            raise ConfigError(
                f"the server cannot wait for its append-only file: {answer}",
                where=self.url,
                hint="Set appendonly yes; WAITAOF is in Valkey, and in Redis from 7.2",
            )

    def _check_eviction(self) -> None:
        policy = self._server.eviction_policy
        if policy not in ("", "noeviction"):
            raise ConfigError(
                f"the server drops keys when its memory is full: maxmemory-policy is {policy}",
                where=self.url,
                hint="Set it to noeviction, or use a server of its own",
            )

    # Maintenance

    async def _count(self, scans: Sequence[Scan]) -> list[int]:
        commands: list[Command] = []
        for scan in scans:
            layout = KEY_LAYOUTS[scan.space]
            part, _ = layout.split(scan.prefix)
            *_, least, most = key_layout.encode_query(scan)
            commands.append(("ZLEXCOUNT", f"{self._parts_key(layout)}.keys:".encode() + part, least, most))
        return [int(count) for count in await self._execute(*commands)]

    async def _size_of(self, layout: KeyLayout) -> int:
        """Estimate the memory of a table from a sample of its parts."""
        table = self._parts_key(layout)
        count, parts = await self._execute(("ZCARD", table), ("ZRANDMEMBER", table, _SAMPLE))
        if not parts:
            return 0
        orders = ["", ".keys", *(f".by-{index.name}" for index in layout.indexes)]
        keys = [f"{table}{order}:".encode() + part for part in parts for order in orders]
        sizes = await self._execute(*(("MEMORY", "USAGE", key, "SAMPLES", 20) for key in keys))
        return sum(size or 0 for size in sizes) * int(count) // len(parts)

    async def _check_rows(self, layout: KeyLayout, part: bytes, start: bytes) -> tuple[bytes, list[str]]:
        """Check a page of the rows of a part. Returns where the next page starts, and the findings."""
        arguments: list[Argument] = [self._id, layout.number, part, start, _PAGE]
        ((last, findings),) = await self._connections.run_script(CHECK, [self._store], arguments)
        return b"(" + last if last else b"", [finding.decode(errors="replace") for finding in findings]

    async def _parts(self, layout: KeyLayout) -> list[bytes]:
        """List the parts of a table: those in its index, and those whose keys exist."""
        table = self._parts_key(layout)
        (listed,) = await self._run_in_loop(lambda: self._execute(("ZRANGE", table, 0, -1)))
        parts = set(listed)
        start = f"{table}:".encode()
        cursor: bytes | None = None
        while cursor != b"0":
            command = ("SCAN", cursor or b"0", "MATCH", start + b"*", "COUNT", 1000)
            ((cursor, keys),) = await self._run_in_loop(partial(self._execute, command))
            parts |= {key[len(start) :] for key in keys}
        return sorted(parts)

    def _parts_key(self, layout: KeyLayout) -> str:
        return f"{{{self._prefix}}}:{layout.space.name}"

    async def _execute(self, *commands: Command) -> list[Any]:
        replies = await self._connections.execute(*commands)
        for reply in replies:
            if isinstance(reply, exceptions.RedisError):
                raise errors.translate_reply(reply, self.url) from reply
        return replies


def _prefix(url: str, value: object) -> str:
    if not isinstance(value, str) or not _PREFIX.fullmatch(value):
        raise invalid_option(url, "prefix", value, "text of letters, digits, and . : _ -")
    return value


def _encode_query(query: Query, where: str) -> list[Argument]:
    try:
        return key_layout.encode_query(query)
    except UnicodeEncodeError as error:
        raise InvalidError(f"a name is not valid text: {error}", where=where) from error


def _encode_batch(batch: Batch, where: str) -> list[Argument]:
    arguments: list[Argument] = [len(batch)]
    try:
        for change in batch:
            arguments += key_layout.encode_change(change)
    except UnicodeEncodeError as error:
        raise InvalidError(f"a name is not valid text: {error}", where=where) from error
    return arguments
