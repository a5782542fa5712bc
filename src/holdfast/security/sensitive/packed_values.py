"""Packed values: searching their texts and replacing some, without creating objects.

Names of classes, numbers, dates, arrays and binary data are not searched. `bytes` are searched if they are text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, TypeAlias

from msgspec.msgpack import Ext, encode

from holdfast.byte_reader import ByteReader
from holdfast.codec import msgpack
from holdfast.codec.tags import Tag
from holdfast.engine.model.packed_state import POINTER
from holdfast.security.sensitive.detector import Detector, parse_formats
from holdfast.security.sensitive.formats import CONTAINERS

Path: TypeAlias = tuple[str | int, ...]

ReplaceText: TypeAlias = Callable[[Path, str, str], str]
"""Returns the text to store, given the path, the name of the field, and the text."""

_ITEMS = frozenset({Tag.TUPLE, Tag.SET, Tag.FROZENSET})
_SETS = frozenset({Tag.SET, Tag.FROZENSET})
_PAIRS = frozenset({Tag.DICT, Tag.ORDEREDDICT, Tag.COUNTER})
_PARTS: dict[int, tuple[int, ...]] = {
    **dict.fromkeys((Tag.DATACLASS, Tag.ATTRS, Tag.NAMEDTUPLE, Tag.EXCEPTION, Tag.REGISTERED), (1,)),
    **dict.fromkeys((Tag.PYDANTIC, Tag.PYDANTIC_V1), (1, 3, 4)),
    **dict.fromkeys((Tag.DEQUE, Tag.DEFAULTDICT), (1,)),
    Tag.SHAPED: (2,),
}
"""The parts of typed values that are the user's."""

_SHORTEST_KEY = 6
"""Shorter keys of dicts are not searched."""

_CONTROL = frozenset(map(chr, range(32))) - frozenset("\t\n\r")


def texts_of(packed: bytes, name: str = "") -> list[tuple[str, str]]:
    """Return all texts of a packed value, with the names of their fields."""
    found: list[tuple[str, str]] = []
    if not packed.startswith(POINTER):
        _collect(_parse(packed)[0], name, found)
    return found


def replace_texts(packed: bytes, path: Path, name: str, replace: ReplaceText, *, in_bytes: bool = True) -> bytes:
    """Return a packed value with other texts; with those in `bytes` as they are, if these are not to be changed."""
    raw, mark = _parse(packed)
    return mark + encode(_replaced(raw, path, name, replace if in_bytes else _TextsOnly(replace)))


def _parse(packed: bytes) -> tuple[Any, bytes]:
    """Decode a value, and return what marks its form. A message is decoded to the parts of its typed value."""
    mark = msgpack.ESCAPE if packed.startswith(msgpack.ESCAPE) else b""
    is_shaped = packed.startswith(msgpack.SHAPED_MARK)
    data = packed[len(mark) :]
    raw = msgpack.parse(data)
    return (_Shaped(raw) if is_shaped else raw), mark


class _TextsOnly:
    """Replaces texts, but not those in `bytes`."""

    def __init__(self, replace: ReplaceText) -> None:
        self._replace = replace

    def __call__(self, path: Path, name: str, text: str, /) -> str:
        return self._replace(path, name, text)


class _Shaped(list[Any]):
    """The parts of a message."""


def _collect(raw: Any, name: str, found: list[tuple[str, str]]) -> None:
    kind = type(raw)
    if kind is str:
        found.append((name, raw))
    elif kind is dict:
        for key, item in raw.items():
            if type(key) is str:
                if len(key) >= _SHORTEST_KEY:
                    found.append(("", key))
                _collect(item, _name_below(name, key), found)
            else:
                _collect(item, name, found)
    elif kind is list:
        for item in raw:
            _collect(item, name, found)
    elif kind is bytes:
        text = _text_of(raw)
        if text is not None:
            found.append((name, text))
    elif kind is _Shaped:
        _collect(raw[2], name, found)
    elif kind is Ext:
        for item in _inside(raw):
            _collect(item, name, found)


def _inside(typed: Ext) -> Iterator[Any]:
    """Yield the parts of a typed value that are the user's."""
    code = typed.code
    if code == Tag.STR:
        yield bytes(typed.data).decode("utf-8", "replace")
    elif code in _ITEMS or code in _PARTS:
        parts = msgpack.parse(bytes(typed.data))
        if type(parts) is list:
            yield from parts if code in _ITEMS else [parts[place] for place in _PARTS[code] if place < len(parts)]
    elif code in _PAIRS:
        parts = msgpack.parse(bytes(typed.data))
        if type(parts) is list:
            yield {_key(key): item for key, item in zip(parts[::2], parts[1::2], strict=False)}


def _key(key: Any) -> str:
    return key if type(key) is str else repr(key)


def _name_below(name: str, key: Any) -> str:
    """Return the name of the field of a value in a dict: its key, unless all that is in the dict is a secret."""
    return key if type(key) is str and name not in CONTAINERS else name


def _text_of(data: bytes) -> str | None:
    """Return the text that bytes are; None if they are binary."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return None
    return None if _CONTROL.intersection(text) else text


def _replaced(raw: Any, path: Path, name: str, replace: ReplaceText) -> Any:
    kind = type(raw)
    if kind is str:
        return replace(path, name, raw)
    if kind is dict:
        entries = {}
        for key, item in raw.items():
            # The path of the value has the key as it is stored: it must not have what is replaced.
            new = replace((*path, "(key)"), "", key) if type(key) is str else key
            entries[new] = _replaced(item, (*path, _key(new)), _name_below(name, key), replace)
        return entries
    if kind is list:
        return [_replaced(item, (*path, place), name, replace) for place, item in enumerate(raw)]
    if kind is bytes:
        text = None if isinstance(replace, _TextsOnly) else _text_of(raw)
        return raw if text is None else replace(path, name, text).encode()
    if kind is _Shaped:
        return [*raw[:2], _replaced(raw[2], path, name, replace), *raw[3:]]
    return _replaced_typed(raw, path, name, replace) if kind is Ext else raw


def _replaced_typed(typed: Ext, path: Path, name: str, replace: ReplaceText) -> Any:
    code, data = typed.code, bytes(typed.data)
    if code == Tag.STR:
        text = ByteReader(data, "a packed text").text(data, "surrogatepass")
        new = replace(path, name, text)
        try:
            new.encode()
        except UnicodeEncodeError:
            return Ext(code, new.encode("utf-8", "surrogatepass"))
        return new
    parts = msgpack.parse(data) if code in _ITEMS or code in _PARTS or code in _PAIRS else None
    if type(parts) is not list:
        return typed
    if code in _ITEMS:
        parts = [_replaced(item, (*path, place), name, replace) for place, item in enumerate(parts)]
        if code in _SETS:
            unique = sorted({encode(item) for item in parts})
            return Ext(code, msgpack.join_array(unique))
    elif code in _PARTS:
        parts = [
            _replaced(item, path, name, replace) if place in _PARTS[code] else item for place, item in enumerate(parts)
        ]
    else:
        pairs = zip(parts[::2], parts[1::2], strict=False)
        parts = []
        for key, item in pairs:
            new = _replaced(key, (*path, "(key)"), "", replace)
            label = new if type(new) is str else "(key)"
            parts += [new, _replaced(item, (*path, label), _name_below(name, _key(key)), replace)]
    return Ext(code, encode(parts))


# Value redaction ------------------------------------------------------------------------------------------------------
#
# Redaction of recorded values, where no policy says how: what looks sensitive is replaced, and cannot be restored.


@lru_cache(1)
def _detector() -> Detector:
    return Detector(parse_formats("all"))


def redact_values(packed: bytes) -> bytes:
    """Return a packed value without credentials and personal data."""
    return replace_texts(packed, (), "", lambda _, name, text: _redact(name, text))


def _redact(name: str, text: str) -> str:
    for start, end, format_ in reversed([each[:3] for each in _detector().find_in_field(name, text)]):
        text = f"{text[:start]}[redacted:{format_}]{text[end:]}"
    return text
