"""Removing old backups, and then the packs that no other needs.

Packs are deleted in two phases. The first records which packs nothing needs, and which locks are open: a backup that is
being made may have just written one of them. The second deletes them when all these locks are gone, a time has passed,
and still nothing needs them. A lock goes when its backup exists, or somebody breaks it, so no clock decides. Packs of
which little is needed are repacked first.

Legal holds and backups: pruning leaves a way to everything that a held thread ever had.

A hold protects a thread in its store. Backups may have more of it: checkpoints that were pruned before somebody put the
hold on it, or a thread that the store lost. Of the backups that the rules of retention do not keep, those stay that
have checkpoints of a held thread that no other one has.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence, Set
from contextlib import suppress
from datetime import datetime
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import TypeAlias

import msgspec

from holdfast.backends.interface import Scan
from holdfast.backends.tables import REFS, STEPS
from holdfast.engine.copy.line_stream import every_line
from holdfast.engine.engine import Engine
from holdfast.engine.namespaces import root_of, short_name
from holdfast.engine.row_format import HOLD, Line
from holdfast.engine.types import to_datetime
from holdfast.errors import CorruptError, InvalidError, NotFoundError
from holdfast.maintenance.backup.format import KINDS, SWEEPS, Chunk, LineEntry, Repack, Slice, Sweep, pack_name
from holdfast.maintenance.backup.keyring import KeyringReader, shred_keys, sweep_rings
from holdfast.maintenance.backup.reader import loader_of
from holdfast.maintenance.backup.records import UNKNOWN, check_deletion, pins_of, record_action
from holdfast.maintenance.backup.repacker import Repacker, pack_map
from holdfast.maintenance.backup.repository import UNREADABLE, Backup, OpenLock, Repository, UnreadableBackup
from holdfast.maintenance.backup.store_record import own_chains
from holdfast.maintenance.retention import Retention, RetentionCandidate

MIGRATION = "migration"
"""The reason of a backup that was made before a migration. The last such backup stays."""

MAX_UNUSED = 0.5
"""Packs of which a greater part is not needed are repacked."""

MAX_REPACKS = 16
"""Of more records of repacking, one is made."""

_NO_RULE = "no rule keeps it"
_SWEEP = KINDS[SWEEPS].mark
_TEMPORARY = 86400.0


class BackupVerdict(msgspec.Struct, frozen=True):
    """Whether a backup stays, and why."""

    id: str
    time: datetime
    kept: bool
    reasons: tuple[str, ...]


class BackupPruneReport(msgspec.Struct, frozen=True):
    """The result of pruning a repository: the decision on each backup; the number of packs that were recorded to be
    deleted later, and of those deleted, with their bytes; the locks that are open; the number of keys that were
    removed from key rings, since they were destroyed in their store; of the packs that were repacked; the backups whose
    manifests or lists of lines cannot be read, and records of repacking that cannot: as long as there are any, no pack
    is deleted; the locks that were broken; and by how many bytes the backups that have to stay are over the limit:
    their verdicts say what keeps them."""

    verdicts: tuple[BackupVerdict, ...]
    recorded: int
    deleted: int
    freed: int
    locks: tuple[OpenLock, ...]
    dry_run: bool
    shredded: int = 0
    repacked: int = 0
    unreadable: tuple[UnreadableBackup, ...] = ()
    broken: tuple[OpenLock, ...] = ()
    excess: int = 0

    @property
    def removed(self) -> int:
        """The number of backups that were removed."""
        return sum(1 for each in self.verdicts if not each.kept)


def check_policy(policy: Retention) -> Retention:
    """Require a policy that backups can have: none with rules about the content of threads."""
    plain = {"keep_where": None, "max_thread_bytes": None, "keep_tagged": True}
    plain |= {"keep_recordings_within": None, "keep_recordings_last": None}
    for name, value in plain.items():
        if getattr(policy, name) != value:
            raise InvalidError(
                f"{name} is a rule for checkpoints, and backups have none of it",
                hint="Rules for backups are keep_last, keep_within, keep_hourly to keep_yearly, keep_labels for their "
                "reasons, and max_bytes",
            )
    return policy


def check_max_unused(value: object) -> float:
    """Return the greatest part of a pack that may be unused, if it is one. Raises `InvalidError`."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise InvalidError(f"max_unused is a number from 0 to 1, not {value!r}"[:200])
    return value


class RepositoryPruner:
    """Prunes a repository."""

    def __init__(
        self,
        repository: Repository,
        *,
        grace: int,
        now: int,
        holds: Mapping[str, Holds] = MappingProxyType({}),
        max_unused: float = MAX_UNUSED,
        open_reason: Callable[[str], Awaitable[str]],
    ) -> None:
        """`grace` is how many nanoseconds a pack stays after nothing needs it. `holds` has the legal holds of stores
        that are open, by id; those of others are as in their newest backups. Packs of which a part greater than
        `max_unused` is not needed are repacked. `open_reason` opens the reasons of backups and pins."""
        self._repository = repository
        self._open_reason = open_reason
        self._max_unused = check_max_unused(max_unused)
        self._holds = holds
        self._storage = repository.storage
        self._grace = grace
        self._now = now

    async def prune(
        self, policy: Retention, store: str | None, *, break_locks: bool = False, dry_run: bool = False
    ) -> BackupPruneReport:
        """Remove backups that the policy does not keep, of a store or of all, and packs that nothing needs.

        `DeniedError` if deletion is suspended.
        """
        if not dry_run:
            await check_deletion(self._repository)
        locks, closed = await self._repository.locks()
        broken: list[OpenLock] = []
        if break_locks and not dry_run:
            broken = [lock for lock in locks if await self._repository.break_lock(lock)]
            locks, closed = await self._repository.locks()
        verdicts: list[BackupVerdict] = []
        shredded = excess = 0
        _, unreadable = await self._repository.survey()
        for each in await self._repository.stores() if store is None else [store]:
            shredded += 0 if dry_run else await shred_keys(self._repository, each)
            backups = await self._repository.backups(each)
            decided = await self._decide(policy, each, backups)
            verdicts += decided
            if policy.max_bytes is not None:
                kept = [one for one, verdict in zip(backups, decided, strict=True) if verdict.kept]
                excess += max(0, await self._size(kept) - policy.max_bytes)
            if not dry_run:
                for backup, verdict in zip(backups, decided, strict=True):
                    if not verdict.kept:
                        await check_deletion(self._repository)
                        await self._repository.remove(
                            backup, "; ".join(verdict.reasons) or "no rule keeps it", self._now
                        )
                await self._repository.delete_removed(each)
        _, lost_records = await self._repository.survey_repacks()
        unreadable += lost_records
        if not unreadable:
            left = await self._left(verdicts)
            lost = [each for each in left if await self._packs_of(each) is None]
            unreadable = [UnreadableBackup(each.id, "its list of lines cannot be read") for each in lost]
        deleted = freed = repacked = recorded = 0
        if not unreadable:  # else nobody can say what is needed
            deleted, freed = (0, 0) if dry_run else await self._sweep()
            repacked = await self._repack(verdicts, dry_run=dry_run)
            recorded = await self._record(verdicts if dry_run else (), dry_run=dry_run)
            recorded += repacked if dry_run else 0
            if not dry_run:
                for each in await self._repository.stores() if store is None else [store]:
                    await check_deletion(self._repository)
                    await sweep_rings(self._repository, each)
                await self._delete_repacks()
        if not dry_run:
            await check_deletion(self._repository)
            await self._storage.delete(closed)
            await self._storage.delete_temporary(time.time() - _TEMPORARY)
        return BackupPruneReport(
            tuple(verdicts),
            recorded,
            deleted,
            freed,
            tuple(locks),
            dry_run,
            shredded,
            repacked,
            tuple(unreadable),
            tuple(broken),
            excess,
        )

    async def _size(self, backups: Sequence[Backup]) -> int:
        """Return the bytes that backups need together."""
        packs = {pack for each in backups for pack in await self._packs_of(each) or ()}
        return (await pack_map(self._repository)).size(packs) + sum(each.size for each in backups)

    async def _decide(self, policy: Retention, store: str, backups: Sequence[Backup]) -> list[BackupVerdict]:
        pinned = await pins_of(self._repository, store)
        pins = {number: await self._open_reason(reason) for number, reason in pinned.items()}
        reasons = {each.manifest.number: await self._open_reason(each.manifest.reason) for each in backups}
        migrations = [each.manifest.number for each in backups if each.manifest.reason == MIGRATION][-1:]

        # Those of checkpoints are kept anyway, but most reasons of backups are no reason to keep them. One that nobody
        # can read may be.
        labels = {
            number: reason
            for number, reason in reasons.items()
            if any(reason == UNKNOWN or fnmatchcase(reason, pattern) for pattern in policy.keep_labels)
        }
        candidates = [
            RetentionCandidate(
                each.manifest.time,
                f"{each.manifest.number:010d}",
                labels=(labels[each.manifest.number],) if each.manifest.number in labels else (),
                pins=(
                    *((pins[each.manifest.number],) if each.manifest.number in pins else ()),
                    *(("last before a migration",) if each.manifest.number in migrations else ()),
                ),
                is_head=each is backups[-1],
            )
            for each in backups
        ]
        # A clock that is ahead must not make all backups old: ages are counted from the newest one.
        newest = backups[-1].manifest.time if backups else self._now
        decided = policy.decide(candidates, min(self._now, newest))
        if policy.max_bytes is not None:
            for backup in backups:  # the oldest first
                kept = [one for one, verdict in zip(backups, decided, strict=True) if verdict.kept]
                if await self._size(kept) <= policy.max_bytes:
                    break
                decided = [verdict.before(backup.manifest.time + 1) for verdict in decided]
        kept_ids = {backup.id for backup, verdict in zip(backups, decided, strict=True) if verdict.kept}
        held = await self._needed_by_holds(store, backups, kept_ids)
        return [
            BackupVerdict(
                backup.id,
                to_datetime(backup.manifest.time),
                backup.id in kept_ids or backup.id in held,
                (*(verdict.reasons if verdict.kept else ()), *held.get(backup.id, ()))
                or verdict.reasons
                or (_NO_RULE,),
            )
            for backup, verdict in zip(backups, decided, strict=True)
        ]

    async def _needed_by_holds(self, store: str, backups: Sequence[Backup], kept: Set[str]) -> dict[str, list[str]]:
        """Return the backups that are the only way to what somebody put a legal hold on, and why, by id."""
        if len(kept) == len(backups):
            return {}
        holds = self._holds.get(store)
        try:
            if holds is None:
                holds = await holds_of_backup(self._repository, backups[-1])
            return await HeldData(self._repository, store, holds).find_needed(backups, kept)
        except CorruptError as error:
            reason = f"there may be legal holds, which cannot be read: {error.what}"
            return {each.id: [reason] for each in backups if each.id not in kept}

    async def _needed(self, without: Sequence[BackupVerdict] = ()) -> set[str]:
        """Return the names of the packs that backups need."""
        found = await self._left(without)
        return (await pack_map(self._repository)).names(await self._all_packs(found))

    async def _all_packs(self, backups: Sequence[Backup]) -> set[bytes]:
        """Return the packs that backups name. `CorruptError` if a list of lines cannot be read."""
        return {pack for each in backups for pack in await self._repository.packs_of(each.manifest)}

    async def _packs_of(self, backup: Backup) -> set[bytes] | None:
        """Return the packs that a backup names; None if its list of lines cannot be read."""
        try:
            return await self._repository.packs_of(backup.manifest)
        except UNREADABLE:
            return None

    async def _left(self, verdicts: Sequence[BackupVerdict]) -> list[Backup]:
        """Return all backups of the repository, without those that are to be removed. `CorruptError` if not all can be
        read."""
        removed = {each.id for each in verdicts if not each.kept}
        found, unreadable = await self._repository.survey()
        if unreadable:
            raise CorruptError(f"backup {unreadable[0].id} cannot be read", where=self._repository.where)
        return [each for each in found if each.id not in removed]

    async def _repack(self, verdicts: Sequence[BackupVerdict], *, dry_run: bool) -> int:
        """Repack what is mostly garbage. Only removing backups makes garbage."""
        if self._max_unused >= 1 or all(each.kept for each in verdicts):
            return 0
        repacker = Repacker(self._repository, self._max_unused, self._now)
        return await repacker.repack(await self._left(verdicts), dry_run=dry_run)

    async def _delete_repacks(self) -> None:
        """Delete records of slices that no backup needs any more. Of many others, make one."""
        repacks = await self._repository.repacks()
        if repacks:
            packs, places = await self._all_packs(await self._left(())), await pack_map(self._repository)
            used = places.follow(packs)
            unused = [name for name, repack in repacks.items() if used.isdisjoint(each[0] for each in repack.slices)]
            await check_deletion(self._repository)
            await self._storage.delete(unused)
            others = [name for name in repacks if name not in unused]
            if len(others) > MAX_REPACKS and not places.is_damaged:
                await self._repository.add_repack(Repack(self._now, places.merge(packs)))
                await check_deletion(self._repository)
                await self._storage.delete([name for name in others if places.has_moved(repacks[name])])

    async def _sweep(self) -> tuple[int, int]:
        """Delete packs that were recorded before."""
        sizes = await self._repository.pack_sizes()
        deleted = freed = 0
        for name, sweep in await self._sweeps():
            # Locks are read after the record, and what is needed after the locks: whoever had one may have finished.
            locks, _ = await self._repository.locks()
            if self._now < sweep.time + self._grace or {lock.name for lock in locks}.intersection(sweep.locks):
                continue
            needed = await self._needed()
            names = [each for each in map(pack_name, sweep.packs) if each in sizes and each not in needed]
            await check_deletion(self._repository)
            await self._storage.delete(names)
            await self._storage.delete([name])
            deleted += len(names)
            freed += sum(sizes[each] for each in names)
        return deleted, freed

    async def _sweeps(self) -> list[tuple[str, Sweep]]:
        """Return the records of packs to delete, with their names, without those that are damaged or done meanwhile:
        what they have is recorded again."""
        found: list[tuple[str, Sweep]] = []
        for info in await self._storage.list_objects(SWEEPS):
            with suppress(*UNREADABLE, NotFoundError):
                found.append((info.name, await self._repository.read_object(_SWEEP, info.name, Sweep)))
        return found

    async def _record(self, without: Sequence[BackupVerdict], *, dry_run: bool) -> int:
        """Record which packs nothing needs now."""
        packs = {*await self._repository.pack_sizes()}
        known = {pack_name(pack) for _, sweep in await self._sweeps() for pack in sweep.packs}
        unused = sorted(packs - known - await self._needed(without))
        if unused and not dry_run:
            ids = [bytes.fromhex(name.rpartition("/")[2]) for name in unused]
            # All locks that are open after the packs were listed.
            locks, _ = await self._repository.locks()
            record = Sweep(self._now, ids, [lock.name for lock in locks])
            await self._repository.create_object(_SWEEP, f"{SWEEPS}/{self._now:020d}-{secrets.token_hex(8)}", record)
        return len(unused)


async def record_prune(engine: Engine, home: str, repository: Repository, report: BackupPruneReport) -> None:
    """Record in the audit of a store what pruning removed, and why, and the locks that it broke."""
    removed = {each.id: "; ".join(each.reasons) for each in report.verdicts if not each.kept}
    if (removed or report.deleted or report.broken) and not report.dry_run:
        detail = {"removed": removed, "packs": report.deleted, "locks": [lock.name for lock in report.broken]}
        await record_action(engine, home, repository, "prune-backups", detail)


Holds: TypeAlias = Mapping[Line, str]
"""Held threads, and why."""

_AT_ONCE = 200
_ID, _HASH = (list(STEPS.columns).index(name) for name in ("id", "hash"))


async def holds_of_store(engine: Engine, home: str) -> dict[str, Holds]:
    """Return the holds of an open store by the ids of its backups, if it has any. It was opened for the tenant
    `home`."""
    own = await own_chains(engine, home)
    if not own:
        return {}
    backend, held = engine.context.backend, dict[Line, str]()
    lines = [line async for line in every_line(backend, home or None)]
    for start in range(0, len(lines), _AT_ONCE):
        for rows in await backend.read([Scan(REFS, (*line, HOLD)) for line in lines[start : start + _AT_ONCE]]):
            held.update((Line(str(row.key[0]), str(row.key[1])), str(row.key[3])) for row in rows)
    return dict.fromkeys(own, held)


async def holds_of_backup(repository: Repository, backup: Backup) -> dict[Line, str]:
    """Return the holds that a store had when a backup was made. Of an encrypted store, their reasons are not known."""
    held, loader, sealed = dict[Line, str](), loader_of(repository), bool(backup.manifest.keyrings)
    for entry in await repository.entries(backup.manifest):
        refs = (await loader.keys(entry.line, entry.chunks)).get(REFS.name, {})
        held.update((entry.line, "" if sealed else str(key[1])) for key in refs if key[0] == HOLD)
    return held


class HeldData:
    """The checkpoints of held threads in the backups of a store."""

    def __init__(self, repository: Repository, store: str, holds: Holds) -> None:
        self._repository = repository
        self._store = store
        self._holds = holds
        self._pages: dict[Slice, list[LineEntry]] = {}
        self._steps: dict[tuple[Line, tuple[Chunk, ...]], frozenset[bytes]] = {}

    async def find_needed(self, backups: Sequence[Backup], kept: Collection[str]) -> dict[str, list[str]]:
        """Return the ids of backups that have to stay, though they are not among those that are kept, and why."""
        if not self._holds or len(kept) == len(backups):
            return {}
        destroyed = await KeyringReader(self._repository, self._store).destroyed()
        reachable = set[tuple[Line, bytes]]()
        for backup in backups:
            if backup.id in kept:
                for entry in await self._entries(backup):
                    reachable.update((entry.line, step) for step in await self._steps_of(entry))
        needed: dict[str, list[str]] = {}
        for backup in reversed([each for each in backups if each.id not in kept]):
            for entry in await self._entries(backup):
                if not destroyed.isdisjoint(entry.keys):
                    continue  # nobody can read it any more
                steps = {(entry.line, step) for step in await self._steps_of(entry)}
                if not steps <= reachable:
                    needed.setdefault(backup.id, []).append(self._reason(entry.line))
                    reachable |= steps
        return needed

    def _reason(self, line: Line) -> str:
        thread = root_of(line)
        reason = self._holds[thread]
        return f"legal hold on {short_name(thread.name)}" + (f": {reason}" if reason else "")

    async def _entries(self, backup: Backup) -> Iterable[LineEntry]:
        """Return the lines of held threads in a backup. Backups share most of their pages."""
        found: dict[Line, LineEntry] = {}
        for part in backup.manifest.pages:
            if part not in self._pages:
                page = await self._repository.page(part)
                self._pages[part] = [entry for entry in page if root_of(entry.line) in self._holds]
            found.update((entry.line, entry) for entry in self._pages[part])
        return [entry for entry in found.values() if not entry.is_removed]

    async def _steps_of(self, entry: LineEntry) -> frozenset[bytes]:
        """Return the hashes of the steps that a line has, without those that were pruned."""
        key = entry.line, entry.chunks
        if key not in self._steps:
            steps = (await loader_of(self._repository).keys(*key)).get(STEPS.name, {})
            hashes = (bytes(columns[_HASH]) for columns in steps.values() if columns[_ID])  # type: ignore[arg-type]
            self._steps[key] = frozenset(hashes)
        return self._steps[key]
