"""The selection that is restored: the lines of a backup, or of a store at any time.

A backup is of one moment. At a time between two backups, the store had everything that the first of them has and that
was not removed by then, and nothing that was added after the second was made: whatever the clocks of the writers said,
this is the order of commits. Of what was committed between them, the times of steps and of records of the audit decide.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import NamedTuple

from holdfast._structs import convert
from holdfast.backends.tables import EVENTS, LINES, Key
from holdfast.codec import Codec
from holdfast.engine.checked_rows import CHECKSUMS
from holdfast.engine.engine import Engine
from holdfast.engine.namespaces import ACCESS, AUDIT, line_kind
from holdfast.engine.row_format import Line, info_of
from holdfast.engine.types import to_datetime
from holdfast.errors import CorruptError, NotFoundError
from holdfast.maintenance.backup.format import LineEntry
from holdfast.maintenance.backup.keyring import BackupKeys, backup_keys
from holdfast.maintenance.backup.line_history import CHANGES, HistoryEvent, LineHistory, existed
from holdfast.maintenance.backup.reader import (
    BACKUP_ROWS,
    BackupBackend,
    Cut,
    LineRows,
    backup_engine,
    entries_of,
    loader_of,
    named_entries,
)
from holdfast.maintenance.backup.repository import Backup, Repository
from holdfast.maintenance.backup.restore_report import CoveredSpan
from holdfast.security.audit.archive_records import LINE as ARCHIVES
from holdfast.security.audit.erasure_ledger import LINE as ERASURES
from holdfast.security.audit.removals import ARRIVED, REMOVED, ArrivalRecord, RemovalRecord
from holdfast.security.audit.thread_audit import CHANGING
from holdfast.security.audit.verify import unpack_detail
from holdfast.state.sessions.records import LINE as SESSIONS

_log = logging.getLogger("holdfast.backups")

NEVER_SET_BACK = frozenset((ACCESS, AUDIT, ARCHIVES, ERASURES, SESSIONS))
"""The lines that say what is forbidden, over, archived or erased. They are never restored as they were, but as the
newest backup that can be read has them: what was revoked, frozen or ended since stays so. Their names are not hidden.
"""

_SET_BACK = ("thread", "agent", "scope")
"""The kinds of lines whose deletion is always recorded."""


_NEVER = (1 << 63) - 1
"""The time of a backup that says nothing of what a line was at a later moment."""


class RecoveryPoint(NamedTuple):
    """Lines to restore: a name for the point, its time, the entries of the lines, where they are cut off, the keys of
    an encrypted store, and the id of the store; the entries that lines had then that are never set back; damaged lines,
    which are left out, with what is damaged; those that are not as they were, since no backup knows that, with the
    moment that they are of; and those to which something came from elsewhere."""

    name: str
    time: int
    entries: Sequence[LineEntry]
    cuts: Mapping[Line, Cut]
    keys: BackupKeys | None
    store: str = ""
    then: Mapping[Line, LineEntry] = MappingProxyType({})
    damaged: Mapping[Line, str] = MappingProxyType({})
    inexact: Mapping[Line, int] = MappingProxyType({})
    arrivals: frozenset[Line] = frozenset()

    async def engine(self, repository: Repository, like: Engine, cuts: Mapping[Line, Cut] | None = None) -> Engine:
        """Return an engine on the lines."""
        return await backup_engine(
            repository, self.name, self.entries, like, self.cuts if cuts is None else cuts, self.keys
        )

    def is_erased(self, entry: LineEntry) -> bool:
        """Return whether a line cannot be read any more because its key was destroyed."""
        return self.keys is not None and self.keys.is_erased(entry)

    def only(self, entries: Sequence[LineEntry]) -> RecoveryPoint:
        """Return some of the lines."""
        return self._replace(entries=entries)


async def point_of_backup(repository: Repository, backup: Backup, like: Engine) -> RecoveryPoint:
    """Return the lines of a backup."""
    keys = await backup_keys(repository, [backup.manifest], like)
    entries = {entry.line: entry for entry in await named_entries(repository, backup, keys, like)}
    return await _point(repository, backup.id, backup.manifest.time, [backup], entries, {}, like)


async def covered_span(repository: Repository, store: str) -> CoveredSpan | None:
    """Return the first and the last moment to which a store can be restored; None if there are no backups of it."""
    first = await repository.find_first(store, lambda _: True)
    last = await anext(repository.newest_first(store), None)
    if first is None or last is None:
        return None
    return CoveredSpan(to_datetime(first.manifest.time), to_datetime(last.manifest.until))


async def point_at_time(
    repository: Repository,
    store: str,
    time: int,
    like: Engine,
    selects: Callable[[LineEntry], bool] = lambda _: True,
    *,
    skip_damaged: bool = False,
) -> RecoveryPoint:
    """Return the selected lines of a store at a time. `NotFoundError` if there are none, or if the last backup was made
    before. Those that are damaged are left out with `skip_damaged`; otherwise it raises `CorruptError`."""
    before = await repository.find_last(store, lambda each: each.until <= time)
    after = await repository.find_first(store, lambda each: to_datetime(each.until) >= to_datetime(time))
    if after is None:
        raise _not_covered(repository, time, before)
    if before is not None and before.digest == after.digest:
        return await point_of_backup(repository, after, like)
    finder = _MomentFinder(repository, time, before, after, like)
    await finder.open()
    point = await finder.find(selects, skip_damaged=skip_damaged)
    is_empty = not any(entry.columns and entry.name not in NEVER_SET_BACK for entry in point.entries)
    if is_empty and before is None and not point.damaged and not point.inexact:
        raise NotFoundError(
            f"there is no backup of {to_datetime(time).isoformat(timespec='seconds')} or earlier",
            where=repository.where,
            hint="`holdfast backup list` shows the times of backups; nothing is older than the first",
            code="no-backup",
        )
    return point


def _not_covered(repository: Repository, time: int, last: Backup | None) -> NotFoundError:
    what = f"no backup was made at {to_datetime(time).isoformat(timespec='seconds')} or after it"
    if last is None:
        return NotFoundError(what, where=repository.where, hint="Make a backup", code="no-backup")
    until = to_datetime(last.manifest.until).isoformat()
    hint = f"The last moment that can be restored is {until}"
    return NotFoundError(what, where=repository.where, hint=hint, code="not-covered")


class _Version(NamedTuple):
    """A line in a backup, and when that was made."""

    entry: LineEntry
    time: int
    rows: LineRows


class _MomentFinder:
    """Finds what the lines of a store were at a time between two backups."""

    def __init__(self, repository: Repository, time: int, before: Backup | None, after: Backup, like: Engine) -> None:
        self._repository = repository
        self._time = time
        self._before = before
        self._after = after
        self._like = like
        self._events: dict[Line, list[HistoryEvent]] = {}
        self._keys: BackupKeys | None = None
        self._sources = [] if before is None else [before]
        """Those of which the keys are known."""
        self._others: dict[bool, Sequence[Backup]] = {}
        """The backups after these two, and under True those before them, oldest first, as soon as they are asked for.
        """
        self.entries: dict[Line, LineEntry] = {}
        self.cuts: dict[Line, Cut] = {}
        self.inexact: dict[Line, int] = {}

    async def open(self) -> None:
        """Read the lists of lines, and the records of the audit since the first of the backups."""
        newest = await anext(self._repository.newest_first(self._after.manifest.store))
        self._sources += [self._after, newest]
        self._keys = await self._keys_of(self._sources)
        self._first = {} if self._before is None else await self._entries_of(self._before)
        self._last = await self._entries_of(self._after)
        seen = set[tuple[Line, Key]]()
        for entries in (self._last, await self._entries_of(newest)):  # some may be archived meanwhile
            for entry in [each for each in entries.values() if each.name == AUDIT]:
                known = self._first.get(entry.line)
                await self._read_events(entry, "" if known is None else known.last_event, seen)

    async def _keys_of(self, backups: Sequence[Backup]) -> BackupKeys | None:
        return await backup_keys(self._repository, [each.manifest for each in backups], self._like)

    async def _entries_of(self, backup: Backup) -> dict[Line, LineEntry]:
        keys = await self._keys_of([backup])
        return {entry.line: entry for entry in await named_entries(self._repository, backup, keys, self._like)}

    async def _read_events(self, audit: LineEntry, since: str, seen: set[tuple[Line, Key]]) -> None:
        rows = await self._load(audit)
        codec, limit = self._like.context.codec, self._like.context.max_bytes
        for key, row in sorted(rows.tables.get(EVENTS.name, {}).items()):
            time, _, _, action, *_ = row.columns
            if str(key[0]) <= since or not row.body or action not in CHANGING or (audit.line, key) in seen:
                continue
            seen.add((audit.line, key))
            stored = row.stored(EVENTS.name, (*audit.line, *key))
            detail = unpack_detail(codec, BACKUP_ROWS.decode(EVENTS, stored), limit)
            change = CHANGES.get(str(action), "replace")
            removed = convert(detail.get(REMOVED, {}), dict[str, RemovalRecord])
            arrived = convert(detail.get(ARRIVED, {}), dict[str, ArrivalRecord])
            for name, record in removed.items():
                self._add_event(Line(audit.tenant, name), HistoryEvent(int(time), change, record))
            for name, arrival in arrived.items():
                self._add_event(Line(audit.tenant, name), HistoryEvent(int(time), "arrive", arrival))

    def _add_event(self, line: Line, event: HistoryEvent) -> None:
        self._events.setdefault(line, []).append(event)

    async def _load(self, entry: LineEntry) -> LineRows:
        engine = await backup_engine(self._repository, "", [entry], self._like, {}, self._keys)
        backend = engine.context.stored
        assert isinstance(backend, BackupBackend)  # noqa: S101 - see `backup_engine`
        return await backend.load(entry.line)

    async def find(self, selects: Callable[[LineEntry], bool], *, skip_damaged: bool) -> RecoveryPoint:
        """Return the point. Lines that are not selected are as one of the backups has them."""
        damaged = dict[Line, str]()
        for line in sorted(self._first.keys() | self._last.keys() | self._events.keys()):
            try:
                await self._find_line(line, selects)
            except CorruptError as error:
                if not skip_damaged:
                    raise
                damaged[line] = str(error)
        sources = [each for each in (self._before, self._after) if each is not None]
        name = f"{self._after.id}-{to_datetime(self._time):%Y%m%dT%H%M%S.%f}"
        point = await _point(
            self._repository, name, self._time, sources, self.entries, self.cuts, self._like, self._sources
        )
        then = {line: self._first.get(line, entry) for line, entry in point.then.items()}
        arrivals = [line for line, events in self._events.items() if any(each.change == "arrive" for each in events)]
        return point._replace(then=then, damaged=damaged, inexact=self.inexact, arrivals=frozenset(arrivals))

    async def _find_line(self, line: Line, selects: Callable[[LineEntry], bool]) -> None:
        first, last = self._first.get(line), self._last.get(line)
        entry = first or last
        if entry is None:
            await self._find_unknown(line, ())
        elif line.name in NEVER_SET_BACK:
            self.entries[line] = last or entry
        elif not entry.columns or (first == last and line not in self._events):
            self.entries[line] = entry
        elif not selects(entry):
            self.entries |= {} if first is None else {line: first}
        elif self._keys is not None and self._keys.is_erased(last or entry):
            self.entries[line] = entry
        else:
            await self._find_changed(line, first, last)

    async def _find_changed(self, line: Line, first: LineEntry | None, last: LineEntry | None) -> None:
        """Find what a line was, which may be another line of its name in each of the backups."""
        pairs = ((self._before, first), (self._after, last))
        known = [await self._version(backup, entry) for backup, entry in pairs if backup and entry]
        is_one = len(known) == 2 and _origin(known[0]) == _origin(known[1])
        for versions in [known] if is_one else [[each] for each in reversed(known)]:
            if await self._find_origin(line, versions, has_first=versions[0].entry is first):
                return
        await self._find_unknown(line, {_origin(each)[0] for each in known})

    async def _version(self, backup: Backup, entry: LineEntry) -> _Version:
        return _Version(entry, backup.manifest.until, await self._load(entry))

    async def _find_unknown(self, line: Line, known: Collection[int]) -> None:
        """Find out whether there was another line of a name, given when those were created that the two backups have.
        One that came back has it."""
        if line_kind(line.name) not in _SET_BACK:
            return
        events = self._events.get(line, ())
        for created in {each.record.created for each in events if each.is_whole}.difference(known):
            is_erased = any(each.change == "erase" for each in events if each.record.created == created)
            if not existed(events, created, self._time) or is_erased:
                continue
            has_come = any(each.change == "arrive" and each.record.created == created for each in events)
            async for version in self._other_versions(line, earlier=has_come):
                if _origin(version)[0] != created:
                    continue
                if await self._find_origin(line, [version], has_first=False, earlier=has_come):
                    return
            self.inexact[line] = created - 1

    async def _find_origin(self, line: Line, known: list[_Version], *, has_first: bool, earlier: bool = False) -> bool:
        """Find what a line was, given what backups have; `earlier` ones may have more. False if it did not exist."""
        events = self._events.get(line, ())
        history = _history(line, events, has_first, known)
        if not history.exists(self._time):
            return False
        until = history.known_until(self._time)
        async for version in self._other_versions(line, earlier=earlier) if until < self._time else _nothing():
            if version.entry not in [each.entry for each in known] and _origin(version) == _origin(known[0]):
                known = [*known, version]
                history = _history(line, events, has_first, known)
                if (until := history.known_until(self._time)) == self._time:
                    break
        oldest = self._before.manifest.time if has_first and self._before is not None else -1
        if until < self._time or not history.knows_refs(until):
            self.inexact[line] = max(until, oldest)
        if len(known) == 1 and has_first and not history.was_deleted() and line_kind(line.name) in _SET_BACK:
            self.inexact[line] = oldest
        if until < oldest:
            self.entries[line] = known[0].entry
        elif history.exists(until):
            times = [each.time for each in known]
            make = partial(_make, line, events, until, self._like.context.codec, has_first, times)
            self.entries[line], self.cuts[line] = known[-1].entry, Cut([each.entry for each in known], make)
        return True

    async def _other_versions(self, line: Line, *, earlier: bool = False) -> AsyncIterator[_Version]:
        """Yield what the backups after these two have of a line; and those before them, of one that came back: what it
        was when it went again is in the audit."""
        first = (self._before or self._after).manifest.number
        later = await self._load_others(are_earlier=False)
        older = await self._load_others(are_earlier=True) if earlier else ()
        for backup in (*later, *reversed(older)):
            entry = (await self._entries_of(backup)).get(line)
            if entry is not None and entry.columns:
                version = await self._version(backup, entry)
                yield version._replace(time=_NEVER) if backup.manifest.number < first else version

    async def _load_others(self, *, are_earlier: bool) -> Sequence[Backup]:
        """Return the backups before or after these two, and learn their keys: what was created since has its own."""
        if are_earlier not in self._others:
            first, last = (each.manifest.number for each in (self._before or self._after, self._after))
            every = await self._repository.backups(self._after.manifest.store)
            found = [each for each in every if are_earlier == (each.manifest.number < first)]
            self._others[are_earlier] = [each for each in found if not first <= each.manifest.number <= last]
            self._sources += self._others[are_earlier]
            self._keys = await self._keys_of(self._sources)
        return self._others[are_earlier]


async def _nothing() -> AsyncIterator[_Version]:
    for _ in ():
        yield _


def _history(line: Line, events: Sequence[HistoryEvent], has_first: bool, known: Sequence[_Version]) -> LineHistory:
    rows, times = [each.rows for each in known], [each.time for each in known]
    return LineHistory(line, rows, times, events, has_first=has_first)


async def _make(
    line: Line,
    events: Sequence[HistoryEvent],
    time: int,
    codec: Codec,
    has_first: bool,
    times: Sequence[int],
    sources: Sequence[LineRows],
) -> LineRows:
    return await LineHistory(line, sources, times, events, has_first=has_first).at(time, codec)


def _origin(version: _Version) -> tuple[int, bytes]:
    """Return what tells a line from others of its name: when it was created, and its salt."""
    info = info_of(CHECKSUMS.decode(LINES, version.rows.row))
    return info.created, info.salt


async def _point(
    repository: Repository,
    name: str,
    time: int,
    sources: Sequence[Backup],
    entries: dict[Line, LineEntry],
    cuts: Mapping[Line, Cut],
    like: Engine,
    more: Sequence[Backup] = (),
) -> RecoveryPoint:
    """Return a point. `more` are other backups of which keys are needed."""
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
    keys = await backup_keys(repository, [each.manifest for each in (*sources, *more)], like)
    left = {line: cut for line, cut in cuts.items() if line.name not in NEVER_SET_BACK}
    return RecoveryPoint(
        name, time, [entries[line] for line in sorted(entries)], left, keys, sources[0].manifest.store, then
    )
