"""Functions of migrations: the modules that they must not use, their errors, their source and their time limit."""

from __future__ import annotations

import ast
import ctypes
import functools
import linecache
import operator
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeAlias

from holdfast.backends.runtime.fork_safety import reinit_after_fork
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
        raise InvalidError(f"{what} must be a function, not {type(function).__name__}")
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


# Function source ------------------------------------------------------------------------------------------------------
#
# The source of functions in one form, for fingerprints of migrations.
#
# The form is that of the syntax tree: comments, layout, annotations and docstrings do not count, and every release of
# Python gives the same. What a function takes from around it counts too: values of default arguments, of closures and
# of `functools.partial`, constants of its module, and the functions of its module that it calls.

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


# Time limit -----------------------------------------------------------------------------------------------------------
#
# A limit of time for functions of migrations: one that does not return is stopped.
#
# A thread looks from time to time whether a call has taken too long, and raises an exception in the thread that makes
# it. So a call costs no more than two entries in a dict, and no signal handler or trace function of the application is
# replaced. What runs outside of Python's interpreter, such as a regular expression that backtracks for hours, is only
# stopped when it returns.

MAX_SECONDS: Final = 1.0
"""How long a migration of one state may take."""

_LOOK_SECONDS = 0.1
"""How often the thread looks, while there are calls."""

_IDLE_LOOKS = 50
"""After how many looks without a call the thread waits for the next one."""


class OverTime(BaseException):
    """Raised in a function that takes too long. Not an `Exception`, which a function might handle and go on."""


class TimeLimit:
    """Watches calls, one in each thread, and ends those that take too long."""

    def __init__(self) -> None:
        self._started: dict[int, float] = {}
        self._over: set[int] = set()
        """The threads in which an exception was raised."""
        self._is_needed = threading.Event()
        self._watcher: threading.Thread | None = None
        self.reinit_locks()
        reinit_after_fork(self)

    def reinit_locks(self) -> None:
        """Replace locks and thread in a forked child."""
        self._lock = threading.Lock()
        self._is_needed, self._watcher = threading.Event(), None
        self._started.clear()

    def begin(self) -> int:
        """Begin a call in this thread; `OverTime` is raised in it if it is not ended in time. Returns the thread; 0 if
        there is no limit: in a call in another one, and in a debugger."""
        thread = threading.get_ident()
        if thread in self._started or _is_debugged():
            return 0
        self._started[thread] = time.monotonic()
        if not self._is_needed.is_set():
            self._watch()
        return thread

    def end(self, thread: int) -> None:
        """End a call. An exception that comes too late is dropped, or raised here; then call this again."""
        if thread:
            with self._lock:
                self._started.pop(thread, None)
                if thread in self._over:
                    _drop_pending()
                    self._over.discard(thread)

    def _watch(self) -> None:
        with self._lock:
            self._is_needed.set()
            if self._watcher is None:
                self._watcher = threading.Thread(target=self._look, name="holdfast migration limit", daemon=True)
                self._watcher.start()

    def _look(self) -> None:
        idle = 0
        while True:
            time.sleep(_LOOK_SECONDS)
            limit = time.monotonic() - MAX_SECONDS
            for thread, started in list(self._started.items()):
                if started < limit:
                    with self._lock:
                        if self._started.get(thread) == started:
                            self._started[thread] = time.monotonic()  # a function may handle it, and go on
                            self._over.add(thread)
                            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), _OVER_TIME)
            idle = 0 if self._started else idle + 1
            if idle > _IDLE_LOOKS:
                idle = 0
                self._is_needed.clear()
                if not self._started:  # a call that began meanwhile may have seen that it is needed still
                    self._is_needed.wait()


_OVER_TIME: Final = ctypes.py_object(OverTime)


def _drop_pending() -> None:
    """Raise an exception that is pending in this thread, and drop it: the interpreter raises it when it jumps back.

    To take it back instead, by `PyThreadState_SetAsyncExc` with no exception, leaves Python 3.11 in a state in which
    the next function that is traced never starts."""
    try:
        for _ in range(2):
            pass
    except OverTime:
        pass


def _is_debugged() -> bool:
    trace = sys.gettrace()
    return trace is not None and not type(trace).__module__.startswith("coverage")


TIME_LIMIT: Final = TimeLimit()
"""The limit for functions of migrations."""
