"""Opening a store by its URL."""

from __future__ import annotations

from collections.abc import Coroutine, Generator
from typing import Any, TypeVar

from holdfast.backends.registry import backend_for
from holdfast.codec import Codec, default_codec
from holdfast.engine.cache import Cache
from holdfast.engine.core import Engine
from holdfast.engine.drivers import arun, run
from holdfast.engine.ground import CACHE_BYTES, Ground
from holdfast.engine.records import check_name
from holdfast.errors import Config, Invalid
from holdfast.store import AsyncStore, Operations, Store

S = TypeVar("S", bound=Operations)


def open(  # noqa: A001 - reads as holdfast.open
    url: str, *, tenant: str = "", cache_bytes: int = CACHE_BYTES, codec: Codec = default_codec, **options: Any
) -> Store:
    """Open a store by its URL, and make it if it is not there.

    `tenant` keeps what different customers save apart: a store opened for one sees nothing of another's. `cache_bytes`
    bounds the memory for what was read and saved last. Further options are the backend's own.
    """
    return run(_opened(Store, url, tenant, cache_bytes, codec, options))


def aopen(
    url: str, *, tenant: str = "", cache_bytes: int = CACHE_BYTES, codec: Codec = default_codec, **options: Any
) -> _Opening:
    """The same for asyncio: `store = await aopen(url)`, or `async with aopen(url) as store`."""
    return _Opening(_opened(AsyncStore, url, tenant, cache_bytes, codec, options))


class _Opening:
    """An `AsyncStore` to be: awaited, or entered with `async with`."""

    def __init__(self, opening: Coroutine[Any, Any, AsyncStore]) -> None:
        self._opening = opening
        self._store: AsyncStore | None = None

    def __await__(self) -> Generator[Any, Any, AsyncStore]:
        return arun(self._opening).__await__()

    def __enter__(self) -> AsyncStore:
        self._opening.close()
        raise Invalid("a store for asyncio is entered with `async with`", hint="Or open it with holdfast.open")

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        """Never entered."""

    async def __aenter__(self) -> AsyncStore:
        self._store = await self
        return self._store

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        if self._store is not None:
            await self._store.close()


async def _opened(cls: type[S], url: str, tenant: str, cache_bytes: int, codec: Codec, options: dict[str, Any]) -> S:
    check_name(tenant, "name of a tenant")
    if type(cache_bytes) is not int or cache_bytes < 0:
        raise Config(f"cache_bytes is a number of bytes, not {cache_bytes!r}")
    backend = await backend_for(url).open(url, **options)
    return cls(Engine(Ground(backend, Cache(cache_bytes), codec)), tenant)
