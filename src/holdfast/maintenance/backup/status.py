"""When the last backup was made, and the last drill: for the status of a store. It is quick to import."""

from __future__ import annotations

import msgspec

from holdfast.backends.interface import Scan
from holdfast.backends.tables import REFS
from holdfast.engine.engine import Engine
from holdfast.engine.types import to_datetime

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


async def backup_status(engine: Engine, home: str) -> dict[str, int | float | str]:
    """Return when the last backup was made; when what it reuses was last read, that of all of it which was not for the
    longest time; and when the last drill was, and whether that proved a backup. Nothing, if never."""
    (found,) = await engine.context.backend.read([Scan(REFS, (home, "", SETTING))])
    status: dict[str, int | float | str] = {}
    backups = [int(row.columns[1]) for row in found if str(row.key[3]).startswith(RECORD)]
    checks = [
        time
        for row in found
        if str(row.key[3]).startswith(RECORD) and (time := msgspec.json.decode(str(row.columns[0])).get("checked"))
    ]
    drills = [(int(row.columns[1]), str(row.columns[0])) for row in found if str(row.key[3]).startswith(f"{DRILL} ")]
    if backups:
        status["last_backup"] = to_datetime(max(backups)).isoformat(timespec="seconds")
    if checks:
        status["oldest_backup_check"] = to_datetime(min(checks)).isoformat(timespec="seconds")
    if drills:
        time, text = max(drills)
        result = "OK" if msgspec.json.decode(text)["ok"] else "failed"
        status["last_drill"] = f"{to_datetime(time).isoformat(timespec='seconds')}, {result}"
    return status
