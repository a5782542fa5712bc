"""Which scopes there are."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from holdfast.backends.interface import Scan
from holdfast.backends.tables import LINES, STEPS
from holdfast.engine.model.scopes import MARK, Scope, normal
from holdfast.engine.patterns import matcher, narrowed
from holdfast.engine.row_format import Line, StepRef
from holdfast.engine.types import to_datetime
from holdfast.security.handle import StoreHandle
from holdfast.state.reader import ScopeView, read_scope

_LAST = "\U0010ffff"
_LEAST = 64
"""How many names are read at a time at least: some are of scopes that are not shown."""


class ScopeInfo(NamedTuple):
    """A scope that has state, or had some: how many keys it has, its version (the number of its last step), and when it
    changed last."""

    scope: Scope
    keys: int
    version: int
    updated: datetime


async def list_scopes(handle: StoreHandle, prefix: str, pattern: str, after: str, limit: int) -> list[ScopeInfo]:
    """A page of scopes in the order of their text. Who may not read a scope is not told that it is there."""
    prefix, pattern = normal(prefix, "prefix"), normal(pattern, "pattern")
    matches, common = matcher(pattern) if pattern else None, narrowed(prefix, pattern)
    if common is None:
        return []
    prefix = common
    first = MARK + max(prefix, after + "\0" if after else "")
    found: list[ScopeInfo] = []
    page = max(limit, _LEAST)
    while len(found) < limit:
        query = Scan(LINES, (handle.tenant,), (first,), (MARK + prefix + _LAST,), limit=page)
        (rows,) = await handle.engine.context.backend.read([query])
        named = (scope for row in rows if (scope := Scope.of_line(str(row.key[1]))) is not None)
        meant = [each for each in named if str(each).startswith(prefix) and (not matches or matches(str(each)))]
        for scope in await handle.guard.visible(meant):
            if len(found) < limit:
                found += await _describe(handle, scope)
        if len(rows) < page:
            break
        first = str(rows[-1].key[1]) + "\0"
    return found


async def _describe(handle: StoreHandle, scope: Scope) -> list[ScopeInfo]:
    line: Line = handle.line(scope)
    (rows,) = await handle.engine.context.backend.read([Scan(STEPS, (*line, 0), reverse=True, limit=1, bodies=False)])
    if not rows:
        return []
    point = StepRef.of(rows[0])
    return [ScopeInfo(scope, await read_scope(handle, scope, ScopeView.count), point.seq + 1, to_datetime(point.time))]
