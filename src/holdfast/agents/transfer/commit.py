"""The heart of a transfer: one batch that makes a step of the giver and one of the receiver, both or none."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from threading import get_ident
from typing import Any

from holdfast.agents.runtime.data import Attempt
from holdfast.agents.runtime.message_buffer import MessageHandover
from holdfast.agents.runtime.persister import AgentPersister
from holdfast.agents.storage.record import CONVERSATION, PendingChange
from holdfast.agents.transfer.offer import TRANSFER, Offer
from holdfast.engine.events import Event
from holdfast.engine.model.packed_state import as_items
from holdfast.errors import ConflictError, OutcomeUnknownError


async def hand_over(
    giver: AgentPersister,
    receiver: AgentPersister,
    offer: Offer,
    more: Mapping[str, Any],
    told: Callable[[AgentPersister, Offer], Sequence[Event]],
) -> Offer:
    """Have the receiver have what the giver has, and `more` besides its context. Returns what was handed over."""
    first, second = sorted((giver, receiver), key=lambda each: each.line.id)
    async with first.turns.turn(), second.turns.turn(), _committing(giver, receiver):
        await giver.settle()
        await receiver.settle()
        if not under_way(giver, offer.id):
            raise ConflictError("the transfer was resolved by another meanwhile", where=giver.where)
        changes = (_Changed(giver), _Changed(receiver))
        attempts: list[Attempt] = []
        try:
            said = giver.data.conversation.leave()
            given = await _items(giver, said.kept) if said.kept else []
            given += giver.line.handle.codec.pack_items(said.added)
            offer = replace(offer, messages=said.length, tokens=said.tokens)
            _change(giver, receiver, offer, more, given)
            for each in changes:
                each.made()
            mine = await _attempt(giver, "transfer.given", told(giver, offer))
            other = await _attempt(receiver, "transfer.received", told(receiver, offer))
            attempts = [mine, other]
            await _send(giver, receiver, mine, other)
        except BaseException:
            for each in changes:
                each.undo()
            # It may have been done, or be done yet: whoever of them is saved next looks.
            for keeper, attempt, change in zip((giver, receiver), attempts, changes, strict=False):
                keeper.doubtful = attempt._replace(redo=change.redo)
            raise
        return offer


def under_way(giver: AgentPersister, id: str) -> bool:
    """Whether an agent is in the middle of this transfer."""
    return giver.data.pending is not None and giver.data.pending.correlation == id


async def _items(giver: AgentPersister, count: int) -> list[bytes]:
    """The packed messages that are saved: the bytes that are stored are handed over."""
    line, point = giver.line, giver.point
    assert point is not None  # noqa: S101 - something is saved
    packed = await line.handle.engine.partial(line.line, point).packed((CONVERSATION,))
    return (as_items(packed) or [])[:count]


def _change(
    giver: AgentPersister, receiver: AgentPersister, offer: Offer, more: Mapping[str, Any], given: Sequence[bytes]
) -> None:
    now, tokens = giver.now(), offer.tokens
    about = {"transfer": offer.id, "time": now, "messages": offer.messages, "tokens": tokens, "reason": offer.reason}
    with giver.lock:
        data = giver.data
        context = {**data.context, **more}
        data.context, data.pending = {}, None
        data.metadata = {**data.metadata, "transferred": {"to": offer.target, **about}}
    with receiver.lock:
        data = receiver.data
        data.context = {**data.context, **context}
        data.metadata = {**data.metadata, "received": {"from": offer.source, **about}}
        data.pending = PendingChange(TRANSFER, TRANSFER, offer.source, offer.target, now, offer.id, "received", about)
        data.conversation.receive(given, tokens, receiver.messages)


async def _send(giver: AgentPersister, receiver: AgentPersister, mine: Attempt, other: Attempt) -> None:
    try:
        points = await giver.sent(mine, other)
    except (OutcomeUnknownError, ConflictError):  # what got no answer may be tried again below, and find itself
        newest = [await keeper.line.newest() for keeper in (giver, receiver)]
        points = [point for point in newest if point is not None]
        if [point.id for point in points] != [mine.saving.id, other.saving.id]:
            raise
        giver.saved(mine, points[0])
    receiver.saved(other, points[1])


async def _attempt(keeper: AgentPersister, kind: str, events: Sequence[Event]) -> Attempt:
    """A step of an agent as it is now."""
    return keeper.attempt(kind, keeper.take(), events, await keeper.line.allow("write"))


@asynccontextmanager
async def _committing(*keepers: AgentPersister) -> AsyncIterator[None]:
    """Whoever changes one of these agents in this thread does not wait for a save of it, which waits for this block."""
    for keeper in keepers:
        keeper.committer = get_ident()
    try:
        yield
    finally:
        for keeper in keepers:
            keeper.committer = 0


class _Changed:
    """What of an agent a transfer changes, to be put back if it comes to nothing."""

    def __init__(self, keeper: AgentPersister) -> None:
        self._keeper = keeper
        data = keeper.data
        self._before = (data.context, data.metadata)
        self._pending = data.pending
        self._after: tuple[dict[str, Any], ...] = ()
        self._undone: tuple[dict[str, Any], ...] = ()
        self._made: PendingChange | None = None
        self._handed: MessageHandover | None = None

    def made(self) -> None:
        """What it was changed to."""
        data = self._keeper.data
        self._after = (dict(data.context), dict(data.metadata))
        self._made = data.pending

    def undo(self) -> None:
        """Put it back; what others have put beside it meanwhile stays."""
        with self._keeper.lock:
            data = self._keeper.data
            for before, after, now in zip(self._before, self._after, (data.context, data.metadata), strict=False):
                before.update({key: value for key, value in now.items() if after.get(key, before) is not value})
            (data.context, data.metadata), data.pending = self._before, self._pending
            self._undone = (dict(data.context), dict(data.metadata))
            self._handed = data.conversation.stay()

    def redo(self) -> bool:
        """It was done after all: have the agent be so. What was put beside it meanwhile stays. False if the messages
        were rewritten meanwhile, so that it cannot be told which of them were handed over."""
        with self._keeper.lock:
            data = self._keeper.data
            if self._handed is None or not data.conversation.hand(self._handed):
                return False
            made = []
            for after, undone, now in zip(self._after, self._undone, (data.context, data.metadata), strict=True):
                made.append(
                    {**after, **{key: value for key, value in now.items() if undone.get(key, undone) is not value}}
                )
            (data.context, data.metadata), data.pending = made, self._made
            return True
