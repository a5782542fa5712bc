"""A repository: the backups of one or more stores, each a chain of manifests.

The name of a manifest has the number of the backup, and objects are only created if their name is free. So of two
processes that make the same backup one wins, and no lock is needed for that. A *lock* says that a backup of a number is
being made: it is open until a manifest of that number exists. Breaking a lock takes that name, so that the process that
had it cannot finish, if it is still alive: it starts again.
"""

from __future__ import annotations

import os
import secrets
import socket
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from holdfast.engine.types import to_datetime
from holdfast.errors import CorruptError, InvalidError, NotFoundError
from holdfast.maintenance.backup.format import (
    BACKUPS,
    LOCKS,
    PACKS,
    REMOVED,
    REPACKS,
    REPOSITORY,
    LineEntry,
    LockInfo,
    Manifest,
    RemovedBackup,
    Repack,
    RepositoryInfo,
    Slice,
    decode_value,
    digest_of,
    manifest_name,
    removed_name,
)
from holdfast.maintenance.backup.object_codec import ObjectCodec
from holdfast.maintenance.backup.packs import BlockReader, PackStorage, PackWriter
from holdfast.maintenance.backup.storage import RepositoryStorage, foreign_place, open_storage

if TYPE_CHECKING:
    from holdfast.maintenance.backup.repository_key import RepositoryKey
    from holdfast.security.encryption.provider import KeyProvider

T = TypeVar("T")

_INFO, _MANIFEST, _LOCK, _REMOVED, _REPACK = b"R", b"M", b"L", b"D", b"W"


class Backup(NamedTuple):
    """A manifest, and its digest and size."""

    manifest: Manifest
    digest: bytes
    size: int

    @property
    def id(self) -> str:
        """The id of the backup: the beginning of the id of its store, and its number."""
        return f"{self.manifest.store[:8]}.{self.manifest.number}"


class OpenLock(NamedTuple):
    """A backup that is being made, or that a process did not finish."""

    name: str
    store: str
    number: int
    info: LockInfo


class Repository:
    """Reads and writes the objects of a repository."""

    def __init__(self, storage: RepositoryStorage, info: RepositoryInfo, key: RepositoryKey | None = None) -> None:
        self.storage = storage
        self.info = info
        self.id = info.id
        self.key = key
        self._codec = ObjectCodec(info.id, None if key is None else key.cipher)
        self.blocks = BlockReader(storage, self._codec, self._find_moved)
        self._moved: dict[tuple[bytes, int, int, int], list[Slice]] = {}

    @property
    def where(self) -> str:
        """The path or URL, without secrets."""
        return self.storage.where

    def pack_writer(self, storage: PackStorage | None = None) -> PackWriter:
        """Return what writes packs, here or elsewhere."""
        return PackWriter(storage or self.storage, self._codec)

    # Manifests ------------------------------------------------------------------------------------------------

    async def stores(self) -> list[str]:
        """Return the ids of the stores that have backups here."""
        return sorted({name.split("/")[1] for name in await self._names(BACKUPS)})

    async def numbers(self, store: str) -> list[int]:
        """Return the numbers of the manifests of a store, in order."""
        return sorted(_number_of(name) for name in await self._names(f"{BACKUPS}/{store}"))

    async def load(self, store: str, number: int) -> Backup:
        """Return a manifest."""
        name = manifest_name(store, number)
        data = await self.storage.get(name)
        if data is None:
            raise NotFoundError("there is no such backup", where=f"{self.where}/{name}", code="no-backup")
        manifest = self._codec.decode(_MANIFEST, name, data, Manifest, f"{self.where}/{name}")
        if (manifest.store, manifest.number) != (store, number):
            raise CorruptError("a manifest is under the name of another", where=f"{self.where}/{name}")
        return Backup(manifest, digest_of(data), len(data))

    async def backups(self, store: str | None = None) -> list[Backup]:
        """Return all backups, or those of a store, in order."""
        stores = await self.stores() if store is None else [store]
        found = [await self.load(each, number) for each in stores for number in await self.numbers(each)]
        return [each for each in found if not each.manifest.abandoned]

    async def newest(self, store: str) -> tuple[Backup | None, Backup | None]:
        """Return the newest backup of a store, and the last manifest, which may be of a backup that was abandoned."""
        last: Backup | None = None
        for number in reversed(await self.numbers(store)):
            found = await self.load(store, number)
            last = last or found
            if not found.manifest.abandoned:
                return found, last
        return None, last

    async def removed(self, store: str) -> dict[int, RemovedBackup]:
        """Return what is left of removed backups of a store, by number."""
        names = await self._names(f"{REMOVED}/{store}")
        return {_number_of(name): await self.read_object(_REMOVED, name, RemovedBackup) for name in names}

    async def remove(self, backup: Backup, reason: str, now: int) -> None:
        """Remove a manifest. A record of it stays."""
        manifest = backup.manifest
        record = RemovedBackup(backup.digest, manifest.parent, now, reason)
        await self.create_object(_REMOVED, removed_name(manifest.store, manifest.number), record)
        await self.storage.delete([manifest_name(manifest.store, manifest.number)])

    async def commit(self, manifest: Manifest) -> Backup | None:
        """Store a manifest, which makes the backup exist; None if another process stored one of its number."""
        name = manifest_name(manifest.store, manifest.number)
        data = self._codec.encode(_MANIFEST, name, manifest)
        if not await self.storage.create(name, data) and await self.storage.get(name) != data:
            return None  # and not refused only since the answer to a first attempt was lost
        return Backup(manifest, digest_of(data), len(data))

    async def find(self, text: str, store: str | None = None) -> Backup:
        """Return a backup by its id, by its number, or the `latest` of a store: that one, or the only one there."""
        if text != "latest" and "." in text:
            start, _, number = text.rpartition(".")
            stores = [each for each in await self.stores() if each.startswith(start)]
            if len(stores) == 1 and number.isdecimal():
                return await self.load(stores[0], int(number))
            raise NotFoundError(f"there is no backup {text!r}", where=self.where, code="no-backup")
        store = await self.pick_store(store)
        if text == "latest":
            found, _ = await self.newest(store)
            if found is not None:
                return found
        elif text.isdecimal():
            return await self.load(store, int(text))
        else:
            hint = "Name it by its id, such as 3f2a9c1d.12, by its number, or latest"
            raise InvalidError(f"{text[:80]!r} is no id of a backup", hint=hint)
        raise NotFoundError("there is no backup", where=self.where, code="no-backup")

    async def find_by_time(self, time: datetime, store: str | None = None) -> Backup:
        """Return the last backup of a moment that is not after a time."""
        found = await self.backups(await self.pick_store(store))
        before = [each for each in found if to_datetime(each.manifest.time) <= time]
        if not before:
            what = f"there is no backup of {time.isoformat(timespec='seconds')} or before it"
            raise NotFoundError(what, where=self.where, code="no-backup")
        return before[-1]

    async def pick_store(self, store: str | None) -> str:
        """Return the id of a store that has backups here: by the beginning of its id, or the only one."""
        stores = await self.stores()
        matches = [each for each in stores if store is None or each.startswith(store)]
        if len(matches) == 1:
            return matches[0]
        what = "there is no backup" if not matches else f"there are backups of {len(matches)} stores"
        hint = f"Name the store: {', '.join(each[:8] for each in stores)}" if stores else "Create one first"
        raise NotFoundError(what, where=self.where, hint=hint, code="no-backup")

    async def pages(self, manifest: Manifest) -> AsyncIterator[list[LineEntry]]:
        """Yield the lines of a backup, in order, page by page."""
        for part in manifest.pages:
            where = f"{self.where}, the lines of backup {manifest.store[:8]}.{manifest.number}"
            yield decode_value(await self.blocks.read(part), list[LineEntry], where)

    # Locks ----------------------------------------------------------------------------------------------------

    async def lock(self, store: str, number: int) -> str:
        """Record that a backup is being made. Returns the name of the lock."""
        name = f"{LOCKS}/{store}/{number:010d}-{secrets.token_hex(8)}"
        info = LockInfo(socket.gethostname(), os.getpid(), time.time_ns())
        await self.create_object(_LOCK, name, info)
        return name

    async def locks(self) -> tuple[list[OpenLock], list[str]]:
        """Return the open locks, and the names of those that are not any more."""
        names = await self._names(LOCKS)
        done = {
            store: {*await self.numbers(store), *await self.removed(store)} for store in {_store_of(n) for n in names}
        }
        is_open = {name: _number_of(name) not in done[_store_of(name)] for name in names}
        found = [
            OpenLock(name, _store_of(name), _number_of(name), await self.read_object(_LOCK, name, LockInfo))
            for name in names
            if is_open[name]
        ]
        return found, [name for name in names if not is_open[name]]

    async def break_lock(self, lock: OpenLock) -> bool:
        """Break a lock, so that the process that has it cannot finish. Returns False if it has just finished."""
        _, last = await self.newest(lock.store)
        manifest = Manifest(
            store=lock.store,
            number=lock.number,
            parent=b"" if last is None else last.digest,
            time=time.time_ns() if last is None else max(time.time_ns(), last.manifest.time),
            until=time.time_ns() if last is None else max(time.time_ns(), last.manifest.until),
            token="",
            tenant=None,
            url="",
            holdfast="",
            reason="a lock was broken",
            seconds=0.0,
            lines=0,
            rows=0,
            added=0,
            pages=(),
            packs=(),
            abandoned=True,
        )
        return await self.commit(manifest) is not None

    # Packs ----------------------------------------------------------------------------------------------------

    async def pack_sizes(self) -> dict[str, int]:
        """Return the sizes of all packs by name."""
        return {info.name: info.size for info in await self.storage.list_objects(PACKS)}

    async def repacks(self) -> list[tuple[str, Repack]]:
        """Return the records of slices that were moved to other packs, with their names."""
        return [(name, await self.read_object(_REPACK, name, Repack)) for name in await self._names(REPACKS)]

    async def add_repack(self, record: Repack) -> None:
        """Record slices that are about to be moved."""
        await self.create_object(_REPACK, f"{REPACKS}/{record.time:020d}-{secrets.token_hex(8)}", record)

    async def _find_moved(self, part: Slice) -> Sequence[Slice]:
        """Return where a slice may be that was moved."""
        key = part.pack, part.offset, part.start, part.size
        if key not in self._moved:
            self._moved.clear()
            for _, repack in await self.repacks():
                for pack, offset, start, new in repack.slices:
                    self._moved.setdefault((pack, offset, start, new.size), []).append(new)
        return self._moved.get(key, ())

    # Objects --------------------------------------------------------------------------------------------------

    async def read_object(self, kind: bytes, name: str, type: type[T]) -> T:
        """Read a small object."""
        data = await self.storage.get(name)
        if data is None:
            raise NotFoundError("an object of the repository is gone", where=f"{self.where}/{name}", code="no-backup")
        return self._codec.decode(kind, name, data, type, f"{self.where}/{name}")

    async def create_object(self, kind: bytes, name: str, value: Any) -> bool:
        """Store a small object; False if the name is in use."""
        return await self.storage.create(name, self._codec.encode(kind, name, value))

    async def _names(self, folder: str) -> Sequence[str]:
        return [info.name for info in await self.storage.list_objects(folder)]


@asynccontextmanager
async def open_repository(
    target: str | os.PathLike[str],
    options: Mapping[str, Any],
    *,
    create: bool = False,
    keys: KeyProvider | str | None = None,
) -> AsyncIterator[Repository]:
    """Open a repository. With `create`, an empty or new directory or prefix becomes one: an encrypted one, if there are
    `keys`, here or in the environment."""
    provider: KeyProvider | None = None
    if keys is not None or os.environ.get(KEYS_VARIABLE):
        from holdfast.maintenance.backup.repository_key import provider_of

        provider = provider_of(keys or os.environ[KEYS_VARIABLE])
    storage = open_storage(target, options, create=create)
    try:
        info, key = await _open_info(storage, provider, create=create), None
        if info.key or provider is not None:
            from holdfast.maintenance.backup.repository_key import open_key

            key = await open_key(storage, info, provider)
        yield Repository(storage, info, key)
    finally:
        await storage.close()


KEYS_VARIABLE = "HOLDFAST_BACKUP_KEYS"
"""The variable that says where the key of repositories is."""


async def _open_info(storage: RepositoryStorage, keys: KeyProvider | None, *, create: bool) -> RepositoryInfo:
    data = await storage.get(REPOSITORY)
    if data is None and create and not await storage.is_empty():
        data = await storage.get(REPOSITORY)  # another process may have created it since
        if data is None:
            raise foreign_place(storage.where)
    if data is None and create:
        info = RepositoryInfo(secrets.token_hex(16), time.time_ns())
        if keys is not None:
            from holdfast.maintenance.backup.repository_key import create_key

            info = await create_key(storage, info, keys)
        await storage.create(REPOSITORY, ObjectCodec("").encode(_INFO, REPOSITORY, info))
        data = await storage.get(REPOSITORY)  # that of another process, if it was faster
    if data is None:
        raise NotFoundError(
            "there is no repository of backups",
            where=storage.where,
            hint="Check the path; it is created by the first `holdfast backup create`",
            code="no-repository",
        )
    return ObjectCodec("").decode(_INFO, REPOSITORY, data, RepositoryInfo, f"{storage.where}/{REPOSITORY}")


def _number_of(name: str) -> int:
    number = name.rpartition("/")[2][:10]
    if not number.isdecimal():
        raise CorruptError("an object of the repository has a strange name", where=name)
    return int(number)


def _store_of(name: str) -> str:
    return name.split("/")[1]
