"""A packed state that operations change: fields are moved as bytes, and only converted values are decoded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

from holdfast.codec import Codec, default_codec, msgpack
from holdfast.codec.tags import Tag
from holdfast.engine.model.packed_state import (
    SMALL,
    Packed,
    PackedMap,
    as_items,
    as_map,
    flatten,
    inner,
    pack_channel,
    pack_name,
    unpack,
)
from holdfast.errors import UnsupportedError

Keys: TypeAlias = tuple[str, ...]
"""A path to a field: the names from the top."""

_SCALARS = frozenset({str, int, float, bool, type(None)})
_CLASSES = (Tag.DATACLASS, Tag.ATTRS, Tag.PYDANTIC, Tag.NAMEDTUPLE)


class PackedDocument:
    """A packed state, or an item of a list in it. Fields of dicts and of instances of classes are addressed alike."""

    def __init__(self, fields: Mapping[bytes, Packed], codec: Codec = default_codec) -> None:
        self.fields: dict[bytes, Packed] = dict(fields)
        self.codec: Final = codec
        self._split: set[bytes] = set()

    def get(self, keys: Keys) -> Packed | None:
        """Return the packed value of a field; None if there is none."""
        if len(keys) == 1:
            return self.fields.get(pack_name(keys[0]))
        fields = self._open(keys[0])
        for key in keys[1:-1]:
            value = None if fields is None else fields.get(pack_name(key))
            fields = None if value is None else read_fields(value)
        return None if fields is None else fields.get(pack_name(keys[-1]))

    def _open(self, name: str) -> PackedMap | None:
        """Return the fields of a channel. A dict stays split until `close`: several operations may need it."""
        value = self.fields.get(pack_name(name))
        if isinstance(value, bytes) and (inside := as_map(value)) is not None:
            self.fields[pack_name(name)] = inside
            self._split.add(pack_name(name))
            return inside
        return None if value is None else read_fields(value)

    def close(self) -> PackedMap:
        """Return the fields, with small dicts in one piece."""
        for name in self._split:
            value = self.fields.get(name)
            if isinstance(value, dict):
                self.fields[name] = write_fields(None, value)
        return self.fields

    def has_parent(self, keys: Keys) -> bool:
        """Return whether there is a dict or an instance that has the field, or could have it."""
        value = self.get(keys[:-1]) if len(keys) > 1 else None
        return len(keys) == 1 or (value is not None and read_fields(value) is not None)

    def set(self, keys: Keys, value: Packed) -> None:
        """Set a field. Dicts on the way that are missing are created."""
        if len(keys) == 1:
            self.fields[pack_name(keys[0])] = value
            return
        self._change(keys[:-1], lambda fields: {**fields, pack_name(keys[-1]): value})

    def pop(self, keys: Keys) -> Packed | None:
        """Remove a field and return its value; None if there is none."""
        if len(keys) == 1:
            return self.fields.pop(pack_name(keys[0]), None)
        value = self.get(keys)
        if value is not None:
            name = pack_name(keys[-1])
            self._change(keys[:-1], lambda fields: {key: each for key, each in fields.items() if key != name})
        return value

    def rename(self, keys: Keys, name: str) -> None:
        """Rename a field in its place."""
        old, new = pack_name(keys[-1]), pack_name(name)
        if len(keys) == 1:
            self.fields = {new if key == old else key: each for key, each in self.fields.items()}
            return
        self._change(keys[:-1], lambda fields: {new if key == old else key: each for key, each in fields.items()})

    def value(self, packed: Packed) -> Any:
        """Decode a value."""
        return unpack(self.codec, packed)

    def pack(self, value: Any) -> Packed:
        """Encode a value."""
        if type(value) in _SCALARS:
            return self.codec.pack(value)
        return pack_channel(self.codec, "value", value)

    def _change(self, keys: Keys, change: Callable[[PackedMap], PackedMap]) -> None:
        if len(keys) == 1 and (inside := self._open(keys[0])) is not None:
            name = pack_name(keys[0])
            changed = change(dict(inside))
            value = self.fields[name]
            self.fields[name] = changed if isinstance(value, dict) else write_fields(value, changed)
            if isinstance(value, dict):
                self._split.add(name)
            return
        self.fields = _changed(self.fields, keys, change)


def _changed(fields: Mapping[bytes, Packed], keys: Keys, change: Callable[[PackedMap], PackedMap]) -> PackedMap:
    if not keys:
        return change(dict(fields))
    name = pack_name(keys[0])
    value = fields.get(name)
    if value is None:
        return {**fields, name: write_fields(None, _changed({}, keys[1:], change))}
    inside = read_fields(value)
    if inside is None:
        raise UnsupportedError(
            f"{keys[0]!r} has no fields: it is not a dict, and not an instance of a known kind of class"
        )
    return {**fields, name: write_fields(value, _changed(inside, keys[1:], change))}


def read_fields(packed: Packed) -> PackedMap | None:
    """Return the fields of a dict, or of an instance of a dataclass, attrs class, pydantic model or named tuple, or of
    a message; None for other values."""
    fields = as_map(packed)
    if fields is not None:
        return fields
    parts = _class_parts(packed)
    return None if parts is None else as_map(parts[1][parts[2]])


def write_fields(packed: Packed | None, fields: PackedMap) -> Packed:
    """Return a value with other fields, of the same kind as it was."""
    parts = None if packed is None or as_map(packed) is not None else _class_parts(packed)
    if parts is None:
        data = flatten(fields)
        return data if len(data) < SMALL else fields
    tag, items, place = parts
    old = as_map(items[place]) or {}
    if tag == Tag.SHAPED and fields.keys() != old.keys():
        raise UnsupportedError(
            "fields of a message cannot be added, removed or renamed: its class belongs to LangChain",
            hint="Convert the message as a whole",
        )
    items[place] = flatten(fields)
    if tag == Tag.PYDANTIC:
        items[2] = _fields_set(items[2], list(old), list(fields))
    data = msgpack.join_array([inner(each) for each in items])
    return data if tag == Tag.SHAPED else msgpack.ext(tag, data)


def _class_parts(packed: Packed) -> tuple[int, list[bytes], int] | None:
    """Return tag, parts, and the place of the fields among them."""
    if not isinstance(packed, bytes):
        return None
    if packed.startswith(msgpack.SHAPED_MARK):
        return Tag.SHAPED, list(map(msgpack.top, msgpack.split_array(packed))), 2
    typed = msgpack.split_ext(packed)
    if typed is None or typed[0] not in _CLASSES:
        return None
    return typed[0], list(map(msgpack.top, msgpack.split_array(typed[1]))), 1


def _fields_set(bits: bytes, old: list[bytes], new: list[bytes]) -> bytes:
    """Return which fields of a model were set, by bits in the order of its fields. New ones count as set."""
    before = default_codec.unpack(bits)
    if type(before) is not int:
        return bits
    unset = {name for place, name in enumerate(old) if not before >> place & 1}
    return default_codec.pack(sum(1 << place for place, name in enumerate(new) if name not in unset))


def read_items(packed: Packed) -> tuple[list[bytes], Callable[[list[bytes]], Packed]] | None:
    """Return the items of a list, or the values of a dict, and how to put them together again; None for others."""
    items = as_items(packed)
    if items is not None:
        return items, lambda changed: changed
    fields = as_map(packed)
    if fields is None:
        return None
    names = list(fields)
    return [flatten(each) for each in fields.values()], lambda changed: write_fields(
        None, dict(zip(names, changed, strict=True))
    )
