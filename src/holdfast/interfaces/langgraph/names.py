"""The names of LangGraph threads and namespaces in a store.

A thread's own checkpoints are in the thread of the same name, so that `store.log("chat-1")` shows them. Those of a
subgraph are in a thread of their own, `chat-1␟child:6f…`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from langchain_core.runnables import RunnableConfig

from holdfast.errors import InvalidError
from holdfast.store import thread_name


def configurable(config: RunnableConfig | None) -> Mapping[str, Any]:
    """Return the part of a config that names a checkpoint."""
    found = config.get("configurable") if isinstance(config, dict) else None
    if type(found) is not dict and not isinstance(found, Mapping):
        raise InvalidError("the config has no 'configurable'", hint="Pass {'configurable': {'thread_id': …}}")
    return found


def thread_of(config: RunnableConfig) -> str:
    """Return the id of the thread that a config names, as text."""
    thread_id = configurable(config).get("thread_id")
    if thread_id is None:
        raise InvalidError("the config names no thread", hint="Pass {'configurable': {'thread_id': …}}")
    return str(thread_id)


def namespace_of(config: RunnableConfig) -> str:
    """Return the namespace that a config names; that of the thread itself if it names none."""
    return str(configurable(config).get("checkpoint_ns") or "")


def checkpoint_of(config: RunnableConfig | None) -> str | None:
    """Return the id of the checkpoint that a config names, if it names one."""
    return (configurable(config).get("checkpoint_id") if config else None) or None


def stored_thread(config: RunnableConfig) -> str:
    """Return the name of the thread of the store that a config names."""
    return thread_name(thread_of(config), namespace_of(config))


def config_of(thread_id: Any, namespace: str, checkpoint_id: str) -> RunnableConfig:
    """Return a config that names a checkpoint."""
    return {
        "configurable": {"thread_id": thread_id, "checkpoint_ns": namespace, "checkpoint_id": checkpoint_id},
    }
