"""Waiting for what another process does: looking again and again, less often the longer nothing comes."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from holdfast.backends.runtime.drivers import Pause
from holdfast.time_parsing import Duration, parse_seconds

T = TypeVar("T")

_SHORTEST, _LONGEST = 0.002, 0.25
"""How many seconds there are between two looks, at first and at most."""


async def until(look: Callable[[], Awaitable[T | None]], timeout: Duration | None) -> T | None:
    """What `look` finds, as soon as it finds anything; None if that was not within so many seconds. It looks once at
    least; without a timeout, for ever."""
    end = None if timeout is None else time.monotonic() + parse_seconds(timeout, "timeout")
    pause = _SHORTEST
    while True:
        found = await look()
        left = _LONGEST if end is None else end - time.monotonic()
        if found is not None or left <= 0:
            return found
        await Pause(min(pause, left))
        pause = min(2 * pause, _LONGEST)
