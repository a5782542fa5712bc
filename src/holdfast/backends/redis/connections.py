"""Connections to a Redis server, in the loop of the store, and what the server reports about itself.

These are the connections of redis-py without its clients, which retry commands: here it must be known whether a command
was sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import Any, NamedTuple, TypeAlias

from redis import exceptions
from redis.asyncio.connection import Connection, SSLConnection, parse_url

from holdfast.backends.async_backend import PACE, ServerInterrupted, ServerUnreachable
from holdfast.backends.connection_errors import (
    answers_without_tls,
    certificate_file_error,
    plain_server_error,
    tls_server_error,
    uses_tls,
    was_connected,
)
from holdfast.backends.redis import errors
from holdfast.backends.redis.lua_scripts import Script
from holdfast.backends.urls import check_address, redacted_url
from holdfast.errors import ConfigError

Command: TypeAlias = Sequence[bytes | str | int | float]

_TLS_SECONDS = 1.0
"""After how long without an answer it is checked whether both sides use TLS."""

_CONNECTION_ERRORS = (exceptions.ConnectionError, exceptions.TimeoutError, OSError)


def connection_arguments(url: str) -> dict[str, Any]:
    """Parse a URL into the arguments of a connection of redis-py."""
    where = redacted_url(url)
    check_address(url)
    scheme, _, rest = url.partition("://")
    try:
        arguments: dict[str, Any] = dict(parse_url(f"{scheme.replace('valkey', 'redis')}://{rest}"))
    except ValueError as error:
        what = f"this is not the URL of a Redis server: {error}"
        raise ConfigError(what, where=where, hint="As redis://host:6379/0") from None
    path = rest.partition("?")[0].partition("/")[2]
    if path and "db" not in arguments:
        raise ConfigError(f"{path!r} is not the number of a database", where=where, hint="As redis://host:6379/0")
    return {"socket_keepalive": True, **arguments, "decode_responses": False, "protocol": 2}


class RedisConnections:
    """Connections to one server: one for each exchange that is running."""

    def __init__(self, arguments: dict[str, Any], answer_timeout: float, where: str) -> None:
        self._arguments = dict(arguments)
        self._connection_class: type[Connection] = self._arguments.pop("connection_class", Connection)
        self._answer_timeout = self._arguments.pop("socket_timeout", None) or answer_timeout
        self._arguments.setdefault("socket_connect_timeout", self._answer_timeout)
        self._arguments["socket_timeout"] = None
        self._moved: dict[str, Any] = {}
        """The node of a cluster that has the keys, if it is not that of the URL."""
        self._where = where
        self._idle: list[Connection] = []
        self._closed = False

    async def reach(self, command: Command) -> None:
        """Send a first command. Raises `ConfigError` if the server uses TLS and the URL does not, or the reverse."""
        sent = asyncio.ensure_future(self.execute(command))
        try:
            # To a client that starts with TLS, a server without it says nothing, and waits for more.
            await asyncio.wait([sent], timeout=_TLS_SECONDS)
            failure = sent.exception() if sent.done() else None
            if not sent.done() or (isinstance(failure, ServerUnreachable) and was_connected(failure)):
                await self._check_tls()
            await sent
        finally:
            sent.cancel()
            await asyncio.wait([sent])

    async def _check_tls(self) -> None:
        host, port = self._arguments.get("host", "localhost"), self._arguments.get("port", 6379)
        if issubclass(self._connection_class, SSLConnection):
            if await answers_without_tls(host, port, b"PING\r\n"):
                raise plain_server_error(self._where, errors.PLAIN_HINT)
        elif await uses_tls(host, port):
            raise tls_server_error(self._where, "Open rediss:// in place of redis://")

    async def execute(self, *commands: Command) -> list[Any]:
        """Send commands together, and return the replies; error replies are among them.

        Raises `ServerInterrupted`, which says whether the commands may have been received.
        """
        replies = await self._exchange(commands)
        for reply in replies:
            if isinstance(reply, exceptions.ReadOnlyError):
                await self._close_idle()  # the name in the URL may belong to another server now
            elif isinstance(reply, exceptions.MovedError):
                await self._close_idle()
                self._moved = {"host": reply.host or self._arguments.get("host", "localhost"), "port": reply.port}
                return await self._exchange(commands)
        return replies

    async def run_read_script(self, script: Script, keys: Sequence[str], arguments: Command) -> Any:
        """Run a script that only reads. Raises if the server has become a replica, which may lag."""
        reply, role = await self.run_script(script, keys, arguments, ("ROLE",))
        await self._check_role(role)
        return reply

    async def run_script(self, script: Script, keys: Sequence[str], arguments: Command, *after: Command) -> list[Any]:
        """Run a script and then some commands, and return their replies. Loads the script if the server lacks it."""
        call = ("EVALSHA", script.digest, len(keys), *keys, *arguments)
        replies = await self.execute(call, *after)
        if isinstance(replies[0], exceptions.NoScriptError):
            replies = (await self.execute(("SCRIPT", "LOAD", script.text), call, *after))[1:]
        if isinstance(replies[0], exceptions.RedisError):
            if errors.is_data_lost(replies[0]):
                await self._check_role(*await self.execute(("ROLE",)))  # a new replica has no data yet
            raise errors.translate_reply(replies[0], self._where) from replies[0]
        return replies

    async def _exchange(self, commands: Sequence[Command]) -> list[Any]:
        connection = await self._acquire()
        try:
            packed = connection.pack_commands(commands)
            async with asyncio.timeout(self._answer_timeout + sum(map(len, packed)) / PACE):
                await _send(connection, packed)
                replies = [await _read_reply(connection) for _ in commands]
        except (*_CONNECTION_ERRORS, TimeoutError) as error:
            await connection.disconnect(nowait=True)
            await self._close_idle()
            loading = isinstance(error, exceptions.BusyLoadingError)
            raise ServerInterrupted(str(error) or "no answer came in time", sent=not loading) from error
        except BaseException:
            await connection.disconnect(nowait=True)
            raise
        if self._closed:
            await connection.disconnect(nowait=True)
        else:
            self._idle.append(connection)
        return replies

    async def subscribe(self, channel: str) -> AsyncGenerator[None]:
        """Yield when a channel is subscribed to, and at each message. Ends if this user may not."""
        connection = await self._acquire()
        try:
            await _send(connection, connection.pack_commands([("SUBSCRIBE", channel)]))
            while not isinstance(await _read_reply(connection), exceptions.RedisError):
                yield
        finally:
            await connection.disconnect(nowait=True)

    async def close(self) -> None:
        """Close idle connections now, and the others when they become idle."""
        self._closed = True
        while self._idle:
            await self._idle.pop().disconnect()

    async def _acquire(self) -> Connection:
        while self._idle:
            connection = self._idle.pop()
            if connection.is_connected:
                return connection
        try:
            connection = self._connection_class(**{**self._arguments, **self._moved})
        except (TypeError, ValueError, exceptions.RedisError) as error:
            raise ConfigError(f"the URL has an unknown parameter: {error}", where=self._where) from error
        if isinstance(connection, SSLConnection):
            try:
                connection.ssl_context.get()  # it is kept for the connection; so far, nothing but files was in use
            except OSError as error:
                options = "ssl_ca_certs, ssl_certfile, ssl_keyfile"
                raise certificate_file_error(error, self._where, options) from error
        try:
            async with asyncio.timeout(self._answer_timeout):
                await connection.connect()  # type: ignore[no-untyped-call]
                await self._check_primary(connection)
        except BaseException as error:
            self._moved = {}
            await connection.disconnect(nowait=True)
            if isinstance(error, (*_CONNECTION_ERRORS, exceptions.RedisError)):
                raise errors.translate_connect_error(error, self._where) from error
            raise
        return connection

    async def _check_primary(self, connection: Connection) -> None:
        """Refuse a replica, which may lag."""
        await _send(connection, connection.pack_commands([("ROLE",)]))
        if _is_replica(await _read_reply(connection)):
            raise ServerInterrupted("the server is a replica; changes are made on the primary")

    async def _check_role(self, role: Any) -> None:
        if _is_replica(role):
            await self._close_idle()
            raise ServerInterrupted("the server has become a replica")

    async def _close_idle(self) -> None:
        """Close idle connections when one broke: most likely the others did too."""
        while self._idle:
            await self._idle.pop().disconnect(nowait=True)


async def _send(connection: Connection, packed: Sequence[bytes]) -> None:
    try:
        await connection.send_packed_command(packed, check_health=False)
    except AttributeError as error:
        writer = connection._writer
        if writer is not None and not writer.transport.is_closing():
            raise
        # Some releases of Python 3.12 write to a closed transport as if it were open.
        raise exceptions.ConnectionError("the connection was closed during a write") from error


async def _read_reply(connection: Connection) -> Any:
    try:
        return await connection.read_response()
    except exceptions.ResponseError as error:
        if isinstance(error, exceptions.ConnectionError):
            raise
        return error


def _is_replica(role: Any) -> bool:
    """Whether a reply to ROLE is that of a replica. A user who may not ask is assumed to be on the primary."""
    return isinstance(role, list) and role[0] != b"master"


# The server -------------------------------------------------------------------------------------------------------


class RedisServerInfo(NamedTuple):
    """The state of a server; what it does not report is empty."""

    name: str = ""
    version: str = ""
    eviction_policy: str = ""
    """Which keys it evicts when its memory is full."""
    memory: int = 0
    most_memory: int = 0
    settings: dict[str, str] = {}  # noqa: RUF012 - never changed
    """The settings of its append-only file."""

    @property
    def flushes_each_write(self) -> bool:
        """Whether a change is on its disk when it replies."""
        durable_settings = {"appendonly": "yes", "appendfsync": "always", "no-appendfsync-on-rewrite": "no"}
        return self.settings == durable_settings

    def status(self) -> dict[str, int | float | str]:
        """The fields for `Backend.status`."""
        return {
            "server": f"{self.name} {self.version}",
            "memory": self.memory,
            "max memory": self.most_memory,
            **self.settings,
        }


_SETTINGS = ("appendonly", "appendfsync", "no-appendfsync-on-rewrite")


async def read_server_info(connections: RedisConnections) -> RedisServerInfo:
    """Read the state of a server. Hosted servers often hide their settings; then they do not count as durable."""
    commands = [("INFO", "server"), ("INFO", "memory"), *(("CONFIG", "GET", name) for name in _SETTINGS)]
    server, memory, *settings = await connections.execute(*commands)
    fields = {**_parse_info(server), **_parse_info(memory)}
    return RedisServerInfo(
        fields.get("server_name", "redis"),
        fields.get("valkey_version") or fields.get("redis_version", ""),
        fields.get("maxmemory_policy", ""),
        int(fields.get("used_memory", 0)),
        int(fields.get("maxmemory", 0)),
        {name: value for answer in settings for name, value in _parse_config(answer).items()},
    )


async def rewrite_files(connections: RedisConnections) -> list[str]:
    """Rewrite the files of the server, so that nothing is left in them of what was deleted. Returns where it may still
    be."""
    left = ["the files of replicas, and backups of the server"]
    for what, command, running, result in _FILES:
        (before,) = await connections.execute(("INFO", "persistence"))
        fields = _parse_info(before)
        if what == _LOG and fields.get("aof_enabled") != "1":
            continue
        (reply,) = await connections.execute(command)
        for _ in range(_REWRITE_POLLS):
            if isinstance(reply, exceptions.RedisError) or not fields:
                break
            await asyncio.sleep(_REWRITE_WAIT)
            fields = _parse_info((await connections.execute(("INFO", "persistence")))[0])
            if fields.get(running) == "0" and fields.get("aof_rewrite_scheduled") == "0":
                break
        if isinstance(reply, exceptions.RedisError) or fields.get(running) != "0" or fields.get(result) != "ok":
            left.insert(0, f"{what} of the server, which could not be rewritten")
    return left


_LOG = "the log (AOF)"
_FILES = (
    (_LOG, ("BGREWRITEAOF",), "aof_rewrite_in_progress", "aof_last_bgrewrite_status"),
    ("the snapshot (RDB)", ("BGSAVE", "SCHEDULE"), "rdb_bgsave_in_progress", "rdb_last_bgsave_status"),
)
_REWRITE_POLLS, _REWRITE_WAIT = 600, 0.1


def _parse_info(answer: Any) -> dict[str, str]:
    if isinstance(answer, exceptions.RedisError):
        return {}
    lines = [line.partition(":") for line in answer.decode(errors="replace").splitlines()]
    return {name: value for name, colon, value in lines if colon}


def _parse_config(answer: Any) -> dict[str, str]:
    if isinstance(answer, exceptions.RedisError):
        return {}
    texts = [text.decode(errors="replace") for text in answer]
    return dict(zip(texts[::2], texts[1::2], strict=True))
