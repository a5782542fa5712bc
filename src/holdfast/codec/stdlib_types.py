"""Handlers for types of the standard library that msgpack cannot represent."""

from __future__ import annotations

import collections
import datetime as dt
import decimal
import ipaddress
import pathlib
import re
import struct
import sys
import uuid
from typing import TYPE_CHECKING, Any

from holdfast.byte_reader import ByteReader
from holdfast.codec import msgpack
from holdfast.codec.class_lookup import is_a
from holdfast.codec.opaque import OpaqueValue
from holdfast.codec.tags import Tag
from holdfast.codec.type_handler import ClassNotLoaded, Loader, Packing, TypeHandler, Unpacking
from holdfast.errors import CorruptError, HoldfastError, TooLargeError, UnsupportedError

if TYPE_CHECKING:
    import fractions
    import zoneinfo


_MAX_COLLISIONS = 1000
_MAX_BITS = 1 << 16
"""Limits the integers of a fraction or range: reducing and dividing them takes quadratic time."""


def _check_hashes(items: list[Any], error: type[HoldfastError] = CorruptError) -> list[Any]:
    """Return the items of a set or keys of a dict. Refuses forged hash collisions, which would take forever."""
    if len(items) > _MAX_COLLISIONS and len(items) - len(set(map(hash, items))) > _MAX_COLLISIONS:
        raise error(f"more than {_MAX_COLLISIONS} keys or items of a set have the same hash as another")
    return items


def _check_size(numbers: list[int]) -> list[int]:
    if any(number.bit_length() > _MAX_BITS for number in numbers):
        raise TooLargeError(f"a fraction or range of integers with more than {_MAX_BITS} bits")
    return numbers


def dump_set(p: Packing, value: Any) -> bytes:
    return msgpack.join_array(sorted(map(p.pack, _check_hashes(list(value), UnsupportedError))))


def dump_dict(p: Packing, value: dict[Any, Any]) -> bytes:
    """Pack alternating keys and values. Plain dicts with scalar keys are native to msgpack."""
    if getattr(value, "__dict__", None):
        raise UnsupportedError(
            f"a {type(value).__name__} with attributes of its own cannot be saved",
            hint="Delete them, or register a subclass",
        )
    pairs = list(value.items())
    _check_hashes([key for key, _ in pairs], UnsupportedError)
    return p.pack([part for pair in pairs for part in pair])


def load_dict(u: Unpacking, data: bytes) -> dict[Any, Any]:
    parts = u.array(data)
    return dict(zip(_check_hashes(parts[::2]), parts[1::2], strict=True))


def dump_int(_: Packing, value: int) -> bytes:
    return value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True)


def load_int(_: Unpacking, data: bytes) -> int:
    return ByteReader(data).number(len(data), signed=True)


_COMPLEX = struct.Struct(">dd")


def load_complex(_: Unpacking, data: bytes) -> complex:
    reader = ByteReader(data, "a complex number")
    number = complex(*reader.fields(_COMPLEX))
    reader.end()
    return number


def load_fraction(u: Unpacking, data: bytes) -> fractions.Fraction:
    import fractions

    return fractions.Fraction(*_check_size(u.array(data, int, int)))


_SAFETY = {uuid.SafeUUID.unknown: b"", uuid.SafeUUID.safe: b"\x00", uuid.SafeUUID.unsafe: b"\x01"}
_SAFETIES = {mark: safety for safety, mark in _SAFETY.items()}


# datetime ---------------------------------------------------------------------------------------------------


def _dump_datetime(p: Packing, value: dt.datetime | dt.time) -> bytes:
    parts: list[Any] = [value.replace(tzinfo=None).isoformat()]
    if value.tzinfo is not None or value.fold:
        parts += [value.tzinfo, value.fold]
    return p.pack(parts)


def _datetime_parts(u: Unpacking, data: bytes) -> tuple[str, dict[str, Any]]:
    text, *rest = u.array(data)
    if not rest:
        return text, {}
    zone, fold = rest
    if type(fold) is not int:
        raise CorruptError("the fold of a stored time is not a number")
    if zone is not None and not is_a(zone, dt.tzinfo):
        raise ClassNotLoaded  # its time zone could not be revived
    return text, {"tzinfo": zone, "fold": fold}


def _load_datetime(kind: type[dt.datetime] | type[dt.time]) -> Loader:
    def load(u: Unpacking, data: bytes) -> Any:
        text, rest = _datetime_parts(u, data)
        value = kind.fromisoformat(text)
        return value.replace(**rest) if rest else value

    return load


def dump_zoneinfo(_: Packing, value: zoneinfo.ZoneInfo) -> bytes:
    if value.key is None:
        raise UnsupportedError("a ZoneInfo without a key cannot be saved", hint="Create it with ZoneInfo('Area/City')")
    return value.key.encode()


_ZONE_KEY = re.compile(r"[A-Za-z0-9_+-]+(/[A-Za-z0-9_+-]+)*")


def load_zoneinfo(_: Unpacking, data: bytes) -> zoneinfo.ZoneInfo:
    key = data.decode()
    if not _ZONE_KEY.fullmatch(key):
        raise CorruptError(f"{key!r} is not the name of a time zone")
    import zoneinfo

    try:
        return zoneinfo.ZoneInfo(key)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        raise ClassNotLoaded from None


# paths, patterns, addresses ---------------------------------------------------------------------------------

_PATHS: dict[str, type[pathlib.PurePath]] = {
    "pure posix": pathlib.PurePosixPath,
    "pure windows": pathlib.PureWindowsPath,
    "posix": pathlib.PosixPath,
    "windows": pathlib.WindowsPath,
}
_PATH_NAMES = {cls: name for name, cls in _PATHS.items()}
_FOREIGN_PATH = "posix" if sys.platform == "win32" else "windows"


def load_path(u: Unpacking, data: bytes) -> pathlib.PurePath:
    flavour, text = u.array(data, str, str)
    if flavour == _FOREIGN_PATH:
        raise ClassNotLoaded
    return _PATHS[flavour](text)


_PATTERN_FLAGS = int(re.A | re.I | re.L | re.M | re.S | re.U | re.X)


def _slow_to_compile(pattern: str | bytes, flags: int) -> bool:
    # Python expands ranges of characters that have another case one by one.
    return len(pattern) > (200 if flags & re.IGNORECASE and not pattern.isascii() else 20_000)


def dump_pattern(p: Packing, value: re.Pattern[Any]) -> bytes:
    if _slow_to_compile(value.pattern, value.flags):
        raise UnsupportedError(
            "the regular expression is too long to be saved", hint="Save its text and compile it after loading"
        )
    return p.pack([value.pattern, value.flags & _PATTERN_FLAGS])


def load_pattern(u: Unpacking, data: bytes) -> re.Pattern[Any]:
    pattern, flags = u.array(data)
    if type(pattern) not in (str, bytes) or type(flags) is not int or flags & ~_PATTERN_FLAGS:
        raise CorruptError("a stored regular expression is invalid or has unknown flags")  # re.DEBUG would print
    if _slow_to_compile(pattern, flags):
        raise ClassNotLoaded
    return re.compile(pattern, flags)


_ADDRESSES: tuple[type, ...] = (
    ipaddress.IPv4Address,
    ipaddress.IPv4Interface,
    ipaddress.IPv4Network,
    ipaddress.IPv6Address,
    ipaddress.IPv6Interface,
    ipaddress.IPv6Network,
)


def load_address(u: Unpacking, data: bytes) -> Any:
    kind, text = u.array(data, int, str)
    return _ADDRESSES[kind](text)


# collections ------------------------------------------------------------------------------------------------


def load_deque(u: Unpacking, data: bytes) -> collections.deque[Any]:
    maxlen, items = u.array(data)
    if type(items) is not list:
        raise CorruptError("a stored deque lacks its items")
    return collections.deque(items, maxlen)


def load_defaultdict(u: Unpacking, data: bytes) -> collections.defaultdict[Any, Any]:
    factory, items = u.array(data)
    if type(items) is not dict:
        raise CorruptError("a stored defaultdict lacks its items")
    if factory is not None and type(factory) is OpaqueValue:
        raise ClassNotLoaded
    return collections.defaultdict(factory, items)


def load_counter(u: Unpacking, data: bytes) -> collections.Counter[Any]:
    counter: collections.Counter[Any] = collections.Counter()
    dict.update(counter, load_dict(u, data))
    return counter


_DECIMAL = decimal.Context(capitals=1)  # independent of the thread's context

STDLIB_TYPES: tuple[TypeHandler, ...] = (
    TypeHandler(tuple, Tag.TUPLE, lambda p, value: p.pack(list(value)), lambda u, data: tuple(u.array(data))),
    TypeHandler(set, Tag.SET, dump_set, lambda u, data: set(_check_hashes(u.array(data)))),
    TypeHandler(frozenset, Tag.FROZENSET, dump_set, lambda u, data: frozenset(_check_hashes(u.array(data)))),
    TypeHandler(dict, Tag.DICT, dump_dict, load_dict),
    TypeHandler(int, Tag.INT, dump_int, load_int),
    TypeHandler(
        str,
        Tag.STR,
        lambda _, value: value.encode("utf-8", "surrogatepass"),
        lambda _, data: data.decode("utf-8", "surrogatepass"),
    ),
    TypeHandler(bytearray, Tag.BYTEARRAY, lambda _, value: bytes(value), lambda _, data: bytearray(data)),
    TypeHandler(complex, Tag.COMPLEX, lambda _, value: _COMPLEX.pack(value.real, value.imag), load_complex),
    TypeHandler(
        range,
        Tag.RANGE,
        lambda p, value: p.pack(_check_size([value.start, value.stop, value.step])),
        lambda u, data: range(*_check_size(u.array(data, int, int, int))),
    ),
    TypeHandler(
        decimal.Decimal,
        Tag.DECIMAL,
        lambda _, value: _DECIMAL.to_sci_string(value).encode(),
        lambda _, data: decimal.Decimal(data.decode("ascii")),
    ),
    TypeHandler(
        "fractions:Fraction",
        Tag.FRACTION,
        lambda p, value: p.pack(_check_size([value.numerator, value.denominator])),
        load_fraction,
    ),
    TypeHandler(
        uuid.UUID,
        Tag.UUID,
        lambda _, value: value.bytes + _SAFETY[value.is_safe],
        lambda _, data: uuid.UUID(bytes=data[:16], is_safe=_SAFETIES[data[16:]]),
    ),
    TypeHandler(dt.datetime, Tag.DATETIME, _dump_datetime, _load_datetime(dt.datetime)),
    TypeHandler(
        dt.date,
        Tag.DATE,
        lambda _, value: value.isoformat().encode(),
        lambda _, data: dt.date.fromisoformat(data.decode("ascii")),
    ),
    TypeHandler(dt.time, Tag.TIME, _dump_datetime, _load_datetime(dt.time)),
    TypeHandler(
        dt.timedelta,
        Tag.TIMEDELTA,
        lambda p, value: p.pack([value.days, value.seconds, value.microseconds]),
        lambda u, data: dt.timedelta(*u.array(data, int, int, int)),
    ),
    TypeHandler(
        dt.timezone,
        Tag.TIMEZONE,
        lambda p, value: p.pack(list(value.__getinitargs__())),
        lambda u, data: dt.timezone(*u.array(data)),
    ),
    TypeHandler("zoneinfo:ZoneInfo", Tag.ZONEINFO, dump_zoneinfo, load_zoneinfo),
    *(
        TypeHandler(cls, Tag.PATH, lambda p, value: p.pack([_PATH_NAMES[type(value)], str(value)]), load_path)
        for cls in _PATHS.values()
    ),
    TypeHandler(re.Pattern, Tag.REGEX, dump_pattern, load_pattern),
    *(
        TypeHandler(
            cls, Tag.IPADDRESS, lambda p, value: p.pack([_ADDRESSES.index(type(value)), str(value)]), load_address
        )
        for cls in _ADDRESSES
    ),
    TypeHandler(collections.deque, Tag.DEQUE, lambda p, value: p.pack([value.maxlen, list(value)]), load_deque),
    TypeHandler(
        collections.defaultdict,
        Tag.DEFAULTDICT,
        lambda p, value: p.pack([value.default_factory, dict(value)]),
        load_defaultdict,
    ),
    TypeHandler(
        collections.OrderedDict,
        Tag.ORDEREDDICT,
        dump_dict,
        lambda u, data: collections.OrderedDict(load_dict(u, data)),
    ),
    TypeHandler(collections.Counter, Tag.COUNTER, dump_dict, load_counter),
)
