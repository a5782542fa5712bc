"""The middleware of an agent, and its settings, so that a restored agent can be compared with the original.

LangChain keeps middleware nowhere: it is found through its methods, which the nodes and the composed handlers of the
agent call. Its settings are the arguments of its constructor, as far as it stores them under their names. Values that
are code are described by their names; secrets and objects without a description by their class.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import inspect
import re
from collections.abc import Iterable, Mapping
from types import FunctionType, MethodType
from typing import Any

from langchain.agents.middleware import AgentMiddleware
from langchain_core.tools import BaseTool
from langchain_core.utils.function_calling import convert_to_openai_tool
from pydantic import BaseModel, SecretBytes, SecretStr

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
