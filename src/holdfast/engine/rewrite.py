"""Rewriting a line: another physical form under the same commit hashes.

The one operation behind everything that changes how a line is stored and not what it says. The new form is written
beside the old one and made durable; one batch switches; what only the old form needed is swept. Whoever reads meanwhile
sees one form or the other. A crash before the switch leaves the old form, a crash after it the new one, and rows that
nobody reads until the next rewrite sweeps them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence, Set
from typing import NamedTuple, TypeAlias

from holdfast.backends.port import Change, Delete, Ensure, Expect, Put, Row, Scan
from holdfast.backends.spaces import BRANCHES, FOLDS, LINES, NODES, OBJECTS, REFS, STEPS, WRITES
from holdfast.engine.ground import Ground
from holdfast.engine.leases import Lease
from holdfast.engine.lines import Lines
from holdfast.engine.projected import without
from holdfast.engine.projection import Projector
from holdfast.engine.records import (
    Branch,
    Info,
    Line,
    Point,
    fold_row,
    info_row,
    node_row,
    object_rows,
    open_step,
)
from holdfast.engine.states import Held, States
from holdfast.errors import Conflict
from holdfast.model.drafts import EMPTY
from holdfast.model.large import pointers
from holdfast.model.nodes import MapRoot, Origin
from holdfast.model.objects import parse_pointer

_PAGE = 256
"""How many steps are read at a time."""

_ATTEMPTS = 100
"""How often a rewrite follows what was appended meanwhile before it gives up."""


class Choice(NamedTuple):
    """What is to go from a line: steps by their places, and what else is to change together with that."""

    dropped: frozenset[tuple[int, int]]
    changes: Sequence[Change] = ()


Choose: TypeAlias = Callable[[Sequence[Point], Sequence[Branch]], Awaitable[Choice]]
"""Chooses what is to go, given a line's steps, branch by branch, and its branches but the first."""


class Rewriter:
    """Rewrites lines."""

    def __init__(self, ground: Ground, lines: Lines, states: States, projector: Projector) -> None:
        self._ground = ground
        self._backend = ground.backend
        self._lines = lines
        self._states = states
        self._projector = projector

    async def rewrite(self, line: Line, choose: Choose | None = None) -> None:
        """Fold a line from its first step on: its nodes are then as full as they can be, and what none needs is gone.

        Steps that are chosen go. Where others follow them a stub is left, and those stay readable as they were. It is
        done in full or not at all. Appends go on meanwhile. `Conflict` if another rewrite of the thread is under way.
        """
        lease = Lease(self._ground, line, "rewrite")
        try:
            await lease.take()
            for _ in range(_ATTEMPTS):
                try:
                    if await self._rewrite(line, lease, choose):
                        self._ground.cache.forget(line)
                        await self._projector.follow(line)
                        return
                except _Overtaken:
                    await self._lines.info(line)  # says so if the line is gone
                await lease.show_life()
            raise Conflict("the thread kept changing while it was rewritten", where=f"thread {line}", hint="Try again")
        finally:
            await lease.give_back()

    async def _rewrite(self, line: Line, lease: Lease, choose: Choose | None) -> bool:
        info = await self._lines.info(line)
        await self._sweep(line, info, lease)
        branches = await self._lines.branches(line)
        choice, known = Choice(frozenset()), None
        if choose is not None:
            points = await self._points(line, branches)
            choice, known = await choose(points, branches), {point[:2] for point in points}
            if not choice.dropped:
                return await self._backend.apply([self._lines.unchanged(line, info), *choice.changes]) is None
        walk = _Walk(line, info, lease, branches, choice.dropped)
        while True:
            for branch in (_FIRST, *branches):
                if not await self._follow(walk, branch, known):
                    return False
            changes = [
                lease.condition(),
                self._lines.unchanged(line, info),
                Expect(BRANCHES, (*line, walk.branches[-1].branch + 1), None),
                *(Expect(STEPS, (*line, branch, walk.done[branch]), None) for branch in walk.done),
            ]
            switched = walk.switched()
            if choice.dropped:
                changes += await self._removed(walk, switched)
            changes += switched
            failed = await self._backend.apply([*changes, *choice.changes])
            if failed is None:
                break
            if failed < 3:  # not ours any more, or changed in more than its newest steps
                if not await lease.is_held():
                    raise _taken_over(line)
                return False
        await self._sweep(line, walk.fresh, lease)
        return True

    async def _points(self, line: Line, branches: Sequence[Branch]) -> list[Point]:
        points: list[Point] = []
        for branch in (_FIRST, *branches):
            (rows,) = await self._backend.read([Scan(STEPS, (*line, branch.branch), bodies=False)])
            points += map(Point.of, rows)
        return points

    async def _follow(self, walk: _Walk, branch: Branch, known: Set[tuple[int, int]] | None) -> bool:
        """Fold what a branch has beyond what was folded before.

        False if a step that was not known when the choice was made follows one that goes.
        """
        number = branch.branch
        while True:
            start = walk.done.setdefault(number, 0)
            scan = Scan(STEPS, (*walk.line, number), (start,), (start + _PAGE,))
            (rows,) = await self._backend.read([scan])
            for row in rows:
                point = Point.of(row)
                if point.pruned or point[:2] in walk.dropped:
                    walk.drop(point)
                elif known is not None and point[:2] not in known and walk.last(branch) is None:
                    return False
                else:
                    await self._fold_step(walk, row, walk.last(branch))
            walk.done[number] = start + len(rows)
            if len(rows) < _PAGE:
                return True

    async def _fold_step(self, walk: _Walk, row: Row, last: Held | None) -> None:
        """Store the nodes of a step's state, where it is to be a folded one."""
        line, point = walk.line, Point.of(row)
        step = open_step(line, row, self._ground.max_bytes)
        if last is None:
            # What it follows goes. All that its state is made of is taken over, with where it came from.
            held = await self._states.hold(line, point)
            if held.form not in (0, walk.info.form):
                held = await self._states.load(line, point)
            tree = await self._states.tree(line, held)
            walk.pointers |= tree.pointers
            await self._store(walk, row, tree.root, tree.nodes, tree.objects)
            return
        held = Held(last.root, last.form, (*last.tail, (Origin(*point[:2]), step.edit)))
        walk.pointers.update(pointers(step.edit))
        if len(held.tail) < self._ground.fold_every:
            walk.keep(row, held, ())
            return
        ws, root = await self._states.fold(line, held)
        walk.pointers.update(ws.objects)
        await self._store(walk, row, root, ws.created, ws.objects)
        self._states.keep_nodes(ws)

    async def _store(
        self, walk: _Walk, row: Row, root: MapRoot, nodes: Mapping[bytes, bytes], objects: Mapping[bytes, bytes]
    ) -> None:
        line, point = walk.line, Point.of(row)
        rows = [Ensure(NODES, node_row(line, walk.fresh.form, id, data)) for id, data in nodes.items()]
        rows += [Ensure(OBJECTS, each) for at, value in objects.items() for each in object_rows(line, at, value)]
        conditions = [walk.lease.condition(), self._lines.unchanged(line, walk.info)]
        if await self._backend.apply([*conditions, *rows]) is not None:
            if not await walk.lease.is_held():
                raise _taken_over(line)
            raise _Overtaken
        await walk.lease.show_life()
        stored = fold_row(line, (point.branch, point.seq), point.hash, walk.fresh.form, root)
        walk.folds.append(stored)
        walk.keep(row, Held(root, walk.fresh.form), [*(each.row.body for each in rows), stored.body])

    async def _removed(self, walk: _Walk, switched: Sequence[Change]) -> list[Change]:
        """What goes together with the dropped steps, besides what the switch removes."""
        line = walk.line
        refs, objects = await self._backend.read([Scan(REFS, tuple(line)), Scan(OBJECTS, tuple(line), bodies=False)])
        gone = walk.dropped_ids - walk.kept_ids
        changes: list[Change] = [Delete(WRITES, (*line, id)) for id in sorted(gone)]
        changes += (Delete(REFS, row.key) for row in refs if row.key[2] != "lease" and row.columns[0] in gone)
        used = {parse_pointer(pointer).digest for pointer in walk.pointers}
        unused = {row.key[2] for row in objects} - used
        changes += (Delete(OBJECTS, (*line, digest)) for digest in sorted(map(bytes, unused)))  # type: ignore[arg-type]
        deleted = {each.prefix[2:] for each in switched if isinstance(each, Delete) and each.space is BRANCHES}
        left = [branch for branch in walk.branches[1:] if (branch.branch,) not in deleted]
        return changes + await without(self._backend, line, gone, left)

    async def _sweep(self, line: Line, info: Info, lease: Lease) -> None:
        """Remove the nodes of the form before this one, and those of a rewrite that came to nothing."""
        conditions = [lease.condition(), self._lines.unchanged(line, info)]
        swept = [Delete(NODES, (*line, info.form - 1)), Delete(NODES, (*line, info.form + 1))]
        # Refused, it is for whoever has the lease now.
        await self._backend.apply([*conditions, *swept])


def _taken_over(line: Line) -> Conflict:
    return Conflict(
        "another took this rewrite of the thread for dead, and began its own",
        where=f"thread {line}",
        hint="Wait for it to end",
    )


class _Overtaken(Exception):
    """The line changed while it was rewritten."""


_FIRST = Branch(0, 0, 0, 0, "")


class _Walk:
    """How far a rewrite has come."""

    def __init__(
        self, line: Line, info: Info, lease: Lease, branches: Sequence[Branch], dropped: Set[tuple[int, int]]
    ) -> None:
        self.line = line
        self.info = info
        self.fresh = info._replace(version=info.version + 1, form=info.form + 1)
        self.lease = lease
        self.branches = (_FIRST, *branches)
        self.dropped = dropped
        self.done: dict[int, int] = {}
        """How many steps of each branch are done."""
        self.folds: list[Row] = []
        self.pointers: set[bytes] = set()
        """Those of large values that are still needed."""
        self.kept_ids: set[str] = set()
        self.dropped_ids: set[str] = set()
        self._starts = {(each.base_branch, each.base_length - 1) for each in branches}
        self._bases: dict[tuple[int, int], Held] = {(0, -1): Held(EMPTY, 0)}
        self._last: dict[int, Held | None] = {}
        self._sizes: dict[int, int] = {}
        self._lengths: dict[int, int] = {}
        """How many steps of each branch there are up to the last that is kept."""
        self._changed: dict[tuple[int, int], Row] = {}
        self._stubs: dict[tuple[int, int], Point | None] = {}
        """What is to be where steps were; None where it is there already."""

    def last(self, branch: Branch) -> Held | None:
        """The state before the next step of a branch; None if the step of that state goes."""
        if branch.branch in self._last:
            return self._last[branch.branch]
        return self._bases.get((branch.base_branch, branch.base_length - 1))

    def keep(self, row: Row, held: Held, stored: Iterable[bytes]) -> None:
        """Go past a step that stays."""
        point = Point.of(row)
        self._reached(point, held)
        self.kept_ids.add(point.id)
        self._lengths[point.branch] = point.seq + 1
        size = point.size
        if self.dropped:
            size = self._sizes.get(point.branch, 0) + len(row.body) + sum(map(len, stored))
            self._sizes[point.branch] = size
        now = point._replace(tail=len(held.tail), size=size)
        if now != point:
            self._changed[point[:2]] = now.row(self.line, row.body)

    def drop(self, point: Point) -> None:
        """Go past a step that goes, or went before."""
        self._reached(point, None)
        stub = point.stub()._replace(size=self._sizes.get(point.branch, 0))
        self._stubs[point[:2]] = None if stub == point else stub
        if not point.pruned:
            self.dropped_ids.add(point.id)

    def _reached(self, point: Point, held: Held | None) -> None:
        self._last[point.branch] = held
        if point[:2] in self._starts and held is not None:
            self._bases[point[:2]] = held

    def switched(self) -> list[Change]:
        """The changes that make the new form the one that is read."""
        changes: list[Change] = [Delete(FOLDS, tuple(self.line)), *(Put(FOLDS, row) for row in self.folds)]
        changes += (Put(STEPS, row) for row in self._changed.values())
        if self.dropped:
            lengths = self._kept_lengths()
            for branch in self.branches[1:]:
                if not lengths[branch.branch] and not self._is_start(branch):
                    changes.append(Delete(BRANCHES, (*self.line, branch.branch)))
            stubs = 0
            for (number, seq), stub in self._stubs.items():
                if seq >= lengths[number]:
                    changes.append(Delete(STEPS, (*self.line, number, seq)))
                else:
                    stubs += 1
                    if stub is not None:
                        changes.append(Put(STEPS, stub.row(self.line, b"")))
            self.fresh = self.fresh._replace(pruned=stubs)
        return [*changes, Put(LINES, info_row(self.line, self.fresh))]

    def _is_start(self, branch: Branch) -> bool:
        """Whether a branch without steps of its own can be gone on with."""
        place = (branch.base_branch, branch.base_length - 1)
        return not self.done.get(branch.branch) and (place in self._bases)

    def _kept_lengths(self) -> dict[int, int]:
        """How many places of each branch are still needed: by its own steps, or by branches that start from them."""
        lengths = {branch.branch: self._lengths.get(branch.branch, 0) for branch in self.branches}
        for branch in reversed(self.branches[1:]):
            if lengths[branch.branch] or self._is_start(branch):
                lengths[branch.base_branch] = max(lengths[branch.base_branch], branch.base_length)
        return lengths
