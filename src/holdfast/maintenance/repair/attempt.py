"""An attempt to repair one line: from other stores what they have, from its own steps what follows from them.

What is found right is left as it is. Steps that are lost leave a stub where others follow, like pruned ones; a step
behind a gap stays if its state is there in folded form, here or in a source. All damaged rows go to quarantine. Nodes
and large values are stored first, where nobody sees them; one batch then changes the line. Cut short anywhere, the line
is as it was, and repairing it again finishes.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from holdfast._fields import count, fill
from holdfast.backends.interface import Change, Delete, Ensure, Expect, Get, Put, Row, Scan
from holdfast.backends.paging import UnreadableRange, scan_readable_rows
from holdfast.backends.runtime.memory_cache import MemoryCache
from holdfast.backends.tables import (
    BRANCHES,
    EVENTS,
    FOLDS,
    LINES,
    LINKS,
    NODES,
    OBJECTS,
    QUARANTINE,
    REFS,
    STEPS,
    WRITES,
    Table,
)
from holdfast.engine.checked_rows import mark_row, marked_tables
from holdfast.engine.engine import Engine
from holdfast.engine.integrity.check import LineCheck
from holdfast.engine.integrity.findings import Finding, FindingCode, Severity, VerifyLevel
from holdfast.engine.integrity.verify import look
from holdfast.engine.leases import Lease
from holdfast.engine.model.drafts import EMPTY
from holdfast.engine.model.large_pointers import parse_pointer
from holdfast.engine.model.nodes import MapRoot, WrittenBy
from holdfast.engine.model.steps import Step
from holdfast.engine.row_format import (
    AT_HEAD,
    LEASE,
    LOST_STUB,
    PRUNED,
    Branch,
    Line,
    LineInfo,
    StepRef,
    add_origin,
    drop_writes,
    fold_row,
    info_row,
    may_be_hold,
    node_row,
    object_rows,
    open_fold,
    readable_of_line,
)
from holdfast.engine.state_loader import LoadedState, StateLoader, pointers_in
from holdfast.errors import ConflictError, CorruptError, HoldfastError, NotFoundError
from holdfast.maintenance.repair.chains import BranchChain, ChainFinder, Where, open_row
from holdfast.maintenance.repair.quarantine import QuarantineWriter
from holdfast.maintenance.repair.sources import RepairSource, first_of, new_info


class LostCheckpoint(msgspec.Struct, frozen=True):
    """A checkpoint that is lost. Its id is empty if it is unknown, and its step -1 if even that is."""

    thread: str
    checkpoint: str
    branch: int
    step: int
    reason: str


class ThreadRepairReport(msgspec.Struct, frozen=True):
    """The repair of a thread: the number of rows that were restored from sources, rebuilt from others, and quarantined;
    the checkpoints that are lost; and the findings that are left."""

    thread: str
    restored: int = 0
    rebuilt: int = 0
    quarantined: int = 0
    lost: list[LostCheckpoint] = []
    lost_hold: bool = False
    """Whether a damaged row that may have been a hold was removed."""
    sources: list[str] = []
    found: list[Finding] = []
    left: list[Finding] = []

    def add(self, other: ThreadRepairReport) -> None:
        """Add the result of another pass."""
        count(self, restored=other.restored, rebuilt=other.rebuilt, quarantined=other.quarantined)
        self.lost.extend(other.lost)
        fill(self, lost_hold=self.lost_hold or other.lost_hold)
        self.sources.extend(url for url in other.sources if url not in self.sources)
        fill(self, found=self.found or other.found, left=other.left)


_CACHE_BYTES = 16 << 20
_BATCH = 256


class _Start(NamedTuple):
    """The start of a branch: its state, depth and time, and whether a step is left there."""

    held: LoadedState | None
    depth: int
    time: int
    follows: bool


class RepairAttempt:
    """One attempt to repair a line."""

    def __init__(
        self, engine: Engine, line: Line, sources: Sequence[RepairSource], lease: Lease, *, whole: bool
    ) -> None:
        self._ground = replace(engine.context, cache=MemoryCache(_CACHE_BYTES))
        self._backend = engine.context.backend
        self._stored = engine.context.stored
        """The rows as they are, damaged ones too."""
        self._rows = engine.context.rows
        self._states = StateLoader(self._backend, self._ground.cache, self._ground.max_bytes)
        self._lines = engine.lines
        self._line = line
        self._sources = sources
        self._lease = lease
        self._whole = whole
        self._keeper = QuarantineWriter(self._backend, line, self._ground.clock())
        self.mended: ThreadRepairReport = ThreadRepairReport(line.name)
        self.changed: bool = False
        self._changes: list[Change] = []
        self._bases: dict[Where, _Start] = {}  # the steps that branches start at
        self._time = self._size = 0  # of the last step
        self._folds: dict[Where, Row | None] = {}
        """The new folded states; None where the stored one is right."""
        self._kept: dict[int, int] = {}
        """The length of each branch up to its last step that is kept."""
        self._stubs: dict[Where, StepRef] = {}
        self._unproven: dict[Where, tuple[int, int]] = {}

    async def run(self) -> bool:
        """Repair the line. Returns False if it was changed."""
        check = await look(self._ground, self._line, VerifyLevel.DECODE)
        damage = [each for each in check.found.findings if each.severity is Severity.DAMAGE]
        fill(self.mended, found=damage)
        if any(each.code is FindingCode.UNKNOWN_FORMAT for each in damage):
            fill(self.mended, left=damage)
            return True
        same = await self._same(check.info)
        is_complete = not damage and not self._whole and not (self._sources and check.lost_steps)
        if is_complete and not await self._is_cut(check, same):
            return True
        (before,) = await self._stored.read([Get(LINES, [tuple(self._line)])])
        info = check.info or await new_info(self._ground, self._line, self._lines.new_info(), self._sources)
        self._info = info
        await self._take_parts(check)
        check = await look(self._ground, self._line, VerifyLevel.DECODE)
        self._check = check
        chains = ChainFinder(self._ground, self._line, info.salt, self._sources)
        await chains.find(list(check.branches.values()), same)
        self._chains = chains
        branches = await self._find_branches(check, chains)
        self._starts = {(each.base_branch, each.base_length - 1) for each in branches.values()}
        await self._find_unproven(check)
        for number in sorted(chains.chains):
            await self._walk(chains.chains[number], branches.get(number))
        self._settle(branches)
        await self._write_steps()
        await self._write_branches(branches)
        await self._write_folds()
        await self._write_others(check)
        return await self._switch(before, info)

    async def _same(self, info: LineInfo | None) -> RepairSource | None:
        """Return a source whose line differs only by appends: its own row is the same."""
        for source in self._sources:
            theirs = await source.info(self._line)
            if theirs is not None and (theirs == info or self._whole or info is None):
                return source
        return None

    async def _is_cut(self, check: LineCheck, same: RepairSource | None) -> bool:
        """Return whether a source has more of the branches, although nothing was pruned."""
        if same is None:
            return False
        numbers = {0, *check.branches, *(each.branch for each in await same.branches(self._line))}
        return any([await same.step(self._line, (n, check.lengths.get(n, 0)), None) is not None for n in numbers])

    # Nodes and large values, which are named by their content -------------------------------------------------

    async def _take_parts(self, check: LineCheck) -> None:
        """Restore nodes and large values from sources."""
        for finding in check.found.findings:
            if finding.space == NODES.name and len(finding.key) == 4 and finding.severity is Severity.DAMAGE:
                id = finding.key[3]
                node = await first_of(self._sources, lambda source, id=id: source.node(self._line, id))  # type: ignore[misc]
                if node is not None:
                    self._note(node[1])
                    await self._store([(NODES, node_row(self._line, self._info.form, id, node[0]))])  # type: ignore[arg-type]
        for digest in check.marks.objects:
            pieces = await first_of(self._sources, lambda source, at=digest: source.object(self._line, at))  # type: ignore[misc]
            if pieces is not None:
                self._note(pieces[1])
                await self._store([(OBJECTS, row) for row in pieces[0]])

    def _note(self, source: RepairSource, rows: int = 1) -> None:
        count(self.mended, restored=rows)
        if source.url not in self.mended.sources:
            self.mended.sources.append(source.url)

    async def _store(self, wanted: Sequence[tuple[Table, Row]]) -> None:
        """Store rows that are not visible yet; damaged rows with the same keys are quarantined."""
        for start in range(0, len(wanted), _BATCH):
            batch: list[Change] = [self._lease.condition()]
            for space, row in wanted[start : start + _BATCH]:
                (there,) = await self._stored.read([Get(space, [row.key])])
                right = bool(there) and self._rows.is_stored(space, there[0], row)
                if there and not right:
                    batch.append(await self._keeper.keep(space, there[0], "not what its name says"))
                if not right:
                    batch.append(Put(space, row) if there else Ensure(space, row))
                    self.changed = True
            if await self._backend.apply(batch) is not None:
                raise _overtaken(self._line)
            await self._lease.renew_if_due()

    # Branches -------------------------------------------------------------------------------------------------

    async def _find_branches(self, check: LineCheck, chains: ChainFinder) -> dict[int, Branch]:
        """Return the branches, each with the start that its first step names."""
        theirs: dict[int, Branch] = {}
        for source in reversed(chains.agreeing[0]):
            theirs |= {each.branch: each for each in await source.branches(self._line)}
        found: dict[int, Branch] = {}
        altered = (FindingCode.DUPLICATE_BRANCH, FindingCode.MISPLACED_BRANCH)
        doubted = {each.place[0] for each in check.found.findings if each.code in altered and each.place is not None}
        names: set[str] = set()
        for number, chain in sorted(chains.chains.items()):
            if not number:
                continue
            known = check.branches.get(number) or theirs.get(number)
            if number in doubted and chains.agreeing[number]:
                known = theirs.get(number, known)
            parent = chain.first_parent
            if parent is not None:
                start = (parent.branch, parent.seq + 1)
            elif known is not None and (not chain.length or not chain.commits[0] or 0 in chain.stubs):
                start = (known.base_branch, known.base_length)
            else:
                start = (0, 0)  # its first step has no parent, or an unknown one
            created = known.created if known is not None else self._ground.clock()
            name = known.name if known is not None and known.name not in names else ""
            names.add(name)
            found[number] = Branch(number, *start, created, name)
        return found

    async def _find_unproven(self, check: LineCheck) -> None:
        """Correct revisions, in the order of branches, and `beside`, which no hash covers; or take them of a source."""
        for finding in check.found.findings:
            doubted = finding.code in (FindingCode.DUPLICATE_ID, FindingCode.DAMAGED_STEP)  # its row may be altered
            if finding.place is None or not (doubted or finding.column == "revision"):
                continue
            (rows,) = await self._stored.read([Scan(STEPS, (*self._line, finding.checkpoint), by="id")])
            points = sorted(point for point in map(StepRef.of, rows) if self._stays(point))
            numbers = sorted({point.revision for point in points})
            if len(numbers) < len(points):
                numbers = list(range(len(points)))
            for point, number in zip(points, numbers, strict=True):
                place, commit = point[:2], point.hash
                found = await first_of(self._sources, lambda each, at=place, by=commit: each.step(self._line, at, by))  # type: ignore[misc]
                right = StepRef.of(found[0]) if found is not None else point._replace(revision=number)
                self._unproven[place] = right.revision, right.beside if right.beside in self._chains.chains else AT_HEAD

    def _stays(self, point: StepRef) -> bool:
        """Return whether a step belongs at its position."""
        chain = self._chains.chains[point.branch]
        return point.seq not in chain.taken and point.seq not in chain.lost

    # States ---------------------------------------------------------------------------------------------------

    async def _walk(self, chain: BranchChain, branch: Branch | None) -> None:
        """Check for each step of a branch whether it has a state."""
        number = chain.branch
        held: LoadedState | None
        start = _Start(LoadedState(EMPTY, 0), -1, 0, follows=True)
        if branch is not None and branch.base_length:
            nothing = _Start(None, branch.base_length - 1, 0, follows=False)
            start = self._bases.get((branch.base_branch, branch.base_length - 1), nothing)
        held, depth, self._time, follows = start
        self._size = 0
        rows = self._own_rows(number)
        own = await anext(rows, None)
        for seq in range(chain.length):
            place = (number, seq)
            while own is not None and int(own.key[3]) < seq:
                own = await anext(rows, None)
            there = own if own is not None and own.key[3] == seq else None
            depth += 1
            if seq in chain.stubs:
                await self._stub(place, chain.taken.get(seq, self._salvage(there)), there, chain.commits[seq], depth)
                held, follows = None, False
            else:
                row = chain.taken.get(seq, self._salvage(there) if chain.commits[seq] else None)
                held, follows = await self._step(place, row, there, held, depth, follows=follows, chain=chain)
            if place in self._starts:
                self._bases[place] = _Start(held, depth, self._time, follows=follows)

    def _salvage(self, stored: Row | None) -> Row | None:
        return None if stored is None else self._rows.salvage(STEPS, stored)

    async def _own_rows(self, number: int) -> AsyncIterator[Row]:
        holes: list[UnreadableRange] = []
        async for row in scan_readable_rows(self._stored, STEPS, (*self._line, number), holes):
            yield row

    async def _stub(self, place: Where, row: Row | None, there: Row | None, commit: bytes, depth: int) -> None:
        """Correct the stub of a pruned step."""
        assert row is not None  # noqa: S101 - it was found here or in a source
        point = StepRef.of(row)
        try:
            point.stub()  # what it merged, and what proves its event rows, stays if it can be read
        except CorruptError:
            point = point._replace(metadata="")
        wrong = any(each.place == place and each.column == "time" for each in self._check.found.findings)
        time = self._time if wrong else max(self._time, point.time)
        right = point.stub()._replace(size=point.size, depth=depth, hash=commit or point.hash, time=time)
        await self._replace(there, right.row(self._line, b""), "a stub was altered, or another row in its place")
        self._stubs[place] = right
        self._time, self._size = time, right.size

    async def _step(
        self,
        place: Where,
        row: Row | None,
        there: Row | None,
        before: LoadedState | None,
        depth: int,
        *,
        follows: bool,
        chain: BranchChain,
    ) -> tuple[LoadedState | None, bool]:
        """Return the state at a step, and whether the step stays. A lost one may leave its folded state to the next."""
        step = None if row is None else open_row(row, self._ground.max_bytes, self._info.salt)
        own = await self._own_fold(place, chain.lost.get(place[1]) if row is None else StepRef.of(row).hash)
        if row is None or step is None:
            await self._lose(
                place, there, chain.lost.get(place[1]), depth, "it is damaged or missing, and no source has it"
            )
            return own, False
        point = StepRef.of(row)
        held = await self._state(place, point, step, before, own, follows=follows)
        if held is None:
            why = "what its state is made of is lost, and no source has it"
            await self._lose(place, there, point.hash, depth, why)
            return None, False
        if await self._lacks_value(held):
            # A later step may replace the value.
            await self._lose(place, there, point.hash, depth, "a large value in it is lost, and no source has it")
            self._folds.pop(place, None)
            return held, False
        right = self._right(point, step, len(held.tail), depth)
        if place[1] - 1 in chain.stubs - chain.lost_stubs:
            row = drop_writes(row, self._ground.max_bytes)  # a source may have those of a step that was pruned here
        await self._replace(there, right.row(self._line, row.body), self._why(place))
        self._kept[place[0]] = place[1] + 1
        self._time, self._size = right.time, right.size
        return held, True

    async def _lacks_value(self, held: LoadedState) -> bool:
        """Return whether a large value of a state is missing."""
        lost = self._check.marks.objects
        if not lost:
            return False
        packed = await self._states.whole(self._line, held)
        return any(parse_pointer(pointer).digest in lost for pointer in pointers_in(packed))

    def _right(self, point: StepRef, step: Step, tail: int, depth: int) -> StepRef:
        """Return the right row of a step."""
        header = step.header
        right = point._replace(id=header.id, time=header.time, kind=header.kind, tail=tail, depth=depth)
        wrong = {each.column for each in self._check.found.findings if each.place == point[:2]}
        if "metadata" in wrong:
            value = self._ground.codec.unpack(header.metadata)
            text = readable_of_line(self._line.name, self._ground.codec, value) if isinstance(value, dict) else ""
            right = right._replace(metadata=add_origin(text, header.origin))
        revision, beside = self._unproven.get(point[:2], (right.revision, right.beside))
        return right._replace(revision=revision, beside=beside)

    def _why(self, place: Where) -> str:
        found = [each.code.value for each in self._check.found.findings if each.place == place]
        return ", ".join(dict.fromkeys(found)) or "it reaches back to another folded state now"

    async def _own_fold(self, place: Where, commit: bytes | None) -> LoadedState | None:
        """Return the folded state of a step, if it is complete."""
        looked_at = self._check.folded.get(place) == commit
        if commit is None or (looked_at and place in self._check.marks.folds):
            return None
        try:
            (folds,) = await self._backend.read([Get(FOLDS, [(*self._line, *place)])])
            if not folds:
                return None
            held = LoadedState(open_fold(folds[0], commit), int(folds[0].columns[0]))
            if not looked_at:
                await self._states.whole(self._line, held)  # another row had the position of its step
        except (CorruptError, NotFoundError):
            return None
        return held

    async def _state(
        self,
        place: Where,
        point: StepRef,
        step: Step,
        before: LoadedState | None,
        own: LoadedState | None,
        *,
        follows: bool,
    ) -> LoadedState | None:
        """Return the state at a step: folded; from the state before it and its changes; or from a source."""
        if own is not None:
            self._folds[place] = None
            return own
        if before is not None:
            held = LoadedState(before.root, before.form, (*before.tail, (WrittenBy(*place), step.edit)))
            if follows and point.tail and len(held.tail) < self._ground.fold_every:
                return held
            try:
                ws, root = await self._states.fold(self._line, held, self._info.salt)
                return await self._fold(place, point, root, ws.created, ws.objects)
            except (CorruptError, HoldfastError):
                pass  # a source may have the whole state
        found = await first_of(self._sources, lambda source: source.tree(self._line, place, point.hash))
        if found is None:
            return None
        (tree, large), source = found
        self._note(source)
        return await self._fold(place, point, tree.root, tree.nodes, large)

    async def _fold(
        self, place: Where, point: StepRef, root: MapRoot, nodes: Mapping[bytes, bytes], large: Mapping[bytes, bytes]
    ) -> LoadedState:
        """Store a folded state."""
        form = self._info.form
        wanted = [(NODES, node_row(self._line, form, id, data)) for id, data in nodes.items()]
        wanted += [(OBJECTS, row) for at, value in large.items() for row in object_rows(self._line, at, value)]
        await self._store(wanted)
        self._folds[place] = fold_row(self._line, place, point.hash, self._info, root)
        count(self.mended, rebuilt=1)
        return LoadedState(root, form)

    # Rows -----------------------------------------------------------------------------------------------------

    async def _replace(self, there: Row | None, row: Row, reason: str) -> None:
        """Store the right row of a step, unless it is there."""
        if self._rows.is_stored(STEPS, there, row):
            return
        if there is not None:
            self._changes.append(await self._keeper.keep(STEPS, there, reason))
        self._changes.append(Put(STEPS, row))

    async def _lose(self, place: Where, there: Row | None, commit: bytes | None, depth: int, reason: str) -> None:
        """Drop a step. Whether it leaves a stub depends on what stays after it."""
        known = None if there is None else StepRef.of(there)
        id = "" if known is None else known.id
        self.mended.lost.append(LostCheckpoint(self._line.name, id, *place, reason))
        if there is not None:
            self._changes.append(await self._keeper.keep(STEPS, there, reason))
        stub = StepRef(*place, "", 0, depth, commit or bytes(32), self._time, PRUNED, LOST_STUB, 0, self._size)
        self._stubs[place] = stub

    def _settle(self, branches: Mapping[int, Branch]) -> None:
        """Return the lengths of branches that are still needed."""
        self._lengths = {number: self._kept.get(number, 0) for number in self._chains.chains}
        for number in sorted(branches, reverse=True):
            branch, chain = branches[number], self._chains.chains[number]
            base = branch.base_branch
            if self._lengths[number] or (not chain.length and branch.base_length <= self._chains.chains[base].length):
                self._lengths[base] = max(self._lengths.get(base, 0), branch.base_length)

    async def _write_steps(self) -> None:
        lost = {(each.branch, each.step) for each in self.mended.lost}
        self._pruned = 0
        for place, stub in self._stubs.items():
            if place[1] >= self._lengths[place[0]]:
                self._changes = [each for each in self._changes if not _writes(each, (*self._line, *place))]
                self._changes.append(Delete(STEPS, (*self._line, *place)))
                continue
            self._pruned += 1
            if place in lost:
                self._changes.append(Put(STEPS, stub.row(self._line, b"")))

    async def _write_branches(self, branches: Mapping[int, Branch]) -> None:
        holes: list[UnreadableRange] = []
        there = {
            int(row.key[2]): row async for row in scan_readable_rows(self._stored, BRANCHES, tuple(self._line), holes)
        }
        for number, branch in branches.items():
            chain = self._chains.chains[number]
            base = self._chains.chains[branch.base_branch]
            gone = not self._lengths[number] and bool(chain.length or branch.base_length > base.length)
            row = branch.row(self._line)
            if self._rows.is_stored(BRANCHES, there.get(number), row) and not gone:
                continue
            if number in there:
                self._changes.append(
                    await self._keeper.keep(BRANCHES, there[number], "it starts elsewhere, or is lost")
                )
            self._changes.append(Delete(BRANCHES, row.key) if gone else Put(BRANCHES, row))

    async def _write_folds(self) -> None:
        holes: list[UnreadableRange] = []
        kept = {place for place, row in self._folds.items() if row is None}
        async for row in scan_readable_rows(self._stored, FOLDS, tuple(self._line), holes):
            place = (int(row.key[2]), int(row.key[3]))
            new = self._folds.get(place)
            chain = self._chains.chains.get(place[0])
            if chain is None or place[1] >= chain.length:
                continue  # it is new
            if place in kept or (new is not None and self._rows.is_stored(FOLDS, row, new)):
                continue
            self._changes.append(await self._keeper.keep(FOLDS, row, "it is damaged, or belongs to a lost checkpoint"))
            if new is None:
                self._changes.append(Delete(FOLDS, row.key))
        self._changes += (Put(FOLDS, row) for row in self._folds.values() if row is not None)

    async def _write_others(self, check: LineCheck) -> None:
        """Quarantine damaged pending writes and refs, and restore lost ones from sources."""
        for finding in check.found.findings:
            if finding.code is FindingCode.DAMAGED_WRITE:
                await self._from_source(WRITES, finding)
            elif finding.code is FindingCode.DAMAGED_EVENT:
                await self._from_source(EVENTS, finding)
            elif finding.code is FindingCode.DANGLING_REF:
                await self._from_source(REFS, finding)
            elif finding.code is FindingCode.DAMAGED_ROW and finding.space in _OTHERS:
                await self._from_source(_OTHERS[finding.space], finding)
            elif finding.code in (FindingCode.DAMAGED_NODE, FindingCode.DAMAGED_OBJECT) and not finding.affected_count:
                await self._drop(NODES if finding.code is FindingCode.DAMAGED_NODE else OBJECTS, finding)
        if self._whole:
            for source in self._chains.agreeing[0]:
                for space in (WRITES, EVENTS, LINKS):
                    self._changes += (Ensure(space, row) for row in await source.rows(space, self._line))
                self._changes += (
                    Ensure(REFS, row) for row in await source.rows(REFS, self._line) if row.key[2] != LEASE
                )

    async def _drop(self, space: Table, finding: Finding) -> None:
        """Remove a row that nothing needs."""
        (there,) = await self._stored.read([Scan(space, finding.key)])
        for row in there:
            self._changes.append(await self._keeper.keep(space, row, finding.message))
        self._changes.append(Delete(space, finding.key))

    async def _from_source(self, space: Table, finding: Finding) -> None:
        (there,) = await self._stored.read([Get(space, [finding.key])])
        found = await first_of(self._sources, lambda source: source.row(space, finding.key))
        if space is REFS and await self._is_restored(finding.checkpoint):
            return
        for row in there:
            self._changes.append(await self._keeper.keep(space, row, finding.message))
        if found is not None and not any(self._rows.is_stored(space, each, found[0]) for each in there):
            self._note(found[1])
            self._changes.append(Put(space, found[0]))
        else:
            self._changes.append(Delete(space, finding.key))
            if space is REFS and finding.code is FindingCode.DAMAGED_ROW and any(map(may_be_hold, there)):
                await self._mark_lost_hold()

    async def _mark_lost_hold(self) -> None:
        """Mark the store: what a damaged hold said, or whether a damaged row was one, is unknown."""
        tenant = self._line.tenant
        tables = {*await marked_tables(self._backend, tenant), REFS.name}
        self._changes.append(Put(REFS, mark_row(tenant, tables, self._ground.clock())))
        fill(self.mended, lost_hold=True)

    async def _is_restored(self, id: str) -> bool:
        """Return whether a missing checkpoint was restored."""
        return any(
            isinstance(each, Put) and each.space is STEPS and each.row.columns[0] == id for each in self._changes
        )

    async def _switch(self, before: Sequence[Row], info: LineInfo) -> bool:
        """Apply the changes, unless the line was changed."""
        fresh = info._replace(version=info.version + 1, pruned=self._pruned)
        right = bool(before) and self._rows.is_stored(LINES, before[0], info_row(self._line, info))
        # Otherwise, it is no more than the name in a damaged row.
        is_line = bool(before) or any(chain.length for chain in self._chains.chains.values())
        nothing_else = not self._changes and right and info == info._replace(pruned=self._pruned)
        if nothing_else or not (self._changes or is_line):
            self._count()
            return True
        # What was appended to an unchanged end is checked in the next pass.
        touched = {each.row.key[2:] for each in self._changes if isinstance(each, Put) and each.space is STEPS}
        ends = [
            Expect(STEPS, (*self._line, number, chain.length), None)
            for number, chain in self._chains.chains.items()
            if not chain.length or (number, chain.length - 1) in touched | self._stubs.keys()
        ]
        if before and (not right or info.pruned != self._pruned):
            reason = "it counts other pruned checkpoints" if right else "it is not what was written"
            self._changes.append(await self._keeper.keep(LINES, before[0], reason))
        conditions = [self._lease.condition(), Expect(LINES, tuple(self._line), before[0].columns if before else None)]
        batch = [*conditions, *ends, *self._changes]
        if is_line:
            batch.append(Put(LINES, info_row(self._line, fresh)))
        if await self._backend.apply(batch) is not None:
            if not await self._lease.is_valid():
                raise _overtaken(self._line)
            return False
        self.changed = True
        self._count()
        return True

    def _count(self) -> None:
        fill(self.mended, quarantined=self._keeper.count)
        count(self.mended, restored=self._chains.restored)
        self.mended.sources.extend(url for url in sorted(self._chains.used) if url not in self.mended.sources)


_OTHERS = {table.name: table for table in (REFS, LINKS, QUARANTINE)}
"""Tables whose damaged rows are replaced by those of a source, or removed."""


def _overtaken(line: Line) -> ConflictError:
    return ConflictError("another process took over this repair", where=f"thread {line}", hint="Wait for it to end")


def _writes(change: Change, key: tuple[object, ...]) -> bool:
    return isinstance(change, Put) and change.space is STEPS and change.row.key == key
