"""Functions of migrations: the modules that they must not use, and the errors that they raise."""

from __future__ import annotations

import types
from typing import Any

from holdfast.errors import InvalidError

_IMPURE = frozenset(
    {
        *("time", "random", "secrets", "os", "socket", "ssl", "subprocess", "asyncio", "threading", "urllib", "http"),
        *("requests", "httpx", "aiohttp", "sqlite3", "shutil", "tempfile", "holdfast"),
    }
)
_IMPURE_METHODS = frozenset({"now", "utcnow", "today", "uuid1", "uuid4", "urandom"})
_IMPURE_CALLS = frozenset({"open", "input", "print", "exec", "eval", "__import__"})


def require_function(function: object, what: str) -> None:
    """Require a function that can be called, and that is pure as far as its code shows."""
    if not callable(function):
        raise InvalidError(f"{what} is a function, not {type(function).__name__}")
    code = getattr(function, "__code__", None)
    if not isinstance(code, types.CodeType):
        return
    found = _find_impure(code, getattr(function, "__globals__", {}))
    if found:
        raise InvalidError(
            f"{what} uses {found}: a migration is pure, so that it gives the same result whenever it runs",
            where=f"{code.co_filename}:{code.co_firstlineno}",
            hint="Take what it needs from the state, or from a constant",
            code="migration-impure",
        )


def _find_impure(code: types.CodeType, scope: dict[str, Any]) -> str:
    for name in code.co_names:
        known = scope.get(name)
        if isinstance(known, types.ModuleType) and known.__name__.partition(".")[0] in _IMPURE:
            return f"the module {known.__name__}"
        if name in _IMPURE_METHODS or (name in _IMPURE_CALLS and name not in scope):
            return f"{name}()"
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType) and (found := _find_impure(constant, scope)):
            return found
    return ""


def function_failed(error: Exception, where: str) -> InvalidError:
    """Return the error for one that a function raised, without its message: that may quote a value of the state."""
    return InvalidError(
        f"a function of the migration raised {type(error).__name__}{_find_line(error)}",
        where=where,
        hint="Correct the function for this state, which is unchanged",
        code="migration-failed",
    )


def _find_line(error: Exception) -> str:
    """Return where the application raised an error, as far as that is known."""
    found, trace = "", error.__traceback__
    while trace is not None:
        frame = trace.tb_frame
        if not str(frame.f_globals.get("__name__", "")).startswith("holdfast."):
            found = f" in {frame.f_code.co_name}, {frame.f_code.co_filename}:{trace.tb_lineno}"
        trace = trace.tb_next
    return found
