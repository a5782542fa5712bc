"""LangGraph's checkpoints as states, and back.

A channel of the graph is a channel of the state. What else a checkpoint holds, versions above all, is kept beside them
in a channel of its own: one entry for each version, so that a step stores only those that changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from langgraph.checkpoint.base import Checkpoint
from langgraph.checkpoint.serde.base import SerializerProtocol

from holdfast.engine.delta_channels import FOLLOWS, KEPT
from holdfast.errors import InvalidError, UnsupportedError

__all__ = ["KEPT", "SerializedValue", "checkpoint_of", "kept", "loaded", "serialized", "values_of", "versions_of"]

_VERSION, _SEEN = "version of ", "seen by "
_OWN = frozenset({"id", "ts", "channel_values", "channel_versions", "versions_seen"})


@dataclass(frozen=True, slots=True)
class SerializedValue:
    """A value in the form that a serializer of the user's own gave it."""

    type: str
    data: bytes


def kept(checkpoint: Checkpoint, parent: str | None) -> dict[str, Any]:
    """What a checkpoint holds besides its id, its time and the values of its channels.

    `parent` is the id that it was said to follow, where that is not the step that it follows in the store; empty, if it
    was said to follow none.
    """
    entries: dict[str, Any] = {name: value for name, value in checkpoint.items() if name not in _OWN}
    for channel, version in checkpoint["channel_versions"].items():
        entries[f"{_VERSION}{channel}"] = version
    for node, seen in checkpoint["versions_seen"].items():
        entries[f"{_SEEN}{node}"] = seen
    if parent is not None:
        entries[FOLLOWS] = parent
    return entries


def values_of(checkpoint: Checkpoint) -> Mapping[str, Any]:
    """The values of a checkpoint's channels."""
    values = checkpoint["channel_values"]
    for name in values:
        if type(name) is not str:
            raise InvalidError(f"a channel's name is a string, not {type(name).__name__}", where=repr(name)[:80])
    if KEPT in values:
        raise InvalidError(f"the name {KEPT!r} is Holdfast's own", hint="Give the channel of your graph another name")
    return values


def checkpoint_of(id: str, stamp: str, state: dict[str, Any]) -> tuple[Checkpoint, str | None]:
    """The checkpoint that a state was made of, and the parent that was named where it is not the step's."""
    entries = state.pop(KEPT, {})
    versions: dict[str, Any] = {}
    seen: dict[str, Any] = {}
    others: dict[str, Any] = {}
    for name, value in entries.items():
        if name.startswith(_VERSION):
            versions[name[len(_VERSION) :]] = value
        elif name.startswith(_SEEN):
            seen[name[len(_SEEN) :]] = value
        else:
            others[name] = value
    parent = others.pop(FOLLOWS, None)
    checkpoint = {
        "v": others.pop("v", 1),
        "ts": stamp,
        "id": id,
        "channel_values": state,
        "channel_versions": versions,
        "versions_seen": seen,
        **others,
    }
    return cast(Checkpoint, checkpoint), parent


def versions_of(entries: Mapping[str, Any]) -> dict[str, Any]:
    """The versions of channels, of what was kept of a checkpoint."""
    return {name[len(_VERSION) :]: version for name, version in entries.items() if name.startswith(_VERSION)}


def serialized(serde: SerializerProtocol, value: Any) -> SerializedValue:
    """A value, dumped by a serializer."""
    kind, data = serde.dumps_typed(value)
    return SerializedValue(kind, bytes(data))


def loaded(serde: SerializerProtocol | None, value: Any, channel: str) -> Any:
    """A value as it was given to the saver."""
    if type(value) is not SerializedValue:
        return value
    if serde is None:
        raise UnsupportedError(
            f"channel {channel!r} was saved with a serializer of its own",
            hint="Make the saver with the same one: HoldfastSaver(store, serde=…)",
        )
    return serde.loads_typed((value.type, value.data))
