"""Snapshots as objects in a bucket: Amazon S3 and compatible services, Google Cloud Storage, Azure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.agents.snapshots.locations import SnapshotStorage, check_name, check_url
from holdfast.backends.object_store.cloud import Bucket
from holdfast.backends.object_store.object_storage import ObjectInfo, RetryingStorage
from holdfast.backends.object_store.request_sender import RequestSender


class SnapshotBucket(SnapshotStorage):
    """A prefix in a bucket. Requests are retried until they succeed or the time is over."""

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        check_url(url)
        bucket, where, timeout = Bucket.at(url, options)
        self._where = where.rstrip("/")
        self._storage = RetryingStorage(bucket)
        self._sender = RequestSender("the service", self._where, timeout)

    def where(self, name: str) -> str:
        return f"{self._where}/{name}"

    async def create(self, name: str, data: bytes) -> bool:
        return await self._sender.send(lambda: self._storage.create(name, data))

    async def put(self, name: str, data: bytes) -> None:
        await self._sender.send(lambda: self._storage.put(name, data))

    async def get(self, name: str, start: int = 0, length: int | None = None) -> bytes | None:
        check_name(name, self.where(name))
        return await self._sender.send(lambda: self._storage.get(name, start, length))

    async def list_objects(self, prefix: str) -> list[ObjectInfo]:
        return await self._sender.send(lambda: self._storage.list_objects(prefix))

    async def delete(self, names: Sequence[str]) -> None:
        await self._sender.send(lambda: self._storage.delete(names))
