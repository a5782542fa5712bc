"""The check that no hold forbids a change of lines."""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.backends.interface import Backend, Expect, Get, Query, Scan
from holdfast.backends.tables import LINES, REFS
from holdfast.engine.lost_rows import marked_tables
from holdfast.engine.namespaces import root_of
from holdfast.engine.row_format import HOLD, Line
from holdfast.errors import DeniedError


async def require_no_hold(backend: Backend, lines: Iterable[Line]) -> list[Expect]:
    """Return the conditions that lines stay as they are: first one for each of them, then for the threads that they
    belong to. `DeniedError` if there is a hold on one."""
    every = list(dict.fromkeys(lines))
    every += dict.fromkeys(root for line in every if (root := root_of(line)) not in every)
    queries: list[Query] = [Get(LINES, [tuple(line)]) for line in every]
    queries += [Scan(REFS, (*line, HOLD)) for line in every]
    pages = await backend.read(queries)
    for tenant in dict.fromkeys(line.tenant for line in every):
        if REFS.name in await marked_tables(backend, tenant):
            raise DeniedError(
                "a hold on the thread may have been lost when the damaged store was repaired",
                where=f"thread {every[0]}",
                hint="Repair the store from a copy: holdfast repair --from URL. If there is none, check which threads "
                "must be held, and accept the loss: holdfast repair --accept-loss",
            )
    for rows in pages[len(every) :]:
        if rows:
            tenant, name, _, reason, _ = map(str, rows[0].key)
            raise DeniedError(
                f"the thread is held{': ' + reason if reason else ''}",
                where=f"thread {Line(tenant, name)}",
                hint="Release it first, if that is yours to decide",
            )
    return [
        Expect(LINES, tuple(line), rows[0].columns if rows else None)
        for line, rows in zip(every, pages[: len(every)], strict=True)
    ]
