"""Pruning threads by a policy: one pass over many threads, each of which is rewritten independently.

Start here: `prune` runs a pass, `Retention.decide` (`retention.py`) decides which checkpoints of a thread stay, and
`Rewriter.prune` (`engine/rewrite`) removes the others. Writers continue during a pass. A pass that is interrupted
leaves each thread unpruned or pruned, and can be continued after the last one. A dry run computes its report with the
same code.

Threads are looked at in the order of their names, a page at a time. Most have nothing to remove: with a rule of age,
the index of times says which have checkpoints that are old enough, if they are few; else the columns of their steps
say so, which are read for many threads together. States are read only where a query decides (`keep_where`), and of
threads that lose checkpoints.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TypeAlias

import msgspec

from holdfast._fields import count, fill
from holdfast.backends.interface import Row, Scan
from holdfast.backends.paging import scan_rows
from holdfast.backends.tables import REFS, STEPS, TIME
from holdfast.engine.branch_graph import Position
from holdfast.engine.engine import Engine
from holdfast.engine.line_head import head_of
from holdfast.engine.line_walk import LineRowReader, LineRows, count_lines, lines_of_kinds, read_line_rows
from holdfast.engine.lines import LABEL, MAIN, TAG
from holdfast.engine.namespaces import (
    ACCESS,
    AUDIT,
    LineKind,
    LineKinds,
    line_kind,
    root_of,
    select_lines,
    short_name,
)
from holdfast.engine.rewrite.recordings import remove_recordings
from holdfast.engine.rewrite.rewriter import Choose, RewritePlan, RewriteResult
from holdfast.engine.rewrite.row_sizes import SizeBalance
from holdfast.engine.row_format import PIN, Branch, Line, StepRef, check_name
from holdfast.engine.types import Progress, to_datetime
from holdfast.errors import ConflictError, CorruptError, DeniedError, InvalidError, NotFoundError
from holdfast.history.query import Query, parse
from holdfast.history.search import SearchRun
from holdfast.maintenance.retention import Retention, RetentionCandidate, RetentionVerdict
from holdfast.security.audit.thread_audit import record, recorded

_EXCLUDED = (ACCESS, AUDIT)
"""Lines that no policy applies to: the grants and the audit."""

_PAGE = 100
"""How many threads that match a query are listed at a time."""


class PruneDecision(msgspec.Struct, frozen=True):
    """Whether a checkpoint is kept, and why."""

    id: str
    time: datetime
    kept: bool
    reasons: tuple[str, ...]


class ThreadPruneReport(msgspec.Struct, frozen=True):
    """The result for a thread: the number of checkpoints that are kept and dropped, and the rows and bytes that are
    freed, less those that are written. `checkpoints` has the decisions, the latest first.

    With a `problem`, the thread is unchanged; `code` is that of the error.
    """

    thread: str
    kept: int = 0
    dropped: int = 0
    rows: int = 0
    bytes: int = 0
    checkpoints: tuple[PruneDecision, ...] = ()
    problem: str = ""
    code: str = ""

    @property
    def loses(self) -> bool:
        """Whether something of the thread goes."""
        return bool(self.dropped or self.rows or self.bytes)


Each: TypeAlias = Callable[[ThreadPruneReport], None]
"""Called with the report of each thread that a report lists."""

OnPassed: TypeAlias = Callable[[str], None]
"""Called with a name after which the pass can be continued, as soon as it has passed that."""

_MAX_OLD = 100_000
"""How many old steps the index of times is asked for. Where there are more, all threads are looked at."""


class PruneReport(msgspec.Struct, frozen=True):
    """The result of a pass.

    `threads` are those that lose something, those with a problem, and those that were named; `kept` and `dropped` count
    their checkpoints, and `changed` is how many lose something. `rows` and `bytes` are the totals that are freed; how
    much files or tables shrink depends on the store. With a size limit, `left` is the size of all threads afterwards,
    and `over` the bytes that they are over the limit because the rest has to stay; without one, `left` is None. `next`
    is where to continue, as `after`, if not all were looked at.
    """

    dry_run: bool
    threads: list[ThreadPruneReport] = []
    changed: int = 0
    kept: int = 0
    dropped: int = 0
    rows: int = 0
    bytes: int = 0
    left: int | None = None
    over: int = 0
    next: str | None = None

    @property
    def problems(self) -> list[ThreadPruneReport]:
        """The threads that could not be pruned."""
        return [each for each in self.threads if each.problem]

    def add(self, thread: ThreadPruneReport, *, listed: bool = True) -> None:
        """Add the report of a thread to the totals; and to the list."""
        if listed:
            self.threads.append(thread)
        count(
            self,
            changed=int(thread.loses),
            kept=thread.kept,
            dropped=thread.dropped,
            rows=thread.rows,
            bytes=thread.bytes,
        )


@dataclass(frozen=True)
class ThreadSelection:
    """A selection of threads, or of lines of other kinds: some by name, or those that start with a prefix, or match a
    query; by default all.

    The namespaces of a thread are selected with it.
    """

    names: Sequence[str] | None = None
    prefix: str = ""
    where: str | None = None
    kinds: frozenset[LineKind] = frozenset({"thread"})
    erase: bool = False
    """Whether also to remove what could prove, to one who knows it, what the removed steps contained."""

    @classmethod
    def of(
        cls,
        threads: str | Iterable[str] | None,
        prefix: str = "",
        where: str | None = None,
        kinds: LineKinds | None = None,
        *,
        erase: bool = False,
    ) -> ThreadSelection:
        """Build the selection from the arguments of a caller."""
        several = [threads] if isinstance(threads, str) else threads
        names, of_kinds = select_lines(several, kinds, {"thread"})
        if names is not None and (prefix or where is not None):
            raise InvalidError("threads are selected by name, or by a prefix or a query", hint="Leave out one of them")
        return cls(names, check_name(prefix, "start of a name"), where, of_kinds, erase)

    @property
    def single(self) -> bool:
        """Whether a single thread is selected by its name."""
        return self.names is not None and len(self.names) == 1


async def prune(
    engine: Engine,
    tenant: str,
    policy: Retention,
    selection: ThreadSelection = ThreadSelection(),  # noqa: B008 - immutable
    *,
    dry_run: bool = False,
    progress: Progress | None = None,
    each: Each | None = None,
    after: str = "",
    limit: int | None = None,
    passed: OnPassed | None = None,
) -> PruneReport:
    """Prune threads by a policy: those after a name, and of these only as many as a limit says. A thread that another
    process is rewriting, or that is held, is skipped and reported.

    With `each`, the report of every thread is passed to it, and the report of the pass lists only those with a problem.
    """
    engine.context.rows.check_prefix(selection.prefix)
    if (after or limit is not None) and (selection.names is not None or policy.is_sized):
        raise InvalidError(
            "a pass over threads that are named, or with a limit of their size, is not done in parts",
            hint="Leave out after and limit",
        )
    if limit is not None and limit < 1:
        raise InvalidError(f"limit must be at least 1, not {limit}")
    return await _Pass(engine, tenant, policy, selection, dry_run=dry_run).run(progress, each, after, limit, passed)


class _Pass:
    def __init__(
        self, engine: Engine, tenant: str, policy: Retention, selection: ThreadSelection, *, dry_run: bool
    ) -> None:
        self._engine = engine
        self._backend = engine.context.backend
        self._tenant = tenant
        self._policy = policy
        self._selection = selection
        self._dry_run = dry_run
        self._sized = policy.is_sized
        self._cutoffs: dict[Line, int] = {}
        """For each line, the time before which checkpoints are dropped so that its thread fits its size limit."""
        self._judged: tuple[object, list[RetentionVerdict]] = None, []
        """The last verdicts of the policy, and what they are of: of a thread that loses checkpoints they are asked for
        again where it is rewritten."""
        self._now = engine.context.clock()
        moment = to_datetime(self._now)
        self._keep_where = None if policy.keep_where is None else parse(policy.keep_where, moment)
        self._where = None if selection.where is None else parse(selection.where, moment)

    async def run(
        self, progress: Progress | None, each: Each | None, after: str, limit: int | None, passed: OnPassed | None
    ) -> PruneReport:
        report = PruneReport(self._dry_run)
        if self._sized:
            await self._prune_sized(report, progress, each)
        else:
            old = await self._old_lines(after)
            total = None if progress is None or limit is not None else await self._count(old, after)
            walks = old is None and self._where is None and self._selection.names is None
            reader = LineRowReader(self._engine.context, self._tenant) if walks else None
            done, last = 0, after
            async for at, lines in self._selected(old, after):
                if limit is not None and done >= limit:
                    fill(report, next=last)
                    break
                for number, line in enumerate(lines, 1):
                    pruned = await self._prune_unless_kept(line, reader)
                    if pruned is not None:
                        self._add(report, pruned, each)
                    done += 1
                    if number == len(lines):
                        last = at
                        if passed is not None:
                            passed(at)
                    if progress is not None:
                        progress(done, None if total is None else max(done, total), line.name)
        if (report.dropped or report.bytes > 0) and not self._dry_run:
            await self._backend.tidy()
        return report

    def _add(self, report: PruneReport, pruned: ThreadPruneReport, each: Each | None) -> None:
        if not (pruned.loses or pruned.problem or self._selection.names is not None):
            return
        if each is not None:
            each(pruned)
            pruned = msgspec.structs.replace(pruned, checkpoints=())
        report.add(pruned, listed=each is None or bool(pruned.problem))

    # Which threads --------------------------------------------------------------------------------------------

    async def _selected(self, old: Sequence[Line] | None, after: str) -> AsyncIterator[tuple[str, list[Line]]]:
        """Yield the selected lines after a name, with the name after which a pass that ends with them continues."""
        if old is not None:
            for line in old:
                if await self._is_chosen(line):
                    yield line.name, [line]
        elif self._selection.names is None and self._where is None:
            async for line in self._all_lines(after):
                yield line.name, [line]
        else:
            async for at, lines in self._families(after):
                yield at, lines

    async def _all_lines(self, after: str = "") -> AsyncIterator[Line]:
        """Yield the lines with the prefix."""
        selection = self._selection
        async for line in lines_of_kinds(self._backend, self._tenant, selection.kinds, selection.prefix, after):
            if line.name not in _EXCLUDED:
                yield line

    async def _families(self, after: str = "") -> AsyncIterator[tuple[str, list[Line]]]:
        """Yield the selected threads, each with its namespaces, after the name by which it was found."""
        if self._selection.names is None:
            async for line in self._matching_lines(after):
                if root_of(line) == line:
                    yield line.name, await self._engine.lines.family(line)
                elif not await self._is_selected(root_of(line)):
                    yield line.name, [line]  # it is selected without its root
            return
        for name in dict.fromkeys(self._selection.names):
            line = Line(self._tenant, name)
            if name in _EXCLUDED:
                raise InvalidError("the audit and the grants are not pruned", where=f"line {line}")
            await self._engine.lines.info(line)  # raises if there is none
            yield name, await self._engine.lines.family(line)

    async def _each_line(self) -> AsyncIterator[Line]:
        """Yield the selected lines."""
        async for _, lines in self._families():
            for line in lines:
                yield line

    async def _matching_lines(self, after: str) -> AsyncIterator[Line]:
        """Yield the lines that match the prefix and the query."""
        where = self._where
        if where is not None and self._selection.kinds == {"thread"}:
            while True:  # with the index of fields, if that knows what the query asks for
                run = SearchRun(self._engine, self._tenant, where)
                page, _ = await run.threads(self._selection.prefix, after, _PAGE)
                for summary in page:
                    yield summary.line
                if len(page) < _PAGE:
                    return
                after = page[-1].line.name
        async for line in self._all_lines(after):
            if where is None or await self._matches(line, where):
                yield line

    async def _is_chosen(self, line: Line) -> bool:
        """Return whether a line with the prefix is selected: by itself, or with its thread."""
        if self._where is None or await self._matches(line, self._where):
            return True
        return root_of(line) != line and await self._is_selected(root_of(line))

    async def _is_selected(self, root: Line) -> bool:
        """Return whether a thread is selected, and its namespaces with it."""
        if (
            not short_name(root.name).startswith(self._selection.prefix)
            or await self._engine.lines.load_tip(root) is None
        ):
            return False
        return self._where is None or await self._matches(root, self._where)

    async def _matches(self, line: Line, where: Query) -> bool:
        try:
            summary = await self._engine.lines.summary(line)
            return await SearchRun(self._engine, self._tenant, where).matches_thread(summary)
        except NotFoundError:
            return False  # it was deleted

    async def _count(self, old: Sequence[Line] | None, after: str = "") -> int | None:
        """Return how many lines are selected; None if each has to be asked."""
        selection = self._selection
        if self._where is not None:
            return None
        if old is not None:
            return len(old)
        if selection.names is not None:
            return sum([len(lines) async for _, lines in self._families()])
        return await count_lines(
            self._backend, self._tenant, selection.kinds - {"access", "audit"}, prefix=selection.prefix, after=after
        )

    async def _old_lines(self, after: str) -> list[Line] | None:
        """Return the lines after a name that have steps which the rule of age does not keep, by the index of times;
        None if it cannot tell, or if they are too many."""
        age, selection = self._policy.age, self._selection
        if age is None or selection.names is not None or not self._has_cheap_rules or not self._has_times:
            return None
        names: set[str] = set()
        count, bounds = 0, (self._now - age,)
        async for row in scan_rows(self._backend, STEPS, (self._tenant,), (), bounds, bodies=False, by=TIME):
            count += 1
            if count > _MAX_OLD:
                return None
            if not StepRef.of(row).pruned:
                names.add(str(row.key[1]))
        return [
            Line(self._tenant, name)
            for name in sorted(names)
            if name > after
            and name not in _EXCLUDED
            and line_kind(name) in selection.kinds
            and short_name(name).startswith(selection.prefix)
        ]

    @property
    def _has_times(self) -> bool:
        return self._backend.capabilities.times

    @property
    def _has_cheap_rules(self) -> bool:
        """Whether a thread of which every checkpoint is kept loses nothing else."""
        return not (self._sized or self._policy.drops_recordings or self._selection.erase)

    # One thread -----------------------------------------------------------------------------------------------

    async def _prune_unless_kept(self, line: Line, reader: LineRowReader | None) -> ThreadPruneReport | None:
        """Prune a line; None if the columns of its steps, read with those of other lines, say that all of it stays."""
        rows = None
        if reader is not None:
            try:
                rows = await reader.read(line)
            except CorruptError:
                rows = None  # what reads it again reports it
        if rows is not None and self._has_cheap_rules and self._policy.keeps_all(rows.points, self._now):
            return None
        return (await self._prune(line, 0, rows))[0]

    async def _prune(self, line: Line, cutoff: int, rows: LineRows | None = None) -> tuple[ThreadPruneReport, int]:
        """Prune a line, of which the rows were read before or not. Returns the report, and the size of the line
        afterwards if there is a size limit."""
        verdicts: list[RetentionVerdict] = []

        def detail() -> dict[str, int]:
            return {"dropped": sum(not each.kept for each in verdicts), "erase": self._selection.erase}

        try:
            # Most threads have nothing to prune: that is found out without a lease.
            found, clean = await self._verdicts(line, cutoff, rows)
            if clean:
                outcome, verdicts = RewriteResult(SizeBalance(), await self._current_size(line)), found
            else:
                del found  # there are many in a long thread
                choose = self._choose(line, cutoff, verdicts)
                rewriter = self._engine.rewriter
                if self._dry_run:
                    outcome = await rewriter.dry_run(line, choose)
                else:
                    outcome = await rewriter.prune(line, choose, recorded(self._engine, line, "prune", detail))
            if self._policy.drops_recordings:
                freed = await self._remove_recordings(line)
                outcome = outcome._replace(freed=outcome.freed.plus(freed), size=max(0, outcome.size - freed.bytes))
        except NotFoundError:
            if self._selection.single:
                raise
            return ThreadPruneReport(line.name), 0  # it was deleted
        except (ConflictError, DeniedError, CorruptError) as error:
            if self._selection.single:
                raise
            return ThreadPruneReport(line.name, problem=str(error), code=error.code), await self._current_size(line)
        checkpoints = tuple(
            PruneDecision(each.id, to_datetime(each.time), each.kept, each.reasons) for each in verdicts
        )
        kept = sum(each.kept for each in checkpoints)
        freed = outcome.freed
        pruned = ThreadPruneReport(line.name, kept, len(checkpoints) - kept, freed.rows, freed.bytes, checkpoints)
        return pruned, outcome.size

    async def _remove_recordings(self, line: Line) -> SizeBalance:
        """Remove old recordings of a line whose checkpoints stay."""

        def select(points: Sequence[StepRef]) -> list[StepRef]:
            gone = self._policy.drop_recordings([(point.time, point.id) for point in points], self._now)
            return [point for point in points if point.id in gone]

        engine = self._engine
        count, freed = await remove_recordings(engine.context, engine.lines, line, select, dry_run=self._dry_run)
        if count and not self._dry_run:
            await record(engine, [line], "prune", {"recordings": count})
        return freed

    async def _current_size(self, line: Line) -> int:
        """Return the size of a line in bytes, if there is a size limit."""
        if not self._sized:
            return 0
        try:
            return (await self._engine.lines.summary(line)).size
        except NotFoundError:
            return 0  # it was deleted

    def _choose(self, line: Line, cutoff: int, verdicts: list[RetentionVerdict]) -> Choose:
        """Return a function that chooses the steps to drop, and stores the last verdicts in `verdicts`."""

        async def choose(points: Sequence[StepRef], branches: Sequence[Branch]) -> RewritePlan:
            (refs,) = await self._backend.read([Scan(REFS, tuple(line))])
            verdicts[:] = await self._judge(line, points, branches, refs, cutoff)
            kept = {each.id for each in verdicts if each.kept}
            last = _last_revisions(points)
            positions = {point[:2] for point in points if not point.pruned}
            dropped = frozenset(positions - {last[id][:2] for id in kept})
            return RewritePlan(dropped, erase=self._selection.erase)

        return choose

    async def _verdicts(
        self, line: Line, cutoff: int, rows: LineRows | None = None
    ) -> tuple[list[RetentionVerdict], bool]:
        """Return the current verdicts of the policy, and whether nothing is to be dropped."""
        points, branches, refs = rows or await read_line_rows(self._backend, line)
        verdicts = await self._judge(line, points, branches, refs, cutoff)
        count = sum(not point.pruned for point in points)
        salted = self._selection.erase and any(point.proof and point.proof.salt for point in points)
        is_young = self._has_cheap_rules and self._policy.keeps_all(points, self._now)
        return verdicts, is_young or (not salted and all(each.kept for each in verdicts) and len(verdicts) == count)

    async def _judge(
        self, line: Line, points: Sequence[StepRef], branches: Sequence[Branch], refs: Sequence[Row], cutoff: int
    ) -> list[RetentionVerdict]:
        """Return the verdict of the policy on each checkpoint, the latest first."""
        judged = line, _digest(points), branches, refs, cutoff
        if self._judged[0] != judged:
            self._judged = judged, await self._judge_anew(line, points, branches, refs, cutoff)
        return self._judged[1]

    async def _judge_anew(
        self, line: Line, points: Sequence[StepRef], branches: Sequence[Branch], refs: Sequence[Row], cutoff: int
    ) -> list[RetentionVerdict]:
        names: dict[tuple[str, str], list[str]] = {}
        for row in refs:
            names.setdefault((str(row.key[2]), str(row.columns[0])), []).append(str(row.key[3]))
        matching: set[str] = set()
        if self._keep_where is not None:
            matching = await self._matching(line, self._keep_where)
        heads = _heads(points, branches)
        last, head = _last_revisions(points), head_of(points)
        candidates = (
            RetentionCandidate(
                point.time,
                point.id,
                tuple(names.get((TAG, point.id), ())),
                tuple(names.get((LABEL, point.id), ())),
                tuple(names.get((PIN, point.id), ())),
                tuple(heads.get(point[:2], ())),
                point.id in matching,
                point == head,
            )
            for point in sorted(last.values(), key=lambda point: point.id, reverse=True)
        )
        return [verdict.before(cutoff) for verdict in self._policy.decide(candidates, self._now)]

    async def _matching(self, line: Line, where: Query) -> set[str]:
        """Return the ids of the checkpoints of a thread that match a query."""
        search, found, before = SearchRun(self._engine, self._tenant, where), set[str](), ""
        while True:
            subjects, before = await search.match_page(line, before)
            found.update(subject.point.id for subject in subjects if subject.point is not None)
            if search.unreadable:
                raise CorruptError(
                    "a checkpoint cannot be read, so it is unknown whether the query keeps it",
                    where=f"thread {line}",
                    hint="Verify the thread, and repair it from a copy or a backup",
                )
            if not before:
                return found

    # Size limits ----------------------------------------------------------------------------------------------

    async def _prune_sized(self, report: PruneReport, progress: Progress | None, each: Each | None) -> None:
        """Prune all selected threads so that they fit."""
        total_limit, thread_limit = self._policy.max_bytes, self._policy.max_thread_bytes
        total = None if progress is None else await self._count(None)
        if thread_limit is not None:
            async for _, lines in self._families():
                own = await self._fit(lambda lines=lines: _each(lines), thread_limit)  # type: ignore[misc]
                if own:
                    self._cutoffs.update(dict.fromkeys(lines, own))
        # What is dropped for the limit of a thread counts for the total, too.
        cutoff = 0 if total_limit is None else await self._fit(self._each_line, total_limit)
        done = left = 0
        async for _, lines in self._families():
            before = left
            for line in lines:
                pruned, size = await self._prune(line, max(cutoff, self._cutoffs.get(line, 0)))
                left += size
                self._add(report, pruned, each)
                done += 1
                if progress is not None:
                    progress(done, None if total is None else max(done, total), line.name)
            if thread_limit is not None:
                count(report, over=max(0, left - before - thread_limit))
        fill(report, left=left)
        if total_limit is not None:
            fill(report, over=max(report.over, left - total_limit))

    async def _fit(self, lines: Callable[[], AsyncIterator[Line]], limit: int) -> int:
        """Return the time before which checkpoints have to be dropped so that lines take at most `limit` bytes."""
        times = array("q")
        async for line in lines():
            try:
                verdicts, _ = await self._verdicts(line, 0)
            except (CorruptError, NotFoundError):
                continue  # nothing of it will be dropped
            times.extend(each.time for each in verdicts if each.kept and not each.stays)
        cutoffs = [0, *(time + 1 for time in sorted(set(times)))]

        async def fits(at: int) -> bool:
            return sum([await self._size(line, cutoffs[at]) async for line in lines()]) <= limit

        # Often they fit as they are. And dropping a little may take more space than it frees: the first state that is
        # kept is then stored in full.
        low, high = 0 if await fits(0) else 1, len(cutoffs) - 1
        while low and low < high:
            middle = (low + high) // 2
            if await fits(middle):
                high = middle
            else:
                low = middle + 1
        return cutoffs[min(low, high)]

    async def _size(self, line: Line, cutoff: int) -> int:
        """Return the size of a line without the checkpoints before a cutoff."""
        cutoff = max(cutoff, self._cutoffs.get(line, 0))
        try:
            if (await self._verdicts(line, cutoff))[1]:
                return await self._current_size(line)
            return (await self._engine.rewriter.dry_run(line, self._choose(line, cutoff, []))).size
        except NotFoundError:
            return 0
        except (ConflictError, DeniedError, CorruptError):
            return await self._current_size(line)  # it stays as it is


async def _each(lines: Iterable[Line]) -> AsyncIterator[Line]:
    for line in lines:
        yield line


def _digest(points: Sequence[StepRef]) -> bytes:
    """Return a digest of steps, as far as a policy or a query may ask for it."""
    digest = hashlib.sha256()
    for point in points:
        digest.update(b"%d %d %d %b" % (*point[:2], point.pruned, point.hash))
    return digest.digest()


def _last_revisions(points: Iterable[StepRef]) -> dict[str, StepRef]:
    """Return the last revision of each step that is not pruned, by id."""
    return {point.id: point for point in sorted(points, key=lambda point: point.revision) if not point.pruned}


def _heads(points: Sequence[StepRef], branches: Sequence[Branch]) -> dict[tuple[int, int], list[str]]:
    """Return the names of branches by their last step; a branch without steps ends where it starts."""
    ends: dict[int, Position] = {}
    for point in points:
        ends[point.branch] = Position(*point[:2])
    names = {branch.branch: branch.name for branch in branches if branch.name}
    if MAIN.name not in names.values():
        names[0] = MAIN.name
    bases = {branch.branch: Position(branch.base_branch, branch.base_length - 1) for branch in branches}
    heads: dict[tuple[int, int], list[str]] = {}
    for number, name in names.items():
        end = ends.get(number, bases.get(number))
        if end is not None:
            heads.setdefault(end, []).append(name)
    return heads
