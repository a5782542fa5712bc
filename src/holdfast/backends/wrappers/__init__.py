"""Backends around backends: behaviour that any store can be given."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from holdfast.backends.interface import Backend, Batch, Capabilities, Query, Row, Sound, WordMatch, WordMatches
from holdfast.errors import ConfigError


class Wrapper(Backend):
    """Does what the backend inside does. A subclass changes what it wants to be different."""

    schemes: ClassVar[tuple[str, ...]] = ()

    def __init__(self, inner: Backend) -> None:
        self.inner = inner

    @classmethod
    async def open(cls, url: str, **options: Any) -> Backend:  # noqa: ARG003 - the port's signature
        """A wrapper has no URL of its own: it is put around an open store."""
        raise ConfigError(
            f"{cls.__name__} cannot be opened by URL", where=url, hint="Open the store inside, and wrap it"
        )

    @property
    def url(self) -> str:
        return self.inner.url

    @property
    def capabilities(self) -> Capabilities:
        return self.inner.capabilities

    async def read(self, queries: Sequence[Query]) -> list[list[Row]]:
        return await self.inner.read(queries)

    async def apply(self, batch: Batch) -> int | None:
        return await self.inner.apply(batch)

    async def matched(self, match: WordMatch) -> WordMatches:
        return await self.inner.matched(match)

    async def size(self) -> int:
        return await self.inner.size()

    async def check(self) -> list[str]:
        return await self.inner.check()

    async def tidy(self) -> None:
        await self.inner.tidy()

    def check_rows_with(self, sound: Sound) -> None:
        self.inner.check_rows_with(sound)

    async def status(self) -> dict[str, int | float | str]:
        return await self.inner.status()

    async def close(self) -> None:
        await self.inner.close()
