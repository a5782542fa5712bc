"""Topics: every subscriber gets all messages, in order.

A message is a step of the topic's log, so that none is lost or duplicated, and all see them in one order. A subscriber
is a name with a cursor of its own (`subscription`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.backends.runtime.drivers import AsyncApi, SyncApi, arun, declare, operation, run
from holdfast.engine.model.scopes import MARK, Scope, ScopePart
from holdfast.engine.row_format import StepRef
from holdfast.errors import InvalidError
from holdfast.state.keys import pack_value
from holdfast.state.reader import ScopeView
from holdfast.state.sharing.messages import MESSAGE, PUBLISH, Start, TopicMessage, read_messages, reader_log
from holdfast.state.sharing.resource import NOT_REMOTE, SharedResource
from holdfast.state.sharing.segmented_log import SEGMENT, SegmentedLog
from holdfast.state.writer import KeyWrite, commit
from holdfast.time_parser import Duration, parse_nanoseconds

if TYPE_CHECKING:
    from holdfast.state.sharing.subscription import AsyncSubscription, Subscription


_TRIMMED = "trimmed"
"""The key of the topic's own line that has the number of deleted messages."""


class PublishedMessage(NamedTuple):
    """A published message: its number in the topic, from 1 on, and its id."""

    number: int
    id: str


class Subscriber(NamedTuple):
    """A subscriber: the number of the last message that it acknowledged, and how many follow."""

    name: str
    actor: str
    cursor: int
    lag: int


@declare(not_remote=NOT_REMOTE)
class TopicOperations:
    """Operations on a topic. `Topic` and `AsyncTopic` have these as methods."""

    def __init__(self, place: SharedResource) -> None:
        self._resource = place
        self._log = SegmentedLog(place.handle, place.name)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._resource.name}>"

    @property
    def scope(self) -> Scope:
        """The scope that decides who may use the topic: writing it allows publishing, reading it subscribing."""
        return self._resource.scope

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
            handle = self._resource.handle_for(MESSAGE)
            note = KeyWrite(_TRIMMED, "trim", packed=pack_value(handle, _TRIMMED, await self._log.first()))
            await commit(handle, {self._resource.name: [note]})
        return dropped

    @operation(changes=True)
    async def delete(self) -> bool:
        """Delete the topic with all messages and subscribers. False if there was none."""
        permit = await self._resource.require("write", MESSAGE)
        for scope in await self._readers():
            await SegmentedLog(self._resource.handle, scope).delete(permit)
        return await self._log.delete(permit)

    async def _subscribers(self) -> list[Subscriber]:
        from holdfast.state.sharing.subscription import read_cursor

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
        from holdfast.state.sharing.subscription import Subscription, subscribe

        return run(subscribe(Subscription, self._resource, name, start))


class AsyncTopic(AsyncApi, TopicOperations):
    """A topic for asyncio: operations are awaited."""

    async def subscribe(self, name: str, *, start: Start = "now") -> AsyncSubscription:
        """Subscribe under a name. See `Topic.subscribe`."""
        from holdfast.state.sharing.subscription import AsyncSubscription, subscribe

        return await arun(subscribe(AsyncSubscription, self._resource, name, start))
