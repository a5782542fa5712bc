"""LangGraph's checkpoints as states with bookkeeping, and back.

A channel of the graph is a channel of the state. The rest of a checkpoint, versions above all, is bookkeeping: one
entry for each version, so that a step stores only those that changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from langgraph.checkpoint.base import Checkpoint

from holdfast.errors import InvalidError, UnsupportedError
from holdfast.store import SavedCheckpoint

_VERSION, _SEEN = "version of ", "seen by "
_OWN = frozenset({"id", "ts", "channel_values", "channel_versions", "versions_seen"})


@dataclass(frozen=True, slots=True)
class SerializedValue:
    """A value as a serializer of the user's own dumped it. It is never decoded."""

    type: str
    data: bytes


def bookkeeping_of(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return what a checkpoint holds besides its id, its time and the values of its channels."""
    entries: dict[str, Any] = {name: value for name, value in checkpoint.items() if name not in _OWN}
    for channel, version in checkpoint["channel_versions"].items():
        entries[version_entry(channel)] = version
    for node, seen in checkpoint["versions_seen"].items():
        entries[f"{_SEEN}{node}"] = seen
    return entries


def values_of(checkpoint: Checkpoint) -> Mapping[str, Any]:
    """Return the values of a checkpoint's channels."""
    values = checkpoint["channel_values"]
    for name in values:
        if type(name) is not str:
            raise InvalidError(f"a channel's name is a string, not {type(name).__name__}", where=repr(name)[:80])
    return values


def checkpoint_of(saved: SavedCheckpoint) -> Checkpoint:
    """Return the checkpoint that was saved."""
    versions: dict[str, Any] = {}
    seen: dict[str, Any] = {}
    others: dict[str, Any] = {}
    for name, value in saved.bookkeeping.items():
        if name.startswith(_VERSION):
            versions[name[len(_VERSION) :]] = value
        elif name.startswith(_SEEN):
            seen[name[len(_SEEN) :]] = value
        else:
            others[name] = value
    checkpoint = {
        "v": others.pop("v", 1),
        "ts": saved.stamp or saved.time.isoformat(),
        "id": saved.id,
        "channel_values": saved.state,
        "channel_versions": versions,
        "versions_seen": seen,
        **others,
    }
    return cast(Checkpoint, checkpoint)


def version_entry(channel: str) -> str:
    """Return the name of the entry of the bookkeeping that is the version of a channel."""
    return f"{_VERSION}{channel}"


def refuse_serialized(value: Any, channel: str) -> None:
    """Raise `UnsupportedError` if a value is what a serializer dumped: none is ever called with stored bytes."""
    if type(value) is SerializedValue:
        raise UnsupportedError(
            f"channel {channel!r} was saved with a serializer of its own, and Holdfast does not run one on stored data",
            hint="Its bytes are in the state of the checkpoint: store.get(thread).state",
        )
