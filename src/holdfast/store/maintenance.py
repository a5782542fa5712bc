"""Maintenance of a store: `store.maintenance.prune(…)`, `.verify()`, `.repair()` and the rest."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Unpack

from holdfast.backends.runtime.drivers import AsyncApi, SyncApi, sync_and_async
from holdfast.engine.hold_check import require_no_hold
from holdfast.engine.namespaces import is_thread, root_of
from holdfast.engine.row_format import Line, check_name
from holdfast.engine.types import ThreadInfo
from holdfast.errors import NotFoundError
from holdfast.security.handle import HasHandle, StoreHandle

if TYPE_CHECKING:
    from holdfast.engine.integrity.findings import Finding
    from holdfast.engine.text_index.indexer import IndexReport, Progress
    from holdfast.maintenance.orphans import OrphanReport
    from holdfast.maintenance.pins import HoldInfo
    from holdfast.maintenance.pruner import PruneReport, ThreadPruneReport
    from holdfast.maintenance.repair.quarantine import QuarantinedRow
    from holdfast.maintenance.repair.repairer import RepairReport
    from holdfast.maintenance.retention import Retention, RetentionRules
    from holdfast.maintenance.verify.heads import StoreHeads
    from holdfast.maintenance.verify.verifier import VerifyReport


class MaintenanceOperations:
    """Operations on a whole store. `Maintenance` and `AsyncMaintenance` have these as methods."""

    def __init__(self, handle: StoreHandle) -> None:
        self._handle = handle

    @sync_and_async
    async def prune(
        self,
        threads: str | Iterable[str] | None = None,
        policy: Retention | None = None,
        *,
        prefix: str = "",
        where: str | None = None,
        dry_run: bool = False,
        progress: Progress | None = None,
        each: Callable[[ThreadPruneReport], None] | None = None,
        **rules: Unpack[RetentionRules],
    ) -> PruneReport:
        """Remove old checkpoints: of some threads by name, of those that a `prefix` or a query names, or of all.

        What stays is said by a `Retention`, or by its fields: `prune(keep_last=100, keep_daily=30)`. A checkpoint stays
        if any of them keeps it; it reads as before, with the same hash. Pins and holds are respected. The namespaces of
        a LangGraph thread are pruned with it.

        With `dry_run` nothing is changed, and the report says what would be. Writers go on meanwhile. A thread that is
        held, or that another process is rewriting, is left as it is and reported, unless it is the only one named.
        `progress` is called after each thread. With `each`, that is told of every thread and what becomes of its
        checkpoints, and the report has figures only: for stores with more checkpoints than fit into memory.
        """
        from holdfast.maintenance import pruner, retention

        selection = pruner.ThreadSelection.of(threads, prefix, where)
        policy = retention.policy_of(policy, rules)
        return await pruner.prune(
            self._handle.engine, self._handle.tenant, policy, selection, dry_run=dry_run, progress=progress, each=each
        )

    @sync_and_async
    async def sweep_orphans(
        self, *, dry_run: bool = False, grace: str = "1d", progress: Progress | None = None
    ) -> OrphanReport:
        """Remove rows that belong to nothing, such as a process leaves that died in the middle of a copy.

        What may still be wanted by something under way goes only when it has been there for the time of `grace`. With
        `dry_run` it is only told what there is.
        """
        from holdfast.maintenance import orphans

        return await orphans.sweep(
            self._handle.engine, self._handle.tenant, grace=grace, dry_run=dry_run, progress=progress
        )

    @sync_and_async
    async def verify(
        self,
        thread: str | None = None,
        *,
        level: str = "hashes",
        heads: StoreHeads | None = None,
        progress: Progress | None = None,
        after: str = "",
        limit: int | None = None,
        each: Callable[[Finding], None] | None = None,
    ) -> VerifyReport:
        """See whether a thread, or all of this tenant's and the store itself, are as they were written.

        `level` says how deep to look: `structure` (everything is where it should be), `hashes` (every hash recomputed,
        everything there that a state needs) or `decode` (every state put together, every value decoded). Against
        `heads` that were exported before, even a lost end is found. What is found is in the report; nothing is raised
        and nothing changed. Writers may go on meanwhile. `after` a thread by name, and for a `limit` of threads, a long
        verification is done in parts: `report.next` says where to go on. `each` is told of findings as they are made.
        """
        from holdfast.maintenance.verify import verifier

        threads = None if thread is None else [self._line(thread).name]
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
        )

    @sync_and_async
    async def heads(self, thread: str | None = None) -> StoreHeads:
        """Where every thread ends: keep it elsewhere (`heads.save(path)`), and give it to `verify` later."""
        from holdfast.maintenance.verify.heads import export_heads

        threads = None if thread is None else [self._line(thread).name]
        return await export_heads(self._handle.engine, self._handle.tenant, threads)

    @sync_and_async
    async def repair(
        self,
        source: HasHandle | str | Sequence[HasHandle | str] = (),
        *,
        thread: str | None = None,
        heads: StoreHeads | None = None,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> RepairReport:
        """Mend what is damaged, from other stores with the same history: mirrors, copies or backups, by themselves or
        by URL. Whatever is taken from them is checked by its hash.

        What no source has is salvaged: every checkpoint that still reads is kept, and the rest goes to `quarantine`. A
        damaged SQLite file is replaced by a new one with all that can be read, and kept beside it. With `dry_run`
        nothing is changed, and the same is told. Interrupted, it is begun again.
        """
        from holdfast.maintenance.repair import repairer

        given = [source] if isinstance(source, str | HasHandle) else list(source)
        threads = None if thread is None else [self._line(thread).name]
        async with repairer.opened_sources(self._handle.engine, given, self._handle.tenant) as sources:
            return await repairer.repair(
                self._handle.engine,
                self._handle.tenant,
                sources,
                threads=threads,
                heads=heads,
                dry_run=dry_run,
                progress=progress,
            )

    @sync_and_async
    async def quarantine(self, thread: str | None = None) -> list[QuarantinedRow]:
        """What repairs took out of threads because it was damaged, as it was found."""
        from holdfast.maintenance.repair.quarantine import quarantined

        threads = None if thread is None else [self._line(thread).name]
        return [each async for each in quarantined(self._handle.engine, self._handle.tenant, threads)]

    @sync_and_async
    async def compact(self, thread: str | None = None) -> None:
        """Rewrite the folded states of a thread, or of all, under the same hashes, and free what nothing needs.

        Writers and readers continue meanwhile.
        """
        engine = self._handle.engine
        if thread is not None:
            await engine.rewriter.rewrite(self._line(thread))
        for line in await engine.lines.names(self._handle.tenant) if thread is None else ():
            if is_thread(line.name):
                with suppress(NotFoundError):  # deleted meanwhile
                    await engine.rewriter.rewrite(line)
        await engine.context.backend.tidy()

    @sync_and_async
    async def build_index(self, *, progress: Progress | None = None) -> IndexReport:
        """Make an index of the words in this tenant's threads, and keep it from then on, whoever writes.

        Only what is missing is made: begun again it goes on where it ended. Writers go on meanwhile. Raises
        `UnsupportedError` where the store can keep none.
        """
        return await self._handle.engine.indexer.build(self._handle.tenant, progress)

    @sync_and_async
    async def drop_index(self) -> bool:
        """Keep no index of words any more, and remove it. False if there was none."""
        return await self._handle.engine.indexer.drop(self._handle.tenant)

    @sync_and_async
    async def project(
        self, *, after: str = "", again: bool = False, progress: Callable[[str, int], None] | None = None
    ) -> int:
        """Make the readable rows of this tenant's threads, where they do not tell of every checkpoint.

        For a store that had none so far, or was written to by programs that make none. Writers go on meanwhile. Begun
        again it goes on where it ended, by itself, or `after` a thread by name. With `again` all rows are made anew.
        `progress` is called with the name of each thread that was looked at, and how many that makes. Returns the
        number of threads whose rows were made.
        """
        check_name(after, "name of a thread")
        return await self._handle.engine.projector.build_all(self._handle.tenant, after, again, progress)

    @sync_and_async
    async def delete(self, threads: Iterable[str], *, dry_run: bool = False) -> list[ThreadInfo]:
        """Delete threads with their namespaces, all or none, and return what they were.

        Raises `NotFoundError` if one does not exist, `DeniedError` if one is held. With `dry_run` nothing is deleted.
        """
        engine = self._handle.engine
        lines = await engine.lines.of_threads(self._handle.tenant, [self._line(each).name for each in threads])
        await require_no_hold(engine.context.backend, lines)
        deleted = [ThreadInfo.of(await engine.lines.summary(line)) for line in lines]
        hooks = engine.hooks
        if hooks is None and not dry_run:
            await engine.lines.delete(*lines)
        elif hooks is not None and not dry_run:
            for root in dict.fromkeys(map(root_of, lines)):
                family = [line for line in lines if root_of(line) == root]
                await hooks.delete(root, partial(engine.lines.delete, *family))
        return deleted

    @sync_and_async
    async def holds(self) -> list[HoldInfo]:
        """List the holds of all threads, with the reasons."""
        from holdfast.maintenance import pins

        return await pins.holds(self._handle.engine, self._handle.tenant, None)

    def _line(self, thread: str) -> Line:
        return self._handle.thread_line(thread)


class Maintenance(SyncApi, MaintenanceOperations):
    """The maintenance of a `Store`."""


class AsyncMaintenance(AsyncApi, MaintenanceOperations):
    """The maintenance of an `AsyncStore`: operations are awaited."""
