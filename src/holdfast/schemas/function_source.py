"""The source of functions in one form, for fingerprints of migrations.

The form is that of the syntax tree: comments, layout, annotations and docstrings do not count, and every release of
Python gives the same. What a function takes from around it counts too: values of default arguments, of closures and of
`functools.partial`, constants of its module, and the functions of its module that it calls.
"""

from __future__ import annotations

import ast
import functools
import linecache
import operator
import types
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

_Function: TypeAlias = ast.Lambda | ast.FunctionDef | ast.AsyncFunctionDef

_IGNORED = frozenset({"ctx", "type_comment", "type_params", "kind", "annotation", "returns"})
_MAX_DEPTH = 8
"""How far functions that call functions, and values in values, are followed."""


def function_source(function: Callable[..., Any]) -> str:
    """Return the source of a function in one form; its name, if it has no source."""
    return _describe(function, ())


def _describe(function: Any, around: tuple[int, ...]) -> str:
    if id(function) in around or len(around) > _MAX_DEPTH:
        return "recursion"
    around = (*around, id(function))
    if isinstance(function, functools.partial):
        inside = [_describe(function.func, around), _value(function.args, around), _value(function.keywords, around)]
        return f"partial({', '.join(inside)})"
    if isinstance(function, types.MethodType):
        return f"method({_describe(function.__func__, around)}, {_value(function.__self__, around)})"
    if isinstance(function, types.BuiltinMethodType) and not isinstance(function.__self__, types.ModuleType | type):
        return f"method({_qualified_name(function)}, {_value(function.__self__, around)})"
    if isinstance(function, operator.itemgetter | operator.attrgetter | operator.methodcaller):
        return _value(function.__reduce__(), around)
    if hasattr(function, "__wrapped__") and not isinstance(function, types.FunctionType):
        return _describe(function.__wrapped__, around)  # such as that of lru_cache
    if not isinstance(function, types.FunctionType):
        return _describe_callable(function, around)
    node = _find_node(function.__code__)
    parts = [_qualified_name(function) if node is None else _dump(node)]
    parts += [_value(function.__defaults__ or (), around), _value(function.__kwdefaults__ or {}, around)]
    parts += [f"{name}={text}" for name, text in _surroundings(function, node, around)]
    return "; ".join(parts)


def _describe_callable(function: Any, around: tuple[int, ...]) -> str:
    call = next((vars(each)["__call__"] for each in type(function).__mro__ if "__call__" in vars(each)), None)
    if not isinstance(call, types.FunctionType):
        return _qualified_name(function)
    return (
        f"{_qualified_name(function)}({_describe(call, around)}, {_value(getattr(function, '__dict__', {}), around)})"
    )


def _qualified_name(value: Any) -> str:
    name = getattr(value, "__qualname__", None)
    if name is None:
        return f"instance {_qualified_name(type(value))}"
    return f"{getattr(value, '__module__', '')}:{name}"


def _surroundings(
    function: types.FunctionType, node: _Function | None, around: tuple[int, ...]
) -> Iterator[tuple[str, str]]:
    """Iterate over the values that a function takes from closures and from its module, by name."""
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    used = set() if node is None else {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
    for name in sorted(used | cells.keys()):
        if name in cells:
            try:
                yield name, _value(cells[name].cell_contents, around)
            except ValueError:
                yield name, "empty"
        elif name in function.__globals__:
            value = function.__globals__[name]
            if _is_constant(value) or getattr(value, "__module__", None) == function.__module__:
                yield name, _value(value, around)


def _is_constant(value: Any) -> bool:
    if type(value) in (tuple, frozenset):
        return all(map(_is_constant, value))
    return value is None or type(value) in (bool, int, float, complex, str, bytes)


def _value(value: Any, around: tuple[int, ...]) -> str:
    """Return a text for a value that is the same in every process."""
    if value is None or value is ... or type(value) in (bool, int, float, complex, str, bytes):
        return repr(value)
    if callable(value):
        return _describe(value, around)
    if id(value) in around or len(around) > _MAX_DEPTH:
        return "recursion"
    around = (*around, id(value))
    if isinstance(value, dict):
        pairs = (f"{_value(key, around)}: {_value(each, around)}" for key, each in value.items())
        return f"{type(value).__name__}{{{', '.join(pairs)}}}"
    if isinstance(value, list | tuple):
        return f"{type(value).__name__}({', '.join(_value(each, around) for each in value)})"
    if isinstance(value, set | frozenset):
        return f"{type(value).__name__}({', '.join(sorted(_value(each, around) for each in value))})"
    return _qualified_name(value)


def _find_node(code: types.CodeType) -> _Function | None:
    """Return the syntax tree of a function; None if there is no source. Of several lambdas in a line, it is the
    innermost one around all of the code."""
    functions = _find_functions("".join(linecache.getlines(code.co_filename)))
    found = [each for each in functions if _starts_at(each, code)]
    if len(found) > 1:
        spans = [span for span in code.co_positions() if None not in span and span[3]]
        if spans:
            found = [each for each in found if all(_contains(each, span) for span in spans)] or found
        else:
            found = [each for each in found if _gives_constant(each, code)] or found
    return max(found, key=lambda each: (each.lineno, each.col_offset)) if found else None


@functools.lru_cache(16)
def _find_functions(text: str) -> list[_Function]:
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return []
    return [each for each in ast.walk(tree) if isinstance(each, _Function)]


def _starts_at(node: _Function, code: types.CodeType) -> bool:
    if isinstance(node, ast.Lambda):
        return code.co_name == "<lambda>" and node.lineno == code.co_firstlineno
    first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
    return code.co_name == node.name and first == code.co_firstlineno


def _contains(node: _Function, span: tuple[Any, ...]) -> bool:
    line, end_line, column, end_column = span
    inside = node.body if isinstance(node, ast.Lambda) else node
    start, end = (inside.lineno, inside.col_offset), (inside.end_lineno or 0, inside.end_col_offset or 0)
    return start <= (line, column) and (end_line, end_column) <= end


def _gives_constant(node: _Function, code: types.CodeType) -> bool:
    """Return whether code is that of a lambda that only returns a constant, of which some releases of Python do not
    know the position."""
    if not isinstance(node, ast.Lambda):
        return False
    try:
        constant = ast.literal_eval(node.body)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return False
    return repr(constant) == repr(code.co_consts[-1])


def _dump(node: Any, name: str = "name") -> str:
    """Return a syntax tree as text, without a field. `ast.dump` differs between releases of Python."""
    if isinstance(node, list):
        return f"[{', '.join(_dump(each, '') for each in node)}]"
    if not isinstance(node, ast.AST):
        return repr(node)
    fields = [
        f"{key}={_dump(value, '')}"
        for key, value in ast.iter_fields(_simplify(node))
        if key not in _IGNORED and key != name and (value is not None or isinstance(node, ast.Constant)) and value != []
    ]
    return f"{type(node).__name__}({', '.join(fields)})"


def _simplify(node: Any) -> Any:
    """Return a node without a docstring, and without empty pieces of f-strings, which some releases of Python have."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and ast.get_docstring(node) is not None:
        return type(node)(**{**dict(ast.iter_fields(node)), "body": node.body[1:]})
    if isinstance(node, ast.JoinedStr):
        return ast.JoinedStr([each for each in node.values if not isinstance(each, ast.Constant) or each.value])
    return node
