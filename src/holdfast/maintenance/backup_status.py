"""When the last backup was made, and the last drill: for the status of a store. It is quick to import."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from holdfast._structs import decode_json
from holdfast.backends.interface import Put, Row, Scan
from holdfast.backends.tables import REFS
from holdfast.engine.engine import Engine
from holdfast.engine.types import to_datetime

T = TypeVar("T")

SETTING = "setting"

LAST_BACKUP = "backup "
"""The beginning of the names of settings that say which backup or drill was the last: they are not part of one."""

RECORD, DRILL, SIZE = f"{LAST_BACKUP}in ", f"{LAST_BACKUP}drill", f"{LAST_BACKUP}size "
"""The beginnings of the names of settings with the last backup, with the results of drills, and with sizes."""


class RepositorySize(msgspec.Struct):
    """The size of a repository in bytes, as a store remembers it, and its storage limit, or 0; and when it had it."""

    where: str
    bytes: int
    limit: int
    time: int

    @property
    def is_over(self) -> bool:
        """Whether the repository is larger than its limit."""
        return 0 < self.limit < self.bytes


async def put_setting(engine: Engine, home: str, name: str, value: msgspec.Struct, time: int) -> None:
    """Remember something about the store of a tenant, as of a time."""
    row = Row((home, "", SETTING, name, ""), (msgspec.json.encode(value).decode(), time))
    await engine.context.backend.apply([Put(REFS, row)])


async def read_settings(engine: Engine, home: str, start: str, type: type[T]) -> list[tuple[T, int]]:
    """Return what is remembered about the store of a tenant under names that start so, each with its time."""
    (found,) = await engine.context.backend.read([Scan(REFS, (home, "", SETTING))])
    rows = [row for row in found if str(row.key[3]).startswith(start)]
    return [(decode_json(str(row.columns[0]), type), int(row.columns[1])) for row in rows]


async def unseen_since(engine: Engine, tenant: str) -> int | None:
    """Return the time since when some repository has no backup of the store of a tenant; None if there is no backup."""
    found = [await read_settings(engine, home, RECORD, dict[str, Any]) for home in {tenant, ""}]
    return min((time for records in found for _, time in records), default=None)


async def backup_status(engine: Engine, home: str) -> dict[str, int | float | str]:
    """Return when the last backup was made; when what it reuses was last read, that of all of it which was not for the
    longest time; and when the last drill was, and whether that proved a backup. Nothing, if never."""
    status: dict[str, int | float | str] = {}
    backups = await read_settings(engine, home, RECORD, dict[str, Any])
    checks = [time for record, _ in backups if (time := record.get("checked"))]
    drills = await read_settings(engine, home, f"{DRILL} ", dict[str, Any])
    if backups:
        status["last_backup"] = _describe(max(time for _, time in backups))
    if checks:
        status["oldest_backup_check"] = _describe(min(checks))
    if drills:
        record, time = max(drills, key=lambda each: each[1])
        status["last_drill"] = f"{_describe(time)}, {'OK' if record['ok'] else 'failed'}"
    return status


def _describe(time: int) -> str:
    return to_datetime(time).isoformat(timespec="seconds")
