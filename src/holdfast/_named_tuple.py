"""`NamedTuple` as in `typing`, for the modules that every command loads.

`typing` compiles the annotation of each field, which takes longer than all else that creates a class of named tuples.
Here annotations stay the text that they are in every module of this package; `typing.get_type_hints` evaluates them.
A generic class derives from the one in `typing`.
"""

from __future__ import annotations

from collections import namedtuple
from typing import TYPE_CHECKING, Any

__all__ = ["NamedTuple"]

if TYPE_CHECKING:
    from typing import NamedTuple
else:
    _NOT_COPIED = frozenset({"__annotations__", "__module__", "__orig_bases__"})

    class _NamedTupleMeta(type):
        """Creates a class of tuples from the fields that a class declares, with its methods."""

        def __new__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any]) -> type:
            if len(bases) > 1:
                raise TypeError(f"{name} must be derived from typing.NamedTuple")
            fields = namespace.get("__annotations__", {})
            defaults = [namespace[field] for field in fields if field in namespace]
            created = namedtuple(name, fields, defaults=defaults, module=namespace["__module__"])
            created.__annotations__ = fields
            for key, value in namespace.items():
                if key not in fields and key not in _NOT_COPIED:
                    setattr(created, key, value)
            return created

    _BASE = type.__new__(_NamedTupleMeta, "NamedTuple", (), {})

    class _NamedTuple:
        """Stands for the base in the declaration of a class, which is then derived from `tuple`."""

        def __mro_entries__(self, bases: tuple[object, ...]) -> tuple[type, ...]:
            return (_BASE,)

    NamedTuple = _NamedTuple()
