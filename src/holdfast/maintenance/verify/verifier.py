"""Verifying a store, thread by thread."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence, Set
from contextlib import suppress

import msgspec
from msgspec.structs import replace

from holdfast._fields import Internal, Local, computed, count, fill
from holdfast.backends.interface import Backend, Batch, Get, Query, Row, Scan
from holdfast.backends.memory import MemoryBackend
from holdfast.backends.paging import UNREADABLE, UnreadableRange, scan_readable_rows, scan_rows
from holdfast.backends.runtime.memory_cache import MemoryCache
from holdfast.backends.tables import BEHIND, BRANCHES, FIELDS, HEADS, LINES, READABLE, REFS, STEPS, WORDS, Key, Table
from holdfast.backends.wrappers import Wrapper
from holdfast.backends.wrappers.store_diff import same_row
from holdfast.engine.checked_rows import marked_tables
from holdfast.engine.copy.line_stream import LINE_TABLES
from holdfast.engine.copy.short_lines import GROUP, read_stored_lines
from holdfast.engine.copy_mark import copy_key
from holdfast.engine.engine import Engine
from holdfast.engine.integrity.check import GivenRows, LineCheck, LineReport
from holdfast.engine.integrity.findings import Finding, FindingCode, Severity, VerifyLevel
from holdfast.engine.integrity.verify import look, look_at_rows
from holdfast.engine.line_walk import count_lines, pages_of
from holdfast.engine.namespaces import ALL_KINDS, COUNT_FIELDS, COUNTS, LineKind, line_kind
from holdfast.engine.projection.projector import LATE_SECONDS
from holdfast.engine.row_format import LEASE, OWNER, Line
from holdfast.engine.text_index.indexer import MANY
from holdfast.engine.types import Progress
from holdfast.errors import ConflictError, InvalidError, NotFoundError
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
        async for page in pages_of(self._lines(after), GROUP):
            while page:
                if limit is not None and self.report.lines >= limit:
                    fill(self.report, next=previous)
                    return
                await self._between(previous, page[0].name)
                left = None if limit is None else limit - self.report.lines
                sound = await self._short(page[:left], total)
                if not sound:
                    await self._thread(page[0].name, total)
                previous = page[max(sound, 1) - 1].name
                del page[: max(sound, 1)]
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

    async def _lines(self, after: str) -> AsyncIterator[Line]:
        """Yield lines, except those whose own row cannot be read."""
        holes: list[UnreadableRange] = []
        start = (after + "\0",) if after else ()
        async for row in scan_readable_rows(self._backend, LINES, (self._tenant,), holes, start, bodies=False):
            if self._is_selected(name := str(row.key[1])):
                yield Line(self._tenant, name)
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

    async def _short(self, lines: Sequence[Line], total: int | None) -> int:
        """Check the first of some lines together, in memory, as many as are short and have no finding, which is looked
        at again in the store. Returns how many."""
        if self._heads is not None or self._level >= VerifyLevel.DECODE:
            return 0
        short = await read_stored_lines(self._engine.context, lines, (FIELDS, WORDS))
        deep = self._level >= VerifyLevel.HASHES
        wrong = await self._engine.fields.wrong_lines(short) if deep else frozenset[Line]()
        for number, (line, rows) in enumerate(short.items()):
            found = await look_at_rows(self._engine.context, line, GivenRows(rows), self._level)
            if found.findings or line in wrong:
                return number
            self._count(found)
            self.report.count(line.name)
            if deep and WORDS in rows:
                await self._check_derived(line, check_word_index)
            if self._progress is not None:
                self._progress(self.report.lines, total, line.name)
        return len(short)

    async def _check(self, line: Line, progress: Callable[[int], None] | None = None) -> LineCheck:
        check = await look(self._engine.context, line, self._level, progress)
        self._count(check.found)
        for finding in check.found.findings:
            self.report.add(finding)
        return check

    def _count(self, found: LineReport) -> None:
        count(
            self.report,
            steps=found.steps,
            nodes=found.nodes,
            objects=found.objects,
            writes=found.writes,
            bytes=found.bytes,
        )

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


# Comparison of readable rows and the text index with the log ---------------------------------------------------------
#
# They are rebuilt in memory, by the same code that writes them as steps are saved.


_CACHE_BYTES = 16 << 20
_DERIVED = (*READABLE, WORDS)
_LONGEST_START = 3
"""Stores have an index of their own for how words start, up to so many characters."""
_MATCHES_AT_ONCE = 1000


class _DerivedInMemory(Wrapper):
    """A store whose derived rows are in memory, and which is not written to."""

    def __init__(self, inner: Backend, memory: MemoryBackend) -> None:
        super().__init__(inner)
        self._memory = memory

    async def read(self, queries: Sequence[Query]) -> list[list[Row]]:
        derived = [query.space in _DERIVED for query in queries]
        stored = iter(await self.inner.read([query for query, own in zip(queries, derived, strict=True) if not own]))
        rebuilt = iter(await self._memory.read([query for query, own in zip(queries, derived, strict=True) if own]))
        return [next(rebuilt) if own else next(stored) for own in derived]

    async def apply(self, batch: Batch) -> int | None:
        """Apply changes of derived rows. Conditions do not matter: a difference is checked twice."""
        return await self._memory.apply([change for change in batch if change.space in _DERIVED])


async def compare_derived_rows(engine: Engine, line: Line) -> list[Finding]:
    """Return findings where readable rows or the text index differ from the log."""
    backend = engine.context.backend
    readable, words = [await _has_rows(backend, table, line) for table in (HEADS, WORDS)]
    readable = readable or engine.projector.on
    try:
        words = bool(await engine.indexer.state(line.tenant)) or words
    except UNREADABLE:
        words = True
    found: list[Finding] = []
    if readable and (behind := await _lag(engine, line)):
        if behind >= LATE_SECONDS:
            what = f"readable rows have been behind the log for {behind:.0f} seconds"
            found.append(Finding(FindingCode.STALE_ROWS, what, *line, space=BEHIND.name, key=tuple(line)))
        readable = False  # whoever saved writes them soon
    if not readable and not words:
        return found
    memory = await MemoryBackend.open("memory://")
    derived = _DerivedInMemory(engine.context.stored, memory)
    context = replace(engine.context, backend=derived, cache=MemoryCache(_CACHE_BYTES), project=True)
    rebuilt = Engine(context)
    try:
        if readable:
            await rebuilt.projector.build(line)
            wrong = [table.name for table in READABLE if not await _is_same(backend, memory, table, line)]
            if wrong and not await _lag(engine, line):  # or it was saved meanwhile
                what = f"rows of {', '.join(wrong)} differ from the log"
                found.append(Finding(FindingCode.STALE_ROWS, what, *line, space=wrong[0], key=tuple(line)))
        if words:
            await rebuilt.indexer.build_line(line)
            if not await _is_same(backend, memory, WORDS, line):
                what = "the text index lacks what the log has"
                found.append(Finding(FindingCode.STALE_WORDS, what, *line, space=WORDS.name, key=tuple(line)))
    except (*UNREADABLE, ConflictError):
        return found  # the log is damaged, which is reported elsewhere, or keeps changing
    finally:
        await memory.close()
    return found


async def _lag(engine: Engine, line: Line) -> float:
    try:
        return (await engine.projector.lag(*line))[1]
    except UNREADABLE:
        return 0.0


async def _has_rows(backend: Backend, table: Table, line: Line) -> bool:
    try:
        return await anext(scan_rows(backend, table, tuple(line), bodies=False), None) is not None
    except UNREADABLE:
        return True


async def _is_same(backend: Backend, memory: MemoryBackend, table: Table, line: Line) -> bool:
    try:
        stored, rebuilt = scan_rows(backend, table, tuple(line)), scan_rows(memory, table, tuple(line))
        while True:
            one, other = await anext(stored, None), await anext(rebuilt, None)
            if one is None or other is None:
                return one is other
            if not _agrees(table, one, other):
                return False
    except UNREADABLE:
        return False


async def check_fields(engine: Engine, line: Line) -> list[Finding]:
    """Return a finding if the index of fields does not have the metadata of a thread, or has other metadata."""
    try:
        right = await engine.fields.is_right(line)
    except UNREADABLE:
        return []  # the log is damaged, which is reported elsewhere
    return [] if right else [_stale_fields(line, "the index of fields differs from the metadata of the checkpoints")]


async def find_stray_fields(engine: Engine, tenant: str) -> list[Finding]:
    """Return findings for threads that the index of fields names under values that they do not have."""
    try:
        first, again = await engine.fields.strays(tenant), await engine.fields.strays(tenant)
    except UNREADABLE:
        return []
    what = "the index of fields names the thread under a value that it does not have"
    return [_stale_fields(line, what) for line in first if line in again]


def _stale_fields(line: Line, what: str) -> Finding:
    return Finding(FindingCode.STALE_FIELDS, what, *line, space=FIELDS.name, key=tuple(line))


async def check_word_index(engine: Engine, line: Line) -> list[Finding]:
    """Return a finding if the store's own index of words does not find what the rows of the text index have."""
    backend = engine.context.backend
    if not backend.capabilities.words or await _finds_words(backend, line):
        return []
    what = "the store's own index of words does not find what the text index has"
    return [Finding(FindingCode.STALE_WORDS, what, *line, space=WORDS.name, key=tuple(line))]


async def _finds_words(backend: Backend, line: Line) -> bool:
    """Return whether a search finds every row of the text index by each of its words, and by how these start."""
    by_word: dict[str, set[Key]] = {}
    by_start: dict[str, set[Key]] = {}
    try:
        async for row in scan_rows(backend, WORDS, tuple(line)):
            for word in str(row.columns[1]).split():
                by_word.setdefault(word, set()).add(row.key)
                for length in range(1, _LONGEST_START + 1):
                    by_start.setdefault(word[:length], set()).add(row.key)
        for word, keys in by_word.items():
            if not await _matches(backend, line, keys, words=[word]):
                return False
        for start, keys in by_start.items():
            if not await _matches(backend, line, keys, prefixes=[start]):
                return False
    except UNREADABLE:
        return False
    return True


async def _matches(
    backend: Backend, line: Line, keys: Set[Key], *, words: Sequence[str] = (), prefixes: Sequence[str] = ()
) -> bool:
    """Return whether a search in a line finds all of these rows."""
    missing, after = set(keys), None
    while missing:
        page = await backend.match(
            line.tenant, words, prefixes=prefixes, line=line.name, after=after, limit=_MATCHES_AT_ONCE
        )
        missing.difference_update(page.keys)
        if page.next is None:
            return not missing
        after = page.next
    return True


def _agrees(table: Table, row: Row, rebuilt: Row) -> bool:
    """Return whether a stored row agrees with the rebuilt one."""
    if table is WORDS:
        # More words do no harm. While nothing was pruned, steps may have more than they brought; afterwards not.
        words, required = (set(str(each.columns[1]).split()) for each in (row, rebuilt))
        return (row.key, row.columns[0]) == (rebuilt.key, rebuilt.columns[0]) and (MANY in words or required <= words)
    if table is HEADS:  # except its version
        row, rebuilt = (each._replace(columns=(*each.columns[:-1], 0)) for each in (row, rebuilt))
    return same_row(table, row, rebuilt)
