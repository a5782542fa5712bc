"""Topics: every subscriber gets all messages, in order.

A message is a step of the topic's log, so that none is lost or duplicated, and all see them in one order. A subscriber
is a name with a cursor of its own (`subscription`).
"""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager
from datetime import datetime
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar

import msgspec

from holdfast.backends.runtime.drivers import AsyncApi, SyncApi, arun, declare, operation, run
from holdfast.engine import trace_context, validation
from holdfast.engine.model.operations import Set
from holdfast.engine.model.packed_state import pack_name, unpack
from holdfast.engine.model.scopes import MARK, Scope, ScopePart
from holdfast.engine.row_format import ERASE, StepRef, open_step
from holdfast.engine.types import to_datetime
from holdfast.errors import ConflictError, CorruptError, InvalidError
from holdfast.state.keys import pack_value
from holdfast.state.reader import ScopeView
from holdfast.state.sharing import segmented_log
from holdfast.state.sharing.resource import NOT_REMOTE, SharedOperations, SharedResource, wait_until
from holdfast.state.sharing.segmented_log import SEGMENT, LogPage, SegmentedLog
from holdfast.state.sharing.work_queue import HandlerCall
from holdfast.state.writer import KeyWrite
from holdfast.time_parser import Duration, parse_nanoseconds

# Messages -------------------------------------------------------------------------------------------------------------
#
# The messages of topics, as they are stored and read.

MESSAGE = "message"
"""The key of a step that holds its message; and the key of the topic's scope that rights are needed for."""

PUBLISH = "publish"
"""The kind of the steps that have a message."""


_PACKED = pack_name(MESSAGE)

Start: TypeAlias = Literal["now", "start"]


class TopicMessage(msgspec.Struct, frozen=True):
    """A message. `correlation` is that of the publisher, `cause` what caused it."""

    number: int
    value: Any
    time: datetime
    actor: str
    correlation: str
    cause: str
    id: str

    def causing(self) -> AbstractContextManager[str]:
        """Give all changes in this block this message as their cause, and its correlation id."""
        return trace_context.correlation(self.correlation or None, cause=self.id)


def reader_log(place: SharedResource, name: str) -> SegmentedLog:
    """Return the log that holds the cursor of a subscriber."""
    guard = place.handle.guard
    checked, actor = guard.key(str(place.scope), name, "name of the subscriber"), guard.actor
    own = place.below(("reader", checked), *([("by", actor)] if actor else []))
    return SegmentedLog(place.handle, own)


async def read_messages(place: SharedResource, page: LogPage) -> list[TopicMessage]:
    """Return the messages of some steps. Those that were erased are left out."""
    handle, found = place.handle, []
    for number, row in enumerate(page.rows, page.first + 1):
        point = StepRef.of(row)
        if point.pruned:
            continue  # it was erased
        step = open_step(page.line, row, handle.engine.context.max_bytes)
        packed = dict(step.edit.put).get(_PACKED)
        if packed is None and step.header.kind == ERASE:
            continue
        if type(packed) is not Set:
            raise CorruptError("a step of a topic has no message", where=f"message {number} of {place.name}")
        resolved = await handle.engine.states.resolve_pointers(page.line, {_PACKED: packed.value})
        about = handle.codec.unpack(step.header.metadata)
        found.append(
            TopicMessage(
                number,
                unpack(handle.codec, resolved[_PACKED]),
                to_datetime(point.time),
                str(about.get("actor", "")),
                str(about.get("correlation", point.id)),
                str(about.get("cause", "")),
                point.id,
            )
        )
    return found


# Subscription ---------------------------------------------------------------------------------------------------------
#
# Subscriptions to a topic, each with a durable cursor.
#
# A subscriber gets every message at least once, in the order in which they were published, and none before it is
# durable. A message counts as received once it is acknowledged: by `ack`, or when the next one is requested. A
# subscriber that dies before that gets it again when it subscribes under its name. The cursor has the token of the
# latest subscription: one that was replaced cannot acknowledge anything any more.

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
        await SubscriptionOperations.ack(self)
        return next(iter(await self._next(1, timeout)), None)

    @operation
    async def receive_many(self, limit: int = _PAGE, timeout: Duration | None = None) -> list[TopicMessage]:
        """Return the next messages, at most `limit`; waits for the first one only. Acknowledges those received
        before."""
        if validation.require_count(limit, "number of messages") < 1:
            raise InvalidError("at least 1 message is received")
        await SubscriptionOperations.ack(self)
        return await self._next(limit, timeout)

    @operation(changes=True)
    async def ack(self) -> None:
        """Acknowledge all that was received. `ConflictError` (code `lease-lost`) if another subscribed under the
        name."""
        if self._received > self._acknowledged:
            number, _ = await self._reader.append(self._resource.handle_for(MESSAGE, "read"), self._move_cursor)
            self._acknowledged = self._received
            if number and not number % segmented_log.LENGTH:
                await self._reader.drop(lambda *_: True)  # only the last one matters

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
            await SubscriptionOperations.ack(self)
            received = await self._next(1, timeout)
            if not received:
                return count
            try:
                with received[0].causing():
                    await HandlerCall(handler, received[0])
            except BaseException:
                self.rewind()
                raise
            await SubscriptionOperations.ack(self)
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


_TRIMMED = "trimmed"
"""The key of the topic's own line that has the number of deleted messages."""


class PublishedMessage(msgspec.Struct, frozen=True):
    """A published message: its number in the topic, from 1 on, and its id."""

    number: int
    id: str


class Subscriber(msgspec.Struct, frozen=True):
    """A subscriber: the number of the last message that it acknowledged, and how many follow."""

    name: str
    actor: str
    cursor: int
    lag: int


@declare(not_remote=NOT_REMOTE)
class TopicOperations(SharedOperations):
    """Operations on a topic. `Topic` and `AsyncTopic` have these as methods.

    Writing its scope allows publishing, reading it subscribing.
    """

    def __init__(self, resource: SharedResource) -> None:
        super().__init__(resource)
        self._log = SegmentedLog(resource.handle, resource.name)

    @operation(changes=True)
    async def publish(self, message: Any) -> PublishedMessage:
        """Publish a message. It is durable when this returns, and every subscriber will get it."""
        handle = self._resource.handle_for(MESSAGE)
        packed = pack_value(handle, MESSAGE, message)

        async def make(view: ScopeView) -> list[KeyWrite]:  # noqa: ARG001 - messages do not depend on those before
            return [KeyWrite(MESSAGE, PUBLISH, packed=packed, whole=True)]

        number, id = await self._log.append(handle, make)
        return PublishedMessage(number + 1, id)

    @operation
    async def read(self, after: int = 0, limit: int = 100) -> list[TopicMessage]:
        """Return a page of messages, from the one after a number on, or from the first that still exists. There is
        no cursor: the caller counts."""
        if type(after) is not int or after < 0 or type(limit) is not int or limit < 1:
            raise InvalidError("a page starts after a number from 0 up, and has 1 message or more")
        await self._resource.require("read", MESSAGE)
        page = await self._log.read(after, limit)
        found = await read_messages(self._resource, page)
        while page.rows and not found:  # they were erased
            page = await self._log.read(page.next, limit)
            found = await read_messages(self._resource, page)
        await self._resource.handle_for(MESSAGE).guard.saw(self.scope, ())
        return found

    @operation
    async def count(self) -> int:
        """Return the number of messages published so far, with those that were trimmed."""
        await self._resource.require("read", MESSAGE)
        return await self._log.length()

    @operation
    async def subscribers(self) -> list[Subscriber]:
        """List all subscribers and their positions."""
        await self._resource.require("read", MESSAGE)
        return await self._subscribers()

    @operation(changes=True)
    async def unsubscribe(self, name: str) -> bool:
        """Delete a subscriber and its cursor. False if there was none."""
        permit = await self._resource.handle_for(MESSAGE, "read").guard.allow("write", self.scope, ())
        return await reader_log(self._resource, name).delete(permit)

    @operation(changes=True)
    async def trim(self, *, older_than: Duration | None = None) -> int:
        """Delete messages that all subscribers have acknowledged; or, with an age in seconds or as a timedelta, all
        that are older. Without a subscriber and an age, nothing is deleted.

        Messages are deleted in segments of about a thousand. Returns their number. Needs the right to write the topic's
        scope.
        """
        permit = await self._resource.require("write", MESSAGE)
        before = (
            None
            if older_than is None
            else self._resource.handle.now() - parse_nanoseconds(older_than, "age", positive=True)
        )
        seen = min((each.cursor for each in await self._subscribers()), default=0)

        def goes(number: int, end: StepRef) -> bool:
            return number < seen or (before is not None and end.time < before)

        dropped = await self._log.drop(goes, permit)
        if dropped:
            first = pack_value(self._resource.handle, _TRIMMED, await self._log.first())
            await self._write(MESSAGE, [KeyWrite(_TRIMMED, "trim", packed=first)])
        return dropped

    @operation(changes=True)
    async def delete(self) -> bool:
        """Delete the topic with all messages and subscribers. False if there was none."""
        permit = await self._resource.require("write", MESSAGE)
        for scope in await self._readers():
            await SegmentedLog(self._resource.handle, scope).delete(permit)
        return await self._log.delete(permit)

    async def _subscribers(self) -> list[Subscriber]:
        from holdfast.state.sharing.topic import read_cursor

        count, found = await self._log.length(), []
        for scope in await self._readers():
            cursor = await read_cursor(SegmentedLog(self._resource.handle, scope))
            parts = dict(scope.parts)
            found.append(Subscriber(parts["reader"], parts.get("by", ""), cursor, max(count - cursor, 0)))
        return found

    async def _readers(self) -> list[Scope]:
        """Return the names of the logs of all subscribers."""
        start = f"{self._resource.name.line}/reader:"
        lines = await self._resource.handle.engine.lines.names(self._resource.handle.tenant, start)
        found = [Scope(tuple(map(ScopePart.parse, line.name[len(MARK) :].split("/")))) for line in lines]
        return [scope for scope in found if scope.parts[-1].kind != SEGMENT]


class Topic(SyncApi, TopicOperations):
    """A topic: `store.sharing.topic("news")`."""

    def subscribe(self, name: str, *, start: Start = "now") -> Subscription:
        """Subscribe under a name, or resume at the position of the subscriber of that name.

        A new one gets what is published from now on, or all messages that still exist (`start="start"`). Each identity
        has its own names: two agents that subscribe as `inbox` are two subscribers. Of two subscriptions under one
        name, the latest is valid, and the other raises `ConflictError` (code `lease-lost`).
        """
        from holdfast.state.sharing.topic import Subscription, subscribe

        return run(subscribe(Subscription, self._resource, name, start))


class AsyncTopic(AsyncApi, TopicOperations):
    """A topic for asyncio: operations are awaited."""

    async def subscribe(self, name: str, *, start: Start = "now") -> AsyncSubscription:
        """Subscribe under a name. See `Topic.subscribe`."""
        from holdfast.state.sharing.topic import AsyncSubscription, subscribe

        return await arun(subscribe(AsyncSubscription, self._resource, name, start))
