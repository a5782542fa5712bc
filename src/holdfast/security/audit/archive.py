"""Archiving the audit: records of some age are written to a file, a *segment*, and removed from the store.

A segment has the form of an exported audit, is signed like one, and is encrypted if the store is. It starts where the
one before it ended, so segments form a chain, and each is checked alone or against the heads of the one before
(`check_audit`). In the store the steps stay, with their hashes and the digests of their records. A system line says
which steps have their records in a segment, in the same batch that removes them. So a record that is missing for any
other reason is found as before.

Records that say what was removed or erased stay in the store: a verification needs them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from holdfast.backends.fsutil import flush_folder, open_private
from holdfast.backends.interface import BlockingCall
from holdfast.engine.engine import Engine
from holdfast.engine.events import digest
from holdfast.engine.hold_check import require_no_hold
from holdfast.engine.integrity.check import find_salt
from holdfast.engine.namespaces import AUDIT, LineKind, line_kind, short_name
from holdfast.engine.row_format import ERASE, Line
from holdfast.errors import CorruptError, DeniedError, InvalidError
from holdfast.security.audit.archive_records import LINE, ArchivedRange, ArchiveRecords
from holdfast.security.audit.erasure_ledger import ErasureLedger
from holdfast.security.audit.export import AuditWriter, SegmentInfo, find_signer
from holdfast.security.audit.retain import REMOVE
from holdfast.security.audit.thread_audit import record
from holdfast.security.audit.verify import (
    ACTION,
    AuditedStep,
    audited_lines,
    audited_steps,
    chain_name,
    find_mismatches,
    id_of,
    packed_detail,
)

ARCHIVED_KINDS: frozenset[LineKind] = frozenset({"audit", "access", "scope", "session", "system"})
"""The kinds of lines whose records are archived by default. Those of agents list their transitions."""

_RETAINED = frozenset({REMOVE, ERASE, "erased"})
"""Actions whose records stay in the store."""

_AT_ONCE = 200
"""The number of steps whose records are removed together."""


@dataclass(frozen=True)
class AuditArchive:
    """The result of archiving: the file, the number of the segment, the numbers of lines, steps and records in it, the
    digest of the file, the heads that the next segment starts from, and lines that a legal hold protects."""

    path: str
    segment: int
    lines: int
    steps: int
    rows: int
    digest: str
    heads: Mapping[str, tuple[int, str]]
    held: tuple[str, ...] = ()
    dry_run: bool = False
    public_key: str = ""
    """The key that checks the signature of the file, in hex; empty if it is not signed."""


async def archive(
    engine: Engine,
    tenant: str,
    path: str | Path,
    before: int,
    kinds: frozenset[LineKind],
    *,
    dry_run: bool = False,
    only: str = "",
) -> AuditArchive:
    """Write records from before a time to a file, which must not exist, and then remove them. `CorruptError` if the
    audit does not verify: nothing is removed then. With `only`, those of the line of this name."""
    target, temporary = Path(path), Path(f"{path}.new")
    if target.exists():
        raise InvalidError("the file exists", where=str(path), hint="Each segment has a file of its own")
    signer = None if dry_run else await find_signer(engine, tenant)
    records = ArchiveRecords(engine, tenant)
    ranges = await records.ranges()
    number = max((each.segment for each in ranges), default=0) + 1
    replaced = await ErasureLedger(engine, tenant).replaced_digests()
    plan: dict[Line, list[_PlannedStep]] = {}
    held: list[str] = []
    with open_private(temporary, "wb") as file:
        try:
            writer = await AuditWriter.open(engine, tenant, file, signer, SegmentInfo(number, before))
            for line in await audited_lines(engine, tenant):
                if line_kind(line.name) not in kinds or line.name == LINE or only not in ("", line.name):
                    continue
                if await _is_held(engine, line):
                    held.append(short_name(line.name))
                    continue
                own = [each for each in ranges if each.line == line.name]
                plan[line] = await _write_line(engine, line, own, replaced, before, writer)
            sha = writer.end()
            file.flush()
            await BlockingCall(lambda: os.fsync(file.fileno()))
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    if dry_run or not any(plan.values()):
        temporary.unlink()
    else:
        temporary.replace(target)
        await BlockingCall(lambda: flush_folder(target.absolute().parent))
        for line, steps in plan.items():
            for start in range(0, len(steps), _AT_ONCE):
                await _remove(records, number, line, steps[start : start + _AT_ONCE])
        detail = {"segment": number, "file": target.name, "sha256": sha}
        await record(engine, [Line(tenant, AUDIT)], "archive", detail)
    counts = [step for steps in plan.values() for step in steps]
    return AuditArchive(
        str(path),
        number,
        sum(map(bool, plan.values())),
        len(counts),
        sum(step.rows for step in counts if not step.is_retained),
        sha,
        writer.heads,
        tuple(held),
        dry_run,
        writer.public_key,
    )


class _PlannedStep(NamedTuple):
    """A step with records that is in the segment."""

    id: str
    rows: int
    is_retained: bool


async def _remove(records: ArchiveRecords, number: int, line: Line, steps: Sequence[_PlannedStep]) -> None:
    retained = frozenset(step.id for step in steps if step.is_retained)
    gone = [step for step in steps if not step.is_retained]
    rows = sum(step.rows for step in gone)
    await records.move(
        ArchivedRange(number, line.name, steps[0].id, steps[-1].id, retained, rows), [step.id for step in gone]
    )


async def _is_held(engine: Engine, line: Line) -> bool:
    try:
        await require_no_hold(engine.context.backend, [line])
    except DeniedError:
        return True
    return False


async def _write_line(
    engine: Engine,
    line: Line,
    archived: Sequence[ArchivedRange],
    replaced: Mapping[tuple[str, str], str],
    before: int,
    writer: AuditWriter,
) -> list[_PlannedStep]:
    """Write the steps of a line from before a time that are in no segment yet. Returns those that have records."""
    last = max((each.last for each in archived), default="")
    salt = await find_salt(engine.context, line)
    found: list[_PlannedStep] = []
    positions: dict[str, tuple[int, str]] = {}
    ended: set[str] = set()
    async for audited in audited_steps(engine, line):
        point, id = audited.point, id_of(audited)
        chain = chain_name(line, point.branch)
        if chain in ended:
            continue
        if id <= last and chain not in writer.heads:
            positions[chain] = (point.seq + 1, point.hash.hex())
            continue
        if point.time >= before:
            ended.add(chain)
            continue
        writer.start(chain, positions.get(chain))
        left = replaced.get((line.name, id), "")
        _check(engine, line, audited, left)
        writer.step(engine, line, salt, audited, **({"erased": left} if left else {}))
        if audited.rows:
            retained = any(row.columns[ACTION] in _RETAINED for row in audited.rows)
            found.append(_PlannedStep(id, len(audited.rows), retained))
    for chain, position in positions.items():
        writer.start(chain, position)
    return sorted(found)


def _check(engine: Engine, line: Line, audited: AuditedStep, left: str) -> None:
    """Require that the records of a step are those that it was written with, or what an erasure left."""
    step, proof, limit = audited.step, audited.proof, engine.context.max_bytes
    expected = step.header.events if step is not None else "" if proof is None else proof.events
    contents: list[tuple[Sequence[Any], bytes]] = [(row.columns, packed_detail(row, limit)) for row in audited.rows]
    if left and digest(contents) == left:
        return
    if audited.problem or find_mismatches(expected, [int(row.key[3]) for row in audited.rows], contents, {}):
        raise CorruptError(
            "records of the audit are not those that were written, so nothing is archived",
            where=f"step {id_of(audited)} of {short_name(line.name)}",
            hint="store.audit.verify() and `holdfast audit verify` list what is wrong",
        )
