"""Waiting for a backend's coroutines in a thread, and pausing in one of them."""

from __future__ import annotations

import time
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from holdfast.backends.port import Suspension

if TYPE_CHECKING:
    import asyncio

T = TypeVar("T")


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """What a coroutine returns, waiting in this thread."""
    try:
        suspension = coroutine.send(None)
        while True:
            try:
                value = suspension.wait()
            except BaseException as error:  # noqa: BLE001 - goes on where it belongs
                suspension = coroutine.throw(error)
            else:
                suspension = coroutine.send(value)
    except StopIteration as stop:
        result: T = stop.value
        return result


class Pause(Suspension[None]):
    """Nothing, for some seconds."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def wait(self) -> None:
        time.sleep(self._seconds)

    def watch(self) -> asyncio.Future[None]:
        import asyncio

        return asyncio.ensure_future(asyncio.sleep(self._seconds))
