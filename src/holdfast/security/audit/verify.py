"""Verification of the audit: whether its rows are those that were written with their steps.

A step's metadata has a digest of its rows, and the step's hash covers that and all steps before. So a row that was
altered, removed or added is detected by its step; an altered step by its hash; a removed one by the step that follows.
Missing steps at the end are detected with heads that were exported before (`Store.heads`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from holdfast.backends.interface import Row, Scan
from holdfast.backends.tables import EVENTS, STEPS
from holdfast.codec import Codec
from holdfast.engine.checked_rows import check_row, strip_row
from holdfast.engine.engine import Engine
from holdfast.engine.events import BETWEEN, DIGEST, digest
from holdfast.engine.model.scopes import MARK
from holdfast.engine.model.steps import Step
from holdfast.engine.row_format import Line, StepRef, open_body, open_step
from holdfast.errors import CorruptError, HoldfastError

_PAGE = 256

# Where things are in the columns of a row.
KIND, ACTOR, ACTION, TARGET, CORRELATION = 1, 2, 3, 4, 6


class AuditFinding(NamedTuple):
    """A part of the audit that is not as it was written."""

    line: str
    step: str
    what: str


@dataclass(slots=True)
class AuditReport:
    """The result of a verification of the audit."""

    lines: int = 0
    steps: int = 0
    rows: int = 0
    unproven: int = 0
    """Rows of steps that were pruned: nothing covers them any more."""
    findings: list[AuditFinding] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether there are no findings."""
        return not self.findings


class AuditedStep(NamedTuple):
    """A step with its rows. The step is None if it was pruned or is damaged."""

    point: StepRef
    step: Step | None
    rows: Sequence[Row]
    problem: str = ""


async def audited_lines(engine: Engine, tenant: str) -> list[Line]:
    """Return the lines that have audit rows: those of scopes, and system lines."""
    return await engine.lines.names(tenant, MARK)


async def audited_steps(engine: Engine, line: Line) -> AsyncIterator[AuditedStep]:
    """Return the steps of a line with their rows, branch by branch, from the first on."""
    # As they are stored: a damaged row is a finding. Of the rows, the digest in the metadata of the step says more.
    backend, start = engine.context.stored, (0, 0)
    while True:
        (found,) = await backend.read([Scan(STEPS, tuple(line), start=start, limit=_PAGE)])
        points = [StepRef.of(row) for row in found]
        events = await backend.read([Scan(EVENTS, (*line, point.id)) for point in points if point.id])
        rows = [[strip_row(EVENTS, row) for row in each] for each in events]
        by_id = dict(zip((point.id for point in points if point.id), rows, strict=True))
        for row, point in zip(found, points, strict=True):
            if point.pruned:
                yield AuditedStep(point, None, ())
                continue
            try:
                step = open_step(line, check_row(STEPS, row), engine.context.max_bytes)
                yield AuditedStep(point, step, by_id[point.id])
            except CorruptError as error:
                yield AuditedStep(point, None, by_id[point.id], error.what)
        if len(found) < _PAGE:
            return
        start = (points[-1].branch, points[-1].seq + 1)


def chain_name(line: Line, branch: int) -> str:
    """Return the name of the steps of a branch: that of the line, for its first branch."""
    return f"{line.name}{BETWEEN}{branch}" if branch else line.name


async def verify(engine: Engine, tenant: str) -> AuditReport:
    """Verify the audit. Writers may continue meanwhile."""
    report = AuditReport()
    for line in await audited_lines(engine, tenant):
        report.lines += 1
        await _verify_line(engine, line, report)
    return report


async def _verify_line(engine: Engine, line: Line, report: AuditReport) -> None:
    codec, limit = engine.context.codec, engine.context.max_bytes
    before: StepRef | None = None
    ids: set[str] = set()
    hashes: set[bytes] = set()
    pruned = False
    async for point, step, rows, problem in audited_steps(engine, line):
        report.steps += 1
        report.rows += len(rows)
        ids.add(point.id)
        pruned |= point.pruned
        if before is not None and before.branch != point.branch:
            before = None
        expected = 0 if before is None else before.seq + 1
        if point.seq != expected:
            report.findings.append(
                AuditFinding(line.name, point.id, f"steps {expected} to {point.seq - 1} are missing")
            )
        elif step is not None and step.header.parents[:1]:
            follows = step.header.parents[0].commit
            if (follows != before.hash) if before is not None else (bool(hashes) and follows not in hashes):
                report.findings.append(AuditFinding(line.name, point.id, "it does not follow the step before it"))
        hashes.add(point.hash)
        if problem:
            report.findings.append(AuditFinding(line.name, point.id, problem))
        elif step is not None:
            try:
                contents = [(row.columns, packed_detail(row, limit)) for row in rows]
            except HoldfastError as error:
                report.findings.append(AuditFinding(line.name, point.id, f"the details of a row: {error.what}"))
            else:
                about = codec.unpack(step.header.metadata)
                found = find_mismatches(about, [int(row.key[3]) for row in rows], contents)
                report.findings += (AuditFinding(line.name, point.id, what) for what in found)
        before = point
    await _find_stray_rows(engine, line, ids, report, pruned=pruned)


async def _find_stray_rows(engine: Engine, line: Line, ids: set[str], report: AuditReport, *, pruned: bool) -> None:
    """Report rows without a step."""
    start: tuple[str, ...] = ()
    last = max(ids, default="")
    while True:
        query = Scan(EVENTS, tuple(line), start=start, limit=_PAGE, bodies=False)
        (found,) = await engine.context.backend.read([query])
        for row in found:
            id = str(row.key[2])
            if id in ids or id > last:  # what came since is not looked at
                continue
            report.rows += 1
            if pruned:
                report.unproven += 1
            else:
                what = f"row {int(row.key[3])} was added: there is no such step"
                report.findings.append(AuditFinding(line.name, id, what))
        if len(found) < _PAGE:
            return
        start = (str(found[-1].key[2]) + "\0",)


def packed_detail(row: Row, max_bytes: int) -> bytes:
    """Return the packed details of a row; nothing if it has none."""
    return open_body(row, max_bytes) if row.body else b""


def unpack_detail(codec: Codec, row: Row, max_bytes: int) -> dict[str, Any]:
    """Return the details of a row."""
    packed = packed_detail(row, max_bytes)
    return codec.unpack(packed) if packed else {}


def find_mismatches(
    about: Mapping[str, Any], numbers: Sequence[int], contents: Sequence[tuple[Sequence[Any], bytes]]
) -> list[str]:
    """Return what is wrong with the rows of a step, by its metadata: which are missing, added or altered."""
    expected = about.get(DIGEST)
    if expected is None:
        return [] if not contents else ["it has rows, and its metadata knows of none"]
    if digest(contents) == expected and list(numbers) == list(range(len(contents))):
        return []
    wrong = []
    changes = [columns for columns, _ in contents if columns[KIND] == "change"]
    keys = about.get("before")
    if isinstance(keys, Mapping):
        there = {columns[TARGET] for columns in changes}
        wrong += [f"the row of the change of {key!r} is missing" for key in sorted(set(keys) - there)]
        wrong += [f"a row was added that tells of a change of {key!r}" for key in sorted(there - set(keys))]
    actor, correlation = about.get("actor", ""), about.get("correlation", "")
    for columns in changes:
        if columns[ACTOR] != actor:
            wrong.append(f"the row of the change of {columns[TARGET]!r} names another actor")
        if columns[CORRELATION] != correlation:
            wrong.append(f"the row of the change of {columns[TARGET]!r} names another correlation id")
    gaps = sorted(set(range(max(numbers, default=-1) + 1)) - set(numbers))
    wrong += [f"row {number} is missing" for number in gaps]
    return wrong or ["its rows are not those that it was written with: altered, missing at the end, or added"]
