"""Conversion of packed bytes to JSON, and back to the same bytes.

The JSON is built from the bytes, not from objects, so that a program without the application's classes can show and
edit everything. A value that JSON cannot represent is a *mark*: an object whose only key starts with "$", such as
`{"$tuple": [1, 2]}`. A user's dict that looks like a mark is wrapped in `{"$object": …}`. A typed value that this
release does not know, or whose payload is invalid, is `{"$ext": [tag, base64]}`.
"""

from __future__ import annotations

import functools
import math
import struct
from collections.abc import Callable
from types import NoneType
from typing import Any, ParamSpec, TypeVar

from msgspec.msgpack import Ext

from holdfast.byte_reader import ByteReader
from holdfast.codec import msgpack
from holdfast.codec.bulk_packing import SCALARS, encode
from holdfast.codec.json_types import (
    FORMS,
    MARKS,
    InvalidForm,
    JsonForm,
    canonical,
    encode_pairs,
    escape,
    from_base64,
    mark_of,
    pairs_to_json,
    parse,
    shaped_to_json,
    to_base64,
)
from holdfast.codec.tags import Tag
from holdfast.errors import CircularReferenceError, CorruptError, HoldfastError, InvalidError, TooDeepError

P = ParamSpec("P")
R = TypeVar("R")

_READABLE_DEPTH = 100
"""Typed values nested deeper than this are written as `$ext`: readers of JSON have depth limits, too."""

_MAX_DEPTH = 320
"""How deeply a tree may nest: enough for a payload of full depth at `_READABLE_DEPTH`."""


def limit_recursion(convert: Callable[P, R]) -> Callable[P, R]:
    """Make a recursive function raise `TooDeepError` instead of `RecursionError`."""

    @functools.wraps(convert)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return convert(*args, **kwargs)
        except RecursionError:
            raise TooDeepError(
                "the value is nested too deeply for the remaining stack", hint="Call with fewer functions on the stack"
            ) from None

    return run


@limit_recursion
def to_json(packed: bytes) -> Any:
    """Convert packed bytes to JSON, which `from_json` converts back to exactly the same bytes.

    Raises `CorruptError` or `TooDeepError` for bytes that `Codec.pack` did not write.
    """
    data = msgpack.inner(packed)
    value = parse(data)
    if msgpack.top(data) != packed:
        raise CorruptError("packed bytes are not in canonical form")
    return _to_json(value, 0)


@limit_recursion
def from_json(tree: Any) -> bytes:
    """Convert JSON to packed bytes.

    Raises `InvalidError`, `TooDeepError` or `CircularReferenceError` with the path to the part at fault. Does not check
    whether a class of the application accepts such fields.
    """
    reader = JsonReader()
    return msgpack.top(reader.encode(reader.value(tree)))


def is_mark(tree: dict[Any, Any]) -> bool:
    """Whether an object is a mark, or looks like one."""
    if len(tree) != 1:
        return False
    (key,) = tree
    return type(key) is str and key.startswith("$")


def fields_of(tree: Any) -> Any:
    """Return the content of a value in JSON form: of an object of a class, its fields."""
    if type(tree) is not dict or not is_mark(tree):
        return tree
    ((mark, content),) = tree.items()
    if type(content) is list and len(content) > 1 and type(content[0]) is str and type(content[1]) is dict:
        return content[1]
    return content if type(content) is dict or mark == "$tuple" else tree


# To JSON ----------------------------------------------------------------------------------------------------

_PLAIN = frozenset({str, int, bool, NoneType})


def _to_json(raw: Any, depth: int) -> Any:
    kind = type(raw)
    if kind in _PLAIN:
        return raw
    if kind is float:
        return raw if math.isfinite(raw) else {"$float": _float_text(raw)}
    if kind is bytes:
        return {"$bytes": to_base64(raw)}
    if kind is list:
        return [_to_json(item, depth + 1) for item in raw]
    if kind is dict:
        return _dict_to_json(raw, depth)
    if kind is Ext and raw.code >= 0:
        return _typed_to_json(raw.code, raw.data, depth)
    raise CorruptError("packed bytes contain a typed value that Holdfast never writes")


def _dict_to_json(raw: dict[Any, Any], depth: int) -> dict[str, Any]:
    if all(type(key) is str for key in raw):
        tree = {key: _to_json(item, depth + 1) for key, item in raw.items()}
        return {"$object": tree} if is_mark(tree) else tree
    if not SCALARS.issuperset(map(type, raw)):
        raise CorruptError("packed bytes contain a dict with a key that Holdfast never writes")
    return {"$dict": pairs_to_json(_to_json, raw.items(), depth + 1)}


def _typed_to_json(tag: int, payload: bytes, depth: int) -> dict[str, Any]:
    form = FORMS.get(tag)
    if form is not None and depth < _READABLE_DEPTH:
        try:
            if canonical(tag, payload) != msgpack.ext(tag, payload):
                raise InvalidForm
            if tag == Tag.SHAPED:
                return shaped_to_json(_to_json, payload, depth + 1)
            return {mark_of(tag): form.to_json(_to_json, payload, depth + 1)}
        except (InvalidForm, HoldfastError):
            pass
    return {"$ext": [tag, to_base64(payload)]}


_DOUBLE = struct.Struct(">d")
_NAN = bytes.fromhex("7ff8000000000000")


def _float_text(value: float) -> str:
    bits = _DOUBLE.pack(value)
    return bits.hex() if math.isnan(value) and bits != _NAN else str(value)


# From JSON --------------------------------------------------------------------------------------------------


class JsonReader:
    """Converts one tree of JSON: tracks the path, and how deeply typed values are nested."""

    def __init__(self) -> None:
        self._path: list[str] = []
        self._open: set[int] = set()
        self._nesting = 0

    def error(self, what: str, *, hint: str = "", kind: type[HoldfastError] = InvalidError) -> HoldfastError:
        """Make an error with the current path."""
        where = "".join(self._path).removeprefix(".") or "the value itself"
        return kind(what, where=where if len(where) <= 300 else f"{where[:200]} … {where[-80:]}", hint=hint)

    def encode(self, raw: Any) -> bytes:
        """Encode a payload or a whole value."""
        return self.check_depth(encode(raw))

    def check_depth(self, data: bytes) -> bytes:
        """Return packed bytes unless they are nested too deeply."""
        try:
            msgpack.check_depth(data)
        except TooDeepError:
            raise self.error(
                f"lists and dicts are nested more than {msgpack.MAX_DEPTH} deep", kind=TooDeepError
            ) from None
        return data

    def value(self, tree: Any, segment: str = "") -> Any:
        """Convert a tree to plain values and `Ext`. `segment` is its path in the tree around it.

        It recurses through as few calls as possible, so without comprehensions: that limits how deeply it can read.
        """
        self._path.append(segment)
        if len(self._path) > _MAX_DEPTH:
            raise self.error(f"the JSON is nested more than {_MAX_DEPTH} deep", kind=TooDeepError)
        kind = type(tree)
        if kind is str:
            raw = self._text(tree)
        elif kind is int:
            raw = tree if -(1 << 63) <= tree < 1 << 64 else self._mark("$int", hex(tree))
        elif kind is float or kind is bool or tree is None:
            raw = tree
        elif kind is list:
            raw = self.items(tree)
        elif kind is dict:
            raw = self._mark(*next(iter(tree.items()))) if is_mark(tree) else self.mapping(tree)
        else:
            raise self.error(f"{kind.__name__} is not a JSON type")
        self._path.pop()
        return raw

    def items(self, tree: Any) -> list[Any]:
        """Convert the items of a list."""
        if type(tree) is not list:
            raise InvalidForm
        self._enter(tree)
        raw = []
        for i, item in enumerate(tree):
            raw.append(self.value(item, f"[{i}]"))
        self._open.remove(id(tree))
        return raw

    def mapping(self, tree: Any) -> Any:
        """Convert an object or a list of pairs to a dict, or to an `Ext` if a key is not a scalar."""
        keys = self.keys(tree)
        if not all(type(key) in SCALARS for _, key, _ in keys):
            return self.typed(Tag.DICT, lambda r, _: encode_pairs(r, r.pairs(tree, keys)), tree)
        raw = dict(self.pairs(tree, keys))
        if len(raw) != len(keys):
            raise InvalidForm
        return raw

    def keys(self, tree: Any) -> list[tuple[str, Any, Any]]:
        """Return path segment, converted key and unconverted value for each entry of an object or a list of pairs."""
        keys: list[tuple[str, Any, Any]] = []
        if type(tree) is dict:
            for key, item in tree.items():
                if type(key) is not str:
                    raise self.error(f"the key {key!r} of an object is not a string")
                keys.append((f".{key}" if key.isidentifier() else f"[{key!r}]", self._text(key), item))
            return keys
        if type(tree) is not list:
            raise InvalidForm
        for i, pair in enumerate(tree):
            if type(pair) is not list or len(pair) != 2:
                raise InvalidForm
            keys.append((f"[{i}][1]", self.value(pair[0], f"[{i}][0]"), pair[1]))
        return keys

    def pairs(self, tree: Any, keys: list[tuple[str, Any, Any]]) -> list[tuple[Any, Any]]:
        """Convert the values that `keys` returned."""
        self._enter(tree)
        pairs = []
        for segment, key, item in keys:
            pairs.append((key, self.value(item, segment)))
        self._open.remove(id(tree))
        return pairs

    def typed(self, tag: int, read: Callable[[JsonReader, Any], bytes], tree: Any) -> Any:
        """Convert a typed value, whose payload `read` returns."""
        if self._nesting >= msgpack.MAX_NESTING:
            raise self.error(f"typed values are nested more than {msgpack.MAX_NESTING} deep", kind=TooDeepError)
        self._nesting += 1
        payload = read(self, tree)
        self._nesting -= 1
        try:
            return parse(canonical(tag, payload, self._nesting))
        except TooDeepError as error:
            raise self.error(error.what, kind=TooDeepError) from None

    def _mark(self, mark: str, tree: Any) -> Any:
        if mark not in _READERS:
            raise self.error(
                f"{mark} is not a marker that this release knows",
                hint='A dict whose only key starts with "$" is written as {"$object": {…}}',
            )
        read, expects = _READERS[mark]
        self._path.append(f".{mark}")
        try:
            raw = read(self, tree)
        except HoldfastError:
            raise
        except (InvalidForm, ValueError, TypeError, ArithmeticError, LookupError):
            raise self.error(f"{mark} takes {expects}") from None
        self._path.pop()
        return raw

    def _text(self, text: str) -> Any:
        try:
            text.encode()
        except UnicodeEncodeError:
            return self._mark("$str", escape(text))
        return text

    def _enter(self, tree: Any) -> None:
        if id(tree) in self._open:
            raise self.error("a value contains itself", kind=CircularReferenceError)
        self._open.add(id(tree))


def _read_float(_: JsonReader, tree: Any) -> float:
    if tree in ("inf", "-inf"):
        return float(tree)
    bits = _NAN if tree == "nan" else bytes.fromhex(tree)
    if len(bits) != _DOUBLE.size:
        raise InvalidForm
    return float(*ByteReader(bits).fields(_DOUBLE))


def _read_object(r: JsonReader, tree: Any) -> Any:
    if type(tree) is not dict:
        raise InvalidForm
    return r.mapping(tree)


def _read_ext(_: JsonReader, tree: Any) -> Ext:
    tag, text = tree
    if type(tag) is not int or not 0 <= tag <= 127:
        raise InvalidForm
    return Ext(tag, from_base64(text))


def _typed_reader(tag: int, form: JsonForm) -> tuple[Callable[[JsonReader, Any], Any], str]:
    return lambda r, tree: r.typed(tag, form.read, tree), form.expects


_READERS: dict[str, tuple[Callable[[JsonReader, Any], Any], str]] = {
    **{mark: _typed_reader(tag, form) for mark, (tag, form) in MARKS.items()},
    "$dict": (JsonReader.mapping, MARKS["$dict"][1].expects),
    "$object": (_read_object, "an object"),
    "$float": (_read_float, '"nan", "inf", "-inf" or 16 hexadecimal digits'),
    "$bytes": (lambda _, tree: from_base64(tree), "base64 text"),
    "$ext": (_read_ext, "[a tag from 0 to 127, base64 text]"),
}
"""For each mark the function that reads it, and a description of what it takes."""
