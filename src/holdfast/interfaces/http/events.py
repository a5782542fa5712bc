"""Live changes as server-sent events. One look at the store serves all streams of a caller.

An event has the token of the feed as its id: a browser that lost its connection sends it again, and gets what changed
meanwhile. A stream that is slow gets one event for several: names of threads, each once. Before every look it is
checked who may still see it: the stream of a token that was revoked ends.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

import anyio.to_thread
import msgspec
from msgspec.structs import replace

from holdfast.errors import HoldfastError, InvalidError, TransientError
from holdfast.interfaces.http.models import StoreChangesModel
from holdfast.interfaces.http.service import Caller, Service

_log = logging.getLogger("holdfast.http")

_HEARTBEAT = 20.0
"""After so many seconds without a change, a comment is sent, so that nothing on the way closes the connection."""


_MAX_EACH = 50
"""How many streams an identity may have open. The store's owner may have as many as there are, and the last tenth of
them is only for the owner."""


def _key_of(caller: Caller) -> Caller:
    """Return who looks: the session and the token differ between browsers; what they see does not."""
    return Caller(caller.identity, caller.read_only)


class EventStream:
    """The events that a stream has yet to send, and to whom."""

    def __init__(self, caller: Caller) -> None:
        self.caller = caller
        self._ended = False
        self._ready = asyncio.Event()
        self._threads: dict[str, None] = {}
        self._agents: dict[str, None] = {}
        self._scopes: dict[str, None] = {}
        self._complete = True
        self._token = ""

    def add(self, token: str, changes: StoreChangesModel) -> None:
        """Add changes to those that are yet to be sent."""
        self._threads.update(dict.fromkeys(changes.threads))
        self._agents.update(dict.fromkeys(changes.agents))
        self._scopes.update(dict.fromkeys(changes.scopes))
        self._complete &= changes.complete
        self._token = token
        self._ready.set()

    def end(self) -> None:
        """Send nothing more."""
        self._ended = True
        self._ready.set()

    async def next(self) -> bytes | None:
        """Wait for changes, and return them as an event; after some time without any, a comment; at the end, None."""
        try:
            await asyncio.wait_for(self._ready.wait(), _HEARTBEAT)
        except TimeoutError:
            return b": nothing new\n\n"
        if self._ended:
            return None
        self._ready.clear()
        changes = StoreChangesModel(
            threads=list(self._threads),
            agents=list(self._agents),
            scopes=list(self._scopes),
            complete=self._complete,
        )
        for names in (self._threads, self._agents, self._scopes):
            names.clear()
        self._complete = True
        return encode_event(self._token, changes)


class EventHub:
    """Looks for changes while streams are open, and passes them on."""

    def __init__(self, service: Service, ended: Callable[[Iterable[Caller]], set[Caller]]) -> None:
        self._service = service
        self._ended = ended
        self._closed = False
        self._streams: dict[Caller, set[EventStream]] = {}
        self._tasks: dict[Caller, tuple[asyncio.Task[None], asyncio.Future[None]]] = {}
        """The looks for changes of each caller, and when the first one has succeeded or failed."""
        self.count: int = 0
        """How many streams are open."""
        self._tokens: dict[Caller, str] = {}
        """The token of the last look for each caller, also of one whose streams are closed."""

    async def events(self, caller: Caller, since: str | None) -> AsyncIterator[bytes]:
        """Yield events: what changed since a token, and then what changes from now on."""
        self._check_count(caller)
        key = _key_of(caller)
        stream = EventStream(caller)
        self.count += 1
        self._streams.setdefault(key, set()).add(stream)
        try:
            if key not in self._tasks:
                begun = asyncio.get_running_loop().create_future()
                self._tasks[key] = asyncio.create_task(self._follow(key, begun)), begun
            # Only then: what changes between this look and the first of the task would be lost.
            await asyncio.shield(self._tasks[key][1])
            token, changes = await self._look(key, since)
            yield b"retry: 2000\n" + encode_event(token, changes)
            while (event := await stream.next()) is not None:
                yield event
        finally:
            self.count -= 1
            streams = self._streams.get(key, set())
            streams.discard(stream)
            if not streams:
                self._streams.pop(key, None)
                self._tasks.pop(key)[0].cancel()

    def token(self, caller: Caller) -> str:
        """Return a token that is no newer than the store: what a page shows that is made now has all up to it. Empty if
        nobody has looked for this caller yet. Asks no store."""
        return self._tokens.get(_key_of(caller), "")

    def _check_count(self, caller: Caller) -> None:
        """Refuse a stream if there are too many: in all, of an identity, or of all but the store's owner."""
        most = self._service.options.max_streams
        if caller.identity:
            of_others = {key: len(found) for key, found in self._streams.items() if key.identity}
            mine = sum(count for key, count in of_others.items() if key.identity == caller.identity)
            full = mine >= _MAX_EACH or sum(of_others.values()) >= most - max(1, most // 10)
        else:
            full = self.count >= most
        if full:
            raise TransientError("too many streams are open", hint="Close some", code="rate-limited")
        if self._closed:
            raise TransientError("the server is stopping", hint="Connect again", code="rate-limited")

    async def _look(self, key: Caller, since: str | None) -> tuple[str, StoreChangesModel]:
        def read() -> Any:
            try:
                return self._service.view(key).changes(since or None)
            except InvalidError:  # a token of another store, or none at all
                return replace(self._service.view(key).changes(), complete=False)

        found = await anyio.to_thread.run_sync(read)
        scopes = [str(scope) for scope in found.scopes]
        return found.token, StoreChangesModel(
            threads=found.threads, agents=found.agents, scopes=scopes, complete=found.complete
        )

    async def _follow(self, key: Caller, begun: asyncio.Future[None]) -> None:
        """Look for changes from time to time, and pass them to the streams of a caller. If the first look fails, so do
        the streams that wait for it."""
        token: str | None = None
        while True:
            try:
                await self._end_streams(key)
                found, changes = await self._look(key, token)
                is_news = bool(changes.threads or changes.agents or changes.scopes or not changes.complete)
                if is_news:  # a token may have been revoked before the look
                    await self._end_streams(key)
            except Exception as error:  # noqa: BLE001 - told to who waits, or else the next look has all
                if not begun.done():
                    begun.set_exception(error)
                    begun.exception()  # who waits may have gone
                    return
                if not isinstance(error, HoldfastError):
                    _log.exception("checking for changes failed")
                await asyncio.sleep(self._service.options.poll)
                continue
            self._tokens[key] = token = found
            if not begun.done():
                begun.set_result(None)
            if is_news:
                for stream in tuple(self._streams.get(key, ())):
                    stream.add(token, changes)
            await asyncio.sleep(self._service.options.poll)

    async def _end_streams(self, key: Caller) -> None:
        """End the streams of those who may no longer see them: one check for all streams of an identity."""
        streams = tuple(self._streams.get(key, ()))
        ended = await anyio.to_thread.run_sync(self._ended, {each.caller for each in streams})
        for stream in streams:
            if stream.caller in ended:
                stream.end()

    def close(self) -> None:
        """End all streams, and the looks for changes with them."""
        self._closed = True
        for streams in self._streams.values():
            for stream in streams:
                stream.end()


def encode_event(token: str, changes: StoreChangesModel) -> bytes:
    """Return an event as it is sent."""
    return b"id: " + token.encode() + b"\nevent: changes\ndata: " + msgspec.json.encode(changes) + b"\n\n"
