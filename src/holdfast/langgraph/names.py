"""How a LangGraph thread and namespace are called in a store.

A thread's own checkpoints are in the thread of the same name, so that `store.log("chat-1")` shows them. Those of a
subgraph are in a thread of their own, `chat-1␟child:6f…`. No two pairs of thread and namespace share a name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from langchain_core.runnables import RunnableConfig

from holdfast.engine.records import Line, check_name
from holdfast.errors import Invalid

MARK = "␟"
"""Between a thread's name and a namespace; doubled where it is part of the thread's own."""


def thread_name(thread_id: str, namespace: str = "") -> str:
    """The name under which a store keeps the checkpoints of a LangGraph thread, or of a subgraph's namespace in it."""
    if namespace.startswith(MARK):
        raise Invalid(f"a namespace does not start with {MARK}", where=repr(namespace)[:80])
    name = thread_id.replace(MARK, MARK * 2)
    return name + MARK + namespace if namespace or not thread_id else name


def split_name(name: str) -> tuple[str, str]:
    """The thread's id and the namespace, of a name in a store."""
    thread_id, start = "", 0
    while (place := name.find(MARK, start)) >= 0:
        thread_id += name[start:place]
        if name[place + 1 : place + 2] != MARK:
            return thread_id, name[place + 1 :]
        thread_id, start = thread_id + MARK, place + 2
    return thread_id + name[start:], ""


def configurable(config: RunnableConfig | None) -> Mapping[str, Any]:
    """The part of a config that says which checkpoint is meant."""
    found = config.get("configurable") if isinstance(config, dict) else None
    if type(found) is not dict and not isinstance(found, Mapping):
        raise Invalid("the config has no 'configurable'", hint="Pass {'configurable': {'thread_id': …}}")
    return found


def thread_of(config: RunnableConfig) -> str:
    """The id of the thread that a config names, as text."""
    thread_id = configurable(config).get("thread_id")
    if thread_id is None:
        raise Invalid("the config names no thread", hint="Pass {'configurable': {'thread_id': …}}")
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
