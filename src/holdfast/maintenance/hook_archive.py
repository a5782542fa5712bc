"""Retention of the history of hooks: old records go to a file, which still verifies.

The records of after-hooks and vetoes are in a line of their own, and that grows. Those of before-hooks belong to the
changes that they were called for, and are archived with the audit of these.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from holdfast.backends.interface import Scan
from holdfast.backends.tables import EVENTS, STEPS, Key
from holdfast.engine.engine import Engine
from holdfast.engine.ids import time_of
from holdfast.engine.namespaces import HOOKS
from holdfast.engine.row_format import StepRef
from holdfast.errors import InvalidError, NotFoundError
from holdfast.security.audit.export import AuditArchive, archive
from holdfast.time_parser import Duration, parse_nanoseconds

_PAGE = 1000


async def archive_hooks(
    engine: Engine,
    tenant: str,
    path: str | Path,
    *,
    keep_within: Duration | None = None,
    keep_last: int | None = None,
    max_bytes: int | None = None,
    dry_run: bool = False,
) -> AuditArchive:
    """Write old records to a file, and remove them. One stays if it is young enough or among the last, as far as all
    fit into the size."""
    check_rules({"keep_within": keep_within, "keep_last": keep_last, "max_bytes": max_bytes})
    age = None if keep_within is None else parse_nanoseconds(keep_within, "age")
    folder = Path(path).absolute().parent
    if not folder.is_dir():
        raise NotFoundError("there is no such directory", where=str(folder))
    before = await _find_cut(engine, tenant, age, keep_last, max_bytes)
    return await archive(engine, tenant, path, before, frozenset({"system"}), dry_run=dry_run, only=HOOKS)


def check_rules(rules: Mapping[str, Any]) -> None:
    """Raise `InvalidError` unless there is a rule, and all are valid."""
    for name in ("keep_last", "max_bytes"):
        value = rules[name]
        if value is not None and (type(value) is not int or value < 1):
            raise InvalidError(f"{name} must be at least 1, not {value!r}")
    if rules["keep_within"] is not None:
        parse_nanoseconds(rules["keep_within"], "age")
    if all(value is None for value in rules.values()):
        raise InvalidError("no rule for what to keep was given", hint="Give keep_within, keep_last or max_bytes")


async def _find_cut(engine: Engine, tenant: str, age: int | None, last: int | None, size: int | None) -> int:
    """Return the time before which records are removed. Records that were written together stay together."""
    count, stored = 0, 0
    stop: Key = ()
    last_id = kept_id = size_id = ""
    while not (last_id or last is None) or not (size_id or size is None):
        (rows,) = await engine.context.backend.read([Scan(EVENTS, (tenant, HOOKS), (), stop, True, _PAGE)])
        for row in rows:
            count, stored = count + 1, stored + len(row.body) + _COLUMNS
            id = str(row.key[2])
            if last is not None and count == last:
                kept_id = id  # and with it all that was recorded together
            elif kept_id and id != kept_id:
                last_id = last_id or id
            if size is not None and stored > size:
                size_id = size_id or id
        if len(rows) < _PAGE:
            break
        stop = rows[-1].key[2:]
    kept_since = [engine.context.clock() - age] if age is not None else []
    if last is not None:
        kept_since.append(await _time_after(engine, tenant, last_id))
    return max(min(kept_since, default=0), await _time_after(engine, tenant, size_id))


async def _time_after(engine: Engine, tenant: str, id: str) -> int:
    """Return the time after a step; 0 without one."""
    if not id:
        return 0
    (rows,) = await engine.context.backend.read([Scan(STEPS, (tenant, HOOKS, id), limit=1, by="id", bodies=False)])
    return StepRef.of(rows[0]).time + 1 if rows else time_of(id) + _TICK


_COLUMNS = 200
"""About how many bytes a record takes without its details."""

_TICK = 1000
"""More nanoseconds than the time in an id is rounded by."""
