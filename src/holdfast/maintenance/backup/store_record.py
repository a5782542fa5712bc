"""The record that a store has of its own backups: its id, and the last backup in each repository.

A repository cannot prove alone that nothing was taken away from its end, or that it was not put back as it was some
time ago. The store remembers the digest of its last manifest, and each manifest that of the one before it.
"""

from __future__ import annotations

import secrets
from contextlib import suppress

import msgspec

from holdfast.backends.interface import Ensure, Get, Put, Row
from holdfast.backends.tables import REFS
from holdfast.engine.engine import Engine
from holdfast.errors import CorruptError, DeniedError, HoldfastError, NotFoundError
from holdfast.maintenance.backup.format import REPOSITORY, manifest_name, own_tenant_id, removed_name
from holdfast.maintenance.backup.repository import UNREADABLE, Backup, Repository
from holdfast.maintenance.backup.storage import open_storage
from holdfast.maintenance.backup_status import RECORD, SETTING, SIZE, RepositorySize, put_setting, read_settings

_STORE_ID = "store id"

OWN_TENANT = " own"
"""The end of the names of what is about backups of the own tenant of a store with several."""


class BackupRecord(msgspec.Struct):
    """The record that a store keeps of its last backup in a repository."""

    store: str
    number: int
    digest: str
    repository: str
    where: str
    checked: int = 0
    """When the pack was read whose last check is the longest ago."""


async def record_backup(engine: Engine, home: str, repository: Repository, made: Backup) -> None:
    """Remember a backup. `home` is the tenant whose settings have the record."""
    manifest = made.manifest
    record = BackupRecord(
        manifest.store, manifest.number, made.digest.hex(), repository.id, repository.where, manifest.oldest_check
    )
    name = f"{RECORD}{repository.id}" + ("" if home or manifest.tenant is None else OWN_TENANT)
    await put_setting(engine, home, name, record, manifest.time)


async def last_backups(engine: Engine, home: str) -> list[tuple[BackupRecord, int]]:
    """Return the last backups that a store remembers, one for each repository, with their times."""
    return await read_settings(engine, home, RECORD, BackupRecord)


async def record_size(engine: Engine, home: str, repository: Repository, limit: int | None) -> RepositorySize:
    """Remember the size of a repository, and its limit: without one, that of before."""
    known = [each.limit for each in await repository_sizes(engine, home) if each.where == repository.where]
    size = sum((await repository.pack_sizes()).values())
    limit = limit if limit is not None else next(iter(known), 0)
    record = RepositorySize(repository.where, size, limit, engine.context.clock())
    with suppress(DeniedError):  # the store is open to be read only
        await put_setting(engine, home, f"{SIZE}{repository.id}", record, record.time)
    return record


async def repository_sizes(engine: Engine, home: str) -> list[RepositorySize]:
    """Return the sizes of repositories that a store remembers."""
    return [size for size, _ in await read_settings(engine, home, SIZE, RepositorySize)]


async def find_loss(engine: Engine, home: str, repository: Repository, store: str) -> CorruptError | None:
    """Compare a repository with the record of a store. Returns an error if backups were removed or replaced there."""
    records = [record for record, _ in await last_backups(engine, home)]
    for record in records:
        if record.repository == repository.id and record.store == store:
            return None if await _has(repository, record) else _loss(repository, record, "does not have")
    replaced = [record for record in records if record.where == repository.where and record.store == store]
    return _loss(repository, replaced[0], "was replaced by another one, without") if replaced else None


async def _has(repository: Repository, record: BackupRecord) -> bool:
    """Return whether a backup is there, or was removed by pruning when there were newer ones."""
    last = await repository.last_number(record.store)
    if last < record.number:
        return False
    try:
        return (await repository.load(record.store, record.number)).digest.hex() == record.digest
    except NotFoundError:
        removed = await repository.find_removed(record.store, record.number)
        return removed is not None and removed.digest.hex() == record.digest and last > record.number
    except UNREADABLE:
        return True  # it is damaged, not removed: `verify` finds it


async def find_record_loss(record: BackupRecord) -> str:
    """Return what is wrong with the repository of a backup that a store remembers, if that is a directory, or nothing.
    Without its key, it is only known whether it is there."""
    if "://" in record.where:
        return ""  # it may need options that nobody knows here
    try:
        storage = open_storage(record.where, {})
    except HoldfastError as error:
        return error.what
    try:
        if not await storage.exists(REPOSITORY):
            return "there is no repository of backups any more"
        names = (manifest_name(record.store, record.number), removed_name(record.store, record.number))
        return "" if any([await storage.exists(name) for name in names]) else "the backup is not there any more"
    except HoldfastError as error:
        return error.what
    finally:
        await storage.close()


async def known_digest(engine: Engine, home: str, store: str, number: int) -> bytes:
    """Return the digest of a manifest that cannot be read, if the store remembers it."""
    known = [record for record, _ in await last_backups(engine, home)]
    digests = [record.digest for record in known if (record.store, record.number) == (store, number)]
    return bytes.fromhex(digests[0]) if digests else b""


def _loss(repository: Repository, record: BackupRecord, verb: str) -> CorruptError:
    return CorruptError(
        f"the repository {verb} the last backup of this store, {record.store[:8]}.{record.number}",
        where=repository.where,
        hint="Somebody removed or replaced backups there. Look into it, then accept it: --accept-loss",
        code="backups-removed",
    )


async def is_copy(engine: Engine, home: str, repository: Repository, newest: Backup | None) -> bool:
    """Return whether a store seems to be a copy of another, whose id it has: the newest backup is of another place, and
    not one that it remembers."""
    if newest is None or newest.manifest.url == engine.context.backend.url:
        return False
    known = [record for record, _ in await last_backups(engine, home) if record.repository == repository.id]
    return not any(each.store == newest.manifest.store and each.number >= newest.manifest.number for each in known)


async def store_id(engine: Engine, home: str) -> str:
    """Return the id of a store. It gets one, if it has none."""
    found = await find_store_id(engine, home)
    if found is None:
        await engine.context.backend.apply([Ensure(REFS, _new_id(engine, home))])
        found = await find_store_id(engine, home)
    return found or ""


async def replace_store_id(engine: Engine, home: str) -> None:
    """Give a store another id."""
    await engine.context.backend.apply([Put(REFS, _new_id(engine, home))])


def _new_id(engine: Engine, home: str) -> Row:
    return Row((home, "", SETTING, _STORE_ID, ""), (secrets.token_hex(16), engine.context.clock()))


async def find_store_id(engine: Engine, tenant: str) -> str | None:
    """Return the id of a store, if it has one."""
    (found,) = await engine.context.backend.read([Get(REFS, [(tenant, "", SETTING, _STORE_ID, "")])])
    return str(found[0].columns[0]) if found else None


def chain_id(store: str, home: str, tenant: str | None) -> str:
    """Return the id under which the backups of a store are: those of all tenants have that of the store, and those of
    only its own another one. So neither is ever taken for the other."""
    return store if home or tenant is None else own_tenant_id(store)


async def own_chains(engine: Engine, home: str) -> list[str]:
    """Return the ids under which backups of a store may be."""
    store = await find_store_id(engine, home)
    return [] if store is None else [*dict.fromkeys((store, chain_id(store, home, home)))]


async def pick_chain(engine: Engine, home: str, repository: Repository) -> str | None:
    """Return the id under which a repository has the backups of a store; None if it has none."""
    stores = await repository.stores()
    return next((each for each in await own_chains(engine, home) if each in stores), None)
