"""How a LangGraph thread and namespace are called in a store.

A thread's own checkpoints are in the thread of the same name, so that `store.log("chat-1")` shows them. Those of a
subgraph are in a thread of their own, `chat-1␟child:6f…`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from langchain_core.runnables import RunnableConfig

from holdfast.engine.namespaces import MARK, split_name, thread_name
from holdfast.engine.row_format import Line, check_name
from holdfast.errors import InvalidError

__all__ = [
    "MARK",
    "checkpoint_of",
    "config_of",
    "configurable",
    "line",
    "line_of",
    "namespace_of",
    "split_name",
    "thread_name",
    "thread_of",
]


def configurable(config: RunnableConfig | None) -> Mapping[str, Any]:
    """The part of a config that says which checkpoint is meant."""
    found = config.get("configurable") if isinstance(config, dict) else None
    if type(found) is not dict and not isinstance(found, Mapping):
        raise InvalidError("the config has no 'configurable'", hint="Pass {'configurable': {'thread_id': …}}")
    return found


def thread_of(config: RunnableConfig) -> str:
    """The id of the thread that a config names, as text."""
    thread_id = configurable(config).get("thread_id")
    if thread_id is None:
        raise InvalidError("the config names no thread", hint="Pass {'configurable': {'thread_id': …}}")
    return str(thread_id)


def namespace_of(config: RunnableConfig) -> str:
    """The namespace that a config names; that of the thread itself if it names none."""
    return str(configurable(config).get("checkpoint_ns") or "")


def checkpoint_of(config: RunnableConfig | None) -> str | None:
    """The id of the checkpoint that a config names, if it names one."""
    id = configurable(config).get("checkpoint_id") if config else None
    return check_name(id, "id of a checkpoint") if id else None


def line_of(tenant: str, config: RunnableConfig) -> Line:
    """The line that a config names."""
    return line(tenant, thread_of(config), namespace_of(config))


def line(tenant: str, thread_id: str, namespace: str = "") -> Line:
    """The line of a thread, or of a namespace in it."""
    return Line(tenant, check_name(thread_name(thread_id, namespace), "id of a thread, with its namespace,"))


def config_of(thread_id: Any, namespace: str, checkpoint_id: str) -> RunnableConfig:
    """A config that names a checkpoint."""
    return {
        "configurable": {"thread_id": thread_id, "checkpoint_ns": namespace, "checkpoint_id": checkpoint_id},
    }
