"""What is offered when one agent hands over to another, and how a transfer is told of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, TypeAlias

from holdfast.agents.runtime.persister import AgentPersister
from holdfast.agents.storage.record import PendingChange
from holdfast.engine import trace_context
from holdfast.engine.events import Event

Phase: TypeAlias = Literal["begun", "refused", "undone", "given", "received", "acknowledged"]


TRANSFER = "transfer"


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


def told(keeper: AgentPersister, offer: Offer, phase: Phase, error: str = "", duration: int = 0) -> Event:
    """The row that tells how far a transfer got."""
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
        trace=trace_context.traced()._replace(correlation=offer.id),
    )


def recovered(keeper: AgentPersister, pending: PendingChange, how: str, *, ran: bool) -> Event:
    """The row that tells that a transfer was found half-done, and what became of it."""
    detail = {
        "since": pending.time,
        "version": keeper.version,
        "ran": ran,
        "from": pending.source,
        "to": pending.target,
    }
    return keeper.event("recovery", TRANSFER, {**detail, "correlation": pending.correlation})._replace(outcome=how)
