"""Keys of lines that are erased: a record of them, so that no backup brings them back."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.backends.interface import Change, Scan
from holdfast.backends.tables import KEYS
from holdfast.engine.engine import Engine
from holdfast.engine.row_format import Line
from holdfast.security.encryption.key_rows import DATA, KeyRow, destroyed_changes


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
