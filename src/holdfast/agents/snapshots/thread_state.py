"""The state of an agent's thread: its newest checkpoint, with its pending writes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.graph.state import CompiledStateGraph

from holdfast.agents.snapshots.secret_scan import SecretScan
from holdfast.agents.snapshots.strict_json import check_fields, from_tree, to_tree
from holdfast.errors import InvalidError, SnapshotCorruptError, UnsupportedError

_FIELDS = {"thread": str, "namespace": str, "checkpoint": dict, "metadata": dict, "writes": list}
_CHECKPOINT = {"v": int, "id": str, "ts": str, "channel_values": dict, "channel_versions": dict, "versions_seen": dict}


def dump_thread(agent: CompiledStateGraph[Any, Any, Any, Any], config: Any, scan: SecretScan) -> Any:
    """Return the thread that a config names, as a tree of JSON. Waits for the agent's checkpointer."""
    saver = agent.checkpointer
    if not isinstance(saver, BaseCheckpointSaver):
        raise InvalidError(
            "the config names a thread, and the agent has no checkpointer",
            hint="Leave the config out for a snapshot without a thread",
        )
    configurable = config.get("configurable") if isinstance(config, Mapping) else None
    if not isinstance(configurable, Mapping) or not isinstance(configurable.get("thread_id"), str | int | UUID):
        raise InvalidError(
            "the config names no thread", where="config", hint="config={'configurable': {'thread_id': '…'}}"
        )
    deltas = sorted(name for name, channel in agent.channels.items() if type(channel).__name__ == "DeltaChannel")
    if deltas:
        raise UnsupportedError(
            f"the channel {deltas[0]} keeps differences only, which lie in many checkpoints",
            where=f"thread.{deltas[0]}",
            hint="Store such threads with HoldfastSaver, and copy them with `holdfast copy`",
        )
    saved = saver.get_tuple(config)
    if saved is None:
        raise InvalidError(
            f"there is no such thread: {config!r}", hint="Take the snapshot after the agent has run there"
        )
    scan.check_names(saved.metadata, "thread.metadata")  # LangGraph stores the configuration of runs there
    configurable = saved.config["configurable"]
    tree = {
        "thread": str(configurable["thread_id"]),
        "namespace": str(configurable.get("checkpoint_ns", "")),
        "checkpoint": dict(saved.checkpoint),
        "metadata": dict(saved.metadata),
        "writes": [list(write) for write in saved.pending_writes or ()],
    }
    found = to_tree(tree, "thread")
    scan.check_names(found["checkpoint"]["channel_values"], "thread.checkpoint.channel_values", is_message=True)
    scan.check_names(found["writes"], "thread.writes", is_message=True)
    return found


def load_thread(tree: Any, saver: BaseCheckpointSaver[Any], thread: str | None, where: str) -> None:
    """Write a thread to a checkpointer, under its own name or another. Waits for it."""
    state = from_tree(tree, where)
    check_fields(state, _FIELDS, where)
    checkpoint = state["checkpoint"]
    fits = all(isinstance(checkpoint.get(name), kind) for name, kind in _CHECKPOINT.items())
    fits = fits and all(isinstance(each, str | int | float) for each in checkpoint["channel_versions"].values())
    if not fits or not isinstance(state["metadata"].get("step"), int):
        raise SnapshotCorruptError("the thread in the content has no checkpoint", where=where)
    by_task: dict[str, list[tuple[str, Any]]] = {}
    for write in state["writes"]:
        if type(write) is not list or len(write) != 3 or not all(isinstance(name, str) for name in write[:2]):
            raise SnapshotCorruptError("a write in the content is invalid", where=where)
        task, channel, value = write
        by_task.setdefault(task, []).append((channel, value))
    name = state["thread"] if thread is None else thread
    config: Any = {"configurable": {"thread_id": name, "checkpoint_ns": state["namespace"]}}
    if saver.get_tuple(config) is not None:
        raise InvalidError(
            f"the checkpointer has a thread {name!r} already",
            where=where,
            hint="Restore it under another name: thread='…'",
        )
    saved_config = saver.put(config, checkpoint, state["metadata"], checkpoint["channel_versions"])
    for task, writes in by_task.items():
        saver.put_writes(saved_config, writes, task)
