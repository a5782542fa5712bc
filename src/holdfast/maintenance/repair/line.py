"""Repairing one line: attempts until nobody writes to it meanwhile, and nothing is left to do."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.engine.engine import Engine
from holdfast.engine.integrity.findings import Severity, VerifyLevel
from holdfast.engine.integrity.verify import look
from holdfast.engine.leases import Lease
from holdfast.engine.optimistic import Attempts
from holdfast.engine.row_format import Line
from holdfast.maintenance.repair.attempt import RepairAttempt
from holdfast.maintenance.repair.report import ThreadRepairReport
from holdfast.maintenance.repair.sources import RepairSource
from holdfast.maintenance.verify.heads import StoreHeads, compare_head

_PASSES = 3
"""The number of passes: one may leave work for the next."""


async def repair_line(
    engine: Engine, line: Line, sources: Sequence[RepairSource], *, whole: bool = False, heads: StoreHeads | None = None
) -> ThreadRepairReport | None:
    """Repair a line, and verify the result. None if nothing is wrong with it.

    `whole` says that rows were lost that nobody can name: what a source has and the line has not is then taken over.
    What is not as exported heads have it is left.
    """
    lease = Lease(engine.context, line, "rewrite")
    total = ThreadRepairReport(line.name)
    changed = passes = 0
    try:
        await lease.acquire()
        attempts = Attempts("repairing a thread", line, engine.context.metrics)
        while True:
            await attempts.begin()
            attempt = RepairAttempt(engine, line, sources, lease, whole=whole and not changed)
            done = await attempt.run()
            total.add(attempt.mended)
            if done and not attempt.changed:
                break
            changed += attempt.changed
            passes += done
            if passes == _PASSES:  # refs of lost steps, and parts that nothing needs, are removed in the second
                break
    finally:
        await lease.release()
    if changed:
        engine.context.cache.drop_all(line)
        await _make_again(engine, line)
        check = await look(engine.context, line, VerifyLevel.DECODE)
        total.left = [each for each in check.found.findings if each.severity is Severity.DAMAGE]
    if heads is not None and line.name in heads.threads:
        found = await compare_head(engine, heads, line.name, {})
        total.left += [each for each in found if each.severity is Severity.DAMAGE]
    return total if changed or total.left else None


async def _make_again(engine: Engine, line: Line) -> None:
    """Rebuild readable rows and the text index from the log."""
    if engine.projector.on:
        await engine.projector.build(line)
    await engine.indexer.follow(line)
