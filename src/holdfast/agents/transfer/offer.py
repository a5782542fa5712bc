"""Offers of one agent to another, and the records of their transfers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any, Literal, TypeAlias, get_args

import msgspec

from holdfast._fields import Hidden, Label
from holdfast.agents.runtime.persister import AgentPersister
from holdfast.agents.storage.agent_line import AgentLine
from holdfast.agents.storage.record import PendingChange
from holdfast.agents.storage.transition_log import EventPages, event_key, parse_cursor, read_detail
from holdfast.backends.interface import Row
from holdfast.engine import trace_context
from holdfast.engine.events import Event
from holdfast.engine.types import to_datetime

Phase: TypeAlias = Literal["begun", "refused", "undone", "given", "received", "acknowledged"]

TRANSFER = "transfer"

_PHASES: Mapping[str, Phase] = {phase: phase for phase in get_args(Phase)}


class Offer(msgspec.Struct, frozen=True):
    """An offer of one agent to transfer its conversation to another. Both get it, and may refuse it."""

    id: str
    """The id of the transfer."""
    source: str
    target: str
    kind: str
    """The class of the giver."""
    messages: int
    """The number of messages, and of their tokens."""
    tokens: int
    context: Mapping[str, Any]
    """The entries that the context of the receiver gets."""
    reason: str = ""
    recent: Sequence[Any] = ()
    """The last messages, up to twenty."""


class Transfer(msgspec.Struct, frozen=True):
    """A transfer, as far as it got."""

    id: Hidden[str]
    source: Annotated[str, Label("from")]
    target: Annotated[str, Label("to")]
    phase: Phase
    """`begun`, `refused`, `undone` and `given` are recorded in the giver's line; `received` and `acknowledged` in the
    receiver's."""
    time: datetime
    messages: int = 0
    tokens: Hidden[int] = 0
    reason: str = ""
    error: Hidden[str] = ""
    actor: str = ""


def transfer_event(persister: AgentPersister, offer: Offer, phase: Phase, error: str = "", duration: int = 0) -> Event:
    """Build the event that records a phase of a transfer."""
    detail: dict[str, Any] = {"from": offer.source, "to": offer.target, "reason": offer.reason}
    detail |= {"messages": offer.messages, "tokens": offer.tokens}
    detail |= {"error": error} if error else {}
    return Event(
        TRANSFER,
        persister.line.handle.guard.actor,
        phase,
        f"{offer.source} → {offer.target}",
        "ok" if not error else "denied" if phase == "refused" else "error",
        duration,
        persister.line.handle.codec.pack(detail),
        trace=trace_context.current_or_new()._replace(correlation=offer.id),
    )


def transfer_recovery_event(persister: AgentPersister, pending: PendingChange, how: str, *, ran: bool) -> Event:
    """Build the event that records how a half-done transfer was resolved."""
    detail = {
        "since": pending.time,
        "version": persister.version,
        "ran": ran,
        "from": pending.source,
        "to": pending.target,
        "correlation": pending.correlation,
    }
    return persister.build_event("recovery", TRANSFER, detail)._replace(outcome=how)


async def read_transfers(line: AgentLine, limit: int, cursor: str | None = None) -> tuple[list[Transfer], str | None]:
    """Return a page of the transfers from and to an agent, the latest first, each in the phase that its line records,
    and the cursor of the next page."""
    start = None if cursor is None else parse_cursor(cursor)
    ids: set[str] = set()
    transfers: list[tuple[str, Transfer]] = []
    pages = EventPages(line)
    while len(transfers) <= limit and (rows := await pages.next()):
        for row in rows:
            transfer_id, key = str(row.columns[6]), event_key(row)
            # The latest event of a transfer has its phase. Those newer than the cursor were listed.
            if row.columns[1] == TRANSFER and str(row.columns[3]) in _PHASES and transfer_id not in ids:
                ids.add(transfer_id)
                if start is None or key < start:
                    transfers.append((f"{key[0]} {key[1]}", _read_row(line, row)))
    following = transfers[limit - 1][0] if 0 < limit < len(transfers) else None
    return [transfer for _, transfer in transfers[:limit]], following


def _read_row(line: AgentLine, row: Row) -> Transfer:
    time, _, actor, action, _, _, correlation, _, _ = row.columns
    detail = read_detail(line, row)
    return Transfer(
        str(correlation),
        str(detail["from"]),
        str(detail["to"]),
        _PHASES[str(action)],
        to_datetime(int(time)),
        int(detail["messages"]),
        int(detail["tokens"]),
        str(detail["reason"]),
        str(detail.get("error", "")),
        str(actor),
    )
