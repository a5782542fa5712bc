"""Rewriting a line: another physical form under the same commit hashes.

The one operation behind everything that changes how a line is stored and not what it says. The new form is written
beside the old one and made durable; one batch switches; what only the old form needed is swept. Whoever reads meanwhile
sees one form or the other. A crash before the switch leaves the old form, a crash after it the new one, and rows that
nobody reads until the next rewrite sweeps them.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass

from holdfast.backends.port import Change, Delete, Ensure, Expect, Get, Put, Row, Scan
from holdfast.backends.spaces import BRANCHES, FOLDS, LINES, NODES, OBJECTS, REFS, STEPS
from holdfast.engine.ground import Ground
from holdfast.engine.lines import Lines
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
from holdfast.model.nodes import Origin

_PAGE = 256
"""How many steps are read at a time."""

_LEASE_NS = 60 * 10**9
"""After this long without a sign of life, a rewrite is taken to be dead."""

_ATTEMPTS = 100
"""How often a rewrite follows what was appended meanwhile before it gives up."""


class Rewriter:
    """Rewrites lines."""

    def __init__(self, ground: Ground, lines: Lines, states: States) -> None:
        self._ground = ground
        self._backend = ground.backend
        self._lines = lines
        self._states = states

    async def refold(self, line: Line) -> None:
        """Fold a line from its first step on: its nodes are then as full as they can be, and what none needs is gone.

        Appends go on meanwhile. `Conflict` if another rewrite of the thread is under way.
        """
        lease = _Lease(Row((*line, "lease", "rewrite", ""), (secrets.token_hex(8), self._ground.clock())))
        try:
            await self._take(line, lease)
            for _ in range(_ATTEMPTS):
                if await self._refold(line, lease):
                    return
            raise Conflict("the thread kept changing while it was rewritten", where=f"thread {line}", hint="Try again")
        finally:
            await self._backend.apply([lease.condition(), Delete(REFS, lease.row.key)])

    async def _refold(self, line: Line, lease: _Lease) -> bool:
        info = await self._lines.info(line)
        await self._sweep(line, info, lease)
        fresh = Info(info.created, info.version + 1, info.form + 1)
        branches = [Branch(0, 0, 0, 0, ""), *await self._lines.branches(line)]
        walk = _Walk(line, info, lease, {(each.base_branch, each.base_length - 1) for each in branches})
        while True:
            for branch in branches:
                await self._follow(walk, branch)
            changes = [
                lease.condition(),
                self._lines.unchanged(line, info),
                Expect(BRANCHES, (*line, branches[-1].branch + 1), None),
                *(Expect(STEPS, (*line, branch, walk.done[branch]), None) for branch in walk.done),
                Put(LINES, info_row(line, fresh)),
                *(Put(FOLDS, row) for row in walk.folds),
            ]
            failed = await self._backend.apply(changes)
            if failed is None:
                break
            if failed < 3:  # not ours any more, or changed in more than its newest steps
                await self._renew(lease)
                return False
        await self._sweep(line, fresh, lease)
        return True

    async def _follow(self, walk: _Walk, branch: Branch) -> None:
        """Fold what a branch has beyond what was folded before."""
        number = branch.branch
        while True:
            start = walk.done.setdefault(number, 0)
            scan = Scan(STEPS, (*walk.line, number), (start,), (start + _PAGE,))
            (rows,) = await self._backend.read([scan])
            held = walk.held.get(number) or walk.bases[branch.base_branch, branch.base_length - 1]
            for row in rows:
                held = await self._fold_step(walk, row, held)
            walk.held[number], walk.done[number] = held, start + len(rows)
            if len(rows) < _PAGE:
                return

    async def _fold_step(self, walk: _Walk, row: Row, held: Held) -> Held:
        """The state after a step. Where it is a folded one, its nodes are stored."""
        line, point = walk.line, Point.of(row)
        step = open_step(line, row, self._ground.max_bytes)
        place = (point.branch, point.seq)
        held = Held(held.root, held.form, (*held.tail, (Origin(*place), step.edit)))
        if not point.tail:
            ws, root = await self._states.fold(line, held)
            changes: list[Change] = [walk.lease.condition(), self._lines.unchanged(line, walk.info)]
            changes += [Ensure(NODES, node_row(line, walk.form, id, data)) for id, data in ws.created.items()]
            for pointer, value in ws.objects.items():
                changes += [Ensure(OBJECTS, each) for each in object_rows(line, pointer, value)]
            if await self._backend.apply(changes) is not None:
                await self._lines.info(line)  # says so if the line is gone
                raise _overtaken(line)
            if self._ground.clock() - int(walk.lease.row.columns[1]) > _LEASE_NS // 4:
                await self._renew(walk.lease)
            self._states.keep_nodes(ws)
            walk.folds.append(fold_row(line, place, point.hash, walk.form, root))
            held = Held(root, walk.form)
        if place in walk.wanted:
            walk.bases[place] = held
        return held

    async def _sweep(self, line: Line, info: Info, lease: _Lease) -> None:
        """Remove the nodes of the form before this one, and those of a rewrite that came to nothing."""
        conditions = [lease.condition(), self._lines.unchanged(line, info)]
        swept = [Delete(NODES, (*line, info.form - 1)), Delete(NODES, (*line, info.form + 1))]
        # Refused, it is for whoever has the lease now.
        await self._backend.apply([*conditions, *swept])

    # One at a time --------------------------------------------------------------------------------------------

    async def _take(self, line: Line, lease: _Lease) -> None:
        key, (_, now) = lease.row.key, lease.row.columns
        (old,) = await self._backend.read([Get(REFS, [key])])
        if old and 0 <= int(now) - int(old[0].columns[1]) < _LEASE_NS:
            raise Conflict(
                "another rewrite of the thread is under way", where=f"thread {line}", hint="Wait for it to end"
            )
        expected = old[0].columns if old else None
        if await self._backend.apply([Expect(REFS, key, expected), Put(REFS, lease.row)]) is not None:
            raise Conflict("another rewrite of the thread has begun", where=f"thread {line}", hint="Wait for it to end")

    async def _renew(self, lease: _Lease) -> None:
        token, _ = lease.row.columns
        fresh = Row(lease.row.key, (token, self._ground.clock()))
        if await self._backend.apply([lease.condition(), Put(REFS, fresh)]) is not None:
            raise _overtaken(Line(*map(str, fresh.key[:2])))
        lease.row = fresh


def _overtaken(line: Line) -> Conflict:
    return Conflict("the thread changed while it was rewritten", where=f"thread {line}", hint="Try again")


@dataclass
class _Lease:
    """The right to rewrite a line, until another takes it for dead."""

    row: Row

    def condition(self) -> Change:
        """The condition that it still holds."""
        return Expect(REFS, self.row.key, self.row.columns)


class _Walk:
    """How far a rewrite has come."""

    def __init__(self, line: Line, info: Info, lease: _Lease, wanted: set[tuple[int, int]]) -> None:
        self.line = line
        self.info = info
        self.lease = lease
        self.form = info.form + 1
        self.wanted = wanted
        """The places where branches start."""
        self.bases: dict[tuple[int, int], Held] = {(0, -1): Held(EMPTY, 0)}
        self.held: dict[int, Held] = {}
        self.done: dict[int, int] = {}
        """How many steps of each branch are done."""
        self.folds: list[Row] = []
