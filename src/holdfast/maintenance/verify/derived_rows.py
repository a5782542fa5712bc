"""Comparison of readable rows and the text index with the log.

They are rebuilt in memory, by the same code that writes them as steps are saved.
"""

from __future__ import annotations

from collections.abc import Sequence, Set

from msgspec.structs import replace

from holdfast.backends.interface import Backend, Batch, Query, Row
from holdfast.backends.memory import MemoryBackend
from holdfast.backends.paging import UNREADABLE, scan_rows
from holdfast.backends.runtime.memory_cache import MemoryCache
from holdfast.backends.tables import BEHIND, FIELDS, HEADS, READABLE, WORDS, Key, Table
from holdfast.backends.wrappers import Wrapper
from holdfast.backends.wrappers.store_diff import same_row
from holdfast.engine.engine import Engine
from holdfast.engine.integrity.findings import Finding, FindingCode
from holdfast.engine.projection.projector import LATE_SECONDS
from holdfast.engine.row_format import Line
from holdfast.engine.text_index.indexer import MANY
from holdfast.errors import ConflictError

_CACHE_BYTES = 16 << 20
_DERIVED = (*READABLE, WORDS)
_LONGEST_START = 3
"""Stores have an index of their own for how words start, up to so many characters."""
_MATCHES_AT_ONCE = 1000


class _DerivedInMemory(Wrapper):
    """A store whose derived rows are in memory, and which is not written to."""

    def __init__(self, inner: Backend, memory: MemoryBackend) -> None:
        super().__init__(inner)
        self._memory = memory

    async def read(self, queries: Sequence[Query]) -> list[list[Row]]:
        derived = [query.space in _DERIVED for query in queries]
        stored = iter(await self.inner.read([query for query, own in zip(queries, derived, strict=True) if not own]))
        rebuilt = iter(await self._memory.read([query for query, own in zip(queries, derived, strict=True) if own]))
        return [next(rebuilt) if own else next(stored) for own in derived]

    async def apply(self, batch: Batch) -> int | None:
        """Apply changes of derived rows. Conditions do not matter: a difference is checked twice."""
        return await self._memory.apply([change for change in batch if change.space in _DERIVED])


async def compare_derived_rows(engine: Engine, line: Line) -> list[Finding]:
    """Return findings where readable rows or the text index differ from the log."""
    backend = engine.context.backend
    readable, words = [await _has_rows(backend, table, line) for table in (HEADS, WORDS)]
    readable = readable or engine.projector.on
    try:
        words = bool(await engine.indexer.state(line.tenant)) or words
    except UNREADABLE:
        words = True
    found: list[Finding] = []
    if readable and (behind := await _lag(engine, line)):
        if behind >= LATE_SECONDS:
            what = f"readable rows have been behind the log for {behind:.0f} seconds"
            found.append(Finding(FindingCode.STALE_ROWS, what, *line, space=BEHIND.name, key=tuple(line)))
        readable = False  # whoever saved writes them soon
    if not readable and not words:
        return found
    memory = await MemoryBackend.open("memory://")
    derived = _DerivedInMemory(engine.context.stored, memory)
    context = replace(engine.context, backend=derived, cache=MemoryCache(_CACHE_BYTES), project=True)
    rebuilt = Engine(context)
    try:
        if readable:
            await rebuilt.projector.build(line)
            wrong = [table.name for table in READABLE if not await _is_same(backend, memory, table, line)]
            if wrong and not await _lag(engine, line):  # or it was saved meanwhile
                what = f"rows of {', '.join(wrong)} differ from the log"
                found.append(Finding(FindingCode.STALE_ROWS, what, *line, space=wrong[0], key=tuple(line)))
        if words:
            await rebuilt.indexer.build_line(line)
            if not await _is_same(backend, memory, WORDS, line):
                what = "the text index lacks what the log has"
                found.append(Finding(FindingCode.STALE_WORDS, what, *line, space=WORDS.name, key=tuple(line)))
    except (*UNREADABLE, ConflictError):
        return found  # the log is damaged, which is reported elsewhere, or keeps changing
    finally:
        await memory.close()
    return found


async def _lag(engine: Engine, line: Line) -> float:
    try:
        return (await engine.projector.lag(*line))[1]
    except UNREADABLE:
        return 0.0


async def _has_rows(backend: Backend, table: Table, line: Line) -> bool:
    try:
        return await anext(scan_rows(backend, table, tuple(line), bodies=False), None) is not None
    except UNREADABLE:
        return True


async def _is_same(backend: Backend, memory: MemoryBackend, table: Table, line: Line) -> bool:
    try:
        stored, rebuilt = scan_rows(backend, table, tuple(line)), scan_rows(memory, table, tuple(line))
        while True:
            one, other = await anext(stored, None), await anext(rebuilt, None)
            if one is None or other is None:
                return one is other
            if not _agrees(table, one, other):
                return False
    except UNREADABLE:
        return False


async def check_fields(engine: Engine, line: Line) -> list[Finding]:
    """Return a finding if the index of fields does not have the metadata of a thread, or has other metadata."""
    try:
        right = await engine.fields.is_right(line)
    except UNREADABLE:
        return []  # the log is damaged, which is reported elsewhere
    return [] if right else [_stale_fields(line, "the index of fields differs from the metadata of the checkpoints")]


async def find_stray_fields(engine: Engine, tenant: str) -> list[Finding]:
    """Return findings for threads that the index of fields names under values that they do not have."""
    try:
        first, again = await engine.fields.strays(tenant), await engine.fields.strays(tenant)
    except UNREADABLE:
        return []
    what = "the index of fields names the thread under a value that it does not have"
    return [_stale_fields(line, what) for line in first if line in again]


def _stale_fields(line: Line, what: str) -> Finding:
    return Finding(FindingCode.STALE_FIELDS, what, *line, space=FIELDS.name, key=tuple(line))


async def check_word_index(engine: Engine, line: Line) -> list[Finding]:
    """Return a finding if the store's own index of words does not find what the rows of the text index have."""
    backend = engine.context.backend
    if not backend.capabilities.words or await _finds_words(backend, line):
        return []
    what = "the store's own index of words does not find what the text index has"
    return [Finding(FindingCode.STALE_WORDS, what, *line, space=WORDS.name, key=tuple(line))]


async def _finds_words(backend: Backend, line: Line) -> bool:
    """Return whether a search finds every row of the text index by each of its words, and by how these start."""
    by_word: dict[str, set[Key]] = {}
    by_start: dict[str, set[Key]] = {}
    try:
        async for row in scan_rows(backend, WORDS, tuple(line)):
            for word in str(row.columns[1]).split():
                by_word.setdefault(word, set()).add(row.key)
                for length in range(1, _LONGEST_START + 1):
                    by_start.setdefault(word[:length], set()).add(row.key)
        for word, keys in by_word.items():
            if not await _matches(backend, line, keys, words=[word]):
                return False
        for start, keys in by_start.items():
            if not await _matches(backend, line, keys, prefixes=[start]):
                return False
    except UNREADABLE:
        return False
    return True


async def _matches(
    backend: Backend, line: Line, keys: Set[Key], *, words: Sequence[str] = (), prefixes: Sequence[str] = ()
) -> bool:
    """Return whether a search in a line finds all of these rows."""
    missing, after = set(keys), None
    while missing:
        page = await backend.match(
            line.tenant, words, prefixes=prefixes, line=line.name, after=after, limit=_MATCHES_AT_ONCE
        )
        missing.difference_update(page.keys)
        if page.next is None:
            return not missing
        after = page.next
    return True


def _agrees(table: Table, row: Row, rebuilt: Row) -> bool:
    """Return whether a stored row agrees with the rebuilt one."""
    if table is WORDS:
        # More words do no harm. While nothing was pruned, steps may have more than they brought; afterwards not.
        words, required = (set(str(each.columns[1]).split()) for each in (row, rebuilt))
        return (row.key, row.columns[0]) == (rebuilt.key, rebuilt.columns[0]) and (MANY in words or required <= words)
    if table is HEADS:  # except its version
        row, rebuilt = (each._replace(columns=(*each.columns[:-1], 0)) for each in (row, rebuilt))
    return same_row(table, row, rebuilt)
