"""Guarded operations on threads: each says which rights it needs, and runs only if the handle's guard gives them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from functools import wraps
from typing import Any, TypeVar, cast

from holdfast.engine.authority import OWNER, Authority, acting, current_authority
from holdfast.engine.guard import both_preconditions
from holdfast.engine.row_format import Line
from holdfast.errors import NotFoundError
from holdfast.security.access.policy import Right
from holdfast.security.handle import StoreHandle

Operation = TypeVar("Operation", bound=Callable[..., Coroutine[Any, Any, Any]])


def needs(*rights: Right, creates: bool = False) -> Callable[[Operation], Operation]:
    """Return a decorator of operations of a thread's handle: they run if the guard gives these rights to it. Those that
    are marked create the thread if there is none."""

    def decorate(operation: Operation) -> Operation:
        @wraps(operation)
        async def guarded(self: Any, *args: Any, **kwargs: Any) -> Any:
            if not self._handle.guard.actor and current_authority() is OWNER:
                return await operation(self, *args, **kwargs)
            async with thread_access(self._handle, self._line, rights, creates=creates):
                return await operation(self, *args, **kwargs)

        return cast(Operation, guarded)

    return decorate


def on_thread(
    *rights: Right, creates: bool = False, missing: Callable[[], object] | None = None
) -> Callable[[Operation], Operation]:
    """Return a decorator of operations that take the name of a thread: they run if the guard gives these rights to it.
    For an identity without them, `missing` returns what they return if there is no such thread."""

    def decorate(operation: Operation) -> Operation:
        @wraps(operation)
        async def guarded(self: Any, thread: str, *args: Any, **kwargs: Any) -> Any:
            if not self._handle.guard.actor and current_authority() is OWNER:
                return await operation(self, thread, *args, **kwargs)
            try:
                async with thread_access(self._handle, self._line(thread), rights, creates=creates):
                    return await operation(self, thread, *args, **kwargs)
            except NotFoundError:
                if missing is None or not self._handle.guard.actor:
                    raise
                return missing()

        return cast(Operation, guarded)

    return decorate


@asynccontextmanager
async def thread_access(
    handle: StoreHandle, line: Line, rights: Iterable[Right], *, creates: bool = False
) -> AsyncIterator[None]:
    """Require rights to a thread, and act under them. What is read is checked and recorded again at the end: a right
    may be revoked meanwhile."""
    guard, required = handle.guard, tuple(rights)
    preconditions = current_authority().preconditions if current_authority().actor == guard.actor else None
    for right in required:
        permit = await guard.allow_thread(right, line, creates=creates)
        preconditions = both_preconditions(preconditions, permit.guards)
    authority = Authority(guard.actor, preconditions) if guard.actor else OWNER
    with acting(authority):
        yield
    if "read" in required:
        await guard.saw_thread(line)
