"""Verifying a line, at a level, while others may write to it.

Rows are read page by page, and so at different moments. Findings in a line that changed meanwhile are checked again:
what was only in progress is gone the next time, and damage is not.

The deepest check: every state is computed, every value decoded.

A state is the folded one before it and the steps since. So it is enough to fold these steps: the result must be the
next folded state, and if all of them can be folded, each of the states between can be computed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from msgspec.structs import replace

from holdfast._fields import count
from holdfast.backends.interface import Backend, Get, Row, Scan
from holdfast.backends.paging import UNREADABLE, UnreadableRange, scan_readable_rows
from holdfast.backends.runtime.memory_cache import MemoryCache
from holdfast.backends.tables import BRANCHES, FOLDS, LINES, STEPS
from holdfast.engine.context import EngineContext
from holdfast.engine.integrity.check import GivenRows, LineCheck, LineReport, Where, affected_by, find_salt, needs
from holdfast.engine.integrity.findings import MOST_AFFECTED, Finding, FindingCode, Severity, VerifyLevel
from holdfast.engine.integrity.parts import PartCheck
from holdfast.engine.integrity.steps import StepCheck
from holdfast.engine.model.drafts import EMPTY
from holdfast.engine.model.large_pointers import is_pointer
from holdfast.engine.model.nodes import WrittenBy
from holdfast.engine.model.operations import ChangeItem, Combine, EditList, EditMap, KeepRun, Operation, Set
from holdfast.engine.model.packed_state import flatten, unpack_state
from holdfast.engine.model.steps import Step
from holdfast.engine.row_format import Branch, Line, StepRef, info_of, open_fold, open_fold_header, open_step
from holdfast.engine.state_loader import LoadedState, StateLoader
from holdfast.errors import CorruptError, InvalidError, UnsupportedError

_CACHE_BYTES = 16 << 20
"""Of its own cache: what is cached elsewhere may be intact where the store is not."""

_UNDECODABLE = (CorruptError, InvalidError, UnsupportedError, RecursionError)
"""Errors about stored bytes, and not about a store that cannot be reached."""


class LineDecoder:
    """Decodes a line whose rows were checked."""

    def __init__(self, context: EngineContext, check: LineCheck) -> None:
        self._context = replace(context, cache=MemoryCache(_CACHE_BYTES))
        self._states = StateLoader(context.backend, self._context.cache, context.max_bytes)
        self._check = check
        self._line = check.line
        self._bases: dict[Where, LoadedState | None] = {}

    async def run(self) -> None:
        """Decode everything that can be read."""
        starts = {(each.base_branch, each.base_length - 1) for each in self._check.branches.values()}
        marks = self._check.marks
        last: StepRef | None = None
        loaded: LoadedState | None = None
        holes: list[UnreadableRange] = []
        async for row in scan_readable_rows(self._context.backend, STEPS, tuple(self._line), holes):
            self._check.count_row()
            point = StepRef.of(row)
            if point.seq >= self._check.lengths.get(point.branch, 0):
                continue  # it is newer
            if last is None or (last.branch, last.seq + 1) != point[:2]:
                if last is not None and last.branch != point.branch:
                    await self._end(last, loaded)
                loaded = self._start(point)
            if point.pruned or point[:2] in marks.steps or point[:2] in marks.folds or point[:2] in marks.gaps:
                loaded = None
            else:
                loaded = await self._step(row, point, loaded)
            if point[:2] in starts:
                self._bases[point[:2]] = loaded
            last = point
        if last is not None:
            await self._end(last, loaded)

    def _start(self, point: StepRef) -> LoadedState | None:
        """Return the state before the first step of a branch."""
        branch = self._check.branches.get(point.branch)
        if point.seq:
            return None
        if (branch is None and not point.branch) or (branch is not None and not branch.base_length):
            return LoadedState(EMPTY, 0)
        return None if branch is None else self._bases.get((branch.base_branch, branch.base_length - 1))

    async def _step(self, row: Row, point: StepRef, before: LoadedState | None) -> LoadedState | None:
        """Decode the values of a step. Returns its state, if that can be loaded."""
        try:
            step = open_step(self._line, row, self._context.max_bytes)
        except _UNDECODABLE as error:
            self._add(point, str(error))
            return None
        await self._decode(point, step)
        if before is not None:
            before = LoadedState(before.root, before.form, (*before.tail, (WrittenBy(*point[:2]), step.edit)))
        if point.tail:
            return before
        try:
            (folds,) = await self._context.backend.read([Get(FOLDS, [(*self._line, *point[:2])], required=True)])
            if not folds:
                return None  # rewritten meanwhile
            folded = LoadedState(open_fold(folds[0], point.hash), int(folds[0].columns[0]))
            same = await self._same(before, folded) if before is not None else await self._read(folded)
            same &= open_fold_header(folds[0], point) in (None, step.header)
        except _UNDECODABLE as error:
            self._add(point, str(error))
            return None
        if not same:
            what = "the folded state is not what the checkpoints before it make"
            finding = self._check.add(
                FindingCode.FOLD_MISMATCH, what, point, space=FOLDS.name, key=(*self._line, *point[:2])
            )
            self._check.marks.folds.setdefault(point[:2], []).append(finding)
        return folded

    async def _same(self, before: LoadedState, folded: LoadedState) -> bool:
        """Return whether steps result in a folded state."""
        _, root = await self._states.fold(self._line, before, self._check.salt)
        if root == folded.root:
            return True
        # Another release may have folded in another way.
        computed, stored = [
            await self._states.resolve_pointers(self._line, await self._states.whole(self._line, each))
            for each in (before, folded)
        ]
        return flatten(computed) == flatten(stored)

    async def _read(self, folded: LoadedState) -> bool:
        """Decode a folded state that cannot be compared: the steps before it were removed."""
        packed = await self._states.whole(self._line, folded)
        unpack_state(self._context.codec, await self._states.resolve_pointers(self._line, packed))
        return True

    async def _end(self, point: StepRef, loaded: LoadedState | None) -> None:
        """Compute the last state of a branch, and so all since the last folded one."""
        if loaded is None or not loaded.tail or await self._failure(loaded) is None:
            return
        for length in range(1, len(loaded.tail) + 1):
            error = await self._failure(replace(loaded, tail=loaded.tail[:length]))
            if error is not None:
                place = tuple(loaded.tail[length - 1][0])
                what = f"the state at branch {place[0]}, number {place[1]} cannot be put together: {error}"
                self._add(point, what)
                return

    async def _failure(self, loaded: LoadedState) -> Exception | None:
        """Return why a state cannot be computed, if it cannot."""
        try:
            await self._states.fold(self._line, loaded)
        except _UNDECODABLE as error:
            return error
        return None

    async def _decode(self, point: StepRef, step: Step) -> None:
        codec = self._context.codec
        try:
            codec.unpack(step.header.metadata)
            for packed in _values(step.edit):
                value = packed
                if is_pointer(packed):
                    value = (await self._states.load_large(self._line, [packed]))[packed]
                codec.unpack(value)
        except _UNDECODABLE as error:
            self._add(point, str(error))

    def _add(self, point: StepRef, what: str) -> None:
        self._check.spoil(FindingCode.UNDECODABLE, what, point)


def _values(operation: Operation) -> Iterator[bytes]:
    """Yield the packed values of an operation."""
    if isinstance(operation, Set):
        yield operation.value
    elif isinstance(operation, Combine):
        yield operation.operand
    elif isinstance(operation, EditMap):
        for key, change in operation.put:
            yield key
            yield from _values(change)
    elif isinstance(operation, EditList):
        for part in operation.parts:
            if isinstance(part, ChangeItem):
                yield from _values(part.operation)
            elif not isinstance(part, KeepRun):
                yield from part


_ATTEMPTS = 4
"""How often a line that keeps changing is checked before repeated findings count as true."""


async def verify(context: EngineContext, line: Line, level: VerifyLevel = VerifyLevel.HASHES) -> LineReport:
    """Check a line.

    Every step must have the hash of its content, follow the steps that it names, and have a state: steps back to a
    folded one, and every node and large value that the state needs.
    """
    return (await look(context, line, level)).found


async def look(
    context: EngineContext,
    line: Line,
    level: VerifyLevel = VerifyLevel.HASHES,
    tell: Callable[[int], None] | None = None,
) -> LineCheck:
    """Check a line, and return all that was collected. `tell` is called with the number of rows read so far."""
    repeated: set[tuple[object, ...]] | None = None
    attempts = 0
    while True:
        attempts += 1
        before = await _outline(context.stored, line)
        check = await _check(context, line, level, tell)
        after = await _outline(context.stored, line)
        findings = check.found.findings
        if repeated is not None:
            findings[:] = [each for each in findings if each.same in repeated]
        if after is not None and not any(after):
            # It was deleted meanwhile; or it never was, and its name is that of a damaged row.
            findings[:] = [each for each in findings if before == after and each.code is FindingCode.DAMAGED_ROW]
        elif before != after:
            # An unused row may be one that a writer is about to use.
            findings[:] = [each for each in findings if each.code not in (FindingCode.ORPHAN, FindingCode.STRAY_FOLD)]
        if not findings or before == after or attempts == _ATTEMPTS:
            return check
        repeated = {each.same for each in findings}


async def look_at_rows(
    context: EngineContext, line: Line, given: GivenRows, level: VerifyLevel = VerifyLevel.HASHES
) -> LineReport:
    """Check the rows of a short line, as of one moment, without the store, up to its hashes.

    Only the absence of findings counts: which index lacks what, and what is damaged by it, is found in the store.
    """
    check = LineCheck(context, line, level, given=given)
    if check.deep:
        rows = [check.check_row(LINES, row) for row in given.rows.get(LINES, ())]
        salts = [info_of(row).salt for row, damage in rows if damage is None]
        check.salt = (salts and salts[0]) or await find_salt(context, line)
    await StepCheck(check).run()
    await PartCheck(check).run()
    return check.found


async def _check(
    context: EngineContext, line: Line, level: VerifyLevel, tell: Callable[[int], None] | None
) -> LineCheck:
    check = LineCheck(context, line, level, tell)
    if check.deep:
        check.salt = await find_salt(context, line)
    await StepCheck(check).run()
    await PartCheck(check).run()
    if level >= VerifyLevel.DECODE:
        await LineDecoder(context, check).run()
    if check.marks:
        await _record_affected(check)
    return check


async def _outline(backend: Backend, line: Line) -> list[list[Row]] | None:
    """Return an outline of a line: its row, and where its branches end. None if it cannot be read."""
    try:
        lines, branches = await backend.read([Get(LINES, [tuple(line)]), Scan(BRANCHES, tuple(line))])
        numbers = [0, *(Branch.of(row).branch for row in branches)]
        heads = await backend.read(
            [Scan(STEPS, (*line, number), reverse=True, limit=1, bodies=False) for number in numbers]
        )
    except UNREADABLE:
        return None
    return [lines, branches, *heads]


async def _record_affected(check: LineCheck) -> None:
    """Record for each finding which checkpoints cannot be read because of it."""
    marks, bases = check.marks, {(each.base_branch, each.base_length - 1) for each in check.branches.values()}
    states: dict[Where, list[Finding]] = {}
    holes: list[UnreadableRange] = []
    last: tuple[Where, list[Finding]] | None = None
    bodies = bool(marks.objects)
    async for row in scan_readable_rows(check.backend, STEPS, tuple(check.line), holes, bodies=bodies):
        point = StepRef.of(row)
        if last is not None and last[0] == (point.branch, point.seq - 1):
            before = last[1]
        else:
            branch = check.branches.get(point.branch)
            base = (branch.base_branch, branch.base_length - 1) if branch is not None and not point.seq else None
            before = states.get(base, []) if base is not None else []
        if point.pruned:
            last = (point[:2], [])
            continue
        why, state = affected_by(marks, point, before)
        if bodies and point[:2] not in marks.steps:
            missing = list(needs(open_step(check.line, check.row_codec.salvage(STEPS, row), check.max_bytes), marks))
            why, state = [*why, *missing], [*state, *(missing if point.tail else ())]
        for finding in {id(each): each for each in why}.values():
            count(finding, affected_count=1)
            if len(finding.affected) < MOST_AFFECTED:
                finding.affected.append(point.id)
        last = (point[:2], state)
        if point[:2] in bases:
            states[point[:2]] = state


def raise_problems(line: Line, found: LineReport, at: str) -> None:
    """Raise `CorruptError` if there is damage."""
    problems = [each for each in found.findings if each.severity is Severity.DAMAGE]
    if problems:
        more = f", and {len(problems) - 1} more" if len(problems) > 1 else ""
        raise CorruptError(
            f"the thread is not sound: {problems[0]}{more}",
            where=f"thread {line} in {at}",
            hint="Repair it from a mirror or a backup",
        )
