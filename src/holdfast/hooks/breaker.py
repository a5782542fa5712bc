"""A circuit breaker: it switches off a hook that keeps failing, and tries it again later."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock

MAX_FAILURES = 5
"""The number of failures in a row after which a hook is switched off."""

REST, LONGEST_REST = 30 * 10**9, 600 * 10**9
"""The first and the longest rest, in nanoseconds. It doubles each time that the hook fails again."""


class HookBreaker:
    """Decides whether a hook is called. After a rest, one call is let through; if it succeeds, the hook is on again."""

    def __init__(
        self, clock: Callable[[], int], failures: int = MAX_FAILURES, rest: int = REST, longest: int = LONGEST_REST
    ) -> None:
        self._clock = clock
        self._max_failures = failures
        self._first_rest = self._rest = rest
        self._longest = longest
        self.failures = 0
        """The number of failures in a row."""
        self._trying = False
        self._lock = Lock()
        self.until = 0
        """When it is tried again, in nanoseconds since 1970; 0 while it is on."""

    @property
    def state(self) -> str:
        """`on`, `off`, or `trying`, once it may be tried again."""
        if not self.until:
            return "on"
        return "trying" if self._trying or self._clock() >= self.until else "off"

    def allows(self) -> bool:
        """Whether to call the hook now. The caller then reports the outcome."""
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
        """Report a success. Returns whether the hook was off, and is on again."""
        if not self.failures and not self.until:
            return False
        with self._lock:
            was_off, self.until, self.failures, self._trying = bool(self.until), 0, 0, False
            self._rest = self._first_rest
            return was_off

    def failed(self) -> bool:
        """Report a failure. Returns whether the hook was just switched off."""
        with self._lock:
            self.failures += 1
            if self._trying:
                self._rest = min(2 * self._rest, self._longest)
            elif self.failures < self._max_failures or self.until:
                return False
            self._trying = False
            self.until = self._clock() + self._rest
            return True

    def cancel_trial(self) -> None:
        """Report that the hook was not called after all."""
        with self._lock:
            self._trying = False

    def reinit_locks(self) -> None:
        """Reinitialize in a forked child."""
        self._lock = Lock()
        self._trying = False
