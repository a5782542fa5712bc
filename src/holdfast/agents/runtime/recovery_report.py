"""Reports of what was found half-done of an agent, and of how that was resolved."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, TypeAlias

from holdfast.agents.storage.agent_line import AgentLine
from holdfast.agents.storage.record import PendingChange
from holdfast.engine.events import Event

Kind: TypeAlias = Literal["crashed", "transition", "lifecycle", "transfer", "fell-back"]


@dataclass(frozen=True, slots=True)
class Recovery:
    """Something that was found half-done, and how it was resolved."""

    agent: str
    """The id of the agent."""
    kind: Kind
    """`crashed`: the record says that the agent is running, and no process runs it. `transition`, `lifecycle` and
    `transfer`: such a change was under way. `fell-back`: the newest state could not be read."""
    resolved: Literal["back", "forward", "none"]
    """Whether the change was undone (`back`) or finished (`forward`); `none` where there was nothing to resolve."""
    time: datetime
    """When it was resolved."""
    since: datetime
    """When the change had begun; or when the agent was last saved."""
    version: int
    """The version of the agent that was found."""
    pending: PendingChange | None = None
    """The change that was under way."""
    ran: bool = False
    """Whether the action was run, or is known to have ended. If this is false for a finished change, the change was
    finished without its action."""
    lost: tuple[str, ...] = ()
    """The ids of steps that could not be read, the newest first."""

    def __str__(self) -> str:
        if self.pending is None:
            return f"agent {self.agent!r}: {self.kind}, since {self.since.isoformat(timespec='seconds')}"
        pending = self.pending
        how = {"back": "undone", "forward": "finished", "none": "left"}[self.resolved]
        how += ", without its action" if self.resolved == "forward" and not self.ran else ""
        return f"agent {self.agent!r}: {pending.kind} {pending.trigger!r} {pending.source} → {pending.target}: {how}"


def recovery_event(line: AgentLine, recovery: Recovery) -> Event:
    """Build the event that records a recovery."""
    pending = recovery.pending
    detail: dict[str, Any] = {"since": recovery.since, "version": recovery.version, "ran": recovery.ran}
    if pending is not None:
        detail |= {"trigger": pending.trigger, "from": pending.source, "to": pending.target, "data": pending.data}
        detail |= {"correlation": pending.correlation}
    if recovery.lost:
        detail["lost"] = list(recovery.lost)
    guard, pack = line.handle.guard, line.handle.codec.pack
    return Event("recovery", guard.actor, recovery.kind, line.id, recovery.resolved, detail=pack(detail))


def recovery_kind(pending: PendingChange) -> Kind:
    """Return the kind of recovery that a pending change takes."""
    return {"transition": "transition", "transfer": "transfer"}.get(pending.kind, "lifecycle")  # type: ignore[return-value]
