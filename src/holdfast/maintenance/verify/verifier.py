"""Verifying a store, thread by thread."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress

import msgspec

from holdfast._fields import Internal, Local, computed, count, fill
from holdfast.backends.interface import Backend, Get, Scan
from holdfast.backends.paging import UNREADABLE, UnreadableRange, scan_readable_rows
from holdfast.backends.tables import BRANCHES, LINES, REFS, STEPS
from holdfast.engine.copy.line_stream import LINE_TABLES
from holdfast.engine.copy_mark import copy_key
from holdfast.engine.engine import Engine
from holdfast.engine.integrity.check import LineCheck
from holdfast.engine.integrity.findings import Finding, FindingCode, Severity, VerifyLevel
from holdfast.engine.integrity.verify import look
from holdfast.engine.line_walk import count_lines
from holdfast.engine.lost_rows import marked_tables
from holdfast.engine.namespaces import ALL_KINDS, COUNT_FIELDS, COUNTS, LineKind, line_kind
from holdfast.engine.row_format import LEASE, OWNER, Line
from holdfast.engine.types import Progress
from holdfast.errors import ConflictError, InvalidError, NotFoundError
from holdfast.maintenance.verify.derived_rows import (
    check_fields,
    check_word_index,
    compare_derived_rows,
    find_stray_fields,
)
from holdfast.maintenance.verify.heads import StoreHeads, compare_head

MAX_FINDINGS = 10_000
"""The number of findings that a report lists; further ones are only counted."""


class VerifyReport(msgspec.Struct, frozen=True):
    """The result of a verification.

    The lines that were verified are counted by kind. `next` is where to continue, as `after`, if not all were. `found`
    counts the findings, also those that are too many to be listed.
    """

    store: Local[str]
    tenant: Local[str]
    level: str
    threads: int = 0
    agents: int = 0
    scopes: int = 0
    sessions: int = 0
    system: int = 0
    steps: int = 0
    nodes: int = 0
    objects: int = 0
    writes: int = 0
    bytes: int = 0
    seconds: float = 0.0
    next: str | None = None
    found: int = 0
    findings: list[Finding] = []
    each: Internal[Callable[[Finding], None] | None] = None
    """Called with every finding."""

    @property
    def lines(self) -> int:
        """How many lines were verified."""
        return sum(getattr(self, name) for name in COUNT_FIELDS)

    def count(self, name: str) -> None:
        """Count a line."""
        count(self, **{COUNTS[line_kind(name)]: 1})

    @property
    @computed
    def ok(self) -> bool:
        """Whether nothing is damaged. Notices, and rows that can be rebuilt, are not damage."""
        return not self.damage

    @property
    def damage(self) -> list[Finding]:
        """The findings that are damage."""
        return [each for each in self.findings if each.severity is Severity.DAMAGE]

    @property
    def damaged(self) -> list[str]:
        """The names of damaged threads."""
        return sorted({each.thread for each in self.damage if each.thread})

    def add(self, finding: Finding) -> None:
        """Add a finding. Damage is listed before other findings."""
        count(self, found=1)
        if self.each is not None:
            self.each(finding)
        if len(self.findings) < MAX_FINDINGS:
            self.findings.append(finding)
        elif finding.severity is Severity.DAMAGE:
            for index, other in enumerate(self.findings):
                if other.severity is not Severity.DAMAGE:
                    self.findings[index] = finding
                    return


def lost_rows_finding(tenant: str, tables: Sequence[str]) -> Finding:
    """Return the finding for a store from which rows may be missing."""
    what = f"when the damaged store was repaired, rows of {', '.join(tables)} may have been lost"
    return Finding(FindingCode.LOST_ROWS, what, tenant)


def level_of(level: object) -> VerifyLevel:
    """Return a level by its name."""
    for each in VerifyLevel:
        if level == each.value:
            return each
    raise InvalidError(f"the level must be one of {', '.join(each.value for each in VerifyLevel)}, not {level!r}")


async def verify(
    engine: Engine,
    tenant: str,
    threads: Sequence[str] | None = None,
    *,
    level: VerifyLevel = VerifyLevel.HASHES,
    heads: StoreHeads | None = None,
    progress: Progress | None = None,
    after: str = "",
    limit: int | None = None,
    report: VerifyReport | None = None,
    each: Callable[[Finding], None] | None = None,
    kinds: frozenset[LineKind] = ALL_KINDS,
) -> VerifyReport:
    """Verify lines of a tenant by name; or those of some kinds, after a name, up to a limit; or all of them and the
    store itself. `report` is one to continue; `each` is called with every finding at once."""
    if heads is not None and heads.tenant != tenant:
        raise InvalidError(f"the heads are those of tenant {heads.tenant!r}", hint="Open the store for that tenant")
    report = report or VerifyReport(engine.context.backend.url, tenant, level.value)
    fill(report, each=each)
    return await _Verification(engine, tenant, level, heads, progress, report, kinds).run(threads, after, limit)


class _Verification:
    def __init__(
        self,
        engine: Engine,
        tenant: str,
        level: VerifyLevel,
        heads: StoreHeads | None,
        progress: Progress | None,
        report: VerifyReport,
        kinds: frozenset[LineKind],
    ) -> None:
        self._engine = engine
        self._backend = engine.context.backend
        self._tenant = tenant
        self._level = level
        self._heads = heads
        self._kinds = kinds
        self._expected = [] if heads is None else sorted(filter(self._is_selected, heads.threads))
        self._removed: dict[str, int] = {}
        self._progress = progress
        self._start = time.monotonic()
        self.report = report

    async def run(self, threads: Sequence[str] | None, after: str, limit: int | None) -> VerifyReport:
        if threads is not None:
            for name in threads:
                await self._thread(name, len(threads), named=True)
        else:
            await self._store(after, limit)
        fill(self.report, seconds=time.monotonic() - self._start)
        return self.report

    def _is_selected(self, name: str) -> bool:
        return self._kinds == ALL_KINDS or line_kind(name) in self._kinds

    async def _store(self, after: str, limit: int | None) -> None:
        if not after and self._kinds == ALL_KINDS:
            await self._own_check()
        total = await self._total(after)
        previous = after
        async for name in self._names(after):
            if limit is not None and self.report.lines >= limit:
                fill(self.report, next=previous)
                return
            await self._between(previous, name)
            await self._thread(name, total)
            previous = name
        await self._between(previous, None)
        if self._level >= VerifyLevel.HASHES and "thread" in self._kinds:
            for finding in await find_stray_fields(self._engine, self._tenant):
                self.report.add(finding)

    async def _own_check(self) -> None:
        try:
            found = await self._backend.check()
        except UNREADABLE as error:
            found = [str(error)]
        for what in found:
            self.report.add(Finding(FindingCode.STORE_CHECK, what))
        with suppress(*UNREADABLE):  # reported as a damaged row
            for finding in await find_lost_rows(self._backend, self._tenant):
                self.report.add(finding)

    async def _total(self, after: str) -> int | None:
        if self._progress is None:
            return None
        left = await count_lines(self._backend, self._tenant, self._kinds, after=after)
        return None if left is None else self.report.lines + left

    async def _names(self, after: str) -> AsyncIterator[str]:
        """Yield the names of threads, except those whose own row cannot be read."""
        holes: list[UnreadableRange] = []
        start = (after + "\0",) if after else ()
        async for row in scan_readable_rows(self._backend, LINES, (self._tenant,), holes, start, bodies=False):
            if self._is_selected(name := str(row.key[1])):
                yield name
        for hole in holes:
            what = f"some threads cannot be listed, from {hole.start!r} on: {hole.error}"
            key = (self._tenant, *hole.start)
            self.report.add(Finding(FindingCode.UNREADABLE_ROWS, what, self._tenant, space=LINES.name, key=key))

    async def _thread(self, name: str, total: int | None, *, named: bool = False) -> None:
        line = Line(self._tenant, name)
        report = self.report

        def report_rows(rows: int) -> None:
            if self._progress is not None:
                self._progress(report.lines, total, f"{name} ({rows:,} rows)")

        check = await self._check(line, report_rows)
        if (
            named
            and check.info is None
            and not check.found.findings
            and (self._heads is None or name not in self._heads.threads)
        ):
            raise NotFoundError("there is no such thread", where=f"thread {line}", hint="See threads()")
        report.count(name)
        if self._level >= VerifyLevel.HASHES:
            await self._check_derived(line, check_word_index)
            await self._check_derived(line, check_fields)
        if self._level >= VerifyLevel.DECODE:
            await self._check_derived(line, compare_derived_rows)
        await self._compare(name)
        if self._progress is not None:
            self._progress(report.lines, total, name)

    async def _check(self, line: Line, progress: Callable[[int], None] | None = None) -> LineCheck:
        check = await look(self._engine.context, line, self._level, progress)
        report, found = self.report, check.found
        count(
            report, steps=found.steps, nodes=found.nodes, objects=found.objects, writes=found.writes, bytes=found.bytes
        )
        for finding in found.findings:
            report.add(finding)
        return check

    async def _check_derived(self, line: Line, check: Callable[[Engine, Line], Awaitable[list[Finding]]]) -> None:
        found = await check(self._engine, line)
        if found:
            # A difference that a writer caused is gone the second time.
            again = {each.same for each in await check(self._engine, line)}
            for finding in found:
                if finding.same in again:
                    self.report.add(finding)

    async def _compare(self, name: str) -> None:
        if self._heads is None or name not in self._heads.threads:
            return
        try:
            for finding in await compare_head(self._engine, self._heads, name, self._removed):
                self.report.add(finding)
        except ConflictError:
            what = "the thread kept changing, and was not compared with its head"
            self.report.add(Finding(FindingCode.NOT_COMPARED, what, self._tenant, name))
        except UNREADABLE as error:
            what = f"the thread cannot be compared with its head: {error}"
            self.report.add(Finding(FindingCode.UNREADABLE_ROWS, what, self._tenant, name))

    async def _between(self, before: str, name: str | None) -> None:
        """Check lines between two threads that have no row of their own, or none that can be read."""
        start = f"{before}\0" if before else "\0"  # the empty name belongs to the whole store
        while name is None or start < name:
            stop = () if name is None else (name,)
            strays = await self._first_names(
                [Scan(table, (self._tenant,), (start,), stop, limit=1, bodies=False) for table in LINE_TABLES]
            )
            at = bisect_left(self._expected, start)
            strays += (each for each in self._expected[at : at + 1] if name is None or each < name)
            if not strays:
                return
            stray = min(strays)
            if self._is_selected(stray):
                await self._stray(Line(self._tenant, stray))
                await self._compare(stray)
            start = f"{stray}\0"

    async def _first_names(self, scans: Sequence[Scan]) -> list[str]:
        """Return the names of the threads of the first rows of scans, as far as these can be read."""
        try:
            return [str(row.key[1]) for rows in await self._backend.read(scans) for row in rows]
        except UNREADABLE:
            # Reported already by the store's own check.
            return [name for scan in scans for name in await self._first_names([scan])] if len(scans) > 1 else []

    async def _stray(self, line: Line) -> None:
        """Check a line that has no row of its own, or none that can be read."""
        try:
            found = await self._backend.read(
                [
                    Scan(LINES, tuple(line), bodies=False),
                    Get(REFS, [copy_key(line)]),
                    *(Scan(table, tuple(line), limit=2, bodies=False) for table in LINE_TABLES),
                ]
            )
        except UNREADABLE:
            await self._check(line)
            return
        if found[0] or found[1]:
            # It exists; or a copy of it is under way, or was killed: the next one resumes it, and whoever creates the
            # line removes what is there.
            return
        if await self._is_damaged(line):
            await self._check(line)
            return
        tables = [
            table.name
            for table, rows in zip(LINE_TABLES, found[2:], strict=True)
            if any(table is not REFS or row.key[2] not in (LEASE, OWNER) for row in rows)
        ]
        if STEPS.name in tables or BRANCHES.name in tables:
            await self._check(line)
        elif tables:
            what = f"rows of {', '.join(tables)} belong to no thread"
            self.report.add(Finding(FindingCode.ORPHAN, what, *line, space=tables[0], key=tuple(line)))

    async def _is_damaged(self, line: Line) -> bool:
        """Return whether a name or a hold is not what was written: then it may be that of another thread."""
        (found,) = await self._engine.context.stored.read([Scan(REFS, tuple(line))])
        return not all(self._engine.context.rows.is_intact(REFS, row) for row in found)


async def find_lost_rows(backend: Backend, tenant: str) -> list[Finding]:
    """Return the finding that rows may have been lost when damage was repaired, if there is one."""
    tables = await marked_tables(backend, tenant)
    return [lost_rows_finding(tenant, tables)] if tables else []
