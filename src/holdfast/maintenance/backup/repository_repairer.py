"""Repairing a repository: what is damaged is rebuilt from its copy, from what is intact of it, or from the store.

An object that is stored twice is rebuilt from the other one. Of a damaged pack, what is intact is moved to a new one,
as repacking does it, and so are bodies of rows that the store still has as the index of their chunk says. The rest is
lost: a record says so, and the report has a list. A backup whose manifest or list of lines is lost leaves a gap. In the
end, a new backup has all that the store has.

Each step leaves the repository as good as before, or better: one that is killed is repeated.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from holdfast.backends.interface import Get
from holdfast.codec.envelope import sealed_key_id, unpack_body
from holdfast.engine.engine import Engine
from holdfast.engine.namespaces import short_name
from holdfast.errors import NotFoundError
from holdfast.maintenance.backup.checker import find_problems, missing_records
from holdfast.maintenance.backup.creator import BackupCreator
from holdfast.maintenance.backup.format import (
    BACKUPS,
    COPIES,
    KEYS,
    KINDS,
    LOCKS,
    LOSSES,
    PACKS,
    PINS,
    REMOVED,
    REPOSITORY,
    WITHDRAWALS,
    Chunk,
    LineEntry,
    Loss,
    PageBlocks,
    ReasonRecord,
    RemovedBackup,
    Repack,
    Slice,
    copy_name,
    manifest_name,
    pack_name,
    removed_name,
)
from holdfast.maintenance.backup.packs import PAGES, pack_id
from holdfast.maintenance.backup.reader import TABLES_BY_NAME, loader_of
from holdfast.maintenance.backup.records import check_deletion, damage_records, notice, withdraw
from holdfast.maintenance.backup.repacker import PackMap, SliceMover, pack_map
from holdfast.maintenance.backup.repository import UNREADABLE, Backup, Repository
from holdfast.maintenance.backup.store_record import pick_chain

_EXCHANGED = 16
"""How many packs that are under wrong names are in memory at once."""


class LostData(msgspec.Struct, frozen=True):
    """Data that a repair could not restore: a thread of a backup, or what is described if `thread` is empty: a whole
    backup, the settings of a tenant in one, or another object."""

    what: str
    backup: str = ""
    tenant: str = ""
    thread: str = ""


class BackupRepairReport(msgspec.Struct, frozen=True):
    """The result of repairing a repository: the names of objects that were damaged and rebuilt, or whose content was
    moved; what is lost; and the id of the backup that was then made of what the store has, if any. With `dry_run`, what
    would be."""

    rebuilt: tuple[str, ...]
    lost: tuple[LostData, ...]
    backup: str
    dry_run: bool

    @property
    def is_changed(self) -> bool:
        """Whether anything was damaged."""
        return bool(self.rebuilt or self.lost)


class _User(NamedTuple):
    """A chunk of a line in a backup, and the slice of it that is meant."""

    backup: Backup
    entry: LineEntry
    chunk: Chunk
    part: Slice

    @property
    def slice(self) -> tuple[bytes, int, int]:
        """The slice as a record of losses has it."""
        return self.part.pack, self.part.offset, self.part.start


class RepositoryRepairer:
    """Repairs a repository, with what a store still has."""

    def __init__(self, repository: Repository, engine: Engine, now: int, *, dry_run: bool) -> None:
        self._repository = repository
        self._storage = repository.storage
        self._engine = engine
        self._now = now
        self._dry_run = dry_run
        self._rebuilt: list[str] = []
        self._lost: list[LostData] = []
        self._intact: set[bytes] = set()
        """The packs that are as they were written."""
        self._read: set[str] = set()
        """The names of the packs that were read. Others have come since, as of a backup that is being made."""

    async def repair_and_back_up(self, tenant: str | None, home: str) -> BackupRepairReport:
        """Repair everything, and then make a backup of the store, or of a tenant, if it has some here. `DeniedError` if
        deletion is suspended."""
        own = await pick_chain(self._engine, home, self._repository)
        report = await self._repair()
        if own is None or self._dry_run or not report.is_changed:
            return report
        creator = BackupCreator(self._engine, self._repository, tenant, None, home, accept_loss=True)
        return replace(report, backup=(await creator.create("repair")).id)

    async def _repair(self) -> BackupRepairReport:
        if not self._dry_run:
            await check_deletion(self._repository)
        await self._repair_objects()
        for store in await self._repository.stores():
            await self._close_gaps(store)
        await self._repair_packs()
        await self._settle_records()
        return BackupRepairReport(tuple(self._rebuilt), tuple(self._lost), "", self._dry_run)

    # Small objects --------------------------------------------------------------------------------------------

    async def _repair_objects(self) -> None:
        for folder, kind in KINDS.items():
            listed = await self._storage.list_objects(folder)
            for name in [REPOSITORY] if folder == REPOSITORY else [info.name for info in listed]:
                problems = await find_problems(self._repository, kind, name)
                intact = next((place for place, what in problems.items() if not what), None)
                data = None if intact is None else await self._storage.get(intact)
                for place in [place for place, what in problems.items() if what]:
                    if data is not None:
                        await self._rebuild(place, data)
                    elif place == name:
                        await self._replace_lost(folder, name, problems[name])

    async def _rebuild(self, name: str, data: bytes) -> None:
        self._rebuilt.append(name)
        if not self._dry_run:
            await self._storage.replace(name, data)

    async def _delete(self, names: Sequence[str]) -> None:
        """Delete objects. `DeniedError` if deletion was suspended meanwhile."""
        await check_deletion(self._repository)
        await self._storage.delete(names)

    async def _replace_lost(self, folder: str, name: str, what: str) -> None:
        """Replace or delete an object of which nothing is left."""
        if folder in (BACKUPS, REMOVED, f"{COPIES}/{PACKS}"):
            return  # see below
        if folder not in (LOCKS, PINS):
            self._lost.append(LostData(f"{name}: {what}"))
        else:
            self._rebuilt.append(name)
        if self._dry_run:
            return
        if folder == PINS:
            record = ReasonRecord(self._now, "its reason was lost", os.getpid())
            await self._storage.replace(name, self._repository.encode_object(KINDS[PINS].mark, name, record))
        elif folder == KEYS:
            await withdraw(self._repository, [name], self._now)
        else:
            if folder == LOCKS:
                for lock in (await self._repository.locks())[0]:
                    if lock.name == name:
                        await self._repository.break_lock(lock)
            await self._delete([name])

    async def _settle_records(self) -> None:
        """Withdraw records that nobody has any more, and those of the damage that is repaired."""
        missing = await missing_records(self._repository, await self._repository.backups())
        self._lost += [LostData(f"{name}: it is missing") for name in sorted(missing)]
        if not self._dry_run:
            if missing:
                await notice(self._repository, sorted(missing), self._now, WITHDRAWALS)
            await withdraw(self._repository, await damage_records(self._repository), self._now)

    # Manifests ------------------------------------------------------------------------------------------------

    async def _close_gaps(self, store: str) -> None:
        """ReasonRecord which backups are lost."""
        last = await self._repository.last_number(store)
        found = {each.manifest.number: each for each in await self._repository.every_manifest(store)}
        removed = set[int]()
        for number in await self._repository.removed_numbers(store):
            with suppress(*UNREADABLE, NotFoundError):
                await self._repository.find_removed(store, number)
                removed.add(number)
        for number in range(1, last + 1):
            if number in removed:
                continue
            if number in found:
                if not await self._has_lists(found[number]):
                    await self._drop(found[number].manifest.store, number, found, "its list of threads is lost")
                continue
            is_known = await self._storage.exists(removed_name(store, number))
            if is_known:
                self._rebuilt.append(removed_name(store, number))
            await self._drop(store, number, found, "" if is_known else "its manifest is lost")

    async def _has_lists(self, backup: Backup) -> bool:
        try:
            await self._repository.entries(backup.manifest)
        except UNREADABLE:
            return False
        return True

    async def _drop(self, store: str, number: int, found: dict[int, Backup], what: str) -> None:
        """Leave a gap in the place of a backup, or write the record of one again. The last one leaves an abandoned
        backup, so that its number is not used again."""
        if what:
            self._lost.append(LostData(what, f"{store[:8]}.{number}"))
        if self._dry_run:
            return
        before, after = found.get(number - 1), found.get(number + 1)
        name = manifest_name(store, number)
        if after is None and number == await self._repository.last_number(store):
            await self._repository.abandon(store, number)
            return
        digest = b"" if after is None else after.manifest.parent
        record = RemovedBackup(digest, b"" if before is None else before.digest, self._now, what or "repaired")
        removed = removed_name(store, number)
        await self._storage.replace(removed, self._repository.encode_object(KINDS[REMOVED].mark, removed, record))
        await self._delete([name])

    # Packs ----------------------------------------------------------------------------------------------------

    async def _repair_packs(self) -> None:
        copies = [info.name for info in await self._storage.list_objects(f"{COPIES}/{PACKS}")]
        await self._read_packs([info.name for info in await self._storage.list_objects(PACKS)])
        places = await pack_map(self._repository)
        pages, users, named = await self._needed(places)
        needed = {pack_name(part.pack) for part in (*pages, *users)}
        await self._read_packs(sorted(needed & places.sizes.keys() - self._read))
        known = {each for loss in await self._repository.losses() for each in loss.slices}
        lost: list[tuple[bytes, int, int]] = []
        for pack in sorted({part.pack for part in (*pages, *users)}):
            own_pages = [part for part in pages if part.pack == pack]
            if pack in self._intact:
                await self._copy_pages(pack, own_pages)
                continue
            chunks = {part: users[part] for part in users if part.pack == pack}
            lost += await self._rescue(pack, own_pages, chunks, known)
        if lost and not self._dry_run:
            name = f"{LOSSES}/{self._now:020d}-{secrets.token_hex(8)}"
            await self._repository.create_object(KINDS[LOSSES].mark, name, Loss(self._now, lost))
        await self._delete_useless({part.pack for part in (*pages, *users)}, copies)
        if not self._dry_run:
            await self._merge_repacks(named)

    async def _needed(self, places: PackMap) -> tuple[list[Slice], dict[Slice, list[_User]], set[bytes]]:
        """Return the slices that backups need, where they are: those with lists of lines, and the others with the
        chunks that they are parts of; and the packs that they were in at first."""
        pages, users, named = dict[Slice, None](), dict[Slice, list[_User]](), set[bytes]()
        for backup in await self._repository.backups():
            if not await self._has_lists(backup):
                continue  # it is dropped
            pages.update(dict.fromkeys(map(places.locate, backup.manifest.pages)))
            named |= await self._repository.packs_of(backup.manifest)
            for entry in await self._repository.entries(backup.manifest):
                for chunk in entry.chunks:
                    for part in chunk[:2]:
                        users.setdefault(places.locate(part), []).append(_User(backup, entry, chunk, part))
        return [*pages], users, named

    async def _read_packs(self, names: Sequence[str]) -> None:
        """Find out which packs are intact, and put those that are under the names of others under their own."""
        exchanged: dict[str, bytes] = {}
        self._read.update(names)
        for name in names:
            data = await self._storage.get(name) or b""
            with suppress(*UNREADABLE):
                id = pack_id(data, name)
                if pack_name(id) == name:
                    self._intact.add(id)
                elif len(exchanged) < _EXCHANGED:
                    exchanged[pack_name(id)] = data
        for name, data in exchanged.items():
            pack = _pack_of(name)
            if pack not in self._intact:
                await self._rebuild(name, data)
                self._intact.add(pack)

    async def _copy_pages(self, pack: bytes, pages: Iterable[Slice]) -> None:
        """Write the copy of the lists of lines in a pack, if it is not there or damaged."""
        name, kind = copy_name(pack_name(pack)), KINDS[f"{COPIES}/{PACKS}"]
        blocks = {part.offset: await self._storage.get(pack_name(pack), part.offset, part.length) for part in pages}
        problems = await find_problems(self._repository, kind, name)
        found = {offset: data for offset, data in blocks.items() if data is not None}
        if found and problems != {name: ""}:  # else it was deleted meanwhile
            copies = PageBlocks(found)
            await self._rebuild(name, self._repository.encode_object(kind.mark, name, copies))

    async def _rescue(
        self, pack: bytes, pages: Iterable[Slice], chunks: dict[Slice, list[_User]], known: set[tuple[bytes, int, int]]
    ) -> list[tuple[bytes, int, int]]:
        """Move what can be had of a damaged pack to a new one, and delete it. Returns the slices that are lost."""
        mover = SliceMover(self._repository, self._now)
        lost: dict[tuple[bytes, int, int], None] = {}
        for part in (*pages, *chunks):
            is_page = part not in chunks
            data = await self._content(part, () if is_page else chunks[part])
            if data is not None:
                await mover.add(part, PAGES if is_page else "rescued", data)
            for user in chunks.get(part, ()) if data is None else ():
                if user.slice not in known:
                    lost[user.slice] = None
                    what = "" if user.entry.name else "the settings of the tenant"
                    loss = LostData(what, user.backup.id, user.entry.tenant, short_name(user.entry.name))
                    self._lost += [] if loss in self._lost else [loss]
        if mover.moved or lost:
            self._rebuilt.append(pack_name(pack))
        if self._dry_run or not (mover.moved or lost):
            return []
        self._intact |= await mover.finish()
        await self._delete([pack_name(pack)])
        return [*lost]

    async def _content(self, part: Slice, users: Iterable[_User]) -> bytes | None:
        """Return a part of a damaged pack: as it is there, in a copy, or in the store; None if it is lost."""
        with suppress(*UNREADABLE):
            return await self._repository.blocks.read(part)
        for user in users:
            if user.chunk.bodies.size == part.size:
                with suppress(*UNREADABLE):
                    data = await self._bodies_of_store(user.entry, user.chunk)
                    if data is not None and len(data) == part.size:
                        return data
        return None

    async def _bodies_of_store(self, entry: LineEntry, chunk: Chunk) -> bytes | None:
        """Return the bodies of a chunk from the rows that the store has, if all of them have the columns and lengths
        that the index says."""
        index = await loader_of(self._repository).index(entry.stored_line, chunk)
        bodies: list[bytes] = []
        for name, listed in index.rows:
            keys = [(*entry.stored_line, *key) for key, _, _ in listed]
            (found,) = await self._engine.context.stored.read([Get(TABLES_BY_NAME[name], keys)])
            rows = {row.key: row for row in found}
            for key, (_, columns, length) in zip(keys, listed, strict=True):
                row = rows.get(key)
                if row is None or row.columns != columns:
                    return None
                body = row.body if length >= 0 else unpack_body(row.body) or b""
                key_id = sealed_key_id(row.body)
                if len(body) != (length if length >= 0 else -length - 1) or (key_id and key_id not in entry.keys):
                    return None
                bodies.append(body)
        return b"".join(bodies)

    async def _merge_repacks(self, packs: set[bytes]) -> None:
        """Make one of all records of repacking, without what they say of packs that do not exist."""
        repacks, places = await self._repository.repacks(), await pack_map(self._repository)
        if not places.is_damaged:
            return
        merged = places.merge(packs)
        if merged:
            await self._repository.add_repack(Repack(self._now, merged))
        await self._delete([*repacks])

    async def _delete_useless(self, needed: set[bytes], copies: Sequence[str]) -> None:
        """Delete damaged packs that nothing needs, and copies of lists whose packs are gone."""
        names = {info.name for info in await self._storage.list_objects(PACKS)}
        for name in sorted(names & self._read):
            if not {_pack_of(name)} & (needed | self._intact):
                self._rebuilt.append(name)
                if not self._dry_run:
                    await self._delete([name])
        for name in copies:
            if _pack_of(name) in needed:
                continue
            problems = await find_problems(self._repository, KINDS[f"{COPIES}/{PACKS}"], name)
            if name.removeprefix(f"{COPIES}/") not in names or any(problems.values()):
                self._rebuilt.append(name)
                if not self._dry_run:
                    await self._delete([name])


def _pack_of(name: str) -> bytes:
    return bytes.fromhex(name.rpartition("/")[2])
