"""What differs between a scope's state at two moments."""

from __future__ import annotations

from holdfast.history.changes import Diff
from holdfast.history.comparing import Spot, compare
from holdfast.model.scopes import Scope
from holdfast.state.handles import Handle
from holdfast.state.history import When, point_at


async def diff(handle: Handle, scope: Scope, a: When, b: When | None) -> Diff:
    """What was written between them. Reads only what differs."""
    await handle.guard.allow("read", scope, ())
    line = handle.line(scope)
    old = await point_at(handle, line, a)
    if b is None:
        memo = await handle.engine.lines.fresh(line)
        new = None if memo is None else memo.point
    else:
        new = await point_at(handle, line, b)
    found = await compare(handle.engine, Spot(line, old), Spot(line, new), large=True)
    await handle.guard.saw(scope, ())
    return found.of_channels(lambda name: not name.startswith("\0"))
