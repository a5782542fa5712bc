"""A plan: how instances of one class are taken apart and put together again."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

from holdfast.codec.tags import Tag
from holdfast.errors import UnsupportedError


class ClassMismatch(Exception):
    """The class loaded here can not take the stored fields."""


class ObjectPlan(ABC):
    """Takes instances of one class apart into plain parts, and puts them together."""

    tag: Tag
    names: tuple[str, ...] = ()

    def __init__(self, cls: type, ref: str) -> None:
        self.cls = cls
        self.ref = ref

    @abstractmethod
    def dump(self, obj: Any) -> list[Any]:
        """The payload: the class's name, then its parts."""

    @abstractmethod
    def load(self, parts: list[Any]) -> Any:
        """The instance with these parts."""

    @abstractmethod
    def children(self, obj: Any) -> Iterator[tuple[str, Any]]:
        """The values inside, each with what its path gains (`.name`, `[3]`), to locate a failure."""


def stray(ref: str, name: str) -> UnsupportedError:
    """The error for an attribute that would be lost."""
    return UnsupportedError(
        f"{ref} object has an attribute {name!r} that is not one of its fields",
        hint="Declare it as a field, delete it before saving, or register the class",
    )


def has_slot(obj: Any, name: str) -> bool:
    """Whether a slot of the object holds something."""
    try:
        object.__getattribute__(obj, name)
    except AttributeError:
        return False
    return True
