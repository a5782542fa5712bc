"""Copying lines to another store.

Rows are copied as they are: ids, hashes and bodies stay the same. What steps need is written before them, and the row
by which a line is found comes last: a line that is copied for the first time is complete or does not exist. A copy that
was killed resumes with what is missing when it is started again.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence, Set
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any, TypeAlias

from holdfast.backends.interface import Batch, Change, Changes, Create, Delete, Expect, Get, Put, Row, Scan
from holdfast.backends.paging import RowReader, scan_rows
from holdfast.backends.registry import backend_for
from holdfast.backends.tables import (
    BRANCHES,
    BY_CHECKPOINT,
    EVENTS,
    FOLDS,
    LINES,
    NODES,
    OBJECTS,
    REFS,
    STEPS,
    WRITES,
    Key,
    Table,
)
from holdfast.engine.context import Apply, EngineContext
from holdfast.engine.copy.copy_report import CopyProgress, CopyRegistries, CopyReport, OnCopyProgress
from holdfast.engine.copy.line_stream import (
    LINE_TABLES,
    Listing,
    RemovedKey,
    branch_heads,
    digest,
    every_line,
    is_mark,
    listing,
    listings,
    of_steps,
    outline,
    protects,
    stream_changes,
)
from holdfast.engine.copy.row_writer import JointBatch, LineWriter
from holdfast.engine.copy.short_lines import GROUP, read_short_lines, sound_lines
from holdfast.engine.copy_mark import copy_key
from holdfast.engine.engine import Engine
from holdfast.engine.integrity.check import LineRows
from holdfast.engine.integrity.verify import raise_problems, verify
from holdfast.engine.line_walk import LineSet, each_of, pages_of
from holdfast.engine.namespaces import AUDIT, CONTENT_KINDS, line_kind, short_name
from holdfast.engine.optimistic import ConcurrentChange
from holdfast.engine.projection.rows import clear_state
from holdfast.engine.row_format import HOLD, PIN, Line, StepRef, open_writes, write_row
from holdfast.errors import (
    ConflictError,
    CorruptError,
    DeniedError,
    HoldfastError,
    InvalidError,
    QuotaError,
    UnsupportedError,
)

_EXCLUSIVE = (STEPS, FOLDS, BRANCHES, REFS)
"""Tables where another writer may create the same key during the copy, which is not overwritten."""

_PASSES = 10
"""How often to check for changes that were made during the copy."""

_COMPARISONS = 5
"""How often a line is compared in full before it counts as one that keeps changing."""


@dataclass
class CopyRules:
    """Exceptions to copying a store as it is."""

    left_out: set[Line] = field(default_factory=set)
    """Lines that are not copied."""
    replaced_events: set[tuple[Line, str]] = field(default_factory=set)
    """Steps whose events were replaced since, by line and id: an earlier copy may have the old ones."""


Prepare: TypeAlias = Callable[[Engine], Awaitable[CopyRules]]
"""Prepares the target of a copy, and returns the rules for it."""


class StoreCopier:
    """Copies lines from one store to another."""

    def __init__(
        self,
        source: Engine,
        target: Engine,
        progress: OnCopyProgress | None = None,
        apply: Callable[..., Awaitable[Apply | None]] | None = None,
        copy_registries: CopyRegistries | None = None,
        prepare: Prepare | None = None,
    ) -> None:
        """`apply` returns how the batch is applied that makes lines of a tenant visible or current in the target, given
        these before anything of them is written;
        `copy_registries` adds the schemas of what is copied to those that the target has. `prepare` is called with the
        target before anything is copied."""
        self._source = source.context.backend
        self._source_engine = source
        self._copy_registries = copy_registries
        self._source_writes = source.writes
        self._target = target.context.backend
        self._engine = target
        self._progress = progress
        self._apply = apply
        self._prepare = prepare
        self._rules = CopyRules()
        self._only: Sequence[Line] | None = None
        self._together = False
        """Whether lines become visible only when all are copied."""
        self._extended: Set[Line] = frozenset()
        """Lines whose rest becomes visible all at once."""
        self.written = LineSet()
        """Lines that were copied in this run."""
        self._damaged: dict[Line, CorruptError] = {}
        self._left_out: set[Line] = set()
        self._rows = 0
        self._bytes = 0
        self._joint: JointBatch | None = None
        """Collects the batches of several lines, if that is cheaper."""

    async def copy(self, tenant: str | None, only: Sequence[Line] | None = None) -> CopyReport:
        """Copy all lines of a tenant, or of all tenants; or only some lines.

        `ConflictError` at a line that has another history in the target: what comes after it is not copied.
        `UnsupportedError` if the target cannot store a row: for a step, before anything is written. Damaged lines are
        left out; `CorruptError` names them when all others are copied.
        """
        start = time.monotonic()
        if self._source is self._target or (self._source.url == self._target.url and self._target.capabilities.shared):
            raise InvalidError("a store cannot be copied to itself", where=self._source.url)
        self._only = only
        if self._prepare is not None:
            self._rules = await self._prepare(self._engine)
        await self._check_sizes(tenant)
        if self._copy_registries is not None:
            self._left_out.update(await self._copy_registries(self._source_engine, self._engine, tenant, only))
        token = (await self._source.changes()).token
        total, number = await self._count(tenant), 0
        async for page in pages_of(self._lines(tenant), GROUP):
            there = await _existing(self._target, page)
            while page:
                short = await self._copy_short(page, there)
                if not short:
                    await self._copy_changed(page[0])
                for line in short or page[:1]:
                    number += 1
                    self._report("copied", number, max(number, total), line)
                del page[: len(short) or 1]
        skipped = number - len(self.written)
        for _ in range(_PASSES):
            changes = await self._source.changes(token)
            token, changed = changes.token, 0
            async for line in self._changed(tenant, changes):
                changed += await self._copy_changed(line)
            if not changed:
                break
        threads, differing = await self._verify(self._lines(tenant), max(number, total))
        if self._damaged:
            raise _damage(self._damaged, self._source.url)
        names = sorted(line.name for line in differing)
        return CopyReport(
            threads,
            skipped,
            self._rows,
            self._bytes,
            time.monotonic() - start,
            tuple(names),
            any(each.name == AUDIT for each in self._left_out),
        )

    async def _copy_changed(self, line: Line) -> bool:
        """Copy a line that the target lacks or has otherwise. Returns whether it was not the same."""
        try:
            if line in self._damaged or line in self._left_out or await self._is_same(line):
                return False
            await self._copy(line)
        except CorruptError as error:
            self._damaged[line] = error
        except ConflictError:
            # Each store records what is done to it. An audit is copied to a store that has none, or whose audit is an
            # earlier copy of it.
            if line.name != AUDIT:
                raise
            self._left_out.add(line)
        return True

    async def _changed(self, tenant: str | None, changes: Changes) -> AsyncIterator[Line]:
        """Yield the lines of the source that may have changed; those that were deleted are deleted."""
        if not changes.complete:
            async for page in pages_of(every_line(self._target, tenant), GROUP):
                await self._delete_gone([line for line in page if line in self.written])
            async for line in self._lines(tenant):
                yield line
            return
        selected = None if self._only is None else {*self._only}
        named = sorted(
            line
            for line in {Line(*each) for each in changes.lines}
            if line.name
            and (line.tenant == tenant or tenant is None)
            and (selected is None or line in selected)
            and line not in self._rules.left_out
        )
        await self._delete_gone([line for line in named if line in self.written])
        there = await _existing(self._source, named)
        for line in named:
            if line in there:
                yield line

    async def _delete_gone(self, lines: Sequence[Line]) -> None:
        """Delete copies of lines that were deleted during the copy."""
        there = await _existing(self._source, lines)
        for line in lines:
            if line not in there:
                await self._engine.lines.delete(line)

    async def _copy_short(self, lines: Sequence[Line], there: Set[Line]) -> Sequence[Line]:
        """Copy the first of some lines, which follow each other, in one batch: as many as are short and not yet in the
        target. Returns these."""
        lines = list(takewhile(lambda line: line not in there, lines))
        if not lines or not self._target.capabilities.joint_batches or self._engine.context.rows.hides_names:
            return ()
        found = await read_short_lines(self._source_engine.context, lines)
        if not found:
            return ()
        first, *_, last = (*found, *found)
        referred = Scan(REFS, (first.tenant,), (first.name,), (last.name + "\0",), limit=1, bodies=False)
        (refs,) = await self._target.read([referred])
        limit, batch, copied = self._target.capabilities.max_body, list[Change](), dict[Line, LineRows]()
        for line, rows in found.items():
            if line in self._left_out or LINES not in rows or (refs and str(refs[0].key[1]) <= line.name):
                break
            if any(len(row.body) > limit for own in rows.values() for row in own):
                break
            points = [StepRef.of(row) for row in rows.get(STEPS, ())]
            batch += [Expect(REFS, copy_key(line), None), *await self._engine.fields.rows_of(line, points)]
            batch += [Create(table, row) for table, own in rows.items() for row in own]
            copied[line] = rows
        try:
            apply = None if self._apply is None or not copied else await self._apply(*copied)
            if not copied or await (apply or self._engine.context.apply)(batch) is not None:
                return ()
        except (UnsupportedError, QuotaError):
            return ()  # line by line, up to the one that does not fit
        has_derived = self._engine.projector.on or await self._engine.indexer.state(first.tenant)
        for line, rows in copied.items():
            self.written.add(line)
            self._rows += sum(map(len, rows.values()))
            self._bytes += sum(len(row.body) for own in rows.values() for row in own)
            self._engine.context.cache.drop_all(line)
            if has_derived:
                await self._follow(line)
        return list(copied)

    async def copy_together(
        self,
        lines: Sequence[Line],
        commit: Apply | None = None,
        check: Callable[[Line], Awaitable[None]] | None = None,
        extended: Sequence[Line] = (),
    ) -> tuple[int, int]:
        """Copy lines that the target does not have, and the rest of `extended` ones, of which it has a part, all or
        none: they become visible in one batch, which `commit` applies, if given, with other changes. Returns the number
        of rows and of bytes that were written.

        Each line is compared with the source at the end; unless that never changes, and `check` verifies a line in it
        before it is copied.

        A copy that was killed leaves rows that nobody sees, and that the next one uses. `ConflictError` if the target
        has such a line when it ends.
        """
        batches: list[Change] = []
        joint = JointBatch(self._engine.context)
        if self._target.capabilities.joint_batches:
            self._joint = joint

        async def collect(batch: Batch) -> None:
            batches.extend(batch)

        async def apply(*_: Line) -> Apply:
            return collect

        every, self._together = [*lines, *extended], True
        self._only, self._apply, self._extended = every, apply, frozenset(extended)
        try:
            for number, line in enumerate(every, 1):
                if check is not None:
                    await check(line)
                if not await self._copy(line):
                    raise ConflictError("a thread changed while it was copied", where=f"thread {line}")
                self._report("copied", number, len(every), line)
            await joint.flush()
            self._check_batch(batches)
            if (batches or commit) and await (commit or self._engine.context.apply)(batches) is not None:
                raise ConflictError("a thread was created during the copy", where=self._target.url, hint="Try again")
        except (HoldfastError, ConcurrentChange) as error:
            self._joint = None
            for line in lines:
                with suppress(ConcurrentChange):
                    await self._writer(line, []).clear()
            if isinstance(error, HoldfastError):
                raise
            raise ConflictError(
                "a thread was created during the copy", where=self._target.url, hint="Try again"
            ) from None
        finally:
            self._joint = None
        for line in every:
            self._engine.context.cache.drop_all(line)
        if check is not None:
            for line in every:
                await self._follow(line)
            return self._rows, self._bytes
        _, differing = await self._verify(each_of(every), len(every))
        if differing:
            raise ConflictError("a thread changed while it was copied", where=f"thread {differing[0]}")
        return self._rows, self._bytes

    def _check_batch(self, batch: Batch) -> None:
        """Check that the target can apply the last batch."""
        size = sum(len(each.row.body) for each in batch if isinstance(each, Create | Put))
        if size > self._target.capabilities.max_batch:
            raise UnsupportedError(
                f"the additions to existing threads take {size} bytes, more than the store can write at once",
                where=self._target.url,
                hint="Copy or restore fewer threads at a time, or into a store that does not have them",
            )

    def _report(self, phase: str, done: int, total: int, line: Line) -> None:
        if self._progress is not None:
            self._progress(CopyProgress(phase, done, total, line.name, self._rows, self._bytes))

    async def _lines(self, tenant: str | None) -> AsyncIterator[Line]:
        """Yield the lines of the source that are copied."""
        if self._only is None:
            async for line in every_line(self._source, tenant):
                if line not in self._rules.left_out:
                    yield line
        only = [line for line in self._only or () if line not in self._rules.left_out]
        for start in range(0, len(only), GROUP):
            page = only[start : start + GROUP]
            there = await _existing(self._source, page)
            for line in page:
                if line in there:
                    yield line

    async def _count(self, tenant: str | None) -> int:
        """Return about how many lines are copied; the number is only shown."""
        if self._only is not None:
            return len(self._only)
        counts = await self._source.count_rows([Scan(LINES, () if tenant is None else (tenant,))])
        return 0 if counts is None else counts[0]

    async def _check_sizes(self, tenant: str | None) -> None:
        """Check that the target can store every step. Steps are read only where the target has a lower limit, and only
        of lines large enough for such a step."""
        limit = self._target.capabilities.max_body
        if self._source.capabilities.max_body <= limit:
            return
        async for line in self._lines(tenant):
            size = sum(StepRef.of(row).size for heads in await branch_heads(self._source, line) for row in heads)
            if size > limit // 2:
                for table in (STEPS, OBJECTS, NODES):
                    async for row in scan_rows(self._source, table, line):
                        self._check_size(line, table, row)

    def _check_size(self, line: Line, table: Table, row: Row) -> None:
        limit = self._target.capabilities.max_body
        if len(row.body) > limit:
            raise UnsupportedError(
                f"a row of {len(row.body)} bytes is over the limit of {limit}",
                where=f"thread {line}, {table.name} {row.key[2:]}; to be copied to {self._target.url}",
                hint="Copy to a store that allows larger rows, or delete the thread. Nothing of it was copied",
            )

    async def lacks(self, line: Line) -> bool:
        """Return whether the target lacks a step of a line. `ConflictError` if it does, and has another history."""
        if not (both := await self._read_both(line)):
            return True
        found, existing, steps, copied = both
        if found.columns[0] == existing.columns[0] and all(
            key in copied and _is_copy_of(StepRef.of(Row(key, copied[key])), StepRef.of(Row(key, columns)))
            for key, columns in steps.items()
        ):
            return False
        _check_history(line, *both, self._target.url)
        return True

    async def check_history(self, line: Line) -> None:
        """Check that the line in the target is that of the source, or an earlier copy. `ConflictError` if it is not."""
        if not (both := await self._read_both(line)):
            raise ConflictError("it exists in only one of the stores", where=f"thread {line}")
        _check_history(line, *both, self._target.url)

    async def _read_both(self, line: Line) -> tuple[Row, Row, Listing, Listing] | None:
        """Return the rows of a line in both stores, and its steps; None if one of them does not have it."""
        stores, query = (self._source, self._target), [Get(LINES, [tuple(line)])]
        rows = [row for store in stores for found in await store.read(query) for row in found]
        if len(rows) < 2:
            return None
        steps, copied = [await listing(store, STEPS, line) for store in stores]
        return rows[0], rows[1], steps, copied

    # One line -------------------------------------------------------------------------------------------------

    async def _is_same(self, line: Line) -> bool:
        """Return whether both stores have the same line, without reading all of it.

        Steps are never changed without the line's own row, and what they need is stored with them.
        """
        return await outline(self._source, line) == await outline(self._target, line)

    async def _copy(self, line: Line) -> bool:
        """Copy what the target lacks of a line. Returns False if the line was deleted or changed during the copy."""
        (found,) = await self._source.read([Get(LINES, [tuple(line)])])
        existing, marks = await self._target.read([Get(LINES, [tuple(line)]), Get(REFS, [copy_key(line)])])
        if not found:
            return False
        if existing and line in self.written and existing[0].columns[0] != found[0].columns[0]:
            await self._engine.lines.delete(line)  # deleted in the source, and created again
            existing = []
        writer = self._writer(line, existing)
        try:
            await writer.begin(marks[0] if marks else None)
        except ConcurrentChange:
            return False
        # The target is listed first: whatever another copy adds to it afterwards is in the source. Then the steps: what
        # they need exists when they do, and later ones are left for the next pass.
        target = await listings(self._target, LINE_TABLES, line)
        steps = await listing(self._source, STEPS, line)
        if existing:
            (now,) = await self._source.read([Get(LINES, [tuple(line)])])
            if now != found:
                return False  # deleted since: the steps listed are not those of the line that was found
            _check_history(line, found[0], existing[0], steps, target[STEPS], self._target.url)
            _check_protected(line, steps, target, self._target.url)
        apply = None if self._apply is None else await self._apply(line)
        try:
            if existing and (existing != found or steps != target[STEPS]):
                await writer.write(_hide_stale(line, steps, target[STEPS]))
            # Before the steps: a list that is filtered must not miss a line that it can see.
            points = [StepRef.of(Row(key, columns)) for key, columns in steps.items()]
            if fields := await self._engine.fields.rows_of(line, points):
                await writer.write(fields)
            others = await listings(self._source, LINE_TABLES[:-1], line)
            for table in LINE_TABLES:
                source, known = steps if table is STEPS else of_steps(table, others[table], steps), target[table]
                if table is WRITES:
                    source, copied = await self._copy_last_writes(source, steps, known, writer)
                    known = {key: columns for key, columns in known.items() if key not in copied}
                await self._copy_table(table, source, known, writer)
            await writer.flush()
            (now,) = await self._source.read([Get(LINES, [tuple(line)])])
            if now != found:
                return False
            await writer.finish(found[0], apply)
        except ConcurrentChange:
            return False
        except (UnsupportedError, QuotaError):
            if not existing:
                with suppress(ConcurrentChange):  # another copy of it made it visible
                    await writer.clear()
            raise
        finally:
            self._rows += writer.rows
            self._bytes += writer.bytes
            self._engine.context.cache.drop_all(line)
        self.written.add(line)
        if not self._together:
            await self._follow(line)
        return True

    async def _follow(self, line: Line) -> None:
        """Have derived rows of a line that has become visible."""
        await self._engine.projector.follow(line)
        await self._engine.indexer.follow(line)
        await self._engine.fields.refresh(line)

    def _writer(self, line: Line, existing: Sequence[Row]) -> LineWriter:
        columns = existing[0].columns if existing else None
        collects = line in self._extended
        return LineWriter(self._engine.context, line, columns, self._source.url, self._joint, collects=collects)

    async def _copy_last_writes(
        self, source: Listing, steps: Listing, target: Listing, writer: LineWriter
    ) -> tuple[Listing, Set[Key]]:
        """Copy the pending writes after the last step of each branch, as of one moment: a newer step, which is left for
        the next pass, may take them over meanwhile. Returns the writes that are left to copy, and which were copied."""
        line = writer.line
        last = {key[2]: StepRef.of(Row(key, columns)) for key, columns in sorted(steps.items())}
        tips = [tip for tip in last.values() if not tip.pruned]
        *pages, following = await self._source.read(self._source_writes.queries(line, tips))
        taking = {row.key[2]: row for row in following}
        copied = set[Key]()
        for tip, rows in zip(tips, pages, strict=True):
            next_step = taking.get(tip.branch)
            taken = [] if next_step is None else open_writes(next_step, self._engine.context.max_bytes)
            found = {row.key: row for row in (*(write_row(line, tip.id, write) for write in taken), *rows)}
            for row in found.values():
                if is_mark(WRITES, row.key) or target.get(row.key) != row.columns:
                    self._check_size(line, WRITES, row)
                    await writer.put(Put(WRITES, row))
            copied.update(found)
        ids = {tip.id for tip in tips}
        return {key: columns for key, columns in source.items() if key[2] not in ids}, copied

    async def _copy_table(self, table: Table, source: Listing, target: Listing, writer: LineWriter) -> None:
        def replaced(key: Key) -> bool:
            if table is EVENTS:
                return (writer.line, str(key[2])) in self._rules.replaced_events
            return is_mark(table, key)

        async for each in stream_changes(self._source, table, source, target, replaced):
            if not isinstance(each, RemovedKey):
                self._check_size(writer.line, table, each)
                overwrite = each.key in target or table not in _EXCLUSIVE
                await writer.put(Put(table, each) if overwrite else Create(table, each))
            elif not protects(table, each.key):  # a row of a failed copy, or that the line no longer has
                writer.deletions.append(Delete(table, each.key))

    # Verifying ------------------------------------------------------------------------------------------------

    async def _verify(self, lines: AsyncIterator[Line], total: int) -> tuple[int, list[Line]]:
        """Compare both stores row by row, and recompute the hashes. Returns the number of lines, and those that are not
        yet the same."""
        changing, number = list[Line](), 0
        async for page in pages_of(lines, GROUP):
            while page:
                same = await self._same_short(page)
                for line in same or page[:1]:
                    number += 1
                    if not same and (line in self._damaged or line in self._left_out):
                        continue
                    if not same and not (await self._is_identical(line) and await self._is_sound(line)):
                        changing.append(line)
                    elif line not in self.written:
                        await self._follow(line)  # a copy that was killed may not have done it
                    self._report("verified", number, max(number, total), line)
                del page[: len(same) or 1]
        return number, changing

    async def _same_short(self, lines: Sequence[Line]) -> Sequence[Line]:
        """Return the first of some lines, which follow each other: as many as are short, the same in both stores, and
        sound."""
        ours = await read_short_lines(self._source_engine.context, lines)
        copied = await read_short_lines(self._engine.context, list(ours))
        same = dict(takewhile(lambda each: ours[each[0]] == each[1], copied.items()))
        return list(await sound_lines(self._engine.context, same))

    async def _is_sound(self, line: Line) -> bool:
        """Recompute the hashes of a line in the target. `CorruptError` if it is damaged; False if another copy is
        changing it, so that it was read in between."""
        found = await verify(self._engine.context, line)
        if found.findings and await digest(self._source, line) != await digest(self._target, line):
            return False
        raise_problems(line, found, self._target.url)
        return True

    async def _is_identical(self, line: Line) -> bool:
        """Return whether both stores have the same rows. What differs is copied again a few times."""
        last, copied = None, False
        for attempt in range(_COMPARISONS):
            if attempt:
                copied = await self._copy(line)
            source, target = await digest(self._source, line), await digest(self._target, line)
            if source == target:
                return True
            # Others may write to both at the same time: only a difference that did not change, and that copying did not
            # remove, is damage.
            if copied and last == (source, target):
                raise CorruptError(
                    "the copy differs from the original",
                    where=f"thread {line} in {self._target.url}",
                    hint="Delete the thread there, and copy again",
                )
            last = source, target
        return False


async def _existing(backend: RowReader, lines: Sequence[Line]) -> Set[Line]:
    """Return those of some lines that a store has, also damaged ones."""
    found: set[Line] = set()
    for start in range(0, len(lines), GROUP):
        page = lines[start : start + GROUP]
        try:
            (rows,) = await backend.read([Get(LINES, [tuple(line) for line in page])])
            found.update(Line(*map(str, row.key)) for row in rows)
        except CorruptError:
            found.update([line for line in page if len(page) == 1 or line in await _existing(backend, [line])])
    return found


@asynccontextmanager
async def open_target(
    source: Engine, target: Engine | str, options: Mapping[str, Any], tenant: str | None
) -> AsyncIterator[Engine]:
    """Open the store that a URL names, to be copied to; one that is open is left open."""
    if not isinstance(target, str):
        yield target
        return
    kind = backend_for(target)
    if kind.takes_tenant and tenant is not None:
        options = {"tenant": tenant, **options}
    backend = await kind.open(target, **options)
    try:
        context = EngineContext(
            backend, codec=source.context.codec, project=backend.capabilities.projected, rows=source.context.rows
        )
        await context.rows.check_store(context.stored, tenant)
        yield Engine(context)
    finally:
        await backend.close()


def _hide_stale(line: Line, steps: Listing, target: Listing) -> list[Change]:
    """Return the changes that hide what is out of date of a line: its state, and steps that were removed."""
    removed = {columns[0] for columns in target.values()} - {columns[0] for columns in steps.values()}
    return clear_state(line) + [
        Delete(table, (*line, id)) for id in sorted(map(str, removed)) for table in BY_CHECKPOINT
    ]


def _check_history(line: Line, source: Row, target: Row, steps: Listing, target_steps: Listing, url: str) -> None:
    """`ConflictError` if the line in the target is another one, or has steps of its own."""
    kind = line_kind(line.name)
    what: str = kind
    hint = f"Delete the {kind} there, or copy to another store"
    if kind not in CONTENT_KINDS:
        what = f"record of {short_name(line.name)}"
        hint = "The other store has made changes of its own, or erased a person. Copy to a new store, or only threads"
    where = f"{kind} {line._replace(name=short_name(line.name))} in {url}"
    if (source.columns[0], source.body) != (target.columns[0], target.body):
        raise ConflictError(f"a different {what} with this name exists", where=where, hint=hint)
    for key, columns in target_steps.items():
        copy = StepRef.of(Row(key, columns))
        original = StepRef.of(Row(key, steps[key])) if key in steps else None
        if original is None or original.hash != copy.hash:
            raise ConflictError(
                f"the {what} has a checkpoint there that it does not have here: {copy.id or copy.hash.hex()}",
                where=where,
                hint=hint,
            )


def _check_protected(line: Line, steps: Listing, target: Mapping[Table, Listing], url: str) -> None:
    """Check that no pruned step is pinned or held in the target. `DeniedError` if one is."""
    pruned = {columns[0] for key, columns in target[STEPS].items() if columns[0] and not steps.get(key, columns)[0]}
    for key, columns in target[REFS].items() if pruned else ():
        if key[2] == HOLD or (key[2] == PIN and columns[0] in pruned):
            raise DeniedError(
                f"{'a hold' if key[2] == HOLD else 'a pin'} there retains checkpoints that were pruned here",
                where=f"thread {line} in {url}",
                hint="Remove it there first, if you may, or copy to another store",
            )


def _is_copy_of(copy: StepRef, original: StepRef) -> bool:
    """Return whether a step in the target is the one in the source, and not pruned if that is not."""
    return copy.hash == original.hash and (original.pruned or not copy.pruned)


def _damage(damaged: Mapping[Line, CorruptError], url: str) -> CorruptError:
    (line, error), *others = damaged.items()
    more = f"; {len(others)} more: {', '.join(str(each) for each, _ in others[:10])}" if others else ""
    return CorruptError(
        f"a thread is damaged and was not copied: {error.what}{more}",
        where=f"thread {line} in {url}",
        hint="All others were copied. Repair it from a copy or a backup, and copy again",
    )
