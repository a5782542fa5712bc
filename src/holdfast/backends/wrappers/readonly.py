"""A store that can be looked at and not changed: `readonly:?store=sqlite:///agents.db`."""

from __future__ import annotations

from typing import Any

from holdfast.backends.interface import Batch, Expect
from holdfast.backends.wrappers import Wrapper
from holdfast.backends.wrappers.composite_urls import compose, open_parts, parts_of
from holdfast.errors import DeniedError


class ReadOnlyBackend(Wrapper):
    """Refuses every change. A batch of conditions alone is answered; nothing is tidied.

    The store inside is opened as it always is: one that is not there yet is made, empty.
    """

    schemes = ("readonly",)
    takes_tenant = True

    @classmethod
    async def open(cls, url: str, *, tenant: str | None = None, **options: Any) -> ReadOnlyBackend:
        """Open a store for reading."""
        (store,) = await open_parts(parts_of(url, "readonly", (), options)["store"], tenant=tenant)
        return cls(store)

    @property
    def url(self) -> str:
        return compose("readonly", store=self.inner.url)

    async def apply(self, batch: Batch) -> int | None:
        if not all(isinstance(change, Expect) for change in batch):
            raise DeniedError(
                "this store is open for reading only",
                where=self.url,
                hint="To write, open the store inside, without readonly:",
            )
        return await self.inner.apply(batch)

    async def tidy(self) -> None:
        """Leaves the store as it is."""
        await self.inner.apply([])  # which a closed store refuses
