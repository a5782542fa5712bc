"""Names that are imported when they are first used, from tables of constants.

Importing the package, or opening a store of one kind, loads nothing that is not needed for it. The tables, and a module
that the application's own settings name, are all that is ever imported: no name comes from data.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any

from holdfast.errors import ConfigError


def load(module: str, name: str) -> Any:
    """Import a name from a module, both constants of this package."""
    return getattr(import_module(module), name)


@cache
def imported_names(module: str) -> Mapping[str, tuple[str, str]]:
    """Return the names that a module of this package imports from the package, also for type checkers only: for each,
    the module and the name there."""
    import ast  # neither is needed to open a store
    import inspect

    source = inspect.getsource(import_module(module))
    return {
        alias.asname or alias.name: (each.module, alias.name)
        for each in ast.walk(ast.parse(source))
        if isinstance(each, ast.ImportFrom) and each.module and each.module.startswith("holdfast.")
        for alias in each.names
    }


def import_declared(module: str) -> ModuleType:
    """Import a module of the application that its own settings name: `[schemas] module` of `holdfast.toml`."""
    return import_module(module)


def exports(
    package: str,
    modules: Mapping[str, Sequence[str]],
    submodules: Collection[str] = (),
    own: Sequence[str] = (),
) -> tuple[list[str], Callable[[str], Any], Callable[[], list[str]]]:
    """Return the `__all__`, `__getattr__` and `__dir__` of a package whose names are defined in other modules.

    `modules` maps those modules to names; `submodules` are imported on access, too; `own` names are defined in place.
    """
    table = {name: module for module, names in modules.items() for name in names}
    public = [*own, *table]

    def get(name: str) -> Any:
        if name in submodules:
            return import_module(f"{package}.{name}")
        module = table.get(name)
        if module is None:
            raise _unknown_name(package, name, submodules, public)
        return load(module, name)

    return public, get, lambda: sorted(public)


def _unknown_name(package: str, name: str, modules: Collection[str], public: Collection[str]) -> AttributeError:
    """Return the error for a name that a package does not have, which says where it is."""
    what = f"module {package!r} has no attribute {name!r}"
    if name.startswith("_"):
        return AttributeError(what, name=name)
    from difflib import get_close_matches

    if name in ("HoldfastSaver", "HoldfastStore"):
        return AttributeError(f"{what}: from holdfast.langgraph import {name}", name=name)
    if name == "connect":
        return AttributeError(f"{what}: holdfast.open(url) opens a store", name=name)
    for module in modules:
        if name in dir(import_module(f"{package}.{module}")):
            return AttributeError(f"{what}: from {package}.{module} import {name}", name=name)
    near = get_close_matches(name, public, 1, 0.7)
    return AttributeError(f"{what}. Did you mean {package}.{near[0]}?" if near else what, name=name)


def unknown_attribute(words: str) -> Callable[[Any, str], Any]:
    """Return a `__getattr__` for a class, which says what is called how here, by a table of `_hints`."""

    def get(self: Any, name: str) -> Any:
        what = f"{type(self).__name__!r} object has no attribute {name!r}"
        meant = "" if name.startswith("_") else load("holdfast._hints", words).get(name, "")
        raise AttributeError(f"{what}. Here it is {meant}" if meant else what, name=name, obj=self)

    return get


def missing_extra(extra: str, error: ImportError) -> Exception:
    """Return the error for a failed import: which extra to install, unless the cause is in this package."""
    if (error.name or "").startswith("holdfast"):
        return error
    from holdfast._hints import install

    return ConfigError(
        f"this needs {error.name}, which is not installed" if error.name else f"a driver cannot be used: {error}",
        hint=install(extra),
        code="not-installed",
    )
