"""Subscriptions to a topic, each with a durable cursor.

A subscriber gets every message at least once, in the order in which they were published, and none before it is durable.
A message counts as received once it is acknowledged: by `ack`, or when the next one is requested. A subscriber that
dies before that gets it again when it subscribes under its name. The cursor has the token of the latest subscription:
one that was replaced cannot acknowledge anything any more.
"""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, NamedTuple, TypeVar

from holdfast.backends.runtime.drivers import AsyncApi, SyncApi, declare, operation
from holdfast.engine import validation
from holdfast.errors import ConflictError, InvalidError
from holdfast.state.keys import pack_value
from holdfast.state.reader import ScopeView
from holdfast.state.sharing import segmented_log
from holdfast.state.sharing.heartbeats import HandlerCall
from holdfast.state.sharing.messages import MESSAGE, Start, TopicMessage, read_messages, reader_log
from holdfast.state.sharing.resource import NOT_REMOTE, SharedResource, wait_until
from holdfast.state.sharing.segmented_log import SegmentedLog
from holdfast.state.writer import KeyWrite
from holdfast.time_parser import Duration

S = TypeVar("S", bound="SubscriptionOperations")

_CURSOR = "cursor"
_PAGE = 128
"""How many messages are read at a time."""


class _Cursor(NamedTuple):
    """The position of a subscriber, and the token of its subscription."""

    number: int
    token: str


@declare(not_remote=NOT_REMOTE)
class SubscriptionOperations:
    """Operations on a subscription. `Subscription` and `AsyncSubscription` have these as methods."""

    def __init__(self, place: SharedResource, name: str, token: str, cursor: int) -> None:
        self.name = name
        self._resource = place
        self._topic = SegmentedLog(place.handle, place.name)
        self._reader = reader_log(place, name)
        self._token = token
        self._acknowledged = self._received = cursor
        self._waiting: deque[TopicMessage] = deque()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} of {self._resource.name}>"

    @property
    def cursor(self) -> int:
        """The number of the last message that was acknowledged."""
        return self._acknowledged

    @operation
    async def lag(self) -> int:
        """Return the number of messages that are not acknowledged yet."""
        await self._resource.require("read", MESSAGE)
        return max(await self._topic.length() - self._acknowledged, 0)

    @operation
    async def receive(self, timeout: Duration | None = None) -> TopicMessage | None:
        """Return the next message; None after the timeout. Acknowledges those received before."""
        await self._ack()
        return next(iter(await self._next(1, timeout)), None)

    @operation
    async def receive_many(self, limit: int = _PAGE, timeout: Duration | None = None) -> list[TopicMessage]:
        """Return the next messages, at most `limit`; waits for the first one only. Acknowledges those received
        before."""
        if validation.require_count(limit, "number of messages") < 1:
            raise InvalidError("at least 1 message is received")
        await self._ack()
        return await self._next(limit, timeout)

    @operation(changes=True)
    async def ack(self) -> None:
        """Acknowledge all that was received. `ConflictError` (code `lease-lost`) if another subscribed under the
        name."""
        await self._ack()

    @operation(
        changes=True, not_in_scripts="It runs as long as there are messages: call `receive` and `ack` in a loop."
    )
    async def deliver(self, handler: Callable[[TopicMessage], Any], *, timeout: Duration | None = None) -> int:
        """Call a function with each message, and acknowledge the message when it returns, until none came for `timeout`
        seconds. Returns the number of messages.

        Changes that the function makes have the message as their cause. If it raises, the message is not acknowledged,
        and is delivered again.
        """
        count = 0
        while True:
            await self._ack()
            received = await self._next(1, timeout)
            if not received:
                return count
            try:
                with received[0].causing():
                    await HandlerCall(handler, received[0])
            except BaseException:
                self.rewind()
                raise
            await self._ack()
            count += 1

    def rewind(self) -> None:
        """Receive again what was not acknowledged."""
        self._waiting.clear()
        self._received = self._acknowledged

    # Inside -----------------------------------------------------------------------------------------------------

    async def _next(self, limit: int, timeout: Duration | None) -> list[TopicMessage]:
        if not self._waiting:
            await self._resource.require("read", MESSAGE)
            await wait_until(self._fetch, timeout)
        found = [self._waiting.popleft() for _ in range(min(limit, len(self._waiting)))]
        if found:
            await self._resource.handle.guard.saw(self._resource.scope, (MESSAGE,))
            self._received = found[-1].number
        return found

    async def _fetch(self) -> bool | None:
        """Read new messages."""
        while not self._waiting:
            page = await self._topic.read(self._received, _PAGE)
            self._waiting += await read_messages(self._resource, page)
            if self._waiting or not page.rows:
                break
            self._received = page.next  # all of them were erased
        return True if self._waiting else None

    async def _ack(self) -> None:
        if self._received > self._acknowledged:
            number, _ = await self._reader.append(self._resource.handle_for(MESSAGE, "read"), self._move_cursor)
            self._acknowledged = self._received
            if number and not number % segmented_log.LENGTH:
                await self._reader.drop(lambda *_: True)  # only the last one matters

    async def _move_cursor(self, view: ScopeView) -> list[KeyWrite]:
        found = await _find_cursor(view)
        if found is None or found.token != self._token:
            raise ConflictError(
                "another has subscribed under the name since, and goes on from the last acknowledged message"
                if found
                else "the subscriber was taken away",
                where=f"subscriber {self.name!r} of {self._resource.name}",
                hint="Subscribe under a name of its own, or let one process have it",
                code="lease-lost",
            )
        return [_write_cursor(self._resource, _Cursor(max(self._received, found.number), self._token))]


class Subscription(SyncApi, SubscriptionOperations):
    """A subscription to a topic. Iterating over it yields messages as they come, for ever."""

    def __iter__(self) -> Iterator[TopicMessage]:
        while True:
            message = self.receive()
            if message is not None:
                yield message


class AsyncSubscription(AsyncApi, SubscriptionOperations):
    """A subscription to a topic, for asyncio: `async for message in subscription`."""

    async def __aiter__(self) -> AsyncIterator[TopicMessage]:
        while True:
            message = await self.receive()
            if message is not None:
                yield message


async def subscribe(cls: type[S], place: SharedResource, name: str, start: Start) -> S:
    """Subscribe under a name."""
    if start not in ("now", "start"):
        raise InvalidError(f"a subscriber starts from 'now' or from the 'start', not from {start!r}")
    await place.require("read", MESSAGE)
    first = await SegmentedLog(place.handle, place.name).length() if start == "now" else 0
    token, found = secrets.token_hex(8), [first]

    async def take_over(view: ScopeView) -> list[KeyWrite]:
        old = await _find_cursor(view)
        found[0] = first if old is None else old.number
        return [_write_cursor(place, _Cursor(found[0], token))]

    await reader_log(place, name).append(place.handle_for(MESSAGE, "read"), take_over)
    return cls(place, name, token, found[0])


async def read_cursor(chain: SegmentedLog) -> int:
    """Return the position of a subscriber."""
    found = await chain.read_latest(_find_cursor)
    return 0 if found is None else found.number


async def _find_cursor(view: ScopeView) -> _Cursor | None:
    item = await view.item(_CURSOR)
    return None if item is None else _Cursor(*item.value)


def _write_cursor(place: SharedResource, cursor: _Cursor) -> KeyWrite:
    return KeyWrite(_CURSOR, "acknowledge", packed=pack_value(place.handle, _CURSOR, list(cursor)))
