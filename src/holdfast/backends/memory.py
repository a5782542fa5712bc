"""A store in memory: it behaves like any other store, and is lost when it is closed."""

from __future__ import annotations

import json
import os
import sys
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import itemgetter
from typing import Any, ClassVar, TypeVar

from holdfast.backends.feed import RecentLines
from holdfast.backends.interface import (
    Backend,
    Batch,
    Capabilities,
    Change,
    Changes,
    Create,
    Delete,
    Ensure,
    Expect,
    Get,
    Query,
    Row,
    Scan,
    WordMatch,
    WordMatches,
    closed_error,
)
from holdfast.backends.runtime.fork_safety import ForkSafeLock
from holdfast.backends.tables import TABLES, WORDS, Key, Table
from holdfast.backends.urls import redacted_url
from holdfast.errors import ConfigError

T = TypeVar("T")
_Undo = list[tuple[Callable[[Row], None], Row]]


class MemoryBackend(Backend):
    """A store in memory: `memory://`."""

    schemes: ClassVar[tuple[str, ...]] = ("memory",)

    def __init__(self) -> None:
        self._lock = ForkSafeLock()
        self._words = InvertedIndex()
        self._tables: dict[str, _Table] | None = {space.name: _Table(space) for space in TABLES}
        self._tables[WORDS.name] = _Table(WORDS, self._words)
        self._recent = RecentLines("memory", self.url, os.urandom(8).hex())

    @classmethod
    async def open(cls, url: str, **options: Any) -> MemoryBackend:
        """Create a new, empty store."""
        if url not in ("memory:", "memory://"):
            raise ConfigError("an in-memory store has no name", where=redacted_url(url), hint="Open memory://")
        if options:
            raise ConfigError(
                f"an in-memory store does not accept the option {min(options)!r}", where=redacted_url(url)
            )
        return cls()

    @property
    def url(self) -> str:
        return "memory://"

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            durable=False, shared=False, max_body=1 << 30, max_batch=1 << 31, words=True, joint_batches=True
        )

    async def read(self, queries: Sequence[Query]) -> list[list[Row]]:
        with self._lock:
            tables = self._open_tables()
            return [tables[query.space.name].find(query) for query in queries]

    async def apply(self, batch: Batch) -> int | None:
        with self._lock:
            tables = self._open_tables()
            undo: _Undo = []
            for position, change in enumerate(batch):
                if not tables[change.space.name].change(change, undo):
                    for revert, row in reversed(undo):
                        revert(row)
                    return position
            for name in {change.space.name for change in batch if isinstance(change, Delete)}:
                tables[name].drop_empty()
            self._recent.add([batch])
            return None

    async def changes(self, since: str | None = None) -> Changes:
        with self._lock:
            self._open_tables()
            return self._recent.changes(since)

    async def match_words(self, match: WordMatch) -> WordMatches:
        with self._lock:
            self._open_tables()
            return self._words.match(match)

    async def count_rows(self, scans: Sequence[Scan]) -> list[int]:
        return [len(rows) for rows in await self.read(scans)]

    async def size(self) -> int:
        with self._lock:
            return sum(table.size() for table in self._open_tables().values())

    async def check(self) -> list[str]:
        with self._lock:
            self._open_tables()
        return []

    async def tidy(self) -> None:
        with self._lock:
            self._open_tables()  # memory is freed as rows go

    async def close(self) -> None:
        with self._lock:
            self._tables = None
            self._words = InvertedIndex()

    def _open_tables(self) -> dict[str, _Table]:
        if self._tables is None:
            raise closed_error(self.url, "Open it again; its content is lost")
        return self._tables


class _Table:
    """The rows of one table, in parts with the same first one or two columns: usually, those of a line."""

    def __init__(self, space: Table, words: InvertedIndex | None = None) -> None:
        self._space = space
        self._words = words
        self._width = min(2, len(space.key) - 1)
        self._parts: dict[Key, SortedRows] = {}

    def find(self, query: Query) -> list[Row]:
        if not self._parts:
            return []
        if isinstance(query, Get):
            parts = ((self._parts.get(key[: self._width]), key) for key in dict.fromkeys(query.keys))
            return [part.rows[key] for part, key in parts if part is not None and key in part.rows]
        rows: list[Row] = []
        for part in self._parts_under(query.prefix, query.reverse):
            rows += part.scan(query, None if query.limit is None else query.limit - len(rows))
        return rows

    def change(self, change: Change, undo: _Undo) -> bool:
        """Apply a change, and record how to revert it. Returns False if its condition does not hold."""
        if isinstance(change, Expect):
            part = self._parts.get(change.key[: self._width])
            found = None if part is None else part.rows.get(change.key)
            return (None if found is None else found.columns) == change.columns
        if isinstance(change, Delete):
            for part in list(self._parts_under(change.prefix, reverse=False)):
                for row in part.scan(Scan(self._space, change.prefix), None):
                    part.remove(row)
                    undo.append((part.add, row))
            return True
        row = change.row
        start = row.key[: self._width]
        part = self._parts.get(start)
        if part is None:
            part = self._parts[start] = SortedRows(self._space, self._words)
        old = part.rows.get(row.key)
        if old is not None:
            if isinstance(change, Create | Ensure):
                return isinstance(change, Ensure)
            part.remove(old)
            undo.append((part.add, old))
        part.add(row)
        undo.append((part.remove, row))
        return True

    def drop_empty(self) -> None:
        """Remove parts without rows."""
        for start in [start for start, part in self._parts.items() if not part.rows]:
            del self._parts[start]

    def size(self) -> int:
        """Return the bytes of all rows, with the overhead of Python's objects."""
        rows = (row for part in self._parts.values() for row in part.rows.values())
        return sum(len(row.body) + sys.getsizeof(row) for row in rows)

    def _parts_under(self, prefix: Key, reverse: bool) -> Iterator[SortedRows]:
        if len(prefix) >= self._width:
            part = self._parts.get(prefix[: self._width])
            if part is not None:
                yield part
            return
        for start in sorted(self._parts, reverse=reverse):
            if start[: len(prefix)] == prefix:
                yield self._parts[start]


_MANY = 64
"""From how many rows on it takes longer to insert each than to sort all."""


class SortedRows:
    """Rows of one table by key, and their keys in each order."""

    def __init__(self, space: Table, words: InvertedIndex | None = None) -> None:
        self._space = space
        self._words = words
        self.rows: dict[Key, Row] = {}
        self._keys: list[Key] = []
        self._orders: dict[str, list[tuple[Key, Key]]] = {index: [] for index in space.indexes}
        self._columns = {index: _columns(space, index) for index in space.indexes}

    def add(self, row: Row) -> None:
        """Add a row whose key is free."""
        self.rows[row.key] = row
        if self._keys and row.key < self._keys[-1]:
            insort(self._keys, row.key)
        else:
            self._keys.append(row.key)  # the usual case
        for index, order in self._orders.items():
            insort(order, self._entry(index, row))
        if self._words is not None:
            self._words.add(row)

    def add_many(self, rows: Sequence[Row]) -> None:
        """Add rows whose keys are free. Many rows are sorted once, not one by one."""
        if len(rows) < _MANY or self._words is not None:
            for row in rows:
                self.add(row)
            return
        self.rows.update((row.key, row) for row in rows)
        self._keys += (row.key for row in rows)
        self._keys.sort()
        for index, order in self._orders.items():
            order += (self._entry(index, row) for row in rows)
            order.sort()

    def remove(self, row: Row) -> None:
        del self.rows[row.key]
        del self._keys[bisect_left(self._keys, row.key)]
        for index, order in self._orders.items():
            del order[bisect_left(order, self._entry(index, row))]
        if self._words is not None:
            self._words.remove(row)

    def scan(self, scan: Scan, limit: int | None) -> list[Row]:
        """Return the rows of a scan, up to a limit that replaces its own."""
        if scan.by:
            keys = [key for _, key in _within(self._orders[scan.by], scan, itemgetter(0))]
        else:
            keys = _within(self._keys, scan, _itself)
        if scan.reverse:
            keys.reverse()
        return [self.rows[key] for key in keys[:limit]]

    def _entry(self, index: str, row: Row) -> tuple[Key, Key]:
        return self._columns[index](row.key + row.columns), row.key


def _within(order: list[T], scan: Scan, key: Callable[[T], Key]) -> list[T]:
    """Return the entries of an order in the range of a scan."""
    prefix = scan.prefix
    start = bisect_left(order, prefix + scan.start, key=key)
    if scan.stop:
        width = len(prefix) + len(scan.stop)
        stop = bisect_left(order, prefix + scan.stop, key=lambda entry: key(entry)[:width])
    else:
        stop = bisect_right(order, prefix, key=lambda entry: key(entry)[: len(prefix)])
    return order[start:stop]


def _itself(key: Key) -> Key:
    return key


def _columns(space: Table, index: str) -> itemgetter[Any]:
    """Return a getter of the columns of an index, and of the rest of the key, from a row."""
    columns = list(space.all_columns)
    return itemgetter(*(columns.index(name) for name in space.order(index)))


class InvertedIndex:
    """The keys of rows of `WORDS`, by tenant and word. Not thread-safe."""

    def __init__(self) -> None:
        self._times: dict[str, dict[Key, int]] = {}
        self._keys: dict[str, dict[str, set[Key]]] = {}

    def add(self, row: Row) -> None:
        tenant = str(row.key[0])
        self._times.setdefault(tenant, {})[row.key] = int(row.columns[0])
        keys = self._keys.setdefault(tenant, {})
        for word in _distinct_words(row):
            keys.setdefault(word, set()).add(row.key)

    def remove(self, row: Row) -> None:
        tenant = str(row.key[0])
        del self._times[tenant][row.key]
        keys = self._keys[tenant]
        for word in _distinct_words(row):
            found = keys[word]
            found.discard(row.key)
            if not found:
                del keys[word]

    def match(self, match: WordMatch) -> WordMatches:
        """Return a page of rows with these words, the latest first."""
        tenant, words, prefixes, line, after, limit = match
        times, keys = self._times.get(tenant, {}), self._keys.get(tenant, {})
        sets = [keys.get(word, set()) for word in words]
        for prefix in filter(None, prefixes):
            sets.append(_union(found for word, found in keys.items() if word.startswith(prefix)))  # noqa: PERF401
        sets.sort(key=len)
        found = set.intersection(*sets) if sets else set(times)
        order = sorted(((times[key], key) for key in found if line in (None, key[1])), reverse=True)
        if after is not None:
            time, *rest = json.loads(after)
            order = [each for each in order if each < (time, (tenant, *rest))]
        page = [key for _, key in order[:limit]]
        return WordMatches(page, json.dumps([times[page[-1]], *page[-1][1:]]) if page and len(order) > limit else None)


def _distinct_words(row: Row) -> Iterable[str]:
    return {word for word in str(row.columns[-1]).split(" ") if word}


def _union(sets: Iterable[set[Key]]) -> set[Key]:
    return set().union(*sets)
