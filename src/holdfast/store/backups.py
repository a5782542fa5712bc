"""Backups of a store: `store.backups("s3://bucket/backups").create()`, `.restore()` and the rest."""

from __future__ import annotations

import os
import re
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar, Unpack

from holdfast.backends.runtime.drivers import AsyncApi, SyncApi, arun, declare, operation, run
from holdfast.engine.namespaces import ALL_KINDS, LineKinds, line_kind, line_name, select_lines, short_name
from holdfast.engine.row_format import check_name
from holdfast.engine.types import to_datetime, to_time
from holdfast.errors import DeniedError, InvalidError
from holdfast.security.handle import StoreHandle, owner_handle
from holdfast.store.backup_records import BackupChange, BackupInfo, BackupLine
from holdfast.time_parser import Duration, parse_nanoseconds, parse_seconds, parse_time

if TYPE_CHECKING:
    from holdfast.engine.engine import Engine
    from holdfast.engine.types import Progress, Revision
    from holdfast.maintenance.backup.checker import RepositoryReport
    from holdfast.maintenance.backup.drill import DrillReport
    from holdfast.maintenance.backup.follower import FollowStatus
    from holdfast.maintenance.backup.format import LineEntry
    from holdfast.maintenance.backup.pruner import BackupPruneReport
    from holdfast.maintenance.backup.recovery_point import RecoveryPoint
    from holdfast.maintenance.backup.repository import Backup, Repository
    from holdfast.maintenance.backup.repository_key import RepositoryKeyInfo
    from holdfast.maintenance.backup.repository_repairer import BackupRepairReport
    from holdfast.maintenance.backup.restore_report import CoveredSpan, RestoreReport, Selection
    from holdfast.maintenance.jobs.job import Job
    from holdfast.maintenance.jobs.types import JobHost
    from holdfast.maintenance.retention import Retention, RetentionRules
    from holdfast.security.encryption.provider import KeyProvider

Opened = TypeVar("Opened")
"""The kind of store that a backup is opened as."""

_ID = re.compile(r"latest|[0-9]{1,10}|[0-9a-f]{4,32}\.[0-9]{1,10}")


@declare(not_remote="See /api/v1/backups, or `holdfast backup` where the store is.")
class BackupOperations(Generic[Opened]):
    """Operations on the backups of a store in a repository. `Backups` and `AsyncBackups` have these as methods."""

    def __init__(
        self,
        handle: StoreHandle,
        target: str | os.PathLike[str],
        options: Mapping[str, Any],
        open_store: Callable[[Engine, str], Opened],
        host: JobHost,
        keys: KeyProvider | str | None = None,
    ) -> None:
        """`open_store` returns the store on an engine, for a tenant. `keys` is where the key of the repository is, and
        `host` the store that has the jobs."""
        self._handle = owner_handle(handle)
        self._engine = self._handle.engine
        self._home = self._handle.tenant
        self._host = host
        self._keys = keys
        self._open_store = open_store
        self._target = target
        self._options = options

    @operation(changes=True)
    async def create(
        self,
        *,
        tenants: str | None = None,
        reason: str = "",
        accept_loss: bool = False,
        progress: Progress | None = None,
    ) -> BackupInfo:
        """Make a backup: of everything the first time, and then of what has changed.

        It has the whole store as of one moment, while others write. The store of a tenant is backed up alone; one that
        was opened without a tenant, with all tenants, or only its own with `tenants="own"`; these backups have an id of
        their own, as if they were of another store. So has a store that is a copy of one with backups here.

        It only creates objects in the repository: it needs no right to delete or overwrite there. If the last backup
        that this store remembers is not there any more, it raises `CorruptError`, unless with `accept_loss`.
        """
        from holdfast.maintenance.backup.creator import BackupCreator
        from holdfast.maintenance.backup.records import seal_reason

        check_name(reason, "reason")
        async with self._open(create=True) as repository:
            tenant = self._tenant(tenants)
            creator = BackupCreator(self._engine, repository, tenant, progress, self._home, accept_loss=accept_loss)
            return await self._info(await creator.create(await seal_reason(self._engine, self._home, reason)))

    @operation
    async def list(self, *, store: str | None = None) -> Sequence[BackupInfo]:
        """List the backups in the repository, of all stores or of one by the beginning of its id, the oldest first."""
        async with self._open() as repository:
            chosen = None if store is None else await repository.pick_store(store)
            return [await self._info(each) for each in await repository.backups(chosen)]

    @operation
    async def covered(self, *, store: str | None = None) -> CoveredSpan | None:
        """Return the first and the last moment to which the store can be restored; None if there are no backups."""
        from holdfast.maintenance.backup.recovery_point import covered_span

        async with self._open() as repository:
            if not await repository.stores():
                return None
            chosen = await repository.pick_store(await self._own_store(repository, store))
            return await covered_span(repository, chosen)

    @operation
    async def show(
        self, backup: str | datetime = "latest", *, store: str | None = None
    ) -> tuple[BackupInfo, Sequence[BackupLine]]:
        """Return a backup, and what is in it; where the store was opened for a tenant, what that has in it."""
        async with self._open() as repository:
            found = await self._find(repository, backup, store)
            lines = [
                BackupLine(
                    entry.tenant,
                    line_kind(entry.name),
                    short_name(entry.name),
                    entry.steps,
                    sum(chunk.bodies.size for chunk in entry.chunks),
                )
                for entry in await self._entries(repository, found)
                if entry.columns
            ]
            return await self._info(found), lines

    @operation
    async def diff(
        self, before: str | datetime, after: str | datetime = "latest", *, store: str | None = None
    ) -> Sequence[BackupChange]:
        """Compare two backups: which lines were added, removed or changed."""
        async with self._open() as repository:
            found = [await self._find(repository, each, store) for each in (before, after)]
            old, new = [{each.line: each for each in await self._entries(repository, one)} for one in found]
            changes = []
            for line in sorted(old.keys() | new.keys()):
                first, second = old.get(line), new.get(line)
                if first == second or not line.name:
                    continue
                change = "added" if first is None else "removed" if second is None else "changed"
                counts = [0 if each is None else each.steps for each in (first, second)]
                changes.append(
                    BackupChange(change, line.tenant, line_kind(line.name), short_name(line.name), counts[0], counts[1])
                )
            return changes

    @operation
    async def verify(
        self,
        backup: str | datetime | None = None,
        *,
        store: str | None = None,
        level: str | None = None,
        progress: Progress | None = None,
    ) -> RepositoryReport:
        """Check that all objects of the repository, or those of one backup, are as they were written.

        With a `level`, as that of `maintenance.verify`, every line is verified, too, as if it were restored.
        """
        from holdfast.maintenance.backup.checker import RepositoryChecker
        from holdfast.maintenance.backup.records import record_damage
        from holdfast.maintenance.verify.verifier import level_of

        async with self._open() as repository:
            only = None if backup is None else await self._find(repository, backup, store)
            checker = RepositoryChecker(repository, self._engine, progress)
            chosen = None if store is None else await repository.pick_store(store)
            report = await checker.check(chosen, only, None if level is None else level_of(level), self._home)
            if not report.ok:
                await record_damage(repository, report.findings[0].what, self._handle.now())
            return report

    @operation(changes=True)
    async def repair(self, *, dry_run: bool = False) -> BackupRepairReport:
        """Repair the repository: rebuild what is damaged from its copies, from what is intact of it, and from this
        store; drop what is lost, and list it; and then make a backup, if there are some of this store here.

        Threads that are lost in older backups are named in the report, and by `verify` from then on; a `restore` of
        them needs `skip_damaged`. With `dry_run` nothing changes. `DeniedError` if deletion is suspended.
        """
        from holdfast.maintenance.backup.repository_repairer import RepositoryRepairer

        async with self._open() as repository:
            repairer = RepositoryRepairer(repository, self._engine, self._handle.now(), dry_run=dry_run)
            report = await repairer.repair_and_back_up(self._tenant(None), self._home)
            if report.is_changed and not dry_run:
                await self._record(repository, "repair-backups", {"lost": len(report.lost), "backup": report.backup})
            return report

    @operation(changes=True)
    async def restore(
        self,
        backup: str | datetime = "latest",
        *,
        threads: Iterable[str] | None = None,
        kinds: LineKinds | None = None,
        tenants: str | None = None,
        at: Revision | None = None,
        as_thread: str | None = None,
        in_place: bool = False,
        skip_damaged: bool = False,
        exact: bool = False,
        store: str | None = None,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> RestoreReport:
        """Restore a backup into this store: everything, some `threads`, or lines of some `kinds`, as in `export`.

        A backup is named by its id or number, or as `latest`. A time, also one between two backups, restores the store
        as it was then: the order of commits decides, and what was saved together is there with all its parts, or with
        none. One thread can be restored as it was `at` a checkpoint, a tag or a time of it, and under another name,
        `as_thread`.

        At a time, what was pruned before returns if a backup has it. Where the backups do not know the state that a
        thread had then, since it was pruned or deleted before one was made, it is restored as of the last moment before
        that they know: the report names it, and is not `exact`. With `exact`, that raises `NotFoundError`, and nothing
        is restored. So does a time after the last backup; `covered` returns the last one.

        All of it appears at once, or not at all. If a thread has checkpoints here that the backup does not have, it
        raises `ConflictError`; with `in_place` they stay on their branch, and HEAD is switched to a branch that starts
        where the backup ended. If it is another thread of the same name, the one of the backup is restored beside it.
        Agents and scopes are set back by a new step. That starts a new generation of the store: a process that opened
        it before gets `ConflictError`, with the code `store-restored`, when it saves to one of them. What was created
        after the backup stays.

        Rights and the audit of this store are never set back, and what was erased since is left out. Jobs are restored
        paused. With `skip_damaged`, threads that are damaged in the backup are left out, and named in the report. With
        `dry_run` nothing changes, and the report says what would.
        """
        from holdfast.maintenance.backup import restore_report
        from holdfast.maintenance.backup.restorer import Restorer, RestoreRequest

        names, of_kinds = select_lines(threads, kinds, ALL_KINDS)
        as_thread = None if as_thread is None else line_name(as_thread)
        async with self._open() as repository:
            selection = restore_report.Selection(self._tenant(tenants), frozenset(of_kinds), names)
            point = await self._recovery_point(repository, backup, store, selection, skip_damaged)
            request = RestoreRequest(selection, at, as_thread, in_place, dry_run, skip_damaged, exact)
            report = await Restorer(self._engine, repository, point, request, progress).restore()
            if in_place and not dry_run:
                await self._record(repository, "restore-in-place", {"backup": report.backup})
            return report

    @operation(changes=True)
    async def drill(
        self, backup: str | datetime = "latest", *, store: str | None = None, progress: Progress | None = None
    ) -> DrillReport:
        """Restore a backup into a temporary store, verify it to the last value, compare a sample with this store, and
        remember the result, which `holdfast doctor` shows. Findings are in the report."""
        from holdfast.maintenance.backup.drill import run_drill

        async with self._open() as repository:
            found = await self._find(repository, backup, store)
            return await run_drill(self._engine, repository, found, self._home, progress)

    @operation(changes=True)
    async def prune(
        self,
        policy: Retention | None = None,
        *,
        store: str | None = None,
        grace: Duration = "1d",
        max_unused: float = 0.5,
        break_locks: bool = False,
        dry_run: bool = False,
        **rules: Unpack[RetentionRules],
    ) -> BackupPruneReport:
        """Remove old backups: those that no rule of a `Retention` keeps, of all stores in the repository or of one.

        Ages count from the newest backup of a store, which always stays. So do pinned ones, the last one before a
        migration, and those with checkpoints of a thread under a legal hold that no other one has. The packs that
        nothing needs any more are deleted by a later call, at least `grace` after they were found; and so are packs of
        which a part greater than `max_unused` is not needed, whose rest is written into new ones. As long as a manifest
        cannot be read, no packs are deleted. Backups that are being made are respected; `break_locks` stops those, for
        locks that a crash left behind. With `dry_run` nothing changes. `DeniedError` if deletion is suspended.
        """
        from holdfast.maintenance import retention
        from holdfast.maintenance.backup.pruner import RepositoryPruner, check_policy, holds_of_store, record_prune
        from holdfast.maintenance.backup.records import open_reason
        from holdfast.maintenance.backup.store_record import record_size

        chosen = check_policy(retention.policy_of(policy, rules))
        async with self._open() as repository:
            picked = None if store is None else await repository.pick_store(store)
            pruner = RepositoryPruner(
                repository,
                grace=parse_nanoseconds(grace, "grace"),
                now=self._handle.now(),
                holds=await holds_of_store(self._engine, self._home),
                max_unused=max_unused,
                open_reason=partial(open_reason, self._engine, self._home),
            )
            report = await pruner.prune(chosen, picked, break_locks=break_locks, dry_run=dry_run)
            await record_prune(self._engine, self._home, repository, report)
            if not dry_run:
                await record_size(self._engine, self._home, repository, chosen.max_bytes)
            return report

    @operation(changes=True)
    async def suspend_deletion(self, *, reason: str = "") -> None:
        """Suspend all deletion in the repository, at once and for everybody, until `allow_deletion`."""
        from holdfast.maintenance.backup import records

        check_name(reason, "reason")
        async with self._open() as repository:
            await records.suspend_deletion(repository, reason, self._handle.now())
            await self._record(repository, "suspend-deletion", {"reason": reason})

    @operation(changes=True)
    async def allow_deletion(self) -> bool:
        """Allow deletion in the repository again. Returns False if it was not suspended."""
        from holdfast.maintenance.backup import records

        async with self._open() as repository:
            changed = bool(await records.allow_deletion(repository, self._handle.now()))
            await self._record(repository, "allow-deletion", {})
            return changed

    @operation(changes=True)
    async def pin(self, backup: str | datetime, *, store: str | None = None, reason: str = "") -> None:
        """Protect a backup from pruning."""
        from holdfast.maintenance.backup import records
        from holdfast.maintenance.backup.records import seal_reason

        check_name(reason, "reason")
        async with self._open() as repository:
            found = await self._find(repository, backup, store)
            sealed = await seal_reason(self._engine, self._home, reason)
            await records.pin(repository, found, sealed, self._handle.now())
            await self._record(repository, "pin-backup", {"backup": found.id, "reason": reason})

    @operation(changes=True)
    async def unpin(self, backup: str | datetime, *, store: str | None = None) -> None:
        """Remove the pin of a backup. `DeniedError` if deletion is suspended."""
        from holdfast.maintenance.backup import records

        async with self._open() as repository:
            found = await self._find(repository, backup, store)
            await records.unpin(repository, found, self._handle.now())
            await self._record(repository, "unpin-backup", {"backup": found.id})

    @operation(changes=True, not_in_scripts="It runs without end: `schedule` adds a job that does it.")
    async def follow(
        self,
        *,
        interval: Duration = 0.5,
        tenants: str | None = None,
        stop: Callable[[], bool] = lambda: False,
        report: Callable[[FollowStatus], None] | None = None,
    ) -> FollowStatus:
        """Make a backup whenever something has changed, until `stop` returns True. It is asked, and `report` called,
        every `interval`. What happened while nobody followed is in the first backup."""
        from holdfast.maintenance.backup.follower import Follower
        from holdfast.maintenance.jobs.job import job_settings

        async with self._open(create=True) as repository:
            follower = Follower(self._engine, repository, self._tenant(tenants), self._home, job_settings)
            return await follower.run(parse_seconds(interval, "interval", positive=True), stop, report)

    @operation(changes=True)
    async def schedule(
        self,
        schedule: str = "every 1h",
        *,
        drill: str | None = "every 4w",
        name: str = "backup",
        follow: bool = False,
    ) -> Sequence[Job]:
        """Add jobs that make backups by a schedule, and prove them by a drill, unless that is None. They replace those
        of the same name. With `follow`, one makes a backup whenever something has changed, as long as a runner works.

        A key of the repository has to be named as text, or by the environment of the runner.
        """
        from holdfast.maintenance.jobs.jobs import JobTable

        if self._keys is not None and not isinstance(self._keys, str):
            raise InvalidError("jobs need the name of the key, such as file:/etc/backup.key", hint="Pass it as text")
        if self._options:
            raise InvalidError("jobs take no options of a bucket", hint="Write them into the URL")
        settings = {"repository": str(self._target)} | ({} if self._keys is None else {"keys": self._keys})
        table = JobTable(self._host)
        kind, when = ("follow", "every 1s") if follow else ("backup", schedule)
        jobs = [await table.add(name, kind, when, settings, False, True)]
        if drill is not None:
            jobs.append(await table.add(f"{name} drill", "drill", drill, settings, False, True))
        return jobs

    @operation(changes=True, not_in_scripts="Keys are the host's.")
    async def add_key(self, keys: KeyProvider | str) -> str:
        """Let another master key open the repository, such as a recovery key. Returns its id.

        `keys` is a provider, or its name: `file:/path`, `passphrase:/path`, `environment:NAME`.
        """
        from holdfast.maintenance.backup import records
        from holdfast.maintenance.backup.repository_key import provider_of, require_key

        async with self._open() as repository:
            key = require_key(repository.key, repository.where)
            master, name = await key.wrap(repository.storage, repository.info, provider_of(keys))
            await records.notice(repository, [name], self._handle.now())
            await self._record(repository, "add-backup-key", {"key": master})
            return master

    @operation(not_in_scripts="Keys are the host's.")
    async def keys(self) -> Sequence[RepositoryKeyInfo]:
        """List the master keys that open the repository."""
        from holdfast.maintenance.backup.repository_key import list_keys, require_key

        async with self._open() as repository:
            require_key(repository.key, repository.where)
            return await list_keys(repository.storage, repository.info)

    @operation(changes=True, not_in_scripts="Keys are the host's.")
    async def remove_key(self, id: str) -> bool:
        """Remove a master key by its id. Returns False if there is none. `InvalidError` if it is the only one, and
        `DeniedError` if deletion is suspended.

        Whoever has that key and has read the repository before has the key of the repository all the same: after a
        theft, start another repository.
        """
        from holdfast.maintenance.backup import records
        from holdfast.maintenance.backup.repository_key import list_keys, require_key

        async with self._open() as repository:
            require_key(repository.key, repository.where)
            await records.check_deletion(repository)
            found = await list_keys(repository.storage, repository.info)
            names = [each.name for each in found if each.master == id]
            if names and len(names) == len(found):
                raise InvalidError(
                    "without this key, the repository could no longer be opened", hint="Add another key first"
                )
            await records.withdraw(repository, names, self._handle.now())
            if names:
                await self._record(repository, "remove-backup-key", {"key": id})
            return bool(names)

    async def _info(self, backup: Backup) -> BackupInfo:
        from holdfast.maintenance.backup.records import open_reason

        manifest = backup.manifest
        return BackupInfo(
            backup.id,
            manifest.store,
            manifest.number,
            to_datetime(manifest.time),
            manifest.lines,
            manifest.added + backup.size,
            manifest.needed + backup.size,
            manifest.seconds,
            await open_reason(self._engine, self._home, manifest.reason),
            manifest.url,
            tuple(short_name(each.name) for each in manifest.damaged),
        )

    async def _open_backup(self, backup: str | datetime, store: str | None) -> Engine:
        from holdfast.maintenance.backup.reader import BackupBackend
        from holdfast.maintenance.backup.repository import connect_repository
        from holdfast.maintenance.backup.source import open_backup

        # Not in a context: its end would be run by the garbage collector, if nobody closes the store.
        repository = await connect_repository(self._target, self._options, keys=self._keys)
        try:
            found = await self._find(repository, backup, store)
            engine = await open_backup(repository, found, self._engine, self._home)
            backend = engine.context.stored
            assert isinstance(backend, BackupBackend)  # noqa: S101 - see above
        except BaseException:
            await repository.storage.close()
            raise
        backend.on_close = repository.storage.close
        return engine

    @asynccontextmanager
    async def _open(self, *, create: bool = False) -> AsyncIterator[Repository]:
        from holdfast.maintenance.backup.repository import open_repository

        async with open_repository(self._target, self._options, create=create, keys=self._keys) as repository:
            yield repository

    async def _find(self, repository: Repository, backup: str | datetime, store: str | None) -> Backup:
        """Return the backup that a caller names."""
        if isinstance(backup, str) and _ID.fullmatch(backup):
            return await repository.find(backup, await self._own_store(repository, store))
        time = parse_time(backup, to_datetime(self._handle.now()))
        return await repository.find_by_time(time, await self._own_store(repository, store))

    async def _entries(self, repository: Repository, backup: Backup) -> Sequence[LineEntry]:
        """Return the lines of a backup; where the store was opened for a tenant, its own. Hidden names stay so for
        those who do not have the key."""
        from holdfast.maintenance.backup.keyring import backup_keys
        from holdfast.maintenance.backup.reader import named_entries

        keys = await backup_keys(repository, [backup.manifest], self._engine)
        try:
            return await named_entries(repository, backup, keys, self._engine, self._home or None)
        except DeniedError:
            return await named_entries(repository, backup, None, self._engine, self._home or None)

    async def _own_store(self, repository: Repository, store: str | None) -> str | None:
        """Return the store that a caller means: without a name it is this one, if there are several."""
        if store is None and len(await repository.stores()) > 1:
            from holdfast.maintenance.backup.store_record import pick_chain

            return await pick_chain(self._engine, self._home, repository)
        return store

    async def _record(self, repository: Repository, action: str, detail: Mapping[str, Any]) -> None:
        """Record in the audit of the store what was done to its repository."""
        from holdfast.maintenance.backup.records import record_action

        await record_action(self._engine, self._home, repository, action, detail)

    async def _recovery_point(
        self,
        repository: Repository,
        backup: str | datetime,
        store: str | None,
        selection: Selection,
        skip_damaged: bool,
    ) -> RecoveryPoint:
        """Return a backup, or the store at a time, to restore."""
        from holdfast.maintenance.backup.recovery_point import point_at_time, point_of_backup

        if isinstance(backup, str) and _ID.fullmatch(backup):
            return await point_of_backup(repository, await self._find(repository, backup, store), self._engine)
        time = to_time(parse_time(backup, to_datetime(self._handle.now())))
        chosen = await repository.pick_store(await self._own_store(repository, store))
        return await point_at_time(
            repository, chosen, time, self._engine, selection.includes, skip_damaged=skip_damaged
        )

    def _tenant(self, tenants: str | None) -> str | None:
        if tenants not in (None, "own", "all"):
            raise InvalidError(f"tenants must be 'own' or 'all', not {tenants!r}")
        if tenants == "all" and self._home:
            raise InvalidError("the store was opened for one tenant", hint="Open it without a tenant")
        return self._home if tenants == "own" or self._home else None


class Backups(SyncApi, BackupOperations[Opened]):
    """Backups of a `Store`."""

    def open(self, backup: str | datetime = "latest", *, store: str | None = None) -> Opened:
        """Open a backup as a store that can only be read: to look at it, and as a source of `maintenance.repair`."""
        return self._open_store(run(self._open_backup(backup, store)), self._home)


class AsyncBackups(AsyncApi, BackupOperations[Opened]):
    """Backups of an `AsyncStore`."""

    async def open(self, backup: str | datetime = "latest", *, store: str | None = None) -> Opened:
        """Open a backup as a store that can only be read: to look at it, and as a source of `maintenance.repair`."""
        return self._open_store(await arun(self._open_backup(backup, store)), self._home)
