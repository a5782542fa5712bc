"""Records as JSON: one object to a line, times in ISO 8601 and UTC."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from enum import Enum
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.store import Checkpoint

_CONTROLS = re.compile("[\x7f-\x9f\u2028\u2029]")
"""Control characters that JSON does not escape."""


def encode(record: object) -> str:
    """Encode a record as a line of JSON: dataclasses, named tuples, times, and any value of a state."""
    from msgspec.json import encode

    return _CONTROLS.sub(lambda match: f"\\u{ord(match[0]):04x}", encode(plain(record)).decode())


def plain(value: Any) -> Any:
    """Convert a value to a tree of JSON values."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return value if value.isascii() else _text(value)
    if type(value) in (int, float):
        return value if _fits(value) else str(value)
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    if isinstance(value, Enum):
        return plain(value.value)
    if isinstance(value, PurePath):
        return str(value)
    if is_dataclass(value) and not isinstance(value, type):
        return {each.name: plain(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return _record(value)
    if type(value) is dict or (isinstance(value, Mapping) and not hasattr(value, "__dict__")):
        return {_text(str(key)): plain(item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return [plain(item) for item in value]
    from holdfast.codec import default_codec

    return default_codec.to_plain(value)


def _fits(number: float) -> bool:
    return -(1 << 63) <= number < 1 << 64 if type(number) is int else number - number == 0


def _text(text: str) -> str:
    """Replace halves of surrogate pairs, which UTF-8 cannot encode."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def _record(value: Any) -> dict[str, Any]:
    """Return a named tuple as a record."""
    from holdfast.store import Checkpoint  # not at the top: `--help` needs no store

    if isinstance(value, Checkpoint):
        return checkpoint_record(value)
    return {name: plain(item) for name, item in value._asdict().items()}


def checkpoint_record(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return a checkpoint as a record, without its state."""
    fields = checkpoint._asdict() | {"metadata": dict(checkpoint.metadata)}
    del fields["state"]
    return {name: plain(value) for name, value in fields.items()}
