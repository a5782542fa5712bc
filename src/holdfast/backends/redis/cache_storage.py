"""Storage of a read cache in Redis, shared by several processes: `redis://host:6379/1`.

It implements `holdfast.backends.wrappers.cache.CacheStorage`. If the server cannot be reached, calls raise
`TransientError`, and for a second after that without trying: a cache that is down must not slow everything down.
`status` counts the failures.

Use a server or a database of its own, with `maxmemory` and `maxmemory-policy allkeys-lru`: any entry may be evicted at
any time. `prefix` in the URL replaces `holdfast-cache`, the start of all keys.

This uses the plain client of redis-py in the caller's thread: there are no groups, no retries, and no order between
callers.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from redis import Redis, exceptions
from redis.backoff import NoBackoff
from redis.retry import Retry

from holdfast.backends.interface import BlockingCall
from holdfast.backends.redis.connections import connection_arguments
from holdfast.backends.redis.errors import translate_connect_error
from holdfast.backends.runtime.fork_safety import reinit_after_fork
from holdfast.backends.urls import redacted_url, split_options
from holdfast.errors import ConfigError, TransientError, UnavailableError

T = TypeVar("T")

_TIMEOUT = 1.0
"""How many seconds to wait for an answer, and to pause after none came."""


class RedisCacheStorage:
    """Stores cached values in Redis."""

    def __init__(self, url: str) -> None:
        self._url = redacted_url(url)
        bare, options = split_options(url, {"prefix": ""}, {})
        self._prefix = f"{{{options.get('prefix', 'holdfast-cache')}}}:".encode()
        connection_arguments(bare)  # raises if it is invalid
        patience = {"socket_timeout": _TIMEOUT, "socket_connect_timeout": _TIMEOUT}
        scheme, _, rest = bare.partition("://")
        self._client: Redis = Redis.from_url(
            f"{scheme.replace('valkey', 'redis')}://{rest}", protocol=2, retry=Retry(NoBackoff(), 0), **patience
        )
        self._down_until = 0.0
        self._failures = 0
        self._closed = False
        self.reinit_locks()
        reinit_after_fork(self)

    @classmethod
    async def open(cls, url: str) -> RedisCacheStorage:
        """Open the storage. A server that cannot be reached is no error, since it may be later; a wrong password is."""
        storage = cls(url)
        await BlockingCall(storage._check)
        return storage

    @property
    def url(self) -> str:
        """The URL without the password."""
        return self._url

    async def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the value of each key, or None."""
        if not keys:
            return []
        names = self._names(keys)
        values: list[bytes | None] = await self._call(lambda: self._client.mget(names))
        return values

    async def put_many(self, values: Mapping[bytes, bytes], seconds: float) -> None:
        """Store values for at most so many seconds."""
        milliseconds = int(seconds * 1000)
        if not values or milliseconds < 1:
            return

        def put() -> None:
            with self._client.pipeline(transaction=False) as pipeline:
                for key, value in values.items():
                    pipeline.set(self._prefix + key, value, px=milliseconds)
                pipeline.execute()

        await self._call(put)

    async def drop(self, keys: Sequence[bytes]) -> None:
        """Delete keys. When this returns, no process reads them any more."""
        if keys:
            names = self._names(keys)
            await self._call(lambda: self._client.delete(*names))

    def status(self) -> dict[str, int]:
        """How often the server could not be used."""
        return {"failures": self._failures}

    async def close(self) -> None:
        """Wait for calls in progress, and close the connections. May be called again."""
        await BlockingCall(self._close_now)

    def reinit_locks(self) -> None:
        """Forget the calls of the parent's threads, in a forked child."""
        self._calls = 0
        self._idle = threading.Condition()

    def _names(self, keys: Sequence[bytes]) -> list[bytes]:
        return [self._prefix + key for key in keys]

    def _check(self) -> None:
        try:
            self._client.ping()
        except (exceptions.AuthenticationError, exceptions.ResponseError, TypeError) as error:
            raise ConfigError(f"the cache cannot be used: {error}", where=self._url, hint="Check the URL") from error
        except (exceptions.RedisError, OSError) as error:
            translated = translate_connect_error(error, self._url)
            if isinstance(translated, ConfigError):  # such as a certificate that is not trusted
                raise translated from error
            self._record_failure()

    def _record_failure(self) -> None:
        self._failures += 1
        self._down_until = time.monotonic() + _TIMEOUT

    async def _call(self, request: Callable[[], Any]) -> Any:
        call: BlockingCall[Any] = BlockingCall(lambda: self._call_now(request))
        return await call

    def _call_now(self, request: Callable[[], Any]) -> Any:
        with self._idle:
            if self._closed:
                raise UnavailableError("the cache is closed", where=self._url, hint="Open it again")
            if time.monotonic() < self._down_until:
                raise TransientError("the cache could not be reached a moment ago", where=self._url)
            self._calls += 1
        try:
            return request()
        except (exceptions.RedisError, OSError) as error:
            self._record_failure()
            raise TransientError(f"the cache could not be used: {error}", where=self._url) from error
        finally:
            with self._idle:
                self._calls -= 1
                self._idle.notify_all()

    def _close_now(self) -> None:
        # redis-py closes connections that other threads use, and those threads fail in its internals. A call ends
        # within its timeouts to connect and to answer.
        with self._idle:
            self._closed = True
            self._idle.wait_for(lambda: not self._calls, timeout=2 * _TIMEOUT)
        self._client.close()
