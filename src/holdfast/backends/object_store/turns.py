"""Takes turns at shards, between processes.

A process that writes one entry after another need not read, and is always first: others, which have to read each of its
entries before they can write, would never get in. So a writer that lost several times requests a turn: it creates an
object with the name of the shard. A process looks for that object after every 32 entries, at the latest, and pauses
until it is gone.

This is only for fairness. That no entry is overwritten does not depend on it, so a request whose process died is simply
deleted after a while.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from holdfast.backends.object_store import object_names
from holdfast.backends.object_store.object_storage import ObjectStorage, check_deadline, clock

LOSSES = 3
"""After how many lost races a writer requests a turn."""

_FIRST_PAUSE = 0.01
_LONGEST_PAUSE = 0.1


class ShardTurns:
    """The turns of a process."""

    def __init__(self, storage: ObjectStorage) -> None:
        self._storage = storage
        self.longest: float = 5.0
        """After how many seconds others do not wait any more."""
        self._acquired: Counter[str] = Counter()
        """The shards whose turn it is, and how many writers of this process share it."""

    @asynccontextmanager
    async def turn(self, shards: Sequence[str]) -> AsyncIterator[None]:
        """Request a turn at shards, for the length of the block."""
        requested: list[str] = []
        try:
            for shard in sorted(shards):
                await self._request(shard)
                requested.append(shard)
            yield
        finally:
            for shard in requested:
                self._acquired[shard] -= 1
                if not self._acquired[shard]:
                    del self._acquired[shard]
                    await self._storage.delete_once(_name(shard))

    async def renew(self, shards: Sequence[str]) -> None:
        """Request turns again that took so long that others deleted them."""
        for shard in shards:
            if shard in self._acquired:
                await self._storage.create(_name(shard), secrets.token_bytes(64))

    async def is_requested(self, shard: str) -> bool:
        """Whether another process requests a turn."""
        return shard not in self._acquired and await self._storage.exists(_name(shard))

    async def give_way(self, shard: str) -> None:
        """Wait until the turn of another process is over."""
        if shard not in self._acquired and not await self._is_over(shard):
            await self._storage.delete_once(_name(shard))

    async def _request(self, shard: str) -> None:
        while shard not in self._acquired and not await self._storage.create(_name(shard), secrets.token_bytes(64)):
            await self.give_way(shard)
        self._acquired[shard] += 1

    async def _is_over(self, shard: str) -> bool:
        """Wait for the end of a turn. False if it takes too long."""
        first, began, pause = await self._storage.get(_name(shard)), clock(), _FIRST_PAUSE
        while first is not None:
            check_deadline()
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
            if await self._storage.get(_name(shard)) != first:
                break
            if clock() - began > self.longest:
                return False
        return True


def _name(shard: str) -> str:
    return f"{object_names.TURNS}/{hashlib.sha256(shard.encode()).hexdigest()[:32]}"
