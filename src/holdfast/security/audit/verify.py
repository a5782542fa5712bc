"""Verification of the audit: whether its rows are those that were written with their steps.

A step has a digest of its rows, and its hash covers that and all steps before. So a row that was altered, removed or
added is detected by its step; an altered step by its hash; a removed one by the step that follows. The stub of a pruned
step keeps the digest, and proves that it is the step's. Missing steps at the end are detected with heads that were
exported before (`store.maintenance.heads`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import msgspec

from holdfast._fields import count, fill
from holdfast.backends.interface import Row, Scan
from holdfast.backends.tables import EVENTS, STEPS
from holdfast.codec import Codec
from holdfast.engine.engine import Engine
from holdfast.engine.events import BETWEEN, digest
from holdfast.engine.integrity.check import find_salt
from holdfast.engine.model.packed_state import unpack_name
from holdfast.engine.model.scopes import MARK
from holdfast.engine.model.steps import Step, StepParent, StubProof
from holdfast.engine.namespaces import ACCESS, AUDIT
from holdfast.engine.row_format import ERASE, Line, StepRef, open_body, open_step
from holdfast.errors import CorruptError, HoldfastError
from holdfast.security.audit.archive_records import ArchivedRange, ArchiveRecords, segment_of
from holdfast.security.audit.erasure_ledger import ErasureLedger
from holdfast.security.audit.retain import REMOVE, STEP

_PAGE = 256

# Where things are in the columns of a row.
KIND, ACTOR, ACTION, TARGET, CORRELATION = 1, 2, 3, 4, 6


class AuditFinding(msgspec.Struct, frozen=True):
    """A part of the audit that is not as it was written."""

    line: str
    step: str
    what: str


class AuditResult(msgspec.Struct, frozen=True):
    """The counts and findings of a verification of the audit, in a store or in a file."""

    steps: int = 0
    rows: int = 0
    pruned: int = 0
    """Steps that were pruned. Their rows are verified all the same."""
    erased: int = 0
    """Steps from whose rows content was erased. The ledger of erasures, or the file, has digests of what is left."""
    archived: int = 0
    """Steps whose rows are in segments of the archive, which are checked by themselves."""
    findings: list[AuditFinding] = []

    @property
    def ok(self) -> bool:
        """Whether there are no findings."""
        return not self.findings


class AuditReport(AuditResult, frozen=True):
    """The result of a verification of the audit."""

    lines: int = 0
    unproven: int = 0
    """Rows of steps that left nothing: nothing covers them any more."""
    compared: int | None = None
    """How many ends of lines were compared with heads; None without heads. Then it cannot be seen if steps at the end
    of a line are missing."""


class AuditedStep(NamedTuple):
    """A step with its rows. The step is None if it was pruned or is damaged; `proof` is what a pruned one left."""

    point: StepRef
    step: Step | None
    rows: Sequence[Row]
    problem: str = ""
    proof: StubProof | None = None
    damaged: tuple[int, ...] = ()
    """The numbers of rows that are not what was written, though perhaps only in what belongs to no content."""


async def audited_lines(engine: Engine, tenant: str) -> list[Line]:
    """Return the lines that have audit rows: those of scopes, and system lines."""
    return await engine.lines.names(tenant, MARK)


async def audited_steps(engine: Engine, line: Line) -> AsyncIterator[AuditedStep]:
    """Return the steps of a line with their rows, branch by branch, from the first on."""
    # As they are stored: a damaged row is a finding. Of the rows, the digest in the metadata of the step says more.
    backend, start, salt = engine.context.stored, (0, 0), await find_salt(engine.context, line)
    while True:
        (found,) = await backend.read([Scan(STEPS, tuple(line), start=start, limit=_PAGE)])
        opened = [_open(engine, line, salt, row) for row in found]
        ids = [id_of(each) for each in opened]
        events = iter(await backend.read([Scan(EVENTS, (*line, id)) for id in ids if id]))
        codec = engine.context.rows
        for each, id in zip(opened, ids, strict=True):
            stored = next(events) if id else []
            damaged = tuple(int(row.key[3]) for row in stored if not codec.is_intact(EVENTS, row))
            yield each._replace(rows=[codec.salvage(EVENTS, row) for row in stored], damaged=damaged)
        if len(found) < _PAGE:
            return
        last = opened[-1].point
        start = (last.branch, last.seq + 1)


def _open(engine: Engine, line: Line, salt: bytes, row: Row) -> AuditedStep:
    """Return a step without its rows."""
    rows = engine.context.rows
    point = StepRef.of(rows.salvage(STEPS, row))
    try:
        row = rows.decode(STEPS, row)
        if point.pruned:
            return AuditedStep(point, None, (), proof=point.proof)
        step = open_step(line, row, engine.context.max_bytes)
        if salt and step.commit(salt) != point.hash:
            return AuditedStep(point, None, (), "its hash is not that of its content")
        return AuditedStep(point, step, ())
    except CorruptError as error:
        return AuditedStep(point, None, (), error.what)


def id_of(audited: AuditedStep) -> str:
    """Return the id of a step; empty if a pruned one left nothing."""
    return audited.point.id if audited.proof is None else audited.proof.id


def chain_name(line: Line, branch: int) -> str:
    """Return the name of the steps of a branch: that of the line, for its first branch."""
    return f"{line.name}{BETWEEN}{branch}" if branch else line.name


Heads: TypeAlias = Mapping[str, tuple[int, str]]
"""The heads of lines: the number of steps, and the hash of the last, in hex."""


async def verify(engine: Engine, tenant: str, heads: Heads | None = None) -> AuditReport:
    """Verify the audit. Writers may continue meanwhile. With heads, the ends of lines are compared with them."""
    report = AuditReport()
    replaced = await ErasureLedger(engine, tenant).replaced_digests()
    archived = await ArchiveRecords(engine, tenant).ranges()
    expected = heads or {}
    found: dict[str, str] = {}
    removed: dict[str, int] = {}
    for line in await audited_lines(engine, tenant):
        count(report, lines=1)
        digests = {id: digest for (name, id), digest in replaced.items() if name == line.name}
        ranges = [each for each in archived if each.line == line.name]
        await _verify_line(engine, line, report, expected, found, removed, digests, ranges)
    if heads is not None:
        fill(report, compared=len(heads))
        report.findings.extend(compare_heads(heads, lambda name, _: found.get(name), removed))
    return report


def compare_heads(
    heads: Heads, hash_at: Callable[[str, int], str | None], removed: Mapping[str, int]
) -> list[AuditFinding]:
    """Return findings where a line does not have the step that heads say, and was not removed since."""
    return [
        AuditFinding(name, "", f"step {length - 1} is not the one that the heads say")
        for name, (length, last) in heads.items()
        if length > removed.get(name, 0) and hash_at(name, length - 1) != last
    ]


async def _verify_line(
    engine: Engine,
    line: Line,
    report: AuditReport,
    heads: Heads,
    ends: dict[str, str],
    removed: dict[str, int],
    replaced: Mapping[str, str],
    archived: Sequence[ArchivedRange],
) -> None:
    """Verify a line. Adds its hashes where heads end to `ends`, and the lines that it says were removed to `removed`,
    with the number of their steps. `replaced` has the digests of rows whose content was erased, by the ids of their
    steps."""
    codec, limit = engine.context.codec, engine.context.max_bytes
    before: StepRef | None = None
    ids: set[str] = set()
    hashes: set[bytes] = set()
    unknown = False
    async for audited in audited_steps(engine, line):
        point, step, rows, problem, proof, damaged = audited
        count(report, steps=1, rows=len(rows))
        ids.add(id_of(audited))
        unknown |= bool(point.branch) or (point.pruned and proof is None)
        name = chain_name(line, point.branch)
        if name in heads and point.seq == heads[name][0] - 1:
            ends[name] = point.hash.hex()
        if before is not None and before.branch != point.branch:
            before = None
        wrong: list[str] = []
        expected = 0 if before is None else before.seq + 1
        if point.seq != expected:
            wrong.append(f"steps {expected} to {point.seq - 1} are missing")
        elif step is not None and step.header.parents[:1]:
            follows = step.header.parents[0].commit
            if (follows != before.hash) if before is not None else (bool(hashes) and follows not in hashes):
                wrong.append("it does not follow the step before it")
        if problem:
            wrong.append(problem)
        try:
            contents = [(row.columns, packed_detail(row, limit)) for row in rows]
        except HoldfastError as error:
            wrong.append(f"the details of a row: {error.what}")
        else:
            numbers = [int(row.key[3]) for row in rows]
            erased = bool(rows) and replaced.get(id_of(audited)) == digest(contents)
            count(report, erased=erased)
            if not rows and _had_rows(audited) and segment_of(archived, id_of(audited)):
                count(report, archived=1)
                erased = True
            if step is not None:
                changed = [*(name for name, _ in step.edit.put), *step.edit.removed]
                about = with_key(codec.unpack(step.header.metadata), changed)
                wrong += find_mismatches(digest(contents) if erased else step.header.events, numbers, contents, about)
                removed.update(_removed_lines(line, rows, contents, codec))
            elif point.pruned and not problem:
                count(report, pruned=1)
                first = None if before is None and (point.seq or point.branch) else _hash_of(before)
                wrong += check_stub(line.name, point.hash, proof, first, point.merged, numbers, contents, erased=erased)
        if not wrong:  # their content is what was written, and their checksums are those of other rows
            wrong += (f"row {number} is damaged: its checksum is not that of the row" for number in damaged)
        hashes.add(point.hash)
        report.findings.extend(AuditFinding(line.name, id_of(audited), what) for what in wrong)
        before = point
    await _find_stray_rows(engine, line, ids, report, unknown=unknown)


def _had_rows(audited: AuditedStep) -> bool:
    if audited.step is not None:
        return bool(audited.step.header.events)
    return audited.proof is not None and bool(audited.proof.events)


def _hash_of(before: StepRef | None) -> tuple[bytes, ...]:
    return () if before is None else (before.hash,)


def check_stub(
    line: str,
    commit: bytes,
    proof: StubProof | None,
    first: Sequence[bytes] | None,
    merged: Sequence[StepParent],
    numbers: Sequence[int],
    contents: Sequence[tuple[Sequence[Any], bytes]],
    *,
    erased: bool = False,
) -> list[str]:
    """Return what is wrong with the stub of a pruned step. `first` has the hash of its first parent, if it has one;
    None if that is unknown."""
    if line in (ACCESS, AUDIT):
        return ["it is marked as pruned, and nothing is ever pruned here"]
    if proof is None:
        return ["it is marked as pruned, and nothing proves which records it had"]
    if first is not None and proof.commit([*first, *(parent.commit for parent in merged)]) != commit:
        return ["it is marked as pruned, and what it left is not that of the step"]
    return find_mismatches(digest(contents) if erased else proof.events, numbers, contents, {})


async def removed_lines(engine: Engine, tenant: str) -> dict[str, int]:
    """Return the lines that were removed according to the audit, and how many steps they had."""
    line, found = Line(tenant, AUDIT), dict[str, int]()
    async for audited in audited_steps(engine, line):
        contents = [(row.columns, packed_detail(row, engine.context.max_bytes)) for row in audited.rows]
        found |= _removed_lines(line, audited.rows, contents, engine.context.codec)
    return found


def _removed_lines(
    line: Line, rows: Sequence[Row], contents: Sequence[tuple[Sequence[Any], bytes]], codec: Codec
) -> dict[str, int]:
    """Return the lines that a step of the audit removed, and how many steps they had."""
    if line.name != AUDIT:
        return {}
    found = {}
    for row, (columns, packed) in zip(rows, contents, strict=True):
        about = codec.unpack(packed) if packed else {}
        if columns[KIND] == "change" and columns[ACTION] in (REMOVE, ERASE) and "steps" in about and STEP not in about:
            found[MARK + str(row.columns[TARGET]).removesuffix(BETWEEN)] = int(about["steps"])
    return found


async def _find_stray_rows(engine: Engine, line: Line, ids: set[str], report: AuditReport, *, unknown: bool) -> None:
    """Report rows without a step; only count them, if there may be steps that left nothing."""
    start: tuple[str, ...] = ()
    last = max(ids, default="")
    while True:
        query = Scan(EVENTS, tuple(line), start=start, limit=_PAGE, bodies=False)
        (found,) = await engine.context.backend.read([query])
        for row in found:
            id = str(row.key[2])
            if id in ids or id > last:  # what came since is not looked at
                continue
            count(report, rows=1)
            if unknown:
                count(report, unproven=1)
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


def with_key(about: dict[str, Any], changed: Iterable[bytes]) -> dict[str, Any]:
    """Return the metadata of a step with the version before of its key, also where it has no more than the version,
    since it changed only one key. The names of what it changed are packed."""
    before = about.get("before")
    if not isinstance(before, int):
        return about
    keys = (unpack_name(name) for name in changed if name)
    found = {key: before for key in keys if not key.startswith("\0")}
    return {**about, "before": found} if found else about


def find_mismatches(
    expected: str,
    numbers: Sequence[int],
    contents: Sequence[tuple[Sequence[Any], bytes]],
    about: Mapping[str, Any],
) -> list[str]:
    """Return what is wrong with the rows of a step, by its digest of them: which are missing, added or altered. Its
    metadata may say more."""
    if not expected:
        return [] if not contents else ["it has rows, and knows of none"]
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
    for columns in changes if about else ():
        if columns[ACTOR] != actor:
            wrong.append(f"the row of the change of {columns[TARGET]!r} names another actor")
        if columns[CORRELATION] != correlation:
            wrong.append(f"the row of the change of {columns[TARGET]!r} names another correlation id")
    gaps = sorted(set(range(max(numbers, default=-1) + 1)) - set(numbers))
    wrong += [f"row {number} is missing" for number in gaps]
    return wrong or ["its rows are not those that it was written with: altered, missing at the end, or added"]
