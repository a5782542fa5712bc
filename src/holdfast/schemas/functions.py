"""Functions of migrations: their normalised source, for fingerprints, and the modules that they must not use."""

from __future__ import annotations

import inspect
import io
import textwrap
import tokenize
import types
from collections.abc import Callable
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
_LAYOUT = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)


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


def function_source(function: Callable[..., Any]) -> str:
    """Return the source of a function in one form, without comments and layout; its name, if it has no source."""
    code = getattr(function, "__code__", None)
    name = f"{getattr(function, '__module__', '')}:{getattr(function, '__qualname__', type(function).__qualname__)}"
    if not isinstance(code, types.CodeType):
        return name
    try:
        lines, _ = inspect.getsourcelines(code)
    except (OSError, TypeError):
        return name
    text = _lambda_body(code, lines) if code.co_name == "<lambda>" else "".join(lines)
    return _normalise(textwrap.dedent(text))


def _lambda_body(code: types.CodeType, lines: list[str]) -> str:
    """Return the parameters and the expression of a lambda, cut out of its lines."""
    spans = [
        (line, column, end_line, end_column)
        for line, end_line, column, end_column in code.co_positions()
        if None not in (line, end_line, column, end_column) and end_column
    ]
    parameters = " ".join(code.co_varnames[: code.co_argcount])
    if not spans:
        return "".join(lines)
    first = code.co_firstlineno
    start = min((line, column) for line, column, _, _ in spans)
    end = max((line, column) for _, _, line, column in spans)
    body = [line.encode() for line in lines[start[0] - first : end[0] - first + 1]]  # type: ignore[operator]
    if not body:
        return "".join(lines)
    body[-1] = body[-1][: end[1]]
    body[0] = body[0][start[1] :]
    return f"lambda {parameters}: {b''.join(body).decode(errors='replace')}"


def _normalise(text: str) -> str:
    try:
        tokens = [
            each.string for each in tokenize.generate_tokens(io.StringIO(text).readline) if each.type not in _LAYOUT
        ]
    except (tokenize.TokenError, IndentationError, SyntaxError):
        return " ".join(text.split())
    return " ".join(tokens)
