"""Subscriptions to a topic, each with a cursor that outlives the program.

**What is promised.** A subscriber gets every message at least once, in the order in which they were published, and
none before it is durable. A message counts as received once it is acknowledged: by `ack`, or when the next one is asked
for. Whoever dies before that gets it again when it comes back under its name; whoever does not die gets each once. The
cursor holds the token of who subscribed last: one that was replaced can acknowledge nothing any more.
"""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import NamedTuple, TypeVar

from holdfast.backends.runtime.drivers import AsyncApi, SyncApi, sync_and_async
from holdfast.engine import validation
from holdfast.errors import ConflictError, InvalidError
from holdfast.state.keys import pack_value
from holdfast.state.reader import ScopeView
from holdfast.state.sharing import segmented_log
from holdfast.state.sharing.messages import MESSAGE, Start, TopicMessage, messages, reader
from holdfast.state.sharing.polling import until
from holdfast.state.sharing.resource import SharedResource
from holdfast.state.sharing.segmented_log import SegmentedLog
from holdfast.state.writer import KeyWrite
from holdfast.time_parsing import Duration

S = TypeVar("S", bound="SubscriptionOperations")

_CURSOR = "cursor"
_PAGE = 128
"""How many messages are read at a time."""


class _Cursor(NamedTuple):
    """How far a subscriber has got, and who may go on."""

    number: int
    token: str


class SubscriptionOperations:
    """What can be done with a subscription. `Subscription` and `AsyncSubscription` have these as methods."""

    def __init__(self, place: SharedResource, name: str, token: str, cursor: int) -> None:
        self.name = name
        self._place = place
        self._topic = SegmentedLog(place.handle, place.own)
        self._reader = reader(place, name)
        self._token = token
        self._acknowledged = self._given = cursor
        self._waiting: deque[TopicMessage] = deque()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} of {self._place.own}>"

    @property
    def cursor(self) -> int:
        """The number of the last message that was acknowledged."""
        return self._acknowledged

    @sync_and_async
    async def lag(self) -> int:
        """How many messages there are that were not acknowledged yet."""
        await self._place.may("read", MESSAGE)
        return max(await self._topic.length() - self._acknowledged, 0)

    @sync_and_async
    async def receive(self, timeout: Duration | None = None) -> TopicMessage | None:
        """The next message; None if there was none within so many seconds. Acknowledges those received before."""
        await self._ack()
        return next(iter(await self._next(1, timeout)), None)

    @sync_and_async
    async def receive_many(self, limit: int = _PAGE, timeout: Duration | None = None) -> list[TopicMessage]:
        """The next messages, as many as there are and at most so many; waits for the first one only. Acknowledges those
        received before."""
        if validation.require_count(limit, "number of messages") < 1:
            raise InvalidError("at least 1 message is received")
        await self._ack()
        return await self._next(limit, timeout)

    @sync_and_async
    async def ack(self) -> None:
        """Acknowledge all that was received. `ConflictError` (code `lease-lost`) if another subscribed under the
        name."""
        await self._ack()

    def rewind(self) -> None:
        """Receive again what was received and not acknowledged."""
        self._waiting.clear()
        self._given = self._acknowledged

    # Inside -----------------------------------------------------------------------------------------------------

    async def _next(self, limit: int, timeout: Duration | None) -> list[TopicMessage]:
        if not self._waiting:
            await self._place.may("read", MESSAGE)
            await until(self._fetch, timeout)
        found = [self._waiting.popleft() for _ in range(min(limit, len(self._waiting)))]
        if found:
            await self._place.handle.guard.saw(self._place.scope, (MESSAGE,))
            self._given = found[-1].number
        return found

    async def _fetch(self) -> bool | None:
        """Read what is new."""
        self._waiting += await messages(self._place, await self._topic.read(self._given, _PAGE))
        return True if self._waiting else None

    async def _ack(self) -> None:
        if self._given > self._acknowledged:
            number, _ = await self._reader.append(self._place.for_(MESSAGE, "read"), self._moved)
            self._acknowledged = self._given
            if number and not number % segmented_log.LENGTH:
                await self._reader.drop(lambda *_: True)  # only the last one matters

    async def _moved(self, view: ScopeView) -> list[KeyWrite]:
        found = await _cursor(view)
        if found is None or found.token != self._token:
            raise ConflictError(
                "another has subscribed under the name since, and goes on from the last acknowledged message"
                if found
                else "the subscriber was taken away",
                where=f"subscriber {self.name!r} of {self._place.own}",
                hint="Subscribe under a name of its own, or let one process have it",
                code="lease-lost",
            )
        return [_set(self._place, _Cursor(max(self._given, found.number), self._token))]


class Subscription(SyncApi, SubscriptionOperations):
    """A subscription to a topic. Iterating over it gives messages as they come, for ever."""

    def __iter__(self) -> Iterator[TopicMessage]:
        while True:
            message = self.receive()
            if message is not None:
                yield message

    def deliver(self, handler: Callable[[TopicMessage], object], *, timeout: Duration | None = None) -> int:
        """Call a function with each message, and acknowledge it when that returns; until none came for so many seconds.
        Returns how many there were.

        What the function changes carries the message as its cause. If it raises, the message is not acknowledged, and
        comes again.
        """
        count = 0
        while (message := self.receive(timeout)) is not None:
            try:
                with message.causing():
                    handler(message)
            except BaseException:
                self.rewind()
                raise
            self.ack()
            count += 1
        return count


class AsyncSubscription(AsyncApi, SubscriptionOperations):
    """A subscription to a topic, for asyncio: `async for message in subscription`."""

    async def __aiter__(self) -> AsyncIterator[TopicMessage]:
        while True:
            message = await self.receive()
            if message is not None:
                yield message

    async def deliver(
        self, handler: Callable[[TopicMessage], Awaitable[object]], *, timeout: Duration | None = None
    ) -> int:
        """The same as `Subscription.deliver`; the function is awaited."""
        count = 0
        while (message := await self.receive(timeout)) is not None:
            try:
                with message.causing():
                    await handler(message)
            except BaseException:
                self.rewind()
                raise
            await self.ack()
            count += 1
        return count


async def subscribed(cls: type[S], place: SharedResource, name: str, start: Start) -> S:
    """Subscribe under a name."""
    if start not in ("now", "start"):
        raise InvalidError(f"a subscriber starts from 'now' or from the 'start', not from {start!r}")
    await place.may("read", MESSAGE)
    first = await SegmentedLog(place.handle, place.own).length() if start == "now" else 0
    token, found = secrets.token_hex(8), [first]

    async def take_over(view: ScopeView) -> list[KeyWrite]:
        old = await _cursor(view)
        found[0] = first if old is None else old.number
        return [_set(place, _Cursor(found[0], token))]

    await reader(place, name).append(place.for_(MESSAGE, "read"), take_over)
    return cls(place, name, token, found[0])


async def cursor_of(chain: SegmentedLog) -> int:
    """How far a subscriber has got."""
    found = await chain.look(_cursor)
    return 0 if found is None else found.number


async def _cursor(view: ScopeView) -> _Cursor | None:
    item = await view.item(_CURSOR)
    return None if item is None else _Cursor(*item.value)


def _set(place: SharedResource, cursor: _Cursor) -> KeyWrite:
    return KeyWrite(_CURSOR, "acknowledge", packed=pack_value(place.handle, _CURSOR, list(cursor)))
