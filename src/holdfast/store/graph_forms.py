"""LangGraph's forms, without LangGraph: configs that name checkpoints, and checkpoints as states with bookkeeping.

A thread's own checkpoints are in the thread of the same name, so that `store.thread("chat-1").log()` shows them. Those
of a subgraph are in a thread of their own, `chat-1␟child:6f…`. A channel of the graph is a channel of the state. The
rest of a checkpoint, versions above all, is bookkeeping: one entry for each version, so that a step stores only those
that changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Protocol, TypeAlias

from holdfast._named_tuple import NamedTuple
from holdfast.engine.namespaces import thread_name
from holdfast.errors import InvalidError

Config: TypeAlias = Mapping[str, Any]
"""A config of LangGraph: `{"configurable": {"thread_id": …, "checkpoint_id": …}}`."""

_VERSION, _SEEN = "version of ", "seen by "
_OWN = frozenset({"id", "ts", "channel_values", "channel_versions", "versions_seen"})


class SavedForm(Protocol):
    """A checkpoint that was saved, with its bookkeeping."""

    @property
    def id(self) -> str: ...
    @property
    def stamp(self) -> str: ...
    @property
    def time(self) -> datetime: ...
    @property
    def state(self) -> Mapping[str, Any]: ...
    @property
    def bookkeeping(self) -> Mapping[str, Any]: ...


def bookkeeping_of(checkpoint: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a checkpoint holds besides its id, its time and the values of its channels."""
    entries: dict[str, Any] = {name: value for name, value in checkpoint.items() if name not in _OWN}
    for channel, version in checkpoint.get("channel_versions", {}).items():
        entries[version_entry(channel)] = version
    for node, seen in checkpoint.get("versions_seen", {}).items():
        entries[f"{_SEEN}{node}"] = seen
    return entries


def values_of(checkpoint: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the values of a checkpoint's channels."""
    values: Mapping[str, Any] = checkpoint["channel_values"]
    for name in values:
        if type(name) is not str:
            raise InvalidError(
                f"the name of a channel must be a string, not {type(name).__name__}", where=repr(name)[:80]
            )
    return values


def checkpoint_of(saved: SavedForm) -> Any:
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
    return {
        "v": others.pop("v", 1),
        "ts": saved.stamp or saved.time.isoformat(),
        "id": saved.id,
        "channel_values": saved.state,
        "channel_versions": versions,
        "versions_seen": seen,
        **others,
    }


def version_entry(channel: str) -> str:
    """Return the name of the entry of the bookkeeping that is the version of a channel."""
    return f"{_VERSION}{channel}"


_MAPPINGS = (dict, Mapping)  # dicts are recognised at once


def configurable(config: Config | None) -> Mapping[str, Any]:
    """Return the part of a config that names a checkpoint."""
    found = config.get("configurable") if isinstance(config, _MAPPINGS) else None
    if not isinstance(found, _MAPPINGS):
        raise InvalidError("the config has no 'configurable'", hint="Pass {'configurable': {'thread_id': …}}")
    return found


class Place(NamedTuple):
    """What a config names: a thread by the id that was given, a namespace in it, and perhaps a checkpoint."""

    thread_id: Any
    namespace: str
    checkpoint_id: str | None

    @property
    def thread(self) -> str:
        """The name of the thread of the store."""
        return thread_name(str(self.thread_id), self.namespace)


def place_of(config: Config) -> Place:
    """Return what a config names."""
    where = configurable(config)
    thread_id = where.get("thread_id")
    if thread_id is None:
        raise InvalidError("the config names no thread", hint="Pass {'configurable': {'thread_id': …}}")
    return Place(thread_id, str(where.get("checkpoint_ns") or ""), where.get("checkpoint_id") or None)


def checkpoint_id_of(config: Config | None) -> str | None:
    """Return the id of the checkpoint that a config names, if it names one."""
    return (configurable(config).get("checkpoint_id") if config else None) or None


def stored_thread(config: Config) -> str:
    """Return the name of the thread of the store that a config names."""
    return place_of(config).thread


def config_of(thread_id: Any, namespace: str, checkpoint_id: str) -> Any:
    """Return a config that names a checkpoint."""
    return {
        "configurable": {"thread_id": thread_id, "checkpoint_ns": namespace, "checkpoint_id": checkpoint_id},
    }
