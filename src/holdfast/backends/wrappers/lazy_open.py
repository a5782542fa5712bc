"""A store that is opened on first use, and again after a failure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from holdfast.backends.interface import Backend, Batch, BlockingCall, Capabilities, Changes, Query, Row
from holdfast.backends.runtime.drivers import run
from holdfast.backends.runtime.fork_safety import ForkSafeLock
from holdfast.backends.urls import redacted_url
from holdfast.backends.wrappers import open_parts
from holdfast.errors import ConfigError, UnavailableError


class LazyBackend(Backend):
    """Opens the store at a URL or path on first use. Its `capabilities` are known once it is open."""

    schemes: ClassVar[tuple[str, ...]] = ()

    def __init__(self, url: str) -> None:
        self._url = url
        self._lock = ForkSafeLock()
        self._opened: Backend | None = None
        self._closed = False

    @classmethod
    async def open(cls, url: str, **options: Any) -> Backend:  # noqa: ARG003 - the interface's signature
        raise ConfigError("a store is opened by its own URL", where=redacted_url(url))

    @property
    def url(self) -> str:
        return redacted_url(self._url)

    @property
    def capabilities(self) -> Capabilities:
        if self._opened is None:
            raise UnavailableError("the store is not open yet", where=self.url)
        return self._opened.capabilities

    async def read(self, queries: Sequence[Query]) -> list[list[Row]]:
        opened = await self._open()
        try:
            return await opened.read(queries)
        except UnavailableError:
            await self._discard(opened)
            raise

    async def apply(self, batch: Batch) -> int | None:
        opened = await self._open()
        try:
            return await opened.apply(batch)
        except UnavailableError:
            await self._discard(opened)
            raise

    async def changes(self, since: str | None = None) -> Changes:
        return await (await self._open()).changes(since)

    async def size(self) -> int:
        return await (await self._open()).size()

    async def check(self) -> list[str]:
        return await (await self._open()).check()

    async def tidy(self) -> None:
        await (await self._open()).tidy()

    async def purge(self) -> list[str]:
        return await (await self._open()).purge()

    async def status(self) -> dict[str, int | float | str]:
        return {} if self._opened is None else await self._opened.status()

    async def close(self) -> None:
        self._closed = True
        if self._opened is not None:
            await self._opened.close()

    async def _discard(self, opened: Backend) -> None:
        """Close a store that failed. It is opened again on the next use."""
        with self._lock:
            if self._opened is not opened or self._closed:
                return
            self._opened = None
        await opened.close()

    async def _open(self) -> Backend:
        if self._opened is not None:
            return self._opened
        call: BlockingCall[Backend] = BlockingCall(self._open_now)
        return await call

    def _open_now(self) -> Backend:
        with self._lock:
            if self._closed:
                raise UnavailableError("the store is closed", where=self.url, hint="Open it again", code="closed")
            if self._opened is None:
                (self._opened,) = run(open_parts(self._url))
            return self._opened
