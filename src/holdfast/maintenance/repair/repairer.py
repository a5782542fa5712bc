"""Repairing a store, thread by thread, from sources if there are any.

If the files of the store are damaged, they are repaired first, so that its rows can be read and written: see
`holdfast.maintenance.repair.store_files`.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

import msgspec
from msgspec import structs
from msgspec.structs import replace

from holdfast._fields import computed, fill
from holdfast.backends.config import store_url
from holdfast.backends.interface import Backend, Delete, Put
from holdfast.backends.paging import UnreadableRange, scan_readable_rows
from holdfast.backends.registry import backend_for
from holdfast.backends.runtime.memory_cache import MemoryCache
from holdfast.backends.sqlite.backend import SQLiteBackend
from holdfast.backends.tables import LINES, REFS, STEPS, TABLES, WORDS
from holdfast.engine.checked_rows import remove_mark
from holdfast.engine.context import EngineContext
from holdfast.engine.engine import Engine
from holdfast.engine.integrity.findings import Finding, FindingCode, Severity, VerifyLevel
from holdfast.engine.integrity.verify import look
from holdfast.engine.leases import Lease
from holdfast.engine.namespaces import CONTENT_KINDS, line_kind
from holdfast.engine.optimistic import Attempts
from holdfast.engine.row_format import Line, StepRef
from holdfast.engine.types import Progress
from holdfast.errors import ConflictError, CorruptError, InvalidError
from holdfast.history.thread_status import refresh_status
from holdfast.maintenance.erasure.reapply import apply_ledger, read_ledger
from holdfast.maintenance.repair.attempt import LostCheckpoint, RepairAttempt, ThreadRepairReport
from holdfast.maintenance.repair.sources import RepairSource
from holdfast.maintenance.repair.store_files import (
    FileRepairReport,
    are_damaged,
    copies_of,
    dry_run_files,
    own_findings,
    repair_files,
    seem_damaged,
)
from holdfast.maintenance.verify.heads import StoreHeads, compare_head
from holdfast.maintenance.verify.verifier import VerifyReport, find_lost_rows, lost_rows_finding, verify
from holdfast.security.audit.erasure_ledger import ErasureLedger
from holdfast.security.handle import HasHandle

_PASSES = 3
"""The number of passes: one may leave work for the next."""


async def repair_line(
    engine: Engine, line: Line, sources: Sequence[RepairSource], *, whole: bool = False, heads: StoreHeads | None = None
) -> ThreadRepairReport | None:
    """Repair a line, and verify the result. None if nothing is wrong with it.

    `whole` says that rows were lost that nobody can name: what a source has and the line has not is then taken over.
    What is not as exported heads have it is left.
    """
    lease = Lease(engine.context, line, "rewrite")
    total = ThreadRepairReport(line.name)
    changed = passes = 0
    try:
        await lease.acquire()
        attempts = Attempts("repairing a thread", line, engine.context.metrics)
        while True:
            await attempts.begin()
            attempt = RepairAttempt(engine, line, sources, lease, whole=whole and not changed)
            done = await attempt.run()
            total.add(attempt.mended)
            if done and not attempt.changed:
                break
            changed += attempt.changed
            passes += done
            if passes == _PASSES:  # refs of lost steps, and parts that nothing needs, are removed in the second
                break
    finally:
        await lease.release()
    if changed:
        engine.context.cache.drop_all(line)
        await _make_again(engine, line)
        check = await look(engine.context, line, VerifyLevel.DECODE)
        fill(total, left=[each for each in check.found.findings if each.severity is Severity.DAMAGE])
    if heads is not None and line.name in heads.threads:
        found = await compare_head(engine, heads, line.name, {})
        total.left.extend(each for each in found if each.severity is Severity.DAMAGE)
    return total if changed or total.left else None


async def _make_again(engine: Engine, line: Line) -> None:
    """Rebuild readable rows, the indexes and the status of a thread from the log."""
    if engine.projector.on:
        await engine.projector.build(line)
    await engine.indexer.follow(line)
    await engine.fields.refresh(line)
    await refresh_status(engine, line)


_CACHE_BYTES = 16 << 20
_BATCH = 256
_GONE = (FindingCode.GONE_THREAD, FindingCode.LOST_LINE)


class RepairReport(msgspec.Struct, frozen=True):
    """The result of a repair.

    `lines` is the number of lines that were checked; `repaired` has a report for each damaged one. `files` is about
    the store's own files, if they had to be repaired. `rebuilt` are threads whose readable rows or words were rebuilt.
    `problems` has the reasons why threads could not be repaired.
    """

    store: str
    dry_run: bool
    lines: int = 0
    repaired: list[ThreadRepairReport] = []
    rebuilt: list[str] = []
    files: FileRepairReport | None = None
    left: list[Finding] = []
    problems: list[str] = []
    seconds: float = 0.0

    @property
    def lost(self) -> list[LostCheckpoint]:
        """The checkpoints that are lost."""
        return [lost for each in self.repaired for lost in each.lost]

    @property
    @computed
    def ok(self) -> bool:
        """Whether nothing is damaged now."""
        return not self.left and not self.problems


async def repair(
    engine: Engine,
    tenant: str,
    sources: Sequence[Engine] = (),
    *,
    threads: Sequence[str] | None = None,
    heads: StoreHeads | None = None,
    dry_run: bool = False,
    accept_loss: bool = False,
    progress: Progress | None = None,
) -> RepairReport:
    """Repair what is damaged. Threads that are named are copied from a source if they do not exist at all.

    `accept_loss` says that rows which a salvage may have lost are not missed.

    The copy of a mirrored store is a source, too: otherwise, what is lost here would be removed there.
    """
    own = engine.context.backend
    copies = [_source(engine, each) for each in copies_of(own)]
    sources = [*sources, *copies]
    for source in sources:
        other = source.context.backend
        if other is own or (other.url == own.url and own.capabilities.shared):
            raise InvalidError("a store cannot be repaired from itself", where=own.url)
    start = time.monotonic()
    if accept_loss and not dry_run:
        await remove_mark(own, tenant)
    run = _Repair(engine, tenant, [RepairSource(each) for each in sources], heads, dry_run=dry_run)
    await run.run(threads, progress)
    if not dry_run and sources:
        # What was restored from them may be older than an erasure. What another store erased is no concern of this one.
        ledger = ErasureLedger(Engine(engine.context), tenant)
        for each in copies:
            await ledger.add(await read_ledger(each, tenant))
        lines = [Line(tenant, each.thread) for each in run.done.repaired]
        await apply_ledger(engine, tenant, lines=lines)
    fill(run.done, seconds=time.monotonic() - start)
    return run.done


@asynccontextmanager
async def open_sources(engine: Engine, stores: Sequence[HasHandle | str], tenant: str) -> AsyncIterator[list[Engine]]:
    """Yield the engines of stores. Those that are URLs are opened, and closed at the end; and so are backups."""
    opened: list[Backend] = []
    async with AsyncExitStack() as stack:
        stack.push_async_callback(_close, opened)
        sources: list[Engine] = []
        for each in stores:
            if not isinstance(each, str):
                sources.append(each._handle.engine)
                continue
            if each.startswith("backup:"):
                from holdfast.maintenance.backup.source import open_source

                sources.append(await stack.enter_async_context(open_source(engine, each, tenant)))
                continue
            url = store_url(each)
            kind = backend_for(url)
            options = ({"tenant": tenant} if kind.takes_tenant else {}) | (
                {"read_only": True} if kind.takes_read_only else {}
            )
            backend = await kind.open(url, **options)
            opened.append(backend)
            sources.append(_source(engine, backend))
        yield sources


async def _close(opened: Sequence[Backend]) -> None:
    for backend in opened:
        await backend.close()


def _source(engine: Engine, backend: Backend) -> Engine:
    """Return an engine to read another store, whose rows are stored in the same way."""
    context = engine.context
    return Engine(EngineContext(backend, MemoryCache(_CACHE_BYTES), context.codec, rows=context.rows))


class _Repair:
    def __init__(
        self, engine: Engine, tenant: str, sources: Sequence[RepairSource], heads: StoreHeads | None, *, dry_run: bool
    ) -> None:
        self._engine = engine
        self._tenant = tenant
        self._sources = sources
        self._heads = heads
        self._dry_run = dry_run
        self.done = RepairReport(engine.context.backend.url, dry_run)

    async def run(self, threads: Sequence[str] | None, progress: Progress | None) -> None:
        # Reading around damage takes long, so the files come first.
        if await are_damaged(self._engine) and await self._repair_files(threads):
            return
        files_repaired = self.done.files is not None
        if not self._dry_run and not files_repaired:
            await self._engine.context.backend.heal()
        report = await self.verify(None if files_repaired else threads, progress)
        if not files_repaired and seem_damaged(report):
            if await self._repair_files(threads):
                return
            report = await self.verify(threads, progress)
        await self.rest(report, threads)

    async def _repair_files(self, threads: Sequence[str] | None) -> bool:
        """Repair the files of the store. Returns True if all of the repair was a dry run."""
        if self._dry_run:
            return await self._dry_run_all(threads)
        fill(self.done, files=await repair_files(self._engine, self._tenant))
        await self._engine.context.backend.heal()
        return False

    async def rest(self, report: VerifyReport, threads: Sequence[str] | None) -> None:
        """Repair everything but the files of the store."""
        fill(self.done, lines=report.lines)
        missing = set(threads or ())
        lost = any(each.code is FindingCode.LOST_ROWS for each in report.findings)
        if lost or (self.done.files is not None and self.done.files.unreadable):
            for source in self._sources:
                missing |= set(await source.names(self._tenant))
        if self._heads is not None:
            missing |= {each.thread for each in report.findings if each.code in _GONE}
        await self._repair_threads(report, threads, lost=lost)
        left = [each for each in report.damage if not each.thread]
        if not lost and (more := await find_lost_rows(self._engine.context.backend, self._tenant)):
            left, lost = left + more, True  # a damaged row was no more than removed
            for source in self._sources:
                missing |= set(await source.names(self._tenant))
            if self._sources:
                await self._repair_threads(report, threads, lost=True)
        await self._copy_missing(sorted(missing - set(await self._names())))
        self._report_lost_entries()
        await self._rebuild_derived(report)
        if self._dry_run and not lost and any(each.lost_hold for each in self.done.repaired):
            left.append(lost_rows_finding(self._tenant, [REFS.name]))
        done = threads is None and not self._dry_run and self.done.ok
        if lost and done and await self._have_sources_all():
            await remove_mark(self._engine.context.backend, self._tenant)
            left = [each for each in left if each.code is not FindingCode.LOST_ROWS]
        if left and not self._dry_run:
            again = await own_findings(self._engine.context.backend)
            left = [each for each in left if each.code is not FindingCode.STORE_CHECK or each.message in again]
        self.done.left.extend(left)

    async def _have_sources_all(self) -> bool:
        """Return whether the sources have all threads, scopes and agents: of others, they cannot tell what was lost.

        Records and rights are left out: each store has its own."""
        known = {name for source in self._sources for name in await source.names(self._tenant)}
        return known.issuperset(name for name in await self._names() if line_kind(name) in CONTENT_KINDS)

    async def verify(self, threads: Sequence[str] | None, progress: Progress | None = None) -> VerifyReport:
        """Verify threads, or all of them."""
        existing = None if threads is None else set(await self._names())
        named = None if threads is None or existing is None else [name for name in threads if name in existing]
        return await verify(
            self._engine, self._tenant, named, level=VerifyLevel.DECODE, heads=self._heads, progress=progress
        )

    async def _dry_run_all(self, threads: Sequence[str] | None) -> bool:
        """Do the whole repair with a temporary copy, where files would be repaired."""
        with tempfile.TemporaryDirectory(prefix="holdfast-") as folder:
            found = await dry_run_files(self._engine, self._tenant, str(Path(folder) / "scratch.db"))
            if found is None:
                return False
            backend, files = found
            try:
                context = structs.replace(self._engine.context, backend=backend, cache=MemoryCache(_CACHE_BYTES))
                run = _Repair(Engine(context), self._tenant, self._sources, self._heads, dry_run=False)
                fill(run.done, files=files)
                await run.rest(await run.verify(None), threads)
            finally:
                await backend.close()
        self.done = replace(run.done, store=self.done.store, dry_run=True)
        return True

    async def _names(self) -> list[str]:
        holes: list[UnreadableRange] = []
        prefix = (self._tenant,)
        backend = self._engine.context.backend
        return [str(row.key[1]) async for row in scan_readable_rows(backend, LINES, prefix, holes, bodies=False)]

    async def _repair_threads(self, report: VerifyReport, threads: Sequence[str] | None, *, lost: bool) -> None:
        codes = (FindingCode.CUT_OFF, FindingCode.ROLLED_BACK, FindingCode.OTHER_HISTORY)
        behind = {each.thread for each in report.damage if each.code in codes}
        # Rows may be lost that nothing misses, and a thread without its end is not found to be damaged.
        whole = lost or (self.done.files is not None and bool(self.done.files.unreadable))
        names = set(report.damaged)
        if self._sources:
            existing = await self._names()
            selected = existing if threads is None or whole else [name for name in threads if name in existing]
            names |= {name for name in selected if whole or await self._is_behind(name) or await self._has_lost(name)}
        for name in sorted(names):
            await self._thread(name, whole=whole or name in behind)

    def _report_lost_entries(self) -> None:
        """Report what the files lost and the rows do not show, such as the latest checkpoint of a thread."""
        lost = None if self.done.files is None else self.done.files.lost_entries
        for name, entries in (lost or {}).items():
            report = next((each for each in self.done.repaired if each.thread == name), None)
            if report is None:
                report = ThreadRepairReport(name)
                self.done.repaired.append(report)
            known = report.restored + sum(not each.checkpoint for each in report.lost)
            for entry in entries[known:]:
                reason = f"{entry} of its log is damaged or missing, and no source has what was saved with it"
                report.lost.append(LostCheckpoint(name, "", 0, -1, reason))

    async def _has_lost(self, name: str) -> bool:
        """Return whether a thread has stubs of lost checkpoints, which a source may have."""
        line, holes = (self._tenant, name), list[UnreadableRange]()
        async for row in scan_readable_rows(self._engine.context.backend, STEPS, line, holes, bodies=False):
            with suppress(CorruptError):
                if StepRef.of(row).lost:
                    return True
        return False

    async def _is_behind(self, name: str) -> bool:
        """Return whether a source has more of a thread to which only appends happened."""
        line = Line(self._tenant, name)
        return any([await source.is_ahead(line, self._engine.context.backend) for source in self._sources])

    async def _copy_missing(self, names: Sequence[str]) -> None:
        """Copy whole threads from a source."""
        for name in names:
            if self._sources:
                await self._thread(name, whole=True)

    async def _thread(self, name: str, *, whole: bool) -> None:
        line = Line(self._tenant, name)
        operation = _dry_run if self._dry_run else repair_line
        try:
            report = await operation(self._engine, line, self._sources, whole=whole, heads=self._heads)
        except ConflictError as error:
            self.done.problems.append(str(error))  # others can still be repaired
            return
        if report is not None:
            self.done.repaired.append(report)
            self.done.left.extend(report.left)

    async def _rebuild_derived(self, report: VerifyReport) -> None:
        """Rebuild readable rows and words that differ from the log."""
        repaired = {each.thread for each in self.done.repaired}
        stale = [
            each for each in report.findings if each.severity is Severity.REMAKEABLE and each.thread not in repaired
        ]
        fill(self.done, rebuilt=list(dict.fromkeys(each.thread for each in stale)))
        for finding in [] if self._dry_run else stale:
            line = Line(self._tenant, finding.thread)
            if finding.code is FindingCode.STALE_ROWS:
                await self._engine.projector.build(line)
            elif finding.code is FindingCode.STALE_FIELDS:
                await self._engine.fields.repair(line)
            else:
                await self._engine.context.backend.apply([Delete(WORDS, tuple(line))])
                await self._engine.indexer.build_line(line)


async def _dry_run(
    engine: Engine, line: Line, sources: Sequence[RepairSource], *, whole: bool, heads: StoreHeads | None
) -> ThreadRepairReport | None:
    """Repair a temporary copy of the line."""
    with tempfile.TemporaryDirectory(prefix="holdfast-") as folder:
        scratch = await SQLiteBackend.open(f"sqlite:///{Path(folder) / 'scratch.db'}", synchronous="normal")
        try:
            await _copy(engine.context.stored, scratch, line)
            context = structs.replace(engine.context, backend=scratch, cache=MemoryCache(_CACHE_BYTES), project=False)
            return await repair_line(Engine(context), line, sources, whole=whole, heads=heads)
        finally:
            await scratch.close()


async def _copy(source: Backend, target: Backend, line: Line) -> None:
    holes: list[UnreadableRange] = []
    for table in TABLES:
        batch: list[Put] = []
        async for row in scan_readable_rows(source, table, tuple(line), holes):
            batch.append(Put(table, row))
            if len(batch) == _BATCH:
                await target.apply(batch)
                batch = []
        await target.apply(batch)
