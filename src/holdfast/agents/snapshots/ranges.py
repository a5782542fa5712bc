"""A bucket of which parts of objects are read, though there may be nothing in them."""

from __future__ import annotations

import obstore

from holdfast.backends.async_backend import ServerInterrupted
from holdfast.backends.object_store.cloud import Bucket


class RangeReader(Bucket):
    """A bucket that has no error for the part of an empty object: services refuse every range of one."""

    async def get(self, name: str, start: int = 0, length: int | None = None) -> bytes | None:
        try:
            return await super().get(name, start, length)
        except ServerInterrupted:
            about = await self._answer(obstore.head_async(self._storage, name))
            if about["size"] > start:
                raise
            return b""
