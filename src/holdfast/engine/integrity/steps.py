"""Checks steps, branches and the line itself: their positions, and every hash.

Steps are read in the order of their keys, each once, and little of them is kept: of a step its parent's row suffices.
What no hash covers is compared with what one does cover.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

from msgspec.msgpack import encode

from holdfast._fields import fill
from holdfast.backends.interface import Get, Row, Scan
from holdfast.backends.paging import UNREADABLE, UnreadableRange
from holdfast.backends.tables import BRANCHES, LINES, STEPS
from holdfast.engine.integrity.check import TOGETHER, LineCheck, Where
from holdfast.engine.integrity.findings import FindingCode, Severity
from holdfast.engine.model.large_values import pointers
from holdfast.engine.model.steps import Step, StepOrigin
from holdfast.engine.row_format import Branch, StepRef, add_origin, decode_step, info_of, readable_of_line
from holdfast.errors import CorruptError, HoldfastError

_STUB = (0, "pruned", 0)
"""The revision, kind and tail of a stub."""


class StepCheck:
    """Checks steps, branches and the line's row."""

    def __init__(self, check: LineCheck) -> None:
        self.check = check
        self._bases: dict[Where, StepRef | None] = {}
        """The steps that branches start from."""
        self._merged: list[tuple[StepRef, Where, bytes]] = []
        """Merges, the position of a further parent, and the hash that it must have."""
        self._digest = 0
        """A digest of all steps, in any order."""
        self._last_metadata: tuple[str, bytes, StepOrigin] | None = None
        """The last readable metadata that match, with the packed metadata and the origin."""

    async def run(self) -> None:
        """Check all of them."""
        await self._check_line()
        await self._check_branches()
        await self._check_steps()
        await self._check_merges()
        await self._check_ids()
        self._compare()

    # The line and its branches --------------------------------------------------------------------------------

    async def _check_line(self) -> None:
        try:
            found: Sequence[Row]
            if self.check.given is not None:
                found = self.check.given.rows.get(LINES, ())
            else:
                (found,) = await self.check.backend.read([Get(LINES, [tuple(self.check.line)])])
        except UNREADABLE as error:
            self.check.unreadable(LINES, UnreadableRange(LINES, (), (), str(error)))
            return
        if found:
            row, damage = self.check.check_row(LINES, found[0])
            if damage is None:
                self.check.info = info_of(row)
            else:
                self.check.damaged(LINES, row, damage)

    async def _check_branches(self) -> None:
        names: dict[str, int] = {}
        async for row, damage in self.check.rows(BRANCHES):
            branch = Branch.of(row)
            if damage is not None:
                self.check.damaged(BRANCHES, row, damage, place=(branch.branch, 0))
                continue
            self.check.branches[branch.branch] = branch
            if branch.name and branch.name in names:
                what = f"branches {names[branch.name]} and {branch.branch} are both called {branch.name!r}"
                for number in (names[branch.name], branch.branch):
                    self.check.add_branch(FindingCode.DUPLICATE_BRANCH, what, number)
            names.setdefault(branch.name, branch.branch)
            if branch.base_branch >= branch.branch or branch.branch < 1:
                what = f"branch {branch.branch} is recorded as starting from branch {branch.base_branch}"
                self.check.add_branch(FindingCode.MISPLACED_BRANCH, what, branch.branch)
        self._bases = {(each.base_branch, each.base_length - 1): None for each in self.check.branches.values()}

    # Steps ----------------------------------------------------------------------------------------------------

    async def _check_steps(self) -> None:
        before: StepRef | None = None
        async for row, damage in self.check.rows(STEPS, bodies=self.check.deep):
            point = StepRef.of(row)
            if before is None or before.branch != point.branch:
                self._begin(point)
                before = None
            expected = 0 if before is None else before.seq + 1
            gap = point.seq != expected
            if gap:
                self._gap(point, expected)
            parent = before if before is not None and not gap else self._base(point) if not point.seq else None
            self._step(row, point, parent, before, damage)
            self.check.steps += 1
            self._digest += self._digest_of(row)
            self.check.lengths[point.branch] = point.seq + 1
            if point[:2] in self._bases:
                self._bases[point[:2]] = point
            before = point

    def _digest_of(self, row: Row) -> int:
        """Return a digest of the columns of a step; nothing of one that was not looked up by an index."""
        return _digest(row) if self.check.given is None else 0

    def _base(self, point: StepRef) -> StepRef | None:
        """Return the step that the first one of a branch follows."""
        branch = self.check.branches.get(point.branch)
        return None if branch is None else self._bases[branch.base_branch, branch.base_length - 1]

    def _begin(self, point: StepRef) -> None:
        branch = self.check.branches.get(point.branch)
        if branch is None and point.branch:
            what = f"there are checkpoints on branch {point.branch}, and no such branch"
            self.check.add_branch(FindingCode.MISSING_BRANCH, what, point.branch)

    def _gap(self, point: StepRef, expected: int) -> None:
        start, stop = (point.branch, expected), (point.branch, point.seq)
        count = point.seq - expected
        what = "a checkpoint is missing" if count == 1 else f"{count} checkpoints are missing"
        key = (*self.check.line, *start)
        finding = self.check.add(FindingCode.MISSING_STEP, what, place=start, space=STEPS.name, key=key)
        fill(finding, affected_count=count)
        self.check.marks.gaps.setdefault(stop, []).append(finding)

    def _step(
        self, row: Row, point: StepRef, parent: StepRef | None, before: StepRef | None, damage: HoldfastError | None
    ) -> None:
        known = len(self.check.found.findings)
        self._check_columns(row, point, parent, before)
        if self.check.deep and not point.pruned:
            self._open(row, point, parent, damage)
        if damage is None:
            return
        if not isinstance(damage, CorruptError):
            self.check.spoil(FindingCode.UNKNOWN_FORMAT, damage.what, point)
        elif not any(each.severity is Severity.DAMAGE for each in self.check.found.findings[known:]):
            # What differs is nothing that the step itself tells.
            self.check.spoil(FindingCode.DAMAGED_STEP, damage.what, point)

    def _check_columns(self, row: Row, point: StepRef, parent: StepRef | None, before: StepRef | None) -> None:
        # Pruning updates the sizes at the ends of branches, and leaves the other ones as they were.
        previous = before if before is not None and self.check.info is not None and self.check.info.form == 1 else None
        if point.size < (0 if previous is None else previous.size) + (0 if point.pruned else len(row.body)):
            self.check.add(FindingCode.WRONG_SIZE, f"its size is said to be {point.size}, which is too little", point)
        if parent is not None:
            if point.depth != parent.depth + 1:
                self._wrong(point, "depth", point.depth, parent.depth + 1)
            if point.time < parent.time:
                # No hash covers the time of a pruned step.
                wrong, other = (
                    (parent, f"at most {point.time}") if parent.pruned else (point, f"at least {parent.time}")
                )
                self._wrong(wrong, "time", wrong.time, other)
        elif not point.seq and not self._has_base(point) and point.depth:
            self._wrong(point, "depth", point.depth, 0)
        if point.pruned:
            self.check.stubs += 1
            if (point.revision, point.kind, point.tail) != _STUB or row.body or not self._check_stub(point, parent):
                self.check.spoil(FindingCode.WRONG_COLUMN, "a pruned checkpoint is not marked as one", point)
            return
        self.check.found.steps += 1
        if not point.tail:
            self.check.folded[point[:2]] = point.hash
        elif parent is not None:
            if parent.pruned or parent.tail != point.tail - 1:
                self._wrong(point, "tail", point.tail, 0 if parent.pruned else f"0 or {parent.tail + 1}")
        elif not point.seq and not self._has_base(point) and point.tail != 1:
            self._wrong(point, "tail", point.tail, "0 or 1")

    def _check_stub(self, stub: StepRef, parent: StepRef | None) -> bool:
        """Return whether a stub says what it merged and what proves its event rows, or nothing; the further parents are
        checked with the other merges."""
        try:
            merged, proof = stub.merged, stub.proof
            self.check.lost_steps += stub.lost
        except CorruptError:
            return False
        self._merged += ((stub, each[:2], each.commit) for each in merged)
        if proof is not None and (parent is not None or (not stub.seq and not self._has_base(stub))):
            first = () if parent is None else (parent.hash,)
            return proof.commit([*first, *(each.commit for each in merged)]) == stub.hash
        return bool(merged or proof or stub.lost) or not stub.metadata

    def _has_base(self, point: StepRef) -> bool:
        branch = self.check.branches.get(point.branch)
        return bool(point.branch) if branch is None else bool(branch.base_length)

    def _wrong(self, point: StepRef, column: str, found: object, right: object) -> None:
        what = f"its {column} is said to be {found!r}, and is {right}"
        self.check.spoil(FindingCode.WRONG_COLUMN, what, point, column=column)

    def _open(self, row: Row, point: StepRef, parent: StepRef | None, damage: HoldfastError | None) -> None:
        try:
            step = decode_step(row, self.check.max_bytes)
        except HoldfastError as error:
            # A damaged byte may say that it is of another release.
            is_damaged = isinstance(error, CorruptError) or isinstance(damage, CorruptError)
            code = FindingCode.DAMAGED_STEP if is_damaged else FindingCode.UNKNOWN_FORMAT
            self.check.spoil(code, error.what, point)
            return
        header = step.header
        if self.check.salt and step.commit(self.check.salt) != point.hash:
            self.check.spoil(FindingCode.HASH_MISMATCH, "its hash is not that of its content", point)
            return
        for column in ("time", "kind"):
            claim, actual = getattr(point, column), getattr(header, column)
            if claim != actual:
                self._wrong(point, column, claim, repr(actual))
        metadata = (point.metadata, header.metadata, header.origin)
        if metadata == self._last_metadata:
            pass  # most steps have the same as the one before them
        elif self._text_matches(*metadata):
            self._last_metadata = metadata
        else:
            what = "its metadata, as people read it, is not its metadata"
            self.check.add(FindingCode.WRONG_COLUMN, what, point, column="metadata")
        self._follows(point, step, parent)
        self.check.needed.update(pointers(step.edit))
        self._merged += ((point, other[:2], other.commit) for other in header.parents[1:])

    def _follows(self, point: StepRef, step: Step, parent: StepRef | None) -> None:
        """Check that a step is at the position that its parents imply."""
        claim = step.header.parents[0] if step.header.parents else None
        if point.seq:
            place: Where | None = (point.branch, point.seq - 1)
        else:
            branch = self.check.branches.get(point.branch)
            if branch is None and point.branch:
                return  # nothing says where it should start
            place = (branch.base_branch, branch.base_length - 1) if branch is not None and branch.base_length else None
        if place != (None if claim is None else claim[:2]):
            found = "the start" if claim is None else f"branch {claim.branch}, number {claim.seq}"
            if not point.seq and point.branch:
                what = (
                    f"branch {point.branch} starts after {found}, as its first checkpoint says, and not after {place}"
                )
                key = (*self.check.line, point.branch)
                self.check.add(FindingCode.MISPLACED_BRANCH, what, point, space=BRANCHES.name, key=key)
            else:
                what = f"it follows {found}, and does not stand there"
                self.check.spoil(FindingCode.PARENT_MISMATCH, what, point)
        elif claim is not None and parent is not None and parent.hash != claim.commit:
            what = f"it follows {claim.commit.hex()[:16]}…, and the checkpoint before it is {parent.hash.hex()[:16]}…"
            self.check.spoil(FindingCode.PARENT_MISMATCH, what, point)

    def _text_matches(self, text: str, packed: bytes, origin: StepOrigin) -> bool:
        """Return whether metadata as text matches the metadata and the origin."""
        try:
            value = self.check.codec.unpack(packed)
            is_dict, name = isinstance(value, dict), self.check.line.name
            expected = add_origin(readable_of_line(name, self.check.codec, value), origin) if is_dict else text
        except HoldfastError:
            return True  # reported when it is decoded
        if text == expected:
            return True
        try:
            claim, actual = json.loads(text), json.loads(expected)
        except ValueError:
            return False
        # Of classes that are not loaded here, the text may have more than can be computed here.
        plain = _is_plain(value)
        return claim == actual if plain else isinstance(claim, dict) and claim.keys() == actual.keys()

    async def _check_merges(self) -> None:
        """Check further parents. A missing one was deleted with its branch, whose number may be used again."""
        for start in range(0, len(self._merged), TOGETHER):
            some = self._merged[start : start + TOGETHER]
            scans = [
                Scan(STEPS, (*self.check.line, branch), (seq,), (seq + 1,), bodies=False)
                for _, (branch, seq), _ in some
            ]
            try:
                found = await self.check.unchecked.read(scans)
            except UNREADABLE:
                continue  # reported already, as rows that cannot be read
            for (point, place, commit), steps in zip(some, found, strict=True):
                there = StepRef.of(steps[0]) if steps else None
                if there is not None and there.hash != commit and there.time <= point.time:
                    what = f"it merges {commit.hex()[:16]}…, and at {place} is {there.hash.hex()[:16]}…"
                    self.check.add(FindingCode.PARENT_MISMATCH, what, point)

    async def _check_ids(self) -> None:
        """Check the steps by id: the same ones, and of each id its revisions in the order of their branches."""
        if self.check.holes:
            return  # what cannot be read by position cannot be read by id either
        try:
            await self._compare_ids()
        except UNREADABLE as error:
            self.check.add(FindingCode.INDEX_MISMATCH, f"checkpoints cannot be found by id: {error}", space=STEPS.name)

    async def _compare_ids(self) -> None:
        count = digest = 0
        last: StepRef | None = None
        gaps: list[StepRef] = []
        async for row in self.check.steps_by_id():
            point = StepRef.of(row)
            if point.seq >= self.check.lengths.get(point.branch, 0):
                continue  # it is newer
            count, digest = count + 1, digest + self._digest_of(row)
            if point.pruned:
                continue
            same = last is not None and last.id == point.id
            if last is not None and same and last.revision == point.revision:
                what = f"revision {point.revision} of it is also at branch {last.branch}, number {last.seq}"
                self.check.add(FindingCode.DUPLICATE_ID, what, point)
            elif last is not None and same and last.branch > point.branch:
                self._wrong(point, "revision", point.revision, f"before that on branch {last.branch}")
            if point.revision > (last.revision + 1 if last is not None and same else 0):
                gaps.append(point)
            last = point
        if (count, digest) != (self.check.steps, self._digest):
            what = f"{count} checkpoints are found by id, and {self.check.steps} by place, or they are not the same"
            self.check.add(FindingCode.INDEX_MISMATCH, what, space=STEPS.name)
        if gaps and not self._may_be_pruned():
            for point in gaps:
                what = f"it has revision {point.revision}, and there is no earlier one"
                self.check.add(FindingCode.REVISION_GAP, what, point)

    def _may_be_pruned(self) -> bool:
        """Return whether checkpoints may have been pruned."""
        if (
            self.check.stubs
            or not self.check.lengths.get(0)
            or len(self.check.branches) != max(self.check.branches, default=0)
        ):
            return True
        return any(
            self.check.lengths.get(each.base_branch, 0) <= each.base_length for each in self.check.branches.values()
        )

    # What is left to compare ----------------------------------------------------------------------------------

    def _compare(self) -> None:
        key = tuple(self.check.line)
        unread = (FindingCode.UNREADABLE_ROWS, FindingCode.DAMAGED_ROW)
        unreadable = {each.space for each in self.check.found.findings if each.code in unread}
        if self.check.info is None and LINES.name not in unreadable:
            if self.check.steps or self.check.branches:
                self.check.add(
                    FindingCode.MISSING_THREAD,
                    "there are checkpoints, and no row of the thread",
                    space="lines",
                    key=key,
                )
        elif (
            self.check.info is not None and STEPS.name not in unreadable and self.check.info.pruned != self.check.stubs
        ):
            what = f"{self.check.info.pruned} checkpoints are said to be pruned, and {self.check.stubs} are"
            self.check.add(FindingCode.WRONG_COUNT, what, space=LINES.name, key=key)
        for branch in self.check.branches.values():
            place = (branch.base_branch, branch.base_length - 1)
            if branch.base_length and self._bases[place] is None and not self._is_gap(place):
                what = (
                    f"branch {branch.branch} starts where there is no checkpoint: branch {place[0]}, number {place[1]}"
                )
                self.check.add_branch(FindingCode.MISPLACED_BRANCH, what, branch.branch)

    def _is_gap(self, place: Where) -> bool:
        if place[1] < self.check.lengths.get(place[0], 0):
            return True
        return any(hole.start <= place and (not hole.stop or place < hole.stop) for hole in self.check.holes)


def _digest(row: Row) -> int:
    try:
        packed = encode((row.key, row.columns))
    except UnicodeEncodeError:  # a damaged name may be no text
        packed = repr((row.key, row.columns)).encode("utf-8", "surrogatepass")
    return int(hashlib.sha256(packed).hexdigest(), 16)


def _is_plain(value: object) -> bool:
    """Return whether a value consists of JSON's own types."""
    if isinstance(value, dict):
        return all(type(key) is str and _is_plain(each) for key, each in value.items())
    if isinstance(value, list):
        return all(map(_is_plain, value))
    return value is None or type(value) in (str, int, float, bool)
