"""Names that are imported when they are first used, from tables of constants.

Importing the package, or opening a store of one kind, loads nothing that is not needed for it. The tables are the only
names that are ever imported: none comes from data.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from holdfast.errors import ConfigError


def load(module: str, name: str) -> Any:
    """Import a name from a module, both constants of this package."""
    return getattr(import_module(module), name)


def exports(package: str, table: Mapping[str, str]) -> Callable[[str], Any]:
    """The `__getattr__` of a package whose names are in the modules that a table says."""

    def get(name: str) -> Any:
        module = table.get(name)
        if module is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return load(module, name)

    return get


def missing_extra(extra: str, error: ImportError) -> Exception:
    """The error for an import that failed: which extra to install, unless the mistake is in this package."""
    if (error.name or "").startswith("holdfast"):
        return error
    return ConfigError(
        f"this needs {error.name}, which is not installed" if error.name else f"a driver cannot be used: {error}",
        hint=f'Install it with: pip install "holdfast[{extra}]"',
        code="not-installed",
    )
