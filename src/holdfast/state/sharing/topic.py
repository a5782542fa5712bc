"""Broadcast: a topic, whose messages each subscriber gets, all of them and in order.

A message is a step of the topic's chain, so that none is lost or doubled, and all see them in one order. A subscriber
is a name with a cursor of its own (`subscription`).
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from holdfast.backends.runtime.drivers import AsyncApi, SyncApi, arun, run, sync_and_async
from holdfast.engine import trace_context
from holdfast.engine.model.operations import Set
from holdfast.engine.model.packed_state import unpack
from holdfast.engine.model.scopes import MARK, Scope, ScopePart
from holdfast.engine.row_format import StepRef, open_step
from holdfast.engine.types import to_datetime
from holdfast.errors import CorruptError, InvalidError
from holdfast.state import keys as names
from holdfast.state.key_changes import nanoseconds
from holdfast.state.reader import ScopeView
from holdfast.state.sharing.resource import SharedResource
from holdfast.state.sharing.segmented_log import LINK, LogPage, SegmentedLog
from holdfast.state.writer import KeyWrite, commit, pack_value

if TYPE_CHECKING:
    from holdfast.state.sharing.subscription import AsyncSubscription, Subscription

MESSAGE = "message"
"""The key under which a step has its message; and that of the scope of the topic that one needs the right to."""

_TRIMMED = "trimmed"
"""The key of the topic's own line that says how many messages are gone."""

_PACKED = names.pack_key(MESSAGE)

Start: TypeAlias = Literal["now", "start"]


class PublishedMessage(NamedTuple):
    """A message that was published: its number in the topic, from 1 on, and its id."""

    number: int
    id: str


@dataclass(frozen=True, slots=True)
class TopicMessage:
    """A message, as a subscriber gets it. `correlation` is that of whoever published it, `cause` what made them."""

    number: int
    value: Any
    time: datetime
    actor: str
    correlation: str
    cause: str
    id: str

    def causing(self) -> AbstractContextManager[str]:
        """All changes made in this block carry this message as their cause, and its correlation id."""
        return trace_context.correlation(self.correlation or None, cause=self.id)


class Subscriber(NamedTuple):
    """A subscriber: the number of the last message that it acknowledged, and how many there are after that."""

    name: str
    actor: str
    cursor: int
    lag: int


class TopicOperations:
    """What can be done with a topic. `Topic` and `AsyncTopic` have these as methods."""

    def __init__(self, place: SharedResource) -> None:
        self._place = place
        self._chain = SegmentedLog(place.handle, place.own)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._place.own}>"

    @property
    def scope(self) -> Scope:
        """The scope that stands for the topic: who may write it may publish, who may read it may subscribe."""
        return self._place.scope

    @sync_and_async
    async def publish(self, message: Any) -> PublishedMessage:
        """Publish a message. When this returns it is durable, and every subscriber will get it."""
        handle = self._place.for_(MESSAGE)
        packed = pack_value(handle, MESSAGE, message)

        async def make(view: ScopeView) -> list[KeyWrite]:  # noqa: ARG001 - messages do not depend on those before
            return [KeyWrite(MESSAGE, "publish", packed=packed, whole=True)]

        number, id = await self._chain.append(handle, make)
        return PublishedMessage(number + 1, id)

    @sync_and_async
    async def read(self, after: int = 0, limit: int = 100) -> list[TopicMessage]:
        """A page of messages, from the one after a number on, or from the first that is still there. Whoever reads so
        keeps count by themselves."""
        if type(after) is not int or after < 0 or type(limit) is not int or limit < 1:
            raise InvalidError("a page starts after a number from 0 up, and has 1 message or more")
        await self._place.may("read", MESSAGE)
        found = await messages(self._place, await self._chain.read(after, limit))
        await self._place.for_(MESSAGE).guard.saw(self.scope, ())
        return found

    @sync_and_async
    async def count(self) -> int:
        """How many messages were published so far, with those that were trimmed."""
        await self._place.may("read", MESSAGE)
        return await self._chain.length()

    @sync_and_async
    async def subscribers(self) -> list[Subscriber]:
        """All who have subscribed, by whom, and how far each has got."""
        await self._place.may("read", MESSAGE)
        return await self._subscribers()

    @sync_and_async
    async def unsubscribe(self, name: str) -> bool:
        """Forget a subscriber, and how far it has got. False if there was none."""
        permit = await self._place.may("read", MESSAGE)
        return await reader(self._place, name).delete(permit)

    @sync_and_async
    async def trim(self, *, older_than: float | timedelta | None = None) -> int:
        """Drop messages that all subscribers have acknowledged; or, given an age in seconds or as a timedelta, those
        that are older, whoever has them yet to come. Without a subscriber and an age, nothing goes.

        They go by the thousand: how many are left beyond what should go is no more than that. Returns how many went.
        Takes the right to write the topic's scope.
        """
        permit = await self._place.may("write", MESSAGE)
        before = None if older_than is None else self._place.handle.now() - nanoseconds(older_than)
        seen = min((each.cursor for each in await self._subscribers()), default=0)

        def goes(number: int, end: StepRef) -> bool:
            return number < seen or (before is not None and end.time < before)

        dropped = await self._chain.drop(goes, permit)
        if dropped:
            handle = self._place.for_(MESSAGE)
            note = KeyWrite(_TRIMMED, "trim", packed=pack_value(handle, _TRIMMED, await self._chain.first()))
            await commit(handle, {self._place.own: [note]})
        return dropped

    @sync_and_async
    async def delete(self) -> bool:
        """Remove the topic with all messages and subscribers. False if there was none."""
        permit = await self._place.may("write", MESSAGE)
        for scope in await self._readers():
            await SegmentedLog(self._place.handle, scope).delete(permit)
        return await self._chain.delete(permit)

    async def _subscribers(self) -> list[Subscriber]:
        from holdfast.state.sharing.subscription import cursor_of

        count, found = await self._chain.length(), []
        for scope in await self._readers():
            cursor = await cursor_of(SegmentedLog(self._place.handle, scope))
            parts = dict(scope.parts)
            found.append(Subscriber(parts["reader"], parts.get("by", ""), cursor, max(count - cursor, 0)))
        return found

    async def _readers(self) -> list[Scope]:
        """How the chains of all subscribers are named."""
        start = f"{self._place.own.line}/reader:"
        lines = await self._place.handle.engine.lines.names(self._place.handle.tenant, start)
        found = [Scope(tuple(map(ScopePart.parse, line.name[len(MARK) :].split("/")))) for line in lines]
        return [scope for scope in found if scope.parts[-1].kind != LINK]


class Topic(SyncApi, TopicOperations):
    """A topic: `store.sharing.topic("news")`."""

    def subscribe(self, name: str, *, start: Start = "now") -> Subscription:
        """Subscribe under a name, or go on where the subscriber of that name was.

        A new one gets what is published from now on, or all messages that are still there (`start="start"`). Names are
        the own of each identity: two agents that subscribe as `inbox` are two subscribers. Of two that are subscribed
        under one name at a time, the last one has it, and the other is told so (`ConflictError`, code `lease-lost`).
        """
        from holdfast.state.sharing.subscription import Subscription, subscribed

        return run(subscribed(Subscription, self._place, name, start))


class AsyncTopic(AsyncApi, TopicOperations):
    """The same, for asyncio: operations are awaited."""

    async def subscribe(self, name: str, *, start: Start = "now") -> AsyncSubscription:
        """The same as `Topic.subscribe`."""
        from holdfast.state.sharing.subscription import AsyncSubscription, subscribed

        return await arun(subscribed(AsyncSubscription, self._place, name, start))


def reader(place: SharedResource, name: str) -> SegmentedLog:
    """The chain that holds how far a subscriber has got."""
    guard = place.handle.guard
    checked, actor = guard.key(str(place.scope), name, "name of the subscriber"), guard.actor
    own = place.below(("reader", checked), *([("by", actor)] if actor else []))
    return SegmentedLog(place.handle, own)


async def messages(place: SharedResource, page: LogPage) -> list[TopicMessage]:
    """The messages in some steps."""
    handle, found = place.handle, []
    for number, row in enumerate(page.rows, page.first + 1):
        point, step = StepRef.of(row), open_step(page.line, row, handle.engine.context.max_bytes)
        packed = dict(step.edit.put).get(_PACKED)
        if type(packed) is not Set:
            raise CorruptError("a step of a topic has no message", where=f"message {number} of {place.own}")
        resolved = await handle.engine.states.resolve_pointers(page.line, {_PACKED: packed.value})
        about = handle.codec.unpack(step.header.metadata)
        found.append(
            TopicMessage(
                number,
                unpack(handle.codec, resolved[_PACKED]),
                to_datetime(point.time),
                str(about.get("actor", "")),
                str(about.get("correlation", "")),
                str(about.get("cause", "")),
                point.id,
            )
        )
    return found
