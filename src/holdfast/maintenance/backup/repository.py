"""A repository: the backups of one or more stores, each a chain of manifests.

The name of a manifest has the number of the backup, and objects are only created if their name is free. So of two
processes that make the same backup one wins, and no lock is needed for that. A *lock* says that a backup of a number is
being made: it is open until a manifest of that number, or of a greater one, exists. Breaking a lock takes that name, so
that the process that had it cannot finish, if it is still alive: it starts again.

A manifest that cannot be read is left out, and nothing that it may need is deleted.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgspec

from holdfast.backends.object_store.object_storage import PAGE
from holdfast.engine.row_format import Line
from holdfast.engine.types import to_time
from holdfast.errors import CorruptError, InvalidError, NotFoundError, UnsupportedError
from holdfast.maintenance.backup.format import (
    BACKUPS,
    CREATE_LEVEL,
    KINDS,
    LOCKS,
    LOSSES,
    PACKS,
    REMOVED,
    REPACKS,
    REPOSITORY,
    LineEntry,
    LockInfo,
    Loss,
    Manifest,
    ObjectCodec,
    RemovedBackup,
    Repack,
    RepositoryInfo,
    Slice,
    decode_value,
    digest_of,
    manifest_name,
    own_tenant_id,
    removed_name,
)
from holdfast.maintenance.backup.packs import BlockReader, PackStorage, PackWriter
from holdfast.maintenance.backup.storage import RepositoryStorage, foreign_place, open_storage

if TYPE_CHECKING:
    from holdfast.maintenance.backup.repository_key import RepositoryKey
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


T = TypeVar("T")

_log = logging.getLogger("holdfast.backups")

UNREADABLE = (CorruptError, UnsupportedError)
"""The errors of objects that are damaged: of the mark of the repository, the byte with the version may be, too."""

_CACHED_MANIFESTS = 10_000
_CACHED_LINES = 20_000

_MANIFEST, _LOCK, _REMOVED, _REPACK = (KINDS[folder].mark for folder in (BACKUPS, LOCKS, REMOVED, REPACKS))


class Backup(NamedTuple):
    """A manifest, and its digest and size."""

    manifest: Manifest
    digest: bytes
    size: int

    @property
    def id(self) -> str:
        """The id of the backup: the beginning of the id of its store, and its number."""
        return f"{self.manifest.store[:8]}.{self.manifest.number}"


class UnreadableBackup(msgspec.Struct, frozen=True):
    """A backup whose manifest is damaged. Nobody can say what it needs."""

    id: str
    what: str


class Chain(NamedTuple):
    """The end of the manifests of a store: the number of the last one, or 0, and its digest, or nothing if it cannot be
    read; the times of the last one that can; and the newest backup that can be read."""

    number: int
    digest: bytes
    time: int
    until: int
    newest: Backup | None


class OpenLock(msgspec.Struct, frozen=True):
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
        self.id: str = info.id
        self.key = key
        self._codec = ObjectCodec(info.id, None if key is None else key.cipher)
        self.blocks: BlockReader = BlockReader(storage, self._codec, self._find_moved)
        self._moved: dict[tuple[bytes, int, int, int], list[Slice]] = {}
        self._manifests: dict[tuple[str, int], Backup] = {}
        """Manifests that were read: they never change. Listings say which exist."""
        self._reported: set[str] = set()
        self._pages: OrderedDict[Slice, Sequence[LineEntry]] = OrderedDict()
        self._cached_lines = 0

    @property
    def where(self) -> str:
        """The path or URL, without secrets."""
        return self.storage.where

    def pack_writer(self, storage: PackStorage | None = None, level: int = CREATE_LEVEL) -> PackWriter:
        """Return what writes packs, here or elsewhere."""
        return PackWriter(storage or self.storage, self._codec, level)

    # Manifests ------------------------------------------------------------------------------------------------

    async def stores(self) -> list[str]:
        """Return the ids of the stores that have backups here."""
        return sorted({name.split("/")[1] for name in await self._names(BACKUPS)})

    async def numbers(self, store: str) -> list[int]:
        """Return the numbers of the manifests of a store, in order."""
        names = await self._names(f"{BACKUPS}/{store}")
        return sorted({*map(_number_of, names)} - await self.removed_numbers(store))

    async def load(self, store: str, number: int) -> Backup:
        """Return a manifest."""
        name = manifest_name(store, number)

        def decode(data: bytes) -> Backup:
            manifest = self._codec.decode(_MANIFEST, name, data, Manifest, f"{self.where}/{name}")
            return Backup(manifest, digest_of(data), len(data))

        found = await self.storage.read(name, decode)
        if found is None:
            raise _no_backup(f"{self.where}/{name}")
        return found

    async def survey(self, store: str | None = None) -> tuple[list[Backup], list[UnreadableBackup]]:
        """Return all backups, or those of a store, in order, and those whose manifests cannot be read."""
        found, unreadable = list[Backup](), list[UnreadableBackup]()
        for each in await self.stores() if store is None else [store]:
            for number in await self.numbers(each):
                backup = await self._try_load(each, number)
                if isinstance(backup, UnreadableBackup):
                    unreadable.append(backup)
                elif backup is not None and not backup.manifest.abandoned:
                    found.append(backup)
        return found, unreadable

    async def every_manifest(self, store: str) -> list[Backup]:
        """Return all manifests of a store that can be read, those of abandoned backups, too."""
        loaded = [await self._try_load(store, number) for number in await self.numbers(store)]
        return [each for each in loaded if isinstance(each, Backup)]

    async def backups(self, store: str | None = None) -> list[Backup]:
        """Return all backups that can be read, or those of a store, in order."""
        return (await self.survey(store))[0]

    async def _try_load(self, store: str, number: int) -> Backup | UnreadableBackup | None:
        """Return a manifest; None if it was removed meanwhile."""
        key = store, number
        try:
            if key not in self._manifests:
                if len(self._manifests) >= _CACHED_MANIFESTS:
                    self._manifests.clear()
                self._manifests[key] = await self.load(store, number)
            return self._manifests[key]
        except NotFoundError:
            return None
        except UNREADABLE as error:
            found = UnreadableBackup(f"{store[:8]}.{number}", error.what)
            if found.id not in self._reported:
                self._reported.add(found.id)
                _log.warning("backup %s cannot be read: %s (%s)", found.id, error.what, error.where)
            return found

    async def last_number(self, store: str) -> int:
        """Return the number of the last manifest of a store, or 0. It lists only some of them."""
        folder, low, last, step = f"{BACKUPS}/{store}", 0, 0, PAGE
        high: int | None = None  # there is none after it
        while high is None or last < high:
            listed = await self.storage.list_page(folder, manifest_name(store, low))
            if listed:
                last = _number_of(listed[-1].name)
                if len(listed) < PAGE:
                    return last
                low = last + step if high is None else (last + high) // 2
                step *= 2
            else:
                high, low = low, (last + low) // 2
        return last

    async def newest_first(self, store: str) -> AsyncIterator[Backup]:
        """Yield the backups of a store that can be read, the newest first."""
        async for number in self._downwards(store):
            async for found in self._usable(store, [number]):
                yield found

    async def _usable(self, store: str, numbers: Iterable[int]) -> AsyncIterator[Backup]:
        """Yield those of some backups that can be read."""
        for number in numbers:
            found = await self._try_load(store, number)
            if isinstance(found, Backup) and not found.manifest.abandoned:
                yield found

    async def _downwards(self, store: str) -> AsyncIterator[int]:
        """Yield the numbers of the manifests of a store, the last first, which is found without listing all."""
        last = await self.last_number(store)
        if last:
            yield last
            for number in reversed(await self.numbers(store)):
                if number < last:
                    yield number

    async def chain(self, store: str) -> Chain:
        """Return the end of the manifests of a store."""
        number = await self.last_number(store)
        last = await self._try_load(store, number) if number else None
        newest = last if isinstance(last, Backup) and not last.manifest.abandoned else None
        if number and newest is None:
            newest = await anext(self.newest_first(store), None)
        known = last if isinstance(last, Backup) else newest
        digest = last.digest if isinstance(last, Backup) else b""
        if known is None:
            return Chain(number, digest, 0, 0, None)
        return Chain(number, digest, known.manifest.time, known.manifest.until, newest)

    async def find_last(self, store: str, is_before: Callable[[Manifest], bool]) -> Backup | None:
        """Return the last backup of a store for which a condition holds that holds for all before it."""
        numbers = await self.numbers(store)
        before = numbers[: await self._bisect(store, numbers, is_before)]
        return await anext(self._usable(store, reversed(before)), None)

    async def find_first(self, store: str, is_after: Callable[[Manifest], bool]) -> Backup | None:
        """Return the first backup of a store for which a condition holds that holds for all after it."""
        numbers = await self.numbers(store)
        after = numbers[await self._bisect(store, numbers, lambda each: not is_after(each)) :]
        return await anext(self._usable(store, after), None)

    async def _bisect(self, store: str, numbers: Sequence[int], is_before: Callable[[Manifest], bool]) -> int:
        """Return how many of some manifests come before a place, reading few of them. Times never decrease."""
        low, high = 0, len(numbers)
        while low < high:
            middle = at = (low + high) // 2
            while at < high and not isinstance(found := await self._try_load(store, numbers[at]), Backup):
                at += 1
            if at < high and isinstance(found, Backup) and is_before(found.manifest):
                low = at + 1
            else:
                high = middle
        return low

    async def removed_numbers(self, store: str) -> set[int]:
        """Return the numbers of removed backups of a store. The manifest of one may still be there, for a moment."""
        return {*map(_number_of, await self._names(f"{REMOVED}/{store}"))}

    async def find_removed(self, store: str, number: int) -> RemovedBackup | None:
        """Return what is left of a removed backup."""
        try:
            return await self.read_object(_REMOVED, removed_name(store, number), RemovedBackup)
        except NotFoundError:
            return None

    async def remove(self, backup: Backup, reason: str, now: int) -> None:
        """Remove a manifest. A record of it stays."""
        manifest = backup.manifest
        record = RemovedBackup(backup.digest, manifest.parent, now, reason)
        await self.create_object(_REMOVED, removed_name(manifest.store, manifest.number), record)
        await self.storage.delete([manifest_name(manifest.store, manifest.number)])

    async def commit(self, manifest: Manifest) -> Backup | None:
        """Store a manifest, which makes the backup exist; None if another process stored one of its number, though that
        may have been removed since."""
        store, number = manifest.store, manifest.number
        name, removed = manifest_name(store, number), removed_name(store, number)
        if await self.storage.exists(removed) or await self.storage.list_page(f"{BACKUPS}/{store}", name):
            return None
        data = self.encode_object(_MANIFEST, name, manifest)
        if not await self.storage.create(name, data) and await self.storage.get(name) != data:
            return None  # and not refused only since the answer to a first attempt was lost
        if await self.storage.exists(removed):
            return None  # a removed one had the number: whoever reads ignores this one, and pruning deletes it
        return Backup(manifest, digest_of(data), len(data))

    async def delete_removed(self, store: str) -> None:
        """Delete manifests of backups that were removed: one that was late, or where removing was interrupted."""
        names = {*await self._names(f"{BACKUPS}/{store}")}
        gone = [manifest_name(store, number) for number in await self.removed_numbers(store)]
        await self.storage.delete([name for name in gone if name in names])

    async def find(self, text: str, store: str | None = None) -> Backup:
        """Return a backup by its id, by its number, or the `latest` of a store: that one, or the only one there."""
        if text != "latest" and "." in text:
            start, _, number = text.rpartition(".")
            stores = [each for each in await self.stores() if each.startswith(start)]
            if len(stores) == 1 and number.isdecimal():
                return await self._load_existing(stores[0], int(number))
            raise NotFoundError(f"there is no backup {text!r}", where=self.where, code="no-backup")
        store = await self.pick_store(store)
        if text == "latest":
            async for each in self._downwards(store):  # the newest, also if it cannot be read: none that is older
                with suppress(NotFoundError):
                    return await self._load_existing(store, each)
        elif text.isdecimal():
            return await self._load_existing(store, int(text))
        else:
            hint = "Name it by its id, such as 3f2a9c1d.12, by its number, or latest"
            raise InvalidError(f"{text[:80]!r} is not the id of a backup", hint=hint)
        raise NotFoundError("there is no backup", where=self.where, code="no-backup")

    async def find_by_time(self, time: datetime, store: str | None = None) -> Backup:
        """Return the last backup of a moment that is not after a time."""
        limit = to_time(time)
        found = await self.find_last(await self.pick_store(store), lambda each: each.time <= limit)
        if found is None:
            what = f"there is no backup of {time.isoformat(timespec='seconds')} or before it"
            raise NotFoundError(what, where=self.where, code="no-backup")
        return found

    async def _load_existing(self, store: str, number: int) -> Backup:
        """Return a manifest, unless it was removed."""
        found = await self.load(store, number)
        if found.manifest.abandoned or await self.storage.exists(removed_name(store, number)):
            raise _no_backup(f"{self.where}/{manifest_name(store, number)}")
        return found

    async def pick_store(self, store: str | None) -> str:
        """Return the id of a store that has backups here: by the beginning of its id, or the only one."""
        stores = await self.stores()
        if store is None:  # of one that also has backups of only its own tenant, those of all
            partial = {own_tenant_id(each) for each in stores}
            matches = [each for each in stores if each not in partial]
        else:
            matches = [each for each in stores if each.startswith(store)]
        if len(matches) == 1:
            return matches[0]
        what = "there is no backup" if not matches else f"there are backups of {len(matches)} stores"
        hint = f"Name the store: {', '.join(each[:8] for each in stores)}" if stores else "Create one first"
        raise NotFoundError(what, where=self.where, hint=hint, code="no-backup")

    async def page(self, part: Slice) -> Sequence[LineEntry]:
        """Return a page of lines. Backups share most of them."""
        found = self._pages.get(part)
        if found is None:
            stored = decode_value(await self.blocks.read(part), list[LineEntry], f"{self.where}, a list of lines")
            found = self._pages[part] = [each.in_pack(part.pack) for each in stored]
            self._cached_lines += len(found)
            while self._cached_lines > _CACHED_LINES and len(self._pages) > 1:
                self._cached_lines -= len(self._pages.popitem(last=False)[1])
        self._pages.move_to_end(part)
        return found

    async def entries(self, manifest: Manifest) -> list[LineEntry]:
        """Return the lines of a backup, in order."""
        found: dict[Line, LineEntry] = {}
        for part in manifest.pages:
            found.update((entry.line, entry) for entry in await self.page(part))
        return [found[line] for line in sorted(found) if not found[line].is_removed]

    async def packs_of(self, manifest: Manifest) -> set[bytes]:
        """Return the ids of the packs that a backup needs, as they were when it was made."""
        parts = [part for entry in await self.entries(manifest) for part in entry.parts]
        return {part.pack for part in (*manifest.pages, *parts)}

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
        last = {store: await self.last_number(store) for store in {_store_of(name) for name in names}}
        is_open = {name: _number_of(name) > last[_store_of(name)] for name in names}
        found = [
            OpenLock(name, _store_of(name), _number_of(name), await self._lock_info(name))
            for name in names
            if is_open[name]
        ]
        return found, [name for name in names if not is_open[name]]

    async def _lock_info(self, name: str) -> LockInfo:
        """Return who has a lock. A damaged lock is one, too."""
        try:
            return await self.read_object(_LOCK, name, LockInfo)
        except (*UNREADABLE, NotFoundError):
            return LockInfo("", 0, 0)

    async def break_lock(self, lock: OpenLock) -> bool:
        """Break a lock, so that the process that has it cannot finish. Returns False if it has just finished."""
        return await self._commit_abandoned(lock.store, lock.number, "a lock was broken")

    async def abandon(self, store: str, number: int) -> None:
        """Replace the last manifest of a store, which is lost, by one that says that there is no such backup."""
        await self.storage.delete([manifest_name(store, number)])
        self._manifests.pop((store, number), None)
        await self._commit_abandoned(store, number, "the backup was lost")

    async def _commit_abandoned(self, store: str, number: int, reason: str) -> bool:
        last = await self.chain(store)
        manifest = Manifest(
            store=store,
            number=number,
            parent=last.digest,
            time=max(time.time_ns(), last.time),
            until=max(time.time_ns(), last.until),
            token="",
            tenant=None,
            url="",
            holdfast="",
            reason=reason,
            seconds=0.0,
            lines=0,
            rows=0,
            added=0,
            needed=0,
            layers=(),
            abandoned=True,
        )
        return await self.commit(manifest) is not None

    # Packs ----------------------------------------------------------------------------------------------------

    async def pack_sizes(self) -> dict[str, int]:
        """Return the sizes of all packs by name."""
        return {info.name: info.size for info in await self.storage.list_objects(PACKS)}

    async def repacks(self) -> dict[str, Repack]:
        """Return the records of slices that were moved to other packs, by name, without those that cannot be read."""
        return (await self.survey_repacks())[0]

    async def survey_repacks(self) -> tuple[dict[str, Repack], list[UnreadableBackup]]:
        """Return the records of slices that were moved to other packs, by name, and those that cannot be read."""
        while True:
            found, unreadable = dict[str, Repack](), list[UnreadableBackup]()
            names = await self._names(REPACKS)
            for name in names:
                try:
                    found[name] = await self.read_object(_REPACK, name, Repack)
                except UNREADABLE as error:
                    unreadable.append(UnreadableBackup(name, error.what))
                except NotFoundError:
                    break  # deleted meanwhile, and another one may have its content
            else:
                return found, unreadable

    async def add_repack(self, record: Repack) -> None:
        """Record slices that are about to be moved."""
        await self.create_object(_REPACK, f"{REPACKS}/{record.time:020d}-{secrets.token_hex(8)}", record)

    async def losses(self) -> list[Loss]:
        """Return the records of what repairs could not bring back, without those that cannot be read."""
        found: list[Loss] = []
        for name in await self._names(LOSSES):
            with suppress(*UNREADABLE, NotFoundError):
                found.append(await self.read_object(KINDS[LOSSES].mark, name, Loss))
        return found

    async def _find_moved(self, part: Slice) -> Sequence[Slice]:
        """Return where a slice may be that was moved."""
        key = part.pack, part.offset, part.start, part.size
        if key not in self._moved:
            self._moved.clear()
            for repack in (await self.repacks()).values():
                for pack, offset, start, new in repack.slices:
                    self._moved.setdefault((pack, offset, start, new.size), []).append(new)
        return self._moved.get(key, ())

    # Objects --------------------------------------------------------------------------------------------------

    async def read_object(self, kind: bytes, name: str, type: type[T]) -> T:
        """Read a small object."""
        found = await self.storage.read(name, lambda data: self.decode_object(kind, name, data, type))
        if found is None:
            raise NotFoundError(
                "an object of the repository is missing", where=f"{self.where}/{name}", code="no-backup"
            )
        return found

    def decode_object(self, kind: bytes, name: str, data: bytes, type: type[T], place: str = "") -> T:
        """Return the value in a small object, which may be read from another place than its name."""
        return self._codec.decode(kind, name, data, type, f"{self.where}/{place or name}")

    async def create_object(self, kind: bytes, name: str, value: Any) -> bool:
        """Store a small object; False if the name is in use."""
        return await self.storage.create(name, self.encode_object(kind, name, value))

    def encode_object(self, kind: bytes, name: str, value: Any) -> bytes:
        """Return a small object."""
        data = self._codec.encode(kind, name, value)
        self._codec.decode(kind, name, data, type(value), f"{self.where}/{name}")  # what cannot be read is never there
        return data

    async def _names(self, folder: str) -> Sequence[str]:
        return [info.name for info in await self.storage.list_objects(folder)]


def _no_backup(where: str) -> NotFoundError:
    return NotFoundError(
        "there is no such backup",
        where=where,
        hint="`holdfast backup list` shows all",
        code="no-backup",
    )


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
    repository = await connect_repository(target, options, create=create, keys=keys)
    try:
        yield repository
    finally:
        await repository.storage.close()


async def connect_repository(
    target: str | os.PathLike[str],
    options: Mapping[str, Any],
    *,
    create: bool = False,
    keys: KeyProvider | str | None = None,
) -> Repository:
    """Open a repository as `open_repository` does. The caller closes its storage."""
    provider: KeyProvider | None = None
    if keys is not None or os.environ.get(KEYS_VARIABLE):
        from holdfast.maintenance.backup.repository_key import provider_of

        provider = provider_of(keys or os.environ[KEYS_VARIABLE])
    storage = open_storage(target, options, create=create)
    try:
        info, key = await open_marker(storage, provider, create=create), None
        if info.key or provider is not None:
            from holdfast.maintenance.backup.repository_key import open_key

            key = await open_key(storage, info, provider)
    except BaseException:
        await storage.close()
        raise
    return Repository(storage, info, key)


KEYS_VARIABLE = "HOLDFAST_BACKUP_KEYS"
"""The variable that says where the key of repositories is."""


def _number_of(name: str) -> int:
    number = name.rpartition("/")[2][:10]
    if not number.isdecimal():
        raise CorruptError("an object of the repository has a strange name", where=name)
    return int(number)


def _store_of(name: str) -> str:
    return name.split("/")[1]
