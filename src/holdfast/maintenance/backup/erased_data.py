"""Data that was erased since a backup was made: it is left out wherever the backup is read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from holdfast.backends.interface import Delete, Get, Put, Row, Scan
from holdfast.backends.memory import MemoryBackend
from holdfast.backends.tables import LINES, REFS
from holdfast.engine.artifact_links import LINE as ARTIFACTS
from holdfast.engine.context import EngineContext
from holdfast.engine.copy.between_stores import StoreCopier
from holdfast.engine.engine import Engine
from holdfast.engine.namespaces import root_of
from holdfast.engine.row_format import HOLD, Line
from holdfast.maintenance.backup.format import LineEntry
from holdfast.maintenance.backup.reader import BackupBackend
from holdfast.maintenance.erasure.reapply import apply_ledger, finder_of, read_ledger
from holdfast.security.audit.erasure_ledger import LINE as ERASURES
from holdfast.security.audit.erasure_ledger import LedgerEntry
from holdfast.security.erasure.subjects import tenant_key
from holdfast.state.sessions.records import LINE as SESSIONS

_RECORDS = (SESSIONS, ARTIFACTS)


def says_whose(entry: LineEntry) -> bool:
    """Return whether a line says whose other lines are: records of sessions and artifacts, and settings."""
    return not entry.name or entry.name in (*_RECORDS, ERASURES)


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
    assert isinstance(backend, BackupBackend)  # noqa: S101 - it is a backup
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
