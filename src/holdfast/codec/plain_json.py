"""Conversion of packed bytes to JSON for people, without type marks.

Not reversible: a tuple looks like a list, a Decimal like text, and long bytes are shortened. Use `json_codec` for data
that is read back.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import math
from collections.abc import Callable
from itertools import product
from operator import mul
from struct import Struct, calcsize
from struct import error as StructError  # noqa: N812
from typing import Any

from holdfast.byte_reader import ByteReader
from holdfast.codec.json_codec import is_mark, limit_recursion, to_json
from holdfast.codec.json_types import from_base64
from holdfast.codec.opaque import OpaqueValue

_SHORT = 64
"""More bytes than this are shown as their number and a digest, so that a comparison notices changes."""


@limit_recursion
def to_plain(packed: bytes) -> Any:
    """Convert packed bytes to JSON that is easy to read.

    Raises `CorruptError` or `TooDeepError` for bytes that `Codec.pack` did not write.
    """
    return _plain(to_json(packed))


def _plain(tree: Any) -> Any:
    if type(tree) is list:
        return [_plain(item) for item in tree]
    if type(tree) is not dict:
        return tree
    if not is_mark(tree):
        return {key: _plain(item) for key, item in tree.items()}
    ((mark, content),) = tree.items()
    if mark[1].isupper():
        return _known_class(mark[1:], content)
    return _PLAIN.get(mark, _plain)(content)


def _text(tree: Any) -> str:
    plain = _plain(tree)
    import json

    return plain if type(plain) is str else json.dumps(plain, ensure_ascii=False)


def _name(ref: str) -> str:
    """Return the short name: `State` for `app.models:Outer.State`."""
    return ref.rpartition(":")[2].rpartition(".")[2]


def _float(text: str) -> str:
    return {"inf": "Infinity", "-inf": "-Infinity"}.get(text, "NaN")


def _bytes(text: str, kind: str = "") -> str:
    data = from_base64(text)
    if len(data) <= _SHORT and not kind:
        return text
    return f"<{kind}{len(data)} bytes, sha256 {hashlib.sha256(data).hexdigest()[:16]}>"


def _mapping(tree: Any) -> Any:
    """Convert to an object with keys as text, or to a list of pairs if two keys have the same text."""
    pairs = list(tree.items()) if type(tree) is dict else tree
    tree = {_text(key): _plain(item) for key, item in pairs}
    return tree if len(tree) == len(pairs) else [[_plain(key), _plain(item)] for key, item in pairs]


def _datetime(content: Any) -> str:
    if type(content) is str:
        return content
    text, zone, _fold = content
    return _text(text) if zone is None else f"{_text(text)}[{_text(zone)}]"


def _complex(content: Any) -> str:
    real, imaginary = map(_text, content)
    return f"{real}{'' if imaginary.startswith('-') else '+'}{imaginary}j"


def _exception(content: Any) -> str:
    ref, fields = content
    args = fields.get("args")
    message = ", ".join(map(_text, args)) if type(args) is list else ""
    return f"{_name(ref)}: {message}" if message else _name(ref)


def _model(content: Any) -> Any:
    ref, fields, *options = content
    fields = _plain(fields)
    for option in options:
        fields |= _plain(option.get("extra", {}))
    return _message(fields) if ref.startswith("langchain_core.messages.") else fields


def _known_class(name: str, content: dict[str, Any]) -> dict[str, Any]:
    fields = {key: _plain(item) for key, item in content.items()}
    if "content" in fields:
        return _message(fields)
    return {"type": name} | {key: item for key, item in fields.items() if item is not None}


def _message(fields: dict[str, Any]) -> dict[str, Any]:
    """Put type and content first, and omit empty fields."""
    first = {key: fields[key] for key in ("type", "content") if key in fields}
    return first | {key: item for key, item in fields.items() if item not in (None, "", [], {})}


def _ext(content: Any) -> str:
    tag, text = content
    return _bytes(text, f"{OpaqueValue(tag, b'').type_name}, ")


# numpy and pandas, without importing them -------------------------------------------------------------------

_NUMBERS = {
    "b1": "?", "i1": "b", "i2": "h", "i4": "i", "i8": "q", "u1": "B", "u2": "H", "u4": "I", "u8": "Q",
    "f2": "e", "f4": "f", "f8": "d",
}  # fmt: skip
_MAX_ITEMS = 100
_MAX_AXES = 64
_TICKS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


def _or_raw(convert: Callable[..., Any]) -> Callable[[Any], Any]:
    """Fall back to the raw parts if they are of a type or size that `convert` does not handle."""

    def run(content: Any) -> Any:
        try:
            return convert(*content)
        except (ValueError, TypeError, ArithmeticError, LookupError, AttributeError, StructError):
            return _plain(content)

    return run


def _numbers(spec: str, content: dict[str, str]) -> list[Any]:
    data = from_base64(content["$bytes"])
    code = _NUMBERS[spec[1:]]
    form = Struct(f"{spec[0].replace('|', '=')}{len(data) // calcsize('=' + code)}{code}")
    reader = ByteReader(data, "an array")
    numbers = reader.fields(form)
    reader.end()
    return [number if math.isfinite(number) else _float(str(number)) for number in numbers]


def _array(spec: str, shape: list[int], order: str, content: Any) -> Any:
    items = _plain(content) if spec == "|O" else _numbers(spec, content)
    if len(items) > _MAX_ITEMS or len(items) != math.prod(shape) or len(shape) > _MAX_AXES:
        raise ValueError
    if not items:
        return []
    if order == "F":  # the first axis runs fastest
        steps = [math.prod(shape[:i]) for i in range(len(shape))]
        items = [items[sum(map(mul, index, steps))] for index in product(*map(range, shape))]
    for size in reversed(shape[1:]):
        items = [items[i : i + size] for i in range(0, len(items), size)]
    return items if shape else items[0]


def _scalar(spec: str, content: Any) -> Any:
    if spec in ("U", "S"):
        return _plain(content)
    (number,) = _numbers(spec, content)
    return number


def _timestamp(ticks: int, unit: str, zone: Any, _fold: int) -> str:
    seconds, rest = divmod(ticks, _TICKS[unit])
    text = (dt.datetime(1970, 1, 1) + dt.timedelta(seconds=seconds)).isoformat()  # noqa: DTZ001
    if rest:
        text += f".{rest:0{len(str(_TICKS[unit])) - 1}}"
    return text if zone is None else f"{text}Z[{_text(zone)}]"


def _nth(i: int) -> Callable[[Any], Any]:
    return lambda content: _plain(content[i])


_PLAIN: dict[str, Callable[[Any], Any]] = {
    "$object": _mapping,
    "$dict": _mapping,
    "$ordereddict": _mapping,
    "$counter": _mapping,
    "$float": _float,
    "$str": lambda text: text.replace("\\\\", "\\"),
    "$bytes": _bytes,
    "$bytearray": _bytes,
    "$complex": _complex,
    "$range": lambda parts: f"range({', '.join(map(_text, parts))})",
    "$fraction": lambda parts: "/".join(map(_text, parts)),
    "$datetime": _datetime,
    "$time": _datetime,
    "$timedelta": lambda parts: str(dt.timedelta(*parts)),
    "$timezone": lambda content: content if type(content) is str else _text(content[1]),
    "$path": _nth(1),
    "$regex": _nth(0),
    "$ipaddress": _nth(1),
    "$deque": _nth(1),
    "$defaultdict": _nth(1),
    "$dataclass": _nth(1),
    "$attrs": _nth(1),
    "$namedtuple": _nth(1),
    "$registered": _nth(1),
    "$shaped": _nth(1),
    "$pydantic": _model,
    "$pydantic_v1": _model,
    "$enum": lambda parts: f"{_name(parts[0])}.{parts[1]}",
    "$flag": lambda parts: f"{_name(parts[0])}({_text(parts[1])})",
    "$exception": _exception,
    "$ext": _ext,
    "$ndarray": _or_raw(_array),
    "$numpy_scalar": _or_raw(_scalar),
    "$timestamp": _or_raw(_timestamp),
    "$nat": lambda _: "NaT",
    "$pandas_na": lambda _: "NA",
}
