"""The parts of a snapshot in the JSON form of Holdfast's codec, and checks of their fields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.codec import Codec, default_codec
from holdfast.codec.json_codec import from_json, to_json
from holdfast.errors import HoldfastError, SnapshotCorruptError, SnapshotUnsupportedError


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
            raise SnapshotCorruptError(f"{name} in the content is of a wrong type", where=where)
