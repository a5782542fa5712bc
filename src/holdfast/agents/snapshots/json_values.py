"""Parts of a snapshot that are Holdfast's own: values in the JSON form of its codec, and objects of fixed fields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.codec import Codec, default_codec
from holdfast.codec.json_codec import from_json, to_json
from holdfast.errors import HoldfastError, SnapshotCorruptError, SnapshotUnsupportedError


def kept(value: Any, path: str, codec: Codec = default_codec) -> Any:
    """A value as a tree, in which every type comes back. Raises `SnapshotUnsupportedError` with the path."""
    try:
        return to_json(codec.pack(value))
    except HoldfastError as error:
        at = f"{path}.{error.where}" if error.where else path
        raise SnapshotUnsupportedError(error.what, where=at, hint=error.hint) from error


def given_back(tree: Any, where: str, codec: Codec = default_codec) -> Any:
    """The value of a tree that `kept` made. Raises `SnapshotCorruptError`."""
    try:
        return codec.unpack(from_json(tree))
    except HoldfastError as error:
        raise SnapshotCorruptError(f"the snapshot holds what no snapshot holds: {error}", where=where) from error


def check_fields(tree: Any, fields: Mapping[str, Any], where: str) -> None:
    """Refuse a tree that has not just these fields, of these types."""
    if type(tree) is not dict or tree.keys() != fields.keys():
        raise SnapshotCorruptError("the content is not what its kind has", where=where)
    for name, kind in fields.items():
        if not isinstance(tree[name], kind) or (kind is int and isinstance(tree[name], bool)):
            raise SnapshotCorruptError(f"{name} in the content is of a wrong type", where=where)
