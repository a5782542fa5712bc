"""Transfer the conversation and the context of one agent to another.

First a step of the giver records the intent. Then the receiver is asked. Then one batch appends a step to each: the
giver loses the messages and the receiver gets them, so that at every moment exactly one of them has them. Finally a
step of the receiver acknowledges them. A transfer that is interrupted before that batch is undone, or repeated, at the
next start of the giver; one that is interrupted after it is acknowledged at the next start of the receiver.
"""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from threading import get_ident
from time import perf_counter_ns
from typing import Any, Literal

from msgspec.structs import replace

from holdfast.agents.definition.state_machine import invoke
from holdfast.agents.runtime.data import Attempt
from holdfast.agents.runtime.message_buffer import MessageHandover
from holdfast.agents.runtime.persister import AgentPersister
from holdfast.agents.runtime.placeholder import Placeholder, RestoreAgent, load_placeholder
from holdfast.agents.runtime.two_phase import incomplete_error
from holdfast.agents.storage.agent_line import AgentLine
from holdfast.agents.storage.record import CONVERSATION, PendingChange, error_text
from holdfast.agents.transfer.offer import TRANSFER, Offer, Phase, Transfer, transfer_event, transfer_recovery_event
from holdfast.engine import validation
from holdfast.engine.events import Event
from holdfast.engine.model.packed_state import as_items
from holdfast.engine.rng import rng
from holdfast.errors import (
    ConflictError,
    DeniedError,
    HoldfastError,
    InvalidError,
    NotFoundError,
    OutcomeUnknownError,
    TransientError,
    UnavailableError,
)

_RECENT = 20
"""How many of the last messages are part of an offer."""

_ATTEMPTS = 5
"""How often a receiver that another process saved is loaded and asked again."""

_MAX_ERROR = 500
"""How many characters of an error are stored."""


async def transfer(
    giver: AgentPersister,
    to: AgentPersister | str,
    restore: RestoreAgent,
    *,
    context: Mapping[str, Any] | None = None,
    reason: str = "",
    accept: bool = False,
) -> Transfer:
    """Transfer the conversation of an agent to another live one, or to the one with an id.

    `context` is added to the context of the giver. A receiver that is given by its id is restored to be asked; with
    `accept`, it is not asked.
    """
    extra_context = dict(validation.require_mapping(context or {}, "context"))
    if any(type(key) is not str for key in extra_context):
        raise InvalidError("the keys of a context must be strings", where=repr(list(extra_context))[:80])
    giver.line.handle.codec.pack(extra_context)  # raises an error with the path of a value that cannot be stored
    target = to.line.id if isinstance(to, AgentPersister) else AgentLine(giver.line.handle, to).id
    if target == giver.line.id:
        raise InvalidError("an agent cannot transfer to itself", where=f"agent {target!r}")
    mine = giver.line.handle
    if isinstance(to, AgentPersister) and (
        to.line.handle.engine is not mine.engine or to.line.handle.tenant != mine.tenant
    ):
        raise InvalidError("both agents must be in the same store", where=f"agent {target!r}")
    live = [giver, to] if isinstance(to, AgentPersister) else [giver]
    async with _exclusive(live):
        run = TransferRun(giver, f"{rng.getrandbits(64):016x}", extra_context, str(reason), restore, accept=accept)
        return await run.start(to if isinstance(to, AgentPersister) else target)


@asynccontextmanager
async def _exclusive(persisters: Sequence[AgentPersister]) -> AsyncIterator[None]:
    """Let no other change of these agents begin during this block. Their locks are acquired in a fixed order, so that
    no two transfers wait for each other."""
    async with AsyncExitStack() as stack:
        for persister in sorted(persisters, key=lambda each: each.line.id):
            await stack.enter_async_context(persister.lifecycle.exclusive("a transfer"))
        yield


@dataclass
class TransferRun:
    """One transfer, from the side of the giver."""

    giver: AgentPersister
    id: str
    extra_context: Mapping[str, Any]
    reason: str
    restore: RestoreAgent
    accept: bool
    recovers: PendingChange | None = None
    """The half-done transfer that this run resolves, if it does."""
    started: int = field(default_factory=perf_counter_ns)

    async def start(self, to: AgentPersister | str) -> Transfer:
        """Run the transfer from the beginning."""
        giver = self.giver
        if giver.data.pending is not None:
            raise incomplete_error(giver.data.pending, giver.where, "Have it resolved first")
        target = to if isinstance(to, str) else to.line.id
        await giver.line.allow("write")
        await (AgentLine(giver.line.handle, to) if isinstance(to, str) else to.line).allow("write")
        receiver = await self._load_receiver(to)
        offer = await self.build_offer(target)
        try:
            await self._ask(giver, "offers", offer)
        except _Refusal as refusal:
            raise self._refusal_error(giver, "does not offer it", refusal) from refusal.__cause__
        hooks = await giver.call_hooks("agent.transfer", target=target, transfer=self.id)
        details = {"context": dict(self.extra_context), "reason": self.reason}
        pending = PendingChange(TRANSFER, TRANSFER, giver.line.id, target, giver.now(), self.id, data=details)
        events = [self.build_event(giver, offer, "begun"), *hooks.events]
        await giver.commit("transfer.begin", events, position=giver.data.position._replace(pending=pending))
        result = await self.complete(offer, to, receiver)
        hooks.call_after(giver.version, "" if giver.point is None else giver.point.id)
        return result

    async def complete(
        self, offer: Offer, to: AgentPersister | str, receiver: AgentPersister | None = None
    ) -> Transfer:
        """Run the rest of the transfer, once the giver has saved the intent."""
        for attempt in range(_ATTEMPTS):
            try:
                receiver = receiver or await self._load_receiver(to)
                if not self.accept:
                    await self._ask(receiver, "accepts", offer)
                offer = await commit_transfer(self.giver, receiver, offer, self.extra_context, self._commit_events)
            except _Refusal as refusal:
                await self._close("refused", offer, str(refusal))
                raise self._refusal_error(receiver or self.giver, "does not accept it", refusal) from refusal.__cause__
            except ConflictError as error:
                again = isinstance(to, str) and attempt + 1 < _ATTEMPTS and await self._is_giver_current()
                if not again:
                    await self._undo(offer, error)
                    raise
                receiver = None
            except OutcomeUnknownError:
                raise  # it may be committed, and cannot be undone before that is known
            except (Exception, CancelledError) as error:
                # If it was committed in spite of the cancellation, there is nothing left to undo.
                await self._undo(offer, error)
                raise
            else:
                return await acknowledge(receiver, offer)
        raise AssertionError  # pragma: no cover - the last attempt returns or raises

    async def _load_receiver(self, to: AgentPersister | str) -> AgentPersister:
        if isinstance(to, AgentPersister):
            receiver = to
        else:
            receiver = await self.restore(self.giver.line.handle, to, allow_placeholder=self.accept)
        if receiver.data.pending is not None:
            raise incomplete_error(receiver.data.pending, receiver.where, "Have it resolved first")
        return receiver

    async def _is_giver_current(self) -> bool:
        """Whether the giver is as it was, so that it was the receiver that another process saved."""
        newest = await self.giver.line.latest_step()
        return newest is not None and self.giver.point is not None and newest.id == self.giver.point.id

    async def build_offer(self, target: str) -> Offer:
        """Build the offer from the current state of the giver."""
        giver, conversation = self.giver, self.giver.data.conversation
        context = {**giver.data.context, **self.extra_context}
        recent = tuple(await conversation.slice(-_RECENT, None))
        messages, tokens, kind = len(conversation), conversation.tokens, giver.spec.name
        return Offer(self.id, giver.line.id, target, kind, messages, tokens, context, self.reason, recent)

    async def _ask(self, persister: AgentPersister, hook: str, offer: Offer) -> None:
        """Ask an agent about the offer, if it has the hook. Raises `_Refusal`."""
        method = persister.find_method(hook)
        if method is None:
            return
        try:
            answer = await invoke(method, offer)
            refuses = answer is not None and not answer
        except (TransientError, UnavailableError):
            raise  # not an answer to the offer
        except HoldfastError as error:
            raise _Refusal(error.what) from error
        except Exception as error:
            raise _Refusal(error_text(error, _MAX_ERROR)) from error
        if refuses:
            raise _Refusal("it said no")

    def _refusal_error(self, agent: AgentPersister, what: str, refusal: _Refusal) -> DeniedError:
        return DeniedError(
            f"the transfer is refused: agent {agent.line.id!r} {what}: {refusal}",
            where=self.giver.where,
            hint="The conversation stays where it was",
            code="transfer-refused",
        )

    # The end --------------------------------------------------------------------------------------------------

    async def _undo(self, offer: Offer, error: BaseException) -> None:
        """Undo the transfer. If that cannot be saved either, it is resolved at the next start."""
        try:
            await self._close("undone", offer, error_text(error, _MAX_ERROR))
        except HoldfastError as another:
            error.add_note(f"The undo of the transfer could not be saved: {another}")

    async def _close(self, phase: Literal["refused", "undone"], offer: Offer, error: str) -> None:
        """End the transfer, even if another process saved the giver in the meantime without resolving it. If it was
        committed after all, there is nothing to end."""
        for _ in range(2):  # it may be committed during this attempt
            await self.giver.lifecycle.resolve_uncertain()
            if not is_under_way(self.giver, self.id):
                return None
            with suppress(ConflictError):
                return await self.end(phase, offer, error)
        for _ in range(_ATTEMPTS):
            other = await load_placeholder(self.giver.line)
            if not is_under_way(other, self.id):
                return None
            with suppress(ConflictError):
                run = TransferRun(other, self.id, self.extra_context, self.reason, self.restore, accept=True)
                return await run.end(phase, offer, error)
        return None

    async def end(self, phase: Literal["refused", "undone"], offer: Offer, error: str) -> None:
        """Save that the giver is as it was."""
        giver = self.giver
        events = [self.build_event(giver, offer, phase, error), *self._recovery_events("back")]
        await giver.commit(f"transfer.{phase}", events, position=giver.data.position._replace(pending=None))

    def _commit_events(self, persister: AgentPersister, offer: Offer) -> list[Event]:
        if persister is self.giver:
            return [self.build_event(persister, offer, "given"), *self._recovery_events("forward")]
        return [self.build_event(persister, offer, "received")]

    def _recovery_events(self, how: Literal["back", "forward"]) -> list[Event]:
        """Build the event that records how a half-done transfer was resolved, if this run resolves one."""
        ran = how == "forward" and not isinstance(self.giver.agent, Placeholder)
        return [] if self.recovers is None else [transfer_recovery_event(self.giver, self.recovers, how, ran=ran)]

    def build_event(self, persister: AgentPersister, offer: Offer, phase: Phase, error: str = "") -> Event:
        """Build the event that records a phase."""
        return transfer_event(persister, offer, phase, error, perf_counter_ns() - self.started)


class _Refusal(Exception):
    """Raised when an agent refuses an offer."""


async def acknowledge(receiver: AgentPersister, offer: Offer, events: Sequence[Event] = ()) -> Transfer:
    """Call the receiver's `on_receive`, and save that it has the messages. After an interruption it may be called
    again."""
    error: Exception | None = None
    hook = receiver.find_method("on_receive")
    if hook is not None:
        try:
            await invoke(hook, offer)
        except Exception as raised:  # noqa: BLE001 - it is raised below; the receiver has the messages in any case
            error = raised
    text = "" if error is None else error_text(error, _MAX_ERROR)
    events = [transfer_event(receiver, offer, "acknowledged", text), *events]
    await receiver.commit("transfer.acknowledged", events, position=receiver.data.position._replace(pending=None))
    if error is not None:
        raise error
    actor, now = receiver.line.handle.guard.actor, receiver.now()
    return Transfer(
        offer.id,
        offer.source,
        offer.target,
        "acknowledged",
        now,
        offer.messages,
        offer.tokens,
        offer.reason,
        actor=actor,
    )


async def recover_transfer(
    persister: AgentPersister, how: Literal["back", "forward"], restore: RestoreAgent
) -> tuple[Literal["back", "forward"], bool]:
    """Resolve a half-done transfer. Returns how it was resolved, and whether the agents' own hooks were called.

    A transfer that was received is acknowledged in any case: the receiver has the conversation, and may have continued
    it.
    """
    pending = persister.data.pending
    if pending is None or pending.kind != TRANSFER:
        raise InvalidError("no transfer is in progress", where=persister.where)
    live = not isinstance(persister.agent, Placeholder)
    data: Mapping[str, Any] = pending.data if isinstance(pending.data, Mapping) else {}
    reason = str(data.get("reason", ""))
    if pending.phase == "received":
        recent = tuple(await persister.data.conversation.slice(-_RECENT, None))
        messages, tokens = int(data.get("messages", 0)), int(data.get("tokens", 0))
        id, source, target, context = pending.correlation, pending.source, pending.target, persister.data.context
        offer = Offer(id, source, target, "", messages, tokens, dict(context), reason, recent)
        await acknowledge(persister, offer, [transfer_recovery_event(persister, pending, "forward", ran=live)])
        return "forward", live
    context = dict(data.get("context", {}))
    run = TransferRun(persister, pending.correlation, context, reason, restore, accept=not live, recovers=pending)
    offer = await run.build_offer(pending.target)
    if how == "back":
        await run.end("undone", offer, "")
        return "back", False
    try:
        await run.complete(offer, pending.target)
    except (DeniedError, NotFoundError):
        if persister.data.pending is not None:
            raise
        return "back", live  # it was refused, or the receiver does not exist: the conversation stays where it was
    return "forward", live


def resolve_receiver(to: Any) -> AgentPersister | str:
    """Return the receiver that a caller names: an agent by its id, or a live one."""
    if isinstance(to, str | AgentPersister):
        return to
    persister = getattr(to, "persister", None)
    if not isinstance(persister, AgentPersister):
        raise InvalidError(
            f"the receiver of a transfer must be an agent or an id, not {type(to).__name__}",
            hint="Pass the agent, its handle, or its id",
        )
    return persister


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
