"""Steps that Holdfast itself saves in a thread of LangGraph: restore, switch, fork and merge.

LangGraph stores more than the visible state: the parent that the graph named, if the store has another, and delta
channels, whose values are histories of writes. Such a step drops the former and copies the latter in full.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, TypedDict

from holdfast.backends.interface import Change
from holdfast.engine.append import Edit
from holdfast.engine.delta_channels import FOLLOWS, KEPT, UnreadDeltas
from holdfast.engine.engine import Engine
from holdfast.engine.ids import new_id
from holdfast.engine.model.operations import EditMap
from holdfast.engine.model.packed_state import PackedMap, as_map, pack_name
from holdfast.engine.row_format import Line, StepRef, readable
from holdfast.engine.state_loader import LoadedState


class HeadMoved(Exception):
    """The step to append to is no longer the last one."""


class AppendFields(TypedDict, total=False):
    """Fields of an `AppendRequest`."""

    metadata: bytes
    readable: str
    attached_changes: partial[list[Change]]


def step_fields(engine: Engine, line: Line, metadata: Mapping[str, Any], deltas: UnreadDeltas) -> AppendFields:
    """Return the metadata of a step, and the changes that copy the histories of delta channels to it."""
    codec, metadata = engine.context.codec, {**metadata, **deltas.metadata}
    fields = AppendFields(metadata=codec.pack(metadata), readable=readable(codec, metadata))
    if deltas.counters:
        fields["attached_changes"] = partial(engine.delta_reader().given, line, deltas)
    return fields


async def latest_id(engine: Engine, line: Line, parent: StepRef) -> str:
    """Generate an id that is later than all others of the line."""
    newest = await engine.lines.newest_step(line)
    return new_id(max(engine.context.clock(), newest.time), max(newest.id, parent.id))


def without_follows(state: PackedMap) -> PackedMap:
    """Return a state without the parent that a graph named for its step."""
    internal = as_map(state.get(pack_name(KEPT), b"\x80"))
    if not internal or pack_name(FOLLOWS) not in internal:
        return state
    return {**state, pack_name(KEPT): {key: value for key, value in internal.items() if key != pack_name(FOLLOWS)}}


def only_after(point: StepRef, edit: EditMap) -> Edit:
    """Return an edit that raises `HeadMoved` if it is applied to any other step than this."""

    async def unless_moved(parent: StepRef | None, _: LoadedState | None) -> EditMap:
        if parent is None or parent.hash != point.hash:
            raise HeadMoved
        return edit

    return unless_moved
