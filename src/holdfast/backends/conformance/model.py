"""A model of a backend: a dict of rows, searched linearly.

It is slow, and obviously correct. The suite compares backends with it.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.backends.interface import Batch, Change, Create, Delete, Ensure, Expect, Get, Put, Query, Row, Scan
from holdfast.backends.tables import Key, Table

Rows = dict[tuple[str, Key], Row]
"""Rows by the name of their table and their key."""


class Model:
    """The content of a store, and its answers."""

    def __init__(self) -> None:
        self.rows: Rows = {}

    def read(self, query: Query) -> list[Row]:
        """Return the rows of a query. For `Get`, a backend may return them in another order."""
        rows = [row for (space, _), row in self.rows.items() if space == query.space.name]
        if isinstance(query, Get):
            return [row for row in rows if row.key in query.keys]
        rows = [row for row in rows if _matches(row, query)]
        rows.sort(key=lambda row: (_order(query.space, query.by, row), _comparable(row.key)), reverse=query.reverse)
        return rows if query.limit is None else rows[: query.limit]

    def apply(self, batch: Batch) -> list[int]:
        """Apply a batch, or return the positions of the conditions that do not hold."""
        rows = dict(self.rows)
        failed = [position for position, change in enumerate(batch) if not _change(rows, change)]
        if not failed:
            self.rows = rows
        return failed


def _change(rows: Rows, change: Change) -> bool:
    space = change.space.name
    match change:
        case Create(_, row):
            if (space, row.key) in rows:
                return False
            rows[space, row.key] = row
        case Ensure(_, row):
            if (space, row.key) not in rows:
                rows[space, row.key] = row
        case Put(_, row):
            rows[space, row.key] = row
        case Delete(_, prefix):
            for name, key in list(rows):
                if name == space and key[: len(prefix)] == prefix:
                    del rows[name, key]
        case Expect(_, key, None):
            return (space, key) not in rows
        case Expect(_, key, columns):
            return (space, key) in rows and rows[space, key].columns == columns
    return True


def _matches(row: Row, scan: Scan) -> bool:
    values = _order(scan.space, scan.by, row)
    prefix, start, stop = _comparable(scan.prefix), _comparable(scan.start), _comparable(scan.stop)
    rest = values[len(prefix) :]
    if values[: len(prefix)] != prefix:
        return False
    if rest[: len(start)] < start:
        return False
    return not stop or rest[: len(stop)] < stop


def _order(space: Table, by: str, row: Row) -> tuple[bytes | int, ...]:
    """Return the columns of an order, in comparable form."""
    values = dict(zip(space.all_columns, row.key + row.columns, strict=True))
    return _comparable([values[name] for name in space.order(by)])


def _comparable(values: Sequence[str | int | bytes]) -> tuple[bytes | int, ...]:
    return tuple(value.encode() if isinstance(value, str) else value for value in values)
