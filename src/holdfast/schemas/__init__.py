"""Schemas of states, their versions, and migrations between them."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.schemas.attached_version import SchemaWarning as SchemaWarning
    from holdfast.schemas.compatibility import Compatibility as Compatibility
    from holdfast.schemas.compatibility import CompatibilityLevel as CompatibilityLevel
    from holdfast.schemas.compatibility import SchemaChange as SchemaChange
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
    from holdfast.schemas.documentation import describe_fields as describe_fields
    from holdfast.schemas.documentation import to_html as to_html
    from holdfast.schemas.documentation import to_markdown as to_markdown
    from holdfast.schemas.migration import MigratedState as MigratedState
    from holdfast.schemas.migration import Migration as Migration
    from holdfast.schemas.operations import Operation as Operation
    from holdfast.schemas.registry import RegisteredSchemas as RegisteredSchemas
    from holdfast.schemas.registry import SchemaRecord as SchemaRecord
    from holdfast.schemas.schema import Schema as Schema
    from holdfast.schemas.schema import SchemaReference as SchemaReference
    from holdfast.schemas.schema_declaration import ValidationMode as ValidationMode
    from holdfast.schemas.schema_set import MigratedValues as MigratedValues
    from holdfast.schemas.schema_set import SchemaSet as SchemaSet
    from holdfast.schemas.settings import SchemaFinding as SchemaFinding
    from holdfast.schemas.settings import SchemaLock as SchemaLock
    from holdfast.schemas.settings import SchemaSettings as SchemaSettings
    from holdfast.schemas.settings import find_settings as find_settings
    from holdfast.schemas.validator import Problem as Problem
    from holdfast.schemas.validator import Validator as Validator
    from holdfast.schemas.version import Version as Version
    from holdfast.schemas.version_graph import MigrationStep as MigrationStep
    from holdfast.schemas.version_graph import VersionGraph as VersionGraph
    from holdfast.schemas.version_graph import migration_skeleton as migration_skeleton

_MODULES = {
    "holdfast.schemas.attached_version": ("SchemaWarning",),
    "holdfast.schemas.compatibility": ("Compatibility", "CompatibilityLevel", "SchemaChange"),
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
    "holdfast.schemas.documentation": ("describe_fields", "to_html", "to_markdown"),
    "holdfast.schemas.settings": ("find_settings", "SchemaFinding", "SchemaLock", "SchemaSettings"),
    "holdfast.schemas.migration": ("MigratedState", "Migration"),
    "holdfast.schemas.operations": ("Operation",),
    "holdfast.schemas.registry": ("RegisteredSchemas", "SchemaRecord"),
    "holdfast.schemas.schema": ("Schema", "SchemaReference"),
    "holdfast.schemas.schema_declaration": ("ValidationMode",),
    "holdfast.schemas.schema_set": ("MigratedValues", "SchemaSet"),
    "holdfast.schemas.version_graph": ("migration_skeleton", "MigrationStep", "VersionGraph"),
    "holdfast.schemas.validator": ("Problem", "Validator"),
    "holdfast.schemas.version": ("Version",),
}

if not TYPE_CHECKING:  # a type checker is to see the names above, and no others
    from holdfast._lazy import exports

    __all__, __getattr__, __dir__ = exports(__name__, _MODULES)
