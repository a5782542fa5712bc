"""Transfer: one agent hands its conversation, and what it knows of the work, to another.

First a step of the giver says that it is going to. Then the receiver is asked. Then one batch makes a step of each: the
giver has the messages no more, and the receiver has them; nobody ever holds them twice, and there is no moment at which
nobody does. Then a step of the receiver says that it has taken note. What is interrupted before that batch is undone,
or done again, when the giver is started next; what is interrupted after it is acknowledged when the receiver is.
"""

from __future__ import annotations

import time as clocks
from asyncio import CancelledError
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime
from threading import get_ident
from typing import Any, Literal, TypeAlias

from holdfast import arguments
from holdfast.agents.calling import called
from holdfast.agents.data import Attempt
from holdfast.agents.keeper import Keeper
from holdfast.agents.lines import AgentLine
from holdfast.agents.messages import Handed
from holdfast.agents.phases import incomplete
from holdfast.agents.record import CONVERSATION, Pending
from holdfast.agents.reviving import StandIn, inert, revived
from holdfast.engine.chance import chance
from holdfast.errors import Conflict, Denied, HoldfastError, Invalid, NotFound, Transient, Unavailable, Uncertain
from holdfast.model.packed import as_items
from holdfast.security import tracing
from holdfast.security.events import Event

Phase: TypeAlias = Literal["begun", "refused", "undone", "given", "received", "acknowledged"]

TRANSFER = "transfer"
_RECENT = 20
_ATTEMPTS = 5
"""So often the receiver is loaded and asked again that was saved by another meanwhile."""
_LONGEST = 500


@dataclass(frozen=True, slots=True)
class Offer:
    """What one agent is about to hand to another. Both are shown it, and may refuse."""

    id: str
    """The id of the transfer."""
    source: str
    target: str
    kind: str
    """The class of the giver."""
    messages: int
    """How many messages there are, and how many tokens."""
    tokens: int
    context: Mapping[str, Any]
    """What the receiver will know besides what it knows."""
    reason: str = ""
    recent: Sequence[Any] = ()
    """The last messages, up to twenty."""


@dataclass(frozen=True, slots=True)
class Transfer:
    """A transfer, as far as it got."""

    id: str
    source: str
    target: str
    phase: Phase
    """`begun`, `refused` and `undone` are told by the giver's line, and `given`; `received` and `acknowledged` by that
    of the receiver."""
    time: datetime
    messages: int = 0
    tokens: int = 0
    reason: str = ""
    error: str = ""
    actor: str = ""


async def transfer(
    giver: Keeper,
    to: Keeper | str,
    *,
    context: Mapping[str, Any] | None = None,
    reason: str = "",
    accept: bool = False,
) -> Transfer:
    """Hand over what an agent has: to another that is alive here, or to the one that has an id.

    `context` is told besides what the giver knows. Whoever is named by its id is brought back to life to be asked; with
    `accept`, nobody is asked.
    """
    more = dict(arguments.mapping(context or {}, "context"))
    if any(type(key) is not str for key in more):
        raise Invalid("the keys of a context are strings", where=repr(list(more))[:80])
    giver.line.handle.codec.pack(more)  # says what cannot be kept of it, and where
    target = to.line.id if isinstance(to, Keeper) else AgentLine(giver.line.handle, to).id
    if target == giver.line.id:
        raise Invalid("an agent hands nothing to itself", where=f"agent {target!r}")
    mine = giver.line.handle
    if isinstance(to, Keeper) and (to.line.handle.engine is not mine.engine or to.line.handle.tenant != mine.tenant):
        raise Invalid("both agents must be kept in one store", where=f"agent {target!r}")
    live = [giver, to] if isinstance(to, Keeper) else [giver]
    async with _alone(live):
        handing = _Handing(giver, f"{chance.getrandbits(64):016x}", more, str(reason), accept=accept)
        return await handing.all(to if isinstance(to, Keeper) else target)


@asynccontextmanager
async def _alone(keepers: Sequence[Keeper]) -> AsyncIterator[None]:
    """No other change of these agents begins during this block. All take them in one order, so that nobody waits for
    one who waits."""
    async with AsyncExitStack() as stack:
        for keeper in sorted(keepers, key=lambda each: each.line.id):
            await stack.enter_async_context(keeper.phases.exclusive("a transfer"))
        yield


class _Handing:
    """One transfer, from the side of the giver."""

    def __init__(self, giver: Keeper, id: str, more: Mapping[str, Any], reason: str, *, accept: bool) -> None:
        self.giver = giver
        self.id = id
        self.more = more
        self.reason = reason
        self.accept = accept
        self.started = clocks.perf_counter_ns()
        self.found: Pending | None = None
        """What was found half-done, if it is that which is resolved."""

    async def all(self, to: Keeper | str) -> Transfer:
        """From the beginning."""
        giver = self.giver
        if giver.data.pending is not None:
            raise incomplete(giver.data.pending, _where(giver), "Have it resolved first")
        target = to if isinstance(to, str) else to.line.id
        await giver.line.allow("write")
        await (AgentLine(giver.line.handle, to) if isinstance(to, str) else to.line).allow("write")
        receiver = await self._receiver(to)
        offer = await self.offer(target)
        try:
            await self._asked(giver, "offers", offer)
        except _Refused as refused:
            raise self._denied(giver, "does not offer it", refused) from refused.__cause__
        before = await giver.asked("agent.transfer", target=target, transfer=self.id)
        about = {"context": dict(self.more), "reason": self.reason}
        pending = Pending(TRANSFER, TRANSFER, giver.line.id, target, giver.now(), self.id, data=about)
        events = [self.event(giver, offer, "begun"), *before.events]
        await giver.commit("transfer.begin", events, standing=giver.data.standing._replace(pending=pending))
        done = await self.rest(offer, to, receiver)
        before.done(giver.version, "" if giver.point is None else giver.point.id)
        return done

    async def rest(self, offer: Offer, to: Keeper | str, receiver: Keeper | None = None) -> Transfer:
        """What follows once the giver has said that it is going to."""
        for attempt in range(_ATTEMPTS):
            try:
                receiver = receiver or await self._receiver(to)
                if not self.accept:
                    await self._asked(receiver, "accepts", offer)
                offer = await self.hand_over(receiver, offer)
            except _Refused as refused:
                await self._close("refused", offer, str(refused))
                raise self._denied(receiver or self.giver, "does not accept it", refused) from refused.__cause__
            except Conflict as error:
                again = isinstance(to, str) and attempt + 1 < _ATTEMPTS and await self._still()
                if not again:
                    await self._undo(offer, error)
                    raise
                receiver = None
            except Uncertain:
                raise  # it may have been done, and cannot be undone before that is known
            except (Exception, CancelledError) as error:
                # If what was cancelled is done all the same, there is nothing left to be undone.
                await self._undo(offer, error)
                raise
            else:
                return await acknowledge(receiver, offer)
        raise AssertionError  # pragma: no cover - the last attempt returns or raises

    async def _receiver(self, to: Keeper | str) -> Keeper:
        receiver = to if isinstance(to, Keeper) else await revived(self.giver.line.handle, to, inert_too=self.accept)
        if receiver.data.pending is not None:
            raise incomplete(receiver.data.pending, _where(receiver), "Have it resolved first")
        return receiver

    async def _still(self) -> bool:
        """Whether the giver is as it was, so that it was the receiver that another has saved."""
        newest = await self.giver.line.newest()
        return newest is not None and self.giver.point is not None and newest.id == self.giver.point.id

    async def offer(self, target: str) -> Offer:
        """What is to be handed over, as it is now."""
        giver, said = self.giver, self.giver.data.conversation
        context = {**giver.data.context, **self.more}
        recent = tuple(await said.slice(-_RECENT, None))
        kind = giver.spec.name
        return Offer(self.id, giver.line.id, target, kind, len(said), said.tokens, context, self.reason, recent)

    async def _asked(self, keeper: Keeper, hook: str, offer: Offer) -> None:
        """Ask an agent, if its author has something to say."""
        asked = keeper.method(hook)
        if asked is None:
            return
        try:
            said = await called(asked, offer)
            if said is not None and not said:
                raise _Refused("it said no")
        except (Transient, Unavailable):
            raise  # this says nothing about the offer
        except HoldfastError as error:
            raise _Refused(error.what) from error
        except _Refused:
            raise
        except Exception as error:
            raise _Refused(f"{type(error).__name__}: {error}"[:_LONGEST]) from error

    def _denied(self, who: Keeper, what: str, refused: _Refused) -> Denied:
        return Denied(
            f"the transfer is refused: agent {who.line.id!r} {what}: {refused}",
            where=_where(self.giver),
            hint="The conversation stays where it was",
            code="transfer-refused",
        )

    # The batch ------------------------------------------------------------------------------------------------

    async def hand_over(self, receiver: Keeper, offer: Offer) -> Offer:
        """A step of each, both or none. Returns what was handed over."""
        giver = self.giver
        first, second = sorted((giver, receiver), key=lambda each: each.line.id)
        async with first.turns.turn(), second.turns.turn(), _committing(giver, receiver):
            await giver.settle()
            await receiver.settle()
            if not self._under_way(giver):
                raise Conflict("the transfer was resolved by another meanwhile", where=_where(giver))
            changes = (_Changed(giver), _Changed(receiver))
            attempts: list[Attempt] = []
            try:
                said = giver.data.conversation.leave()
                given = await self._items(said.kept) if said.kept else []
                given += giver.line.handle.codec.pack_items(said.added)
                offer = replace(offer, messages=said.length, tokens=said.tokens)
                self._change(receiver, offer, given, said.tokens)
                for each in changes:
                    each.made()
                events = [self.event(giver, offer, "given"), *self._recovered("forward")]
                mine = await _attempt(giver, "transfer.given", events)
                other = await _attempt(receiver, "transfer.received", [self.event(receiver, offer, "received")])
                attempts = [mine, other]
                await self._send(receiver, mine, other)
            except BaseException:
                for each in changes:
                    each.undo()
                # It may have been done, or be done yet: whoever of them is saved next looks.
                for keeper, attempt, change in zip((giver, receiver), attempts, changes, strict=False):
                    keeper.doubtful = attempt._replace(redo=change.redo)
                raise
            return offer

    async def _items(self, count: int) -> list[bytes]:
        """The packed messages that are saved: the bytes that are stored are handed over."""
        line, point = self.giver.line, self.giver.point
        assert point is not None  # noqa: S101 - something is saved
        packed = await line.handle.engine.partial(line.line, point).packed((CONVERSATION,))
        return (as_items(packed) or [])[:count]

    def _change(self, receiver: Keeper, offer: Offer, given: Sequence[bytes], tokens: int) -> None:
        giver, now = self.giver, self.giver.now()
        about = {"transfer": self.id, "time": now, "messages": offer.messages, "tokens": tokens, "reason": self.reason}
        with giver.lock:
            data = giver.data
            context = {**data.context, **self.more}
            data.context, data.pending = {}, None
            data.metadata = {**data.metadata, "transferred": {"to": offer.target, **about}}
        with receiver.lock:
            data = receiver.data
            data.context = {**data.context, **context}
            data.metadata = {**data.metadata, "received": {"from": offer.source, **about}}
            data.pending = Pending(TRANSFER, TRANSFER, offer.source, offer.target, now, self.id, "received", about)
            data.conversation.receive(given, tokens, receiver.messages)

    async def _send(self, receiver: Keeper, mine: Attempt, other: Attempt) -> None:
        try:
            points = await self.giver.sent(mine, other)
        except (Uncertain, Conflict):  # what got no answer may be tried again below, and find itself
            newest = [await keeper.line.newest() for keeper in (self.giver, receiver)]
            points = [point for point in newest if point is not None]
            if [point.id for point in points] != [mine.saving.id, other.saving.id]:
                raise
            self.giver.saved(mine, points[0])
        receiver.saved(other, points[1])

    # The end --------------------------------------------------------------------------------------------------

    async def _undo(self, offer: Offer, error: BaseException) -> None:
        """Have the giver be as it was. If that cannot be saved either, it is found at the next start."""
        try:
            await self._close("undone", offer, f"{type(error).__name__}: {error}"[:_LONGEST])
        except HoldfastError as another:
            error.add_note(f"That the transfer is undone could not be saved: {another}")

    async def _close(self, phase: Literal["refused", "undone"], offer: Offer, error: str) -> None:
        """End it, also where another has saved the giver meanwhile, and did not know what to make of it. If it was done
        after all, there is nothing to end."""
        for _ in range(2):  # it may be done while this is tried
            await self.giver.phases.settle()
            if not self._under_way(self.giver):
                return None
            with suppress(Conflict):
                return await self._end(phase, offer, error)
        for _ in range(_ATTEMPTS):
            other = await inert(self.giver.line)
            if not self._under_way(other):
                return None
            with suppress(Conflict):
                return await _Handing(other, self.id, self.more, self.reason, accept=True)._end(phase, offer, error)
        return None

    def _under_way(self, giver: Keeper) -> bool:
        return giver.data.pending is not None and giver.data.pending.correlation == self.id

    async def _end(self, phase: Literal["refused", "undone"], offer: Offer, error: str) -> None:
        giver = self.giver
        events = [self.event(giver, offer, phase, error), *self._recovered("back")]
        await giver.commit(f"transfer.{phase}", events, standing=giver.data.standing._replace(pending=None))

    def _recovered(self, how: Literal["back", "forward"]) -> list[Event]:
        """The row that tells that it was found half-done, and what became of it."""
        live = not isinstance(self.giver.agent, StandIn)
        ran = live and how == "forward"
        return [] if self.found is None else [_recovered(self.giver, self.found, how, ran=ran)]

    def event(self, keeper: Keeper, offer: Offer, phase: Phase, error: str = "") -> Event:
        """The row that tells of it."""
        return _event(keeper, offer, phase, error, clocks.perf_counter_ns() - self.started)


async def _attempt(keeper: Keeper, kind: str, events: Sequence[Event]) -> Attempt:
    """A step of an agent as it is now."""
    return keeper.attempt(kind, keeper.take(), events, await keeper.line.allow("write"))


@asynccontextmanager
async def _committing(*keepers: Keeper) -> AsyncIterator[None]:
    """Whoever changes one of these agents in this thread does not wait for a save of it, which waits for this block."""
    for keeper in keepers:
        keeper.committer = get_ident()
    try:
        yield
    finally:
        for keeper in keepers:
            keeper.committer = 0


class _Refused(Exception):
    """Whoever was asked said no."""


class _Changed:
    """What of an agent a transfer changes, to be put back if it comes to nothing."""

    def __init__(self, keeper: Keeper) -> None:
        self._keeper = keeper
        data = keeper.data
        self._before = (data.context, data.metadata)
        self._pending = data.pending
        self._after: tuple[dict[str, Any], ...] = ()
        self._undone: tuple[dict[str, Any], ...] = ()
        self._made: Pending | None = None
        self._handed: Handed | None = None

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


async def acknowledge(receiver: Keeper, offer: Offer, also: Sequence[Event] = ()) -> Transfer:
    """The receiver has what was handed over: let it know, and have it say so. It may be told again, if it was
    interrupted."""
    error: Exception | None = None
    hook = receiver.method("on_receive")
    if hook is not None:
        try:
            await called(hook, offer)
        except Exception as raised:  # noqa: BLE001 - it is raised below; the messages are there all the same
            error = raised
    said = "" if error is None else f"{type(error).__name__}: {error}"[:_LONGEST]
    events = [_event(receiver, offer, "acknowledged", said), *also]
    await receiver.commit("transfer.acknowledged", events, standing=receiver.data.standing._replace(pending=None))
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


def _event(keeper: Keeper, offer: Offer, phase: Phase, error: str = "", duration: int = 0) -> Event:
    detail: dict[str, Any] = {"from": offer.source, "to": offer.target, "reason": offer.reason}
    detail |= {"messages": offer.messages, "tokens": offer.tokens}
    detail |= {"error": error} if error else {}
    return Event(
        TRANSFER,
        keeper.line.handle.guard.actor,
        phase,
        f"{offer.source} → {offer.target}",
        "ok" if not error else "denied" if phase == "refused" else "error",
        duration,
        keeper.line.handle.codec.pack(detail),
        trace=tracing.traced()._replace(correlation=offer.id),
    )


def receiver_of(to: Any) -> Keeper | str:
    """Whom a caller names: an agent by its id, or one that is alive."""
    if isinstance(to, str | Keeper):
        return to
    keeper = getattr(to, "keeper", None)
    if not isinstance(keeper, Keeper):
        raise Invalid(
            f"a transfer goes to an agent, or to an id, not to {type(to).__name__}",
            hint="Give the agent, or what attach returned for it",
        )
    return keeper


# What was interrupted -----------------------------------------------------------------------------------------


async def recover_transfer(keeper: Keeper, how: Literal["back", "forward"]) -> tuple[Literal["back", "forward"], bool]:
    """Resolve a transfer that was found half-done; returns how that was done, and whether the receiver was asked or
    told of it.

    What was received already is acknowledged, however it is to be resolved: the receiver holds the conversation, and
    may have gone on with it.
    """
    pending = keeper.data.pending
    if pending is None or pending.kind != TRANSFER:
        raise Invalid("no transfer is under way", where=_where(keeper))
    live = not isinstance(keeper.agent, StandIn)
    data: Mapping[str, Any] = pending.data if isinstance(pending.data, Mapping) else {}
    reason = str(data.get("reason", ""))
    if pending.phase == "received":
        recent = tuple(await keeper.data.conversation.slice(-_RECENT, None))
        offer = Offer(
            pending.correlation,
            pending.source,
            pending.target,
            "",
            int(data.get("messages", 0)),
            int(data.get("tokens", 0)),
            dict(keeper.data.context),
            reason,
            recent,
        )
        await acknowledge(keeper, offer, [_recovered(keeper, pending, "forward", ran=live)])
        return "forward", live
    handing = _Handing(keeper, pending.correlation, dict(data.get("context", {})), reason, accept=not live)
    handing.found = pending
    offer = await handing.offer(pending.target)
    if how == "back":
        await handing._end("undone", offer, "")
        return "back", False
    try:
        await handing.rest(offer, pending.target)
    except (Denied, NotFound):
        if keeper.data.pending is not None:
            raise
        return "back", live  # it was refused, or there is nobody to hand it to: it stays where it was
    return "forward", live


def _recovered(keeper: Keeper, pending: Pending, how: str, *, ran: bool) -> Event:
    detail = {
        "since": pending.time,
        "version": keeper.version,
        "ran": ran,
        "from": pending.source,
        "to": pending.target,
    }
    return keeper.event("recovery", TRANSFER, {**detail, "correlation": pending.correlation})._replace(outcome=how)


def _where(keeper: Keeper) -> str:
    return f"agent {keeper.line.id!r}"
