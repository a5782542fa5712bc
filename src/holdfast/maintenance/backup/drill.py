"""The drill: restores a backup aside, verifies it to the last value, and compares it with the live store."""

from __future__ import annotations

import time
from collections.abc import Sequence
from random import SystemRandom
from typing import NamedTuple

import msgspec

from holdfast.backends.interface import Get, Put, Row, Scan
from holdfast.backends.paging import scan_rows
from holdfast.backends.tables import REFS, STEPS, Key
from holdfast.engine.copy.between_stores import StoreCopier
from holdfast.engine.engine import Engine
from holdfast.engine.integrity.findings import VerifyLevel
from holdfast.engine.integrity.verify import verify
from holdfast.engine.namespaces import short_name
from holdfast.engine.row_format import StepRef
from holdfast.engine.types import Progress
from holdfast.errors import HoldfastError
from holdfast.maintenance.archive.export import scratch_store
from holdfast.maintenance.backup.format import LineEntry, Tip
from holdfast.maintenance.backup.keyring import backup_keys
from holdfast.maintenance.backup.reader import backup_engine, named_entries
from holdfast.maintenance.backup.repository import Backup, Repository
from holdfast.maintenance.backup.status import DRILL, SETTING

_SAMPLE = 50
"""How many lines are compared with the live store."""


class DrillRecord(msgspec.Struct):
    """The result of a drill, as the store remembers it."""

    backup: str
    time: int
    ok: bool
    seconds: float
    summary: str


class DrillReport(NamedTuple):
    """The result of a drill: the backup, the lines and steps that were restored and verified, the lines that were
    compared with the live store, the findings, and the seconds that restoring and verifying took."""

    backup: str
    lines: int
    steps: int
    compared: int
    findings: tuple[str, ...]
    restore_seconds: float
    verify_seconds: float

    @property
    def ok(self) -> bool:
        """Whether there are no findings."""
        return not self.findings


async def run_drill(
    engine: Engine, repository: Repository, backup: Backup, home: str, progress: Progress | None
) -> DrillReport:
    """Restore a backup into a temporary store, and verify it. The store remembers the result."""
    findings: list[str] = []
    steps = compared = 0
    keys = await backup_keys(repository, [backup.manifest], engine)
    entries = [
        entry
        for entry in await named_entries(repository, backup, keys, engine)
        if entry.columns and not (keys is not None and keys.is_erased(entry))
    ]
    restored = verified = time.monotonic()
    start = restored
    try:
        source = await backup_engine(repository, backup.id, entries, engine, keys=keys)
        async with scratch_store(engine) as scratch:
            await StoreCopier(source, scratch).copy_together([entry.line for entry in entries])
            restored = time.monotonic()
            for number, entry in enumerate(entries, 1):
                report = await verify(scratch.context, entry.line, VerifyLevel.DECODE)
                findings += (f"{short_name(entry.name)}: {each}" for each in report.findings)
                tips = await _tips(scratch, entry)
                steps += sum(tip.seq + 1 for tip in tips)
                if sorted(tips) != sorted(entry.tips):
                    findings.append(f"{short_name(entry.name)}: it ends elsewhere than when the backup was made")
                if progress is not None:
                    progress(number, len(entries), entry.name)
        verified = time.monotonic()
        compared = await _compare(engine, entries, findings)
    except HoldfastError as error:
        findings.append(str(error))
        restored, verified = max(restored, start), time.monotonic()
    result = DrillReport(
        backup.id, len(entries), steps, compared, tuple(findings), restored - start, verified - restored
    )
    await _remember(engine, repository, home, result)
    return result


async def _tips(engine: Engine, entry: LineEntry) -> list[Tip]:
    last: dict[int, Tip] = {}
    async for row in scan_rows(engine.context.backend, STEPS, tuple(entry.line), bodies=False):
        step = StepRef.of(row)
        last[step.branch] = Tip(step.branch, step.seq, step.id, step.hash)
    return list(last.values())


async def _compare(engine: Engine, entries: Sequence[LineEntry], findings: list[str]) -> int:
    """Compare a sample with the live store: where a line ended, there is still the same step, or nothing."""
    sample = SystemRandom().sample(entries, min(_SAMPLE, len(entries)))
    for entry in sample:
        keys: list[Key] = [(*entry.line, tip.branch, tip.seq) for tip in entry.tips]
        (found,) = await engine.context.backend.read([Get(STEPS, keys)])
        hashes = {row.key[2:]: StepRef.of(row).hash for row in found}
        findings += (
            f"{short_name(entry.name)}: the live store has another step on branch {tip.branch} at {tip.seq}"
            for tip in entry.tips
            if hashes.get((tip.branch, tip.seq), tip.hash) != tip.hash
        )
    return len(sample)


async def _remember(engine: Engine, repository: Repository, home: str, report: DrillReport) -> None:
    seconds = report.restore_seconds + report.verify_seconds
    summary = report.findings[0][:200] if report.findings else f"{report.lines} lines, {report.steps} steps"
    record = DrillRecord(report.backup, engine.context.clock(), report.ok, seconds, summary)
    row = Row((home, "", SETTING, f"{DRILL} {repository.id}", ""), (msgspec.json.encode(record).decode(), record.time))
    await engine.context.backend.apply([Put(REFS, row)])


async def last_drills(engine: Engine, home: str) -> list[DrillRecord]:
    """Return the results of the last drills that a store remembers, one for each repository."""
    (found,) = await engine.context.backend.read([Scan(REFS, (home, "", SETTING))])
    texts = [str(row.columns[0]) for row in found if str(row.key[3]).startswith(f"{DRILL} ")]
    return [msgspec.json.decode(text, type=DrillRecord) for text in texts]
