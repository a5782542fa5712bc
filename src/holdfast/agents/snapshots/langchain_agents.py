"""Agents of `langchain.agents.create_agent`: taken apart into data and code, and put together again.

The model, the system prompt and the settings are data, and go into the file. Tools, middleware and classes of schemas
are code: in the file they are names, schemas and digests, and whoever restores gives them again. Whether these are the
same is not asked of each, but of the whole: the agent that was made anew is described as the old one was, and the two
descriptions have to be equal.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from types import FunctionType, MethodType
from typing import Any, NamedTuple

from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware
from langchain.agents.structured_output import AutoStrategy
from langchain_core.messages import SystemMessage
from langchain_core.runnables import Runnable
from langchain_core.tools import BaseTool
from langchain_core.utils.function_calling import convert_to_openai_tool
from langgraph.graph.state import CompiledStateGraph

from holdfast.agents.snapshots import strict_json
from holdfast.agents.snapshots.json_values import check_fields, given_back, kept
from holdfast.agents.snapshots.langchain_serde import RevivalRules, dump, revive
from holdfast.agents.snapshots.secret_scan import SecretScan
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
    """What `create_agent` was given, as far as it is to be found in what it made."""

    model: Any
    tools: Sequence[Any]
    system_prompt: SystemMessage | None
    response_format: Any


class AgentCode(NamedTuple):
    """What whoever restores has to give."""

    tools: Sequence[Any] = ()
    middleware: Sequence[Any] = ()
    response_format: Any = None
    state_schema: Any = None
    context_schema: Any = None
    accept_changes: bool = False


# Out ----------------------------------------------------------------------------------------------------------------


def freeze(agent: Graph, gathering: SecretScan) -> dict[str, Any]:
    """An agent as a tree of JSON. Raises `SnapshotUnsupportedError` where it cannot be taken apart."""
    parts = _parts(agent)
    ours = [tool for tool in parts.tools if isinstance(tool, BaseTool)]
    others = [tool for tool in parts.tools if not isinstance(tool, BaseTool)]
    config = {key: value for key, value in (agent.config or {}).items() if value}
    strange = sorted(config.keys() - set(_CONFIG))
    if strange:
        raise SnapshotUnsupportedError(
            f"the agent was configured with {strange[0]}, which is code",
            where=f"config.{strange[0]}",
            hint="Take the snapshot of the agent without it, and configure what you restore",
        )
    gathering.check_names(config, "config")
    gathering.check_names(others, "tools")
    return {
        "model": dump(parts.model, "model", gathering),
        "system_prompt": None if parts.system_prompt is None else dump(parts.system_prompt, "system_prompt", gathering),
        "tools": [_tool(tool) for tool in ours],
        "provider_tools": kept(others, "tools"),
        "response_format": _format(parts.response_format),
        "name": None if agent.name == "LangGraph" else agent.name,
        "interrupt_before": _names(agent.interrupt_before_nodes),
        "interrupt_after": _names(agent.interrupt_after_nodes),
        "debug": bool(agent.debug),
        "config": kept(config, "config"),
        "shape": _shape(agent, parts),
    }


def needed(tree: dict[str, Any]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The names of tools and of middleware that are in a tree."""
    return tuple(tool["name"] for tool in tree["tools"]), tuple(tree["shape"]["middleware"])


def _held(agent: Graph) -> dict[str, Any]:
    """What the function that calls the model has in its hands. LangChain gives no other way to it."""
    node = agent.builder.nodes.get("model")
    function = getattr(node.runnable, "func", None) if node is not None else None
    if not isinstance(function, FunctionType) or (function.__module__, function.__qualname__) != _MODEL_NODE:
        raise SnapshotUnsupportedError(
            "this graph was not made by langchain.agents.create_agent",
            hint="Its nodes are code. Take snapshots of its model, prompts and messages, or keep its threads with "
            "HoldfastSaver",
        )
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    return {name: cell.cell_contents for name, cell in cells}


def _parts(agent: Graph) -> AgentParts:
    held = _held(agent)
    try:
        return AgentParts(*(held[name] for name in _HELD))
    except KeyError as error:
        raise SnapshotUnsupportedError(
            f"this release of LangChain makes agents in another way: there is no {error}",
            hint="Take snapshots of its model, prompt and messages by themselves, and tell us of the release",
        ) from error


_HELD = ("model", "default_tools", "system_message", "initial_response_format")


def _tool(tool: BaseTool) -> dict[str, Any]:
    schema = convert_to_openai_tool(tool)["function"]
    return {"name": tool.name, "schema": schema, "sha256": _digest(schema)}


def _format(strategy: Any) -> dict[str, Any] | None:
    """How structured output is asked for. A schema of JSON is data; everything else is code, and told by its digest."""
    if strategy is None:
        return None
    if isinstance(strategy, AutoStrategy) and isinstance(strategy.schema, dict):
        return {"strategy": "auto", "schema": kept(strategy.schema, "response_format"), "given": False}
    name = type(strategy).__name__.removesuffix("Strategy").lower()
    return {"strategy": name, "schema": _digest(_schema(strategy.schema)), "given": True}


def _schema(schema: Any) -> Any:
    if isinstance(schema, dict):
        return schema
    from pydantic import TypeAdapter

    return TypeAdapter(schema).json_schema()


def _shape(agent: Graph, parts: AgentParts) -> dict[str, Any]:
    """What an agent does as a whole: two agents of the same shape, model and prompt behave alike."""
    builder = agent.builder
    tools = builder.nodes.get("tools")
    chains: list[Any] = [getattr(tools.runnable, "_wrap_tool_call", None)] if tools is not None else []
    chains += _held(agent).values()
    wrapping = {each.name for chain in chains for each in _wrappers(chain)}
    nodes = [name for name in builder.nodes if name not in _NODES]
    return {
        "nodes": nodes,
        "edges": sorted([*edge] for edge in builder.edges),
        "channels": sorted(builder.channels),
        "middleware": sorted(wrapping | {name.rpartition(".")[0] for name in nodes}),
        "tools": {
            tool.name: _digest(convert_to_openai_tool(tool)["function"])
            for tool in parts.tools
            if isinstance(tool, BaseTool)
        },
        "response_format": _format(parts.response_format),
    }


def _wrappers(chain: Any) -> list[AgentMiddleware[Any, Any]]:
    """The middleware whose methods a composed handler calls, each in another inside."""
    found: list[AgentMiddleware[Any, Any]] = []
    seen: set[int] = set()
    left = [chain]
    while left:
        each = left.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        if isinstance(each, MethodType):
            if isinstance(each.__self__, AgentMiddleware):
                found.append(each.__self__)
        elif isinstance(each, FunctionType) and each.__qualname__ != "create_agent.<locals>._execute_model_sync":
            left += [cell.cell_contents for cell in each.__closure__ or () if _is_function(cell)]
            left.append(getattr(each, "__wrapped__", None))
    return found


def _is_function(cell: Any) -> bool:
    try:
        return isinstance(cell.cell_contents, FunctionType | MethodType)
    except ValueError:  # not filled yet
        return False


def _names(nodes: Any) -> list[str]:
    return ["*"] if nodes == "*" else list(nodes or ())


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()


# Back ---------------------------------------------------------------------------------------------------------------


def thaw(tree: dict[str, Any], rules: RevivalRules, code: AgentCode, settings: Mapping[str, Any], where: str) -> Graph:
    """The agent of a tree, with the code that the caller gave. `settings` go to `create_agent` as they are."""
    check_fields(tree, _FIELDS, where)
    model = revive(tree["model"], "model", rules)
    prompt = None if tree["system_prompt"] is None else revive(tree["system_prompt"], "system_prompt", rules)
    # The name of a model would do for create_agent, which then makes one that nobody allowed.
    is_model = isinstance(model, Runnable) and hasattr(model, "bind_tools")  # also one with settings bound to it
    if not is_model or not isinstance(prompt, SystemMessage | None):
        raise SnapshotCorruptError("the model or the system prompt in the content is none", where=where)
    others, config = given_back(tree["provider_tools"], where), given_back(tree["config"], where)
    if type(others) is not list or not all(type(each) is dict for each in others):
        raise SnapshotCorruptError("the tools of the provider in the content are none", where=where)
    _check_config(config, where)
    _check_names(tree, code, where)
    chosen = code.response_format
    told = tree["response_format"]
    if told is not None and chosen is None:
        if told.get("given") is not False:
            raise SnapshotInvalidError(
                "the agent answers in a format whose class is not in the snapshot",
                where=where,
                hint="restore(…, response_format=…)",
            )
        chosen = given_back(told.get("schema"), where)
    try:
        agent: Graph = create_agent(
            model,
            [*code.tools, *others],
            system_prompt=prompt,
            middleware=code.middleware,
            response_format=chosen,
            state_schema=code.state_schema,
            context_schema=code.context_schema,
            interrupt_before=tree["interrupt_before"] or None,
            interrupt_after=tree["interrupt_after"] or None,
            debug=tree["debug"],
            name=tree["name"],
            **settings,
        )
    except Exception as error:  # whatever LangChain and the middleware raise
        raise SnapshotInvalidError(f"LangChain cannot make the agent again: {error}", where=where) from error
    if not code.accept_changes:
        _check_shape(tree["shape"], _shape(agent, _parts(agent)), where)
    return agent.with_config(config)


def _check_config(config: Any, where: str) -> None:
    if type(config) is not dict or not all(isinstance(value, _CONFIG.get(key, ())) for key, value in config.items()):
        raise SnapshotCorruptError("the configuration in the content is none", where=where)
    if any(str(key).startswith("__") for key in config.get("configurable", ())):
        raise SnapshotCorruptError("the configuration in the content has what is LangGraph's own", where=where)


def _check_names(tree: dict[str, Any], code: AgentCode, where: str) -> None:
    """Say in good time what is missing. Tools may also come from middleware."""
    try:
        tools, middleware = needed(tree)
        if not all(type(name) is str for name in (*tools, *middleware)):
            raise TypeError("a name is no text")
    except (KeyError, TypeError) as error:
        raise SnapshotCorruptError("the content names no tools", where=where) from error
    had = {_called(tool) for tool in (*code.tools, *(t for m in code.middleware for t in getattr(m, "tools", ())))}
    wrapped = {getattr(each, "name", "") for each in code.middleware}
    for what, missing in (
        ("tools", [name for name in tools if name not in had]),
        ("middleware", [name for name in middleware if name not in wrapped]),
    ):
        if missing:
            raise SnapshotInvalidError(
                f"the agent has {what} that {'were' if what == 'tools' else 'was'} not given: {', '.join(missing)}",
                where=where,
                hint=f"restore(…, {what}=[{', '.join(missing)}]): code is not in a snapshot",
            )


def _called(tool: Any) -> str:
    return str(getattr(tool, "name", None) or getattr(tool, "__name__", ""))


def _check_shape(told: dict[str, Any], found: dict[str, Any], where: str) -> None:
    # Both as they are in JSON: a tuple of the one is a list of the other.
    found = strict_json.read(strict_json.write(found), where)
    if told == found:
        return
    differing = []
    for part in found:
        if told.get(part) == found[part]:
            continue
        if isinstance(found[part], dict) and isinstance(told.get(part), dict):
            was: dict[str, Any] = told[part]
            names = sorted(key for key in found[part].keys() | was.keys() if found[part].get(key) != was.get(key))
            differing.append(f"{part} ({', '.join(names)})")
        else:
            differing.append(part)
    raise SnapshotInvalidError(
        f"the agent would not be the one that was frozen; these differ: {', '.join(differing) or 'its parts'}",
        where=where,
        hint="Give the tools, middleware and schemas that it had, or accept_changes=True to go on with these",
    )
