"""What is restored: the lines of a backup, or of a store at any time.

A backup is of one moment. At a time between two backups, the store had everything that the first of them has, and
nothing that the second does not: whatever the clocks of the writers said, this is the order of commits. Of what was
committed between them, the times of steps decide.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from holdfast.engine.engine import Engine
from holdfast.engine.namespaces import ACCESS, AUDIT
from holdfast.engine.row_format import Line
from holdfast.engine.types import to_datetime
from holdfast.errors import CorruptError, NotFoundError
from holdfast.maintenance.backup.cut import Cut, at_time, steps_until
from holdfast.maintenance.backup.format import LineEntry
from holdfast.maintenance.backup.keyring import BackupKeys, backup_keys
from holdfast.maintenance.backup.reader import BackupBackend, backup_engine, entries_of, loader_of, named_entries
from holdfast.maintenance.backup.repository import Backup, Repository
from holdfast.security.audit.archive_records import LINE as ARCHIVES
from holdfast.security.audit.erasure_ledger import LINE as ERASURES
from holdfast.state.sessions.records import LINE as SESSIONS

_log = logging.getLogger("holdfast.backups")

NEVER_SET_BACK = frozenset((ACCESS, AUDIT, ARCHIVES, ERASURES, SESSIONS))
"""The lines that say what is forbidden, over, archived or erased. They are never restored as they were, but as the
newest backup that can be read has them: what was revoked, frozen or ended since stays so. Their names are not hidden.
"""


class RecoveryPoint(NamedTuple):
    """Lines to restore: a name for the point, its time, the entries of the lines, where they are cut off, and the keys
    of an encrypted store."""

    name: str
    time: int
    entries: Sequence[LineEntry]
    cuts: Mapping[Line, Cut]
    keys: BackupKeys | None

    async def engine(self, repository: Repository, like: Engine, cuts: Mapping[Line, Cut] | None = None) -> Engine:
        """Return an engine on the lines."""
        return await backup_engine(
            repository, self.name, self.entries, like, self.cuts if cuts is None else cuts, self.keys
        )

    def only(self, entries: Sequence[LineEntry]) -> RecoveryPoint:
        """Return some of the lines."""
        return self._replace(entries=entries)


async def point_of_backup(repository: Repository, backup: Backup, like: Engine) -> RecoveryPoint:
    """Return the lines of a backup."""
    keys = await backup_keys(repository, [backup.manifest], like)
    entries = {entry.line: entry for entry in await named_entries(repository, backup, keys, like)}
    return await _point(repository, backup.id, backup.manifest.time, [backup], entries, {}, like)


async def point_at_time(repository: Repository, store: str, time: int, like: Engine) -> RecoveryPoint:
    """Return the lines of a store at a time. After the last backup, it is that. `NotFoundError` if there are none."""
    before = await repository.find_last(store, lambda each: each.until <= time)
    after = await repository.find_first(store, lambda each: each.time >= time)
    if after is None:
        newest = await anext(repository.newest_first(store), None)
        if newest is not None:
            return await point_of_backup(repository, newest, like)
    sources = [each for each in (before, after) if each is not None]
    keys = await backup_keys(repository, [each.manifest for each in sources], like)
    known, found = dict[Line, LineEntry](), dict[Line, LineEntry]()
    if before is not None:
        known = {entry.line: entry for entry in await named_entries(repository, before, keys, like)}
    if after is not None:
        found = {entry.line: entry for entry in await named_entries(repository, after, keys, like)}
    entries, cuts = dict(known), dict[Line, Cut]()
    for line, entry in found.items():
        last = known.get(line)
        if last == entry or not entry.columns or (keys is not None and keys.is_erased(entry)):
            entries.setdefault(line, entry)
            continue
        is_same = last is not None and (last.columns[:1], last.body) == (entry.columns[:1], entry.body)
        tips = {tip.branch: tip.seq for tip in last.tips} if is_same and last is not None else {}
        if await _has_more(repository, entry, time, tips, like, keys):
            entries[line], cuts[line] = entry, at_time(time, tips)
    if not sources or not any(entry.columns for entry in entries.values()):
        raise NotFoundError(
            f"there is nothing of {to_datetime(time).isoformat(timespec='seconds')} or before it",
            where=repository.where,
            code="no-backup",
        )
    name = f"{sources[-1].id}-{to_datetime(time):%Y%m%dT%H%M%S.%f}"
    return await _point(repository, name, time, sources, entries, cuts, like)


async def _has_more(
    repository: Repository,
    entry: LineEntry,
    time: int,
    known: Mapping[int, int],
    like: Engine,
    keys: BackupKeys | None,
) -> bool:
    """Return whether a line has steps of a time or before it that are not known."""
    engine = await backup_engine(repository, "", [entry], like, {}, keys)
    backend = engine.context.stored
    assert isinstance(backend, BackupBackend)  # noqa: S101 - see `backup_engine`
    lengths = steps_until(await backend.load(entry.line), time, known)
    return any(length > known.get(int(branch), -1) + 1 for branch, length in lengths.items())


async def _point(
    repository: Repository,
    name: str,
    time: int,
    sources: Sequence[Backup],
    entries: dict[Line, LineEntry],
    cuts: Mapping[Line, Cut],
    like: Engine,
) -> RecoveryPoint:
    async for newest in repository.newest_first(sources[-1].manifest.store):
        if newest.digest == sources[-1].digest:
            break
        try:
            protected = [entry async for entry in entries_of(repository, newest) if entry.name in NEVER_SET_BACK]
            for entry in protected:
                await loader_of(repository).rows(entry.line, entry.chunks)
        except CorruptError as error:
            _log.warning("rights are not as in backup %s: %s (%s)", newest.id, error.what, error.where)
            continue
        sources = [*sources, newest]
        entries.update((entry.line, entry) for entry in protected)
        break
    keys = await backup_keys(repository, [each.manifest for each in sources], like)
    left = {line: cut for line, cut in cuts.items() if line.name not in NEVER_SET_BACK}
    return RecoveryPoint(name, time, [entries[line] for line in sorted(entries)], left, keys)
