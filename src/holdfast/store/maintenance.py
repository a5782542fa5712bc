"""Maintenance of a store: `store.maintenance.prune(…)`, `.verify()`, `.repair()` and the rest."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from holdfast.backends.config import store_url
from holdfast.backends.runtime.drivers import FILES, AsyncApi, SyncApi, operation
from holdfast.backends.urls import redacted_url
from holdfast.engine import validation
from holdfast.engine.checked_rows import clear_refused
from holdfast.engine.copy.copy_report import CopyReport, OnCopyProgress
from holdfast.engine.engine import Engine
from holdfast.engine.hold_check import require_no_hold
from holdfast.engine.line_walk import count_lines, each_of, lines_of_kinds, pages_of
from holdfast.engine.namespaces import (
    ALL_KINDS,
    CONTENT_KINDS,
    LineKind,
    LineKinds,
    line_name,
    root_of,
    select_lines,
    with_steps,
)
from holdfast.engine.row_format import Line, LineSummary, check_name
from holdfast.engine.types import Checkpoint, ThreadInfo
from holdfast.errors import CorruptError, DeniedError, InvalidError, NotFoundError
from holdfast.maintenance.erasure.store_copy import copy_lines, record_copy
from holdfast.security.audit.thread_audit import record, recorded
from holdfast.security.handle import HasHandle, StoreHandle, owner_handle
from holdfast.store.thread_access import ThreadListing
from holdfast.time_parser import Duration

if TYPE_CHECKING:
    from holdfast.engine.copy.copy_report import CopyReport, OnCopyProgress
    from holdfast.engine.integrity.findings import Finding
    from holdfast.engine.quotas import QuotaReport
    from holdfast.engine.text_index.indexer import IndexReport
    from holdfast.engine.types import Progress
    from holdfast.maintenance.archive.export import ExportReport
    from holdfast.maintenance.archive.format import ArchiveFile
    from holdfast.maintenance.archive.import_ import ImportReport
    from holdfast.maintenance.doctor.result import CheckResult
    from holdfast.maintenance.monitoring.snapshot import MetricsSnapshot
    from holdfast.maintenance.orphans import OrphanReport
    from holdfast.maintenance.pins import HoldInfo
    from holdfast.maintenance.pruner import PruneReport, ThreadPruneReport
    from holdfast.maintenance.repair.quarantine import QuarantinedRow
    from holdfast.maintenance.repair.repairer import RepairReport
    from holdfast.maintenance.retention import Retention, RetentionRules
    from holdfast.maintenance.stale_lines import StaleReport
    from holdfast.maintenance.verify.heads import StoreHeads
    from holdfast.maintenance.verify.verifier import VerifyReport
    from holdfast.security.audit.export import AuditArchive


_RECORDED = 500
"""How many lines are recorded together."""


def _check_format(form: str, kinds: frozenset[LineKind], *forms: str) -> None:
    """Raise `InvalidError` if lines of some kinds cannot be in a file of this format."""
    if form not in forms:
        raise InvalidError(f"the format must be one of {', '.join(map(repr, forms))}, not {form!r}")
    if form == "jsonl" and kinds != {"thread"}:
        raise InvalidError("the interchange format has threads only", hint='Use format="holdfast" for the rest')


class MaintenanceOperations:
    """Operations on a whole store. `Maintenance` and `AsyncMaintenance` have these as methods."""

    def __init__(self, handle: StoreHandle) -> None:
        self._handle = owner_handle(handle)

    @operation(changes=True)
    async def prune(
        self,
        threads: str | Iterable[str] | None = None,
        policy: Retention | None = None,
        *,
        prefix: str = "",
        where: str | None = None,
        kinds: LineKinds | None = None,
        erase: bool = False,
        dry_run: bool = False,
        progress: Progress | None = None,
        each: Callable[[ThreadPruneReport], None] | None = None,
        after: str = "",
        limit: int | None = None,
        **rules: Unpack[RetentionRules],
    ) -> PruneReport:
        """Remove old checkpoints: of some threads by name, of those that a `prefix` or a query names, or of all.

        A `Retention`, or its fields, says what to keep: `prune(keep_last=100, keep_daily=30)`. A checkpoint that any
        rule keeps reads as before, with the same hash. Pins and holds are respected. The namespaces of a LangGraph
        thread are pruned with it. The histories of scopes, agents and sessions are pruned only if `kinds` says so:
        `prune("agent:researcher", kinds="scope", keep_last=1)`, `prune(kinds=["scope", "session"], keep_within="7d")`.

        The audit of what is pruned stays, and is still proven. What is left of a step of a scope proves its content, to
        one who knows or guesses it; with `erase` no more, also where steps were pruned before.

        With `dry_run` nothing changes, and the report says what would. Writers can continue meanwhile. A thread that is
        on hold, or that another process is rewriting, is skipped and reported; if it is the only one named, that
        raises. `progress` is called after each thread. `each` is called with the report of every thread that loses
        something, has a problem or was named, and the returned report then lists only those with a problem: for stores
        with more checkpoints than fit into memory. A long pass can be done in parts: `after` a thread by name, for a
        `limit` of threads, then again after `report.next`.
        """
        from holdfast.maintenance import pruner, retention

        selection = pruner.ThreadSelection.of(threads, prefix, where, kinds, erase=erase)
        policy = retention.policy_of(policy, rules)
        return await pruner.prune(
            self._handle.engine,
            self._handle.tenant,
            policy,
            selection,
            dry_run=dry_run,
            progress=progress,
            each=each,
            after=after,
            limit=limit,
        )

    @operation(changes=True, local=FILES)
    async def archive_hooks(
        self,
        path: str | Path,
        *,
        keep_within: Duration | None = None,
        keep_last: int | None = None,
        max_bytes: int | None = None,
        dry_run: bool = False,
    ) -> AuditArchive:
        """Write old records of the history of hooks to a file, a segment of the archive, and remove them from the
        store: `archive_hooks("hooks-1.jsonl", keep_within="30d", keep_last=100_000)`.

        A record stays if it is younger than `keep_within`, or one of about the last `keep_last`, as far as all fit
        into `max_bytes`. These are the records of after-hooks and of vetoes: those of before-hooks belong to the audit
        of the changes, see `audit.archive`, which also says how a segment is checked.
        """
        from holdfast.maintenance import hook_archive

        return await hook_archive.archive_hooks(
            self._handle.engine,
            self._handle.tenant,
            path,
            keep_within=keep_within,
            keep_last=keep_last,
            max_bytes=max_bytes,
            dry_run=dry_run,
        )

    @operation(changes=True)
    async def sweep_orphans(
        self, *, dry_run: bool = False, grace: Duration = "1d", progress: Progress | None = None
    ) -> OrphanReport:
        """Remove rows that belong to nothing, for example those of a process that was killed during a copy.

        Rows that an operation under way may still need are removed only if they are older than `grace`. With `dry_run`
        they are only reported.
        """
        from holdfast.maintenance import orphans

        return await orphans.sweep(
            self._handle.engine, self._handle.tenant, grace=grace, dry_run=dry_run, progress=progress
        )

    @operation
    async def verify(
        self,
        thread: str | None = None,
        *,
        kinds: LineKinds | None = None,
        level: str = "hashes",
        heads: StoreHeads | None = None,
        progress: Progress | None = None,
        after: str = "",
        limit: int | None = None,
        each: Callable[[Finding], None] | None = None,
    ) -> VerifyReport:
        """Check that a thread, or everything of this tenant and the store itself, are as they were written.

        `kinds` restricts it to lines of some kinds, such as `thread` or `["access", "audit"]`; with one kind, a scope
        or another line can be named in place of a thread.

        `level` is `structure` (all rows are consistent), `hashes` (every hash is recomputed, and everything that a
        state needs exists) or `decode` (every state is loaded and every value decoded). With `heads` that were exported
        earlier, checkpoints missing at the end of a thread are found, too. Findings are in the report: nothing is
        raised, and nothing changed. Writers can continue meanwhile. A long verification can be done in parts: `after` a
        thread by name, for a `limit` of threads, then again after `report.next`. `each` is called with every finding.
        """
        from holdfast.maintenance.verify import verifier

        threads, of_kinds = select_lines(None if thread is None else [thread], kinds, ALL_KINDS)
        return await verifier.verify(
            self._handle.engine,
            self._handle.tenant,
            threads,
            level=verifier.level_of(level),
            heads=heads,
            progress=progress,
            after=after,
            limit=limit,
            each=each,
            kinds=of_kinds,
        )

    @operation
    async def heads(self, thread: str | None = None, *, kinds: LineKinds | None = None) -> StoreHeads:
        """Export the last hash of every thread and of every other line, or of those of some `kinds`, to store elsewhere
        (`heads.save(path)`) and to pass to `verify` and `audit.verify` later."""
        from holdfast.maintenance.verify.heads import export_heads

        threads, of_kinds = select_lines(None if thread is None else [thread], kinds, ALL_KINDS)
        return await export_heads(self._handle.engine, self._handle.tenant, threads, of_kinds)

    @operation(local=FILES)
    async def load_heads(self, path: str | Path) -> StoreHeads:
        """Read heads that were exported to a file; those of an encrypted store are encrypted with its key.

        `CorruptError` if the file was altered, or is not that of this store.
        """
        from holdfast.maintenance.verify.heads import load_heads

        return await load_heads(self._handle.engine, self._handle.tenant, path)

    @operation
    async def doctor(self, *, full: bool = False) -> list[CheckResult]:
        """Check this open store, as `holdfast doctor` does: its indexes, jobs, leases, copies, drills and clock.

        With `full`, the backend's own integrity check is run on large stores, too, which may take long.
        """
        from holdfast.maintenance.doctor.store_checks import checks

        return await checks(self._handle, full=full)

    @operation(changes=True, local="It takes other stores; a job repairs.")
    async def repair(
        self,
        source: HasHandle | str | Sequence[HasHandle | str] = (),
        *,
        thread: str | None = None,
        kind: LineKind = "thread",
        heads: StoreHeads | None = None,
        dry_run: bool = False,
        accept_loss: bool = False,
        progress: Progress | None = None,
    ) -> RepairReport:
        """Repair damage from other stores with the same history: mirrors, copies or backups, open or by URL.

        Everything that is copied from them is checked by its hash. If no source has what is damaged, every checkpoint
        that is still readable is kept, and the rest moved to `quarantine`. A damaged SQLite file is replaced by a new
        one with everything that can be read, and kept beside it. With `dry_run` nothing changes, and the report is the
        same. A repair that was interrupted can be started again. `thread` is the name of a single thread to repair, or
        of a line of another `kind`.

        If rows may have been lost with the damaged part of a file, the store counts as damaged, and deleting and
        pruning are refused, since a hold may be among them: until a repair from a source, or one with `accept_loss`.
        """
        from holdfast.maintenance.repair import repairer

        given = [source] if isinstance(source, str | HasHandle) else list(source)
        threads = None if thread is None else [line_name(thread, kind)]
        async with repairer.open_sources(self._handle.engine, given, self._handle.tenant) as sources:
            return await repairer.repair(
                self._handle.engine,
                self._handle.tenant,
                sources,
                threads=threads,
                heads=heads,
                dry_run=dry_run,
                accept_loss=accept_loss,
                progress=progress,
            )

    @operation
    async def quarantine(self, thread: str | None = None, *, kind: LineKind = "thread") -> list[QuarantinedRow]:
        """List the damaged rows that repairs removed, from all lines or from one, as they were found."""
        from holdfast.maintenance.repair.quarantine import quarantined

        threads = None if thread is None else [line_name(thread, kind)]
        return [each async for each in quarantined(self._handle.engine, self._handle.tenant, threads)]

    @operation(changes=True)
    async def compact(self, thread: str | None = None) -> None:
        """Rewrite the folded states of a thread, or of all, under the same hashes, and free what nothing needs.

        Writers and readers continue meanwhile.
        """
        engine = self._handle.engine
        if thread is not None:
            await engine.rewriter.rewrite(self._line(thread))
        else:
            async for line in lines_of_kinds(engine.context.backend, self._handle.tenant, frozenset({"thread"})):
                with suppress(NotFoundError):  # deleted meanwhile
                    await engine.rewriter.rewrite(line)
        await engine.context.backend.tidy()

    @operation(changes=True)
    async def build_index(self, *, progress: Progress | None = None) -> IndexReport:
        """Build an index of the words in this tenant's threads. All writers update it from then on.

        If it is interrupted and started again, it resumes where it ended. Writers can continue meanwhile. Raises
        `UnsupportedError` if the backend has no index.
        """
        return await self._handle.engine.indexer.build(self._handle.tenant, progress)

    @operation(changes=True)
    async def drop_index(self) -> bool:
        """Remove the index of words. Returns False if there was none."""
        return await self._handle.engine.indexer.drop(self._handle.tenant)

    @operation(changes=True, not_in_scripts="The host chooses readable rows.")
    async def project(
        self, *, after: str = "", again: bool = False, progress: Callable[[str, int], None] | None = None
    ) -> int:
        """Write the readable rows of this tenant's threads where they are missing.

        For a store that had none so far, or that programs without projection wrote to. Writers can continue meanwhile.
        If it is interrupted and started again, it resumes where it ended, or `after` a thread by name. With `again`,
        all rows are rebuilt. `progress` is called with the name of each thread and the number of threads so far.
        Returns the number of threads whose rows were written.
        """
        check_name(after, "name of a thread")
        return await self._handle.engine.projector.build_all(self._handle.tenant, after, again, progress)

    @operation(changes=True)
    async def delete(self, threads: Iterable[str], *, dry_run: bool = False) -> list[ThreadInfo]:
        """Delete threads with their namespaces, all or none, and return what they were.

        Raises `NotFoundError` if one does not exist, `DeniedError` if one is held. With `dry_run` nothing is deleted.
        """
        engine = self._handle.engine
        lines = await engine.lines.of_threads(self._handle.tenant, [self._line(each).name for each in threads])
        with suppress(CorruptError):  # what is left of a damaged thread is checked when it is deleted
            await require_no_hold(engine.context.backend, lines)
        deleted = [ThreadInfo.of(await self._describe(line)) for line in lines]
        hooks, roots = engine.hooks, list(dict.fromkeys(map(root_of, lines)))
        if hooks is None and not dry_run:
            await engine.lines.delete(*lines, apply=recorded(engine, roots, "delete"))
        elif hooks is not None and not dry_run:
            for root in roots:
                family = [line for line in lines if root_of(line) == root]
                await hooks.delete(root, partial(engine.lines.delete, *family, apply=recorded(engine, root, "delete")))
        return deleted

    @operation(changes=True)
    async def delete_stale(
        self,
        where: str | None = None,
        *,
        prefix: str = "",
        kinds: LineKinds | None = None,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> StaleReport:
        """Delete whole threads that have not changed for long: those that match a query, `updated<90d`; without one,
        those whose TTL is over (see `Thread.put` and `Thread.expire`).

        With `kinds`, agents and sessions are deleted, too, or in place of threads: `kinds=["agent", "session"]`. A
        thread changes with every checkpoint, also of its namespaces; an agent also with its durable steps. What is held
        or pinned, what a hook objects to, and agents that run a step or have a timer to come are skipped and reported.

        Each is deleted by itself, on condition that nothing was saved since it was looked at. With `dry_run` nothing is
        deleted, and the report is the same. The job `delete-stale` does this.
        """
        from holdfast.maintenance.stale_lines import StaleRule, delete_stale

        rule = StaleRule.of(where, prefix, kinds)
        return await delete_stale(self._handle, rule, dry_run=dry_run, progress=progress)

    async def _describe(self, line: Line) -> LineSummary:
        """Return the size and times of a line, which may be damaged."""
        try:
            return await self._handle.engine.lines.summary(line)
        except CorruptError:
            return LineSummary.of_damaged(line)

    @operation(changes=True)
    async def set_quota(
        self,
        *,
        bytes: int | None = None,  # noqa: A002 - as in the report
        threads: int | None = None,
        steps: int | None = None,
    ) -> None:
        """Set how much this tenant may store; without limits, as much as it likes.

        A save that would exceed a limit raises `QuotaError`, and saves nothing. Reading, deleting and maintenance are
        always possible. The limits hold for all processes; those that have the store open know them after a minute.
        """
        from holdfast.engine.quotas import Quota

        limits = (validation.optional_count(each, "limit") for each in (bytes, threads, steps))
        await self._handle.engine.context.quotas.set_limits(self._handle.tenant, Quota(*limits))

    @operation
    async def quota(self) -> QuotaReport:
        """Return the limits of this tenant, and count what it stores."""
        return await self._handle.engine.context.quotas.report(self._handle.tenant)

    @operation(changes=True)
    async def hold(self, name: str, *, kind: LineKind, reason: str = "") -> None:
        """Protect an agent, a scope or another line from pruning and deletion: `hold("notes-1", kind="agent")`. A
        thread has `Thread.hold`."""
        engine, line = self._handle.engine, self._other_line(name, kind)
        stored = await engine.protect_text(line, check_name(reason, "reason"), "reason")
        await engine.holds.hold(line, stored, recorded(engine, line, "hold", {"reason": stored}))

    @operation(changes=True)
    async def release(self, name: str, *, kind: LineKind, reason: str | None = None) -> None:
        """Remove a hold of an agent, a scope or another line, or all that it has. `NotFoundError` if it has none."""
        from holdfast.maintenance import pins

        engine, line = self._handle.engine, self._other_line(name, kind)
        await pins.release(engine, line, reason, recorded(engine, line, "release"))

    @operation
    async def holds(self) -> list[HoldInfo]:
        """List the holds of all threads and other lines, with the reasons."""
        from holdfast.maintenance import pins

        return await pins.holds(self._handle.engine, self._handle.tenant, None)

    @operation(changes=True, local=FILES)
    async def copy_to(
        self,
        other: HasHandle | str | os.PathLike[str],
        /,
        *,
        tenants: str = "own",
        threads: Iterable[str] | None = None,
        progress: OnCopyProgress | None = None,
        **options: Any,
    ) -> CopyReport:
        """Copy all threads of this tenant to another store: an open one, or by its URL or path.

        Or only some `threads`, with their namespaces; or, with `tenants="all"`, those of all tenants. Threads are
        copied unchanged, with branches, tags, labels and pending writes, under the same hashes. What the other store
        has already is skipped, so a copy that was interrupted can be started again. Writers can continue meanwhile; the
        report names threads that kept changing. At the end all rows are compared, and the hashes in the other store
        recomputed. A thread that has a different history there raises `ConflictError`, and is not changed. `progress`
        is called after each thread. `options` are for opening the other store by its URL.
        """
        if not isinstance(other, str | os.PathLike | ThreadListing):
            raise InvalidError(f"the other store must be an open store, a URL or a path, not {type(other).__name__}")
        target = other if isinstance(other, str | os.PathLike) else owner_handle(other)
        return await copy_store(self._handle, target, tenants, threads, progress, options)

    @operation(local=FILES)
    async def export(
        self,
        file: ArchiveFile,
        *,
        threads: Iterable[str] | None = None,
        kinds: LineKinds | None = None,
        format: str = "holdfast",  # noqa: A002 - what it is called everywhere
        progress: Progress | None = None,
    ) -> ExportReport:
        """Write all threads, or some, with their namespaces, to one file that `import_` reads.

        `kinds` exports lines of other kinds, all of them or some by name: `export(file, kinds=["thread", "scope"])`,
        `export(file, threads=["agent:researcher"], kinds="scope")`, or `kinds="all"`.
        `file` is a path, compressed if it ends in `.gz`, or a file that is open in binary mode. A path is replaced only
        when the file is complete. Each thread is verified as it is written. With `format="jsonl"` threads are written
        in the interchange format, which other programs can read and write. With `format="json"` the file has the state
        of every checkpoint instead, one JSON document a line, for other tools: that cannot be imported.
        `progress(done, total, thread)` is called after each thread. Of an encrypted store, the file is encrypted, and
        imported by stores with the same master key, unless `Encryption(clear=["export"])` allows it in the clear;
        otherwise the other formats are refused with the code `clear-refused`.
        """
        from holdfast.maintenance.archive import export

        names, of_kinds = select_lines(
            None if threads is None else validation.require_names(threads, "threads"), kinds, {"thread"}
        )
        _check_format(format, of_kinds, "holdfast", "jsonl", "json")
        engine, tenant = self._handle.engine, self._handle.tenant
        backend = engine.context.backend
        named = None if names is None else await engine.lines.of_threads(tenant, names)

        def lines() -> AsyncIterator[Line]:
            found = lines_of_kinds(backend, tenant, of_kinds) if named is None else each_of(named)
            return with_steps(backend, found) if format == "holdfast" else found

        total = len(named) if named is not None else await count_lines(backend, tenant, of_kinds) or 0
        if format != "holdfast" and not self._handle.engine.context.rows.may_be_clear("export"):
            raise clear_refused("export")
        # Before the first byte is written: nothing leaves the store without a record.
        with suppress(DeniedError):  # the store is open for reading only: it records nothing
            name = file if isinstance(file, str | os.PathLike) else getattr(file, "name", "")
            async for some in pages_of(lines(), _RECORDED):
                await record(engine, some, "export", {"file": str(name), "format": format})
        if format == "jsonl":
            from holdfast.maintenance.archive.interchange import export_history

            return await export_history(engine, lines(), total, file, progress)
        if format == "json":
            return await export.export_states(
                engine,
                lines(),
                total,
                file,
                lambda line, head: Checkpoint.from_step(line, head, self._handle.codec),
                progress,
            )
        return await export.export_threads(engine, lines(), total, file, progress)

    @operation(changes=True, local=FILES)
    async def import_(
        self,
        file: ArchiveFile,
        *,
        threads: Iterable[str] | None = None,
        kinds: LineKinds | None = None,
        as_thread: str | None = None,
        format: str = "holdfast",  # noqa: A002 - as in `export`
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> ImportReport:
        """Import threads from a file that `export` wrote: all of them, or some, with the same ids and hashes.

        A single thread can be imported under another name, `as_thread`. Threads become those of this store's tenant.
        Nothing is written before the checksum of the file and every hash in it are verified. What exists already is not
        changed; a thread that exists with a different history raises `ConflictError`, and then nothing is written at
        all. With `dry_run` nothing is written.

        Threads, agents, scopes and sessions are imported. What decides who may do what, or proves who did, is imported
        only if `kinds` names it: `access` the rights, `audit` the audit, `system` other records of the store. The
        report lists these first in `contents`; to see them before anything is imported, use `dry_run`.

        With `format="jsonl"`, the file is one of the interchange format. Checkpoints are saved one after the other as
        the file is read, and compared; those that are there already are skipped, so an import that was interrupted is
        resumed by repeating it. What is wrong with a file is said with the number of its line.
        """
        from holdfast.maintenance.archive import import_

        named, of_kinds = select_lines(
            None if threads is None else validation.require_names(threads, "threads"),
            kinds,
            CONTENT_KINDS if format == "holdfast" else {"thread"},
        )
        _check_format(format, of_kinds, "holdfast", "jsonl")
        name = None if as_thread is None else self._handle.thread_line(as_thread).name
        selection = import_.ImportSelection.of(self._handle.tenant, named, of_kinds, name)
        if format == "jsonl":
            from holdfast.maintenance.archive.interchange import import_history

            return await import_history(self._handle.engine, file, selection, dry_run, progress)
        return await import_.import_threads(self._handle.engine, file, selection, dry_run, progress)

    @operation(not_in_scripts="The host exports them.")
    async def metrics(self) -> MetricsSnapshot:
        """Return what this process has measured of the store, and what the store has; see `holdfast.metrics`."""
        from holdfast.maintenance.jobs.job import read_job_metrics
        from holdfast.maintenance.monitoring.snapshot import MetricsSnapshot, read_metrics
        from holdfast.maintenance.monitoring.usage_metrics import read_usage

        found = await read_metrics(self._handle, read_job_metrics)
        return MetricsSnapshot(found.store, found.tenant, (*found.samples, *await read_usage(self._handle)))

    def _line(self, name: str) -> Line:
        return Line(self._handle.tenant, line_name(name, "thread"))

    def _other_line(self, name: str, kind: LineKind) -> Line:
        if kind == "thread":
            raise InvalidError("a thread is held and released by its handle", hint="Use store.thread(name)")
        return Line(self._handle.tenant, line_name(name, kind))


class Maintenance(SyncApi, MaintenanceOperations):
    """The maintenance of a `Store`."""


class AsyncMaintenance(AsyncApi, MaintenanceOperations):
    """The maintenance of an `AsyncStore`: operations are awaited."""


# Copying the threads of a store to another one -----------------------------------------------------------------------


async def copy_store(
    handle: StoreHandle,
    other: StoreHandle | str | os.PathLike[str],
    tenants: str,
    threads: Iterable[str] | None,
    progress: OnCopyProgress | None,
    options: Mapping[str, Any],
) -> CopyReport:
    """Copy threads of a store, or all, to another one. See `Maintenance.copy_to`."""
    if tenants not in ("own", "all"):
        raise InvalidError(f"tenants must be 'own' or 'all', not {tenants!r}")
    tenant = None if tenants == "all" else handle.tenant
    only = None
    if threads is not None:
        names = [handle.thread_line(thread).name for thread in validation.require_names(threads, "threads")]
        only = await handle.engine.lines.of_threads(handle.tenant, names)
    if only is not None and tenant is None:
        raise InvalidError("threads can be named only if one tenant is copied, not all")
    target: Engine | str = store_url(other) if isinstance(other, str | os.PathLike) else other.engine
    if not isinstance(other, str | os.PathLike):
        if options:
            raise InvalidError(f"the other store is open already, and takes no option {min(options)!r}")
        if other.tenant != handle.tenant and tenant is not None:
            raise InvalidError(
                f"the other store was opened for tenant {other.tenant!r}, and would not see what is copied",
                hint=f"Open it with tenant={handle.tenant!r}, or give its URL",
            )
    url = target if isinstance(target, str) else target.context.backend.url
    await record_copy(handle.engine, handle.tenant, only, redacted_url(url))
    return await copy_lines(handle.engine, target, options, tenant, progress, only)
