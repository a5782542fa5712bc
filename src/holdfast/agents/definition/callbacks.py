"""Call functions of an agent's author: plain functions, or coroutine functions under asyncio."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine
from typing import Any

from holdfast.backends.interface import Suspension
from holdfast.errors import InvalidError


class _CallbackWait(Suspension[Any]):
    def __init__(self, coroutine: Coroutine[Any, Any, Any], name: str) -> None:
        self._coroutine = coroutine
        self._name = name

    def wait(self) -> Any:
        self._coroutine.close()
        raise InvalidError(
            "an agent of a Store has no event loop for coroutine functions",
            where=self._name,
            hint="Write it with `def`, or use AsyncPersistentAgent on an AsyncStore",
        )

    def watch(self) -> asyncio.Future[Any]:
        return asyncio.ensure_future(self._coroutine)


async def invoke(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a function, await its result if that is a coroutine, and return it."""
    result = function(*args, **kwargs)
    if inspect.iscoroutine(result):
        return await _CallbackWait(result, getattr(function, "__qualname__", repr(function)))
    return result
