"""What is restored: the lines of a backup, or of a store at any time.

A backup is of one moment. At a time between two backups, the store had everything that the first of them has, and
nothing that the second does not: whatever the clocks of the writers said, this is the order of commits. Of what was
committed between them, the times of steps decide.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from holdfast.backends.interface import Get
from holdfast.backends.tables import LINES, REFS, Key
from holdfast.engine.engine import Engine
from holdfast.engine.namespaces import ACCESS, AUDIT
from holdfast.engine.row_format import Line, info_of
from holdfast.engine.types import to_datetime
from holdfast.errors import CorruptError, NotFoundError
from holdfast.maintenance.backup.cut import Cut, at_time, steps_until
from holdfast.maintenance.backup.format import LineEntry
from holdfast.maintenance.backup.keyring import BackupKeys, backup_keys
from holdfast.maintenance.backup.line_rows import LineRow, LineRows
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
    """Lines to restore: a name for the point, its time, the entries of the lines, where they are cut off, the keys of
    an encrypted store, and the id of the store; the entries that lines had then that are never set back; and damaged
    lines, which are left out, with what is damaged."""

    name: str
    time: int
    entries: Sequence[LineEntry]
    cuts: Mapping[Line, Cut]
    keys: BackupKeys | None
    store: str = ""
    then: Mapping[Line, LineEntry] = MappingProxyType({})
    damaged: Mapping[Line, str] = MappingProxyType({})

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


async def point_at_time(
    repository: Repository,
    store: str,
    time: int,
    like: Engine,
    selects: Callable[[LineEntry], bool] = lambda _: True,
    *,
    skip_damaged: bool = False,
) -> RecoveryPoint:
    """Return the selected lines of a store at a time. After the last backup, it is that. `NotFoundError` if there are
    none. Those that are damaged are left out with `skip_damaged`; otherwise it raises `CorruptError`."""
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
    entries, cuts, damaged = dict(known), dict[Line, Cut](), dict[Line, str]()
    for line, entry in found.items():
        last = known.get(line)
        if not selects(entry) and line.name not in NEVER_SET_BACK and entry.columns:
            continue
        if last == entry or not entry.columns or (keys is not None and keys.is_erased(entry)):
            entries.setdefault(line, entry)
            continue
        if last is not None and await _origin(repository, last, like, keys) != await _origin(
            repository, entry, like, keys
        ):
            last = None  # it was deleted, and created again
        tips = {} if last is None else {tip.branch: tip.seq for tip in last.tips}
        try:
            if await _has_more(repository, entry, time, tips, like, keys):
                refs = {} if last is None else await _refs(repository, last, like, keys)
                entries[line], cuts[line] = entry, at_time(time, tips, refs)
        except CorruptError as error:
            if not skip_damaged:
                raise
            damaged[line] = str(error)
            entries.pop(line, None)
    if not sources or not (damaged or any(entry.columns for entry in entries.values())):
        raise NotFoundError(
            f"there is nothing of {to_datetime(time).isoformat(timespec='seconds')} or before it",
            where=repository.where,
            hint="`holdfast backup list` shows the times of backups; nothing is older than the first",
            code="no-backup",
        )
    name = f"{sources[-1].id}-{to_datetime(time):%Y%m%dT%H%M%S.%f}"
    point = await _point(repository, name, time, sources, entries, cuts, like)
    return point._replace(damaged=damaged)


async def _has_more(
    repository: Repository,
    entry: LineEntry,
    time: int,
    known: Mapping[int, int],
    like: Engine,
    keys: BackupKeys | None,
) -> bool:
    """Return whether a line has steps of a time or before it that are not known."""
    lengths = steps_until(await _load(repository, entry, like, keys), time, known)
    return any(length > known.get(int(branch), -1) + 1 for branch, length in lengths.items())


async def _origin(
    repository: Repository, entry: LineEntry, like: Engine, keys: BackupKeys | None
) -> tuple[int, bytes] | None:
    """Return what tells a line from others of its name: when it was created, and its salt."""
    engine = await backup_engine(repository, "", [entry], like, {}, keys)
    (rows,) = await engine.context.backend.read([Get(LINES, [tuple(entry.line)])])
    return (info_of(rows[0]).created, info_of(rows[0]).salt) if rows else None


async def _refs(
    repository: Repository, entry: LineEntry, like: Engine, keys: BackupKeys | None
) -> Mapping[Key, LineRow]:
    """Return the tags and other references that a line had."""
    return (await _load(repository, entry, like, keys)).tables.get(REFS.name, {})


async def _load(repository: Repository, entry: LineEntry, like: Engine, keys: BackupKeys | None) -> LineRows:
    engine = await backup_engine(repository, "", [entry], like, {}, keys)
    backend = engine.context.stored
    assert isinstance(backend, BackupBackend)  # noqa: S101 - see `backup_engine`
    return await backend.load(entry.line)


async def _point(
    repository: Repository,
    name: str,
    time: int,
    sources: Sequence[Backup],
    entries: dict[Line, LineEntry],
    cuts: Mapping[Line, Cut],
    like: Engine,
) -> RecoveryPoint:
    then = {line: entry for line, entry in entries.items() if line.name in NEVER_SET_BACK}
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
    return RecoveryPoint(
        name, time, [entries[line] for line in sorted(entries)], left, keys, sources[0].manifest.store, then
    )
