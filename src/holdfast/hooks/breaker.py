"""A circuit breaker: switches off what fails again and again, and tries it again after a while."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock

FAILURES = 5
"""After so many failures in a row, a hook is switched off."""

REST, LONGEST_REST = 30 * 10**9, 600 * 10**9
"""For how many nanoseconds: at first, and at most. Each time that it fails again, it is twice as long."""


class HookBreaker:
    """Whether a hook is called. After a rest one call is let through: if that goes well, the hook is back."""

    def __init__(
        self, clock: Callable[[], int], failures: int = FAILURES, rest: int = REST, longest: int = LONGEST_REST
    ) -> None:
        self._clock = clock
        self._most = failures
        self._first_rest = self._rest = rest
        self._longest = longest
        self.failures = 0
        """How often it failed in a row; while it is off, it did."""
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

    def lets(self) -> bool:
        """Whether to call it now. Whoever is told so tells how it went."""
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
        """It went well. Returns whether the hook was off, and is back."""
        if not self.failures and not self.until:
            return False
        with self._lock:
            was_off, self.until, self.failures, self._trying = bool(self.until), 0, 0, False
            self._rest = self._first_rest
            return was_off

    def failed(self) -> bool:
        """It did not. Returns whether the hook was just switched off."""
        with self._lock:
            self.failures += 1
            if self._trying:
                self._rest = min(2 * self._rest, self._longest)
            elif self.failures < self._most or self.until:
                return False
            self._trying = False
            self.until = self._clock() + self._rest
            return True

    def left(self) -> None:
        """It was not called after all: whether it would go well is still open."""
        with self._lock:
            self._trying = False

    def reinit_locks(self) -> None:
        """For a forked child."""
        self._lock = Lock()
        self._trying = False
