"""Threads with their namespaces: what is done to a thread as a whole is done to all of its lines."""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.engine.engine import Engine
from holdfast.engine.namespaces import MARK, below, root_of
from holdfast.engine.row_format import Line


async def family(engine: Engine, line: Line) -> list[Line]:
    """The line of a thread, which need not be there, and those of its namespaces; that of a namespace is by itself."""
    others = await engine.lines.names(line.tenant, below(line)) if root_of(line) == line else []
    return [line, *(other for other in others if other != line and root_of(other) == line)]


async def lines_of(engine: Engine, tenant: str, threads: Iterable[str] | None) -> list[Line]:
    """The lines of some threads, or of all, each followed by those of its namespaces. `NotFoundError` if there is
    none."""
    if threads is None:
        return await engine.lines.names(tenant)
    found: list[Line] = []
    for name in dict.fromkeys(threads):
        line = Line(tenant, name)
        await engine.lines.info(line)  # says so if there is none
        found += await family(engine, line)
    return list(dict.fromkeys(found))


def moved(line: Line, root: Line, new: Line) -> Line:
    """What a line of a thread is called once the thread has another name."""
    rest = line.name if root.name == MARK else line.name[len(root.name) :]
    return new if line == root else new._replace(name=new.name + rest)
