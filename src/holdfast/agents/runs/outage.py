"""Stores that do not answer for a while."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from holdfast.backends.runtime.drivers import Pause
from holdfast.errors import TransientError, UnavailableError

_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.05, 2.0
"""The pauses between two requests to a store that does not answer, in seconds."""

T = TypeVar("T")


async def until_answered(action: Callable[[], Awaitable[T]], seconds: float) -> T:
    """Do something that may be done twice, again if the store does not answer, for some seconds."""
    pause, waited = _SHORTEST_PAUSE, 0.0
    while True:
        try:
            return await action()
        except (TransientError, UnavailableError):
            if waited >= seconds:
                raise
        await Pause(pause)
        waited, pause = waited + pause, min(2 * pause, _LONGEST_PAUSE)
