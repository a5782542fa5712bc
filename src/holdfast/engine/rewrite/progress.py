"""The progress of a rewrite along a line: which steps remain, and their new rows."""

from __future__ import annotations

import tempfile
from collections import ChainMap
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from types import MappingProxyType
from typing import Self

from holdfast.backends.interface import Change, Delete, Put, Row
from holdfast.backends.runtime.memory_cache import MemoryCache
from holdfast.backends.tables import BRANCHES, FOLDS, LINES, STEPS, Key
from holdfast.engine.context import EngineContext
from holdfast.engine.model.drafts import EMPTY
from holdfast.engine.model.steps import StepParent, StubProof
from holdfast.engine.rewrite.row_sizes import SizeBalance
from holdfast.engine.row_format import Branch, Line, LineInfo, StepRef, drop_writes, info_row
from holdfast.engine.state_loader import LoadedState, StateLoader

_CACHE_BYTES = 4 << 20
"""Of a cache of its own: states of a form that goes are of no use to others."""

_IN_MEMORY = 2 << 20
"""How many bytes are in memory; more go to a temporary file."""


class ScratchNodes(Mapping[bytes, bytes]):
    """Nodes by id and large values by pointer, any number of them and not all in memory."""

    def __init__(self) -> None:
        self._file = tempfile.SpooledTemporaryFile(_IN_MEMORY)  # noqa: SIM115 - it is closed at the end of the block
        self._positions: dict[bytes, tuple[int, int]] = {}
        self._end = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._file.close()

    def store(self, values: Mapping[bytes, bytes]) -> None:
        """Add values."""
        for name, value in values.items():
            if name not in self._positions:
                self._file.seek(self._end)
                self._file.write(value)
                self._positions[name] = (self._end, len(value))
                self._end += len(value)

    def __getitem__(self, name: bytes) -> bytes:
        start, length = self._positions[name]
        self._file.seek(start)
        return self._file.read(length)

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._positions)

    def __len__(self) -> int:
        return len(self._positions)


FIRST = Branch(0, 0, 0, 0, "")
"""Represents the branch that has no row."""


class RewriteProgress:
    """The progress of a rewrite.

    `points` are the steps of which `dropped` are removed; without them, none is. `merges` are those of them that are
    merges, with their further parents; `proofs` is what their stubs keep of those with a salt. With `erase`, no stub
    keeps a salt.
    """

    def __init__(
        self,
        context: EngineContext,
        line: Line,
        info: LineInfo,
        branches: Sequence[Branch],
        dropped: Set[tuple[int, int]],
        points: Sequence[StepRef] | None,
        closed: int = 0,
        merges: Mapping[tuple[int, int], Sequence[StepParent]] = MappingProxyType({}),
        proofs: Mapping[tuple[int, int], StubProof] = MappingProxyType({}),
        *,
        erase: bool = False,
    ) -> None:
        self.line = line
        self.info: LineInfo = info
        self.fresh: LineInfo = info._replace(version=info.version + 1, form=info.form + 1)
        self.branches: tuple[Branch, ...] = (FIRST, *branches)
        self.dropped = dropped
        self._trims = bool(dropped) or erase
        self._erase = erase
        self._proofs = proofs
        self._closed = closed
        self.known: dict[int, list[StepRef]] = {}
        """The steps that existed when the selection was made, by branch."""
        self._merges = dict(merges)
        """Merges that are removed, or were before, and their further parents."""
        for point in points or ():
            self.known.setdefault(point.branch, []).append(point)
            if point.merged:
                self._merges[point[:2]] = point.merged
        self.max_bytes: int = context.max_bytes
        """The most bytes of a step."""
        cache = MemoryCache(min(_CACHE_BYTES, context.cache.max_bytes))
        self.states: StateLoader = StateLoader(context.backend, cache, context.max_bytes)
        self.done: dict[int, int] = {}
        """How many steps of each branch are done."""
        self.folds: list[Row] = []
        self.pointers: set[bytes] = set()
        """The pointers to large values that are still needed."""
        self.merged: set[tuple[int, int]] = set()
        """The positions of further parents of the merges that remain."""
        self.kept_ids: set[str] = set()
        self.dropped_ids: set[str] = set()
        self.after_gaps: list[tuple[int, int]] = []
        """The positions of the steps that remain and follow a removed one."""
        self._gaps: dict[int, bool] = {}
        """Of each branch, whether steps were removed since the last one that remains."""
        self._gap_starts: set[tuple[int, int]] = set()
        self.scratch: ScratchNodes | None = None
        """The nodes and large values of a dry run; None otherwise."""
        self.added: SizeBalance = SizeBalance()
        """The size of the nodes and large values of the new form."""
        self._added: set[Key] = set()
        self._base_positions = {each.branch: (each.base_branch, each.base_length - 1) for each in branches}
        self._starts = set(self._base_positions.values())
        self._bases: dict[tuple[int, int], LoadedState] = {(0, -1): LoadedState(EMPTY, 0)}
        self._last: dict[int, LoadedState | None] = {}
        self._sizes: dict[int, int] = {}
        self._ends: dict[int, tuple[StepRef, Row]] = {}
        """The last remaining step of each branch, as it was and as it will be."""
        self._changed: dict[tuple[int, int], Row] = {}

    def renew_version(self) -> None:
        """Follow a change of the version of the line."""
        self.info = self.info._replace(version=self.info.version + 1)
        self.fresh = self.fresh._replace(version=self.info.version + 1)

    def is_removed(self, point: StepRef) -> bool:
        """Return whether a step is removed, or reduced to a stub."""
        return point.pruned or point[:2] in self.dropped

    def last(self, branch: Branch) -> LoadedState | None:
        """Return the state before the next step of a branch; None if the step of that state is removed."""
        if branch.branch in self._last:
            return self._last[branch.branch]
        return self._bases.get((branch.base_branch, branch.base_length - 1))

    def keep(self, row: Row, loaded: LoadedState, stored: Iterable[bytes]) -> None:
        """Pass a step that remains."""
        point, before = StepRef.of(row), row
        if (point.branch, point.seq - 1) in self.dropped:
            row = drop_writes(row, self.max_bytes)  # they followed the removed step
        if self._follows_gap(point):
            self.after_gaps.append(point[:2])
        self._gaps[point.branch] = False
        self._advance(point, loaded)
        self.kept_ids.add(point.id)
        # A row without its writes has another size too, so that a copy of the line notices it.
        now = point._replace(tail=len(loaded.tail), size=point.size + len(row.body) - len(before.body))
        if self._trims:
            size = self._sizes.get(point.branch, 0) + len(row.body) + sum(map(len, stored))
            self._sizes[point.branch] = size
            # The size of a branch is read from its last step. The others need not be written for that.
            self._ends[point.branch] = point, now._replace(size=size).row(self.line, row.body)
        if now != point:
            self._changed[point[:2]] = now.row(self.line, row.body)

    def drop(self, point: StepRef) -> None:
        """Pass a step that is removed, or was before."""
        gap = self._gaps[point.branch] = not point.pruned or self._follows_gap(point)
        if gap and point[:2] in self._starts:
            self._gap_starts.add(point[:2])
        self._advance(point, None)
        if not point.pruned:
            self.dropped_ids.add(point.id)

    def _follows_gap(self, point: StepRef) -> bool:
        if point.seq:
            return self._gaps.get(point.branch, False)
        return self._base_positions.get(point.branch) in self._gap_starts

    def _advance(self, point: StepRef, loaded: LoadedState | None) -> None:
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
        """Return how many bytes the remaining steps take, with their nodes and large values."""
        return sum(self._sizes.values())

    def removed_branches(self) -> Set[int]:
        """Return the branches that are removed with their steps."""
        if not self._trims:
            return frozenset()
        lengths = self._needed_lengths()
        return {each.branch for each in self.branches[1:] if not lengths[each.branch] and not self._is_start(each)}

    def switch_changes(self) -> Iterator[Change]:
        """Yield the changes that make the new form the current one, of which there may be many."""
        yield Delete(FOLDS, tuple(self.line))
        yield from (Put(FOLDS, row) for row in self.folds)
        changed: Mapping[tuple[int, int], Row] = self._changed
        if self._trims:
            lengths = self._needed_lengths()
            yield from (Delete(BRANCHES, (*self.line, number)) for number in sorted(self.removed_branches()))
            yield from (
                Put(BRANCHES, branch._replace(name="").row(self.line))
                for branch in self.branches[1:]
                if branch.branch == self._closed and lengths[branch.branch]
            )
            ends: dict[tuple[int, int], Row] = {}
            for old, row in self._ends.values():
                if StepRef.of(row) != old:
                    ends[old[:2]] = row
            changed = ChainMap(ends, self._changed)
            stubs = 0
            for number, points in self.known.items():
                for point in filter(self.is_removed, points):
                    if point.seq >= lengths[number]:
                        yield Delete(STEPS, (*self.line, number, point.seq))
                        continue
                    stubs += 1
                    last = point.seq == lengths[number] - 1
                    stub = self._stub(point)._replace(size=self._sizes.get(number, 0) if last else 0)
                    if last or not point.pruned or stub.metadata != point.metadata:
                        yield Put(STEPS, stub.row(self.line, b""))
            self.fresh = self.fresh._replace(pruned=stubs)
        yield from (Put(STEPS, row) for row in changed.values())
        yield Put(LINES, info_row(self.line, self.fresh))

    def _stub(self, point: StepRef) -> StepRef:
        proof = point.proof or self._proofs.get(point[:2])
        if self._erase and proof is not None:
            proof = proof._replace(salt=b"")
        return point.stub(self._merges.get(point[:2], ()), proof)

    def _is_start(self, branch: Branch) -> bool:
        """Return whether a branch without steps of its own can be continued."""
        place = (branch.base_branch, branch.base_length - 1)
        return not self.done.get(branch.branch) and (place in self._bases)

    def _needed_lengths(self) -> dict[int, int]:
        """Return how many positions of each branch are still needed: by its own steps, by merges, or by branches that
        start from them."""
        merged = set(self.merged)
        while True:
            lengths = self._lengths(merged)
            # The stub of a merge names what it merged, and that remains as well.
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
