"""What a step needs that takes over the state of another one than its parent, or goes on from it past its framework.

A graph of LangGraph's keeps more than the state shows: the parent that it was told of, where the store has another, and
channels whose values are histories of writes. A step that is made here has the first no longer, and the second in full.
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
    """The step that others were to follow is not the last one any more."""


class AppendFields(TypedDict, total=False):
    """Fields of a `AppendRequest`."""

    metadata: bytes
    readable: str
    attached_changes: partial[list[Change]]


def about(engine: Engine, line: Line, metadata: Mapping[str, Any], unheld: UnreadDeltas) -> AppendFields:
    """What is said of a step, and stored with it, that gets the histories of some channels."""
    codec, whole = engine.context.codec, {**metadata, **unheld.metadata}
    said = AppendFields(metadata=codec.pack(whole), readable=readable(codec, whole))
    if unheld.counters:
        said["attached_changes"] = partial(engine.delta_reader().given, line, unheld)
    return said


async def latest_id(engine: Engine, line: Line, parent: StepRef) -> str:
    """An id for a step that is to be the latest, whatever ids others have."""
    newest = await engine.lines.find(line, None)
    return new_id(max(engine.context.clock(), newest.time), max(newest.id, parent.id))


def without_follows(state: PackedMap) -> PackedMap:
    """A state without the parent that a graph named for the step that it was taken from."""
    kept = as_map(state.get(pack_name(KEPT), b"\x80"))
    if not kept or pack_name(FOLLOWS) not in kept:
        return state
    return {**state, pack_name(KEPT): {key: value for key, value in kept.items() if key != pack_name(FOLLOWS)}}


def only_after(point: StepRef, edit: EditMap) -> Edit:
    """An edit that is made after this very step; after another, `HeadMoved`."""

    async def unless_moved(parent: StepRef | None, held: LoadedState | None) -> EditMap:
        del held
        if parent is None or parent.hash != point.hash:
            raise HeadMoved
        return edit

    return unless_moved
