"""A room for a read cache in Redis, which several processes share: `redis://host:6379/1`.

`await RedisCacheStorage.open(url)` gives one, as `holdfast.backends.wrappers.cache_storage.CacheStorage` describes it.
A room that cannot be reached raises `TransientError`, at once for a second after it was found so: a cache that is down
should not make everything slow. `status` counts how often that was.

Best in a server or a database of its own, with `maxmemory` and `maxmemory-policy allkeys-lru`: whatever is here may be
forgotten at any time. With `prefix` in the URL, keys start with something else than `holdfast-cache`.

The client here is redis-py's plain one, in the thread of the caller: there is nothing to gather in groups, nothing to
send again, and no order to keep between callers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from redis import Redis, exceptions
from redis.backoff import NoBackoff
from redis.retry import Retry

from holdfast.backends.interface import BlockingCall
from holdfast.backends.redis.connections import address
from holdfast.backends.urls import redacted_url, split_options
from holdfast.errors import ConfigError, TransientError, UnavailableError

T = TypeVar("T")

_SECONDS = 1.0
"""For how long to wait for an answer, and for how long not to ask again where none came."""


class RedisCacheStorage:
    """Keeps values in Redis for a while."""

    def __init__(self, url: str) -> None:
        self._url = redacted_url(url)
        bare, options = split_options(url, {"prefix": ""}, {})
        self._prefix = f"{{{options.get('prefix', 'holdfast-cache')}}}:".encode()
        address(bare)  # says what is wrong
        patience = {"socket_timeout": _SECONDS, "socket_connect_timeout": _SECONDS}
        scheme, _, rest = bare.partition("://")
        self._client: Redis = Redis.from_url(
            f"{scheme.replace('valkey', 'redis')}://{rest}", protocol=2, retry=Retry(NoBackoff(), 0), **patience
        )
        self._down_until = 0.0
        self._failures = 0
        self._closed = False

    @classmethod
    async def open(cls, url: str) -> RedisCacheStorage:
        """A room. One that cannot be reached now may be later; one that refuses the password is a mistake."""
        room = cls(url)
        await BlockingCall(room._look)
        return room

    @property
    def url(self) -> str:
        """Names the room to people; without passwords."""
        return self._url

    async def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """What is kept under each key, or None."""
        if not keys:
            return []
        names = self._names(keys)
        found: list[bytes | None] = await self._asked(lambda: self._client.mget(names))
        return found

    async def put_many(self, values: Mapping[bytes, bytes], seconds: float) -> None:
        """Keep values, for so many seconds at most."""
        milliseconds = int(seconds * 1000)
        if not values or milliseconds < 1:
            return

        def put() -> None:
            with self._client.pipeline(transaction=False) as pipeline:
                for key, value in values.items():
                    pipeline.set(self._prefix + key, value, px=milliseconds)
                pipeline.execute()

        await self._asked(put)

    async def drop(self, keys: Sequence[bytes]) -> None:
        """Forget what is under these keys. When it returns, nobody finds it any more."""
        if keys:
            names = self._names(keys)
            await self._asked(lambda: self._client.delete(*names))

    def status(self) -> dict[str, int]:
        """How often the room could not be used."""
        return {"failures": self._failures}

    async def close(self) -> None:
        """Close the connections; again is no failure."""
        self._closed = True
        await BlockingCall(self._client.close)

    def _names(self, keys: Sequence[bytes]) -> list[bytes]:
        return [self._prefix + key for key in keys]

    def _look(self) -> None:
        try:
            self._client.ping()
        except (exceptions.AuthenticationError, exceptions.ResponseError, TypeError) as error:
            raise ConfigError(f"the cache cannot be used: {error}", where=self._url, hint="Look at the URL") from error
        except (exceptions.RedisError, OSError):
            self._failed()

    def _failed(self) -> None:
        self._failures += 1
        self._down_until = time.monotonic() + _SECONDS

    async def _asked(self, question: Callable[[], Any]) -> Any:
        call: BlockingCall[Any] = BlockingCall(lambda: self._ask(question))
        return await call

    def _ask(self, question: Callable[[], Any]) -> Any:
        if self._closed:
            raise UnavailableError("the cache is closed", where=self._url, hint="Open it again")
        if time.monotonic() < self._down_until:
            raise TransientError("the cache could not be reached a moment ago", where=self._url)
        try:
            return question()
        except (exceptions.RedisError, OSError) as error:
            self._failed()
            raise TransientError(f"the cache could not be used: {error}", where=self._url) from error
