"""Applying the ledger of erasures to data that came from elsewhere: a backup, an export, a copy or a mirror.

Such data may be older than an erasure. Whatever of it belongs to an erased person, and is from before the erasure, is
removed again. What the person has stored since is theirs to keep.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from holdfast.engine.engine import Engine
from holdfast.engine.namespaces import ACCESS, HOOKS, root_of
from holdfast.engine.row_format import Line
from holdfast.hooks.outbox import delete_calls
from holdfast.maintenance.erasure.audit_rows import AuditRewriter, SubjectRows, rewrite_about
from holdfast.maintenance.erasure.finder import SubjectData, SubjectFinder
from holdfast.maintenance.erasure.mixed_lines import LineEraser
from holdfast.maintenance.erasure.record_lines import erase_records
from holdfast.maintenance.erasure.removal import (
    ERASURE,
    HISTORIES,
    delete_artifact,
    delete_lines,
    delete_session,
    forget_reasons,
    rewriting_detail,
    sum_parts,
)
from holdfast.security.audit.erasure_ledger import ErasureLedger, LedgerEntry
from holdfast.security.handle import StoreHandle


@dataclass(frozen=True)
class ReapplyReport:
    """How much was removed again: lines as a whole, steps of others' lines, artifacts and sessions."""

    lines: int = 0
    rewritten: int = 0
    records: int = 0

    @property
    def is_empty(self) -> bool:
        """Whether nothing had come back."""
        return not (self.lines or self.rewritten or self.records)

    def plus(self, found: SubjectData) -> ReapplyReport:
        """Return the report with more that was removed."""
        records = len(found.artifacts) + len(found.sessions)
        return ReapplyReport(self.lines + len(found.lines), self.rewritten + len(found.steps), self.records + records)


async def read_ledger(engine: Engine, tenant: str) -> list[LedgerEntry]:
    """Return the erasures that a store knows of."""
    return await ErasureLedger(engine, tenant).entries()


async def apply_ledger(
    engine: Engine,
    tenant: str,
    entries: Sequence[LedgerEntry] | None = None,
    *,
    lines: Collection[Line] | None = None,
) -> ReapplyReport:
    """Remove from a store what was erased: by its own ledger, or by entries of another.

    Call it after data was restored, imported, copied or repaired, and before anybody uses it. `lines` are those that
    the data came to; without them, all are. Nothing of it is left in free space. `DeniedError` if a hold protects some
    of it.
    """
    own = Engine(engine.context)  # without hooks and policies
    ledger = ErasureLedger(own, tenant)
    report, subjects = ReapplyReport(), list[SubjectRows]()
    for entry in await ledger.entries() if entries is None else entries:
        found, places = await _apply(own, tenant, entry, lines)
        report = report.plus(found)
        subjects.append(SubjectRows(entry.with_places(places), entry.time))
    rewriter = AuditRewriter(own, ledger, rewrite_about(own, subjects), lines)
    has_rows = bool(subjects) and await rewriter.run(tenant, f"{own.context.clock():020}-again") > 0
    if lines is None or Line(tenant, HOOKS) in lines:
        for each in subjects:
            has_rows |= await delete_calls(own, tenant, each.is_about) > 0
    if has_rows or not report.is_empty:
        from holdfast.security.sensitive.credential_check import forget_erased  # slow to import

        await forget_erased(own, tenant)
        await own.context.backend.purge()
    return report


def finder_of(engine: Engine, tenant: str, entry: LedgerEntry, lines: Collection[Line] | None = None) -> SubjectFinder:
    """Return what finds data that an erasure erased, in some lines or in all."""
    return SubjectFinder(
        engine,
        tenant,
        entry.is_of,
        until=entry.time,
        metadata_keys=entry.metadata_keys,
        known_line=entry.has_line,
        lines=lines,
    )


async def _apply(
    engine: Engine, tenant: str, entry: LedgerEntry, lines: Collection[Line] | None
) -> tuple[SubjectData, dict[str, int]]:
    """Remove what one erasure erased. Returns it, and the places where it was."""
    finder, handle = finder_of(engine, tenant, entry, lines), StoreHandle(engine, tenant)
    if lines is None or Line(tenant, ACCESS) in lines:
        await forget_reasons(engine, tenant, entry.is_of)
    found = await finder.find()
    if found.is_empty:
        return found, {}
    started = engine.context.clock()
    families: dict[Line, list[Line]] = {}
    for line in found.lines:
        families.setdefault(root_of(line), []).append(line)
    for family in families.values():
        await delete_lines(engine, family, entry.name, entry.key)
    for id in found.artifacts:
        await delete_artifact(handle, id, entry.name, entry.key)
    for id in found.sessions:
        await delete_session(handle, id, entry.name)
    for line, steps in found.steps.items():
        await LineEraser(engine, line, rewriting_detail(line, entry.name), steps).erase()
    await erase_records(engine, tenant, finder.is_record, {ERASURE: entry.name, "kind": HISTORIES}, lines)
    # As they are called here: a copy may have other names than what was erased.
    return found, (await sum_parts(engine, tenant, entry.name, started)).places
