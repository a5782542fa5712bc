"""The JSON form of each typed value's payload, one entry per tag. `json_codec` walks the tree.

Both directions raise `InvalidForm` for whatever `pack` would not have written, so that each value has one form, and a
forged payload is written as `$ext`.
"""

from __future__ import annotations

import base64
import datetime as dt
import re
import struct
import uuid
from collections.abc import Callable, Iterable, Sequence
from types import NoneType
from typing import Any, Protocol

from msgspec.msgpack import Ext

from holdfast._named_tuple import NamedTuple
from holdfast.codec import msgpack
from holdfast.codec.bulk_packing import SCALARS, encode
from holdfast.codec.packer import Packer
from holdfast.codec.registry import Registry
from holdfast.codec.stdlib_types import STDLIB_TYPES, dump_int, load_complex, load_int
from holdfast.codec.tags import KNOWN_CLASSES, Tag
from holdfast.codec.type_handler import ClassNotLoaded, TypeHandler
from holdfast.codec.unpacker import Unpacker
from holdfast.errors import CorruptError, TooDeepError


class JsonReading(Protocol):
    """The part of `JsonReader` that the forms use."""

    def value(self, tree: Any, segment: str = "") -> Any: ...
    def items(self, tree: Any) -> list[Any]: ...
    def mapping(self, tree: Any) -> Any: ...
    def keys(self, tree: Any) -> list[tuple[str, Any, Any]]: ...
    def pairs(self, tree: Any, keys: list[tuple[str, Any, Any]]) -> list[tuple[Any, Any]]: ...
    def encode(self, raw: Any) -> bytes: ...
    def check_depth(self, data: bytes) -> bytes: ...


ToJson = Callable[[Any, int], Any]
"""Converts a decoded value at a depth in the tree to JSON."""


class InvalidForm(Exception):
    """A payload, or the JSON in a mark, is not valid for its type."""


class JsonForm(NamedTuple):
    """The conversions of one tag's payload, and a description of its JSON for error messages."""

    expects: str
    to_json: Callable[[ToJson, bytes, int], Any]
    read: Callable[[JsonReading, Any], bytes]


_EMPTY_REGISTRY = Registry()  # no registered functions are called here
_UNLIMITED = 1 << 62
_UNHASHABLE = frozenset(
    {Tag.SET, Tag.DICT, Tag.BYTEARRAY, Tag.DEQUE, Tag.DEFAULTDICT, Tag.ORDEREDDICT, Tag.COUNTER, Tag.NDARRAY}
)
_LEAVES: dict[int, TypeHandler] = {
    handler.tag: handler for handler in STDLIB_TYPES if handler.tag not in _UNHASHABLE | {Tag.TUPLE, Tag.FROZENSET}
}


def parse(data: bytes) -> Any:
    """Decode packed bytes, with typed values as `Ext`. Raises `CorruptError` if they are not in canonical form."""
    value = msgpack.parse(data)
    if encode(value) != data:
        raise CorruptError("packed bytes are not in canonical form")
    return value


def canonical(tag: int, payload: bytes, nesting: int = 0) -> bytes:
    """Return the bytes that `pack` would write for a typed value, nested this deep in others.

    Only values of the standard library that contain no other values are checked.
    """
    handler = _LEAVES.get(tag)
    if handler is None:
        return msgpack.ext(tag, payload)
    packer = Packer(_EMPTY_REGISTRY, _UNLIMITED, nesting)
    try:
        return packer.pack(handler.load(_unpacker(), payload))
    except ClassNotLoaded:  # another machine may have this time zone or kind of path
        return msgpack.ext(tag, payload)
    except TooDeepError:
        raise
    except Exception as error:
        raise InvalidForm from error


def encode_keys(keys: Sequence[Any]) -> list[bytes]:
    """Encode keys of a dict or items of a set, which must be hashable and different."""
    encoded = list(map(encode, keys))
    if len(set(encoded)) != len(keys) or not all(map(_is_hashable, keys)):
        raise InvalidForm
    return encoded


def to_base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def from_base64(text: Any) -> bytes:
    return base64.b64decode(text, validate=True)


def escape(text: str) -> str:
    """Escape lone surrogates, which most JSON tools refuse, as `\\ud800`."""
    return text.replace("\\", "\\\\").encode("utf-8", "backslashreplace").decode()


def mark_of(tag: int) -> str:
    return f"${Tag(tag).name.lower()}"


def _packer() -> Packer:
    return Packer(_EMPTY_REGISTRY, _UNLIMITED)


def _unpacker() -> Unpacker:
    return Unpacker(_EMPTY_REGISTRY, _UNLIMITED)


def _is_hashable(raw: Any) -> bool:
    return not (type(raw) in (list, dict) or (type(raw) is Ext and raw.code in _UNHASHABLE))


def _string(tree: Any) -> str:
    if type(tree) is not str:
        raise InvalidForm
    return tree


def _check_length(tree: Any, *sizes: int) -> list[Any]:
    """Return a JSON list if it has one of these lengths."""
    if type(tree) is not list or len(tree) not in sizes:
        raise InvalidForm
    return tree


# Payloads that are one packed value -------------------------------------------------------------------------


def _whole(expects: str, is_valid: Callable[[Any], bool]) -> JsonForm:
    def check(raw: Any) -> Any:
        if not is_valid(raw):
            raise InvalidForm
        return raw

    return JsonForm(
        expects,
        lambda to_json, payload, depth: to_json(check(parse(payload)), depth),
        lambda r, tree: r.encode(check(r.value(tree))),
    )


def _list(expects: str) -> JsonForm:
    return _whole(expects, lambda raw: type(raw) is list)


def _parts(expects: str, *kinds: type | tuple[type, ...]) -> JsonForm:
    """Make the form of a list with parts of these types."""
    return _whole(
        expects, lambda raw: type(raw) is list and len(raw) == len(kinds) and all(map(isinstance, raw, kinds))
    )


def _empty(payload: bytes) -> None:
    if payload:
        raise InvalidForm


def _read_empty(_: JsonReading, tree: Any) -> bytes:
    if tree is not None:
        raise InvalidForm
    return b""


_EMPTY = JsonForm("null", lambda _to_json, payload, _depth: _empty(payload), _read_empty)
_ANY = _whole("the content of its payload", lambda _: True)
_OBJECT = _parts("[class name, fields]", str, dict)


# Sets and dicts ---------------------------------------------------------------------------------------------


def _set_to_json(to_json: ToJson, payload: bytes, depth: int) -> Any:
    raw = parse(payload)
    if type(raw) is not list:
        raise InvalidForm
    encoded = encode_keys(raw)
    if encoded != sorted(encoded):
        raise InvalidForm
    return to_json(raw, depth)


_SET = JsonForm(
    "a list of different values, none of them a list, dict or set",
    _set_to_json,
    lambda r, tree: r.check_depth(msgpack.join_array(sorted(encode_keys(r.items(tree))))),
)


def _mapping_to_json(to_json: ToJson, payload: bytes, depth: int) -> Any:
    raw = parse(payload)
    if type(raw) is not list or len(raw) % 2:
        raise InvalidForm
    keys, items = raw[::2], raw[1::2]
    encode_keys(keys)
    if all(type(key) is str for key in keys):
        return {key: to_json(item, depth + 1) for key, item in zip(keys, items, strict=True)}
    return pairs_to_json(to_json, zip(keys, items, strict=True), depth)


def encode_pairs(r: JsonReading, pairs: list[tuple[Any, Any]]) -> bytes:
    """Encode the payload of a dict whose keys are not all scalars."""
    encode_keys([key for key, _ in pairs])
    return r.encode([part for pair in pairs for part in pair])


def pairs_to_json(to_json: ToJson, pairs: Iterable[tuple[Any, Any]], depth: int) -> list[list[Any]]:
    """Convert keys and values to a list of pairs."""
    return [[to_json(key, depth + 2), to_json(item, depth + 2)] for key, item in pairs]


_MAPPING = JsonForm(
    "an object, or a list of pairs [key, value] with different keys",
    _mapping_to_json,
    lambda r, tree: encode_pairs(r, r.pairs(tree, r.keys(tree))),
)


def _dict_to_json(to_json: ToJson, payload: bytes, depth: int) -> Any:
    raw = parse(payload)
    if type(raw) is list and SCALARS.issuperset(map(type, raw[::2])):
        raise InvalidForm  # it would be read as a plain dict
    return _mapping_to_json(to_json, payload, depth)


# Values of the standard library -----------------------------------------------------------------------------


def _text(expects: str) -> JsonForm:
    """Make the form of a payload that is text."""
    return JsonForm(expects, lambda _to_json, payload, _depth: payload.decode(), lambda _, tree: bytes(tree, "utf-8"))


def _int_to_json(_: ToJson, payload: bytes, _depth: int) -> str:
    value = load_int(_unpacker(), payload)
    return str(value) if len(payload) <= 128 else hex(value)  # Python refuses to read very long decimals


_ESCAPED = re.compile(r"\\(?:(\\)|u(d[89a-f][0-9a-f]{2}))?")


def _read_str(_: JsonReading, tree: Any) -> bytes:
    def char(match: re.Match[str]) -> str:
        return "\\" if match[1] else chr(int(match[2], 16))

    return _ESCAPED.sub(char, tree).encode("utf-8", "surrogatepass")


_COMPLEX = struct.Struct(">dd")


def _complex_parts(payload: bytes) -> list[float]:
    number = load_complex(_unpacker(), payload)
    return [number.real, number.imag]


def _read_complex(r: JsonReading, tree: Any) -> bytes:
    parts = r.items(_check_length(tree, 2))
    if not {int, float}.issuperset(map(type, parts)):
        raise InvalidForm
    return _COMPLEX.pack(*parts)


def _datetime_form(expects: str, tag: Tag, kind: type[dt.datetime] | type[dt.time]) -> JsonForm:
    """Make the form of a datetime or time: ISO text if that is exact, else `[text, zone, fold]`."""

    def show(to_json: ToJson, payload: bytes, depth: int) -> Any:
        raw = parse(payload)
        if len(raw) == 1:
            return raw[0]
        text, zone, fold = raw
        if type(zone) is Ext and zone.code == Tag.TIMEZONE and fold == 0:
            offset = _timezone_to_json(to_json, bytes(zone.data), depth)
            if type(offset) is str:
                return text + offset
        return to_json(raw, depth)

    def read(r: JsonReading, tree: Any) -> bytes:
        if type(tree) is str:
            return _LEAVES[tag].dump(_packer(), kind.fromisoformat(tree))
        return r.encode(r.items(tree))

    return JsonForm(expects, show, read)


def _parse_offset(offset: str) -> dt.tzinfo:
    zone = dt.time.fromisoformat(f"00:00:00{offset}").tzinfo
    if zone is None:
        raise InvalidForm
    return zone


def _timezone_to_json(to_json: ToJson, payload: bytes, depth: int) -> Any:
    zone = _LEAVES[Tag.TIMEZONE].load(_unpacker(), payload)
    offset = dt.time(tzinfo=zone).isoformat().removeprefix("00:00:00")
    if _parse_offset(offset) != dt.timezone(zone.utcoffset(None)):
        raise InvalidForm  # some releases of Python misread offsets of less than a second
    name = parse(payload)[1:]
    return [offset, *to_json(name, depth)] if name else offset


def _read_timezone(r: JsonReading, tree: Any) -> bytes:
    offset, *name = [tree] if type(tree) is str else _check_length(tree, 2)
    return r.encode([parse(_packer().pack(_parse_offset(offset).utcoffset(None))), *map(r.value, name)])


_ADDRESSES = {
    handler.type.__name__: (handler.type, handler.dump)
    for handler in STDLIB_TYPES
    if handler.tag is Tag.IPADDRESS and isinstance(handler.type, type)
}


def _address_to_json(_: ToJson, payload: bytes, _depth: int) -> list[str]:
    address = _LEAVES[Tag.IPADDRESS].load(_unpacker(), payload)
    return [type(address).__name__, str(address)]


def _read_address(_: JsonReading, tree: Any) -> bytes:
    name, text = _check_length(tree, 2)
    address, dump = _ADDRESSES[name]
    return dump(_packer(), address(_string(text)))


# Classes ----------------------------------------------------------------------------------------------------

_MODEL_TYPES: tuple[Any, ...] = (str, dict, (int, Ext), (dict, NoneType), object, list)
_MODEL_OPTIONS = ("unset", "extra", "private", "strangers")


def _mask(names: Sequence[str], unset: Sequence[str]) -> Any:
    """Return the fields that were set as bits. Over 64 of them are a typed value."""
    missing = set(unset)
    return parse(_packer().pack(int("".join("01"[name not in missing] for name in reversed(names)) or "0", 2)))


def _model_to_json(to_json: ToJson, payload: bytes, depth: int) -> Any:
    raw = parse(payload)
    if type(raw) is not list or not 5 <= len(raw) <= 6 or not all(map(isinstance, raw, _MODEL_TYPES)):
        raise InvalidForm
    ref, fields, mask, extra = raw[:4]
    names = (*fields, *(extra or ()))
    bits = mask if isinstance(mask, int) else load_int(_unpacker(), bytes(mask.data))
    unset = [name for name, bit in zip(names, f"{bits:b}".zfill(len(names))[::-1], strict=False) if bit == "0"]
    if not {str}.issuperset(map(type, names)) or encode(_mask(names, unset)) != encode(mask):
        raise InvalidForm
    options = {
        name: to_json(part, depth + 2)
        for name, part in zip(_MODEL_OPTIONS, (unset or None, *raw[3:]), strict=False)
        if part is not None
    }
    tree = [ref, to_json(fields, depth + 1)]
    return [*tree, options] if options else tree


def _read_model(r: JsonReading, tree: Any) -> bytes:
    ref, fields, options = [*r.items(_check_length(tree, 2, 3)), {}][:3]
    if type(fields) is not dict or type(options) is not dict or not options.keys() <= set(_MODEL_OPTIONS):
        raise InvalidForm
    unset = options.get("unset", [])
    extra = options.get("extra")
    names = (*fields, *(extra or ()))
    if type(unset) is not list or not set(unset) <= set(names):
        raise InvalidForm
    strangers = [options["strangers"]] if "strangers" in options else []
    parts = [ref, fields, _mask(names, unset), extra, options.get("private"), *strangers]
    if not all(map(isinstance, parts, _MODEL_TYPES)):
        raise InvalidForm
    return r.encode(parts)


_MODEL = JsonForm(
    '[class name, fields] or [class name, fields, {"unset": names, "extra": …, "private": …, "strangers": names}]',
    _model_to_json,
    _read_model,
)


def _known_mark(ref: str) -> str:
    return "$" + ref.rpartition(":")[2].lstrip("_")


_KNOWN: dict[str, dict[frozenset[str], int]] = {}
for _number, _class in KNOWN_CLASSES.items():
    _KNOWN.setdefault(_known_mark(_class.ref), {})[frozenset(_class.names)] = _number


def shaped_to_json(to_json: ToJson, payload: bytes, depth: int) -> dict[str, Any]:
    """Convert a value of a well-known class to a mark of its name, or `$shaped` if this release does not know it."""
    raw = parse(payload)
    if type(raw) is not list or len(raw) != 3 or raw[0] is not None:
        raise InvalidForm
    _, number, fields = raw
    known = KNOWN_CLASSES.get(number) if type(number) is int else None
    if known is None or type(fields) is not dict or fields.keys() != set(known.names):
        return {mark_of(Tag.SHAPED): to_json([number, fields], depth)}
    return {_known_mark(known.ref): {name: to_json(value, depth + 1) for name, value in fields.items()}}


def _known_form(numbers: dict[frozenset[str], int]) -> JsonForm:
    def read(r: JsonReading, tree: Any) -> bytes:
        if type(tree) is not dict:
            raise InvalidForm
        return r.encode([None, numbers[frozenset(tree)], r.mapping(tree)])

    names = " or ".join(", ".join(KNOWN_CLASSES[number].names) for number in numbers.values())
    return JsonForm(f"an object with the fields {names}", shaped_to_json, read)


# The table --------------------------------------------------------------------------------------------------

FORMS: dict[int, JsonForm] = dict.fromkeys((tag for tag in Tag if tag >= Tag.NDARRAY), _ANY) | {
    Tag.TUPLE: _list("a list"),
    Tag.SET: _SET,
    Tag.FROZENSET: _SET,
    Tag.DICT: _MAPPING._replace(to_json=_dict_to_json),
    Tag.INT: JsonForm(
        "a whole number as text, decimal or 0x…", _int_to_json, lambda _, tree: dump_int(_packer(), int(tree, 0))
    ),
    Tag.STR: JsonForm(
        r"text with \\ for a backslash and \ud800 for a lone surrogate",
        lambda _to_json, payload, _depth: escape(payload.decode("utf-8", "surrogatepass")),
        _read_str,
    ),
    Tag.BYTEARRAY: JsonForm(
        "base64 text", lambda _to_json, payload, _depth: to_base64(payload), lambda _, tree: from_base64(tree)
    ),
    Tag.COMPLEX: JsonForm(
        "[real, imaginary]",
        lambda to_json, payload, depth: to_json(_complex_parts(payload), depth),
        _read_complex,
    ),
    Tag.RANGE: _list("[start, stop, step]"),
    Tag.DECIMAL: _text("a decimal number as text"),
    Tag.UUID: JsonForm(
        "a UUID as text",
        lambda _to_json, payload, _depth: str(uuid.UUID(bytes=payload)),
        lambda _, tree: uuid.UUID(_string(tree)).bytes,
    ),
    Tag.DATETIME: _datetime_form("ISO text, or [ISO text without zone, zone, fold]", Tag.DATETIME, dt.datetime),
    Tag.DATE: _text("ISO text, as 2024-12-31"),
    Tag.TIME: _datetime_form("ISO text, or [ISO text without zone, zone, fold]", Tag.TIME, dt.time),
    Tag.TIMEDELTA: _list("[days, seconds, microseconds]"),
    Tag.TIMEZONE: JsonForm('an offset as "+01:00", or [offset, name]', _timezone_to_json, _read_timezone),
    Tag.ZONEINFO: _text("the name of a time zone, as Europe/Berlin"),
    Tag.PATH: _list('["posix", "windows", "pure posix" or "pure windows", the path as text]'),
    Tag.REGEX: _list("[pattern, flags]"),
    Tag.DEQUE: _parts("[length limit or null, items]", (int, NoneType), list),
    Tag.DEFAULTDICT: _parts("[factory or null, dict]", object, (dict, Ext)),
    Tag.ORDEREDDICT: _MAPPING,
    Tag.COUNTER: _MAPPING,
    Tag.IPADDRESS: JsonForm("[class name, as IPv4Address, and the address as text]", _address_to_json, _read_address),
    Tag.FRACTION: _list("[numerator, denominator]"),
    Tag.DATACLASS: _OBJECT,
    Tag.ATTRS: _OBJECT,
    Tag.PYDANTIC: _MODEL,
    Tag.PYDANTIC_V1: _MODEL,
    Tag.NAMEDTUPLE: _OBJECT,
    Tag.ENUM: _parts("[class name, member's name]", str, str),
    Tag.FLAG: _parts("[class name, value]", str, (int, Ext)),
    Tag.EXCEPTION: _OBJECT,
    Tag.REFERENCE: _whole("the name of a function or class", lambda raw: type(raw) is str),
    Tag.REGISTERED: _parts("[name, what its dump function returned]", str, object),
    Tag.SHAPED: JsonForm(
        "[number, fields]",
        shaped_to_json,
        lambda r, tree: r.encode([None, *r.items(_check_length(tree, 2))]),
    ),
    Tag.NAT: _EMPTY,
    Tag.PANDAS_NA: _EMPTY,
}

MARKS: dict[str, tuple[int, JsonForm]] = {mark_of(tag): (tag, form) for tag, form in FORMS.items()} | {
    mark: (Tag.SHAPED, _known_form(numbers)) for mark, numbers in _KNOWN.items()
}
"""The tag and form of each mark."""
