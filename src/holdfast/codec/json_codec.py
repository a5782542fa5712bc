"""Packed bytes as JSON, and back to the same bytes.

The JSON is made from the bytes and not from live objects, so a program without the application's classes can show
and edit everything. What JSON has a form for is written as it is. Everything else is a *mark*: an object whose only
key starts with "$", such as `{"$tuple": [1, 2]}`. A dict of the user's that looks like a mark stands inside
`{"$object": …}`. A typed value that this release does not know, or whose payload is not what its type holds, is
`{"$ext": [tag, base64]}`.
"""

from __future__ import annotations

import functools
import math
import struct
from collections.abc import Callable
from types import NoneType
from typing import Any, ParamSpec, TypeVar

from msgspec.msgpack import Ext

from holdfast.codec import msgpack
from holdfast.codec.json_types import (
    FORMS,
    MARKS,
    SCALARS,
    JsonForm,
    Unfit,
    canonical,
    encode,
    encode_pairs,
    escape,
    from_base64,
    mark_of,
    parse,
    show_pairs,
    show_shaped,
    to_base64,
)
from holdfast.codec.tags import Tag
from holdfast.errors import CircularReferenceError, CorruptError, HoldfastError, InvalidError, TooDeepError

P = ParamSpec("P")
R = TypeVar("R")

_READABLE_DEPTH = 100
"""Typed values deeper than this in the JSON are left as `$ext`: those who read JSON have limits of their own."""

_MAX_DEPTH = 320
"""How deep a tree is read: what is written for a payload of full depth just above `_READABLE_DEPTH`, and some."""


def guarded(convert: Callable[P, R]) -> Callable[P, R]:
    """The same function, raising `TooDeepError` where the caller has left it too little of the stack."""

    @functools.wraps(convert)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return convert(*args, **kwargs)
        except RecursionError:
            raise TooDeepError(
                "the value nests too deeply to be converted here", hint="Call from fewer functions"
            ) from None

    return run


@guarded
def to_json(packed: bytes) -> Any:
    """Packed bytes as a tree of JSON values, from which `from_json` makes exactly the same bytes.

    Raises `CorruptError` or `TooDeepError` for bytes that `Codec.pack` did not write.
    """
    data = msgpack.inner(packed)
    value = parse(data)
    if msgpack.top(data) != packed:
        raise CorruptError("packed bytes are not in the one form that Holdfast writes")
    return _show(value, 0)


@guarded
def from_json(tree: Any) -> bytes:
    """The packed bytes that a tree of JSON values stands for.

    Raises `InvalidError`, `TooDeepError` or `CircularReferenceError` with the path to the part at fault. What is not
    checked is whether a class of the application takes such fields: that is known only where the class is.
    """
    reader = JsonReader()
    return msgpack.top(reader.encode(reader.value(tree)))


def is_mark(tree: dict[Any, Any]) -> bool:
    """Whether an object is a mark, or a dict that would be taken for one."""
    if len(tree) != 1:
        return False
    (key,) = tree
    return type(key) is str and key.startswith("$")


# To JSON ------------------------------------------------------------------------------------------------------

_PLAIN = frozenset({str, int, bool, NoneType})


def _show(raw: Any, depth: int) -> Any:
    kind = type(raw)
    if kind in _PLAIN:
        return raw
    if kind is float:
        return raw if math.isfinite(raw) else {"$float": _float_text(raw)}
    if kind is bytes:
        return {"$bytes": to_base64(raw)}
    if kind is list:
        return [_show(item, depth + 1) for item in raw]
    if kind is dict:
        return _show_dict(raw, depth)
    if kind is Ext and raw.code >= 0:
        return _show_typed(raw.code, raw.data, depth)
    raise CorruptError("packed bytes hold a typed value that no release writes")


def _show_dict(raw: dict[Any, Any], depth: int) -> dict[str, Any]:
    if all(type(key) is str for key in raw):
        shown = {key: _show(item, depth + 1) for key, item in raw.items()}
        return {"$object": shown} if is_mark(shown) else shown
    if not SCALARS.issuperset(map(type, raw)):
        raise CorruptError("packed bytes hold a dict with a key that no release writes")
    return {"$dict": show_pairs(_show, raw.items(), depth + 1)}


def _show_typed(tag: int, payload: bytes, depth: int) -> dict[str, Any]:
    form = FORMS.get(tag)
    if form is not None and depth < _READABLE_DEPTH:
        try:
            if canonical(tag, payload) != msgpack.ext(tag, payload):
                raise Unfit
            if tag == Tag.SHAPED:
                return show_shaped(_show, payload, depth + 1)
            return {mark_of(tag): form.show(_show, payload, depth + 1)}
        except (Unfit, HoldfastError):
            pass
    return {"$ext": [tag, to_base64(payload)]}


_DOUBLE = struct.Struct(">d")
_NAN = bytes.fromhex("7ff8000000000000")


def _float_text(value: float) -> str:
    bits = _DOUBLE.pack(value)
    return bits.hex() if math.isnan(value) and bits != _NAN else str(value)


# From JSON ----------------------------------------------------------------------------------------------------


class JsonReader:
    """One reading: where in the tree it is, and inside of how many typed values."""

    def __init__(self) -> None:
        self._path: list[str] = []
        self._open: set[int] = set()
        self._nesting = 0

    def bad(self, what: str, *, hint: str = "", error: type[HoldfastError] = InvalidError) -> HoldfastError:
        """An error about the place where the reading is."""
        where = "".join(self._path).removeprefix(".") or "the value itself"
        return error(what, where=where if len(where) <= 300 else f"{where[:200]} … {where[-80:]}", hint=hint)

    def encode(self, raw: Any) -> bytes:
        """A payload, or the value as a whole, as packed bytes."""
        return self.checked(encode(raw))

    def checked(self, data: bytes) -> bytes:
        """The same packed bytes, if they are no deeper than packed bytes may be."""
        try:
            msgpack.check_depth(data)
        except TooDeepError:
            raise self.bad(
                f"lists and dicts are nested more than {msgpack.MAX_DEPTH} deep", error=TooDeepError
            ) from None
        return data

    def value(self, tree: Any, place: str = "") -> Any:
        """The tree as something to encode: plain values and `Ext`. `place` is where it stands in what is being read.

        It comes back to itself through as few calls as possible, so without comprehensions: how deep it can read
        depends on that.
        """
        self._path.append(place)
        if len(self._path) > _MAX_DEPTH:
            raise self.bad(f"the JSON is nested more than {_MAX_DEPTH} deep", error=TooDeepError)
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
            raise self.bad(f"{kind.__name__} is no type of JSON")
        self._path.pop()
        return raw

    def items(self, tree: Any) -> list[Any]:
        """The values of a JSON list."""
        if type(tree) is not list:
            raise Unfit
        self._enter(tree)
        raw = []
        for i, item in enumerate(tree):
            raw.append(self.value(item, f"[{i}]"))
        self._open.remove(id(tree))
        return raw

    def mapping(self, tree: Any) -> Any:
        """The dict that an object or a list of pairs stands for: plain if its keys all are."""
        keys = self.keys(tree)
        if not all(type(key) in SCALARS for _, key, _ in keys):
            return self.typed(Tag.DICT, lambda r, _: encode_pairs(r, r.pairs(tree, keys)), tree)
        raw = dict(self.pairs(tree, keys))
        if len(raw) != len(keys):
            raise Unfit
        return raw

    def keys(self, tree: Any) -> list[tuple[str, Any, Any]]:
        """For each entry of an object or a list of pairs: its place, its key, and its value, which is not yet read."""
        keys: list[tuple[str, Any, Any]] = []
        if type(tree) is dict:
            for key, item in tree.items():
                if type(key) is not str:
                    raise self.bad(f"the key {key!r} of an object is not a string")
                keys.append((f".{key}" if key.isidentifier() else f"[{key!r}]", self._text(key), item))
            return keys
        if type(tree) is not list:
            raise Unfit
        for i, pair in enumerate(tree):
            if type(pair) is not list or len(pair) != 2:
                raise Unfit
            keys.append((f"[{i}][1]", self.value(pair[0], f"[{i}][0]"), pair[1]))
        return keys

    def pairs(self, tree: Any, keys: list[tuple[str, Any, Any]]) -> list[tuple[Any, Any]]:
        """The keys with their values."""
        self._enter(tree)
        pairs = []
        for place, key, item in keys:
            pairs.append((key, self.value(item, place)))
        self._open.remove(id(tree))
        return pairs

    def typed(self, tag: int, read: Callable[[JsonReader, Any], bytes], tree: Any) -> Any:
        """A value with a tag, and the payload that `read` makes."""
        if self._nesting >= msgpack.MAX_NESTING:
            raise self.bad(f"typed values are nested more than {msgpack.MAX_NESTING} deep", error=TooDeepError)
        self._nesting += 1
        payload = read(self, tree)
        self._nesting -= 1
        try:
            return parse(canonical(tag, payload, self._nesting))
        except TooDeepError as error:
            raise self.bad(error.what, error=TooDeepError) from None

    def _mark(self, mark: str, tree: Any) -> Any:
        if mark not in _READERS:
            raise self.bad(
                f"{mark} is no mark that this release knows",
                hint='A dict whose only key starts with "$" is written as {"$object": {…}}',
            )
        read, expects = _READERS[mark]
        self._path.append(f".{mark}")
        try:
            raw = read(self, tree)
        except HoldfastError:
            raise
        except (Unfit, ValueError, TypeError, ArithmeticError, LookupError):
            raise self.bad(f"{mark} takes {expects}") from None
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
            raise self.bad("a value contains itself", error=CircularReferenceError)
        self._open.add(id(tree))


def _read_float(_: JsonReader, tree: Any) -> float:
    if tree in ("inf", "-inf"):
        return float(tree)
    bits = _NAN if tree == "nan" else bytes.fromhex(tree)
    if len(bits) != 8:
        raise Unfit
    return float(_DOUBLE.unpack(bits)[0])


def _read_object(r: JsonReader, tree: Any) -> Any:
    if type(tree) is not dict:
        raise Unfit
    return r.mapping(tree)


def _read_ext(_: JsonReader, tree: Any) -> Ext:
    tag, text = tree
    if type(tag) is not int or not 0 <= tag <= 127:
        raise Unfit
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
"""What reads each mark, and what it takes."""
