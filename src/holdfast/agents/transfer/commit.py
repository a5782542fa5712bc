"""Commit a transfer: one batch with a step of the giver and one of the receiver, both or none."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from threading import get_ident
from typing import Any

from msgspec.structs import replace

from holdfast.agents.runtime.data import Attempt
from holdfast.agents.runtime.message_buffer import MessageHandover
from holdfast.agents.runtime.persister import AgentPersister
from holdfast.agents.storage.record import CONVERSATION, PendingChange
from holdfast.agents.transfer.offer import TRANSFER, Offer
from holdfast.engine.events import Event
from holdfast.engine.model.packed_state import as_items
from holdfast.errors import ConflictError, OutcomeUnknownError


async def commit_transfer(
    giver: AgentPersister,
    receiver: AgentPersister,
    offer: Offer,
    extra_context: Mapping[str, Any],
    build_events: Callable[[AgentPersister, Offer], Sequence[Event]],
) -> Offer:
    """Move the conversation and the context of the giver, and an extra context, to the receiver. Returns the offer as
    it was committed."""
    first, second = sorted((giver, receiver), key=lambda each: each.line.id)
    async with first.save_lock.acquire(), second.save_lock.acquire(), _mark_committing(giver, receiver):
        await giver.resolve_uncertain()
        await receiver.resolve_uncertain()
        if not is_under_way(giver, offer.id):
            raise ConflictError("another process has resolved the transfer", where=giver.where)
        changes = (_UndoableChange(giver), _UndoableChange(receiver))
        attempts: list[Attempt] = []
        try:
            unsaved = giver.data.conversation.begin_handover()
            messages = await _saved_messages(giver, unsaved.base_count) if unsaved.base_count else []
            messages += giver.line.handle.codec.pack_items(unsaved.added)
            offer = replace(offer, messages=unsaved.length, tokens=unsaved.tokens)
            _apply(giver, receiver, offer, extra_context, messages)
            for each in changes:
                each.record()
            mine = await _build_attempt(giver, "transfer.given", build_events(giver, offer))
            other = await _build_attempt(receiver, "transfer.received", build_events(receiver, offer))
            attempts = [mine, other]
            await _send(giver, receiver, mine, other)
        except BaseException:
            for each in changes:
                each.undo()
            # It may be committed already, or still will be: the next save of either agent resolves that.
            for persister, attempt, change in zip((giver, receiver), attempts, changes, strict=False):
                persister.uncertain_attempt = attempt._replace(redo=change.redo)
            raise
        return offer


def is_under_way(giver: AgentPersister, id: str) -> bool:
    """Whether an agent is in the middle of this transfer."""
    return giver.data.pending is not None and giver.data.pending.correlation == id


async def _saved_messages(giver: AgentPersister, count: int) -> list[bytes]:
    """Return the packed messages that are saved, byte for byte."""
    line, point = giver.line, giver.point
    assert point is not None  # noqa: S101 - something is saved
    packed = await line.handle.engine.state_reader(line.line, point).packed((CONVERSATION,))
    return (as_items(packed) or [])[:count]


def _apply(
    giver: AgentPersister,
    receiver: AgentPersister,
    offer: Offer,
    extra_context: Mapping[str, Any],
    messages: Sequence[bytes],
) -> None:
    now, tokens = giver.now(), offer.tokens
    details = {"transfer": offer.id, "time": now, "messages": offer.messages, "tokens": tokens, "reason": offer.reason}
    with giver.lock:
        data = giver.data
        context = {**data.context, **extra_context}
        data.context, data.pending = {}, None
        data.metadata = {**data.metadata, "transferred": {"to": offer.target, **details}}
    with receiver.lock:
        data = receiver.data
        data.context = {**data.context, **context}
        data.metadata = {**data.metadata, "received": {"from": offer.source, **details}}
        data.pending = PendingChange(TRANSFER, TRANSFER, offer.source, offer.target, now, offer.id, "received", details)
        data.conversation.receive(messages, tokens, receiver.read_messages)


async def _send(giver: AgentPersister, receiver: AgentPersister, mine: Attempt, other: Attempt) -> None:
    try:
        points = await giver.send(mine, other)
    except (OutcomeUnknownError, ConflictError):  # a lower layer may have retried, and conflicted with its own commit
        newest = [await persister.line.latest_step() for persister in (giver, receiver)]
        points = [point for point in newest if point is not None]
        if [point.id for point in points] != [mine.request.id, other.request.id]:
            raise
        giver.mark_saved(mine, points[0])
    receiver.mark_saved(other, points[1])


async def _build_attempt(persister: AgentPersister, kind: str, events: Sequence[Event]) -> Attempt:
    return persister.build_attempt(kind, persister.capture(), events, await persister.line.allow("write"))


@asynccontextmanager
async def _mark_committing(*persisters: AgentPersister) -> AsyncIterator[None]:
    """Keep changes of these agents in this thread from waiting for a save, which would wait for this block."""
    for persister in persisters:
        persister.committing_thread = get_ident()
    try:
        yield
    finally:
        for persister in persisters:
            persister.committing_thread = 0


class _UndoableChange:
    """The change that a transfer makes to one agent."""

    def __init__(self, persister: AgentPersister) -> None:
        self._persister = persister
        data = persister.data
        self._before = (data.context, data.metadata)
        self._pending_before = data.pending
        self._after: tuple[dict[str, Any], ...] = ()
        self._after_undo: tuple[dict[str, Any], ...] = ()
        self._pending_after: PendingChange | None = None
        self._handover: MessageHandover | None = None

    def record(self) -> None:
        """Record the data after the change."""
        data = self._persister.data
        self._after = (dict(data.context), dict(data.metadata))
        self._pending_after = data.pending

    def undo(self) -> None:
        """Undo the change; entries that others added in the meantime stay."""
        with self._persister.lock:
            data = self._persister.data
            for before, after, now in zip(self._before, self._after, (data.context, data.metadata), strict=False):
                before.update({key: value for key, value in now.items() if after.get(key, before) is not value})
            (data.context, data.metadata), data.pending = self._before, self._pending_before
            self._after_undo = (dict(data.context), dict(data.metadata))
            self._handover = data.conversation.cancel_handover()

    def redo(self) -> bool:
        """Make the change again, since it was committed after all; entries that were added in the meantime stay.
        Returns False if the messages were rewritten, so that the transferred ones can no longer be identified."""
        with self._persister.lock:
            data = self._persister.data
            if self._handover is None or not data.conversation.resume_handover(self._handover):
                return False
            merged = []
            for after, undone, now in zip(self._after, self._after_undo, (data.context, data.metadata), strict=True):
                merged.append(
                    {**after, **{key: value for key, value in now.items() if undone.get(key, undone) is not value}}
                )
            (data.context, data.metadata), data.pending = merged, self._pending_after
            return True
