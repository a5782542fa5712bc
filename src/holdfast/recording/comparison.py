"""Comparing what a replay does with what was recorded.

Ids that a framework draws for messages are not compared: they are new in every run, and no model reads them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from difflib import unified_diff
from typing import Any

from holdfast.codec.opaque import OpaqueValue
from holdfast.codec.value_text import shorten

_DRAWN = re.compile(r"(lc_)?(run-+)?[0-9a-f]{8}(-?[0-9a-f]{4}){3}-?[0-9a-f]{12}(-\d+)?")
"""Ids that LangChain and LangGraph draw for messages."""

_MAX_LINES = 60
_MAX_TEXT = 400
_MAX_DEPTH = 40


def plain(value: Any, depth: int = 0) -> Any:
    """Return a value as JSON has it, without the ids that were drawn for messages; other objects with their fields."""
    if value is None or isinstance(value, str | int | float):
        return value
    if depth > _MAX_DEPTH:
        return "…"
    if isinstance(value, Mapping):
        return {_key(key): plain(each, depth + 1) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each, depth + 1) for each in value]
    if isinstance(value, set | frozenset):
        return sorted((plain(each, depth + 1) for each in value), key=repr)
    found = _fields_of(value)
    if found is None:
        return {"type": type(value).__name__, "value": repr(value)[:_MAX_TEXT]}
    if _is_drawn(found.get("id")):
        found.pop("id", None)
    return {"type": _name_of(value), **{name: plain(each, depth + 1) for name, each in found.items()}}


def _key(key: Any) -> str:
    return key if isinstance(key, str) else repr(key)


def _name_of(value: Any) -> str:
    """Return the name of its class, also of a value that is read without it."""
    if isinstance(value, OpaqueValue):
        return value.type_name.rpartition(":")[2].rpartition(".")[2]
    return type(value).__name__


def _fields_of(value: Any) -> dict[str, Any] | None:
    if isinstance(value, OpaqueValue):
        return value.fields or None
    if isinstance(value, BaseException):
        return {"args": list(value.args)}
    dumped = getattr(type(value), "model_fields", None)
    if isinstance(dumped, Mapping):
        extra = getattr(value, "__pydantic_extra__", None) or {}
        return {**{name: getattr(value, name, None) for name in dumped}, **extra}
    if is_dataclass(value) and not isinstance(value, type):
        return {each.name: getattr(value, each.name, None) for each in fields(value)}
    return None


def _is_drawn(id: object) -> bool:
    return id is None or (isinstance(id, str) and _DRAWN.fullmatch(id) is not None)


def _is_same(a: Any, b: Any) -> bool:
    """Return whether two values are surely equal. Quick: most are, and long chats are compared at every step."""
    kind = type(a)
    if a is b or kind is not type(b):
        return a is b
    if kind is dict:
        return a.keys() == b.keys() and all(_is_same(value, b[key]) for key, value in a.items())
    if kind in (list, tuple):
        return len(a) == len(b) and all(map(_is_same, a, b))
    if not hasattr(kind, "model_fields"):
        return kind in (str, int, float, bool, bytes) and bool(a == b)
    left, right = a.__dict__, b.__dict__
    if left.keys() != right.keys() or a.__pydantic_extra__ != b.__pydantic_extra__:
        return False
    return all(
        _is_same(value, right[name]) or (name == "id" and _is_drawn(value) and _is_drawn(right[name]))
        for name, value in left.items()
    )


def difference(recorded: Any, replayed: Any) -> str | None:
    """Return the difference of two values as a diff; None if they are equal."""
    if _is_same(recorded, replayed):
        return None
    before, after = plain(recorded), plain(replayed)
    if before == after and _text(before) == _text(after):
        return None
    lines = list(unified_diff(_text(before), _text(after), "recorded", "replayed", lineterm="", n=2))
    return "\n".join(lines[:_MAX_LINES] + (["…"] if len(lines) > _MAX_LINES else []))


def _text(value: Any) -> list[str]:
    text = json.dumps(value, indent=1, ensure_ascii=False, sort_keys=True, default=repr)
    return [shorten(line, _MAX_TEXT) for line in text.splitlines()]
