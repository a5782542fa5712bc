"""A backup as a source of repairs, by its name: `backup:s3://bucket/backups`, or `backup:/srv/backups#12`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from holdfast.engine.engine import Engine
from holdfast.maintenance.backup.keyring import backup_keys
from holdfast.maintenance.backup.reader import backup_engine, named_entries
from holdfast.maintenance.backup.recovery_point import point_of_backup
from holdfast.maintenance.backup.repository import Backup, Repository, open_repository
from holdfast.maintenance.backup.store_record import pick_chain
from holdfast.maintenance.erasure.reapply import read_ledgers, remove_erased
from holdfast.security.audit.erasure_ledger import LINE as ERASURES

PREFIX = "backup:"
"""The start of the name of a backup as a source."""


@asynccontextmanager
async def open_source(engine: Engine, name: str, tenant: str) -> AsyncIterator[Engine]:
    """Open the backup that a name means: of this store, if there are several, and the latest, if it has no number. A
    key that the repository needs is that of the environment."""
    target, _, number = name.removeprefix(PREFIX).partition("#")
    async with open_repository(target, {}) as repository:
        backup = await repository.find(number or "latest", await pick_chain(engine, tenant, repository))
        yield await open_backup(repository, backup, engine, tenant)


async def open_backup(repository: Repository, backup: Backup, like: Engine, tenant: str) -> Engine:
    """Return an engine on a backup, or on what it has of a tenant, without what was erased, according to the newest
    backup and to the store `like`."""
    keys = await backup_keys(repository, [backup.manifest], like)
    entries = [
        entry
        for entry in await named_entries(repository, backup, keys, like, tenant or None)
        if keys is None or not keys.is_erased(entry)
    ]
    engine = await backup_engine(repository, backup.id, entries, like, keys=keys)
    point = await point_of_backup(repository, backup, like)
    erasures = point.only([entry for entry in point.entries if entry.name == ERASURES])
    ledgers = await read_ledgers({entry.tenant for entry in entries}, await erasures.engine(repository, like, {}), like)
    for each, ledger in ledgers.items():
        await remove_erased(engine, each, ledger)
    return engine
