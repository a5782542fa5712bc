"""Rewriting a line: another physical form with the same commit hashes.

This is the one operation that changes how a line is stored and not its content. The new form is written beside the old
one and made durable; one batch switches; what only the old form needed is removed. Concurrent readers see one form or
the other. A crash before the switch leaves the old form, a crash after it the new one, and unused rows that the next
rewrite removes.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import chain, groupby
from typing import NamedTuple, TypeAlias

from holdfast.backends.interface import Backend, Change, Delete, Ensure, Expect, Put, Row, Scan
from holdfast.backends.paging import next_page, scan_rows
from holdfast.backends.tables import BRANCHES, NODES, OBJECTS, REFS, STEPS, WRITES
from holdfast.engine.context import Apply, EngineContext
from holdfast.engine.delta_channels import DeltaReader
from holdfast.engine.field_index import FieldIndex
from holdfast.engine.hold_check import require_no_hold
from holdfast.engine.leases import Lease, append_pause
from holdfast.engine.lines import LineIndex
from holdfast.engine.model.large_pointers import parse_pointer
from holdfast.engine.model.large_values import pointers
from holdfast.engine.model.nodes import MapRoot, WrittenBy
from holdfast.engine.model.operations import HEAVY
from holdfast.engine.model.steps import Step, StepParent, StubProof
from holdfast.engine.model.workspace import MissingNode
from holdfast.engine.namespaces import is_thread
from holdfast.engine.optimistic import Attempts, ConcurrentChange
from holdfast.engine.projection.projector import Projector
from holdfast.engine.projection.rows import transitions, without
from holdfast.engine.rewrite.progress import RewriteProgress, ScratchNodes
from holdfast.engine.rewrite.row_sizes import SizeBalance, balance, found_rows
from holdfast.engine.row_format import (
    MERGE,
    PIN,
    Branch,
    Line,
    LineInfo,
    StepRef,
    fold_row,
    is_about_step,
    node_row,
    object_rows,
    open_step,
    open_writes,
    write_row,
)
from holdfast.engine.state_loader import LoadedState
from holdfast.engine.text_index.indexer import TextIndexer
from holdfast.errors import ConflictError, CorruptError


@dataclass(frozen=True)
class LineRemoval:
    """The rows of a line that were read once, since it may take long: later appends do not change them."""

    backend: Backend
    objects: frozenset[bytes]
    """The digests of the stored large values."""
    written: frozenset[str]
    """The ids of the steps that have pending writes."""
    shown: Sequence[Row]
    """The readable rows of steps."""
    words: Sequence[Change]
    """The changes of the text index."""

    @classmethod
    async def of(cls, backend: Backend, walk: RewriteProgress, words: Sequence[Change]) -> LineRemoval:
        """Read the rows of a line."""
        line = tuple(walk.line)
        objects = {bytes(row.key[2]) async for row in scan_rows(backend, OBJECTS, line, bodies=False)}  # type: ignore[arg-type]
        written = {str(row.key[2]) async for row in scan_rows(backend, WRITES, line, bodies=False)}
        return cls(backend, frozenset(objects), frozenset(written), await transitions(backend, walk.line), words)

    async def changes(self, walk: RewriteProgress) -> list[Change]:
        """Return what is removed together with the dropped steps, besides what the switch removes."""
        line = walk.line
        (refs,) = await self.backend.read([Scan(REFS, tuple(line))])
        ids = walk.dropped_ids - walk.kept_ids
        changes: list[Change] = [Delete(WRITES, (*line, id)) for id in sorted(ids & self.written)]
        changes += (Delete(REFS, row.key) for row in refs if is_about_step(row) and row.columns[0] in ids)
        used = {parse_pointer(pointer).digest for pointer in walk.pointers}
        changes += (Delete(OBJECTS, (*line, digest)) for digest in sorted(self.objects - used))
        changes += self.words
        deleted = walk.removed_branches()
        remaining = [branch for branch in walk.branches[1:] if branch.branch not in deleted]
        return changes + await without(self.backend, line, ids, remaining, self.shown)


_FEW = 8
"""How many steps are read at first, when their size is unknown."""

_BATCH_BYTES = 1 << 20
"""About how many bytes of nodes are stored at a time."""


_PAUSES = 5
"""How often appends are paused for the last step of a rewrite, before it starts over."""


class RewritePlan(NamedTuple):
    """The parts of a line to remove: steps by their positions, and other changes to make together with that."""

    dropped: frozenset[tuple[int, int]]
    changes: Sequence[Change] = ()
    closed: int = 0
    """A branch that loses its name, where its positions are still needed."""
    erase: bool = False
    """Also remove the salts of stubs: nothing can be guessed any more about what the steps contained."""


Choose: TypeAlias = Callable[[Sequence[StepRef], Sequence[Branch]], Awaitable[RewritePlan]]
"""Selects what to remove, given a line's steps, branch by branch, and its branches but the first."""


class RewriteResult(NamedTuple):
    """The result of a rewrite or a dry run: what it frees, and how many bytes the thread has afterwards."""

    freed: SizeBalance
    size: int


class _Switch(NamedTuple):
    """The input of the last batch of a rewrite."""

    progress: RewriteProgress
    lease: Lease
    conditions: Sequence[Change]
    removal: LineRemoval | None
    plan: RewritePlan
    apply: Apply


class Rewriter:
    """Rewrites lines."""

    def __init__(
        self,
        context: EngineContext,
        lines: LineIndex,
        projector: Projector,
        indexer: TextIndexer,
        fields: FieldIndex,
        deltas: DeltaReader,
    ) -> None:
        self._context = context
        self._backend = context.backend
        self._lines = lines
        self._projector = projector
        self._indexer = indexer
        self._fields = fields
        self._deltas = deltas

    async def rewrite(self, line: Line, choose: Choose | None = None, apply: Apply | None = None) -> None:
        """Fold a line from its first step on: its nodes are then as full as they can be, and unused rows are removed.

        Selected steps are removed, except pinned ones. Where others follow them a stub remains, and those stay
        readable. It is done in full or not at all. Appends continue meanwhile. `ConflictError` if another rewrite of
        the thread is in progress, `DeniedError` if steps are selected and there is a hold on the thread.
        """
        await self._rewrite(line, choose, apply, measure=False)

    async def prune(self, line: Line, choose: Choose, apply: Apply | None = None) -> RewriteResult:
        """Rewrite a line, and return what that freed."""
        return await self._rewrite(line, choose, apply, measure=True)

    async def dry_run(self, line: Line, choose: Choose) -> RewriteResult:
        """Return what `prune` would free. All is computed as it does, and nothing is written."""
        attempts = Attempts("planning a rewrite", line, self._context.metrics)
        while True:
            await attempts.begin()
            info = await self._lines.info(line)
            left = await balance(self._context, _leftovers(line, info))
            try:
                outcome = await self._attempt(line, None, choose, None, measure=True)
            except (ConcurrentChange, MissingNode, CorruptError) as error:
                if not isinstance(error, ConcurrentChange) and await self._lines.info(line) == info:
                    raise
                continue
            if outcome is not None:
                return outcome._replace(freed=outcome.freed.plus(left))

    async def _rewrite(self, line: Line, choose: Choose | None, apply: Apply | None, *, measure: bool) -> RewriteResult:
        """Rewrite a line. `apply` applies the last batch of a rewrite that removes steps."""
        lease = Lease(self._context, line, "rewrite")
        try:
            await lease.acquire()
            info = await self._lines.info(line)
            left = await balance(self._context, _leftovers(line, info)) if measure else SizeBalance()
            attempts = Attempts("rewriting a thread", line, self._context.metrics)
            while True:
                await attempts.begin()
                try:
                    outcome = await self._attempt(line, lease, choose, apply, measure=measure)
                    if outcome is not None:
                        self._context.cache.drop_all(line)
                        await self._projector.follow(line)
                        return outcome._replace(freed=outcome.freed.plus(left))
                except (ConcurrentChange, MissingNode, CorruptError) as error:
                    before, info = info, await self._lines.info(line)  # raises if the line was deleted
                    if not isinstance(error, ConcurrentChange) and info == before:
                        raise
                await lease.renew_if_due()
        finally:
            await lease.release()

    async def _attempt(
        self, line: Line, lease: Lease | None, choose: Choose | None, apply: Apply | None, *, measure: bool
    ) -> RewriteResult | None:
        """Rewrite a line as it is now; without a lease, as a dry run. None if it changed meanwhile."""
        info = await self._lines.info(line)
        if lease is not None:
            await self._sweep(line, info, lease)
        branches = await self._lines.branches(line)
        plan, points = RewritePlan(frozenset()), None
        conditions: Sequence[Change] = ()
        if choose is not None:
            points = [StepRef.of(row) async for row in scan_rows(self._backend, STEPS, tuple(line), bodies=False)]
            plan = await self._without_pins(line, points, await choose(points, branches))
            if not plan.dropped and not plan.erase:
                return await self._apply_only(line, info, lease, plan.changes)
            conditions = await require_no_hold(self._backend, [line])
            carried = await self._deltas.carry_over(line, points, branches, plan.dropped)
            plan = plan._replace(changes=[*plan.changes, *carried])
        merges, proofs = await self._stub_contents(line, info.salt, points or (), plan.dropped)
        if plan.dropped:
            # Those of the plan come last: they may remove writes, too.
            plan = plan._replace(changes=[*await self._writes_of_kept(line, points or (), plan.dropped), *plan.changes])
        progress = RewriteProgress(
            self._context,
            line,
            info,
            branches,
            plan.dropped,
            points,
            plan.closed,
            merges,
            proofs,
            erase=plan.erase,
        )
        with ScratchNodes() as scratch:
            progress.scratch = scratch if lease is None else None
            commit = apply if apply is not None and choose is not None else self._backend.apply
            return await self._finish(progress, lease, conditions, plan, commit, measure=measure)

    async def _finish(
        self,
        progress: RewriteProgress,
        lease: Lease | None,
        conditions: Sequence[Change],
        plan: RewritePlan,
        apply: Apply,
        *,
        measure: bool,
    ) -> RewriteResult | None:
        line, info = progress.line, progress.info
        for branch in progress.branches:
            if not await self._follow(progress, lease, branch):
                return None
        removal = None
        if plan.dropped:
            words = await self._indexer.after_prune(line, plan.dropped, self._after_gaps(progress))
            removal = await LineRemoval.of(self._backend, progress, words)
        freed = SizeBalance()
        if measure:
            # Once: concurrent appends should not cause it to be computed again and again.
            old_nodes = Delete(NODES, (*line, info.form))
            changes = await self._changes(progress, removal, plan)
            freed = (await balance(self._context, chain(changes, [old_nodes]))).plus(progress.added)
        if lease is None:
            return RewriteResult(freed, progress.size)
        switch = _Switch(progress, lease, conditions, removal, plan, apply)
        switched = await self._switch(switch)
        for _ in range(_PAUSES):
            if switched is not None:
                break
            switched = await self._switch_in_pause(switch)
        if not switched:
            return None
        await self._sweep(line, progress.fresh, lease)
        return RewriteResult(freed, progress.size)

    async def _switch_in_pause(self, switch: _Switch) -> bool | None:
        """Switch to the new form while nobody appends: a fast writer would always be ahead."""
        progress, line = switch.progress, switch.progress.line
        pause = append_pause(self._context, line)
        try:
            await pause.acquire()
            # Writers that have not seen the pause know the old version, and are refused.
            renewed = [switch.lease.condition(), *self._lines.new_version(line, progress.info)]
            if await self._backend.apply(renewed) is not None:
                return False
            progress.renew_version()
            if switch.plan.dropped:
                switch = switch._replace(conditions=await require_no_hold(self._backend, [line]))
            return await self._switch(switch, pause)
        finally:
            await pause.release()

    async def _switch(self, switch: _Switch, pause: Lease | None = None) -> bool | None:
        """Switch to the new form. None if steps were appended meanwhile, False if the line changed in other ways."""
        progress, lease, line = switch.progress, switch.lease, switch.progress.line
        for branch in await self._grown_branches(progress):
            if not await self._follow(progress, lease, branch):
                return False
        changes = [*await self._changes(progress, switch.removal, switch.plan)]
        if switch.plan.dropped:
            changes += await self._fields.after_prune(line, switch.plan.dropped)
        for each in (lease, pause):
            if each is not None:
                await each.renew_if_due()
        fixed_conditions = [
            lease.condition(),
            self._lines.line_unchanged(line, progress.info),
            Expect(BRANCHES, (*line, progress.branches[-1].branch + 1), None),
            *switch.conditions,
        ]
        ends = (Expect(STEPS, (*line, branch, progress.done[branch]), None) for branch in progress.done)
        failed = await switch.apply([*fixed_conditions, *ends, *changes])
        if failed is None:
            return True
        if failed >= len(fixed_conditions):
            return None
        if not await lease.is_valid():
            raise await self._lease_lost(line)
        return False

    async def _stub_contents(
        self, line: Line, salt: bytes, points: Sequence[StepRef], dropped: Set[tuple[int, int]]
    ) -> tuple[dict[tuple[int, int], Sequence[StepParent]], dict[tuple[int, int], StubProof]]:
        """Return what stubs keep of removed steps: the further parents of merges, and the proofs of steps with a
        salt."""
        merges: dict[tuple[int, int], Sequence[StepParent]] = {}
        proofs: dict[tuple[int, int], StubProof] = {}
        opened = (point for point in points if point.kind == MERGE or not is_thread(line.name))
        keys = [(*line, *point[:2]) for point in opened if point[:2] in dropped]
        async for row in found_rows(self._context.stored, STEPS, keys):
            try:
                step = open_step(line, self._context.rows.decode(STEPS, row), self._context.max_bytes)
            except CorruptError:
                continue  # it is removed all the same; what it contained is unknown
            position = StepRef.of(row)[:2]
            if step.header.parents[1:]:
                merges[position] = step.header.parents[1:]
            if step.header.salt:
                proofs[position] = StubProof.of(step.header, step.digests(salt))
        return merges, proofs

    async def _writes_of_kept(
        self, line: Line, points: Sequence[StepRef], dropped: Set[tuple[int, int]]
    ) -> list[Change]:
        """Return the changes that store writes as rows again, which steps that are removed took over from ones that
        remain."""
        kept = {point[:2]: point for point in points if not point.pruned and point[:2] not in dropped}
        keys = [(*line, branch, seq) for branch, seq in sorted(dropped) if (branch, seq - 1) in kept]
        changes: list[Change] = []
        async for row in found_rows(self._context.stored, STEPS, keys):
            try:
                writes = open_writes(self._context.rows.decode(STEPS, row), self._context.max_bytes)
            except CorruptError:
                continue  # they are lost with it
            branch, seq = StepRef.of(row)[:2]
            changes += (Put(WRITES, write_row(line, kept[branch, seq - 1].id, write)) for write in writes)
        return changes

    async def _after_gaps(self, progress: RewriteProgress) -> AsyncIterator[tuple[StepRef, Step]]:
        """Yield the remaining steps that follow removed ones."""
        keys = [(*progress.line, *place) for place in progress.after_gaps]
        async for row in found_rows(self._context.stored, STEPS, keys):
            opened = open_step(progress.line, self._context.rows.decode(STEPS, row), self._context.max_bytes)
            yield StepRef.of(row), opened

    async def _changes(
        self, progress: RewriteProgress, removal: LineRemoval | None, plan: RewritePlan
    ) -> Iterable[Change]:
        """Return the changes that switch to the new form."""
        removed = [] if removal is None else await removal.changes(progress)
        return chain(removed, progress.switch_changes(), plan.changes)

    async def _without_pins(self, line: Line, points: Sequence[StepRef], plan: RewritePlan) -> RewritePlan:
        """Return the plan without steps that are pinned."""
        if not plan.dropped:
            return plan
        (rows,) = await self._backend.read([Scan(REFS, (*line, PIN))])
        pinned = {str(row.columns[0]) for row in rows}
        last = {each.id: each for each in sorted(points, key=lambda each: each.revision) if each.id in pinned}
        return plan._replace(dropped=plan.dropped - {each[:2] for each in last.values()})

    async def _apply_only(
        self, line: Line, info: LineInfo, lease: Lease | None, changes: Sequence[Change]
    ) -> RewriteResult | None:
        """Apply the other changes of a plan; no step is removed."""
        freed = await balance(self._context, changes)
        if (
            lease is not None
            and await self._backend.apply([self._lines.line_unchanged(line, info), *changes]) is not None
        ):
            return None
        return RewriteResult(freed, (await self._lines.summary(line)).size)

    async def _grown_branches(self, progress: RewriteProgress) -> list[Branch]:
        """Return the branches that have steps after those that were passed."""
        numbers = list(progress.done)
        pages = await self._backend.read(
            [Scan(STEPS, (*progress.line, n), start=(progress.done[n],), limit=1, bodies=False) for n in numbers]
        )
        longer = {number for number, rows in zip(numbers, pages, strict=True) if rows}
        return [branch for branch in progress.branches if branch.branch in longer]

    async def _follow(self, progress: RewriteProgress, lease: Lease | None, branch: Branch) -> bool:
        """Fold the steps of a branch that were not folded yet.

        False if a new step follows one that is removed.
        """
        number = branch.branch
        if number not in progress.done:
            for is_removed, points in groupby(progress.known.get(number, ()), progress.is_removed):
                if is_removed:
                    for point in points:
                        progress.drop(point)
                    continue
                run = list(points)
                async for row in self._rows(progress, number, run[0].seq, run[-1].seq + 1):
                    await self._fold_step(progress, lease, row, progress.last(branch))
                if progress.done.get(number) != run[-1].seq + 1:
                    raise ConcurrentChange
            progress.done.setdefault(number, 0)
        async for row in self._rows(progress, number, progress.done[number], await self._length(progress, number)):
            point = StepRef.of(row)
            if point.pruned:
                progress.drop(point)
            elif progress.known and progress.last(branch) is None:
                return False
            else:
                await self._fold_step(progress, lease, row, progress.last(branch))
        return True

    async def _length(self, progress: RewriteProgress, branch: int) -> int:
        """Return how many steps a branch has now. A fast writer may append more before they are folded."""
        (rows,) = await self._backend.read([Scan(STEPS, (*progress.line, branch), reverse=True, limit=1, bodies=False)])
        return StepRef.of(rows[0]).seq + 1 if rows else 0

    async def _rows(self, progress: RewriteProgress, branch: int, start: int, stop: int) -> AsyncIterator[Row]:
        """Yield the steps of a branch from a number on, up to another."""
        page = _FEW
        while start < stop:
            end = min(start + page, stop)
            (rows,) = await self._context.stored.read([Scan(STEPS, (*progress.line, branch), (start,), (end,))])
            for row in rows:
                yield self._context.rows.decode(STEPS, row)  # one by one, so that a page is not in memory twice
            if len(rows) < end - start:
                return
            start, page = end, next_page(page, rows)

    async def _fold_step(
        self, progress: RewriteProgress, lease: Lease | None, row: Row, last: LoadedState | None
    ) -> None:
        """Store the nodes of a step's state, where it is to be a folded one."""
        line, point = progress.line, StepRef.of(row)
        step = open_step(line, row, self._context.max_bytes)
        progress.merged.update(parent[:2] for parent in step.header.parents[1:])
        if last is None:
            # Its parent is removed. All of its state is stored, with the origins.
            loaded = await progress.states.get(line, point)
            if loaded.form not in (0, progress.info.form):
                loaded = await progress.states.load(line, point)
            tree = await progress.states.tree(line, loaded, progress.info.salt)
            progress.pointers |= tree.pointers
            await self._store(progress, lease, row, step, tree.root, tree.nodes, tree.objects)
            return
        loaded = LoadedState(last.root, last.form, (*last.tail, (WrittenBy(*point[:2]), step.edit)), fresh=last.fresh)
        progress.pointers.update(pointers(step.edit))
        # Folded where it was: what follows stays as it is, and no large value of the folded state becomes unused.
        if len(loaded.tail) < self._context.fold_every and point.tail:
            progress.keep(row, loaded, ())
            return
        ws, root = await progress.states.fold(line, loaded, progress.info.salt)
        progress.pointers.update(ws.objects)
        await self._store(progress, lease, row, step, root, ws.created, ws.objects)
        progress.states.keep_nodes(ws)

    async def _store(
        self,
        progress: RewriteProgress,
        lease: Lease | None,
        row: Row,
        step: Step,
        root: MapRoot,
        nodes: Mapping[bytes, bytes],
        objects: Mapping[bytes, bytes],
    ) -> None:
        line, point = progress.line, StepRef.of(row)
        node_rows = [node_row(line, progress.fresh.form, id, data) for id, data in nodes.items()]
        value_rows = [each for at, value in objects.items() for each in object_rows(line, at, value)]
        existing = {each.key async for each in found_rows(self._backend, OBJECTS, [each.key for each in value_rows])}
        progress.add([*node_rows, *(each for each in value_rows if each.key not in existing)])
        if progress.scratch is not None:
            progress.scratch.store({**nodes, **objects})
        if lease is not None:
            changes = [*(Ensure(NODES, each) for each in node_rows), *(Ensure(OBJECTS, each) for each in value_rows)]
            for batch in _batches(changes):
                conditions = [lease.condition(), self._lines.line_unchanged(line, progress.info)]
                if await self._backend.apply([*conditions, *batch]) is not None:
                    if not await lease.is_valid():
                        raise await self._lease_lost(line)
                    raise ConcurrentChange
                await lease.renew_if_due()
        header = step.header if sum(step.sizes) > HEAVY else None
        fold = fold_row(line, (point.branch, point.seq), point.hash, progress.fresh, root, header)
        progress.folds.append(fold)
        unsaved: Mapping[bytes, bytes] = {} if progress.scratch is None else progress.scratch
        loaded = LoadedState(root, progress.fresh.form, fresh=unsaved)
        progress.keep(row, loaded, [*(each.body for each in (*node_rows, *value_rows)), fold.body])

    async def _sweep(self, line: Line, info: LineInfo, lease: Lease) -> None:
        """Remove the nodes of the previous form, and those of a failed rewrite."""
        conditions = [lease.condition(), self._lines.line_unchanged(line, info)]
        # If it is refused, the current owner of the lease will do it.
        await self._backend.apply([*conditions, *_leftovers(line, info)])

    async def _lease_lost(self, line: Line) -> ConflictError:
        await self._lines.info(line)  # raises if the line was deleted, and the lease with it
        return ConflictError(
            "another process presumed this rewrite of the thread dead, and started its own",
            where=f"thread {line}",
            hint="Wait for it to end",
            code="lease-lost",
        )


def _leftovers(line: Line, info: LineInfo) -> list[Change]:
    return [Delete(NODES, (*line, info.form - 1)), Delete(NODES, (*line, info.form + 1))]


def _batches(changes: Sequence[Ensure]) -> Iterable[Sequence[Ensure]]:
    """Yield the changes in batches of a limited size. They are not visible yet."""
    batch: list[Ensure] = []
    size = 0
    for change in changes:
        if batch and size + len(change.row.body) > _BATCH_BYTES:
            yield batch
            batch, size = [], 0
        batch.append(change)
        size += len(change.row.body)
    yield batch
