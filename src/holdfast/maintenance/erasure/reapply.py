"""Applying the ledger of erasures to data that came from elsewhere: a backup, an export, a copy or a mirror.

Such data may be older than an erasure. Whatever of it belongs to an erased person, and is from before the erasure, is
removed again. What the person has stored since is theirs to keep.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from typing import Protocol, runtime_checkable

from holdfast.backends.interface import Backend, Delete, Get, Put, Row, Scan
from holdfast.backends.memory import MemoryBackend
from holdfast.backends.tables import LINES, REFS
from holdfast.engine.artifact_links import LINE as ARTIFACTS
from holdfast.engine.context import EngineContext
from holdfast.engine.copy.between_stores import StoreCopier
from holdfast.engine.engine import Engine
from holdfast.engine.namespaces import ACCESS, HOOKS, root_of
from holdfast.engine.row_format import HOLD, Line
from holdfast.hooks.outbox import delete_calls
from holdfast.maintenance.erasure.audit_rows import AuditRewriter, SubjectRows, rewrite_about
from holdfast.maintenance.erasure.finder import SubjectData, SubjectFinder, tenant_key
from holdfast.maintenance.erasure.mixed_lines import erase_records
from holdfast.maintenance.erasure.removal import (
    ERASURE,
    HISTORIES,
    delete_found,
    forget_reasons,
    sum_parts,
)
from holdfast.security.audit.erasure_ledger import LINE as ERASURES
from holdfast.security.audit.erasure_ledger import ErasureLedger, LedgerEntry
from holdfast.security.handle import StoreHandle
from holdfast.state.sessions.records import LINE as SESSIONS


async def read_ledger(engine: Engine, tenant: str) -> list[LedgerEntry]:
    """Return the erasures that a store knows of."""
    return await ErasureLedger(engine, tenant).entries()


async def apply_ledger(
    engine: Engine,
    tenant: str,
    entries: Sequence[LedgerEntry] | None = None,
    *,
    lines: Container[Line] | None = None,
) -> None:
    """Remove from a store what was erased: by its own ledger, or by entries of another.

    Call it after data was restored, imported, copied or repaired, and before anybody uses it. `lines` are those that
    the data came to; without them, all are. Nothing of it is left in free space. `DeniedError` if a hold protects some
    of it.
    """
    own = Engine(engine.context)  # without hooks and policies
    ledger = ErasureLedger(own, tenant)
    has_changed, subjects = False, list[SubjectRows]()
    for entry in await ledger.entries() if entries is None else entries:
        found, places = await _apply(own, tenant, entry, lines)
        has_changed |= not found.is_empty
        subjects.append(SubjectRows(entry.with_places(places), entry.time))
    rewriter = AuditRewriter(own, ledger, rewrite_about(own, subjects), lines)
    if subjects and await rewriter.run(tenant, f"{own.context.clock():020}-again"):
        has_changed = True
    if lines is None or Line(tenant, HOOKS) in lines:
        for each in subjects:
            has_changed |= await delete_calls(own, tenant, each.is_about) > 0
    if has_changed:
        from holdfast.security.sensitive.credential_check import forget_erased  # slow to import

        await forget_erased(own, tenant)
        await own.context.backend.purge()


def finder_of(engine: Engine, tenant: str, entry: LedgerEntry, lines: Container[Line] | None = None) -> SubjectFinder:
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
    engine: Engine, tenant: str, entry: LedgerEntry, lines: Container[Line] | None
) -> tuple[SubjectData, dict[str, int]]:
    """Remove what one erasure erased. Returns it, and the places where it was."""
    finder = finder_of(engine, tenant, entry, lines)
    if lines is None or Line(tenant, ACCESS) in lines:
        await forget_reasons(engine, tenant, entry.is_of, entry.time)
    found = await finder.find()
    if found.is_empty:
        return found, {}
    started = engine.context.clock()
    await delete_found(StoreHandle(engine, tenant), found, entry.name, entry.key)
    await erase_records(engine, tenant, finder.is_record, {ERASURE: entry.name, "kind": HISTORIES}, lines)
    # As they are called here: a copy may have other names than what was erased.
    return found, (await sum_parts(engine, tenant, entry.name, started)).places


# Backups ------------------------------------------------------------------------------------------------------------

_RECORDS = (SESSIONS, ARTIFACTS)


@runtime_checkable
class OpenedBackup(Protocol):
    """A backup that is opened as a store, of which lines can be left out or shown otherwise."""

    def remove(self, line: Line) -> None:
        """Leave out a line."""

    async def take(self, line: Line, other: Backend) -> None:
        """Have a line with the rows that another store has."""


def says_whose(line: str) -> bool:
    """Return whether a line says whose other lines are: records of sessions and artifacts, and settings."""
    return not line or line in (*_RECORDS, ERASURES)


async def read_ledgers(tenants: Iterable[str], *engines: Engine) -> dict[str, list[LedgerEntry]]:
    """Return the erasures that stores and backups know of, by tenant."""
    found: dict[str, list[LedgerEntry]] = {}
    for tenant in sorted(set(tenants)):
        entries = {each.name: each for engine in engines for each in await read_ledger(engine, tenant)}
        if entries:
            found[tenant] = [entries[name] for name in sorted(entries)]
    return found


async def remove_erased(source: Engine, tenant: str, ledger: Sequence[LedgerEntry]) -> list[Line]:
    """Remove what was erased from a backup that is opened: whole lines, which are returned, and what others share."""
    backend = source.context.stored
    assert isinstance(backend, OpenedBackup)  # noqa: S101 - it is a backup
    found = [await finder_of(source, tenant, entry).find() for entry in ledger]
    roots = {root_of(line) for each in found for line in each.every_line}
    if all(each.is_empty for each in found):
        return []
    # Each erasure is applied to what may be affected, in memory.
    (rows,) = await source.context.backend.read([Get(REFS, [tenant_key(tenant)])])
    lines = [each for each in await source.lines.names(tenant) if root_of(each) in roots or each.name in _RECORDS]
    scratch = Engine(EngineContext(MemoryBackend(), codec=source.context.codec))
    await scratch.context.backend.apply([Put(REFS, row) for row in rows])
    await StoreCopier(source, scratch).copy_together(lines)
    holds = [row for line in lines for row in await _holds(scratch, line)]
    await scratch.context.backend.apply([Delete(REFS, row.key) for row in holds])  # what was held then was erased since
    await apply_ledger(scratch, tenant, ledger)
    (left,) = await scratch.context.backend.read([Get(LINES, [tuple(line) for line in lines])])
    remaining, erased = {Line(*map(str, row.key)) for row in left}, list[Line]()
    await scratch.context.backend.apply([Put(REFS, row) for row in holds if Line(*map(str, row.key[:2])) in remaining])
    for line in lines:
        if line in remaining:
            await backend.take(line, scratch.context.stored)
        else:
            backend.remove(line)
            erased.append(line)
    source.context.cache.drop_all(*lines)
    return erased


async def _holds(engine: Engine, line: Line) -> list[Row]:
    (rows,) = await engine.context.backend.read([Scan(REFS, (*line, HOLD))])
    return rows
