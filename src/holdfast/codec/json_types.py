"""How the payload of each typed value looks in JSON: what stands inside its mark, and how it is read back.

`json_codec` walks the tree; here is one entry per tag. Both directions refuse, with `Unfit`, whatever `pack` would
not have written, so that each value has one form and a forged payload is shown as it is instead of failing.
"""

from __future__ import annotations

import base64
import datetime as dt
import re
import struct
import uuid
from collections.abc import Callable, Iterable, Sequence
from types import NoneType
from typing import Any, NamedTuple, Protocol

from msgspec import DecodeError, ValidationError
from msgspec.msgpack import Decoder, Encoder, Ext

from holdfast.codec import msgpack
from holdfast.codec.known_classes import KNOWN_CLASSES
from holdfast.codec.packer import Packer
from holdfast.codec.registry import Registry
from holdfast.codec.stdlib_types import KINDS
from holdfast.codec.tags import Tag
from holdfast.codec.type_handler import ClassNotLoaded, TypeHandler
from holdfast.codec.unpacker import Unpacker
from holdfast.errors import CorruptError, TooDeepError


class JsonReading(Protocol):
    """A reading of JSON under way, as seen by what reads one mark."""

    def value(self, tree: Any, place: str = "") -> Any:
        """The tree as something to encode."""
        ...

    def items(self, tree: Any) -> list[Any]:
        """The values of a JSON list."""
        ...

    def mapping(self, tree: Any) -> Any:
        """The dict that an object or a list of pairs stands for."""
        ...

    def keys(self, tree: Any) -> list[tuple[str, Any, Any]]:
        """For each entry of an object or a list of pairs: its place, its key, and its value, which is not yet read."""
        ...

    def pairs(self, tree: Any, keys: list[tuple[str, Any, Any]]) -> list[tuple[Any, Any]]:
        """The keys with their values."""
        ...

    def encode(self, raw: Any) -> bytes:
        """A payload as packed bytes."""
        ...

    def checked(self, data: bytes) -> bytes:
        """The same packed bytes, if they are no deeper than packed bytes may be."""
        ...


SCALARS = frozenset({str, int, float, bool, NoneType, bytes})
"""What msgpack has a form for, other than lists and dicts."""

Show = Callable[[Any, int], Any]
"""Turns a decoded value, so deep in the tree, into JSON."""


class Unfit(Exception):
    """A payload, or the JSON inside a mark, is not what its type holds."""


class JsonForm(NamedTuple):
    """How one tag's payload is shown and read, and what to tell someone who wrote something else."""

    expects: str
    show: Callable[[Show, bytes, int], Any]
    read: Callable[[JsonReading, Any], bytes]


encode = Encoder().encode
_decode = Decoder().decode
_NOBODYS = Registry()  # a user's registered functions are not called here
_UNLIMITED = 1 << 62
_UNHASHABLE = frozenset(
    {Tag.SET, Tag.DICT, Tag.BYTEARRAY, Tag.DEQUE, Tag.DEFAULTDICT, Tag.ORDEREDDICT, Tag.COUNTER, Tag.NDARRAY}
)
_LEAVES: dict[int, TypeHandler] = {
    kind.tag: kind for kind in KINDS if kind.tag not in _UNHASHABLE | {Tag.TUPLE, Tag.FROZENSET}
}


def parse(data: bytes) -> Any:
    """Packed bytes, decoded with the typed values inside left as `Ext`; `CorruptError` if they would encode
    otherwise."""
    msgpack.check_depth(data)
    try:
        value = _decode(data)
    except (DecodeError, ValidationError, UnicodeDecodeError) as error:
        raise CorruptError(f"not the packed form of a value: {error}") from None
    if encode(value) != data:
        raise CorruptError("packed bytes are not in the one form that Holdfast writes")
    return value


def canonical(tag: int, payload: bytes, nesting: int = 0) -> bytes:
    """What `pack` writes, so deep inside other typed values, for what this tag and payload stand for.

    Only values of Python's own that hold nothing of the user's are looked at; any other is taken as it is.
    """
    kind = _LEAVES.get(tag)
    if kind is None:
        return msgpack.ext(tag, payload)
    packer = Packer(_NOBODYS, _UNLIMITED, nesting)
    try:
        return packer.pack(kind.load(_unpacker(), payload))
    except ClassNotLoaded:  # another machine may have that time zone, or that kind of path
        return msgpack.ext(tag, payload)
    except TooDeepError:
        raise
    except Exception as error:
        raise Unfit from error


def encode_keys(keys: Sequence[Any]) -> list[bytes]:
    """Keys of a dict or items of a set, each encoded, if no two are the same and each can be one."""
    encoded = list(map(encode, keys))
    if len(set(encoded)) != len(keys) or not all(map(_is_hashable, keys)):
        raise Unfit
    return encoded


def to_base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def from_base64(text: Any) -> bytes:
    return base64.b64decode(text, validate=True)


def escape(text: str) -> str:
    """Text with lone surrogates, which most JSON tools refuse, as text without: `\\ud800`."""
    return text.replace("\\", "\\\\").encode("utf-8", "backslashreplace").decode()


def mark_of(tag: int) -> str:
    """The mark of a tag's values."""
    return f"${Tag(tag).name.lower()}"


def _packer() -> Packer:
    return Packer(_NOBODYS, _UNLIMITED)


def _unpacker() -> Unpacker:
    return Unpacker(_NOBODYS, _UNLIMITED)


def _is_hashable(raw: Any) -> bool:
    return not (type(raw) in (list, dict) or (type(raw) is Ext and raw.code in _UNHASHABLE))


def _string(tree: Any) -> str:
    if type(tree) is not str:
        raise Unfit
    return tree


def _sized(tree: Any, *sizes: int) -> list[Any]:
    """A JSON list of one of these lengths."""
    if type(tree) is not list or len(tree) not in sizes:
        raise Unfit
    return tree


# Payloads that are one packed value ---------------------------------------------------------------------------


def _whole(expects: str, fits: Callable[[Any], bool]) -> JsonForm:
    def fitting(raw: Any) -> Any:
        if not fits(raw):
            raise Unfit
        return raw

    return JsonForm(
        expects,
        lambda show, payload, depth: show(fitting(parse(payload)), depth),
        lambda r, tree: r.encode(fitting(r.value(tree))),
    )


def _list(expects: str) -> JsonForm:
    return _whole(expects, lambda raw: type(raw) is list)


def _parts(expects: str, *kinds: type | tuple[type, ...]) -> JsonForm:
    """A list of as many parts as kinds, each of its kind."""
    return _whole(
        expects, lambda raw: type(raw) is list and len(raw) == len(kinds) and all(map(isinstance, raw, kinds))
    )


def _empty(payload: bytes) -> None:
    if payload:
        raise Unfit


def _read_empty(_: JsonReading, tree: Any) -> bytes:
    if tree is not None:
        raise Unfit
    return b""


_EMPTY = JsonForm("null", lambda _show, payload, _depth: _empty(payload), _read_empty)
_ANY = _whole("what its payload holds", lambda _: True)
_OBJECT = _parts("[class name, fields]", str, dict)


# Sets and dicts -----------------------------------------------------------------------------------------------


def _show_set(show: Show, payload: bytes, depth: int) -> Any:
    raw = parse(payload)
    if type(raw) is not list:
        raise Unfit
    encoded = encode_keys(raw)
    if encoded != sorted(encoded):
        raise Unfit
    return show(raw, depth)


def _read_set(r: JsonReading, tree: Any) -> bytes:
    return r.checked(msgpack.join_array(sorted(encode_keys(r.items(tree)))))


_SET = JsonForm("a list of different values, none of them a list, dict or set", _show_set, _read_set)


def _show_mapping(show: Show, payload: bytes, depth: int) -> Any:
    raw = parse(payload)
    if type(raw) is not list or len(raw) % 2:
        raise Unfit
    keys, items = raw[::2], raw[1::2]
    encode_keys(keys)
    if all(type(key) is str for key in keys):
        return {key: show(item, depth + 1) for key, item in zip(keys, items, strict=True)}
    return show_pairs(show, zip(keys, items, strict=True), depth)


def _read_mapping(r: JsonReading, tree: Any) -> bytes:
    return encode_pairs(r, r.pairs(tree, r.keys(tree)))


def encode_pairs(r: JsonReading, pairs: list[tuple[Any, Any]]) -> bytes:
    """The payload of a dict whose keys are not all plain."""
    encode_keys([key for key, _ in pairs])
    return r.encode([part for pair in pairs for part in pair])


def show_pairs(show: Show, pairs: Iterable[tuple[Any, Any]], depth: int) -> list[list[Any]]:
    """Keys and values as a list of pairs."""
    return [[show(key, depth + 2), show(item, depth + 2)] for key, item in pairs]


_MAPPING = JsonForm("an object, or a list of pairs [key, value] with different keys", _show_mapping, _read_mapping)


def _show_dict(show: Show, payload: bytes, depth: int) -> Any:
    raw = parse(payload)
    if type(raw) is list and SCALARS.issuperset(map(type, raw[::2])):
        raise Unfit  # it would be read as a plain dict
    return _show_mapping(show, payload, depth)


# Python's own values ------------------------------------------------------------------------------------------


def _text(expects: str) -> JsonForm:
    """A payload that is text."""
    return JsonForm(expects, lambda _show, payload, _depth: payload.decode(), lambda _, tree: bytes(tree, "utf-8"))


def _show_int(_: Show, payload: bytes, _depth: int) -> str:
    value = int.from_bytes(payload, "big", signed=True)
    return str(value) if len(payload) <= 128 else hex(value)  # Python refuses to read very long decimals


def _read_int(_: JsonReading, tree: Any) -> bytes:
    value = int(tree, 0)
    return value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True)


_ESCAPED = re.compile(r"\\(?:(\\)|u(d[89a-f][0-9a-f]{2}))?")


def _read_str(_: JsonReading, tree: Any) -> bytes:
    def char(found: re.Match[str]) -> str:
        return "\\" if found[1] else chr(int(found[2], 16))

    return _ESCAPED.sub(char, tree).encode("utf-8", "surrogatepass")


_COMPLEX = struct.Struct(">dd")


def _read_complex(r: JsonReading, tree: Any) -> bytes:
    parts = r.items(_sized(tree, 2))
    if not {int, float}.issuperset(map(type, parts)):
        raise Unfit
    return _COMPLEX.pack(*parts)


def _moment(expects: str, tag: Tag, kind: type[dt.datetime] | type[dt.time]) -> JsonForm:
    """A date and time or a time of day: ISO text where that says it all, else `[text, zone, fold]`."""

    def show(show_value: Show, payload: bytes, depth: int) -> Any:
        raw = parse(payload)
        if len(raw) == 1:
            return raw[0]
        text, zone, fold = raw
        if type(zone) is Ext and zone.code == Tag.TIMEZONE and fold == 0:
            offset = _show_timezone(show_value, bytes(zone.data), depth)
            if type(offset) is str:
                return text + offset
        return show_value(raw, depth)

    def read(r: JsonReading, tree: Any) -> bytes:
        if type(tree) is str:
            return _LEAVES[tag].dump(_packer(), kind.fromisoformat(tree))
        return r.encode(r.items(tree))

    return JsonForm(expects, show, read)


def _zone(offset: str) -> dt.tzinfo:
    zone = dt.time.fromisoformat(f"00:00:00{offset}").tzinfo
    if zone is None:
        raise Unfit
    return zone


def _show_timezone(show: Show, payload: bytes, depth: int) -> Any:
    zone = _LEAVES[Tag.TIMEZONE].load(_unpacker(), payload)
    offset = dt.time(tzinfo=zone).isoformat().removeprefix("00:00:00")
    if _zone(offset) != dt.timezone(zone.utcoffset(None)):
        raise Unfit  # some releases of Python misread offsets of less than a second
    name = parse(payload)[1:]
    return [offset, *show(name, depth)] if name else offset


def _read_timezone(r: JsonReading, tree: Any) -> bytes:
    offset, *name = [tree] if type(tree) is str else _sized(tree, 2)
    return r.encode([parse(_packer().pack(_zone(offset).utcoffset(None))), *map(r.value, name)])


_ADDRESSES = {kind.type.__name__: kind for kind in KINDS if kind.tag is Tag.IPADDRESS}


def _show_address(_: Show, payload: bytes, _depth: int) -> list[str]:
    address = _LEAVES[Tag.IPADDRESS].load(_unpacker(), payload)
    return [type(address).__name__, str(address)]


def _read_address(_: JsonReading, tree: Any) -> bytes:
    name, text = _sized(tree, 2)
    return _ADDRESSES[name].dump(_packer(), _ADDRESSES[name].type(_string(text)))


# Classes ------------------------------------------------------------------------------------------------------

_MODEL_TYPES: tuple[Any, ...] = (str, dict, (int, Ext), (dict, NoneType), object, list)
_MODEL_OPTIONS = ("unset", "extra", "private", "strangers")


def _mask(names: Sequence[str], unset: Sequence[str]) -> Any:
    """Which fields were set, as bits. Over 64 of them are a typed value."""
    missing = set(unset)
    return parse(_packer().pack(int("".join("01"[name not in missing] for name in reversed(names)) or "0", 2)))


def _show_model(show: Show, payload: bytes, depth: int) -> Any:
    raw = parse(payload)
    if type(raw) is not list or not 5 <= len(raw) <= 6 or not all(map(isinstance, raw, _MODEL_TYPES)):
        raise Unfit
    ref, fields, mask, extra = raw[:4]
    names = (*fields, *(extra or ()))
    bits = mask if isinstance(mask, int) else int.from_bytes(mask.data, "big", signed=True)
    unset = [name for name, bit in zip(names, f"{bits:b}".zfill(len(names))[::-1], strict=False) if bit == "0"]
    if not {str}.issuperset(map(type, names)) or encode(_mask(names, unset)) != encode(mask):
        raise Unfit
    options = {
        name: show(part, depth + 2)
        for name, part in zip(_MODEL_OPTIONS, (unset or None, *raw[3:]), strict=False)
        if part is not None
    }
    shown = [ref, show(fields, depth + 1)]
    return [*shown, options] if options else shown


def _read_model(r: JsonReading, tree: Any) -> bytes:
    ref, fields, options = [*r.items(_sized(tree, 2, 3)), {}][:3]
    if type(fields) is not dict or type(options) is not dict or not options.keys() <= set(_MODEL_OPTIONS):
        raise Unfit
    unset = options.get("unset", [])
    extra = options.get("extra")
    names = (*fields, *(extra or ()))
    if type(unset) is not list or not set(unset) <= set(names):
        raise Unfit
    strangers = [options["strangers"]] if "strangers" in options else []
    parts = [ref, fields, _mask(names, unset), extra, options.get("private"), *strangers]
    if not all(map(isinstance, parts, _MODEL_TYPES)):
        raise Unfit
    return r.encode(parts)


_MODEL = JsonForm(
    '[class name, fields] or [class name, fields, {"unset": names, "extra": …, "private": …, "strangers": names}]',
    _show_model,
    _read_model,
)


def _shape_mark(ref: str) -> str:
    return "$" + ref.rpartition(":")[2].lstrip("_")


_KNOWN: dict[str, dict[frozenset[str], int]] = {}
for _number, _shape in KNOWN_CLASSES.items():
    _KNOWN.setdefault(_shape_mark(_shape.ref), {})[frozenset(_shape.names)] = _number


def show_shaped(show: Show, payload: bytes, depth: int) -> dict[str, Any]:
    """A value of a well-known class under its own name, or as `$shaped` if this release does not know it."""
    raw = parse(payload)
    if type(raw) is not list or len(raw) != 3 or raw[0] is not None:
        raise Unfit
    _, number, fields = raw
    shape = KNOWN_CLASSES.get(number) if type(number) is int else None
    if shape is None or type(fields) is not dict or fields.keys() != set(shape.names):
        return {mark_of(Tag.SHAPED): show([number, fields], depth)}
    return {_shape_mark(shape.ref): {name: show(value, depth + 1) for name, value in fields.items()}}


def _read_shaped(r: JsonReading, tree: Any) -> bytes:
    return r.encode([None, *r.items(_sized(tree, 2))])


def _known(shapes: dict[frozenset[str], int]) -> JsonForm:
    def read(r: JsonReading, tree: Any) -> bytes:
        if type(tree) is not dict:
            raise Unfit
        return r.encode([None, shapes[frozenset(tree)], r.mapping(tree)])

    names = " or ".join(", ".join(KNOWN_CLASSES[number].names) for number in shapes.values())
    return JsonForm(f"an object with the fields {names}", show_shaped, read)


# The table ----------------------------------------------------------------------------------------------------

FORMS: dict[int, JsonForm] = dict.fromkeys((tag for tag in Tag if tag >= Tag.NDARRAY), _ANY) | {
    Tag.TUPLE: _list("a list"),
    Tag.SET: _SET,
    Tag.FROZENSET: _SET,
    Tag.DICT: _MAPPING._replace(show=_show_dict),
    Tag.INT: JsonForm("a whole number as text, decimal or 0x…", _show_int, _read_int),
    Tag.STR: JsonForm(
        r"text with \\ for a backslash and \ud800 for a lone surrogate",
        lambda _show, payload, _depth: escape(payload.decode("utf-8", "surrogatepass")),
        _read_str,
    ),
    Tag.BYTEARRAY: JsonForm(
        "base64 text", lambda _show, payload, _depth: to_base64(payload), lambda _, tree: from_base64(tree)
    ),
    Tag.COMPLEX: JsonForm(
        "[real, imaginary]",
        lambda show, payload, depth: show(list(_COMPLEX.unpack(payload)), depth),
        _read_complex,
    ),
    Tag.RANGE: _list("[start, stop, step]"),
    Tag.DECIMAL: _text("a decimal number as text"),
    Tag.UUID: JsonForm(
        "a UUID as text",
        lambda _show, payload, _depth: str(uuid.UUID(bytes=payload)),
        lambda _, tree: uuid.UUID(_string(tree)).bytes,
    ),
    Tag.DATETIME: _moment("ISO text, or [ISO text without zone, zone, fold]", Tag.DATETIME, dt.datetime),
    Tag.DATE: _text("ISO text, as 2024-12-31"),
    Tag.TIME: _moment("ISO text, or [ISO text without zone, zone, fold]", Tag.TIME, dt.time),
    Tag.TIMEDELTA: _list("[days, seconds, microseconds]"),
    Tag.TIMEZONE: JsonForm('an offset as "+01:00", or [offset, name]', _show_timezone, _read_timezone),
    Tag.ZONEINFO: _text("the name of a time zone, as Europe/Berlin"),
    Tag.PATH: _list('["posix", "windows", "pure posix" or "pure windows", the path as text]'),
    Tag.REGEX: _list("[pattern, flags]"),
    Tag.DEQUE: _parts("[length limit or null, items]", (int, NoneType), list),
    Tag.DEFAULTDICT: _parts("[factory or null, dict]", object, (dict, Ext)),
    Tag.ORDEREDDICT: _MAPPING,
    Tag.COUNTER: _MAPPING,
    Tag.IPADDRESS: JsonForm("[class name, as IPv4Address, and the address as text]", _show_address, _read_address),
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
    Tag.SHAPED: JsonForm("[number, fields]", show_shaped, _read_shaped),
    Tag.NAT: _EMPTY,
    Tag.PANDAS_NA: _EMPTY,
}

MARKS: dict[str, tuple[int, JsonForm]] = {mark_of(tag): (tag, form) for tag, form in FORMS.items()} | {
    mark: (Tag.SHAPED, _known(shapes)) for mark, shapes in _KNOWN.items()
}
"""For every mark of a typed value its tag and its form."""
