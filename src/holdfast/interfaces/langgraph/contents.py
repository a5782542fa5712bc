"""Values that a serializer of the user's own dumped."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from holdfast.errors import UnsupportedError


@dataclass(frozen=True, slots=True)
class SerializedValue:
    """A value as a serializer of the user's own dumped it. It is never decoded."""

    type: str
    data: bytes


def refuse_serialized(value: Any, channel: str) -> None:
    """Raise `UnsupportedError` if a value is what a serializer dumped: none is ever called with stored bytes."""
    if type(value) is SerializedValue:
        raise UnsupportedError(
            f"channel {channel!r} was saved with a serializer of its own, and Holdfast does not run one on stored data",
            hint="Its bytes are in the state of the checkpoint: store.get(thread).state",
        )
