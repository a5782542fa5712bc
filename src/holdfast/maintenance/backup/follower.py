"""Following a store: a backup as soon as something has changed."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

from holdfast.backends.runtime.drivers import Pause
from holdfast.engine.engine import Engine
from holdfast.errors import TransientError
from holdfast.maintenance.backup.capture import LineReader
from holdfast.maintenance.backup.creator import BackupCreator
from holdfast.maintenance.backup.repository import Repository

FOLLOW = "follow"
"""The reason of backups that are made so."""


class FollowStatus(NamedTuple):
    """The state of a follower: the number of backups so far, the last one, the seconds that the last change waited at
    most until it was in a backup, and the last error, if it is being retried; the most seconds so far; and the number
    of gaps, where the store could not say what had changed, and all threads were compared."""

    backups: int
    last: str
    lag: float
    error: str
    max_lag: float = 0.0
    gaps: int = 0


class Follower:
    """Makes a backup whenever something has changed."""

    def __init__(self, engine: Engine, repository: Repository, tenant: str | None, home: str) -> None:
        self._engine = engine
        self._repository = repository
        self._tenant = tenant
        self._home = home
        self.status = FollowStatus(0, "", 0.0, "")

    async def run(
        self, interval: float, stop: Callable[[], bool], report: Callable[[FollowStatus], None] | None
    ) -> FollowStatus:
        """Follow until `stop` says so. What happened while nobody followed is in the first backup."""
        token = ""
        looked = time.monotonic()
        while True:
            before = looked
            looked = time.monotonic()
            try:
                found = await LineReader(self._engine).changes(token or None)
                # The store's own record of the last backup is a change of its settings.
                changed = [name for tenant, name in found.lines if name and self._tenant in (None, tenant)]
                if not token or changed or not found.complete:
                    creator = BackupCreator(self._engine, self._repository, self._tenant, None, self._home)
                    made = await creator.create(FOLLOW)
                    lag = time.monotonic() - (before if token else looked)
                    self.status = FollowStatus(
                        self.status.backups + 1,
                        made.id,
                        lag,
                        "",
                        max(lag, self.status.max_lag),
                        self.status.gaps + creator.had_gap,
                    )
                token = found.token
            except TransientError as error:
                self.status = self.status._replace(error=str(error))
            if report is not None:
                report(self.status)
            if stop():
                return self.status
            await Pause(max(0.0, interval - (time.monotonic() - looked)))
