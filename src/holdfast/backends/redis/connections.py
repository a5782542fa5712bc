"""Connections to a Redis server, in the loop of the store.

redis-py's connections, without its clients: these would send a command again on their own, and here it has to be known
whether something was sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, TypeAlias

from redis import exceptions
from redis.asyncio.connection import Connection, parse_url

from holdfast.backends.async_backend import PACE, ServerInterrupted
from holdfast.backends.redis import errors
from holdfast.backends.redis.lua_scripts import Script
from holdfast.backends.urls import redacted_url
from holdfast.errors import ConfigError

Command: TypeAlias = Sequence[bytes | str | int | float]

_BROKEN = (exceptions.ConnectionError, exceptions.TimeoutError, OSError)


def address(url: str) -> dict[str, Any]:
    """What redis-py makes of a URL: arguments of a connection."""
    shown = redacted_url(url)
    scheme, _, rest = url.partition("://")
    try:
        arguments: dict[str, Any] = dict(parse_url(f"{scheme.replace('valkey', 'redis')}://{rest}"))
    except ValueError as error:
        # What follows the user may be a part of the password, if that has a / or # in it.
        why = "what follows the host is no port" if "Port" in str(error) else str(error)
        raise ConfigError(
            f"this is no URL of a Redis server: {why}",
            where=shown,
            hint="As redis://host:6379/0; in a password, / is written as %2F, and # as %23",
        ) from None
    path = rest.partition("?")[0].partition("/")[2]
    if path and "db" not in arguments:
        what = "what follows the host" if "@" in path else repr(path)
        raise ConfigError(f"{what} is no number of a database", where=shown, hint="As redis://host:6379/0")
    return {"socket_keepalive": True, **arguments, "decode_responses": False, "protocol": 2}


class RedisConnections:
    """Connections to one server. An exchange has one to itself; there are as many as exchanges at a time."""

    def __init__(self, arguments: dict[str, Any], patience: float, where: str) -> None:
        self._arguments = dict(arguments)
        self._kind: type[Connection] = self._arguments.pop("connection_class", Connection)
        self._patience = self._arguments.pop("socket_timeout", None) or patience
        self._arguments.setdefault("socket_connect_timeout", self._patience)
        self._arguments["socket_timeout"] = None
        self._moved: dict[str, Any] = {}
        """The node of a cluster that has the keys, if it is not the one in the URL."""
        self._where = where
        self._idle: list[Connection] = []
        self._closed = False

    async def ask(self, *commands: Command) -> list[Any]:
        """What the server answers to some commands, sent together; errors are among the answers.

        Raises `ServerInterrupted`, and says whether the commands may have been received.
        """
        answers = await self._exchange(commands)
        for answer in answers:
            if isinstance(answer, exceptions.ReadOnlyError):
                await self._drop_idle()  # the name in the URL may lead to another server by now
            elif isinstance(answer, exceptions.MovedError):
                await self._drop_idle()
                self._moved = {"host": answer.host or self._arguments.get("host", "localhost"), "port": answer.port}
                return await self._exchange(commands)
        return answers

    async def read(self, script: Script, keys: Sequence[str], arguments: Command) -> Any:
        """What a script answers that only reads: not that of a server which has become a replica, and may lag."""
        answer, role = await self.run(script, keys, arguments, ("ROLE",))
        await self._see_role(role)
        return answer

    async def run(self, script: Script, keys: Sequence[str], arguments: Command, *after: Command) -> list[Any]:
        """What a script answers, and then some commands. The server may have to be told the script first."""
        call = ("EVALSHA", script.digest, len(keys), *keys, *arguments)
        answers = await self.ask(call, *after)
        if isinstance(answers[0], exceptions.NoScriptError):
            answers = (await self.ask(("SCRIPT", "LOAD", script.text), call, *after))[1:]
        if isinstance(answers[0], exceptions.RedisError):
            if errors.says_lost(answers[0]):
                await self._see_role(*await self.ask(("ROLE",)))  # a replica that begins has nothing, and will have it
            raise errors.answered(answers[0], self._where) from answers[0]
        return answers

    async def _exchange(self, commands: Sequence[Command]) -> list[Any]:
        link = await self._take()
        try:
            packed = link.pack_commands(commands)
            async with asyncio.timeout(self._patience + sum(map(len, packed)) / PACE):
                await _send(link, packed)
                answers = [await _answer(link) for _ in commands]
        except (*_BROKEN, TimeoutError) as error:
            await link.disconnect(nowait=True)
            await self._drop_idle()
            loading = isinstance(error, exceptions.BusyLoadingError)
            raise ServerInterrupted(str(error) or "no answer came in time", sent=not loading) from error
        except BaseException:
            await link.disconnect(nowait=True)
            raise
        if self._closed:
            await link.disconnect(nowait=True)
        else:
            self._idle.append(link)
        return answers

    async def close(self) -> None:
        """Close what is not in use; the rest follows when it is not any more."""
        self._closed = True
        while self._idle:
            await self._idle.pop().disconnect()

    async def _take(self) -> Connection:
        while self._idle:
            link = self._idle.pop()
            if link.is_connected:
                return link
        try:
            link = self._kind(**{**self._arguments, **self._moved})
        except (TypeError, ValueError, exceptions.RedisError) as error:
            raise ConfigError(f"the URL has a parameter that is not understood: {error}", where=self._where) from error
        try:
            async with asyncio.timeout(self._patience):
                await link.connect()  # type: ignore[no-untyped-call]
                await self._see_that_it_leads(link)
        except (*_BROKEN, exceptions.RedisError) as error:
            self._moved = {}
            await link.disconnect(nowait=True)
            raise errors.connecting(error, self._where) from error
        except BaseException:
            await link.disconnect(nowait=True)
            raise
        return link

    async def _see_that_it_leads(self, link: Connection) -> None:
        """A replica may lag: nothing is read from it."""
        await _send(link, link.pack_commands([("ROLE",)]))
        if _is_replica(await _answer(link)):
            raise exceptions.ConnectionError("the server is a replica; changes are made on the primary")

    async def _see_role(self, role: Any) -> None:
        if _is_replica(role):
            await self._drop_idle()
            raise ServerInterrupted("the server has become a replica")

    async def _drop_idle(self) -> None:
        """One broke: the others most likely as well."""
        while self._idle:
            await self._idle.pop().disconnect(nowait=True)


async def _send(link: Connection, packed: Sequence[bytes]) -> None:
    try:
        await link.send_packed_command(packed, check_health=False)
    except AttributeError as error:
        writer = link._writer
        if writer is not None and not writer.transport.is_closing():
            raise
        # Some releases of Python 3.12 write to a transport that was closed as if it were open.
        raise exceptions.ConnectionError("the connection was closed while it was written to") from error


async def _answer(link: Connection) -> Any:
    try:
        return await link.read_response()
    except exceptions.ResponseError as error:
        if isinstance(error, exceptions.ConnectionError):
            raise
        return error


def _is_replica(role: Any) -> bool:
    """From what a server answers to ROLE. Who may not ask is believed to be connected to the right one."""
    return isinstance(role, list) and role[0] != b"master"
