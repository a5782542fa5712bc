"""Pruning threads by a policy: one pass over many of them, each rewritten by itself.

Writers go on meanwhile. A pass that is interrupted leaves each thread as it was or as it should be; begun again, it has
less to do. What a dry run says is worked out by the code that does it.
"""

from __future__ import annotations

from array import array
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple, TypeAlias

from holdfast.backends.interface import Scan
from holdfast.backends.tables import LINES, REFS, STEPS
from holdfast.engine.branch_graph import Position
from holdfast.engine.engine import Engine
from holdfast.engine.lines import MAIN, NAME, TAG
from holdfast.engine.namespaces import root_of
from holdfast.engine.rewrite.rewriter import Choose, RewritePlan, RewriteResult
from holdfast.engine.rewrite.row_sizes import SizeBalance, rows_below
from holdfast.engine.row_format import PIN, Branch, Line, StepRef, check_name
from holdfast.engine.types import to_datetime
from holdfast.errors import ConflictError, CorruptError, DeniedError, InvalidError, NotFoundError
from holdfast.history.query import Query, parse
from holdfast.history.search import SearchRun
from holdfast.maintenance.retention import Retention, RetentionCandidate, RetentionVerdict
from holdfast.security.handle import ACCESS, AUDIT

Tell: TypeAlias = Callable[[int, int | None, str], None]
"""Is told how many threads are done, of how many, and which was the last."""

_SPARED = (ACCESS, AUDIT)
"""Lines that no policy is about: whoever prunes a store does not mean what tells of the pruned, and who may do what."""

_PAGE = 500
"""How many names of threads are read at a time."""


class PruneDecision(NamedTuple):
    """What becomes of a checkpoint: whether it is kept, and why."""

    id: str
    time: datetime
    kept: bool
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ThreadPruneReport:
    """What was done to a thread, or would be: how many checkpoints are kept and how many go, and what that gives back,
    less what is written for it. `checkpoints` has each of them, the latest first.

    With a `problem`, nothing was done; `code` is that of the error.
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
"""Is told of each thread when it is done with."""


@dataclass
class PruneReport:
    """What a pass did, or would do. `threads` are those that it looked at.

    `rows` and `bytes` are given back by the store's rows, all in all; how much its files or tables shrink by is the
    store's matter. `left` is how many bytes the threads take then, where they are to keep to a size (None where not),
    and `over` by how much that is too many, since what is left must stay.
    """

    dry_run: bool
    threads: list[ThreadPruneReport] = field(default_factory=list)
    kept: int = 0
    dropped: int = 0
    rows: int = 0
    bytes: int = 0
    left: int | None = None
    over: int = 0

    @property
    def problems(self) -> list[ThreadPruneReport]:
        """The threads that nothing was done to, for a reason."""
        return [each for each in self.threads if each.problem]

    def add(self, thread: ThreadPruneReport) -> None:
        """Count a thread in."""
        self.threads.append(thread)
        self.kept += thread.kept
        self.dropped += thread.dropped
        self.rows += thread.rows
        self.bytes += thread.bytes


@dataclass(frozen=True)
class ThreadSelection:
    """Which threads are meant: some by name, or those that start with a prefix, or match a query; else all.

    A thread's namespaces are meant with it.
    """

    names: Sequence[str] | None = None
    prefix: str = ""
    where: str | None = None

    @classmethod
    def of(cls, threads: str | Iterable[str] | None, prefix: str, where: str | None) -> ThreadSelection:
        """What a caller gave."""
        names = None
        if threads is not None:
            given = [threads] if isinstance(threads, str) else list(threads)
            names = [check_name(name, "name of a thread") for name in given]
            if prefix or where is not None:
                raise InvalidError("threads are given by name, or by a prefix or a query", hint="Leave out one of them")
        return cls(names, check_name(prefix, "start of a name"), where)

    @property
    def single(self) -> bool:
        """Whether one thread is meant by its name."""
        return self.names is not None and len(self.names) == 1


async def prune(
    engine: Engine,
    tenant: str,
    policy: Retention,
    selection: ThreadSelection = ThreadSelection(),  # noqa: B008 - immutable
    *,
    dry_run: bool = False,
    progress: Tell | None = None,
    each: Each | None = None,
) -> PruneReport:
    """Prune threads by a policy. A thread that another is rewriting, or that is held, is left and reported.

    Given `each`, it is told of every thread with its checkpoints, and the report has figures only: for stores that have
    too many checkpoints to hold all of them in memory.
    """
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
        """Of each line, the time before which those that may go must, so that its thread fits."""
        self._now = engine.context.clock()
        moment = to_datetime(self._now)
        self._keep_where = None if policy.keep_where is None else parse(policy.keep_where, moment)
        self._where = None if selection.where is None else parse(selection.where, moment)

    async def run(self, progress: Tell | None, each: Each | None) -> PruneReport:
        report = PruneReport(self._dry_run)
        total = await self._count()
        together, each_one = self._policy.max_bytes, self._policy.max_thread_bytes
        if each_one is not None:
            async for lines in self._families():
                own = await self._fit(lambda lines=lines: _listed(lines), each_one)  # type: ignore[misc]
                self._cutoffs.update(dict.fromkeys(lines, own))
        # What goes since a thread is too large by itself need not go elsewhere.
        cutoff = 0 if together is None else await self._fit(self._all, together)
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
            if each_one is not None:
                report.over += max(0, left - before - each_one)
        if self._sized:
            report.left = left
        if together is not None:
            report.over = max(report.over, left - together)
        if (report.dropped or report.bytes > 0) and not self._dry_run:
            await self._backend.tidy()
        return report

    # Which threads --------------------------------------------------------------------------------------------

    async def _families(self) -> AsyncIterator[list[Line]]:
        """The threads that are meant, each with its namespaces."""
        if self._selection.names is None:
            async for line in self._found():
                if root_of(line) == line:
                    yield await self._engine.lines.family(line)
                elif not await self._is_found(root_of(line)):
                    yield [line]  # it is meant by itself
            return
        for name in dict.fromkeys(self._selection.names):
            line = Line(self._tenant, name)
            if name in _SPARED:
                raise InvalidError("the audit, and what identities may do, are not pruned", where=f"line {line}")
            await self._engine.lines.info(line)  # says so if there is none
            yield await self._engine.lines.family(line)

    async def _all(self) -> AsyncIterator[Line]:
        """The lines that are meant."""
        async for lines in self._families():
            for line in lines:
                yield line

    async def _found(self) -> AsyncIterator[Line]:
        """The lines that a prefix or a query names, or all there are."""
        after, prefix = "", self._selection.prefix
        while True:
            start = max(prefix, after + "\0" if after else "")
            (rows,) = await self._backend.read([Scan(LINES, (self._tenant,), start=(start,), limit=_PAGE)])
            page = [Line(self._tenant, name) for row in rows if (name := str(row.key[1])).startswith(prefix)]
            for line in page:
                if line.name not in _SPARED and (self._where is None or await self._is_meant(line, self._where)):
                    yield line
            if len(page) < _PAGE:
                return
            after = page[-1].name

    async def _is_found(self, root: Line) -> bool:
        """Whether a thread is meant itself, and its namespaces with it."""
        if not root.name.startswith(self._selection.prefix) or await self._engine.lines.load_tip(root) is None:
            return False
        return self._where is None or await self._is_meant(root, self._where)

    async def _is_meant(self, line: Line, where: Query) -> bool:
        try:
            return await SearchRun(self._engine, self._tenant, where).has(await self._engine.lines.summary(line))
        except NotFoundError:
            return False  # it was deleted meanwhile

    async def _count(self) -> int:
        return sum([1 async for _ in self._all()])

    # One thread -----------------------------------------------------------------------------------------------

    async def _prune(self, line: Line, cutoff: int) -> tuple[ThreadPruneReport, int]:
        """What was done to a line, and how many bytes it then takes, where that matters."""
        verdicts: list[RetentionVerdict] = []
        try:
            # Most threads have nothing to prune, most of the time: that is seen without a lease.
            found, clean = await self._verdicts(line, cutoff)
            if clean:
                outcome, verdicts = RewriteResult(SizeBalance(), await self._taken(line)), found
            else:
                del found  # of a long thread, these are many
                choose = self._choose(line, cutoff, verdicts)
                rewriter = self._engine.rewriter
                outcome = await (rewriter.dry_run if self._dry_run else rewriter.prune)(line, choose)
        except NotFoundError:
            if self._selection.single:
                raise
            return ThreadPruneReport(line.name), 0  # it was deleted meanwhile
        except (ConflictError, DeniedError, CorruptError) as error:
            if self._selection.single:
                raise
            return ThreadPruneReport(line.name, problem=str(error), code=error.code), await self._taken(line)
        checkpoints = tuple(
            PruneDecision(each.id, to_datetime(each.time), each.kept, each.reasons) for each in verdicts
        )
        kept = sum(each.kept for each in checkpoints)
        freed = outcome.freed
        pruned = ThreadPruneReport(line.name, kept, len(checkpoints) - kept, freed.rows, freed.bytes, checkpoints)
        return pruned, outcome.size

    async def _taken(self, line: Line) -> int:
        """How many bytes a line takes as it is, where threads are to keep to a size."""
        if not self._sized:
            return 0
        try:
            return (await self._engine.lines.summary(line)).size
        except NotFoundError:
            return 0  # it was deleted meanwhile

    def _choose(self, line: Line, cutoff: int, verdicts: list[RetentionVerdict]) -> Choose:
        """Chooses what the policy does not keep; `verdicts` are then those that were found last."""

        async def choose(points: Sequence[StepRef], branches: Sequence[Branch]) -> RewritePlan:
            verdicts[:] = await self._judge(line, points, branches, cutoff)
            kept = {each.id for each in verdicts if each.kept}
            last = _last_revisions(points)
            places = {point[:2] for point in points if not point.pruned}
            return RewritePlan(frozenset(places - {last[id][:2] for id in kept}))

        return choose

    async def _verdicts(self, line: Line, cutoff: int) -> tuple[list[RetentionVerdict], bool]:
        """What the policy says as of now, and whether nothing is to go."""
        points = [StepRef.of(row) async for row in rows_below(self._backend, STEPS, tuple(line), bodies=False)]
        verdicts = await self._judge(line, points, await self._engine.lines.branches(line), cutoff)
        there = sum(not point.pruned for point in points)
        return verdicts, all(each.kept for each in verdicts) and len(verdicts) == there

    async def _judge(
        self, line: Line, points: Sequence[StepRef], branches: Sequence[Branch], cutoff: int
    ) -> list[RetentionVerdict]:
        """What the policy says of each checkpoint, the latest first."""
        (refs,) = await self._backend.read([Scan(REFS, tuple(line))])
        named: dict[tuple[str, str], list[str]] = {}
        for row in refs:
            named.setdefault((str(row.key[2]), str(row.columns[0])), []).append(str(row.key[3]))
        matching: set[str] = set()
        if self._keep_where is not None:
            matching = await self._matching(line, self._keep_where)
        heads = _heads(points, branches)
        last = _last_revisions(points)
        candidates = (
            RetentionCandidate(
                point.time,
                point.id,
                tuple(named.get((NAME, point.id), ())),
                tuple(named.get((TAG, point.id), ())),
                tuple(named.get((PIN, point.id), ())),
                tuple(heads.get(point[:2], ())),
                point.id in matching,
            )
            for point in sorted(last.values(), key=lambda point: point.id, reverse=True)
        )
        return [verdict.before(cutoff) for verdict in self._policy.decide(candidates, self._now)]

    async def _matching(self, line: Line, where: Query) -> set[str]:
        """The ids of a thread's checkpoints that match a query."""
        search, found, before = SearchRun(self._engine, self._tenant, where), set[str](), ""
        while True:
            subjects, before = await search.some_of(line, before)
            found.update(subject.point.id for subject in subjects if subject.point is not None)
            if search.unreadable:
                raise CorruptError(
                    "a checkpoint cannot be read, so that nobody can tell whether the query keeps it",
                    where=f"thread {line}",
                    hint="Verify the thread, and repair it from a mirror or a backup",
                )
            if not before:
                return found

    # A size to keep to ----------------------------------------------------------------------------------------

    async def _fit(self, lines: Callable[[], AsyncIterator[Line]], most: int) -> int:
        """The time before which those that may go must, so that lines take no more bytes than that."""
        times = array("q")
        async for line in lines():
            try:
                verdicts, _ = await self._verdicts(line, 0)
            except (CorruptError, NotFoundError):
                continue  # nothing of it will go
            times.extend(each.time for each in verdicts if each.kept and not each.stays)
        cutoffs = [0, *(time + 1 for time in sorted(set(times)))]

        async def fits(at: int) -> bool:
            return sum([await self._size(line, cutoffs[at]) async for line in lines()]) <= most

        # Often it does as it is. And where only a little goes, more may be taken than given back: the first state that
        # is kept is then stored whole.
        low, high = 0 if await fits(0) else 1, len(cutoffs) - 1
        while low and low < high:
            middle = (low + high) // 2
            if await fits(middle):
                high = middle
            else:
                low = middle + 1
        return cutoffs[min(low, high)]

    async def _size(self, line: Line, cutoff: int) -> int:
        """How many bytes a line takes without what must go."""
        cutoff = max(cutoff, self._cutoffs.get(line, 0))
        try:
            if (await self._verdicts(line, cutoff))[1]:
                return await self._taken(line)
            return (await self._engine.rewriter.dry_run(line, self._choose(line, cutoff, []))).size
        except NotFoundError:
            return 0
        except (ConflictError, DeniedError, CorruptError):
            return await self._taken(line)  # it will stay as it is


async def _listed(lines: Iterable[Line]) -> AsyncIterator[Line]:
    for line in lines:
        yield line


def _problem(pruned: ThreadPruneReport) -> tuple[str, str]:
    return pruned.problem, pruned.code


def _last_revisions(points: Iterable[StepRef]) -> dict[str, StepRef]:
    """The steps there are, by id, each in its last revision."""
    return {point.id: point for point in sorted(points, key=lambda point: point.revision) if not point.pruned}


def _heads(points: Sequence[StepRef], branches: Sequence[Branch]) -> dict[tuple[int, int], list[str]]:
    """The last step of each branch that has a name; of one without steps of its own, the one it starts from."""
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
