"""The messages of topics, as they are stored and read."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, TypeAlias

from holdfast.engine import trace_context
from holdfast.engine.model.operations import Set
from holdfast.engine.model.packed_state import pack_name, unpack
from holdfast.engine.row_format import ERASE, StepRef, open_step
from holdfast.engine.types import to_datetime
from holdfast.errors import CorruptError
from holdfast.state.sharing.resource import SharedResource
from holdfast.state.sharing.segmented_log import LogPage, SegmentedLog

MESSAGE = "message"
"""The key of a step that holds its message; and the key of the topic's scope that rights are needed for."""

PUBLISH = "publish"
"""The kind of the steps that have a message."""


_PACKED = pack_name(MESSAGE)

Start: TypeAlias = Literal["now", "start"]


@dataclass(frozen=True, slots=True)
class TopicMessage:
    """A message. `correlation` is that of the publisher, `cause` what caused it."""

    number: int
    value: Any
    time: datetime
    actor: str
    correlation: str
    cause: str
    id: str

    def causing(self) -> AbstractContextManager[str]:
        """Give all changes in this block this message as their cause, and its correlation id."""
        return trace_context.correlation(self.correlation or None, cause=self.id)


def reader_log(place: SharedResource, name: str) -> SegmentedLog:
    """Return the log that holds the cursor of a subscriber."""
    guard = place.handle.guard
    checked, actor = guard.key(str(place.scope), name, "name of the subscriber"), guard.actor
    own = place.below(("reader", checked), *([("by", actor)] if actor else []))
    return SegmentedLog(place.handle, own)


async def read_messages(place: SharedResource, page: LogPage) -> list[TopicMessage]:
    """Return the messages of some steps. Those that were erased are left out."""
    handle, found = place.handle, []
    for number, row in enumerate(page.rows, page.first + 1):
        point = StepRef.of(row)
        if point.pruned:
            continue  # it was erased
        step = open_step(page.line, row, handle.engine.context.max_bytes)
        packed = dict(step.edit.put).get(_PACKED)
        if packed is None and step.header.kind == ERASE:
            continue
        if type(packed) is not Set:
            raise CorruptError("a step of a topic has no message", where=f"message {number} of {place.name}")
        resolved = await handle.engine.states.resolve_pointers(page.line, {_PACKED: packed.value})
        about = handle.codec.unpack(step.header.metadata)
        found.append(
            TopicMessage(
                number,
                unpack(handle.codec, resolved[_PACKED]),
                to_datetime(point.time),
                str(about.get("actor", "")),
                str(about.get("correlation", "")),
                str(about.get("cause", "")),
                point.id,
            )
        )
    return found
