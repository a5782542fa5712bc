"""How the fields of records are declared, for every interface that shows or sends them.

A record is a frozen struct. Its annotations are the types of its fields, and the docstrings below them their meaning.
A field is shown and sent under its name; what differs from that is in its annotation::

    class BackupInfo(msgspec.Struct, frozen=True):
        id: Annotated[str, Label("backup")]
        bytes: int
        store: Hidden[str]
        url: Local[str]
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

if TYPE_CHECKING:
    from msgspec import Struct


T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
K = TypeVar("K", bound=type)


class Mark(Enum):
    """Says how a field is shown or sent."""

    HIDDEN = "hidden"
    LOCAL = "local"
    INTERNAL = "internal"
    BYTES = "bytes"
    SECONDS = "seconds"


class Label(str):
    """The label of a field for people, where it is not the field's name."""

    __slots__ = ()


Hidden = Annotated[T, Mark.HIDDEN]
"""A field that tables leave out; JSON and the details of a record have it."""

Local = Annotated[T, Mark.LOCAL]
"""A field that a server does not send: an address, a setting that may be secret."""

Internal = Annotated[T, Mark.INTERNAL]
"""A field that no interface shows or sends."""

Bytes = Annotated[int, Mark.BYTES]
"""A number of bytes. A field called `bytes` or `size` is one."""

Seconds = Annotated[float, Mark.SECONDS]
"""A duration. A field called `seconds` or `duration` is one."""


def sent_as_text(kind: K) -> K:
    """Decorate a class that is no record in a view, although it has fields: it is shown and sent as its text."""
    kind.__sent_as_text__ = True  # type: ignore[attr-defined]
    return kind


def computed(function: F) -> F:
    """Mark a property of a record, below `@property`: it is shown and sent like its fields."""
    function.__computed__ = True  # type: ignore[attr-defined]
    return function


def fill(record: Struct, **values: Any) -> None:
    """Set fields of a record that is being made. Nobody else has it yet: for everybody else it is frozen."""
    from msgspec.structs import force_setattr  # a command that only shows its help does not load it

    for name, value in values.items():
        force_setattr(record, name, value)


def count(record: Struct, **increments: float) -> None:
    """Add to numbers of a record that is being made."""
    fill(record, **{name: getattr(record, name) + each for name, each in increments.items()})
