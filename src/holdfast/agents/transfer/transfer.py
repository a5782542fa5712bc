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
from typing import Any, Literal

from holdfast.agents.definition.callbacks import called
from holdfast.agents.runtime.persister import AgentPersister
from holdfast.agents.runtime.placeholder import Placeholder, Revive, inert
from holdfast.agents.runtime.two_phase import incomplete
from holdfast.agents.storage.agent_line import AgentLine
from holdfast.agents.storage.record import PendingChange
from holdfast.agents.transfer.commit import hand_over, under_way
from holdfast.agents.transfer.offer import TRANSFER, Offer, Phase, Transfer, recovered, told
from holdfast.engine import validation
from holdfast.engine.events import Event
from holdfast.engine.rng import chance
from holdfast.errors import (
    ConflictError,
    DeniedError,
    HoldfastError,
    InvalidError,
    OutcomeUnknownError,
    TransientError,
    UnavailableError,
)

RECENT = 20
"""So many of the last messages are shown with an offer."""


_ATTEMPTS = 5
"""So often the receiver is loaded and asked again that was saved by another meanwhile."""


_LONGEST = 500


async def transfer(
    giver: AgentPersister,
    to: AgentPersister | str,
    revive: Revive,
    *,
    context: Mapping[str, Any] | None = None,
    reason: str = "",
    accept: bool = False,
) -> Transfer:
    """Hand over what an agent has: to another that is alive here, or to the one that has an id.

    `context` is told besides what the giver knows. Whoever is named by its id is brought back to life to be asked; with
    `accept`, nobody is asked.
    """
    more = dict(validation.mapping(context or {}, "context"))
    if any(type(key) is not str for key in more):
        raise InvalidError("the keys of a context are strings", where=repr(list(more))[:80])
    giver.line.handle.codec.pack(more)  # says what cannot be kept of it, and where
    target = to.line.id if isinstance(to, AgentPersister) else AgentLine(giver.line.handle, to).id
    if target == giver.line.id:
        raise InvalidError("an agent hands nothing to itself", where=f"agent {target!r}")
    mine = giver.line.handle
    if isinstance(to, AgentPersister) and (
        to.line.handle.engine is not mine.engine or to.line.handle.tenant != mine.tenant
    ):
        raise InvalidError("both agents must be kept in one store", where=f"agent {target!r}")
    live = [giver, to] if isinstance(to, AgentPersister) else [giver]
    async with _alone(live):
        handing = TransferRun(giver, f"{chance.getrandbits(64):016x}", more, str(reason), revive, accept=accept)
        return await handing.all(to if isinstance(to, AgentPersister) else target)


@asynccontextmanager
async def _alone(keepers: Sequence[AgentPersister]) -> AsyncIterator[None]:
    """No other change of these agents begins during this block. All take them in one order, so that nobody waits for
    one who waits."""
    async with AsyncExitStack() as stack:
        for keeper in sorted(keepers, key=lambda each: each.line.id):
            await stack.enter_async_context(keeper.phases.exclusive("a transfer"))
        yield


class TransferRun:
    """One transfer, from the side of the giver."""

    def __init__(
        self, giver: AgentPersister, id: str, more: Mapping[str, Any], reason: str, revive: Revive, *, accept: bool
    ) -> None:
        self.giver = giver
        self.revive = revive
        self.id = id
        self.more = more
        self.reason = reason
        self.accept = accept
        self.started = clocks.perf_counter_ns()
        self.found: PendingChange | None = None
        """What was found half-done, if it is that which is resolved."""

    async def all(self, to: AgentPersister | str) -> Transfer:
        """From the beginning."""
        giver = self.giver
        if giver.data.pending is not None:
            raise incomplete(giver.data.pending, giver.where, "Have it resolved first")
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
        pending = PendingChange(TRANSFER, TRANSFER, giver.line.id, target, giver.now(), self.id, data=about)
        events = [self.event(giver, offer, "begun"), *before.events]
        await giver.commit("transfer.begin", events, standing=giver.data.standing._replace(pending=pending))
        done = await self.rest(offer, to, receiver)
        before.done(giver.version, "" if giver.point is None else giver.point.id)
        return done

    async def rest(self, offer: Offer, to: AgentPersister | str, receiver: AgentPersister | None = None) -> Transfer:
        """What follows once the giver has said that it is going to."""
        for attempt in range(_ATTEMPTS):
            try:
                receiver = receiver or await self._receiver(to)
                if not self.accept:
                    await self._asked(receiver, "accepts", offer)
                offer = await hand_over(self.giver, receiver, offer, self.more, self._rows)
            except _Refused as refused:
                await self._close("refused", offer, str(refused))
                raise self._denied(receiver or self.giver, "does not accept it", refused) from refused.__cause__
            except ConflictError as error:
                again = isinstance(to, str) and attempt + 1 < _ATTEMPTS and await self._still()
                if not again:
                    await self._undo(offer, error)
                    raise
                receiver = None
            except OutcomeUnknownError:
                raise  # it may have been done, and cannot be undone before that is known
            except (Exception, CancelledError) as error:
                # If what was cancelled is done all the same, there is nothing left to be undone.
                await self._undo(offer, error)
                raise
            else:
                return await acknowledge(receiver, offer)
        raise AssertionError  # pragma: no cover - the last attempt returns or raises

    async def _receiver(self, to: AgentPersister | str) -> AgentPersister:
        handle = self.giver.line.handle
        receiver = to if isinstance(to, AgentPersister) else await self.revive(handle, to, inert_too=self.accept)
        if receiver.data.pending is not None:
            raise incomplete(receiver.data.pending, receiver.where, "Have it resolved first")
        return receiver

    async def _still(self) -> bool:
        """Whether the giver is as it was, so that it was the receiver that another has saved."""
        newest = await self.giver.line.newest()
        return newest is not None and self.giver.point is not None and newest.id == self.giver.point.id

    async def offer(self, target: str) -> Offer:
        """What is to be handed over, as it is now."""
        giver, said = self.giver, self.giver.data.conversation
        context = {**giver.data.context, **self.more}
        recent = tuple(await said.slice(-RECENT, None))
        kind = giver.spec.name
        return Offer(self.id, giver.line.id, target, kind, len(said), said.tokens, context, self.reason, recent)

    async def _asked(self, keeper: AgentPersister, hook: str, offer: Offer) -> None:
        """Ask an agent, if its author has something to say."""
        asked = keeper.method(hook)
        if asked is None:
            return
        try:
            said = await called(asked, offer)
            if said is not None and not said:
                raise _Refused("it said no")
        except (TransientError, UnavailableError):
            raise  # this says nothing about the offer
        except HoldfastError as error:
            raise _Refused(error.what) from error
        except _Refused:
            raise
        except Exception as error:
            raise _Refused(f"{type(error).__name__}: {error}"[:_LONGEST]) from error

    def _denied(self, who: AgentPersister, what: str, refused: _Refused) -> DeniedError:
        return DeniedError(
            f"the transfer is refused: agent {who.line.id!r} {what}: {refused}",
            where=self.giver.where,
            hint="The conversation stays where it was",
            code="transfer-refused",
        )

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
            if not under_way(self.giver, self.id):
                return None
            with suppress(ConflictError):
                return await self.end(phase, offer, error)
        for _ in range(_ATTEMPTS):
            other = await inert(self.giver.line)
            if not under_way(other, self.id):
                return None
            with suppress(ConflictError):
                handing = TransferRun(other, self.id, self.more, self.reason, self.revive, accept=True)
                return await handing.end(phase, offer, error)
        return None

    async def end(self, phase: Literal["refused", "undone"], offer: Offer, error: str) -> None:
        """Have the giver be as it was."""
        giver = self.giver
        events = [self.event(giver, offer, phase, error), *self._recovered("back")]
        await giver.commit(f"transfer.{phase}", events, standing=giver.data.standing._replace(pending=None))

    def _rows(self, keeper: AgentPersister, offer: Offer) -> list[Event]:
        """Those that tell of the batch."""
        if keeper is self.giver:
            return [self.event(keeper, offer, "given"), *self._recovered("forward")]
        return [self.event(keeper, offer, "received")]

    def _recovered(self, how: Literal["back", "forward"]) -> list[Event]:
        """The row that tells that it was found half-done, and what became of it."""
        live = not isinstance(self.giver.agent, Placeholder)
        ran = live and how == "forward"
        return [] if self.found is None else [recovered(self.giver, self.found, how, ran=ran)]

    def event(self, keeper: AgentPersister, offer: Offer, phase: Phase, error: str = "") -> Event:
        """The row that tells of it."""
        return told(keeper, offer, phase, error, clocks.perf_counter_ns() - self.started)


class _Refused(Exception):
    """Whoever was asked said no."""


async def acknowledge(receiver: AgentPersister, offer: Offer, also: Sequence[Event] = ()) -> Transfer:
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
    events = [told(receiver, offer, "acknowledged", said), *also]
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


def receiver_of(to: Any) -> AgentPersister | str:
    """Whom a caller names: an agent by its id, or one that is alive."""
    if isinstance(to, str | AgentPersister):
        return to
    keeper = getattr(to, "keeper", None)
    if not isinstance(keeper, AgentPersister):
        raise InvalidError(
            f"a transfer goes to an agent, or to an id, not to {type(to).__name__}",
            hint="Give the agent, or what attach returned for it",
        )
    return keeper
