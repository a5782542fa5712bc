"""Retries of transient errors: `retry:?store=postgresql://…&attempts=5`.

Stores over a network retry automatically while a connection is lost. This is for what they give up on, and for stores
that do not retry: a SQLite file that others keep locked, a disk that is full for a while.

Only `TransientError` is retried, since nothing was changed then; never `OutcomeUnknownError`, with which a change may
have been applied. After `breaker` failures in a row the breaker opens: calls fail at once for `rest` seconds, and then
a single one is tried. Its success closes the breaker.

Options: `attempts` (5), `deadline` (30 seconds for all attempts of a call), `pause` (0.05 seconds before the second,
doubled each time up to 2 seconds, with jitter), `breaker` (10 failures), `rest` (5 seconds).
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Coroutine
from typing import Any, ClassVar, TypeVar

from holdfast.backends.interface import Backend
from holdfast.backends.runtime.breaker import CircuitBreaker
from holdfast.backends.runtime.drivers import Pause
from holdfast.backends.runtime.fork_safety import reinit_after_fork
from holdfast.backends.urls import compose, parse_duration, parse_int
from holdfast.backends.wrappers import Wrapper, open_parts, parse_composition
from holdfast.errors import HoldfastError, OutcomeUnknownError, TransientError

T = TypeVar("T")

_MAX_PAUSE = 2.0


class RetryBackend(Wrapper):
    """Retries calls, with a breaker. See the module for the options."""

    schemes: ClassVar[tuple[str, ...]] = ("retry",)
    takes_tenant = True
    takes_read_only = True

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
        nanoseconds = int(rest * 1e9)
        self._breaker = CircuitBreaker(time.monotonic_ns, breaker, nanoseconds, nanoseconds)
        reinit_after_fork(self)

    def reinit_locks(self) -> None:
        self._breaker.reinit_locks()

    @classmethod
    async def open(
        cls, url: str, *, tenant: str | None = None, read_only: bool = False, **options: Any
    ) -> RetryBackend:
        found = parse_composition(url, "retry", ("attempts", "deadline", "pause", "breaker", "rest"), options)
        settings: dict[str, Any] = {
            name: parse_int(url, name, found[name], 1, 1_000_000) for name in ("attempts", "breaker") if name in found
        }
        settings |= {
            name: parse_duration(url, name, found[name]) for name in ("deadline", "pause", "rest") if name in found
        }
        (store,) = await open_parts(found["store"], tenant=tenant, read_only=read_only, may_lag=True)
        return cls(store, **settings)

    @property
    def url(self) -> str:
        return compose("retry", store=self.inner.url)

    async def status(self) -> dict[str, int | float | str]:
        breaker = self._breaker
        return {
            **await self.inner.status(),
            "retried": self._retried,
            "breaker": breaker.state,
            "breaker_opened": breaker.opened,
            "failures_in_a_row": breaker.failures,
        }

    async def _forward(self, call: Callable[[Backend], Coroutine[Any, Any, T]]) -> T:
        deadline = time.monotonic() + self._deadline
        pause = self._pause
        attempt = 1
        while True:
            if not self._breaker.allows():
                raise self._open_error()
            is_trial = bool(self._breaker.until)
            try:
                answer = await call(self.inner)
            except TransientError as error:
                self._breaker.failed()
                pause_now = pause * random.uniform(0.5, 1)  # noqa: S311 - so that not all retry at once
                last = attempt >= self._attempts or time.monotonic() + pause_now >= deadline
                if last or isinstance(error, OutcomeUnknownError):
                    raise
            except HoldfastError:
                self._breaker.succeeded()
                raise
            except BaseException:
                if is_trial:  # otherwise the trial, if there is one, is another call's
                    self._breaker.cancel_trial()
                raise
            else:
                self._breaker.succeeded()
                return answer
            await Pause(pause_now)
            pause = min(2 * pause, _MAX_PAUSE)
            attempt += 1
            self._retried += 1

    def _open_error(self) -> TransientError:
        left = max(self._breaker.until - time.monotonic_ns(), 0) / 1e9
        return TransientError(
            f"the store failed {self._breaker.failures} times in a row: the breaker is open, next try in {left:.1f} s",
            where=self.url,
            hint="Nothing was changed. Check the store, and try again later",
        )
