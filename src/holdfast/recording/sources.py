"""Sources of values for the code of nodes and agents: the clock, chance, ids, and any function that is wrapped.

While a run is recorded they record what they return; in a replay they return the same; otherwise they are what they
are.
"""

from __future__ import annotations

import inspect
import random as _random
import uuid as _uuid
from collections.abc import Callable
from datetime import UTC, datetime
from functools import wraps
from typing import Any, TypeVar, overload

from holdfast.recording.journal import current_journal

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

_chance = _random.SystemRandom()


def now() -> datetime:
    """Return the time, in UTC."""
    return _value("clock", lambda: datetime.now(UTC))


def random() -> float:
    """Return a random number from 0 up to 1."""
    return _value("random", _chance.random)


def uuid4() -> _uuid.UUID:
    """Return a new random id."""
    return _value("uuid", _uuid.uuid4)


def _value(kind: str, function: Callable[[], T]) -> T:
    journal = current_journal.get()
    found: T = function() if journal is None else journal.invoke(kind, kind, None, function)
    return found


@overload
def recorded(function: F, /) -> F: ...
@overload
def recorded(*, name: str) -> Callable[[F], F]: ...
def recorded(function: Any = None, /, *, name: str = "") -> Any:
    """Wrap a function so that its calls are recorded, and answered from the recording in a replay: for what is neither
    a chat model nor a tool, such as a request with a client of a provider's own. Async functions, too."""
    if function is None:
        return lambda decorated: _wrap(decorated, name)
    return _wrap(function, name)


def _wrap(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    known = name or getattr(function, "__qualname__", type(function).__name__)
    skipped = 1 if _is_method(function) else 0

    def given(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        return [list(args[skipped:]), kwargs] if kwargs else [list(args[skipped:])]

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        journal = current_journal.get()
        if journal is None:
            return function(*args, **kwargs)
        return journal.invoke("call", known, given(args, kwargs), lambda: function(*args, **kwargs))

    @wraps(function)
    async def acall(*args: Any, **kwargs: Any) -> Any:
        journal = current_journal.get()
        if journal is None:
            return await function(*args, **kwargs)
        return await journal.ainvoke("call", known, given(args, kwargs), lambda: function(*args, **kwargs))

    return acall if inspect.iscoroutinefunction(function) else call


def _is_method(function: Callable[..., Any]) -> bool:
    """Return whether a function is defined in a class: the object that it is called on is no input of its own."""
    if "." not in getattr(function, "__qualname__", "").rpartition("<locals>.")[2]:
        return False
    return next(iter(inspect.signature(function).parameters), "") in ("self", "cls")
