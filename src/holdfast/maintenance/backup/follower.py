"""Following a store: a backup as soon as something has changed."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import TypeAlias

import msgspec
from msgspec.structs import replace

from holdfast.backends.interface import Row, Scan
from holdfast.backends.runtime.drivers import Pause
from holdfast.backends.tables import FIRST_JOB, JOBS, REFS
from holdfast.engine.checked_rows import RowCodec
from holdfast.engine.engine import Engine
from holdfast.errors import ConfigError, CorruptError, HoldfastError, InvalidError, UnsupportedError
from holdfast.maintenance.backup.capture import LineReader, is_local
from holdfast.maintenance.backup.creator import BackupCreator
from holdfast.maintenance.backup.format import digest_of
from holdfast.maintenance.backup.repository import Repository

_log = logging.getLogger("holdfast.backups")

_LASTING = (ConfigError, InvalidError, UnsupportedError)
"""Errors that do not pass: following ends."""

_LONGEST_PAUSE = 5.0
"""The most seconds between two attempts after errors."""

_CHECK_EVERY = 3600 * 10**9
"""How often what backups reuse is checked, in nanoseconds: not with each of them."""

JobSettings: TypeAlias = Callable[[Row, RowCodec], object]
"""Returns what is set in a row of a job. `CorruptError` if it is damaged."""

FOLLOW = "follow"
"""The reason of backups that are made so."""


class FollowStatus(msgspec.Struct, frozen=True):
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

    def __init__(
        self, engine: Engine, repository: Repository, tenant: str | None, home: str, job_settings: JobSettings
    ) -> None:
        self._engine = engine
        self._repository = repository
        self._tenant = tenant
        self._home = home
        self._job_settings = job_settings
        self.status: FollowStatus = FollowStatus(0, "", 0.0, "")

    async def run(
        self, interval: float, stop: Callable[[], bool], report: Callable[[FollowStatus], None] | None
    ) -> FollowStatus:
        """Follow until `stop` says so. What happened while nobody followed is in the first backup."""
        token, failures = "", 0
        looked = time.monotonic()
        settings = await self._settings_of([self._home])
        while True:
            before = looked
            looked = time.monotonic()
            try:
                found = await LineReader(self._engine).changes(token or None)
                own = [each for each in found.lines if self._tenant in (None, each[0])]
                # The store's own record of the last backup is a change of its settings, and no reason for another.
                now = await self._settings_of([tenant for tenant, name in own if not name])
                has_changed = any(name for _, name in own) or any(settings.get(each) != now[each] for each in now)
                if not token or has_changed or not found.complete:
                    creator = BackupCreator(
                        self._engine, self._repository, self._tenant, None, self._home, check_every=_CHECK_EVERY
                    )
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
                settings |= now
                token, failures = found.token, 0
                self.status = replace(self.status, error="")
            except _LASTING:
                raise
            except HoldfastError as error:
                failures += 1
                if str(error) != self.status.error:
                    _log.warning("following is interrupted: %s", error)
                self.status = replace(self.status, error=str(error))
            if report is not None:
                report(self.status)
            if stop():
                return self.status
            pause = min(interval * 2**failures, max(_LONGEST_PAUSE, interval)) if failures else interval
            await Pause(max(0.0, pause - (time.monotonic() - looked)))

    async def _settings_of(self, tenants: Sequence[str]) -> dict[str, bytes]:
        """Return digests of the settings and jobs of tenants, without what changes when a job runs."""
        context, digests = self._engine.context, dict[str, bytes]()
        for tenant in tenants:
            (refs,) = await context.backend.read([Scan(REFS, (tenant, ""))])
            (jobs,) = await context.stored.read([Scan(JOBS, (tenant, ""), (FIRST_JOB,))])  # timers change with a line
            parts: list[object] = [(row.key, row.columns) for row in refs if not is_local(row.key[2], str(row.key[3]))]
            for row in jobs:
                try:
                    parts.append(self._job_settings(row, context.rows))
                except CorruptError:
                    parts.append(row.key)
            digests[tenant] = digest_of(repr(parts).encode(errors="surrogatepass"))
        return digests
