"""Copying a store without what was erased in the target, and to an older copy, without what was erased in the source.

The ledger of the target holds for whatever comes in. That of the source goes along where the target is a copy of it: a
new store, or an earlier copy. A store of its own does not take over what another one erased.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any

from holdfast.backends.interface import Get, Row
from holdfast.backends.paging import scan_rows
from holdfast.backends.tables import LINES
from holdfast.engine import trace_context
from holdfast.engine.context import Apply
from holdfast.engine.copy.between_stores import CopyRules, StoreCopier, open_target
from holdfast.engine.copy.copy_report import CopyReport, OnCopyProgress
from holdfast.engine.copy.line_stream import every_tenant
from holdfast.engine.engine import Engine
from holdfast.engine.hold_check import require_no_hold
from holdfast.engine.line_walk import LineSet
from holdfast.engine.namespaces import AUDIT
from holdfast.engine.row_format import Line, info_of
from holdfast.errors import ConflictError, DeniedError
from holdfast.maintenance.backup_status import unseen_since
from holdfast.maintenance.erasure.reapply import apply_ledger, finder_of, read_ledger
from holdfast.schemas.registry import copy_registries
from holdfast.security.audit.erasure_ledger import LINE as LEDGER
from holdfast.security.audit.erasure_ledger import ErasureLedger, LedgerEntry
from holdfast.security.audit.removals import arrival_detail
from holdfast.security.audit.thread_audit import record, recorded
from holdfast.security.handle import StoreHandle
from holdfast.state.artifacts.content import CONTENT_PREFIX
from holdfast.state.artifacts.records import ArtifactRecords

_GRACE = 3600 * 10**9
"""Content that nobody added to for so long, in nanoseconds, is not about to become that of an artifact."""


async def copy_lines(
    source: Engine,
    target: Engine | str,
    options: Mapping[str, Any],
    tenant: str | None,
    progress: OnCopyProgress | None,
    only: Sequence[Line] | None,
) -> CopyReport:
    """Copy the lines of a tenant, or of all, or only some, to another store: an open one, or by its URL."""
    erasures = _CopiedErasures(source, tenant, only)
    async with open_target(source, target, options, tenant) as opened:
        own_audit = {each: await _has_own_audit(source, opened, each, only) for each in await erasures.tenants()}

        async def apply(*lines: Line) -> Apply | None:
            """Return how to apply the copy of lines: with a record of each, where backups may lack them."""
            if not own_audit[lines[0].tenant]:
                return None
            detail = await arrival_detail(source, opened, *lines)
            return recorded(opened, lines, "copied", detail, is_limited=True)

        copier = StoreCopier(source, opened, progress, apply, copy_registries, erasures.prepare)
        try:
            return await copier.copy(tenant, only)
        finally:
            await erasures.finish(opened, copier.written)


async def _has_own_audit(source: Engine, target: Engine, tenant: str, only: Sequence[Line] | None) -> bool:
    """Return whether the target of a copy has backups, and an audit that is not a copy of that of the source."""
    if await unseen_since(target, tenant) is None:
        return False
    audit = Line(tenant, AUDIT)
    salt = await salt_of(target, audit)
    if only is not None or await salt_of(source, audit) is None:
        return True
    return salt is not None and not await _is_earlier(source, target, audit)


async def record_copy(engine: Engine, tenant: str, lines: Sequence[Line] | None, to: str) -> None:
    """Record a copy to another store, of some lines or of all, if there is something to say about it."""
    trace = trace_context.current()
    if trace.correlation or trace.cause:
        place = [Line(tenant, AUDIT)] if lines is None else lines
        with suppress(DeniedError):  # the store is open for reading only: it records nothing
            await record(engine, place, "copy", {"to": to})


# The ledger ---------------------------------------------------------------------------------------------------------


async def takes_ledger(source: Engine, target: Engine, tenant: str) -> bool:
    """Return whether the target gets the ledger of the source: it has nothing of the tenant, or is an earlier copy."""
    for name in (LEDGER, AUDIT):
        if await salt_of(target, Line(tenant, name)) is not None:
            return await _is_earlier(source, target, Line(tenant, name))
    async for row in lines_of(target, tenant):
        if await salt_of(source, Line(tenant, str(row.key[1]))) != info_of(row).salt:
            return False
    return True


async def _is_earlier(source: Engine, target: Engine, line: Line) -> bool:
    """Return whether a line of the target is that of the source, or an earlier copy."""
    try:
        await StoreCopier(source, target).check_history(line)
    except ConflictError:
        return False
    return True


async def add_digests(source: Engine, target: Engine, tenant: str, lines: Collection[Line] | None = None) -> None:
    """Tell the target which rows of events have lost their content, in some lines or in all, so that its audit still
    verifies."""
    digests = (await ErasureLedger(source, tenant).replaced_digests()).items()
    new = [(name, id, each) for (name, id), each in digests if lines is None or Line(tenant, name) in lines]
    await ErasureLedger(Engine(target.context), tenant).add_digests(new)


def lines_of(engine: Engine, tenant: str) -> AsyncIterator[Row]:
    """Return the rows of the lines of a tenant."""
    return scan_rows(engine.context.backend, LINES, (tenant,))


async def salt_of(engine: Engine, line: Line) -> bytes | None:
    """Return the salt of a line, which its copies have too; None if there is no such line."""
    (found,) = await engine.context.backend.read([Get(LINES, [tuple(line)])])
    return info_of(found[0]).salt if found else None


# A copy -------------------------------------------------------------------------------------------------------------


class _CopiedErasures:
    """The erasures that a copy must respect."""

    def __init__(self, source: Engine, tenant: str | None, only: Sequence[Line] | None) -> None:
        self._source = source
        self._tenant = tenant
        self._only = only
        self._removes = False
        """Whether the target loses something, also by steps that were pruned in the source."""

    async def prepare(self, target: Engine) -> CopyRules:
        """Return what is not copied as it is. Removes from an older copy what was erased in the source since.

        `DeniedError` if a hold protects anything of it: then nothing is copied.
        """
        rules, removed = CopyRules(), list[Line]()
        for tenant in await self.tenants():
            entries, own = await read_ledger(self._source, tenant), await read_ledger(target, tenant)
            self._removes |= bool({entry.name for entry in entries} - {entry.name for entry in own})
            for entry in own:
                await self._leave_out(target, tenant, entry, rules)
            if entries and self._only is None:
                removed += await self._erased_lines(target, tenant, entries)
            for name, id in await ErasureLedger(self._source, tenant).replaced_digests():
                rules.replaced_events.add((Line(tenant, name), id))
        await require_no_hold(target.context.backend, removed)
        for line in removed:
            await target.lines.delete(line)  # the audit of the source, which is copied too, says so
        for tenant in await self.tenants():
            if self._only is not None or not await takes_ledger(self._source, target, tenant):
                rules.left_out.add(Line(tenant, LEDGER))
                await add_digests(self._source, target, tenant, self._only)
        return rules

    async def _leave_out(self, target: Engine, tenant: str, entry: LedgerEntry, rules: CopyRules) -> None:
        found = await finder_of(self._source, tenant, entry, self._only).find()
        rules.left_out.update(found.lines)
        for engine in (self._source, target):  # holds are copied, too
            await require_no_hold(engine.context.backend, found.steps)

    async def _erased_lines(self, target: Engine, tenant: str, entries: Sequence[LedgerEntry]) -> list[Line]:
        """Return the lines of the target that are copies of lines which were erased in the source."""
        found = []
        async for row in lines_of(target, tenant):
            line, salt = Line(tenant, str(row.key[1])), info_of(row).salt
            if any(entry.has_line(salt) for entry in entries) and await salt_of(self._source, line) != salt:
                found.append(line)
        return found

    async def finish(self, target: Engine, written: LineSet) -> None:
        """Remove from what was copied to the target what was erased there; also if the copy failed."""
        deleted = False
        for tenant in await self.tenants():
            if written:
                await apply_ledger(target, tenant, lines=written)
            if self._only is None and await read_ledger(self._source, tenant):
                deleted |= await self._delete_content(target, tenant)
        if deleted or (self._removes and written):
            await target.context.backend.purge()

    async def _delete_content(self, target: Engine, tenant: str) -> bool:
        """Delete content from an older copy that is of no artifact any more, in the source or there. Returns whether
        there was any."""
        deleted = False
        artifacts = ArtifactRecords(StoreHandle(target, tenant))
        for line in await target.lines.names(tenant, CONTENT_PREFIX):
            (found,) = await self._source.context.backend.read([Get(LINES, [tuple(line)])])
            if not found and await artifacts.is_left_over(line, _GRACE):
                await target.lines.delete(line)
                deleted = True
        return deleted

    async def tenants(self) -> list[str]:
        """Return the tenants of which something is copied."""
        if self._tenant is not None:
            return [self._tenant]
        return await every_tenant(self._source.context.backend)
