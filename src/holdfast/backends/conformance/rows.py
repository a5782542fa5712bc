"""Rows for tests."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

from holdfast.backends.interface import Row
from holdfast.backends.tables import STEPS, JsonText, Scalar, Table, WordList


def row_of(space: Table, *key: Scalar, body: bytes = b"", **columns: Scalar) -> Row:
    """Return a row with this key, these columns, and empty values for the others."""
    unknown = columns.keys() - space.columns.keys()
    if unknown:
        raise TypeError(f"{space.name} has no column {min(unknown)!r}")
    empty = {name: "null" if kind is JsonText else kind() for name, kind in space.columns.items()}
    return Row(key, tuple(columns.get(name, empty[name]) for name in space.columns), body)


def step(seq: int = 0, *, line: str = "line", branch: int = 0, body: bytes = b"body", **columns: Scalar) -> Row:
    """Return a row of `STEPS`."""
    return row_of(STEPS, "tenant", line, branch, seq, body=body, **columns)


def column(space: Table, row: Row, name: str) -> Scalar:
    """Return the value of a column."""
    return row.columns[list(space.columns).index(name)]


def meaning(space: Table, row: Row) -> tuple[Any, ...]:
    """Return a row in comparable form: JSON by its meaning, and words in order, as stores may write both their way."""
    columns = zip(space.columns.values(), row.columns, strict=True)
    return row.key, [_meaning(kind, value) for kind, value in columns], row.body


def _meaning(kind: type, value: Scalar) -> Any:
    if kind is WordList:
        return sorted(str(value).split(" "))
    # As decimals: 1e300 and a one with 300 zeros are the same number, and to Python not.
    return json.loads(str(value), parse_int=Decimal, parse_float=Decimal) if kind is JsonText else value
