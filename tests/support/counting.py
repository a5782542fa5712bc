"""Counting what is asked of a store, so that a test or a benchmark can say what an operation costs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from holdfast.backends.interface import Backend, Batch, Create, Ensure, Put, Query, Row, WordMatch, WordMatches
from holdfast.backends.runtime.fork_safety import ForkSafeLock
from holdfast.backends.tables import Table
from holdfast.backends.wrappers import Wrapper


class CountingBackend(Wrapper):
    """Counts calls, rows and bytes.

    Rows and bytes are counted by the name of their space; bytes are those of bodies, and of text and bytes in keys and
    columns. Rows of a batch that was refused are not counted as written.
    """

    def __init__(self, inner: Backend) -> None:
        super().__init__(inner)
        self._lock = ForkSafeLock()
        self.reset()

    def reset(self) -> None:
        """Start again at nothing."""
        with self._lock:
            self.reads = 0
            """Calls of `read`."""
            self.queries = 0
            """Queries in them."""
            self.matches = 0
            """Calls of `match`."""
            self.applies = 0
            """Calls of `apply`."""
            self.refused = 0
            """Those whose condition did not hold."""
            self.rows_read: Counter[str] = Counter()
            self.bytes_read: Counter[str] = Counter()
            self.rows_written: Counter[str] = Counter()
            self.bytes_written: Counter[str] = Counter()

    async def read(self, queries: Sequence[Query]) -> list[list[Row]]:
        found = await self.inner.read(queries)
        with self._lock:
            self.reads += 1
            self.queries += len(queries)
            for query, rows in zip(queries, found, strict=True):
                _add(self.rows_read, self.bytes_read, query.space, rows)
        return found

    async def match_words(self, match: WordMatch) -> WordMatches:
        found = await self.inner.match_words(match)
        with self._lock:
            self.matches += 1
        return found

    async def apply(self, batch: Batch) -> int | None:
        refused = await self.inner.apply(batch)
        with self._lock:
            self.applies += 1
            if refused is not None:
                self.refused += 1
                return refused
            for change in batch:
                if isinstance(change, Create | Ensure | Put):
                    _add(self.rows_written, self.bytes_written, change.space, [change.row])
        return None


def _add(rows: Counter[str], size: Counter[str], space: Table, found: Sequence[Row]) -> None:
    rows[space.name] += len(found)
    size[space.name] += sum(_size(row) for row in found)


def _size(row: Row) -> int:
    names = sum(
        len(value.encode() if isinstance(value, str) else value)
        for value in (*row.key, *row.columns)
        if not isinstance(value, int)
    )
    return names + len(row.body)
