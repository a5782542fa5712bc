"""The data of a live agent, its state as it is captured, and the step that saves it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

from holdfast.agents.runtime.field_operators import CapturedRuns, FieldOperators
from holdfast.agents.runtime.message_buffer import MessageBuffer, UnsavedMessages
from holdfast.agents.storage.agent_line import Delta
from holdfast.agents.storage.record import AgentPosition, PendingChange, Status
from holdfast.engine import validation
from holdfast.engine.append import AppendRequest
from holdfast.engine.events import Event
from holdfast.engine.model.packed_state import Packed
from holdfast.engine.row_format import StepRef


@dataclass(slots=True)
class AgentData:
    """The data of an agent besides its own fields."""

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
    undeclared_fields: dict[str, Any] = field(default_factory=dict)
    """Saved fields that the class no longer declares. They stay with the agent."""
    operators: FieldOperators = field(default_factory=FieldOperators)

    @property
    def position(self) -> AgentPosition:
        """The position of the agent in its lifecycle and its machine."""
        return AgentPosition(self.status, self.state, self.pending)

    @position.setter
    def position(self, position: AgentPosition) -> None:
        self.status, self.state, self.pending = position


class CapturedState(NamedTuple):
    """An agent's state at one moment, and how it differs from what was saved."""

    delta: Delta
    packed: dict[bytes, Packed]
    messages: UnsavedMessages
    position: AgentPosition
    operators: CapturedRuns
    mark: int = 0
    """How many changes were counted at the capture."""


class SavedState(NamedTuple):
    """The last saved state of an agent, to return to."""

    point: StepRef | None
    channels: dict[bytes, Packed]
    messages: int
    tokens: int
    operators: FieldOperators


class Attempt(NamedTuple):
    """A step that is about to be saved, or of which it is uncertain whether it was."""

    request: AppendRequest
    captured: CapturedState
    events: Sequence[Event] = ()
    redo: Callable[[], bool] | None = None
    """Set for one of several steps that are saved together and were undone in memory, since it is uncertain whether
    they were saved: changes the agent as the step did. Returns False if that is impossible."""
    earlier: Attempt | None = None
    """Such a step that was still uncertain at this attempt: if it was saved after all, it is what this one conflicted
    with."""


def apply_changes(value: dict[str, Any], before: Mapping[str, Any], after: Any) -> bool:
    """Change entries of a dict as those of another were changed. Returns whether any was."""
    after = validation.require_mapping(after, "part of the state of the agent, as a hook left it")
    removed = [name for name in before if name not in after]
    new = {name: each for name, each in after.items() if name not in before or each != before[name]}
    for name in removed:
        value.pop(name, None)
    value.update(new)
    return bool(removed or new)
