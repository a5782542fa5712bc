"""Trying again what failed for the moment: `retry:?store=postgresql://…&attempts=5`.

Stores over a network try again by themselves while a connection is lost. This is for what they give up on, and for
stores that do not: a SQLite file that others keep locked, a disk that is full for a while.

Only `TransientError` is tried again, since nothing was done then; `OutcomeUnknownError`, which says that a change may
have been made, never is. After `breaker` failures in a row the store is left alone for `rest` seconds: calls fail at
once, and then a single one is let through to see. Its success closes the breaker.

Options: `attempts` (5), `deadline` (30 seconds for all attempts of a call), `pause` (0.05 seconds before the second,
then twice as long each time, up to 2 seconds, each shortened by chance), `breaker` (10 failures), `rest` (5 seconds).
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from holdfast.backends.interface import Backend, Batch, Query, Row, WordMatch, WordMatches
from holdfast.backends.runtime.drivers import Pause
from holdfast.backends.runtime.fork_safety import renew_after_fork
from holdfast.backends.urls import seconds, whole
from holdfast.backends.wrappers import Wrapper
from holdfast.backends.wrappers.composite_urls import compose, open_parts, parts_of
from holdfast.errors import HoldfastError, OutcomeUnknownError, TransientError

T = TypeVar("T")

_LONGEST_PAUSE = 2.0


class RetryBackend(Wrapper):
    """Tries again, and leaves a store alone that keeps failing. See the module for the options."""

    schemes = ("retry",)
    takes_tenant = True

    def __init__(
        self,
        inner: Backend,
        *,
        attempts: int = 5,
        deadline: float = 30.0,
        pause: float = 0.05,
        breaker: int = 10,
        rest: float = 5.0,
    ) -> None:
        super().__init__(inner)
        self._attempts = attempts
        self._deadline = deadline
        self._pause = pause
        self._retried = 0
        self._breaker = _Breaker(breaker, rest)

    @classmethod
    async def open(cls, url: str, *, tenant: str | None = None, **options: Any) -> RetryBackend:
        """Open a store whose calls are tried again."""
        found = parts_of(url, "retry", ("attempts", "deadline", "pause", "breaker", "rest"), options)
        settings: dict[str, Any] = {
            name: whole(url, name, found[name], 1, 1_000_000) for name in ("attempts", "breaker") if name in found
        }
        settings |= {name: seconds(url, name, found[name]) for name in ("deadline", "pause", "rest") if name in found}
        (store,) = await open_parts(found["store"], tenant=tenant)
        return cls(store, **settings)

    @property
    def url(self) -> str:
        return compose("retry", store=self.inner.url)

    async def read(self, queries: Sequence[Query]) -> list[list[Row]]:
        return await self._insist(lambda: self.inner.read(queries))

    async def apply(self, batch: Batch) -> int | None:
        return await self._insist(lambda: self.inner.apply(batch))

    async def matched(self, match: WordMatch) -> WordMatches:
        return await self._insist(lambda: self.inner.matched(match))

    async def size(self) -> int:
        return await self._insist(self.inner.size)

    async def check(self) -> list[str]:
        return await self._insist(self.inner.check)

    async def tidy(self) -> None:
        await self._insist(self.inner.tidy)

    async def status(self) -> dict[str, int | float | str]:
        return {**await self.inner.status(), "retried": self._retried, **self._breaker.told()}

    async def _insist(self, ask: Callable[[], Coroutine[Any, Any, T]]) -> T:
        deadline = time.monotonic() + self._deadline
        pause = self._pause
        attempt = 1
        while True:
            self._breaker.admit(self.url)
            try:
                answer = await ask()
            except TransientError as error:
                self._breaker.failed()
                pause_now = pause * random.uniform(0.5, 1)  # noqa: S311 - so that not all come back at once
                over = attempt >= self._attempts or time.monotonic() + pause_now >= deadline
                if over or isinstance(error, OutcomeUnknownError):
                    raise
            except HoldfastError:
                self._breaker.answered()
                raise
            except BaseException:
                self._breaker.left()
                raise
            else:
                self._breaker.answered()
                return answer
            await Pause(pause_now)
            pause = min(2 * pause, _LONGEST_PAUSE)
            attempt += 1
            self._retried += 1


class _Breaker:
    """Open after some failures in a row; then one call at a time is let through to try."""

    def __init__(self, most: int, rest: float) -> None:
        self._most = most
        self._rest = rest
        self._failures = 0
        self._opened = 0
        self._again = 0.0
        self._trying = False
        self.renew_locks()
        renew_after_fork(self)

    def renew_locks(self) -> None:
        """For a forked child, in which no call is under way."""
        self._lock = threading.Lock()
        self._trying = False

    def admit(self, where: str) -> None:
        """Raise `TransientError` if the store is to be left alone."""
        with self._lock:
            if self._failures < self._most:
                return
            left = self._again - time.monotonic()
            if left <= 0 and not self._trying:
                self._trying = True
                return
            raise TransientError(
                f"the store failed {self._failures} times in a row and is left alone: the breaker is open, "
                f"next try in {max(left, 0):.1f} s",
                where=where,
                hint="Nothing was done. Look at the store, and try again later",
            )

    def failed(self) -> None:
        with self._lock:
            self._failures += 1
            self._trying = False
            if self._failures >= self._most:
                self._opened += self._failures == self._most
                self._again = time.monotonic() + self._rest

    def answered(self) -> None:
        with self._lock:
            self._failures = 0
            self._trying = False

    def left(self) -> None:
        """Nobody waited for the answer: it is still open whether the store works."""
        with self._lock:
            self._trying = False

    def told(self) -> dict[str, int | float | str]:
        with self._lock:
            is_open = self._failures >= self._most
            state = "trying" if self._trying else "open" if is_open else "closed"
            return {"breaker": state, "breaker_opened": self._opened, "failures_in_a_row": self._failures}
