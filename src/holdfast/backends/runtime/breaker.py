"""A circuit breaker: it stops calls that keep failing, and tries again later."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import Literal, TypeAlias

BreakerState: TypeAlias = Literal["closed", "open", "trying"]
"""The state of a breaker: calls are made, are not made, or a single one is tried."""

MAX_FAILURES = 5
"""The number of failures in a row after which a breaker opens, by default."""

REST, LONGEST_REST = 30 * 10**9, 600 * 10**9
"""The first and the longest rest, in nanoseconds. It doubles each time that a trial fails."""


class CircuitBreaker:
    """Decides whether a call is made. After a rest, a single one is tried; if it succeeds, the breaker closes."""

    def __init__(
        self, clock: Callable[[], int], failures: int = MAX_FAILURES, rest: int = REST, longest: int = LONGEST_REST
    ) -> None:
        self._clock = clock
        self._max_failures = failures
        self._first_rest = self._rest = rest
        self._longest = longest
        self.failures: int = 0
        """The number of failures in a row."""
        self.opened: int = 0
        """The number of times that it opened."""
        self._trying = False
        self._lock = Lock()
        self.until: int = 0
        """When a call is tried again, by the clock, in nanoseconds; 0 while it is closed."""

    @property
    def state(self) -> BreakerState:
        """The state; `trying` as soon as a call may be tried."""
        if not self.until:
            return "closed"
        return "trying" if self._trying or self._clock() >= self.until else "open"

    def allows(self) -> bool:
        """Whether to make a call now. The caller then reports the outcome."""
        if not self.until:
            return True
        with self._lock:
            if not self.until:
                return True
            if self._trying or self._clock() < self.until:
                return False
            self._trying = True
            return True

    def succeeded(self) -> bool:
        """Report a success. Returns whether the breaker was open, and is closed again."""
        if not self.failures and not self.until:
            return False
        with self._lock:
            was_open, self.until, self.failures, self._trying = bool(self.until), 0, 0, False
            self._rest = self._first_rest
            return was_open

    def failed(self) -> bool:
        """Report a failure. Returns whether that opened the breaker, for the first time or again."""
        with self._lock:
            self.failures += 1
            if self._trying:
                self._rest = min(2 * self._rest, self._longest)
            elif self.failures < self._max_failures or self.until:
                return False
            self.opened += not self.until
            self._trying = False
            self.until = max(1, self._clock() + self._rest)
            return True

    def cancel_trial(self) -> None:
        """Report that the call was not made after all, or that its outcome is not known."""
        with self._lock:
            self._trying = False

    def reinit_locks(self) -> None:
        """Reinitialize in a forked child, which has no call in progress."""
        self._lock = Lock()
        self._trying = False
