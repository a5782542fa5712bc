"""Pruning threads by a policy: one pass over many threads, each of which is rewritten independently.

Start here: `prune` runs a pass, `Retention.decide` (`retention.py`) decides which checkpoints of a thread stay, and
`Rewriter.prune` (`engine/rewrite`) removes the others. Writers continue during a pass. A pass that is interrupted
leaves each thread unpruned or pruned. A dry run computes its report with the same code.
"""

from __future__ import annotations

from array import array
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TypeAlias

import msgspec

from holdfast._fields import count, fill
from holdfast.backends.interface import Scan
from holdfast.backends.paging import scan_rows
from holdfast.backends.tables import REFS, STEPS
from holdfast.engine.branch_graph import Position
from holdfast.engine.engine import Engine
from holdfast.engine.line_head import head_of
from holdfast.engine.lines import LABEL, MAIN, TAG
from holdfast.engine.namespaces import (
    ACCESS,
    AUDIT,
    LineKind,
    LineKinds,
    lines_of_kinds,
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


Each: TypeAlias = Callable[[ThreadPruneReport], None]
"""Called with the report of each thread."""


class PruneReport(msgspec.Struct, frozen=True):
    """The result of a pass over `threads`.

    `rows` and `bytes` are the totals that are freed; how much files or tables shrink depends on the store. With a size
    limit, `left` is the size of the threads afterwards, and `over` the bytes that they are over the limit because the
    rest has to stay; without one, `left` is None.
    """

    dry_run: bool
    threads: list[ThreadPruneReport] = []
    kept: int = 0
    dropped: int = 0
    rows: int = 0
    bytes: int = 0
    left: int | None = None
    over: int = 0

    @property
    def problems(self) -> list[ThreadPruneReport]:
        """The threads that could not be pruned."""
        return [each for each in self.threads if each.problem]

    def add(self, thread: ThreadPruneReport) -> None:
        """Add the report of a thread."""
        self.threads.append(thread)
        count(self, kept=thread.kept, dropped=thread.dropped, rows=thread.rows, bytes=thread.bytes)


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
) -> PruneReport:
    """Prune threads by a policy. A thread that another process is rewriting, or that is held, is skipped and reported.

    With `each`, the checkpoints of every thread are passed to it, and the report has only totals: for stores with too
    many checkpoints to keep all decisions in memory.
    """
    engine.context.rows.check_prefix(selection.prefix)
    return await _Pass(engine, tenant, policy, selection, dry_run=dry_run).run(progress, each)


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
        self._sized = policy.max_bytes is not None or policy.max_thread_bytes is not None
        self._cutoffs: dict[Line, int] = {}
        """For each line, the time before which checkpoints are dropped so that its thread fits its size limit."""
        self._now = engine.context.clock()
        moment = to_datetime(self._now)
        self._keep_where = None if policy.keep_where is None else parse(policy.keep_where, moment)
        self._where = None if selection.where is None else parse(selection.where, moment)

    async def run(self, progress: Progress | None, each: Each | None) -> PruneReport:
        report = PruneReport(self._dry_run)
        total = await self._count()
        total_limit, thread_limit = self._policy.max_bytes, self._policy.max_thread_bytes
        if thread_limit is not None:
            async for lines in self._families():
                own = await self._fit(lambda lines=lines: _each(lines), thread_limit)  # type: ignore[misc]
                self._cutoffs.update(dict.fromkeys(lines, own))
        # What is dropped for the limit of a thread counts for the total, too.
        cutoff = 0 if total_limit is None else await self._fit(self._all, total_limit)
        done = left = 0
        async for lines in self._families():
            before = left
            for line in lines:
                pruned, size = await self._prune(line, max(cutoff, self._cutoffs.get(line, 0)))
                left += size
                if each is not None:
                    each(pruned)
                    pruned = ThreadPruneReport(
                        pruned.thread, pruned.kept, pruned.dropped, pruned.rows, pruned.bytes, (), *_problem(pruned)
                    )
                report.add(pruned)
                done += 1
                if progress is not None:
                    progress(done, max(done, total), line.name)
            if thread_limit is not None:
                count(report, over=max(0, left - before - thread_limit))
        if self._sized:
            fill(report, left=left)
        if total_limit is not None:
            fill(report, over=max(report.over, left - total_limit))
        if (report.dropped or report.bytes > 0) and not self._dry_run:
            await self._backend.tidy()
        return report

    # Which threads --------------------------------------------------------------------------------------------

    async def _families(self) -> AsyncIterator[list[Line]]:
        """Yield the selected threads, each with its namespaces."""
        if self._selection.names is None:
            async for line in self._matching_lines():
                if root_of(line) == line:
                    yield await self._engine.lines.family(line)
                elif not await self._is_selected(root_of(line)):
                    yield [line]  # it is selected without its root
            return
        for name in dict.fromkeys(self._selection.names):
            line = Line(self._tenant, name)
            if name in _EXCLUDED:
                raise InvalidError("the audit and the grants are not pruned", where=f"line {line}")
            await self._engine.lines.info(line)  # raises if there is none
            yield await self._engine.lines.family(line)

    async def _all(self) -> AsyncIterator[Line]:
        """Yield the selected lines."""
        async for lines in self._families():
            for line in lines:
                yield line

    async def _matching_lines(self) -> AsyncIterator[Line]:
        """Yield the lines that match the prefix and the query."""
        selection = self._selection
        async for line in lines_of_kinds(self._backend, self._tenant, selection.kinds, selection.prefix):
            if line.name not in _EXCLUDED and (self._where is None or await self._matches(line, self._where)):
                yield line

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

    async def _count(self) -> int:
        return sum([1 async for _ in self._all()])

    # One thread -----------------------------------------------------------------------------------------------

    async def _prune(self, line: Line, cutoff: int) -> tuple[ThreadPruneReport, int]:
        """Prune a line. Returns the report, and the size of the line afterwards if there is a size limit."""
        verdicts: list[RetentionVerdict] = []

        def detail() -> dict[str, int]:
            return {"dropped": sum(not each.kept for each in verdicts), "erase": self._selection.erase}

        try:
            # Most threads have nothing to prune: that is found out without a lease.
            found, clean = await self._verdicts(line, cutoff)
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
            verdicts[:] = await self._judge(line, points, branches, cutoff)
            kept = {each.id for each in verdicts if each.kept}
            last = _last_revisions(points)
            positions = {point[:2] for point in points if not point.pruned}
            dropped = frozenset(positions - {last[id][:2] for id in kept})
            return RewritePlan(dropped, erase=self._selection.erase)

        return choose

    async def _verdicts(self, line: Line, cutoff: int) -> tuple[list[RetentionVerdict], bool]:
        """Return the current verdicts of the policy, and whether nothing is to be dropped."""
        points = [StepRef.of(row) async for row in scan_rows(self._backend, STEPS, tuple(line), bodies=False)]
        verdicts = await self._judge(line, points, await self._engine.lines.branches(line), cutoff)
        count = sum(not point.pruned for point in points)
        salted = self._selection.erase and any(point.proof and point.proof.salt for point in points)
        return verdicts, not salted and all(each.kept for each in verdicts) and len(verdicts) == count

    async def _judge(
        self, line: Line, points: Sequence[StepRef], branches: Sequence[Branch], cutoff: int
    ) -> list[RetentionVerdict]:
        """Return the verdict of the policy on each checkpoint, the latest first."""
        (refs,) = await self._backend.read([Scan(REFS, tuple(line))])
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


def _problem(pruned: ThreadPruneReport) -> tuple[str, str]:
    return pruned.problem, pruned.code


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
