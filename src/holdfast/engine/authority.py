"""The authority under which threads are changed: who acts, and on which conditions.

A handle of an identity sets it for each of its operations, after the guard has permitted it. Whatever the operation
saves or changes of a thread then has the conditions of the permit, however deep in the engine it is done.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

from holdfast.engine.guard import Preconditions


class Authority(NamedTuple):
    """Who makes changes of threads, and on which conditions."""

    actor: str = ""
    """The identity; empty for the store's owner."""
    preconditions: Preconditions | None = None
    """The conditions of the permit."""


OWNER = Authority()
"""The authority of the store's owner: it is subject to no condition."""

_current: ContextVar[Authority] = ContextVar("holdfast_authority", default=OWNER)


def current_authority() -> Authority:
    """Return the authority of changes that are made now."""
    return _current.get()


@contextmanager
def acting(authority: Authority) -> Iterator[None]:
    """Make changes in this block under an authority."""
    token = _current.set(authority)
    try:
        yield
    finally:
        _current.reset(token)
