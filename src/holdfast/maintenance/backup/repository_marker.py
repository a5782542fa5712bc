"""The object that makes a directory or a prefix a repository."""

from __future__ import annotations

import secrets
import time
from typing import TYPE_CHECKING

from holdfast.errors import NotFoundError
from holdfast.maintenance.backup.format import KINDS, REPOSITORY, RepositoryInfo
from holdfast.maintenance.backup.object_codec import ObjectCodec
from holdfast.maintenance.backup.storage import RepositoryStorage, foreign_place

if TYPE_CHECKING:
    from holdfast.security.encryption.provider import KeyProvider

_INFO = KINDS[REPOSITORY].mark


async def open_marker(storage: RepositoryStorage, keys: KeyProvider | None, *, create: bool) -> RepositoryInfo:
    """Return what a repository is. With `create`, an empty or new directory or prefix becomes one."""

    def decode(data: bytes) -> RepositoryInfo:
        return ObjectCodec("").decode(_INFO, REPOSITORY, data, RepositoryInfo, f"{storage.where}/{REPOSITORY}")

    found = await storage.read(REPOSITORY, decode)
    if found is None and create and not await storage.is_empty():
        found = await storage.read(REPOSITORY, decode)  # another process may have created it since
        if found is None:
            raise foreign_place(storage.where)
    if found is None and create:
        info = RepositoryInfo(secrets.token_hex(16), time.time_ns())
        if keys is not None:
            from holdfast.maintenance.backup.repository_key import create_key

            info = await create_key(storage, info, keys)
        await storage.create(REPOSITORY, ObjectCodec("").encode(_INFO, REPOSITORY, info))
        found = await storage.read(REPOSITORY, decode)  # that of another process, if it was faster
    if found is None:
        raise NotFoundError(
            "there is no repository of backups",
            where=storage.where,
            hint="Check the path; it is created by the first `holdfast backup create`",
            code="no-repository",
        )
    return found
