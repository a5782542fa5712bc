"""Values of declared classes from plain ones, by msgspec; safe where several threads do so for the first time.

msgspec learns a class when it is first asked for one, and shows it to other threads before it has learned those of its
fields: a process in which two threads ask at once can crash. So one thread at a time has it learn.
"""

from __future__ import annotations

import threading
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")

_lock = threading.Lock()
_learned: set[Any] = set()


def convert(value: Any, kind: type[T], *, strict: bool = True) -> T:
    """Return a plain value as one of a class, or of another type. `msgspec.ValidationError` if it is none."""
    _learn(kind)
    return msgspec.convert(value, kind, strict=strict)


def decode_json(data: bytes | str, kind: type[T]) -> T:
    """Return JSON as a value of a class, or of another type. `msgspec.MsgspecError` if it is none."""
    _learn(kind)
    return msgspec.json.decode(data, type=kind)


def _learn(kind: Any) -> None:
    if kind not in _learned:
        with _lock:
            msgspec.convert(None, kind | None)
            _learned.add(kind)
