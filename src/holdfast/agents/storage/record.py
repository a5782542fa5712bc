"""The channels that are stored of an agent, and the record that callers get of them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias, get_args

import msgspec

from holdfast._fields import Internal, Label
from holdfast.errors import CorruptError

Status: TypeAlias = Literal[
    "created", "starting", "running", "pausing", "paused", "resuming", "stopping", "stopped", "failed"
]
"""The status of an agent in its lifecycle."""

STATUSES: tuple[Status, ...] = get_args(Status)

CONVERSATION = "conversation"
"""The channel of the messages: a list, of which a step stores only the added ones."""

PENDING = "pending"
"""The channel of a change that is under way in two phases; absent otherwise."""

DICTS = ("configuration", "fields", "context", "tools", "workflow", "metadata")
"""The channels that programs and hooks change: dicts that can be merged."""

_TYPES: Mapping[str, type] = {
    **dict.fromkeys(("class", "schema", "status", "state"), str),
    "created": datetime,
    **dict.fromkeys((*DICTS, "counts"), dict),
}
"""The channels that every agent has, and their types."""


class PendingChange(msgspec.Struct, frozen=True):
    """A change in two phases, of which the first was saved and the second is still to come.

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
        """Return the stored form."""
        return {name: getattr(self, name) for name in self.__struct_fields__}

    @classmethod
    def of(cls, value: Any, where: str) -> PendingChange:
        """Read the stored form. Raises `CorruptError`."""
        try:
            pending = cls(**value)
        except TypeError as error:
            raise CorruptError(f"the pending change cannot be read: {error}", where=where) from None
        if not all(isinstance(getattr(pending, name), kind) for name, kind in _PENDING_TYPES.items()):
            raise CorruptError("the pending change cannot be read: it has fields of a wrong type", where=where)
        return pending


_PENDING_TYPES: Mapping[str, type] = {
    **dict.fromkeys(("kind", "trigger", "source", "target", "correlation", "phase"), str),
    "time": datetime,
}
"""The types of the fields of a pending change, except its data."""


def error_text(error: BaseException, limit: int | None = None) -> str:
    """Return the stored form of an error: its class and its message, up to a number of characters."""
    return f"{type(error).__name__}: {error}"[:limit]


class AgentPosition(NamedTuple):
    """The position of an agent in its lifecycle and its machine, and the change that is under way."""

    status: Status
    state: str
    pending: PendingChange | None = None


class AgentRecord(msgspec.Struct, frozen=True):
    """An agent as it was saved. Its messages are read separately: `store.agents.messages(id)`."""

    id: Annotated[str, Label("agent")]
    kind: Annotated[str, Label("class")]
    """The name under which its class is registered."""
    status: Status
    state: str
    """The name of its machine's state; empty if it has no machine."""
    version: int
    """The number of steps of its line. Each save adds one."""
    created: datetime
    updated: Annotated[datetime, Label("saved")]
    schema: str
    """The version of the schema of its fields."""
    configuration: Mapping[str, Any]
    fields: Mapping[str, Any]
    context: Mapping[str, Any]
    tools: Mapping[str, Any]
    workflow: Mapping[str, Any]
    metadata: Mapping[str, Any]
    messages: int = 0
    """The number of messages of its conversation."""
    tokens: int = 0
    pending: PendingChange | None = None
    checkpoint: str = ""
    """The id of the step."""
    notes: Internal[Mapping[str, Any]] = {}
    """The metadata of the step."""


def build_record(
    id: str, state: Mapping[str, Any], version: int, updated: datetime, checkpoint: str, notes: Mapping[str, Any]
) -> AgentRecord:
    """Build the record of an agent from its channels, except the conversation. Raises `CorruptError` if they are not
    those of an agent."""
    where = f"agent {id!r}"
    for name, kind in _TYPES.items():
        if name not in state:
            raise CorruptError(
                f"the agent has no {name}", where=where, hint="Restore the last readable state, or repair the store"
            )
        if not isinstance(state[name], kind):
            actual = type(state[name]).__name__
            raise CorruptError(f"the {name} of the agent is {actual}, not {kind.__name__}", where=where)

    if state["status"] not in STATUSES:
        raise CorruptError(f"there is no status {state['status']!r}", where=where)
    pending = state.get(PENDING)
    messages, tokens = (state["counts"].get(name, 0) for name in ("messages", "tokens"))
    if not all(type(each) is int and each >= 0 for each in (messages, tokens)):
        raise CorruptError("the agent's counts of messages and tokens are not numbers", where=where)
    return AgentRecord(
        id=id,
        kind=state["class"],
        version=version,
        updated=updated,
        messages=messages,
        tokens=tokens,
        pending=None if pending is None else PendingChange.of(pending, where),
        checkpoint=checkpoint,
        notes=notes,
        **{name: state[name] for name in ("status", "state", "created", "schema", *DICTS)},
    )
