"""The ledger of erasures of a store whose data goes to another one.

It goes along where the target is a copy: a store that has nothing yet, or an earlier copy. Any other store has persons
and erasures of its own, and does not take over what was erased elsewhere.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection

from holdfast.backends.interface import Get, Row
from holdfast.backends.paging import scan_rows
from holdfast.backends.tables import LINES
from holdfast.engine.copy.between_stores import StoreCopier
from holdfast.engine.engine import Engine
from holdfast.engine.namespaces import AUDIT
from holdfast.engine.row_format import Line, info_of
from holdfast.errors import ConflictError
from holdfast.security.audit.erasure_ledger import LINE as LEDGER
from holdfast.security.audit.erasure_ledger import ErasureLedger


async def takes_ledger(source: Engine, target: Engine, tenant: str) -> bool:
    """Return whether the target gets the ledger of the source: it has nothing of the tenant, or is an earlier copy."""
    existing = {str(row.key[1]): info_of(row).salt async for row in lines_of(target, tenant)}
    for name in (LEDGER, AUDIT):
        if name in existing:
            return await _is_earlier(source, target, Line(tenant, name))
    for name, salt in existing.items():
        if await salt_of(source, Line(tenant, name)) != salt:
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
