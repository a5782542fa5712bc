"""A packed state that operations change: fields are moved as bytes, and only converted values are decoded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, TypeAlias

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
from holdfast.errors import HoldfastError, UnsupportedError

Keys: TypeAlias = tuple[str, ...]
"""A path to a field: the names from the top."""

_SCALARS = frozenset({str, int, float, bool, type(None)})
_PAIRS = (Tag.DICT, Tag.ORDEREDDICT, Tag.COUNTER)
_DICTS = (*_PAIRS, Tag.DEFAULTDICT)
_CLASSES = (Tag.DATACLASS, Tag.ATTRS, Tag.PYDANTIC, Tag.NAMEDTUPLE, Tag.DEFAULTDICT)
_CLOSED = (Tag.PYDANTIC_V1, Tag.REGISTERED)
_NONE, _EMPTY = b"\xc0", b"\x80"


class PackedDocument:
    """A packed state, or an item of a list in it. Fields of dicts and of instances of classes are addressed alike."""

    def __init__(
        self, fields: Mapping[bytes, Packed], codec: Codec = default_codec, instance: Packed | None = None
    ) -> None:
        self.fields: dict[bytes, Packed] = dict(fields)
        self.codec: Final = codec
        self._instance = instance
        """The instance of a class whose fields these are, if it is not a state or a dict."""
        self._split: set[bytes] = set()

    def get(self, keys: Keys) -> Packed | None:
        """Return the packed value of a field; None if there is none."""
        if len(keys) == 1:
            return self.fields.get(pack_name(keys[0]))
        fields = self._open(keys[0])
        for key in keys[1:-1]:
            value = None if fields is None else fields.get(pack_name(key))
            fields = None if value is None else _fields_inside(value, key)
        return None if fields is None else fields.get(pack_name(keys[-1]))

    def _open(self, name: str) -> PackedMap | None:
        """Return the fields of a channel. A dict stays split until `close`: several operations may need it."""
        value = self.fields.get(pack_name(name))
        if isinstance(value, bytes) and (inside := as_map(value)) is not None:
            self.fields[pack_name(name)] = inside
            self._split.add(pack_name(name))
            return inside
        return None if value is None else _fields_inside(value, name)

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

    def is_taken(self, keys: Keys) -> bool:
        """Return whether a field has a value. One that its class has by default has none: a field that was removed from
        an instance is there again as soon as the instance was loaded, if the class still declares it."""
        value = self.get(keys)
        if value is None:
            return False
        parent = self._instance if len(keys) == 1 else self.get(keys[:-1])
        if parent is None or as_map(parent) is not None:
            return True
        name, fields = pack_name(keys[-1]), self.fields if len(keys) == 1 else read_fields(parent) or {}
        try:
            rest = write_fields(parent, {key: each for key, each in fields.items() if key != name})
            default = (read_fields(self.codec.pack(self.value(rest))) or {}).get(name)
        except HoldfastError:
            return True
        return default is None or flatten(default) != flatten(value)

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
        raise _without_fields(keys[0])
    return {**fields, name: write_fields(value, _changed(inside, keys[1:], change))}


def _fields_inside(value: Packed, name: str) -> PackedMap | None:
    """Return the fields of a value; None if it can have none. One whose fields cannot be changed is refused: an
    operation on them must not pass for done."""
    fields = read_fields(value)
    if fields is None and isinstance(value, bytes) and (msgpack.split_ext(value) or (0,))[0] in _CLOSED:
        raise _without_fields(name)
    return fields


def _without_fields(name: str) -> UnsupportedError:
    return UnsupportedError(f"{name!r} has no fields: it is not a dict, and not an instance of a known kind of class")


class _Typed(NamedTuple):
    """A value of more than plain msgpack that has fields: its tag, its parts, and the fields among them."""

    tag: int
    parts: list[bytes]
    fields: PackedMap

    def kind(self) -> list[bytes]:
        """Return what it is besides its fields, and their names in order, as a list of plain packed values."""
        names: PackedMap = dict.fromkeys(self.fields, _NONE)
        return [default_codec.pack(int(self.tag)), _pack_pairs(names), *self._with(_EMPTY)]

    def _with(self, fields: bytes) -> list[bytes]:
        parts = list(self.parts)
        if parts:
            parts[_places(self.tag)] = fields
        return parts

    def write(self, fields: PackedMap) -> bytes:
        """Return the value with other fields."""
        if self.tag in _PAIRS:
            pairs = [part for key, each in fields.items() for part in (key, inner(flatten(each)))]
            plain = self.tag == Tag.DICT and not any(map(msgpack.is_ext, fields))
            return flatten(fields) if plain else msgpack.ext(self.tag, msgpack.join_array(pairs))
        parts = self._with(_pack_pairs(fields))
        if self.tag == Tag.PYDANTIC:
            parts[2] = _fields_set(parts[2], list(self.fields), list(fields))
        data = msgpack.join_array([inner(each) for each in parts])
        return data if self.tag == Tag.SHAPED else msgpack.ext(self.tag, data)


def _places(tag: int) -> int:
    """Return the place of the fields among the parts of a value."""
    return 2 if tag == Tag.SHAPED else 1


def read_fields(packed: Packed) -> PackedMap | None:
    """Return the fields of a dict of any kind, or of an instance of a dataclass, attrs class, pydantic model or named
    tuple, or of a message; None for other values."""
    fields = as_map(packed)
    if fields is not None:
        return fields
    typed = _read_typed(packed)
    return None if typed is None else typed.fields


def write_fields(packed: Packed | None, fields: PackedMap) -> Packed:
    """Return a value with other fields, of the same kind as it was."""
    typed = None if packed is None or as_map(packed) is not None else _read_typed(packed)
    if typed is None:
        data = _pack_pairs(fields)
        return data if len(data) < SMALL or msgpack.is_ext(data) else fields
    if typed.tag == Tag.SHAPED and fields.keys() != typed.fields.keys():
        raise UnsupportedError(
            "fields of a message cannot be added, removed or renamed: its class belongs to LangChain",
            hint="Convert the message as a whole",
        )
    return typed.write(fields)


def read_kind(packed: Packed) -> list[bytes] | None:
    """Return what a value is besides its fields, such as its class, as a list of plain values; None for a dict."""
    typed = None if as_map(packed) is not None else _read_typed(packed)
    return None if typed is None else typed.kind()


def write_kind(kind: Packed | None, fields: PackedMap) -> Packed:
    """Return a value of a kind that `read_kind` returned, with its fields in the order that they had."""
    tag, names, *parts = (None if kind is None else as_items(kind)) or (_NONE, _EMPTY)
    number, order = default_codec.unpack(tag), read_fields(names)
    if type(number) is not int or order is None:
        return write_fields(None, fields)
    ordered = {name: fields[name] for name in order if name in fields}
    return _Typed(number, parts, order).write({**ordered, **fields})


def _pack_pairs(fields: PackedMap) -> bytes:
    """Return a packed dict, whatever its keys are."""
    return _Typed(Tag.DICT, [], fields).write(fields)


def _read_typed(packed: Packed) -> _Typed | None:
    if not isinstance(packed, bytes):
        return None
    if packed.startswith(msgpack.SHAPED_MARK):
        parts = list(map(msgpack.top, msgpack.split_array(packed)))
        return _Typed(Tag.SHAPED, parts, as_map(parts[2]) or {})
    tag, payload = msgpack.split_ext(packed) or (0, b"")
    if tag in _PAIRS:
        pairs = msgpack.split_array(payload)
        return _Typed(tag, [], dict(zip(pairs[::2], map(msgpack.top, pairs[1::2]), strict=True)))
    if tag in _CLASSES:
        parts = list(map(msgpack.top, msgpack.split_array(payload)))
        return _Typed(tag, parts, read_fields(parts[1]) or {})
    return None


def _fields_set(bits: bytes, old: list[bytes], new: list[bytes]) -> bytes:
    """Return which fields of a model were set, by bits in the order of its fields. New ones count as set."""
    before = default_codec.unpack(bits)
    if type(before) is not int:
        return bits
    unset = {name for place, name in enumerate(old) if not before >> place & 1}
    return default_codec.pack(sum(1 << place for place, name in enumerate(new) if name not in unset))


class Items(NamedTuple):
    """The items of a list, or the values of a dict."""

    values: list[bytes]
    names: list[bytes] | None
    """The packed keys of a dict."""
    join: Callable[[list[bytes]], Packed]
    """Puts as many values together again."""


def read_items(packed: Packed) -> Items | None:
    """Return the items of a list, tuple or deque, or the values of a dict; None for other values."""
    values = as_items(packed)
    if values is not None:
        return Items(values, None, lambda changed: changed)
    typed = None if as_map(packed) is not None else _read_typed(packed)
    if typed is not None and typed.tag not in _DICTS:
        return None
    fields = read_fields(packed)
    if fields is not None:
        names = list(fields)
        return Items(
            [flatten(each) for each in fields.values()],
            names,
            lambda changed: write_fields(packed, dict(zip(names, changed, strict=True))),
        )
    tag, payload = (msgpack.split_ext(packed) if isinstance(packed, bytes) else None) or (0, b"")
    if tag == Tag.TUPLE:
        return Items(msgpack.split_items(payload), None, lambda changed: msgpack.ext(tag, _pack_list(changed)))
    if tag == Tag.DEQUE:
        most, inside = msgpack.split_array(payload)
        return Items(
            msgpack.split_items(inside),
            None,
            lambda changed: msgpack.ext(tag, msgpack.join_array([most, _pack_list(changed)])),
        )
    return None


def _pack_list(items: list[bytes]) -> bytes:
    return msgpack.join_array(list(map(inner, items)))
