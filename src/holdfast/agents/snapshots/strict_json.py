"""Read JSON of strangers strictly, and convert values to trees of JSON.

Python's own reader accepts documents that others refuse or read differently: two keys of the same name, `NaN`, numbers
of any length. A check of a document and its use must see the same values.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any, NoReturn

from holdfast.codec import Codec, default_codec
from holdfast.codec.json_codec import from_json, to_json
from holdfast.errors import HoldfastError, SnapshotCorruptError, SnapshotTooLargeError, SnapshotUnsupportedError

MAX_DEPTH = 200
"""How deeply lists and objects may nest. LangChain revives them by recursion, two calls a level."""

MAX_VALUES = 16 << 20
"""How many values a document may have: a megabyte of `[],[],[]` takes twenty in memory."""

_CONTAINER = 8
"""How many values a list or an object counts for."""

_MAX_DIGITS = 4000
# An unterminated string matches up to the end, and without backtracking: otherwise a million quotes after backslashes
# would take quadratic time.
_TEXTS = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)
_ALL_BUT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))


def read(data: bytes, where: str) -> Any:
    """Return the value of a document. Raises `SnapshotCorruptError` or `SnapshotTooLargeError`."""
    check_shape(data, where)
    try:
        return json.loads(
            data.decode("utf-8"),
            object_pairs_hook=_object,
            parse_constant=_constant,
            parse_float=_float,
            parse_int=_int,
        )
    except (ValueError, RecursionError) as error:
        raise SnapshotCorruptError(f"this is invalid JSON: {error}", where=where) from error


def write(value: Any) -> bytes:
    """Write a value as a document of one line."""
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode("utf-8")
    except UnicodeEncodeError:  # a lone surrogate, which models do write
        return json.dumps(value, allow_nan=False, separators=(",", ":")).encode("ascii")


def check_shape(data: bytes, where: str) -> None:
    """Refuse a document that nests too deeply, or has too many values, before it is parsed."""
    if data.count(b"[") + data.count(b"{") <= MAX_DEPTH and data.count(b",") <= MAX_VALUES:
        return
    bare = _TEXTS.sub(b"", data)
    brackets = bare.translate(None, _ALL_BUT_BRACKETS)
    if bare.count(b",") + _CONTAINER * (len(brackets) // 2) > MAX_VALUES:
        raise SnapshotTooLargeError(f"the content has more than {MAX_VALUES:,} values", where=where)
    depth = 0
    for bracket in brackets:
        depth += 1 if bracket in b"[{" else -1
        if depth > MAX_DEPTH:
            raise SnapshotCorruptError(f"lists and objects nest more than {MAX_DEPTH} deep", where=where)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise ValueError("an object has the same key twice")
    return value


def _constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a JSON number")


def _float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError("a number is too large")
    return value


def _int(text: str) -> int:
    if len(text) > _MAX_DIGITS:
        raise ValueError("a number has too many digits")
    return int(text)


def to_tree(value: Any, path: str, codec: Codec = default_codec) -> Any:
    """Convert a value to a tree of JSON that preserves all types. Raises `SnapshotUnsupportedError` with the path."""
    try:
        return to_json(codec.pack(value))
    except HoldfastError as error:
        at = f"{path}.{error.where}" if error.where else path
        raise SnapshotUnsupportedError(error.what, where=at, hint=error.hint) from error


def from_tree(tree: Any, where: str, codec: Codec = default_codec) -> Any:
    """Convert a tree of `to_tree` back to its value. Raises `SnapshotCorruptError`."""
    try:
        return codec.unpack(from_json(tree))
    except HoldfastError as error:
        raise SnapshotCorruptError(f"the snapshot has an invalid value: {error}", where=where) from error


def check_fields(tree: Any, fields: Mapping[str, Any], where: str) -> None:
    """Refuse a tree that does not have exactly these fields, of these types."""
    if type(tree) is not dict or tree.keys() != fields.keys():
        raise SnapshotCorruptError("the content does not have the fields of its kind", where=where)
    for name, kind in fields.items():
        if not isinstance(tree[name], kind) or (kind is int and isinstance(tree[name], bool)):
            raise SnapshotCorruptError(f"{name} in the content has the wrong type", where=where)
