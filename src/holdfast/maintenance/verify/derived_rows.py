"""Readable rows and the index of words, compared with what the log would make of them.

They are made anew beside the store, in memory, by the same code that makes them as steps are saved.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from holdfast.backends.interface import Backend, Batch, Query, Row
from holdfast.backends.memory import MemoryBackend
from holdfast.backends.paging import UNREADABLE, scan_rows
from holdfast.backends.tables import AGENT_STATES, READABLE, WORDS, Table
from holdfast.backends.wrappers import Wrapper
from holdfast.backends.wrappers.store_diff import same_row
from holdfast.engine.cache import MemoryCache
from holdfast.engine.engine import Engine
from holdfast.engine.integrity.findings import Finding, FindingCode
from holdfast.engine.row_format import Line
from holdfast.engine.text_index.indexer import MANY
from holdfast.errors import ConflictError

_CACHE_BYTES = 16 << 20
_MADE = (*READABLE, WORDS)


class _Beside(Wrapper):
    """A store whose rows that are made from the log are in memory, and which is not written to."""

    def __init__(self, inner: Backend, memory: MemoryBackend) -> None:
        super().__init__(inner)
        self._memory = memory

    async def read(self, queries: Sequence[Query]) -> list[list[Row]]:
        made = [query.space in _MADE for query in queries]
        theirs = iter(await self.inner.read([query for query, here in zip(queries, made, strict=True) if not here]))
        ours = iter(await self._memory.read([query for query, here in zip(queries, made, strict=True) if here]))
        return [next(ours) if here else next(theirs) for here in made]

    async def apply(self, batch: Batch) -> int | None:
        """Whether the line changed meanwhile does not matter: then all is looked at again."""
        return await self._memory.apply([change for change in batch if change.space in _MADE])


async def compare_made(engine: Engine, line: Line) -> list[Finding]:
    """What readable rows and the index of words say that the log does not, or the other way round."""
    backend = engine.context.backend
    shown, words = [await _any(backend, space, line) for space in (AGENT_STATES, WORDS)]
    shown = shown or engine.projector.on
    words = bool(await engine.indexer.state(line.tenant)) or words
    if not shown and not words:
        return []
    memory = await MemoryBackend.open("memory://")
    ground = replace(engine.context, backend=_Beside(backend, memory), cache=MemoryCache(_CACHE_BYTES), project=True)
    beside = Engine(ground)
    found: list[Finding] = []
    try:
        if shown:
            await beside.projector.build(line)
            wrong = [space.name for space in READABLE if not await _is_same(backend, memory, space, line)]
            if wrong:
                what = f"rows of {', '.join(wrong)} do not say what the log says"
                found.append(Finding(FindingCode.STALE_ROWS, what, *line, space=wrong[0], key=tuple(line)))
        if words:
            await beside.indexer.build_line(line)
            if not await _is_same(backend, memory, WORDS, line):
                what = "the index of words does not have what the log has"
                found.append(Finding(FindingCode.STALE_WORDS, what, *line, space=WORDS.name, key=tuple(line)))
    except (*UNREADABLE, ConflictError):
        return found  # the log itself is damaged, which is told, or changes all the time
    finally:
        await memory.close()
    return found


async def _any(backend: Backend, space: Table, line: Line) -> bool:
    try:
        return await anext(scan_rows(backend, space, tuple(line), bodies=False), None) is not None
    except UNREADABLE:
        return True


async def _is_same(backend: Backend, memory: MemoryBackend, space: Table, line: Line) -> bool:
    try:
        ours, theirs = scan_rows(backend, space, tuple(line)), scan_rows(memory, space, tuple(line))
        while True:
            one, other = await anext(ours, None), await anext(theirs, None)
            if one is None or other is None:
                return one is other
            if not _agrees(space, one, other):
                return False
    except UNREADABLE:
        return False


def _agrees(space: Table, row: Row, made: Row) -> bool:
    """Whether a row says what it would if it were made now."""
    if space is WORDS:
        # More words do no harm. While nothing was pruned, steps may get more than they brought; afterwards they do not.
        words, wanted = (set(str(each.columns[1]).split()) for each in (row, made))
        return (row.key, row.columns[0]) == (made.key, made.columns[0]) and (MANY in words or wanted <= words)
    if space is AGENT_STATES:  # but for what is only there to tell versions of it apart
        row, made = (each._replace(columns=(*each.columns[:-1], 0)) for each in (row, made))
    return same_row(space, row, made)
