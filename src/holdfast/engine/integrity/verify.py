"""Verifying a line, at a level, while others may write to it.

Rows are read page by page, and so at different moments. Findings in a line that changed meanwhile are checked again:
what was only in progress is gone the next time, and damage is not.
"""

from __future__ import annotations

from collections.abc import Callable

from holdfast._fields import count
from holdfast.backends.interface import Backend, Get, Row, Scan
from holdfast.backends.paging import UNREADABLE, UnreadableRange, scan_readable_rows
from holdfast.backends.tables import BRANCHES, LINES, STEPS
from holdfast.engine.context import EngineContext
from holdfast.engine.integrity.check import LineCheck, LineReport, Where, affected_by, find_salt, needs
from holdfast.engine.integrity.decode import LineDecoder
from holdfast.engine.integrity.findings import MOST_AFFECTED, Finding, FindingCode, Severity, VerifyLevel
from holdfast.engine.integrity.parts import PartCheck
from holdfast.engine.integrity.steps import StepCheck
from holdfast.engine.row_format import Branch, Line, StepRef, open_step
from holdfast.errors import CorruptError

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
