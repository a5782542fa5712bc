"""Names that are imported when they are first used, from tables of constants.

Importing the package, or opening a store of one kind, loads nothing that is not needed for it. The tables are the only
names that are ever imported: none comes from data.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from importlib import import_module
from typing import Any

from holdfast.errors import ConfigError


def load(module: str, name: str) -> Any:
    """Import a name from a module, both constants of this package."""
    return getattr(import_module(module), name)


def exports(package: str, table: Mapping[str, str], submodules: Collection[str] = ()) -> Callable[[str], Any]:
    """Return the `__getattr__` of a package: a table maps its names to their modules, and submodules are imported."""

    def get(name: str) -> Any:
        if name in submodules:
            return import_module(f"{package}.{name}")
        module = table.get(name)
        if module is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return load(module, name)

    return get


def missing_extra(extra: str, error: ImportError) -> Exception:
    """Return the error for a failed import: which extra to install, unless the cause is in this package."""
    if (error.name or "").startswith("holdfast"):
        return error
    return ConfigError(
        f"this needs {error.name}, which is not installed" if error.name else f"a driver cannot be used: {error}",
        hint=f'Install it with: pip install "holdfast[{extra}]"',
        code="not-installed",
    )
