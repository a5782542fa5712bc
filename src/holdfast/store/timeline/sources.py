"""Where events are: the lines that have those about a scope or a thread, and the steps that wrote a value."""

from __future__ import annotations

from holdfast.backends.interface import ColumnHint
from holdfast.engine.engine import Engine
from holdfast.engine.events import lines_of
from holdfast.engine.model.scopes import MARK, Scope
from holdfast.engine.namespaces import RECORD_LINES
from holdfast.engine.paths import Path, require_range
from holdfast.engine.row_format import Line
from holdfast.engine.types import Revision
from holdfast.errors import NotFoundError
from holdfast.history.blame import blame
from holdfast.history.revisions import resolve
from holdfast.security.handle import StoreHandle
from holdfast.state.history import list_changes

_MANY = 64
"""For more lines than these, all rows are read in the order of time."""


async def lines_about(engine: Engine, tenant: str, scope: Scope | None) -> list[Line] | None:
    """Return the lines with events about a scope and those inside, or about a thread; None if these may be any."""
    if scope is None or not scope.parts:
        return None
    others = [Line(tenant, name) for name in RECORD_LINES]
    if scope.thread:
        lines = await engine.lines.family(Line(tenant, scope.thread))
    else:
        names = lines_of(str(scope))
        lines = [Line(tenant, name) for name in names]
        lines += [line for line in await engine.lines.names(tenant, f"{MARK}{scope}/") if line not in lines]
    return [*lines, *others] if len(lines) <= _MANY else None


def hints_about(scope: Scope) -> tuple[ColumnHint, ...]:
    """Return what the rows of system lines about a scope or a thread have, and those about an agent's own line."""
    return (ColumnHint("target", (str(scope)[str(scope).index(":") :],), contains=True),)


async def writer_of_path(handle: StoreHandle, thread: str, path: Path, at: Revision) -> str:
    """Return the id of the checkpoint that wrote the value at a path of a thread; of a list or dict, the latest that
    wrote an item. `NotFoundError` if there is no such value, or the checkpoint was pruned."""
    line = handle.thread_line(thread)
    await handle.guard.allow_thread("read", line)
    entries = await blame(handle.engine, line, require_range(path), await resolve(handle.engine, line, at))
    await handle.guard.saw_thread(line)
    writers = [entry.writer for entry in entries if not entry.writer.pruned]
    if not writers:
        raise NotFoundError("the checkpoint that wrote the value was pruned", where=f"{path} of thread {line}")
    return max(writers, key=lambda writer: (writer.step, writer.id)).id


async def writer_of_key(handle: StoreHandle, scope: Scope, key: str) -> str:
    """Return the id of the step that wrote a key of a scope last. `NotFoundError` if there is none."""
    found = await list_changes(handle, scope, key, 1, None)
    if not found:
        raise NotFoundError("the key has no history", where=f"key {key!r} of {scope}")
    return found[0].id
