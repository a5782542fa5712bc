"""The drill: restores a backup aside, and a moment between it and the one before it; verifies them to the last value,
and compares them with the live store, also with what a restore leaves out as erased."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import datetime
from random import SystemRandom

import msgspec

from holdfast._fields import computed
from holdfast.backends.interface import Get, Query, Scan
from holdfast.backends.paging import scan_rows
from holdfast.backends.tables import LINES, REFS, STEPS, Key
from holdfast.engine.copy.between_stores import StoreCopier
from holdfast.engine.engine import Engine
from holdfast.engine.integrity.findings import FindingCode, VerifyLevel
from holdfast.engine.integrity.verify import verify
from holdfast.engine.lines import TAG
from holdfast.engine.namespaces import short_name
from holdfast.engine.row_format import Line, StepRef, info_of
from holdfast.engine.types import Progress, to_datetime
from holdfast.errors import HoldfastError
from holdfast.maintenance.archive.export import scratch_store
from holdfast.maintenance.backup.format import LineEntry, Tip
from holdfast.maintenance.backup.keyring import backup_keys
from holdfast.maintenance.backup.reader import BackupBackend, backup_engine, named_entries
from holdfast.maintenance.backup.recovery_point import NEVER_SET_BACK, point_at_time
from holdfast.maintenance.backup.repository import Backup, Repository
from holdfast.maintenance.backup_status import DRILL, put_setting, read_settings
from holdfast.maintenance.erasure.reapply import read_ledgers, remove_erased
from holdfast.maintenance.progress import report_each

_SAMPLE = 50
"""How many lines are compared with the live store."""


class DrillRecord(msgspec.Struct):
    """The result of a drill, as the store remembers it."""

    backup: str
    time: int
    ok: bool
    seconds: float
    summary: str


class DrillReport(msgspec.Struct, frozen=True):
    """The result of a drill: the backup, the lines and steps that were restored and verified, the lines that were
    compared with the live store, the findings, and the seconds that restoring and verifying took; and the moment before
    the backup that was restored as well, unless it is the first one."""

    backup: str
    lines: int
    steps: int
    compared: int
    findings: tuple[str, ...]
    restore_seconds: float
    verify_seconds: float
    moment: datetime | None = None

    @property
    @computed
    def ok(self) -> bool:
        """Whether there are no findings."""
        return not self.findings


async def run_drill(
    engine: Engine, repository: Repository, backup: Backup, home: str, progress: Progress | None
) -> DrillReport:
    """Restore a backup into a temporary store, and verify it. The store remembers the result."""
    findings: list[str] = []
    steps = compared = 0
    moment: int | None = None
    entries: list[LineEntry] = []
    restored = verified = time.monotonic()
    start = restored
    try:
        keys = await backup_keys(repository, [backup.manifest], engine)
        every = [
            entry
            for entry in await named_entries(repository, backup, keys, engine)
            if not (keys is not None and keys.is_erased(entry))
        ]
        entries = [entry for entry in every if entry.columns]
        source = await backup_engine(repository, backup.id, entries, engine, keys=keys)
        async with scratch_store(engine) as scratch:
            await StoreCopier(source, scratch).copy_together([entry.line for entry in entries])
            restored = time.monotonic()
            for entry in report_each(entries, progress, lambda each: each.name):
                report = await verify(scratch.context, entry.line, VerifyLevel.DECODE)
                findings += (f"{short_name(entry.name)}: {each}" for each in report.findings)
                tips = await _tips(scratch, entry)
                steps += sum(tip.seq + 1 for tip in tips)
                if sorted(tips) != sorted(entry.tips):
                    findings.append(f"{short_name(entry.name)}: it ends elsewhere than when the backup was made")
        compared = await _compare(engine, entries, findings)
        findings += await _left_out(
            engine, await backup_engine(repository, backup.id, every, engine, keys=keys), entries
        )
        moment = await _prove_moment(engine, repository, backup, findings)
        verified = time.monotonic()
    except HoldfastError as error:
        findings.append(str(error))
        restored, verified = max(restored, start), time.monotonic()
    result = DrillReport(
        backup.id,
        len(entries),
        steps,
        compared,
        tuple(findings),
        restored - start,
        verified - restored,
        None if moment is None else to_datetime(moment),
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


async def _left_out(engine: Engine, source: Engine, entries: Sequence[LineEntry]) -> list[str]:
    """Remove what was erased from an opened backup, as a restore does. Returns findings about lines that lost something
    by that, while the live store still has how they ended in the backup."""
    backend, erased = source.context.stored, set[Line]()
    assert isinstance(backend, BackupBackend)  # noqa: S101 - it is a backup
    for tenant, ledger in (await read_ledgers({entry.tenant for entry in entries}, source, engine)).items():
        erased.update(await remove_erased(source, tenant, ledger))
    found = []
    for entry in entries:
        if entry.line not in erased and entry.line not in backend.replaced:
            continue
        left = await _tips(source, entry)
        (rows,) = await engine.context.backend.read(
            [Get(STEPS, [(*entry.line, tip.branch, tip.seq) for tip in entry.tips])]
        )
        live = {step.hash for step in map(StepRef.of, rows) if not step.pruned}
        if sorted(left) != sorted(entry.tips) and live.issuperset(tip.hash for tip in entry.tips):
            found.append(f"{short_name(entry.name)}: a restore leaves out as erased what the live store still has")
    return found


async def _prove_moment(engine: Engine, repository: Repository, backup: Backup, findings: list[str]) -> int | None:
    """Restore a moment between a backup and the one before it aside, and compare it with what the live store knows of
    that moment. Returns the moment."""
    store, number = backup.manifest.store, backup.manifest.number
    before = await repository.find_last(store, lambda each: each.number < number)
    if before is None:
        return None
    moment = SystemRandom().randint(min(before.manifest.until, backup.manifest.time), backup.manifest.time)
    point = await point_at_time(repository, store, moment, engine)
    entries = [
        entry
        for entry in point.entries
        if entry.columns and entry.name not in NEVER_SET_BACK and not point.is_erased(entry)
    ]
    source = await point.only(entries).engine(repository, engine)  # erased lines cannot be read
    async with scratch_store(engine) as scratch:
        await StoreCopier(source, scratch).copy_together([entry.line for entry in entries])
        for entry in entries:
            report = await verify(scratch.context, entry.line, VerifyLevel.DECODE)
            # Values of later checkpoints may be there, too: the backup after the moment has them.
            found = [str(each) for each in report.findings if each.code is not FindingCode.ORPHAN]
            if entry.line not in point.inexact.keys() | point.arrivals:
                found += await _missing(engine, scratch, entry.line, moment)
            findings += (f"{short_name(entry.name)} at {to_datetime(moment).isoformat()}: {each}" for each in found)
    return moment


async def _missing(engine: Engine, restored: Engine, line: Line, moment: int) -> list[str]:
    """Return the steps and tags of a line up to a moment that the live store has, and the restored one does not."""
    queries: list[Query] = [Get(LINES, [tuple(line)]), Scan(STEPS, tuple(line), bodies=False), Scan(REFS, (*line, TAG))]
    own, live_steps, live_tags = await engine.context.backend.read(queries)
    then, steps, tags = await restored.context.backend.read(queries)
    if [info_of(row).salt for row in own] != [info_of(row).salt for row in then]:
        return []  # it was deleted since
    known = {(step.branch, step.seq): step for step in map(StepRef.of, steps)}
    found = []
    for step in map(StepRef.of, live_steps):
        other = known.get((step.branch, step.seq))
        if (
            step.time <= moment
            and not step.pruned
            and (other is None or (other.hash, other.pruned) != (step.hash, False))
        ):
            found.append(f"a step of {to_datetime(step.time).isoformat()} is missing: {step.id}")
    targets = {row.key: row.columns[0] for row in tags}
    tags_then = [row for row in live_tags if int(row.columns[1]) <= moment]
    found += (f"the tag {row.key[3]!r} is missing" for row in tags_then if targets.get(row.key) != row.columns[0])
    return found


async def _remember(engine: Engine, repository: Repository, home: str, report: DrillReport) -> None:
    seconds = report.restore_seconds + report.verify_seconds
    summary = report.findings[0][:200] if report.findings else f"{report.lines} lines, {report.steps} steps"
    record = DrillRecord(report.backup, engine.context.clock(), report.ok, seconds, summary)
    await put_setting(engine, home, f"{DRILL} {repository.id}", record, record.time)


async def last_drills(engine: Engine, home: str) -> list[DrillRecord]:
    """Return the results of the last drills that a store remembers, one for each repository."""
    return [drill for drill, _ in await read_settings(engine, home, f"{DRILL} ", DrillRecord)]
