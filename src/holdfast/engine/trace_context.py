"""The trace of a change: its correlation id, its cause, and the artifacts that it belongs to.

It follows the flow of a program automatically: into functions that it calls and tasks that it starts, and into threads
that run a `bound` function (`asyncio.to_thread` binds automatically).
"""

from __future__ import annotations

import sys
import time
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
    """The trace that a change belongs to. `cause` is the id of the event that triggered it."""

    correlation: str = ""
    cause: str = ""
    artifacts: tuple[str, ...] = ()


NO_TRACE = Trace()
"""The trace of changes that belong to nothing."""

_current: ContextVar[Trace] = ContextVar("holdfast_trace", default=NO_TRACE)


_OPENTELEMETRY = "opentelemetry.trace"


def current() -> Trace:
    """Return the trace of changes that are made now. Without a cause, it is the current span of OpenTelemetry, where
    the program uses that; and without a correlation id, the id of its trace."""
    trace = _current.get()
    return trace if trace.cause or _OPENTELEMETRY not in sys.modules else _in_span(trace)


def _in_span(trace: Trace) -> Trace:
    span = sys.modules[_OPENTELEMETRY].get_current_span().get_span_context()
    if not span.is_valid:
        return trace
    id = f"{span.trace_id:032x}"
    return trace._replace(
        correlation=trace.correlation or id, cause=f"00-{id}-{span.span_id:016x}-{span.trace_flags & 255:02x}"
    )


def enter(trace: Trace) -> None:
    """Set the trace of this context from now on: for contexts that were just copied."""
    _current.set(trace)


def current_or_new(default: str = "") -> Trace:
    """Return the current trace; if it has no correlation id, with a default or a new one. New ones sort by time."""
    trace = current_or_default(default)
    return trace if trace.correlation else trace._replace(correlation=_new_id())


def current_or_default(default: str) -> Trace:
    """Return the current trace; with a correlation id of its own, or this one, which may be empty."""
    trace = current()
    return trace._replace(correlation=default) if default and not _current.get().correlation else trace


def _new_id() -> str:
    return f"{time.time_ns() // 1_000_000:012x}{rng.getrandbits(48):012x}"


@contextmanager
def correlation(id: str | None = None, *, cause: str | None = None) -> Iterator[str]:
    """Give all changes in this block one correlation id: this one, the current one, or a new one."""
    trace = _current.get()  # without the current span: those of the block are other ones
    if id is not None:
        trace = trace._replace(correlation=check_key(id, "correlation id"))
    elif not trace.correlation:
        trace = trace._replace(correlation=current_or_new().correlation)
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
