"""Snapshots as objects in a bucket: Amazon S3 and compatible services, Google Cloud Storage, Azure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

from holdfast.agents.snapshots.locations import SnapshotStorage
from holdfast.backends.object_store.cloud import Bucket
from holdfast.backends.object_store.request_storage import RequestStorage
from holdfast.backends.urls import redacted_url
from holdfast.errors import SnapshotInvalidError


class SnapshotBucket(RequestStorage, SnapshotStorage):
    """A prefix in a bucket."""

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        _check_url(url)
        bucket, where, timeout = Bucket.at(url, options)
        self._where = where.rstrip("/")
        super().__init__(bucket, "the service", self._where, timeout)

    def where(self, name: str) -> str:
        return f"{self._where}/{name}"

    async def get(self, name: str, start: int = 0, length: int | None = None) -> bytes | None:
        _check_name(name, self.where(name))
        return await super().get(name, start, length)


def split(url: str) -> tuple[str, str]:
    """Return the URL of the prefix of an object, and the object's name there."""
    address, mark, query = url.partition("?")
    _check_url(url)
    folder, _, name = address.rpartition("/")
    if not name or folder.endswith(":/"):
        raise SnapshotInvalidError("this names no object", where=redacted_url(url), hint="s3://bucket/agent.hfsnap")
    return f"{folder}{mark}{query}", unquote(name)


def _check_url(url: str) -> None:
    _check_name(unquote(url.partition("?")[0].partition("://")[2].rstrip("/")), redacted_url(url))


def _check_name(path: str, where: str) -> None:
    """Refuse names that others may read differently: `..` of a gateway to files, control characters in a log."""
    if any(part in ("", ".", "..") for part in path.split("/")) or not path.isprintable():
        raise SnapshotInvalidError(
            "a name in a bucket has no empty parts, no `.` or `..`, and no control characters",
            where=where if path.isprintable() else repr(where),
        )
