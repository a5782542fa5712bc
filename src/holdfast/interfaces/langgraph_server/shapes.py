"""JSON as the types of `langgraph-sdk` say: states, tasks, interrupts and messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from langgraph.types import PregelTask, StateSnapshot

from holdfast.interfaces.langgraph.client_runs import interrupt_json


def checkpoint_json(config: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return what names a checkpoint."""
    where = (config or {}).get("configurable", {})
    if not where.get("checkpoint_id"):
        return None
    return {
        "thread_id": where.get("thread_id"),
        "checkpoint_ns": where.get("checkpoint_ns") or "",
        "checkpoint_id": where["checkpoint_id"],
        "checkpoint_map": where.get("checkpoint_map"),
    }


def state_json(snapshot: StateSnapshot, thread: str, select: Sequence[str] | None = None) -> dict[str, Any]:
    """Return the state of a thread at a checkpoint; of a `select`ion, only those fields, or keys as `values.key`."""
    here = {"thread_id": thread, "checkpoint_ns": "", "checkpoint_id": None, "checkpoint_map": None}
    whole = {
        "values": snapshot.values,
        "next": list(snapshot.next),
        "checkpoint": checkpoint_json(snapshot.config) or here,
        "metadata": snapshot.metadata or {},
        "created_at": snapshot.created_at,
        "parent_checkpoint": checkpoint_json(snapshot.parent_config),
        "tasks": [task_json(each, thread) for each in snapshot.tasks],
        "interrupts": [interrupt_json(each) for each in snapshot.interrupts],
    }
    if not select:
        return whole
    keys = [each.removeprefix("values.") for each in select if each.startswith("values.")]
    if keys and "values" not in select:
        whole["values"] = {key: snapshot.values[key] for key in keys if key in snapshot.values}
    return {name: value for name, value in whole.items() if name in select or (keys and name == "values")}


def task_json(task: PregelTask, thread: str) -> dict[str, Any]:
    """Return a task of a checkpoint, with the state of its subgraph if that was read."""
    state: Any = task.state
    return {
        "id": task.id,
        "name": task.name,
        "path": list(task.path),
        "error": None if task.error is None else str(task.error),
        "interrupts": [interrupt_json(each) for each in task.interrupts],
        "checkpoint": state.get("configurable") if isinstance(state, dict) else None,
        "state": state_json(state, thread) if isinstance(state, StateSnapshot) else None,
        "result": task.result,
    }
