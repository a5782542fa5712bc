"""Repairing a store: its threads one by one, from sources where there are any.

A store whose own files are damaged is put in order first, so that its rows can be read and written: see
`holdfast.maintenance.repair.store_files`.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from holdfast.backends.config import resolve
from holdfast.backends.interface import Backend, Delete, Put
from holdfast.backends.paging import UnreadableRange, sturdy_rows
from holdfast.backends.registry import backend_for
from holdfast.backends.sqlite import SQLiteBackend
from holdfast.backends.tables import LINES, TABLES, WORDS
from holdfast.engine.cache import MemoryCache
from holdfast.engine.context import EngineContext
from holdfast.engine.engine import Engine
from holdfast.engine.integrity.findings import Finding, FindingCode, Severity, VerifyLevel
from holdfast.engine.row_format import Line
from holdfast.engine.text_index.indexer import Progress
from holdfast.errors import ConflictError, InvalidError
from holdfast.maintenance.repair.line import mend
from holdfast.maintenance.repair.report import LostCheckpoint, ThreadRepairReport
from holdfast.maintenance.repair.sources import RepairSource
from holdfast.maintenance.repair.store_files import (
    FileRepairReport,
    are_damaged,
    copies_of,
    found_by,
    put_in_order,
    rehearse,
    seem_damaged,
)
from holdfast.maintenance.verify.heads import StoreHeads
from holdfast.maintenance.verify.verifier import VerifyReport, verify
from holdfast.security.handle import HasHandle

_CACHE_BYTES = 16 << 20
_BATCH = 256


@dataclass
class RepairReport:
    """What a repair did, or would do.

    `threads` says how many were looked at; `mended` what was done to those that were damaged, thread by thread. `files`
    tells of the store's own files, where these had to be put in order. `remade` are threads whose readable rows or
    words were made anew. `problems` says of threads that could not be mended now why.
    """

    store: str
    dry_run: bool
    lines: int = 0
    mended: list[ThreadRepairReport] = field(default_factory=list)
    remade: list[str] = field(default_factory=list)
    files: FileRepairReport | None = None
    left: list[Finding] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def lost(self) -> list[LostCheckpoint]:
        """The checkpoints that could not be kept."""
        return [lost for each in self.mended for lost in each.lost]

    @property
    def sound(self) -> bool:
        """Whether nothing is damaged any more."""
        return not self.left and not self.problems

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "store": self.store,
            "dry_run": self.dry_run,
            "lines": self.lines,
            "seconds": self.seconds,
            "files": None if self.files is None else self.files._asdict(),
            "remade": self.remade,
            "mended": [
                {
                    "thread": each.thread,
                    "restored": each.restored,
                    "remade": each.remade,
                    "quarantined": each.quarantined,
                    "sources": each.sources,
                    "lost": [lost._asdict() for lost in each.lost],
                    "found": [finding.plain() for finding in each.found],
                    "left": [finding.plain() for finding in each.left],
                }
                for each in self.mended
            ],
            "left": [each.plain() for each in self.left],
            "problems": self.problems,
        }


async def repair(
    engine: Engine,
    tenant: str,
    sources: Sequence[Engine] = (),
    *,
    threads: Sequence[str] | None = None,
    heads: StoreHeads | None = None,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> RepairReport:
    """Mend what is damaged. Threads that are named are also taken from a source if they are not there at all.

    The copy of a store that has one is a source, too: without it, what is lost here would be removed there.
    """
    own = engine.context.backend
    copies = [Engine(EngineContext(each, MemoryCache(_CACHE_BYTES), engine.context.codec)) for each in copies_of(own)]
    sources = [*sources, *copies]
    for source in sources:
        other = source.context.backend
        if other is own or (other.url == own.url and own.capabilities.shared):
            raise InvalidError("a store is not repaired from itself", where=own.url)
    began = time.monotonic()
    run = _Run(engine, tenant, [RepairSource(each) for each in sources], heads, dry_run=dry_run)
    await run.run(threads, progress)
    run.done.seconds = time.monotonic() - began
    return run.done


@asynccontextmanager
async def opened_sources(engine: Engine, given: Sequence[HasHandle | str], tenant: str) -> AsyncIterator[list[Engine]]:
    """Stores as sources: open ones by their engines, others by URL, which are closed at the end."""
    opened: list[Backend] = []
    try:
        sources: list[Engine] = []
        for each in given:
            if not isinstance(each, str):
                sources.append(each._handle.engine)
                continue
            url = resolve(each)
            kind = backend_for(url)
            options = ({"tenant": tenant} if kind.takes_tenant else {}) | (
                {"read_only": True} if kind.takes_read_only else {}
            )
            backend = await kind.open(url, **options)
            opened.append(backend)
            sources.append(Engine(EngineContext(backend, MemoryCache(_CACHE_BYTES), engine.context.codec)))
        yield sources
    finally:
        for backend in opened:
            await backend.close()


class _Run:
    """One repair."""

    def __init__(
        self, engine: Engine, tenant: str, sources: Sequence[RepairSource], heads: StoreHeads | None, *, dry_run: bool
    ) -> None:
        self._engine = engine
        self._tenant = tenant
        self._sources = sources
        self._heads = heads
        self._dry = dry_run
        self.done = RepairReport(engine.context.backend.url, dry_run)

    async def run(self, threads: Sequence[str] | None, progress: Progress | None) -> None:
        # Looking around what cannot be read takes long: the files first.
        if await are_damaged(self._engine) and await self._put_in_order(threads):
            return
        begun = self.done.files is not None
        report = await self.verified(None if begun else threads, progress)
        if not begun and seem_damaged(report):
            if await self._put_in_order(threads):
                return
            report = await self.verified(threads, progress)
        await self.rest(report, threads)

    async def _put_in_order(self, threads: Sequence[str] | None) -> bool:
        """Put the store's own files in order. True if that was only rehearsed, and all else with it."""
        if self._dry:
            return await self._rehearse_all(threads)
        self.done.files = await put_in_order(self._engine, self._tenant)
        return False

    async def rest(self, report: VerifyReport, threads: Sequence[str] | None) -> None:
        """What there is to do once the store's own files are in order."""
        self.done.lines = report.lines
        missing = set(threads or ())
        if self.done.files is not None and self.done.files.unreadable:
            for source in self._sources:
                missing |= set(await source.names(self._tenant))
        if self._heads is not None:
            missing |= {each.thread for each in report.findings if each.code is FindingCode.GONE_THREAD}
        await self._mend(report, threads)
        await self._take(sorted(missing - set(await self._there())))
        await self._make_again(report)
        left = [each for each in report.damage if not each.thread]
        if left and not self._dry:
            again = await found_by(self._engine.context.backend)
            left = [each for each in left if each.code is not FindingCode.STORE_CHECK or each.message in again]
        self.done.left += left

    async def verified(self, threads: Sequence[str] | None, progress: Progress | None = None) -> VerifyReport:
        """What is wrong with threads, or with all."""
        there = None if threads is None else set(await self._there())
        named = None if threads is None or there is None else [name for name in threads if name in there]
        return await verify(
            self._engine, self._tenant, named, level=VerifyLevel.DECODE, heads=self._heads, progress=progress
        )

    async def _rehearse_all(self, threads: Sequence[str] | None) -> bool:
        """Where the store's files would be put in order: do all of it, with a copy that is then removed."""
        with tempfile.TemporaryDirectory(prefix="holdfast-") as folder:
            found = await rehearse(self._engine, self._tenant, str(Path(folder) / "rehearsal.db"))
            if found is None:
                return False
            backend, files = found
            try:
                ground = replace(self._engine.context, backend=backend, cache=MemoryCache(_CACHE_BYTES))
                run = _Run(Engine(ground), self._tenant, self._sources, self._heads, dry_run=False)
                run.done.files = files
                await run.rest(await run.verified(None), threads)
            finally:
                await backend.close()
        self.done = replace(run.done, store=self.done.store, dry_run=True)
        return True

    async def _there(self) -> list[str]:
        holes: list[UnreadableRange] = []
        prefix = (self._tenant,)
        backend = self._engine.context.backend
        return [str(row.key[1]) async for row in sturdy_rows(backend, LINES, prefix, holes, bodies=False)]

    async def _mend(self, report: VerifyReport, threads: Sequence[str] | None) -> None:
        codes = (FindingCode.CUT_OFF, FindingCode.ROLLED_BACK, FindingCode.OTHER_HISTORY)
        behind = {each.thread for each in report.damage if each.code in codes}
        # Rows may have gone that nobody misses; and a thread whose end was cut off is not seen to be damaged.
        whole = self.done.files is not None and bool(self.done.files.unreadable)
        names = set(report.damaged)
        if self._sources:
            there = await self._there()
            wanted = there if threads is None or whole else [name for name in threads if name in there]
            names |= {name for name in wanted if whole or await self._is_behind(name)}
        for name in sorted(names):
            await self._thread(name, whole=whole or name in behind)

    async def _is_behind(self, name: str) -> bool:
        """Whether a source has more of a thread that nothing but appends happened to."""
        line = Line(self._tenant, name)
        return any([await source.is_ahead(line, self._engine.context.backend) for source in self._sources])

    async def _take(self, names: Sequence[str]) -> None:
        """Take whole threads from a source."""
        for name in names:
            if self._sources:
                await self._thread(name, whole=True)

    async def _thread(self, name: str, *, whole: bool) -> None:
        line = Line(self._tenant, name)
        rehearse_or_mend = _rehearse if self._dry else mend
        try:
            mended = await rehearse_or_mend(self._engine, line, self._sources, whole=whole, heads=self._heads)
        except ConflictError as error:
            self.done.problems.append(str(error))  # others can be mended all the same
            return
        if mended is not None:
            self.done.mended.append(mended)
            self.done.left += mended.left

    async def _make_again(self, report: VerifyReport) -> None:
        """Make readable rows and words anew, where they do not say what the log says."""
        mended = {each.thread for each in self.done.mended}
        stale = [each for each in report.findings if each.severity is Severity.REMAKEABLE and each.thread not in mended]
        self.done.remade = list(dict.fromkeys(each.thread for each in stale))
        for finding in [] if self._dry else stale:
            line = Line(self._tenant, finding.thread)
            if finding.code is FindingCode.STALE_ROWS:
                await self._engine.projector.build(line)
            else:
                await self._engine.context.backend.apply([Delete(WORDS, tuple(line))])
                await self._engine.indexer.build_line(line)


async def _rehearse(
    engine: Engine, line: Line, sources: Sequence[RepairSource], *, whole: bool, heads: StoreHeads | None
) -> ThreadRepairReport | None:
    """What mending would do: done to a copy of the line, in a file that is then removed."""
    with tempfile.TemporaryDirectory(prefix="holdfast-") as folder:
        scratch = await SQLiteBackend.open(f"sqlite:///{Path(folder) / 'rehearsal.db'}", synchronous="normal")
        try:
            await _copy(engine.context.backend, scratch, line)
            ground = replace(engine.context, backend=scratch, cache=MemoryCache(_CACHE_BYTES), project=False)
            return await mend(Engine(ground), line, sources, whole=whole, heads=heads)
        finally:
            await scratch.close()


async def _copy(source: Backend, target: Backend, line: Line) -> None:
    holes: list[UnreadableRange] = []
    for space in TABLES:
        batch: list[Put] = []
        async for row in sturdy_rows(source, space, tuple(line), holes):
            batch.append(Put(space, row))
            if len(batch) == _BATCH:
                await target.apply(batch)
                batch = []
        await target.apply(batch)
