"""The SQL for every query, and rows from what it finds.

Only names from `holdfast.backends.tables` and the quoted name of the schema go into SQL; values are always bound. The
text for a shape of query is made once, so that prepared statements are found again.

Several queries become one statement, which sees one moment: their rows come one below the other, with a number in front
that says whose they are, and their columns sorted by type.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from operator import itemgetter
from typing import Any, NamedTuple

from holdfast.backends.interface import Get, Query, Row
from holdfast.backends.postgres.binary_values import BinaryValue, array_of, unescape, value
from holdfast.backends.postgres.connection import Statement
from holdfast.backends.postgres.schema import quoted
from holdfast.backends.tables import TABLES, JsonText, Scalar, Table, WordList

TOGETHER = 16
"""How many queries go into one statement. More would take longer to plan than they take in a transaction."""

_CASTS: dict[type, str] = {str: "text[]", int: "bigint[]", bytes: "bytea[]"}
_SPACES = {space.name: space for space in TABLES}
_Found = Sequence[tuple[Any, ...]]


class _Shape(NamedTuple):
    """What tells one statement from others."""

    space: str
    by: str = ""
    equal: int = 0
    """How many columns have to have a value."""
    start: int = 0
    stop: int = 0
    reverse: bool = False
    limited: bool = False
    bodies: bool = True
    one_of: bool = False
    """Whether the column after those is one of an array."""
    keys: bool = False
    """Whether whole keys come as arrays, and nothing else."""

    @property
    def bound(self) -> int:
        """How many values are bound."""
        if self.keys:
            return len(_SPACES[self.space].key)
        return self.equal + self.start + self.stop + self.limited + self.one_of


def statement(schema: str, query: Query) -> Statement:
    """A query as SQL, and what to bind."""
    shape, bound = _shape(query)
    return _alone(schema, shape), bound


def statement_of_all(schema: str, queries: Sequence[Query]) -> Statement:
    """Queries as one statement, and what to bind."""
    shapes, bounds = zip(*map(_shape, queries), strict=True)
    return _together(schema, shapes), [each for bound in bounds for each in bound]


def rows(query: Query, found: _Found) -> list[Row]:
    """The rows that a query found by itself."""
    return _READERS[query.space.name](found)


def rows_of_all(queries: Sequence[Query], found: _Found) -> list[list[Row]]:
    """The rows that each of some queries found, together."""
    parts: list[list[tuple[Any, ...]]] = [[] for _ in queries]
    for values in found:
        parts[values[0]].append(values)
    widths = _widths([query.space.name for query in queries])
    answers = []
    for query, part in zip(queries, parts, strict=True):
        sort = itemgetter(*_places(query.space, widths))
        answers.append(_READERS[query.space.name]([sort(values) for values in part]))
    return answers


def _shape(query: Query) -> tuple[_Shape, list[BinaryValue]]:
    space = query.space
    if not isinstance(query, Get):
        bound = _bound((*query.prefix, *query.start, *query.stop))
        shape = _Shape(
            space.name,
            query.by,
            len(query.prefix),
            len(query.start),
            len(query.stop),
            query.reverse,
            query.limit is not None,
            query.bodies,
        )
        return shape, bound if query.limit is None else [*bound, value(query.limit)]
    keys, kinds = query.keys, list(space.key.values())
    first = keys[0][:-1]
    if len(keys) == 1:
        return _Shape(space.name, equal=len(kinds)), _bound(keys[0])
    # Most often the keys differ in their last column only; then an index finds them in one go.
    if all(key[:-1] == first for key in keys):
        last = array_of(kinds[-1], (key[-1] for key in keys))
        return _Shape(space.name, equal=len(first), one_of=True), [*_bound(first), last]
    columns = zip(*dict.fromkeys(keys), strict=True)
    return _Shape(space.name, keys=True), [array_of(*column) for column in zip(kinds, columns, strict=True)]


def _bound(values: Iterable[Scalar]) -> list[BinaryValue]:
    return [value(each) for each in values]


# SQL --------------------------------------------------------------------------------------------------------------


@lru_cache(1024)
def _alone(schema: str, shape: _Shape) -> str:
    return _select(schema, shape, ", ".join(_columns(shape)), 1)


@lru_cache(1024)
def _together(schema: str, shapes: tuple[_Shape, ...]) -> str:
    widths = _widths([shape.space for shape in shapes])
    parts = []
    first = 1
    for number, shape in enumerate(shapes):
        own = iter(zip(_places(_SPACES[shape.space], widths), _columns(shape), strict=True))
        by_place = dict(own)
        columns = [str(number)]
        place = 1
        for kind, width in zip(("text", "bigint", "bytea"), widths, strict=True):
            for _ in range(width):
                columns.append(by_place.get(place, f"NULL::{kind}"))
                place += 1
        parts.append(f"({_select(schema, shape, ', '.join(columns), first)})")
        first += shape.bound
    return " UNION ALL ".join(parts)


def _select(schema: str, shape: _Shape, columns: str, first: int) -> str:
    """A statement that binds values from a number on: equal ones, start and stop, a limit, an array."""
    space = _SPACES[shape.space]
    select = f"SELECT {columns} FROM {quoted(schema)}.{space.name}"  # noqa: S608 - our own names
    if shape.keys:
        arrays = ", ".join(f"${at}::{_CASTS[kind]}" for at, kind in enumerate(space.key.values(), first))
        return f"{select} WHERE ({', '.join(space.key)}) IN (SELECT * FROM unnest({arrays}))"  # noqa: S608
    names = space.order(shape.by)
    rest = names[shape.equal :]
    parts = [f"{name} = ${at}" for at, name in enumerate(names[: shape.equal], first)]
    at = first + shape.equal
    parts += _compare(rest[: shape.start], ">=", at) + _compare(rest[: shape.stop], "<", at + shape.start)
    if shape.one_of:
        parts.append(f"{rest[0]} = ANY(${at}::{_CASTS[space.key[rest[0]]]})")
    where = f" WHERE {' AND '.join(parts)}" if parts else ""
    ordering = ", ".join(f"{name} DESC" if shape.reverse else name for name in rest or names)
    limit = f" LIMIT ${at + shape.start + shape.stop}" if shape.limited else ""
    return f"{select}{where} ORDER BY {ordering}{limit}"


def _columns(shape: _Shape) -> list[str]:
    columns = [_column(name, kind) for name, kind in _SPACES[shape.space].all_columns.items()]
    return [*columns, "body" if shape.bodies else "''::bytea"]


def _column(name: str, kind: type) -> str:
    if kind is WordList:
        return f"array_to_string(tsvector_to_array({name}), ' ')"
    return f"{name}::text" if kind is JsonText else name


def _compare(names: Sequence[str], operator: str, first: int) -> list[str]:
    if not names:
        return []
    bound = ", ".join(f"${first + at}" for at in range(len(names)))
    return [f"({', '.join(names)}) {operator} ({bound})"]


# Rows -------------------------------------------------------------------------------------------------------------


def _types(space: Table) -> list[int]:
    """For each column and the body: 0 for text, 1 for a number, 2 for bytes."""
    return [1 if kind is int else 2 if kind is bytes else 0 for kind in (*space.all_columns.values(), bytes)]


def _widths(names: Iterable[str]) -> tuple[int, int, int]:
    """How many columns of each type it takes for the rows of all these spaces."""
    types = [_types(_SPACES[name]) for name in names]
    text, number, data = (max(each.count(kind) for each in types) for kind in range(3))
    return text, number, data


@lru_cache(256)
def _places(space: Table, widths: tuple[int, int, int]) -> list[int]:
    """Where the columns of a space are found among those, after the number of the query."""
    at = [1, 1 + widths[0], 1 + widths[0] + widths[1]]
    places = []
    for kind in _types(space):
        places.append(at[kind])
        at[kind] += 1
    return places


def _reader(space: Table) -> Callable[[_Found], list[Row]]:
    width = len(space.key)
    texts = [place for place, kind in enumerate(space.all_columns.values()) if kind in (str, WordList)]

    def read(found: _Found) -> list[Row]:
        rows = []
        for values in found:
            for place in texts:
                if "\1" in values[place]:
                    values = _plain(values, texts)
                    break
            rows.append(Row(values[:width], values[width:-1], values[-1]))
        return rows

    return read


def _plain(values: tuple[Any, ...], texts: Sequence[int]) -> tuple[Any, ...]:
    plain = list(values)
    for place in texts:
        plain[place] = unescape(plain[place])
    return tuple(plain)


_READERS = {space.name: _reader(space) for space in TABLES}
