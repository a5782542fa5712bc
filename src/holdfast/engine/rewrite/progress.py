"""A walk along a line that is rewritten: which steps stay, and what they will look like."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from types import MappingProxyType

from holdfast.backends.interface import Change, Delete, Put, Row
from holdfast.backends.tables import BRANCHES, FOLDS, LINES, STEPS, Key
from holdfast.engine.model.drafts import EMPTY
from holdfast.engine.model.steps import StepParent
from holdfast.engine.rewrite.row_sizes import SizeBalance
from holdfast.engine.rewrite.scratch_nodes import ScratchNodes
from holdfast.engine.row_format import Branch, Line, LineInfo, StepRef, info_row
from holdfast.engine.state_loader import LoadedState

FIRST = Branch(0, 0, 0, 0, "")
"""Stands for the branch that has no row."""


class RewriteProgress:
    """How far a rewrite has come.

    `points` are the steps of which `dropped` go; without them, none does. `merges` are those of them that are merges,
    with their further parents.
    """

    def __init__(
        self,
        line: Line,
        info: LineInfo,
        branches: Sequence[Branch],
        dropped: Set[tuple[int, int]],
        points: Sequence[StepRef] | None,
        closed: int = 0,
        merges: Mapping[tuple[int, int], Sequence[StepParent]] = MappingProxyType({}),
    ) -> None:
        self.line = line
        self.info = info
        self.fresh = info._replace(version=info.version + 1, form=info.form + 1)
        self.branches = (FIRST, *branches)
        self.dropped = dropped
        self._closed = closed
        self.known: dict[int, list[StepRef]] = {}
        """The steps that there were when it was chosen which of them go, by branch."""
        self._merges = dict(merges)
        """Merges that go, or went before, and their further parents."""
        for point in points or ():
            self.known.setdefault(point.branch, []).append(point)
            if point.merged:
                self._merges[point[:2]] = point.merged
        self.done: dict[int, int] = {}
        """How many steps of each branch are done."""
        self.folds: list[Row] = []
        self.pointers: set[bytes] = set()
        """Those of large values that are still needed."""
        self.merged: set[tuple[int, int]] = set()
        """Where the further parents of the merges are that stay."""
        self.kept_ids: set[str] = set()
        self.dropped_ids: set[str] = set()
        self.after_gaps: list[StepRef] = []
        """The steps that stay, where some go that lie between them and the one before that stays."""
        self._gaps: dict[int, bool] = {}
        """Of each branch, whether some went since the last one that stays."""
        self._gap_starts: set[tuple[int, int]] = set()
        self.rehearsal: ScratchNodes | None = None
        """Where nodes and large values are that would be stored; None if they are."""
        self.added = SizeBalance()
        """The nodes and large values of the new form."""
        self._added: set[Key] = set()
        self._base_places = {each.branch: (each.base_branch, each.base_length - 1) for each in branches}
        self._starts = set(self._base_places.values())
        self._bases: dict[tuple[int, int], LoadedState] = {(0, -1): LoadedState(EMPTY, 0)}
        self._last: dict[int, LoadedState | None] = {}
        self._sizes: dict[int, int] = {}
        self._ends: dict[int, tuple[StepRef, Row]] = {}
        """The last step of each branch that is kept, as it was and as it will be."""
        self._changed: dict[tuple[int, int], Row] = {}

    def goes(self, point: StepRef) -> bool:
        """Whether only its place is left of a step, if that."""
        return point.pruned or point[:2] in self.dropped

    def last(self, branch: Branch) -> LoadedState | None:
        """The state before the next step of a branch; None if the step of that state goes."""
        if branch.branch in self._last:
            return self._last[branch.branch]
        return self._bases.get((branch.base_branch, branch.base_length - 1))

    def keep(self, row: Row, loaded: LoadedState, stored: Iterable[bytes]) -> None:
        """Go past a step that stays."""
        point = StepRef.of(row)
        if self._follows_gap(point):
            self.after_gaps.append(point)
        self._gaps[point.branch] = False
        self._reached(point, loaded)
        self.kept_ids.add(point.id)
        now = point._replace(tail=len(loaded.tail))
        if self.dropped:
            size = self._sizes.get(point.branch, 0) + len(row.body) + sum(map(len, stored))
            self._sizes[point.branch] = size
            # What a branch takes is read off its last step. The others need not be written for that.
            self._ends[point.branch] = point, now._replace(size=size).row(self.line, row.body)
        if now != point:
            self._changed[point[:2]] = now.row(self.line, row.body)

    def drop(self, point: StepRef) -> None:
        """Go past a step that goes, or went before."""
        gap = self._gaps[point.branch] = not point.pruned or self._follows_gap(point)
        if gap and point[:2] in self._starts:
            self._gap_starts.add(point[:2])
        self._reached(point, None)
        if not point.pruned:
            self.dropped_ids.add(point.id)

    def _follows_gap(self, point: StepRef) -> bool:
        if point.seq:
            return self._gaps.get(point.branch, False)
        return self._base_places.get(point.branch) in self._gap_starts

    def _reached(self, point: StepRef, loaded: LoadedState | None) -> None:
        self.done[point.branch] = point.seq + 1
        self._last[point.branch] = loaded
        if point[:2] in self._starts and loaded is not None:
            self._bases[point[:2]] = loaded

    def add(self, rows: Iterable[Row]) -> None:
        """Count rows of the new form."""
        new = {row.key: row for row in rows if row.key not in self._added}
        self._added.update(new)
        self.added = self.added.less(new.values())

    @property
    def size(self) -> int:
        """How many bytes the steps that stay take, with their nodes and large values."""
        return sum(self._sizes.values())

    def switched(self) -> list[Change]:
        """The changes that make the new form the one that is read."""
        changes: list[Change] = [Delete(FOLDS, tuple(self.line)), *(Put(FOLDS, row) for row in self.folds)]
        steps = dict(self._changed)
        if self.dropped:
            lengths = self._kept_lengths()
            changes += (
                Delete(BRANCHES, (*self.line, branch.branch))
                for branch in self.branches[1:]
                if not lengths[branch.branch] and not self._is_start(branch)
            )
            changes += (
                Put(BRANCHES, branch._replace(name="").row(self.line))
                for branch in self.branches[1:]
                if branch.branch == self._closed and lengths[branch.branch]
            )
            for old, row in self._ends.values():
                if StepRef.of(row) != old:
                    steps[old[:2]] = row
            stubs = 0
            for number, points in self.known.items():
                for point in filter(self.goes, points):
                    if point.seq >= lengths[number]:
                        changes.append(Delete(STEPS, (*self.line, number, point.seq)))
                        continue
                    stubs += 1
                    last = point.seq == lengths[number] - 1
                    stub = point.stub(self._merges.get(point[:2], ()))
                    stub = stub._replace(size=self._sizes.get(number, 0) if last else 0)
                    if last or not point.pruned:
                        steps[point[:2]] = stub.row(self.line, b"")
            self.fresh = self.fresh._replace(pruned=stubs)
        changes += (Put(STEPS, row) for row in steps.values())
        return [*changes, Put(LINES, info_row(self.line, self.fresh))]

    def _is_start(self, branch: Branch) -> bool:
        """Whether a branch without steps of its own can be gone on with."""
        place = (branch.base_branch, branch.base_length - 1)
        return not self.done.get(branch.branch) and (place in self._bases)

    def _kept_lengths(self) -> dict[int, int]:
        """How many places of each branch are still needed: by its own steps, by merges, or by branches that start from
        them."""
        merged = set(self.merged)
        while True:
            lengths = self._lengths(merged)
            # What is left of a merge says what it merged, and that stays to be found as well.
            stubs = [parents for (number, seq), parents in self._merges.items() if seq < lengths[number]]
            more = {parent[:2] for parents in stubs for parent in parents} - merged
            if not more:
                return lengths
            merged |= more

    def _lengths(self, merged: Set[tuple[int, int]]) -> dict[int, int]:
        lengths = {number: point.seq + 1 for number, (point, _) in self._ends.items()}
        lengths = {branch.branch: lengths.get(branch.branch, 0) for branch in self.branches}
        for number, seq in merged:
            if number in lengths:
                lengths[number] = max(lengths[number], seq + 1)
        for branch in reversed(self.branches[1:]):
            if lengths[branch.branch] or self._is_start(branch):
                lengths[branch.base_branch] = max(lengths[branch.base_branch], branch.base_length)
        return lengths
