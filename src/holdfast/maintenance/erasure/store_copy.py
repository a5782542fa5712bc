"""Copying a store without what was erased: from the source, or from the target, which may be newer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from holdfast.backends.paging import scan_rows
from holdfast.backends.tables import LINES
from holdfast.engine import trace_context
from holdfast.engine.copy.between_stores import StoreCopier, copy_to_url
from holdfast.engine.copy.copy_report import CopyReport, OnCopyProgress
from holdfast.engine.engine import Engine
from holdfast.engine.namespaces import AUDIT
from holdfast.engine.row_format import Line
from holdfast.errors import DeniedError
from holdfast.maintenance.erasure.reapply import apply_ledger, finder_of, read_ledger
from holdfast.schemas.registry_copy import copy_registries
from holdfast.security.audit.erasure_ledger import LINE as LEDGER
from holdfast.security.audit.thread_audit import record


async def copy_lines(
    source: Engine,
    target: Engine | str,
    options: Mapping[str, Any],
    tenant: str | None,
    progress: OnCopyProgress | None,
    only: Sequence[Line] | None,
) -> CopyReport:
    """Copy the lines of a tenant, or of all, or only some, to another store: an open one, or by its URL."""
    erasures = _CopiedErasures(source, tenant)
    if isinstance(target, str):
        return await copy_to_url(
            source, target, options, tenant, progress, only, copy_registries, erasures.leave_out, erasures.apply
        )
    report = await StoreCopier(source, target, progress, None, copy_registries, erasures.leave_out).copy(tenant, only)
    await erasures.apply(target)
    return report


async def record_copy(engine: Engine, tenant: str, lines: Sequence[Line] | None, to: str) -> None:
    """Record a copy to another store, of some lines or of all, if there is something to say about it."""
    trace = trace_context.current()
    if trace.correlation or trace.cause:
        place = [Line(tenant, AUDIT)] if lines is None else lines
        with suppress(DeniedError):  # the store is open for reading only: it records nothing
            await record(engine, place, "copy", {"to": to})


class _CopiedErasures:
    """The erasures that a copy must respect."""

    def __init__(self, source: Engine, tenant: str | None) -> None:
        self._source = source
        self._tenant = tenant

    async def leave_out(self, target: Engine) -> set[Line]:
        """Return the lines that are not copied: what was erased in the target as a whole. Its ledger stays its own; it
        gets the entries of the other."""
        out: set[Line] = set()
        for tenant in await self._tenants():
            entries = await read_ledger(target, tenant)
            for entry in entries:
                out.update((await finder_of(self._source, tenant, entry).find()).lines)
            if entries:
                out.add(Line(tenant, LEDGER))
        return out

    async def apply(self, target: Engine) -> None:
        """Remove from the target what was erased, once it is copied."""
        for tenant in await self._tenants():
            entries = await read_ledger(self._source, tenant)
            if entries or await read_ledger(target, tenant):
                await apply_ledger(target, tenant, entries)

    async def _tenants(self) -> list[str]:
        if self._tenant is not None:
            return [self._tenant]
        found = scan_rows(self._source.context.backend, LINES, (), bodies=False)
        return sorted({str(row.key[0]) async for row in found})
