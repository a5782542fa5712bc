"""Rows to test with, whatever columns their space has."""

from __future__ import annotations

from holdfast.backends.port import Row
from holdfast.backends.spaces import STEPS, Scalar, Space


def row_of(space: Space, *key: Scalar, body: bytes = b"", **columns: Scalar) -> Row:
    """A row with this key, and columns of no meaning but for those that are said."""
    unknown = columns.keys() - space.columns.keys()
    if unknown:
        raise TypeError(f"{space.name} has no column {min(unknown)!r}")
    return Row(key, tuple(columns.get(name, kind()) for name, kind in space.columns.items()), body)


def step(seq: int = 0, *, line: str = "line", branch: int = 0, body: bytes = b"body", **columns: Scalar) -> Row:
    """A row for `STEPS`."""
    return row_of(STEPS, "tenant", line, branch, seq, body=body, **columns)


def column(space: Space, row: Row, name: str) -> Scalar:
    """What a row has in a column."""
    return row.columns[list(space.columns).index(name)]
