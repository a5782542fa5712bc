"""Finding the right steps of a damaged line.

Every step names its parent by place and hash. So from the end of a branch backwards it is known which hash each place
must have; whatever has it is the step, wherever it was found: at its place, at another one, or in another store.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from holdfast.backends.interface import Row
from holdfast.backends.paging import UnreadableRange, scan_readable_rows
from holdfast.backends.tables import STEPS
from holdfast.engine.context import EngineContext
from holdfast.engine.model.steps import Step, StepParent
from holdfast.engine.row_format import Branch, Line, StepRef, decode_step
from holdfast.errors import CorruptError, HoldfastError
from holdfast.maintenance.repair.sources import RepairSource, first_of

Where = tuple[int, int]

_MOST_ELSEWHERE = 1000
"""The number of misplaced steps that are remembered."""


@dataclass
class BranchChain:
    """The positions of one branch."""

    branch: int
    commits: list[bytes] = field(default_factory=list)
    """The hash at each position; empty where there is no intact step."""
    parents: list[StepParent | None] = field(default_factory=list)
    stubs: set[int] = field(default_factory=set)
    lost_stubs: set[int] = field(default_factory=set)
    """The stubs of steps that an earlier repair did not find."""
    taken: dict[int, Row] = field(default_factory=dict)
    """Rows to put where there is none, or a wrong one."""
    lost: dict[int, bytes | None] = field(default_factory=dict)
    """Positions without a step, and the hash that it had, if that is known."""

    def put(self, seq: int, commit: bytes, parent: StepParent | None) -> None:
        """Set what is at a position. Positions before it without anything are empty."""
        missing = seq - len(self.commits)
        self.commits += [b""] * missing
        self.parents += [None] * missing
        self.commits.append(commit)
        self.parents.append(parent)

    @property
    def first_parent(self) -> StepParent | None:
        """The step that the branch starts from, according to its first step."""
        return self.parents[0] if self.parents else None

    @property
    def length(self) -> int:
        """The number of positions."""
        return len(self.commits)


def open_row(row: Row, max_bytes: int, salt: bytes, commit: bytes | None = None) -> Step | None:
    """Return the step in a row, if it has the hash of the row, or a given one: its hash proves that it is intact,
    whatever the columns and the checksum of the row say."""
    expected = StepRef.of(row).hash if commit is None else commit
    try:
        step = decode_step(row, max_bytes)
    except HoldfastError:
        return None
    return step if step.commit(salt) == expected else None


class ChainFinder:
    """Finds the steps of a line."""

    def __init__(self, context: EngineContext, line: Line, salt: bytes, sources: Sequence[RepairSource]) -> None:
        self._stored = context.stored
        self._rows = context.rows
        self._salt = salt
        self._line = line
        self._max_bytes = context.max_bytes
        self._sources = sources
        self.chains: dict[int, BranchChain] = {}
        self.used: set[str] = set()
        """The sources that were used."""
        self.restored: int = 0
        self.agreeing: dict[int, list[RepairSource]] = {}
        """For each branch, the sources with the same history."""
        self._elsewhere: dict[bytes, Row] = {}
        self._strays: dict[Where, list[Step]] = {}
        """Misplaced steps, by their right position."""
        self._expected: dict[Where, bytes] = {}

    async def find(self, branches: Sequence[Branch], same: RepairSource | None) -> None:
        """Read the steps, and find those that are missing. `same` is a source that differs only by appends: what it has
        beyond the end was lost here."""
        await self._read()
        for branch in branches:
            self.chains.setdefault(branch.branch, BranchChain(branch.branch))
        self.chains.setdefault(0, BranchChain(0))
        await self._compare()
        if same is not None and same in self.agreeing[0]:
            for branch in await same.branches(self._line):
                self.chains.setdefault(branch.branch, BranchChain(branch.branch))
                self.agreeing.setdefault(branch.branch, [same])
            for number in sorted(self.chains):
                if same in self.agreeing[number]:
                    await self._extend(self.chains[number], same)
        for number in sorted(self.chains, reverse=True):
            await self._judge(self.chains[number])

    async def _read(self) -> None:
        holes: list[UnreadableRange] = []
        async for stored in scan_readable_rows(self._stored, STEPS, tuple(self._line), holes):
            row = self._rows.salvage(STEPS, stored)
            point = StepRef.of(row)
            chain = self.chains.setdefault(point.branch, BranchChain(point.branch))
            if point.pruned and not row.body:
                chain.put(point.seq, point.hash, None)
                chain.stubs.add(point.seq)
                with suppress(CorruptError):
                    chain.lost_stubs |= {point.seq} if point.lost else set()
                continue
            step = open_row(row, self._max_bytes, self._salt)
            if step is None:
                chain.put(point.seq, b"", None)
            elif not _fits(step, point[:2]):
                chain.put(point.seq, b"", None)
                if len(self._elsewhere) < _MOST_ELSEWHERE:
                    self._elsewhere[step.commit(self._salt)] = row
                    before = step.header.parents[0] if step.header.parents else StepParent(0, -1, b"")
                    self._strays.setdefault((before.branch, before.seq + 1), []).append(step)
            else:
                chain.put(point.seq, step.commit(self._salt), step.header.parents[0] if step.header.parents else None)
                if not point.seq:
                    self._elsewhere[step.commit(self._salt)] = row  # it does not name its branch

    async def _compare(self) -> None:
        """Find the sources with the same history. Others have other steps at the same positions."""
        self.agreeing[0] = [each for each in self._sources if await self._agrees(self.chains[0], each)]
        for number in sorted(self.chains.keys() - {0}):
            chain = self.chains[number]
            self.agreeing[number] = [each for each in self.agreeing[0] if await self._agrees(chain, each)]

    async def _agrees(self, chain: BranchChain, source: RepairSource) -> bool:
        """Return whether a source has the same step at the last common position of a branch, and so before it too."""
        stubs = sorted(chain.stubs, reverse=True)  # no hash covers the hash of a stub: they are the last resort
        steps = [seq for seq in reversed(range(chain.length)) if chain.commits[seq] and seq not in chain.stubs]
        for seq in (*steps, *stubs):
            theirs = await source.hash_at(self._line, (chain.branch, seq))
            if theirs is not None:
                return theirs == chain.commits[seq]
        return True

    async def _extend(self, chain: BranchChain, same: RepairSource) -> None:
        """Add what a source has beyond the end, if it continues there."""
        while True:
            place = (chain.branch, chain.length)
            row = await same.step(self._line, place, None)
            stub = None if row is not None else await same.stub(self._line, place, None)
            if stub is not None:
                chain.stubs.add(chain.length)
                chain.taken[chain.length] = stub
                chain.put(chain.length, StepRef.of(stub).hash, None)
                continue
            step = None if row is None else open_row(row, self._max_bytes, self._salt)
            if row is None or step is None or not _fits(step, place):
                return
            parent = step.header.parents[0] if step.header.parents else None
            before = chain.commits[-1] if chain.length else self._commit_at(parent)
            if before and (parent is None or parent.commit != before):
                return
            self._take(chain, chain.length, row, same)
            chain.put(chain.length, step.commit(self._salt), parent)

    def _commit_at(self, parent: StepParent | None) -> bytes:
        """Return the hash at the start of a branch, if it is known."""
        chain = None if parent is None else self.chains.get(parent.branch)
        return (
            chain.commits[parent.seq] if chain is not None and parent is not None and parent.seq < chain.length else b""
        )

    async def _judge(self, chain: BranchChain) -> None:
        """Find the step that belongs at each position, from the end backwards."""
        for seq in reversed(range(chain.length)):
            place = (chain.branch, seq)
            expected = self._expected.get(place)
            there = chain.commits[seq]
            if seq in chain.stubs:
                expected = expected or self._stray(chain, seq) or await self._known(place, there)
                if expected == there and not (seq in chain.lost_stubs and await self._is_in_source(place, there)):
                    continue
                chain.stubs.discard(seq)  # of another step, at the same position
                await self._look_for(chain, seq, expected)
                if not chain.commits[seq]:
                    chain.stubs.add(seq)
                    chain.commits[seq] = expected
                    del chain.lost[seq]
            elif not there or expected not in (None, there):
                await self._look_for(chain, seq, expected)
            parent = chain.parents[seq]
            if parent is not None and chain.commits[seq]:
                self._expected[parent.branch, parent.seq] = parent.commit
                base = self.chains.get(parent.branch)
                if base is not None and parent.seq >= base.length:
                    base.put(parent.seq, b"", None)  # the end that this branch starts from was lost

    def _stray(self, chain: BranchChain, seq: int) -> bytes:
        """Return the hash of a step that belongs at a position, and follows the one before, if that is known."""
        for step in self._strays.get((chain.branch, seq), ()):
            before = chain.commits[seq - 1] if seq and seq - 1 not in chain.stubs else b""
            if not before or step.header.parents[0].commit == before:
                return step.commit(self._salt)
        return b""

    async def _known(self, place: Where, there: bytes) -> bytes:
        """Return the hash of a pruned step: from sources, or else from its stub."""
        found = await first_of(self.agreeing[place[0]], lambda source: source.step(self._line, place, None))
        return StepRef.of(found[0]).hash if found is not None else there

    async def _is_in_source(self, place: Where, commit: bytes) -> bool:
        return await first_of(self._sources, lambda source: source.step(self._line, place, commit)) is not None

    async def _look_for(self, chain: BranchChain, seq: int, expected: bytes | None) -> None:
        place = (chain.branch, seq)
        row: Row | None = None
        expected = expected or self._stray(chain, seq) or None
        if expected is not None:
            row = await self._own(place, expected) or self._elsewhere.get(expected)
        if row is None:
            known = expected or await self._said(place)
            found = await first_of(self._sources, lambda source: source.step(self._line, place, known))
            if found is None and expected is None:
                found = await first_of(self.agreeing[chain.branch], lambda source: source.step(self._line, place, None))
            if found is not None:
                row = found[0]
                self._take(chain, seq, row, found[1])
        step = None if row is None else open_row(row, self._max_bytes, self._salt, expected)
        if row is None or step is None or not _fits(step, place):
            chain.taken.pop(seq, None)
            chain.commits[seq], chain.parents[seq] = b"", None
            chain.lost[seq] = expected or await self._said(place)
            stub = await first_of(self.agreeing[chain.branch], lambda source: source.stub(self._line, place, expected))
            if stub is not None:
                chain.stubs.add(seq)
                chain.taken[seq], chain.commits[seq] = stub[0], StepRef.of(stub[0]).hash
            return
        point = StepRef.of(row)._replace(branch=chain.branch, seq=seq, hash=step.commit(self._salt))
        chain.taken[seq] = point.row(self._line, row.body)
        chain.commits[seq] = step.commit(self._salt)
        chain.parents[seq] = step.header.parents[0] if step.header.parents else None

    def _take(self, chain: BranchChain, seq: int, row: Row, source: RepairSource) -> None:
        chain.taken[seq] = row
        self.used.add(source.url)
        self.restored += 1

    async def _own(self, place: Where, expected: bytes) -> Row | None:
        """Return the row at a position, if only its hash is wrong."""
        row = await self.row_at(place)
        return row if row is not None and open_row(row, self._max_bytes, self._salt, expected) is not None else None

    async def _said(self, place: Where) -> bytes | None:
        """Return the hash in the row of a damaged step."""
        row = await self.row_at(place)
        return None if row is None or len(StepRef.of(row).hash) != 32 else StepRef.of(row).hash

    async def row_at(self, place: Where) -> Row | None:
        """Return the row at a position, if it can be read."""
        holes: list[UnreadableRange] = []
        async for stored in scan_readable_rows(self._stored, STEPS, (*self._line, *place), holes):
            return self._rows.salvage(STEPS, stored)
        return None


def _fits(step: Step, place: Where) -> bool:
    """Return whether a step is at its own position."""
    branch, seq = place
    parents = step.header.parents
    if seq:
        return bool(parents) and parents[0][:2] == (branch, seq - 1)
    return not parents or parents[0].branch < branch
