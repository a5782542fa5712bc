"""The trace of a change: its correlation id, its cause, and the artifacts that it belongs to.

It follows the flow of a program automatically: into functions that it calls and tasks that it starts, and into threads
that run a `bound` function (`asyncio.to_thread` binds automatically).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from functools import wraps
from typing import ParamSpec, TypeVar

from holdfast._named_tuple import NamedTuple
from holdfast.engine.model.scopes import check_key
from holdfast.engine.rng import rng

P = ParamSpec("P")
T = TypeVar("T")


class Trace(NamedTuple):
    """What a change belongs to. `cause` is the id of the event that triggered it."""

    correlation: str = ""
    cause: str = ""
    artifacts: tuple[str, ...] = ()


NO_TRACE = Trace()
"""The trace of changes that belong to nothing."""

_current: ContextVar[Trace] = ContextVar("holdfast_trace", default=NO_TRACE)


def current() -> Trace:
    """Return the trace of changes that are made now."""
    return _current.get()


def enter(trace: Trace) -> None:
    """Set the trace of this context from now on: for contexts that were just copied."""
    _current.set(trace)


def current_or_new(default: str = "") -> Trace:
    """Return the current trace; if it has no correlation id, with a default or a new one."""
    trace = _current.get()
    return trace if trace.correlation else trace._replace(correlation=default or f"{rng.getrandbits(64):016x}")


@contextmanager
def correlation(id: str | None = None, *, cause: str | None = None) -> Iterator[str]:
    """Give all changes in this block one correlation id: this one, the current one, or a new one."""
    trace = current_or_new()
    if id is not None:
        trace = trace._replace(correlation=check_key(id, "correlation id"))
    if cause is not None:
        trace = trace._replace(cause=check_key(cause, "cause"))
    token = _current.set(trace)
    try:
        yield trace.correlation
    finally:
        _current.reset(token)


@contextmanager
def link_artifacts(*artifacts: str) -> Iterator[None]:
    """Link all changes in this block with these artifacts, too."""
    trace = _current.get()
    token = _current.set(trace._replace(artifacts=tuple(dict.fromkeys((*trace.artifacts, *artifacts)))))
    try:
        yield
    finally:
        _current.reset(token)


def bound(function: Callable[P, T]) -> Callable[P, T]:
    """Return a function that runs in the current context, for a thread that is started later."""
    context = copy_context()

    @wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        return context.copy().run(function, *args, **kwargs)

    return run
