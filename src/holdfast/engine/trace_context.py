"""Why something is done: the correlation id, the cause, and the artifacts that what is done now belongs to.

They follow the flow of a program by themselves: into functions it calls and tasks it starts, and into threads that are
given a `bound` function (`asyncio.to_thread` does so by itself).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from functools import wraps
from typing import NamedTuple, ParamSpec, TypeVar

from holdfast.engine.model.scopes import check_key
from holdfast.engine.rng import chance

P = ParamSpec("P")
T = TypeVar("T")


class Trace(NamedTuple):
    """What a change belongs to. `cause` is the id of the event that it was made in answer to."""

    correlation: str = ""
    cause: str = ""
    artifacts: tuple[str, ...] = ()


_current: ContextVar[Trace] = ContextVar("holdfast_trace", default=Trace())  # noqa: B039 - it is immutable


def current() -> Trace:
    """What is done now belongs to this."""
    return _current.get()


def enter(trace: Trace) -> None:
    """Have what is done from now on in this context belong to something else: for contexts that were just copied."""
    _current.set(trace)


def traced() -> Trace:
    """The same; with a correlation id of its own, where there is none."""
    trace = _current.get()
    return trace if trace.correlation else Trace(f"{chance.getrandbits(64):016x}", trace.cause, trace.artifacts)


@contextmanager
def correlation(id: str | None = None, *, cause: str | None = None) -> Iterator[str]:
    """All changes made in this block carry one correlation id: this one, the one at work already, or a new one."""
    trace = traced()
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
def linked(*artifacts: str) -> Iterator[None]:
    """All changes made in this block are linked with these artifacts, too."""
    trace = _current.get()
    token = _current.set(trace._replace(artifacts=tuple(dict.fromkeys((*trace.artifacts, *artifacts)))))
    try:
        yield
    finally:
        _current.reset(token)


def bound(function: Callable[P, T]) -> Callable[P, T]:
    """The function, run in the context that there is now: for a thread that another one starts."""
    context = copy_context()

    @wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        return context.copy().run(function, *args, **kwargs)

    return run
