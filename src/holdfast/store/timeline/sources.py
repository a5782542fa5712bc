"""The lines that have events about a scope or a thread."""

from __future__ import annotations

from holdfast.engine.engine import Engine
from holdfast.engine.events import lines_of
from holdfast.engine.model.scopes import MARK, Scope
from holdfast.engine.namespaces import ACCESS, AUDIT
from holdfast.engine.row_format import Line
from holdfast.hooks.execution_log import LINE as HOOKS

_MANY = 64
"""For more lines than these, all rows are read in the order of time."""


async def lines_about(engine: Engine, tenant: str, scope: Scope | None) -> list[Line] | None:
    """Return the lines with events about a scope and those inside, or about a thread; None if these may be any."""
    if scope is None or not scope.parts:
        return None
    others = [Line(tenant, name) for name in (HOOKS, ACCESS, AUDIT)]
    if scope.thread:
        lines = await engine.lines.family(Line(tenant, scope.thread))
    else:
        names = lines_of(str(scope))
        lines = [Line(tenant, name) for name in names]
        lines += [line for line in await engine.lines.names(tenant, f"{MARK}{scope}/") if line not in lines]
    return [*lines, *others] if len(lines) <= _MANY else None
