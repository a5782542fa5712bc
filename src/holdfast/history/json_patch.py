"""Applying JSON Patch (RFC 6902) as far as differences use it: test, add, remove, replace.

The `test` here is strict: `1`, `1.0` and `true` are three values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.json import encode

from holdfast.errors import ConflictError


def apply_patch(tree: Any, operations: Sequence[Mapping[str, Any]]) -> Any:
    """The tree that the patch makes of this one, which is changed. `ConflictError` if it is not one that the patch
    fits."""
    root = {"": tree}
    for operation in operations:
        op, path = operation["op"], operation["path"]
        *stem, last = ["", *map(_token, path.split("/")[1:])]
        node: Any = root
        for token in stem:
            node = _child(node, token, path)
        if op == "add":
            _add(node, last, operation["value"], path)
            continue
        now = _child(node, last, path)
        if op == "test":
            if encode(now) != encode(operation["value"]):
                raise _unfit("what is there is not what is to change", path)
        elif op == "remove":
            del node[_key(node, last, path)]
        else:
            node[_key(node, last, path)] = operation["value"]
    return root[""]


def _token(text: str) -> str:
    return text.replace("~1", "/").replace("~0", "~")


def _key(node: Any, token: str, path: str) -> Any:
    if type(node) is dict and token in node:
        return token
    if type(node) is list and token.isdecimal() and int(token) < len(node):
        return int(token)
    raise _unfit("there is nothing to change", path)


def _child(node: Any, token: str, path: str) -> Any:
    return node[_key(node, token, path)]


def _add(node: Any, token: str, value: Any, path: str) -> None:
    if type(node) is dict:
        if token in node:
            raise _unfit("there is something where a value is to be added", path)
        node[token] = value
    elif type(node) is list and token.isdecimal() and int(token) <= len(node):
        node.insert(int(token), value)
    else:
        raise _unfit("there is no place for a value that is to be added", path)


def _unfit(what: str, path: str) -> ConflictError:
    return ConflictError(f"the patch does not fit this state: {what}", where=path or "the state itself")
