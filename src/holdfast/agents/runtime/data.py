"""What a keeper works on: what an agent carries, what was taken of it, and the step that is to be made of that."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

from holdfast.agents.runtime.message_buffer import MessageBuffer, UnsavedMessages
from holdfast.agents.storage.agent_line import Delta
from holdfast.agents.storage.record import AgentPosition, PendingChange, Status
from holdfast.engine.append import AppendRequest
from holdfast.engine.events import Event
from holdfast.engine.model.packed_state import Packed


@dataclass(slots=True)
class AgentData:
    """What an agent carries besides its own fields."""

    configuration: dict[str, Any] = field(default_factory=dict)
    context: dict[str, Any] = field(default_factory=dict)
    tools: dict[str, Any] = field(default_factory=dict)
    workflow: dict[str, Any] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)
    conversation: MessageBuffer = field(default_factory=MessageBuffer)
    status: Status = "created"
    state: str = ""
    created: datetime | None = None
    pending: PendingChange | None = None
    carried: dict[str, Any] = field(default_factory=dict)
    """Fields that were saved, and that the class does not declare any more. They stay with it."""

    @property
    def standing(self) -> AgentPosition:
        """Where the agent is."""
        return AgentPosition(self.status, self.state, self.pending)

    @standing.setter
    def standing(self, standing: AgentPosition) -> None:
        self.status, self.state, self.pending = standing


class CapturedState(NamedTuple):
    """An agent's state at one moment: what is to be saved of it, and what that makes of what was saved."""

    delta: Delta
    packed: dict[bytes, Packed]
    said: UnsavedMessages
    standing: AgentPosition
    mark: int = 0
    """How many changes were counted when it was taken."""


class Attempt(NamedTuple):
    """A step that is about to be made, or of which it is not known whether it was."""

    saving: AppendRequest
    taken: CapturedState
    events: Sequence[Event] = ()
    redo: Callable[[], bool] | None = None
    """Where it is one of several that are made together, and was taken back in memory because it was not known whether
    they were: has the agent be what the step made of it. False if that cannot be."""
    earlier: Attempt | None = None
    """Such a one that was still open when this was tried: if it came after all, it is what this one was refused for."""
