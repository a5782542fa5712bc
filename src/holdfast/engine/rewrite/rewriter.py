"""Rewriting a line: another physical form under the same commit hashes.

The one operation behind everything that changes how a line is stored and not what it says. The new form is written
beside the old one and made durable; one batch switches; what only the old form needed is swept. Whoever reads meanwhile
sees one form or the other. A crash before the switch leaves the old form, a crash after it the new one, and rows that
nobody reads until the next rewrite sweeps them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence, Set
from itertools import groupby
from typing import NamedTuple, TypeAlias

from holdfast.backends.interface import Change, Delete, Ensure, Expect, Row, Scan
from holdfast.backends.tables import BRANCHES, NODES, OBJECTS, REFS, STEPS
from holdfast.engine.context import EngineContext
from holdfast.engine.delta_channels import DeltaReader
from holdfast.engine.leases import Lease
from holdfast.engine.lines import LineIndex, require_no_hold
from holdfast.engine.model.large_values import pointers
from holdfast.engine.model.nodes import MapRoot, WrittenBy
from holdfast.engine.model.steps import Step, StepParent
from holdfast.engine.model.workspace import MissingNode
from holdfast.engine.projection.projector import Projector
from holdfast.engine.rewrite.progress import RewriteProgress
from holdfast.engine.rewrite.removal import LineRemoval
from holdfast.engine.rewrite.row_sizes import SizeBalance, balance, found_rows, next_page, rows_below
from holdfast.engine.rewrite.scratch_nodes import ScratchNodes
from holdfast.engine.row_format import (
    MERGE,
    PIN,
    Branch,
    Line,
    LineInfo,
    StepRef,
    fold_row,
    node_row,
    object_rows,
    open_step,
)
from holdfast.engine.state_loader import LoadedState, StateLoader
from holdfast.engine.text_index.indexer import TextIndexer
from holdfast.errors import ConflictError, CorruptError

_FEW = 8
"""How many steps are read at first: nobody knows how large they are."""

_BATCH_BYTES = 1 << 20
"""About how many bytes of nodes are stored at a time."""

_ATTEMPTS = 100
"""How often a rewrite follows what was appended meanwhile before it gives up."""


class RewritePlan(NamedTuple):
    """What is to go from a line: steps by their places, and what else is to change together with that."""

    dropped: frozenset[tuple[int, int]]
    changes: Sequence[Change] = ()
    closed: int = 0
    """A branch that loses its name, where its place is still needed."""


Choose: TypeAlias = Callable[[Sequence[StepRef], Sequence[Branch]], Awaitable[RewritePlan]]
"""Chooses what is to go, given a line's steps, branch by branch, and its branches but the first."""


class RewriteResult(NamedTuple):
    """What a rewrite did, or would do: what it gives back, and how many bytes the thread then has."""

    freed: SizeBalance
    size: int


class Rewriter:
    """Rewrites lines."""

    def __init__(
        self,
        context: EngineContext,
        lines: LineIndex,
        states: StateLoader,
        projector: Projector,
        indexer: TextIndexer,
        deltas: DeltaReader,
    ) -> None:
        self._context = context
        self._backend = context.backend
        self._lines = lines
        self._states = states
        self._projector = projector
        self._indexer = indexer
        self._deltas = deltas

    async def rewrite(self, line: Line, choose: Choose | None = None) -> None:
        """Fold a line from its first step on: its nodes are then as full as they can be, and what none needs is gone.

        Steps that are chosen go, but for pinned ones. Where others follow them a stub is left, and those stay readable
        as they were. It is done in full or not at all. Appends go on meanwhile. `ConflictError` if another rewrite of
        the thread is under way, `DeniedError` if steps are chosen and the thread is held.
        """
        await self._leased(line, choose, weighed=False)

    async def prune(self, line: Line, choose: Choose) -> RewriteResult:
        """The same; tells what that gave back."""
        return await self._leased(line, choose, weighed=True)

    async def rehearse(self, line: Line, choose: Choose) -> RewriteResult:
        """What `prune` would give back. All is worked out as it does, and nothing is written."""
        for _ in range(_ATTEMPTS):
            info = await self._lines.info(line)
            left = await balance(self._backend, _leftovers(line, info))
            try:
                outcome = await self._attempt(line, None, choose, weighed=True)
            except (_Overtaken, MissingNode, CorruptError) as error:
                if not isinstance(error, _Overtaken) and await self._lines.info(line) == info:
                    raise
                continue
            if outcome is not None:
                return outcome._replace(freed=outcome.freed.plus(left))
        raise _kept_changing(line)

    async def _leased(self, line: Line, choose: Choose | None, *, weighed: bool) -> RewriteResult:
        lease = Lease(self._context, line, "rewrite")
        try:
            await lease.take()
            left = SizeBalance()
            if weighed:
                left = await balance(self._backend, _leftovers(line, await self._lines.info(line)))
            for _ in range(_ATTEMPTS):
                try:
                    outcome = await self._attempt(line, lease, choose, weighed=weighed)
                    if outcome is not None:
                        self._context.cache.forget(line)
                        await self._projector.follow(line)
                        return outcome._replace(freed=outcome.freed.plus(left))
                except _Overtaken:
                    await self._lines.info(line)  # says so if the line is gone
                await lease.show_life()
            raise _kept_changing(line)
        finally:
            await lease.give_back()

    async def _attempt(
        self, line: Line, lease: Lease | None, choose: Choose | None, *, weighed: bool
    ) -> RewriteResult | None:
        """Rewrite a line as it is now; without a lease, only as if. None if it changed meanwhile."""
        info = await self._lines.info(line)
        if lease is not None:
            await self._sweep(line, info, lease)
        branches = await self._lines.branches(line)
        choice, points = RewritePlan(frozenset()), None
        guards: Sequence[Change] = ()
        if choose is not None:
            points = [StepRef.of(row) async for row in rows_below(self._backend, STEPS, tuple(line), bodies=False)]
            choice = await self._spared(line, points, await choose(points, branches))
            if not choice.dropped:
                return await self._only(line, info, lease, choice.changes)
            guards = await require_no_hold(self._backend, [line])
            carried = await self._deltas.carried(line, points, branches, choice.dropped)
            choice = choice._replace(changes=[*choice.changes, *carried])
        merges = await self._merges(line, points or (), choice.dropped)
        walk = RewriteProgress(line, info, branches, choice.dropped, points, choice.closed, merges)
        with ScratchNodes() as rehearsal:
            walk.rehearsal = rehearsal if lease is None else None
            return await self._walked(walk, lease, guards, choice, weighed=weighed)

    async def _walked(
        self,
        walk: RewriteProgress,
        lease: Lease | None,
        guards: Sequence[Change],
        choice: RewritePlan,
        *,
        weighed: bool,
    ) -> RewriteResult | None:
        line, info = walk.line, walk.info
        for branch in walk.branches:
            if not await self._follow(walk, lease, branch):
                return None
        removal = None
        if choice.dropped:
            words = await self._indexer.after_prune(line, choice.dropped, await self._after_gaps(walk))
            removal = await LineRemoval.of(self._backend, walk, words)
        freed = SizeBalance()
        if weighed:
            # Once: those who append meanwhile are not to be first again and again.
            gone = Delete(NODES, (*line, info.form))
            changes = await self._changes(walk, removal, choice)
            freed = (await balance(self._backend, [*changes, gone])).plus(walk.added)
        if lease is None:
            return RewriteResult(freed, walk.size)
        while True:
            for branch in await self._appended(walk):
                if not await self._follow(walk, lease, branch):
                    return None
            fixed = [
                lease.condition(),
                self._lines.unchanged(line, info),
                Expect(BRANCHES, (*line, walk.branches[-1].branch + 1), None),
                *guards,
            ]
            ends = (Expect(STEPS, (*line, branch, walk.done[branch]), None) for branch in walk.done)
            failed = await self._backend.apply([*fixed, *ends, *await self._changes(walk, removal, choice)])
            if failed is None:
                break
            if failed < len(fixed):  # not ours any more, or changed in more than its newest steps
                if not await lease.is_held():
                    raise await self._taken_over(line)
                return None
        await self._sweep(line, walk.fresh, lease)
        return RewriteResult(freed, walk.size)

    async def _merges(
        self, line: Line, points: Sequence[StepRef], dropped: Set[tuple[int, int]]
    ) -> dict[tuple[int, int], Sequence[StepParent]]:
        """What the merges among the steps that go have merged, which their stubs keep."""
        merges: dict[tuple[int, int], Sequence[StepParent]] = {}
        keys = [(*line, *point[:2]) for point in points if point.kind == MERGE and point[:2] in dropped]
        async for row in found_rows(self._backend, STEPS, keys):
            try:
                step = open_step(line, row, self._context.max_bytes)
            except CorruptError:
                continue  # it goes all the same; what it merged cannot be told any more
            merges[StepRef.of(row)[:2]] = step.header.parents[1:]
        return merges

    async def _after_gaps(self, walk: RewriteProgress) -> list[tuple[StepRef, Step]]:
        """The steps that stay and follow some that go."""
        keys = [(*walk.line, *point[:2]) for point in walk.after_gaps]
        return [
            (StepRef.of(row), open_step(walk.line, row, self._context.max_bytes))
            async for row in found_rows(self._backend, STEPS, keys)
        ]

    async def _changes(self, walk: RewriteProgress, removal: LineRemoval | None, choice: RewritePlan) -> list[Change]:
        """What switches to the new form."""
        switched = walk.switched()
        removed = [] if removal is None else await removal.changes(walk, switched)
        return [*removed, *switched, *choice.changes]

    async def _spared(self, line: Line, points: Sequence[StepRef], choice: RewritePlan) -> RewritePlan:
        """The same choice, but for steps that are pinned."""
        if not choice.dropped:
            return choice
        (rows,) = await self._backend.read([Scan(REFS, (*line, PIN))])
        pinned = {str(row.columns[0]) for row in rows}
        last = {each.id: each for each in sorted(points, key=lambda each: each.revision) if each.id in pinned}
        return choice._replace(dropped=choice.dropped - {each[:2] for each in last.values()})

    async def _only(
        self, line: Line, info: LineInfo, lease: Lease | None, changes: Sequence[Change]
    ) -> RewriteResult | None:
        """Make the changes that were chosen; no step goes."""
        freed = await balance(self._backend, changes)
        if lease is not None and await self._backend.apply([self._lines.unchanged(line, info), *changes]) is not None:
            return None
        return RewriteResult(freed, (await self._lines.summary(line)).size)

    async def _appended(self, walk: RewriteProgress) -> list[Branch]:
        """The branches that have steps beyond those that were gone past."""
        numbers = list(walk.done)
        found = await self._backend.read(
            [Scan(STEPS, (*walk.line, n), start=(walk.done[n],), limit=1, bodies=False) for n in numbers]
        )
        longer = {number for number, rows in zip(numbers, found, strict=True) if rows}
        return [branch for branch in walk.branches if branch.branch in longer]

    async def _follow(self, walk: RewriteProgress, lease: Lease | None, branch: Branch) -> bool:
        """Fold what a branch has beyond what was folded before.

        False if a step that was not known when the choice was made follows one that goes.
        """
        number = branch.branch
        if number not in walk.done:
            for gone, points in groupby(walk.known.get(number, ()), walk.goes):
                if gone:
                    for point in points:
                        walk.drop(point)
                    continue
                run = list(points)
                async for row in self._rows(walk, number, run[0].seq, run[-1].seq + 1):
                    await self._fold_step(walk, lease, row, walk.last(branch))
                if walk.done.get(number) != run[-1].seq + 1:
                    raise _Overtaken
            walk.done.setdefault(number, 0)
        async for row in self._rows(walk, number, walk.done[number], None):
            point = StepRef.of(row)
            if point.pruned:
                walk.drop(point)
            elif walk.known and walk.last(branch) is None:
                return False
            else:
                await self._fold_step(walk, lease, row, walk.last(branch))
        return True

    async def _rows(self, walk: RewriteProgress, branch: int, start: int, stop: int | None) -> AsyncIterator[Row]:
        """The steps of a branch from a number on, up to another."""
        page = _FEW
        while stop is None or start < stop:
            end = start + page if stop is None else min(start + page, stop)
            (rows,) = await self._backend.read([Scan(STEPS, (*walk.line, branch), (start,), (end,))])
            for row in rows:
                yield row
            if len(rows) < end - start:
                return
            start, page = end, next_page(page, rows)

    async def _fold_step(self, walk: RewriteProgress, lease: Lease | None, row: Row, last: LoadedState | None) -> None:
        """Store the nodes of a step's state, where it is to be a folded one."""
        line, point = walk.line, StepRef.of(row)
        step = open_step(line, row, self._context.max_bytes)
        walk.merged.update(parent[:2] for parent in step.header.parents[1:])
        if last is None:
            # What it follows goes. All that its state is made of is taken over, with where it came from.
            loaded = await self._states.hold(line, point)
            if loaded.form not in (0, walk.info.form):
                loaded = await self._states.load(line, point)
            tree = await self._states.tree(line, loaded)
            walk.pointers |= tree.pointers
            await self._store(walk, lease, row, tree.root, tree.nodes, tree.objects)
            return
        loaded = LoadedState(last.root, last.form, (*last.tail, (WrittenBy(*point[:2]), step.edit)), fresh=last.fresh)
        walk.pointers.update(pointers(step.edit))
        # Where steps go, the others are folded where they were: what follows them can then be left as it is.
        if len(loaded.tail) < self._context.fold_every and (point.tail or not walk.dropped):
            walk.keep(row, loaded, ())
            return
        ws, root = await self._states.fold(line, loaded)
        walk.pointers.update(ws.objects)
        await self._store(walk, lease, row, root, ws.created, ws.objects)
        self._states.keep_nodes(ws)

    async def _store(
        self,
        walk: RewriteProgress,
        lease: Lease | None,
        row: Row,
        root: MapRoot,
        nodes: Mapping[bytes, bytes],
        objects: Mapping[bytes, bytes],
    ) -> None:
        line, point = walk.line, StepRef.of(row)
        made = [node_row(line, walk.fresh.form, id, data) for id, data in nodes.items()]
        large = [each for at, value in objects.items() for each in object_rows(line, at, value)]
        there = {each.key async for each in found_rows(self._backend, OBJECTS, [each.key for each in large])}
        walk.add([*made, *(each for each in large if each.key not in there)])
        if walk.rehearsal is not None:
            walk.rehearsal.store({**nodes, **objects})
        if lease is not None:
            changes = [*(Ensure(NODES, each) for each in made), *(Ensure(OBJECTS, each) for each in large)]
            for batch in _batches(changes):
                conditions = [lease.condition(), self._lines.unchanged(line, walk.info)]
                if await self._backend.apply([*conditions, *batch]) is not None:
                    if not await lease.is_held():
                        raise await self._taken_over(line)
                    raise _Overtaken
                await lease.show_life()
        stored = fold_row(line, (point.branch, point.seq), point.hash, walk.fresh.form, root)
        walk.folds.append(stored)
        fresh: Mapping[bytes, bytes] = {} if walk.rehearsal is None else walk.rehearsal
        loaded = LoadedState(root, walk.fresh.form, fresh=fresh)
        walk.keep(row, loaded, [*(each.body for each in (*made, *large)), stored.body])

    async def _sweep(self, line: Line, info: LineInfo, lease: Lease) -> None:
        """Remove the nodes of the form before this one, and those of a rewrite that came to nothing."""
        conditions = [lease.condition(), self._lines.unchanged(line, info)]
        # Refused, it is for whoever has the lease now.
        await self._backend.apply([*conditions, *_leftovers(line, info)])

    async def _taken_over(self, line: Line) -> ConflictError:
        await self._lines.info(line)  # says so if the line is gone, and the lease with it
        return ConflictError(
            "another took this rewrite of the thread for dead, and began its own",
            where=f"thread {line}",
            hint="Wait for it to end",
            code="lease-lost",
        )


def _leftovers(line: Line, info: LineInfo) -> list[Change]:
    return [Delete(NODES, (*line, info.form - 1)), Delete(NODES, (*line, info.form + 1))]


def _batches(changes: Sequence[Ensure]) -> Iterable[Sequence[Ensure]]:
    """The same changes in batches that are not too large, of what nobody sees yet."""
    batch: list[Ensure] = []
    size = 0
    for change in changes:
        if batch and size + len(change.row.body) > _BATCH_BYTES:
            yield batch
            batch, size = [], 0
        batch.append(change)
        size += len(change.row.body)
    yield batch


def _kept_changing(line: Line) -> ConflictError:
    return ConflictError("the thread kept changing while it was rewritten", where=f"thread {line}", hint="Try again")


class _Overtaken(Exception):
    """The line changed while it was rewritten."""
