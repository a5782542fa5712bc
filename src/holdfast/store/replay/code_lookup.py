"""Finding the code that is replayed, in the process of a replay."""

from __future__ import annotations

from typing import Any

from holdfast._lazy import import_declared
from holdfast.errors import ConfigError
from holdfast.recording.journal import DivergedRun
from holdfast.store.replay.isolation import place_of


def find_code(name: str, what: str, hint: str) -> Any:
    """Return the object that the caller named as `module:name`, or a module. `ConfigError` if it cannot be imported."""
    module, _, path = name.partition(":")
    try:
        found: Any = import_declared(module)
        for part in path.split(".") if path else ():
            found = getattr(found, part)
    except (Exception, DivergedRun) as error:
        raise code_error(error, name, what, hint) from error
    return found


def code_error(error: BaseException, name: str, what: str, hint: str) -> ConfigError:
    """Return the error for code that cannot be imported, or made into what is replayed, with its place."""
    if isinstance(error, SyntaxError):
        return ConfigError(
            f"the code of the {what} has a syntax error: {error.msg}: {(error.text or '').strip()[:200]}".rstrip(": "),
            where=f"{error.filename}:{error.lineno}"[-200:],
            hint="Correct it",
        )
    if isinstance(error, ImportError | AttributeError | ValueError):
        return ConfigError(f"the {what} cannot be imported: {error}", where=name[:200], hint=hint)
    return ConfigError(
        f"the {what} cannot be imported: it raises {type(error).__name__}: {str(error)[:500]}",
        where=f"{name[:100]}, at {place_of(error)}",
        hint="See there",
    )
