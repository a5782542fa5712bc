"""Broadcast: a topic, whose messages each subscriber gets, all of them and in order.

A message is a step of the topic's chain, so that none is lost or doubled, and all see them in one order. A subscriber
is a name with a cursor of its own (`subscription`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.backends.runtime.drivers import AsyncApi, SyncApi, arun, run, sync_and_async
from holdfast.engine.model.scopes import MARK, Scope, ScopePart
from holdfast.engine.row_format import StepRef
from holdfast.errors import InvalidError
from holdfast.state.keys import pack_value
from holdfast.state.reader import ScopeView
from holdfast.state.sharing.messages import MESSAGE, Start, TopicMessage, messages, reader
from holdfast.state.sharing.resource import SharedResource
from holdfast.state.sharing.segmented_log import LINK, SegmentedLog
from holdfast.state.writer import KeyWrite, commit
from holdfast.time_parsing import Duration, parse_nanoseconds

if TYPE_CHECKING:
    from holdfast.state.sharing.subscription import AsyncSubscription, Subscription


_TRIMMED = "trimmed"
"""The key of the topic's own line that says how many messages are gone."""


class PublishedMessage(NamedTuple):
    """A message that was published: its number in the topic, from 1 on, and its id."""

    number: int
    id: str


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
    async def trim(self, *, older_than: Duration | None = None) -> int:
        """Drop messages that all subscribers have acknowledged; or, given an age, those
        that are older, whoever has them yet to come. Without a subscriber and an age, nothing goes.

        They go by the thousand: how many are left beyond what should go is no more than that. Returns how many went.
        Takes the right to write the topic's scope.
        """
        permit = await self._place.may("write", MESSAGE)
        before = (
            None
            if older_than is None
            else self._place.handle.now() - parse_nanoseconds(older_than, "age", positive=True)
        )
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
