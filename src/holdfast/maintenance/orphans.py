"""Orphans: rows that nothing needs.

A process that dies leaves them: after writing the new form of a thread and before removing the old one, in the middle
of a copy, after pending writes and before their checkpoint. Some look like work in progress, and have no time of their
own. So pending writes are removed when the thread has continued without them for a while; rows without a thread are
recorded when they are first seen, and removed if they are still the same later.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Iterable, Sequence

import msgspec

from holdfast._fields import count
from holdfast.backends.interface import Change, Delete, Expect, Get, Put, Row, Scan
from holdfast.backends.paging import scan_rows
from holdfast.backends.tables import (
    BEHIND,
    BRANCHES,
    FIELDS,
    FOLDS,
    LINES,
    NODES,
    OBJECTS,
    READABLE,
    REFS,
    STEPS,
    WORDS,
    WRITES,
    Key,
    Table,
)
from holdfast.engine.copy.line_stream import LINE_TABLES
from holdfast.engine.copy.short_lines import GROUP, read_stored_lines
from holdfast.engine.engine import Engine
from holdfast.engine.fields import FIELD_LINE, removed_rows, value_of
from holdfast.engine.hold_check import require_no_hold
from holdfast.engine.integrity.check import LineRows
from holdfast.engine.leases import Lease
from holdfast.engine.line_walk import count_lines, lines_of_kinds, pages_of
from holdfast.engine.model.large_pointers import is_pointer, parse_pointer
from holdfast.engine.model.large_values import pointers
from holdfast.engine.model.nodes import LeafNode, SegmentNode, Slot, decode_node
from holdfast.engine.optimistic import Attempts, ConcurrentChange
from holdfast.engine.rewrite.row_sizes import SizeBalance, balance
from holdfast.engine.row_format import (
    LEASE,
    OWNER,
    Branch,
    Line,
    LineInfo,
    StepRef,
    info_of,
    is_about_step,
    open_node,
    open_step,
)
from holdfast.engine.types import Progress
from holdfast.errors import ConflictError, CorruptError, DeniedError
from holdfast.maintenance.progress import report_each
from holdfast.time_parser import Duration, parse_nanoseconds

SEEN = "orphan"
"""The kind of the ref that records rows without a thread, and when they were first seen."""

_LINE_TABLES = (*LINE_TABLES, WORDS, FIELDS, BEHIND, *READABLE)
"""The tables with rows of a thread, besides its own row. Quarantined rows are evidence, and stay."""

NO_THREAD, OLD_FORM, NO_STEP, UNUSED = "no thread", "old form", "no checkpoint", "unused value"


class OrphanRows(msgspec.Struct, frozen=True):
    """Orphan rows. `what` says why: no thread, an old form, no checkpoint, or an unused value. With `waits` they stay
    for now, since they may be work in progress."""

    thread: str
    what: str
    rows: int
    bytes: int
    waits: bool = False


class OrphanReport(msgspec.Struct, frozen=True):
    """The result of a sweep. `rows` and `bytes` are the totals that are removed. `problems` has the reasons why threads
    could not be checked."""

    dry_run: bool
    found: list[OrphanRows] = []
    rows: int = 0
    bytes: int = 0
    problems: dict[str, str] = {}

    def add(self, orphan: OrphanRows) -> None:
        """Add some rows."""
        if orphan.rows:
            self.found.append(orphan)
            if not orphan.waits:
                count(self, rows=orphan.rows, bytes=orphan.bytes)


_PAGE = 256
"""How many rows are read at a time to find the names of lines."""


async def sweep(
    engine: Engine,
    tenant: str,
    *,
    grace: Duration = "1d",
    dry_run: bool = False,
    progress: Progress | None = None,
    after: str = "",
) -> OrphanReport:
    """Remove the orphans of a tenant; of lines that exist, only after a name. Possible work in progress is removed when
    it is older than `grace`."""
    return await _Sweep(engine, tenant, parse_nanoseconds(grace, "grace"), dry_run).run(progress, after)


class _Sweep:
    def __init__(self, engine: Engine, tenant: str, grace: int, dry_run: bool) -> None:
        self._engine = engine
        self._backend = engine.context.backend
        self._tenant = tenant
        self._grace = grace
        self._dry_run = dry_run
        self._now = engine.context.clock()
        self._report = OrphanReport(dry_run)

    async def run(self, progress: Progress | None, after: str) -> OrphanReport:
        strays = await self._strays()
        total = None if progress is None else await count_lines(self._backend, self._tenant, after=after)
        done = 0
        async for page in pages_of(lines_of_kinds(self._backend, self._tenant, after=after), GROUP):
            while page:
                clean = await self._clean(page)
                if not clean:
                    await self._check(page[0], is_stray=False)
                for line in page[: max(clean, 1)]:
                    done += 1
                    if progress is not None:
                        progress(done, None if total is None else max(done, total), line.name)
                del page[: max(clean, 1)]
        for line in report_each(sorted(strays), progress, lambda each: each.name):
            await self._check(line, is_stray=True)
        if self._report.rows and not self._dry_run:
            await self._backend.tidy()
        return self._report

    async def _clean(self, lines: Sequence[Line]) -> int:
        """Return how many of the first lines are short and have no orphans: their rows are read together."""
        clean = 0
        for line, rows in (await read_stored_lines(self._engine.context, lines, (WORDS,))).items():
            if not self._is_clean(line, rows):
                break
            clean += 1
        return clean

    def _is_clean(self, line: Line, stored: LineRows) -> bool:
        """Return whether a short line, which has neither nodes nor large values, has no orphans."""
        decode, rows = self._engine.context.rows.decode, dict(stored)
        try:
            rows |= {table: [decode(table, row) for row in rows.get(table, ())] for table in (LINES, BRANCHES, REFS)}
        except CorruptError:
            return False
        return not rows[LINES] or not self._without_step(line, info_of(rows[LINES][0]), rows)

    async def _check(self, line: Line, *, is_stray: bool) -> None:
        attempts = Attempts("checking a thread", line, self._engine.context.metrics)
        while True:
            try:
                await attempts.begin()
                return await (self._stray(line) if is_stray else self._line(line))
            except ConcurrentChange:
                continue
            except (ConflictError, CorruptError) as error:
                self._report.problems[line.name] = str(error)
                return None

    # Rows without a thread ------------------------------------------------------------------------------------

    async def _strays(self) -> set[Line]:
        """Return the lines that have rows, and no row of their own."""
        strays: set[Line] = set()
        for table in _LINE_TABLES:
            async for names in self._names(table):
                # Settings, jobs and the index of fields belong to no line.
                page = [(self._tenant, name) for name in names - {"", FIELD_LINE}]
                (rows,) = await self._engine.context.stored.read([Get(LINES, page)])  # one that is damaged is no stray
                strays.update(Line(*key) for key in set(page) - {row.key for row in rows})
        return strays

    async def _names(self, table: Table) -> AsyncIterator[set[str]]:
        """Yield the names of the lines that have rows in a table, a page at a time, without all rows of long lines."""
        start: Key = ()
        while True:
            (rows,) = await self._backend.read([Scan(table, (self._tenant,), start=start, limit=_PAGE, bodies=False)])
            if not rows:
                return
            yield {str(row.key[1]) for row in rows}
            start = (str(rows[-1].key[1]) + "\0",)

    async def _stray(self, line: Line) -> None:
        (refs,) = await self._backend.read([Scan(REFS, tuple(line))])
        if any(self._is_valid_lease(row) for row in refs):
            return  # a copy is under way
        if any(row.key[2] == OWNER for row in refs) and len(await self._engine.lines.family(line)) > 1:
            return  # the thread has only namespaces, and this is who owns them
        (fields,) = await self._backend.read([Scan(FIELDS, tuple(line))])
        deletions: list[Change] = [Delete(table, tuple(line)) for table in _LINE_TABLES if table is not FIELDS]
        deletions += removed_rows(line, map(value_of, fields))
        digest, marks = await self._digest(line), [row for row in refs if row.key[2] == SEEN]
        freed = await balance(self._engine.context, deletions)
        # The record itself is not an orphan.
        freed = SizeBalance(
            freed.rows - len(marks), freed.bytes - (await balance(self._engine.context, _deletes(marks))).bytes
        )
        seen = next((int(row.columns[1]) for row in marks if row.key[3] == digest), self._now)
        waits = self._now - seen < self._grace
        absent = Expect(LINES, tuple(line), None)
        if not self._dry_run:
            if waits and not any(row.key[3] == digest for row in marks):
                record = Row((*line, SEEN, digest, ""), ("", self._now))
                await self._apply([absent, *_deletes(marks), Put(REFS, record)])
            elif not waits:
                await self._apply([absent, *(Expect(REFS, row.key, row.columns) for row in marks), *deletions])
        self._report.add(OrphanRows(line.name, NO_THREAD, freed.rows, freed.bytes, waits))

    async def _digest(self, line: Line) -> str:
        """Return a digest of the rows of a line."""
        digest = hashlib.sha256()
        for table in _LINE_TABLES:
            async for row in scan_rows(self._backend, table, tuple(line), bodies=False):
                if table is not REFS or row.key[2] != SEEN:
                    digest.update(repr((table.name, row.key, row.columns)).encode(errors="surrogatepass"))
        return digest.hexdigest()[:32]

    def _is_valid_lease(self, ref: Row) -> bool:
        """Return whether a ref is a lease that may still be valid."""
        return ref.key[2] == LEASE and self._now - int(ref.columns[1]) < max(self._grace, 60 * 10**9)

    # Rows of threads ------------------------------------------------------------------------------------------

    async def _line(self, line: Line) -> None:
        lines, branches, refs = await self._backend.read(
            [Get(LINES, [tuple(line)]), Scan(BRANCHES, tuple(line)), Scan(REFS, tuple(line))]
        )
        if not lines:
            return  # it was deleted
        try:
            await require_no_hold(self._backend, [line])
        except DeniedError:
            return  # nothing of it is removed
        info = info_of(lines[0])
        rows: LineRows = {REFS: refs} | {
            table: [row async for row in scan_rows(self._backend, table, tuple(line), bodies=False)]
            for table in (STEPS, WRITES, FOLDS, WORDS)
        }
        deletions = {
            NO_STEP: self._without_step(line, info, rows),
            UNUSED: await self._unused(line, info),
        }
        await self._remove(line, self._unchanged(line, info, map(Branch.of, branches), rows[STEPS]), deletions)
        await self._forms(line, info, refs)

    def _without_step(self, line: Line, info: LineInfo, rows: LineRows) -> list[Change]:
        """Return deletions of tags, labels, pins, pending writes, folds and words of checkpoints that do not exist."""
        points, refs = [StepRef.of(row) for row in rows.get(STEPS, ())], rows.get(REFS, ())
        ids = {point.id for point in points if not point.pruned}
        positions = {point[:2] for point in points if not point.pruned}
        deletions = _deletes(row for row in refs if is_about_step(row) and row.columns[0] not in ids)
        deletions += _deletes(row for row in refs if row.key[2] == SEEN)
        old = max((point.id for point in points if self._now - point.time >= self._grace), default="")
        idle = self._now - max((point.time for point in points), default=info.created) >= self._grace
        steps = [str(row.key[2]) for row in rows.get(WRITES, ())]
        # Writes may come before their checkpoint, but not long before it.
        late = [id for id in dict.fromkeys(steps) if id not in ids and (id < old or idle)]
        deletions += (Delete(WRITES, (*line, id)) for id in late)
        for table in (FOLDS, WORDS):
            deletions += (Delete(table, row.key) for row in rows.get(table, ()) if row.key[2:] not in positions)
        return deletions

    async def _unused(self, line: Line, info: LineInfo) -> list[Change]:
        """Return deletions of large values that no checkpoint and no node points to."""
        digests = {row.key[2] async for row in scan_rows(self._backend, OBJECTS, tuple(line), bodies=False)}
        if digests:
            async for row in scan_rows(self._backend, STEPS, tuple(line)):
                if row.body:
                    edit = open_step(line, row, self._engine.context.max_bytes).edit
                    digests.difference_update(parse_pointer(pointer).digest for pointer in pointers(edit))
            async for row in scan_rows(self._backend, NODES, (*line, info.form)):
                node = decode_node(*open_node(row))
                digests.difference_update(parse_pointer(value).digest for value in _values(node) if is_pointer(value))
        return [Delete(OBJECTS, (*line, digest)) for digest in sorted(digests, key=repr)]

    def _unchanged(self, line: Line, info: LineInfo, branches: Iterable[Branch], steps: Sequence[Row]) -> list[Change]:
        """Return the conditions that a line was not rewritten, and nothing was appended."""
        numbers = [0, *(branch.branch for branch in branches)]
        lengths = dict.fromkeys(numbers, 0) | {int(row.key[2]): int(row.key[3]) + 1 for row in steps}
        return [
            self._engine.lines.line_unchanged(line, info),
            Expect(BRANCHES, (*line, numbers[-1] + 1), None),
            *(Expect(STEPS, (*line, number, length), None) for number, length in lengths.items()),
        ]

    async def _remove(self, line: Line, conditions: Sequence[Change], deletions: dict[str, list[Change]]) -> None:
        found = {what: await balance(self._engine.context, changes) for what, changes in deletions.items()}
        changes = [change for each in deletions.values() for change in each]
        if changes and not self._dry_run:
            await self._apply([*conditions, *changes])
        for what, freed in found.items():
            self._report.add(OrphanRows(line.name, what, *freed))

    async def _forms(self, line: Line, info: LineInfo, refs: Sequence[Row]) -> None:
        """Remove nodes of old forms, unless a rewrite of the line is in progress."""
        forms: list[int] = []
        start: Key = ()
        while True:
            (rows,) = await self._backend.read([Scan(NODES, tuple(line), start=start, limit=1, bodies=False)])
            if not rows:
                break
            forms.append(int(rows[0].key[2]))
            start = (forms[-1] + 1,)
        deletions: list[Change] = [Delete(NODES, (*line, form)) for form in forms if form != info.form]
        if not deletions:
            return
        if self._dry_run:
            if not any(self._is_valid_lease(row) for row in refs):
                await self._remove(line, (), {OLD_FORM: deletions})
            return
        lease = Lease(self._engine.context, line, "rewrite")
        try:
            await lease.acquire()
        except ConflictError:
            return  # that rewrite removes them
        try:
            conditions = [lease.condition(), self._engine.lines.line_unchanged(line, info)]
            await self._remove(line, conditions, {OLD_FORM: deletions})
        finally:
            await lease.release()

    async def _apply(self, changes: Sequence[Change]) -> None:
        if await self._backend.apply(changes) is not None:
            raise ConcurrentChange


def _deletes(rows: Iterable[Row]) -> list[Change]:
    return [Delete(REFS, row.key) for row in rows]


def _values(node: object) -> Iterable[bytes]:
    """Return the values in a node."""
    slots: Iterable[Slot] = ()
    if isinstance(node, SegmentNode):
        slots = node.values
    elif isinstance(node, LeafNode):
        slots = (entry.slot for entry in node.entries)
    return (slot for slot in slots if isinstance(slot, bytes))
