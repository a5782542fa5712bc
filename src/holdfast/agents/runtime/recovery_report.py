"""What was found half-done of an agent, and what became of it, as it is told."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from holdfast.agents.definition.callbacks import called
from holdfast.agents.runtime.two_phase import Lifecycle
from holdfast.agents.storage.record import PendingChange
from holdfast.engine.events import Event

if TYPE_CHECKING:
    from holdfast.agents.storage.agent_line import AgentLine


Kind: TypeAlias = Literal["crashed", "transition", "lifecycle", "transfer", "fell-back"]


@dataclass(frozen=True, slots=True)
class Recovery:
    """Something that was found half-done, and what became of it."""

    agent: str
    """The id of the agent."""
    kind: Kind
    """`crashed`: the record says that it runs, and nobody runs it. `transition`, `lifecycle` and `transfer`: such a
    change was under way. `fell-back`: its newest state could not be read."""
    resolved: Literal["back", "forward", "none"]
    """Whether it was taken back or finished; `none` where there was nothing to resolve."""
    time: datetime
    """When that was."""
    since: datetime
    """When what was under way had begun; or when the agent was last saved."""
    version: int
    """The version that was found."""
    pending: PendingChange | None = None
    """What was under way."""
    ran: bool = False
    """Whether the action was run, or its end was known. If it was finished and this is false, it was finished without
    the action."""
    lost: tuple[str, ...] = ()
    """The ids of steps that could not be read, the newest first."""

    def __str__(self) -> str:
        if self.pending is None:
            return f"agent {self.agent!r}: {self.kind}, since {self.since.isoformat(timespec='seconds')}"
        pending = self.pending
        how = {"back": "taken back", "forward": "finished", "none": "left"}[self.resolved]
        how += ", without its action" if self.resolved == "forward" and not self.ran else ""
        return f"agent {self.agent!r}: {pending.kind} {pending.trigger!r} {pending.source} → {pending.target}: {how}"


def told(line: AgentLine, recovery: Recovery) -> Event:
    """The row that tells of a recovery."""
    pending = recovery.pending
    detail: dict[str, Any] = {"since": recovery.since, "version": recovery.version, "ran": recovery.ran}
    if pending is not None:
        detail |= {"trigger": pending.trigger, "from": pending.source, "to": pending.target, "data": pending.data}
        detail |= {"correlation": pending.correlation}
    if recovery.lost:
        detail["lost"] = list(recovery.lost)
    guard, pack = line.handle.guard, line.handle.codec.pack
    return Event("recovery", guard.actor, recovery.kind, line.id, recovery.resolved, detail=pack(detail))


def kind_of(pending: PendingChange) -> Kind:
    """The kind of recovery that it takes."""
    return {"transition": "transition", "transfer": "transfer"}.get(pending.kind, "lifecycle")  # type: ignore[return-value]


async def tell(phases: Lifecycle, recovery: Recovery) -> None:
    """Have the agent know of a recovery."""
    phases.recoveries.append(recovery)
    handler = phases.keeper.method("handle_recovery")
    if handler is not None:
        await called(handler, recovery)
