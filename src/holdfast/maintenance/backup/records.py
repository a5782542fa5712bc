"""Records of people in a repository: suspensions of all deletion, and pins, which protect one backup.

Each has a name of its own. A notice says that it was created, manifests list the records that there were, and one that
is removed leaves a notice of that. So `verify` finds it if one is missing: somebody may have wanted to delete what it
protects. Reasons, also those of backups, are sealed if they are of an encrypted store: a repository need not be
encrypted, and a reason may say what is in the store.
"""

from __future__ import annotations

import os
import secrets
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from holdfast.engine.engine import Engine
from holdfast.engine.namespaces import BACKUPS_PLACE
from holdfast.engine.row_format import Line
from holdfast.errors import DeniedError, HoldfastError, NotFoundError
from holdfast.maintenance.backup.format import (
    DAMAGE,
    KEYS,
    KINDS,
    NOTICES,
    PINS,
    RECORDS,
    SUSPENSIONS,
    WITHDRAWALS,
    Notice,
    ReasonRecord,
)
from holdfast.maintenance.backup.repository import UNREADABLE, Backup, Repository


async def suspend_deletion(repository: Repository, reason: str, now: int) -> None:
    """Suspend all deletion in a repository."""
    await _create(repository, f"{SUSPENSIONS}/{now:020d}", reason, now)


async def allow_deletion(repository: Repository, now: int) -> int:
    """Allow deletion again. Returns how many suspensions there were."""
    names = [info.name for info in await repository.storage.list_objects(SUSPENSIONS)]
    await withdraw(repository, names, now)
    return len(names)


async def suspensions(repository: Repository) -> list[ReasonRecord]:
    """Return the suspensions of deletion in a repository."""
    found = [await _read(repository, info.name) for info in await repository.storage.list_objects(SUSPENSIONS)]
    return [each for each in found if each is not None]


async def check_deletion(repository: Repository) -> None:
    """Raise `DeniedError` if deletion is suspended. To be called before each deletion: a suspension counts at once."""
    for each in await suspensions(repository):
        raise DeniedError(
            f"deletion is suspended in the repository: {each.reason or 'no reason was given'}",
            where=repository.where,
            hint="Nothing is deleted until somebody allows it again: `holdfast backup allow-deletion`",
            code="deletion-suspended",
        )


async def pin(repository: Repository, backup: Backup, reason: str, now: int) -> None:
    """Protect a backup from pruning."""
    await _create(repository, _pins(backup.manifest.store) + f"/{backup.manifest.number:010d}", reason, now)


async def unpin(repository: Repository, backup: Backup, now: int) -> bool:
    """Remove the pins of a backup. Returns whether it had any. `DeniedError` if deletion is suspended."""
    await check_deletion(repository)
    found = await repository.storage.list_objects(_pins(backup.manifest.store))
    names = [info.name for info in found if _number_of(info.name) == backup.manifest.number]
    await withdraw(repository, names, now)
    return bool(names)


async def pins_of(repository: Repository, store: str) -> Mapping[int, str]:
    """Return the reasons of pins by number of the backup."""
    names = [info.name for info in await repository.storage.list_objects(_pins(store))]
    found = {_number_of(name): await _read(repository, name) for name in names}
    return {number: record.reason for number, record in found.items() if record is not None}


async def notice(repository: Repository, names: Sequence[str], now: int, folder: str = NOTICES) -> None:
    """Say that records or keys were created, or deleted."""
    name = f"{folder}/{now:020d}-{secrets.token_hex(8)}"
    await repository.create_object(KINDS[folder].mark, name, Notice(now, list(names), os.getpid()))


async def withdraw(repository: Repository, names: Sequence[str], now: int) -> None:
    """Delete records or keys, and say so."""
    if names:
        await notice(repository, names, now, WITHDRAWALS)
        await repository.storage.delete(names)


async def list_records(repository: Repository) -> tuple[str, ...]:
    """Return the names of the records and keys of a repository."""
    folders = [RECORDS, *([KEYS] if repository.key is not None else [])]
    listed = [info.name for folder in folders for info in await repository.storage.list_objects(folder)]
    return tuple(name for name in listed if not name.startswith(f"{WITHDRAWALS}/"))


async def noticed_names(repository: Repository, folder: str) -> set[str]:
    """Return the names of the records and keys that notices say were created, or deleted."""
    found: set[str] = set()
    for info in await repository.storage.list_objects(folder):
        with suppress(NotFoundError, *UNREADABLE):
            found.update((await repository.read_object(KINDS[folder].mark, info.name, Notice)).names)
    return found


async def record_damage(repository: Repository, what: str, now: int) -> None:
    """Say that there is damage, unless that was said since the last backup: the next one then reads all that it
    reuses. Whoever may only read the repository cannot say so."""
    newest = [(await repository.chain(store)).newest for store in await repository.stores()]
    known = [{*each.manifest.records} for each in newest if each is not None]
    if all(name in records for name in await damage_records(repository) for records in known):
        name = f"{DAMAGE}/{now:020d}-{secrets.token_hex(8)}"
        with suppress(DeniedError):
            await repository.create_object(KINDS[DAMAGE].mark, name, ReasonRecord(now, what, os.getpid()))


async def damage_records(repository: Repository) -> list[str]:
    """Return the names of the records that there is damage."""
    return [info.name for info in await repository.storage.list_objects(DAMAGE)]


async def record_action(
    engine: Engine, home: str, repository: Repository, action: str, detail: Mapping[str, Any]
) -> None:
    """ReasonRecord in the audit of a store what was done to its repository."""
    from holdfast.security.audit.thread_audit import record

    with suppress(DeniedError):  # the store is open to be read only: whoever has just the repository may do that
        await record(engine, [Line(home, BACKUPS_PLACE)], action, {"repository": repository.where, **detail})


async def _create(repository: Repository, start: str, reason: str, now: int) -> None:
    folder = SUSPENSIONS if start.startswith(SUSPENSIONS) else PINS
    name = f"{start}-{secrets.token_hex(8)}"
    await repository.create_object(KINDS[folder].mark, name, ReasonRecord(now, reason, os.getpid()))
    await notice(repository, [name], now)


async def _read(repository: Repository, name: str) -> ReasonRecord | None:
    """Return a suspension or a pin; None if it was removed meanwhile. One that is damaged is one all the same."""
    folder = SUSPENSIONS if name.startswith(SUSPENSIONS) else PINS
    try:
        return await repository.read_object(KINDS[folder].mark, name, ReasonRecord)
    except NotFoundError:
        return None
    except UNREADABLE:
        return ReasonRecord(0, "the record is damaged", 0)


def _pins(store: str) -> str:
    return f"{PINS}/{store}"


def _number_of(name: str) -> int:
    return int(name.rpartition("/")[2].partition("-")[0])


_SEALED = "sealed:"
_PURPOSE = b"reason of a backup"

UNKNOWN = "(sealed)"
"""Stands for a reason that cannot be opened: it is that of another store, or the key is missing."""


async def seal_reason(engine: Engine, tenant: str, reason: str) -> str:
    """Return a reason as it is stored in a repository."""
    sealer = await engine.context.rows.file_sealer(tenant) if reason else None
    return reason if sealer is None else _SEALED + b64encode(sealer.seal(reason.encode(), _PURPOSE)).decode()


async def open_reason(engine: Engine, tenant: str, reason: str) -> str:
    """Return a reason that is stored in a repository; `UNKNOWN` if this store does not have the key."""
    if not reason.startswith(_SEALED):
        return reason
    try:
        sealer = await engine.context.rows.file_sealer(tenant)
        return UNKNOWN if sealer is None else sealer.unseal(b64decode(reason[len(_SEALED) :]), _PURPOSE).decode()
    except (HoldfastError, ValueError):
        return UNKNOWN
