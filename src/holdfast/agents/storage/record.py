"""What is kept of an agent: a dict of channels, and the record that callers are given of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

from holdfast.errors import CorruptError

Status: TypeAlias = Literal[
    "created", "starting", "running", "pausing", "paused", "resuming", "stopping", "stopped", "failed"
]
"""Where an agent is in its life."""

STATUSES: tuple[Status, ...] = get_args(Status)

CONVERSATION = "conversation"
"""The channel of the messages: a list, of which a step holds only what it adds."""

PENDING = "pending"
"""The channel of what is under way in two phases; it is there only meanwhile."""

_TYPES: Mapping[str, type] = {
    "class": str,
    "schema": str,
    "created": datetime,
    "status": str,
    "state": str,
    "configuration": dict,
    "fields": dict,
    "context": dict,
    "tools": dict,
    "workflow": dict,
    "metadata": dict,
    "counts": dict,
}
"""The channels that are always there, and what they hold."""

CHANNELS = tuple(_TYPES)


@dataclass(frozen=True, slots=True)
class PendingChange:
    """Something that takes two phases, of which the first was made and the second is still to come.

    `kind` is `transition`, `lifecycle` or `transfer`. `source` and `target` are names of states, of statuses, or ids of
    agents.
    """

    kind: str
    trigger: str
    source: str
    target: str
    time: datetime
    correlation: str = ""
    phase: str = "begun"
    data: Any = None

    def to_dict(self) -> dict[str, Any]:
        """As it is stored."""
        return {name: getattr(self, name) for name in self.__slots__}

    @classmethod
    def of(cls, value: Any, where: str) -> PendingChange:
        """From what is stored."""
        try:
            found = cls(**value)
        except TypeError as error:
            raise CorruptError(f"what is under way cannot be read: {error}", where=where) from None
        if not all(isinstance(getattr(found, name), kind) for name, kind in _PENDING.items()):
            raise CorruptError("what is under way cannot be read: it is not what an agent saves", where=where)
        return found


_PENDING: Mapping[str, type] = {
    **dict.fromkeys(("kind", "trigger", "source", "target", "correlation", "phase"), str),
    "time": datetime,
}
"""What is known of all that is under way."""


class AgentPosition(NamedTuple):
    """Where an agent is: in its life, in its machine, and in the middle of what."""

    status: Status
    state: str
    pending: PendingChange | None = None


@dataclass(frozen=True, slots=True)
class AgentRecord:
    """An agent as it was saved. Its messages are read by themselves: `store.agents.messages(id)`."""

    id: str
    kind: str
    """The name under which its class is registered."""
    status: Status
    state: str
    """The name of its machine's state; empty if it has no machine."""
    version: int
    """How many steps its line had. The next save makes it one more."""
    created: datetime
    updated: datetime
    schema: str
    """The version of the form of its fields."""
    configuration: Mapping[str, Any]
    fields: Mapping[str, Any]
    context: Mapping[str, Any]
    tools: Mapping[str, Any]
    workflow: Mapping[str, Any]
    metadata: Mapping[str, Any]
    messages: int = 0
    """How many messages its conversation has."""
    tokens: int = 0
    pending: PendingChange | None = None
    checkpoint: str = ""
    """The id of the step."""
    notes: Mapping[str, Any] = field(default_factory=dict)
    """What the step says of itself."""


def record_of(
    id: str, state: Mapping[str, Any], version: int, updated: datetime, checkpoint: str, notes: Mapping[str, Any]
) -> AgentRecord:
    """The record of an agent, of its channels but for the conversation. `CorruptError` if they are not those of an
    agent."""
    where = f"agent {id!r}"
    for name, kind in _TYPES.items():
        if name not in state:
            raise CorruptError(
                f"the agent has no {name}", where=where, hint="Fall back to the last good state, or repair"
            )
        if not isinstance(state[name], kind):
            found = type(state[name]).__name__
            raise CorruptError(f"the {name} of the agent is {found}, and not {kind.__name__}", where=where)
    if state["status"] not in STATUSES:
        raise CorruptError(f"there is no status {state['status']!r}", where=where)
    pending = state.get(PENDING)
    messages, tokens = (state["counts"].get(name, 0) for name in ("messages", "tokens"))
    if not all(type(each) is int and each >= 0 for each in (messages, tokens)):
        raise CorruptError("the counts of the agent are not numbers of messages and tokens", where=where)
    return AgentRecord(
        id,
        state["class"],
        state["status"],
        state["state"],
        version,
        state["created"],
        updated,
        state["schema"],
        state["configuration"],
        state["fields"],
        state["context"],
        state["tools"],
        state["workflow"],
        state["metadata"],
        messages,
        tokens,
        None if pending is None else PendingChange.of(pending, where),
        checkpoint,
        notes,
    )
