"""Agents of `langchain.agents.create_agent` in snapshots: separated into data and code, and assembled again.

The model, the system prompt and the settings are data, and written to the file. Tools, middleware and classes of
schemas are code: the file has their names, schemas and digests, and the caller of `restore` passes them again. They are
not compared one by one: the shape of the restored agent must equal that of the original. The state of a thread is its
newest checkpoint, with its pending writes.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import hashlib
import inspect
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from types import FunctionType, MethodType
from typing import Any, NamedTuple
from uuid import UUID

from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware
from langchain.agents.structured_output import AutoStrategy
from langchain_core.messages import SystemMessage
from langchain_core.runnables import Runnable
from langchain_core.tools import BaseTool
from langchain_core.utils.function_calling import convert_to_openai_tool
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.graph.state import CompiledStateGraph
from pydantic import BaseModel, SecretBytes, SecretStr

from holdfast.agents.snapshots import strict_json
from holdfast.agents.snapshots.langchain_serde import RevivalRules, dump, revive
from holdfast.agents.snapshots.secret_scan import SecretScan
from holdfast.agents.snapshots.strict_json import check_fields, from_tree, to_tree
from holdfast.errors import SnapshotCorruptError, SnapshotInvalidError, SnapshotUnsupportedError

Graph = CompiledStateGraph[Any, Any, Any, Any]

_MODEL_NODE = ("langchain.agents.factory", "create_agent.<locals>.model_node")
_NODES = ("model", "tools")
_CONFIG = {
    "recursion_limit": int,
    "metadata": dict,
    "tags": list,
    "run_name": str,
    "max_concurrency": int,
    "configurable": dict,
}
_FIELDS = {
    "model": dict,
    "system_prompt": dict | None,
    "tools": list,
    "provider_tools": list | dict,
    "response_format": dict | None,
    "name": str | None,
    "interrupt_before": list,
    "interrupt_after": list,
    "debug": bool,
    "config": dict,
    "shape": dict,
}


class AgentParts(NamedTuple):
    """The arguments of `create_agent` that can be read from its result."""

    model: Any
    tools: Sequence[Any]
    system_prompt: SystemMessage | None
    response_format: Any


class AgentCode(NamedTuple):
    """The code that the caller of `restore` passes."""

    tools: Sequence[Any] = ()
    middleware: Sequence[Any] = ()
    response_format: Any = None
    state_schema: Any = None
    context_schema: Any = None
    accept_changes: bool = False


# Dump ---------------------------------------------------------------------------------------------------------------


def dump_agent(agent: Graph, scan: SecretScan) -> dict[str, Any]:
    """Return an agent as a tree of JSON. Raises `SnapshotUnsupportedError` if it cannot be separated."""
    parts = _parts(agent)
    tools = [tool for tool in parts.tools if isinstance(tool, BaseTool)]
    provider_tools = [tool for tool in parts.tools if not isinstance(tool, BaseTool)]
    config = {key: value for key, value in (agent.config or {}).items() if value}
    unsupported = sorted(config.keys() - set(_CONFIG))
    if unsupported:
        raise SnapshotUnsupportedError(
            f"the agent was configured with {unsupported[0]}, which is code",
            where=f"config.{unsupported[0]}",
            hint="Take the snapshot of the agent without it, and configure the restored agent",
        )
    scan.check_names(config, "config")
    scan.check_names(provider_tools, "tools")
    described, response_format = [_tool(tool) for tool in tools], _format(parts.response_format)
    for tool in described:
        scan.check_names(tool["schema"], f"tools.{tool['name']}")
    scan.check_names(response_format, "response_format")
    return {
        "model": dump(parts.model, "model", scan),
        "system_prompt": None if parts.system_prompt is None else dump(parts.system_prompt, "system_prompt", scan),
        "tools": described,
        "provider_tools": to_tree(provider_tools, "tools"),
        "response_format": response_format,
        "name": None if agent.name == "LangGraph" else agent.name,
        "interrupt_before": _names(agent.interrupt_before_nodes),
        "interrupt_after": _names(agent.interrupt_after_nodes),
        "debug": bool(agent.debug),
        "config": to_tree(config, "config"),
        "shape": _shape(agent, parts),
    }


def required_code(tree: dict[str, Any]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names of the tools and of the middleware in a tree."""
    return tuple(tool["name"] for tool in tree["tools"]), tuple(tree["shape"]["middleware"])


def _closure(agent: Graph) -> dict[str, Any]:
    """Return the closure of the function that calls the model. LangChain has no other access to it."""
    node = agent.builder.nodes.get("model")
    function = getattr(node.runnable, "func", None) if node is not None else None
    if not isinstance(function, FunctionType) or (function.__module__, function.__qualname__) != _MODEL_NODE:
        raise SnapshotUnsupportedError(
            "this graph was not created by langchain.agents.create_agent",
            hint="Its nodes are code. Take snapshots of its model, prompts and messages, or store its threads with "
            "HoldfastSaver",
        )
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    return {name: cell.cell_contents for name, cell in cells}


def _parts(agent: Graph) -> AgentParts:
    closure = _closure(agent)
    try:
        return AgentParts(*(closure[name] for name in _CLOSURE_NAMES))
    except KeyError as error:
        raise SnapshotUnsupportedError(
            f"this release of LangChain builds agents differently: there is no {error}",
            hint="Take snapshots of its model, prompt and messages instead, and report the release to us",
        ) from error


_CLOSURE_NAMES = ("model", "default_tools", "system_message", "initial_response_format")


def _tool(tool: BaseTool) -> dict[str, Any]:
    schema = convert_to_openai_tool(tool)["function"]
    return {"name": tool.name, "schema": schema, "sha256": _digest(schema)}


def _format(strategy: Any) -> dict[str, Any] | None:
    """Describe the strategy for structured output. A JSON schema is data; others are code, and have a digest."""
    if strategy is None:
        return None
    if isinstance(strategy, AutoStrategy) and isinstance(strategy.schema, dict):
        return {"strategy": "auto", "schema": to_tree(strategy.schema, "response_format"), "given": False}
    name = type(strategy).__name__.removesuffix("Strategy").lower()
    return {"strategy": name, "schema": _digest(_schema(strategy.schema)), "given": True}


def _schema(schema: Any) -> Any:
    if isinstance(schema, dict):
        return schema
    from pydantic import TypeAdapter

    return TypeAdapter(schema).json_schema()


def _shape(agent: Graph, parts: AgentParts) -> dict[str, Any]:
    """Describe an agent as a whole: two agents of the same shape, model and prompt behave alike."""
    builder = agent.builder
    nodes = [name for name in builder.nodes if name not in _NODES]
    middleware = middleware_of(builder.nodes, _closure(agent).values())
    return {
        "nodes": nodes,
        "edges": sorted([*edge] for edge in builder.edges),
        "channels": sorted(builder.channels),
        "middleware": sorted({*middleware, *(name.rpartition(".")[0] for name in nodes)}),
        "settings": {name: _digest(describe_settings(each)) for name, each in sorted(middleware.items())},
        "tools": {
            tool.name: _digest(convert_to_openai_tool(tool)["function"])
            for tool in parts.tools
            if isinstance(tool, BaseTool)
        },
        "response_format": _format(parts.response_format),
    }


def _names(nodes: Any) -> list[str]:
    return ["*"] if nodes == "*" else list(nodes or ())


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()


# Load ---------------------------------------------------------------------------------------------------------------


def load_agent(
    tree: dict[str, Any], rules: RevivalRules, code: AgentCode, checkpointer: Any, store: Any, where: str
) -> Graph:
    """Create the agent of a tree, with the code, the checkpointer and the store that the caller passed."""
    check_fields(tree, _FIELDS, where)
    model = revive(tree["model"], "model", rules)
    prompt = None if tree["system_prompt"] is None else revive(tree["system_prompt"], "system_prompt", rules)
    # create_agent would also accept the name of a model, and create one that nobody allowed.
    is_model = isinstance(model, Runnable) and hasattr(model, "bind_tools")  # also one with settings bound to it
    if not is_model or not isinstance(prompt, SystemMessage | None):
        raise SnapshotCorruptError("the model or the system prompt in the content is invalid", where=where)
    provider_tools, config = from_tree(tree["provider_tools"], where), from_tree(tree["config"], where)
    if type(provider_tools) is not list or not all(type(each) is dict for each in provider_tools):
        raise SnapshotCorruptError("the provider tools in the content are invalid", where=where)
    _check_config(config, where)
    _check_names(tree, code, where)
    response_format = code.response_format
    stored_format = tree["response_format"]
    if stored_format is not None and response_format is None:
        if stored_format.get("given") is not False:
            raise SnapshotInvalidError(
                "the agent answers in a format whose class is not in the snapshot",
                where=where,
                hint="restore(…, response_format=…)",
            )
        response_format = from_tree(stored_format.get("schema"), where)
    try:
        agent: Graph = create_agent(
            model,
            [*code.tools, *provider_tools],
            system_prompt=prompt,
            middleware=code.middleware,
            response_format=response_format,
            state_schema=code.state_schema,
            context_schema=code.context_schema,
            interrupt_before=tree["interrupt_before"] or None,
            interrupt_after=tree["interrupt_after"] or None,
            debug=tree["debug"],
            name=tree["name"],
            checkpointer=checkpointer,
            store=store,
        )
    except Exception as error:  # whatever LangChain and the middleware raise
        raise SnapshotInvalidError(f"LangChain cannot create the agent: {error}", where=where) from error
    if not code.accept_changes:
        _check_shape(tree["shape"], _shape(agent, _parts(agent)), where)
    return agent.with_config(config)


def _check_config(config: Any, where: str) -> None:
    if type(config) is not dict or not all(isinstance(value, _CONFIG.get(key, ())) for key, value in config.items()):
        raise SnapshotCorruptError("the configuration in the content is invalid", where=where)
    if any(str(key).startswith("__") for key in config.get("configurable", ())):
        raise SnapshotCorruptError("the configuration in the content has internal keys of LangGraph", where=where)


def _check_names(tree: dict[str, Any], code: AgentCode, where: str) -> None:
    """Refuse missing code before the agent is created. Tools may also come from middleware."""
    try:
        tools, middleware = required_code(tree)
        if not all(type(name) is str for name in (*tools, *middleware)):
            raise TypeError("a name is not a string")
    except (KeyError, TypeError) as error:
        raise SnapshotCorruptError("the content names no tools", where=where) from error
    nested_tools = [tool for each in code.middleware for tool in getattr(each, "tools", ())]
    tool_names = {_tool_name(tool) for tool in (*code.tools, *nested_tools)}
    middleware_names = {getattr(each, "name", "") for each in code.middleware}
    for what, missing in (
        ("tools", [name for name in tools if name not in tool_names]),
        ("middleware", [name for name in middleware if name not in middleware_names]),
    ):
        if missing:
            raise SnapshotInvalidError(
                f"the agent has {what} that {'were' if what == 'tools' else 'was'} not given: {', '.join(missing)}",
                where=where,
                hint=f"restore(…, {what}=[{', '.join(missing)}]): code is not in a snapshot",
            )


def _tool_name(tool: Any) -> str:
    return str(getattr(tool, "name", None) or getattr(tool, "__name__", ""))


def _check_shape(stored: dict[str, Any], shape: dict[str, Any], where: str) -> None:
    # Both as JSON values: a tuple in one is a list in the other.
    shape = strict_json.read(strict_json.write(shape), where)
    if stored == shape:
        return
    differences = []
    for part in shape:
        if stored.get(part) == shape[part]:
            continue
        if isinstance(shape[part], dict) and isinstance(stored.get(part), dict):
            old: dict[str, Any] = stored[part]
            names = sorted(key for key in shape[part].keys() | old.keys() if shape[part].get(key) != old.get(key))
            differences.append(f"{part} ({', '.join(names)})")
        else:
            differences.append(part)
    raise SnapshotInvalidError(
        f"the agent would differ from the one in the snapshot: {', '.join(differences) or 'its parts'}",
        where=where,
        hint="Give the tools, middleware and schemas that it had, or accept_changes=True to continue with these",
    )


# Threads ------------------------------------------------------------------------------------------------------------

_THREAD_FIELDS = {"thread": str, "namespace": str, "checkpoint": dict, "metadata": dict, "writes": list}
_CHECKPOINT = {"v": int, "id": str, "ts": str, "channel_values": dict, "channel_versions": dict, "versions_seen": dict}


def dump_thread(agent: CompiledStateGraph[Any, Any, Any, Any], config: Any, scan: SecretScan) -> Any:
    """Return the thread that a config names, as a tree of JSON. Waits for the agent's checkpointer."""
    saver = agent.checkpointer
    if not isinstance(saver, BaseCheckpointSaver):
        raise SnapshotInvalidError(
            "the config names a thread, and the agent has no checkpointer",
            hint="Leave the config out for a snapshot without a thread",
        )
    configurable = config.get("configurable") if isinstance(config, Mapping) else None
    if not isinstance(configurable, Mapping) or not isinstance(configurable.get("thread_id"), str | int | UUID):
        raise SnapshotInvalidError(
            "the config names no thread", where="config", hint="config={'configurable': {'thread_id': '…'}}"
        )
    deltas = sorted(name for name, channel in agent.channels.items() if type(channel).__name__ == "DeltaChannel")
    if deltas:
        raise SnapshotUnsupportedError(
            f"the channel {deltas[0]} stores only differences, which are spread over many checkpoints",
            where=f"thread.{deltas[0]}",
            hint="Store such threads with HoldfastSaver, and copy them with `holdfast copy`",
        )
    saved = saver.get_tuple(config)
    if saved is None:
        raise SnapshotInvalidError(
            f"there is no such thread: {config!r}", hint="Take the snapshot after the agent has run in this thread"
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
    check_fields(state, _THREAD_FIELDS, where)
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
        raise SnapshotInvalidError(
            f"the checkpointer has a thread {name!r} already",
            where=where,
            hint="Restore it under another name: thread='…'",
        )
    saved_config = saver.put(config, checkpoint, state["metadata"], checkpoint["channel_versions"])
    for task, writes in by_task.items():
        saver.put_writes(saved_config, writes, task)


# The middleware of an agent, and its settings, so that a restored agent can be compared with the original ------------
#
# LangChain keeps middleware nowhere: it is found through its methods, which the nodes and the composed handlers of the
# agent call. Its settings are the arguments of its constructor, as far as it stores them under their names. Values that
# are code are described by their names; secrets and objects without a description by their class.


_MAX_DEPTH = 20


def middleware_of(nodes: Mapping[str, Any], handlers: Iterable[Any]) -> dict[str, AgentMiddleware[Any, Any]]:
    """Return the middleware of an agent by name: that of its nodes, and that which wraps the model and the tools."""
    tools = nodes.get("tools")
    chains = [getattr(tools.runnable, attribute, None) for attribute in _TOOL_HANDLERS] if tools is not None else []
    found = [each for chain in (*chains, *handlers) for each in wrappers(chain)]
    methods = [getattr(node.runnable, name, None) for node in nodes.values() for name in ("func", "afunc")]
    found += [each for method in methods if isinstance(each := _owner(method), AgentMiddleware)]
    return {each.name: each for each in found}


_TOOL_HANDLERS = ("_wrap_tool_call", "_awrap_tool_call")


def _owner(method: Any) -> Any:
    while isinstance(method, functools.partial):
        method = method.func
    return getattr(method, "__self__", None)


def wrappers(chain: Any) -> list[AgentMiddleware[Any, Any]]:
    """Return the middleware whose methods a composed handler calls, nested in one another."""
    middleware: list[AgentMiddleware[Any, Any]] = []
    visited: set[int] = set()
    stack = [chain]
    while stack:
        each = stack.pop()
        if id(each) in visited:
            continue
        visited.add(id(each))
        if isinstance(each, MethodType):
            if isinstance(each.__self__, AgentMiddleware):
                middleware.append(each.__self__)
        elif isinstance(each, FunctionType) and each.__qualname__ != "create_agent.<locals>._execute_model_sync":
            stack += [cell.cell_contents for cell in each.__closure__ or () if _is_function(cell)]
            stack.append(getattr(each, "__wrapped__", None))
    return middleware


def _is_function(cell: Any) -> bool:
    try:
        return isinstance(cell.cell_contents, FunctionType | MethodType)
    except ValueError:  # not filled yet
        return False


def describe_settings(middleware: AgentMiddleware[Any, Any]) -> dict[str, Any]:
    """Return the settings of middleware as values of JSON that are the same in every process."""
    values = vars(middleware)
    names = [name for name in inspect.signature(type(middleware).__init__).parameters if name != "self"]
    stored = {name: next((each for each in (name, f"_{name}") if each in values), None) for name in names}
    return {name: _describe(values[at], 0) for name, at in stored.items() if at is not None}


def _describe(value: Any, depth: int) -> Any:
    if value is None or (isinstance(value, str | bool | int | float) and not isinstance(value, enum.Enum)):
        return value
    if depth > _MAX_DEPTH or isinstance(value, SecretStr | SecretBytes):
        return _class_name(type(value))
    if isinstance(value, Mapping):
        pairs = [[_describe(key, depth + 1), _describe(item, depth + 1)] for key, item in value.items()]
        return sorted(pairs, key=repr)
    if isinstance(value, list | tuple):
        return [_describe(item, depth + 1) for item in value]
    if isinstance(value, set | frozenset):
        return sorted((_describe(item, depth + 1) for item in value), key=repr)
    if isinstance(value, enum.Enum):
        return [_class_name(type(value)), value.name]
    if isinstance(value, re.Pattern):
        return [value.pattern, value.flags]
    if isinstance(value, type):
        return _class_name(value)
    if isinstance(value, functools.partial):
        return [_describe(each, depth + 1) for each in (value.func, value.args, value.keywords)]
    if isinstance(value, BaseTool):
        return convert_to_openai_tool(value)
    return _describe_object(value, depth)


def _describe_object(value: Any, depth: int) -> Any:
    """Describe an object by its class and its fields, if it declares them; a function by its name."""
    if callable(value) and hasattr(value, "__qualname__"):
        return _class_name(value)
    fields: list[str] = []
    if isinstance(value, BaseModel):
        fields = [*type(value).model_fields]
    elif dataclasses.is_dataclass(value):
        fields = [field.name for field in dataclasses.fields(value)]
    described = {name: _describe(getattr(value, name, None), depth + 1) for name in sorted(fields)}
    return [_class_name(type(value)), described]


def _class_name(named: Any) -> str:
    return f"{named.__module__}.{named.__qualname__}"
