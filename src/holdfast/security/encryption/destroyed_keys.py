"""Keys that were destroyed: a store has a record of each, so that no backup brings them back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from holdfast.backends.interface import Change, Scan
from holdfast.backends.tables import KEYS, REFS
from holdfast.engine.engine import Engine
from holdfast.engine.row_format import Line
from holdfast.security.encryption.key_rows import DATA, DESTROYED_KEY, SETTING, KeyRow, destroyed_changes


async def destroyed_ids(engine: Engine, tenants: Iterable[str]) -> set[bytes]:
    """Return the ids of keys that were destroyed in a store."""
    context = engine.context
    start, stop = (DESTROYED_KEY,), (DESTROYED_KEY[:-1] + "!",)
    if context.rows.hides_names:  # names are known when a row is opened
        scans = [Scan(REFS, (tenant, "", SETTING)) for tenant in tenants]
    else:
        scans = [Scan(REFS, (tenant, "", SETTING), start, stop, bodies=False) for tenant in tenants]
    names = [str(row.key[3]) for rows in await context.backend.read(scans) for row in rows]
    return {bytes.fromhex(name[len(DESTROYED_KEY) :]) for name in names if name.startswith(DESTROYED_KEY)}


async def erased_key_changes(engine: Engine, lines: Sequence[Line]) -> list[Change]:
    """Return the changes that record the keys of lines as destroyed, on condition that these are all of their keys.

    They belong into the batch that deletes the lines. A line need not have the key of its person: it may be older than
    the encryption of the store, or than the first checkpoint that names the person.
    """
    if not engine.context.rows.hides_columns:
        return []
    found = await engine.context.stored.read([Scan(KEYS, (*line, DATA)) for line in lines])
    rows = [KeyRow.of(row) for each in found for row in each]
    now, tenants = engine.context.clock(), {row.tenant for row in rows}
    return [
        *(row.unchanged() for row in rows),
        *(
            change
            for tenant in sorted(tenants)
            for change in destroyed_changes(tenant, [row.id for row in rows if row.tenant == tenant], now)
        ),
    ]
