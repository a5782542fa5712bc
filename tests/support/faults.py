"""A store that fails when told to, to test what is built on stores."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from holdfast.backends.interface import Backend, Batch, BlockingCall, Query, Row, WordMatch, WordMatches
from holdfast.backends.wrappers import Wrapper
from holdfast.errors import HoldfastError, UnavailableError


@dataclass(frozen=True)
class Fault:
    """What goes wrong with the n-th `read` or `apply` (the first is 1), and with as many after it as `times` says.

    `match` counts as a `read`.
    `before`: it fails and nothing was done. `after`: it was done, but the caller gets the error, as when an
    acknowledgement is lost. Without an error the call is only delayed.
    """

    on: Literal["read", "apply"]
    nth: int
    error: Callable[[], HoldfastError] | None = None
    when: Literal["before", "after"] = "before"
    times: int = 1
    delay: float = 0.0

    def strikes(self, on: str, call: int) -> bool:
        """Whether this call of that name is meant."""
        return on == self.on and self.nth <= call < self.nth + self.times


def acknowledgement_lost(nth: int) -> Fault:
    """The n-th batch is made, and its caller is told that it may or may not have been."""
    return Fault(
        "apply", nth, lambda: UnavailableError("the acknowledgement was lost", hint="Open the store again"), "after"
    )


class Faults(Wrapper):
    """Follows a plan of faults. `reads` and `applies` count the calls so far."""

    def __init__(self, inner: Backend, plan: Iterable[Fault] = ()) -> None:
        super().__init__(inner)
        self._lock = threading.Lock()
        self.plan = list(plan)
        self.reads = 0
        self.applies = 0

    async def read(self, queries: Sequence[Query]) -> list[list[Row]]:
        with self._lock:
            self.reads += 1
            faults = self._of("read", self.reads)
        await _strike(faults, "before")
        found = await self.inner.read(queries)
        await _strike(faults, "after")
        return found

    async def match_words(self, match: WordMatch) -> WordMatches:
        with self._lock:
            self.reads += 1
            faults = self._of("read", self.reads)
        await _strike(faults, "before")
        found = await self.inner.match_words(match)
        await _strike(faults, "after")
        return found

    async def apply(self, batch: Batch) -> int | None:
        with self._lock:
            self.applies += 1
            faults = self._of("apply", self.applies)
        await _strike(faults, "before")
        refused = await self.inner.apply(batch)
        await _strike(faults, "after")
        return refused

    def _of(self, on: str, call: int) -> list[Fault]:
        return [fault for fault in self.plan if fault.strikes(on, call)]


async def _strike(faults: list[Fault], when: str) -> None:
    for fault in faults:
        if fault.when == when:
            if fault.delay:
                await BlockingCall(partial(time.sleep, fault.delay))
            if fault.error is not None:
                raise fault.error()
