"""A wait for the result of another thread or task.

It is apart from the drivers, which every command loads: `concurrent.futures` takes longer to import than they do.
"""

from __future__ import annotations

from concurrent.futures import Future
from typing import TYPE_CHECKING, TypeVar

from holdfast.backends.interface import Suspension

if TYPE_CHECKING:
    import asyncio

T = TypeVar("T")


class FutureWait(Suspension[T]):
    """A wait for a result that another thread or task sets in the future. Cancelling the wait cancels nothing."""

    def __init__(self) -> None:
        self.future: Future[T] = Future()
        self.future.set_running_or_notify_cancel()

    def begin(self) -> None:
        """Start what is waited for. Called once, when the wait begins."""

    def wait(self) -> T:
        self.begin()
        return self.future.result()

    def watch(self) -> asyncio.Future[T]:
        import asyncio

        self.begin()
        return asyncio.wrap_future(self.future)
