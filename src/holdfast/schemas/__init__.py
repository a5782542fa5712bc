"""Schemas of states, and migrations between their versions."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.schemas.declaration import add as add
    from holdfast.schemas.declaration import convert as convert
    from holdfast.schemas.declaration import custom as custom
    from holdfast.schemas.declaration import each as each
    from holdfast.schemas.declaration import merge as merge
    from holdfast.schemas.declaration import move as move
    from holdfast.schemas.declaration import nest as nest
    from holdfast.schemas.declaration import remove as remove
    from holdfast.schemas.declaration import rename as rename
    from holdfast.schemas.declaration import split as split
    from holdfast.schemas.declaration import unnest as unnest
    from holdfast.schemas.migration import Migration as Migration
    from holdfast.schemas.schema import Schema as Schema
    from holdfast.schemas.schema_set import SchemaSet as SchemaSet

_MODULES = {
    "holdfast.schemas.declaration": (
        "add",
        "convert",
        "custom",
        "each",
        "merge",
        "move",
        "nest",
        "remove",
        "rename",
        "split",
        "unnest",
    ),
    "holdfast.schemas.migration": ("Migration",),
    "holdfast.schemas.schema": ("Schema",),
    "holdfast.schemas.schema_set": ("SchemaSet",),
}

if not TYPE_CHECKING:  # a type checker is to see the names above, and no others
    from holdfast._lazy import exports

    __all__, __getattr__, __dir__ = exports(__name__, _MODULES)
