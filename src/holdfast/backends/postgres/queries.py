"""The SQL of queries, and the rows of its results.

Only names from `holdfast.backends.tables` and the quoted name of the schema go into SQL; values are always bound. The
SQL of a shape of query is built once, so that prepared statements are reused.

Several queries become one statement, which reads one snapshot: a `UNION ALL` whose rows start with the number of their
query, and whose columns are sorted by type.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from itertools import count
from operator import itemgetter
from typing import Any, NamedTuple

from holdfast.backends.interface import Get, Query, Row, Scan, WordMatch, WordMatches
from holdfast.backends.postgres.binary_values import BinaryValue, bind, column_array, escape, unescape
from holdfast.backends.postgres.connection import Statement
from holdfast.backends.postgres.schema import CONTAINS, quote_name
from holdfast.backends.tables import STEPS, TABLES, TIME, JsonText, Scalar, Table, WordList
from holdfast.backends.time_index import THREAD_STEP, hint_conditions

MAX_COMBINED = 16
"""The most queries in one statement. More would take longer to plan than to run in a transaction."""

_CASTS: dict[type, str] = {str: "text[]", int: "bigint[]", bytes: "bytea[]"}
_TABLES = {space.name: space for space in TABLES}
_Found = Sequence[tuple[Any, ...]]


class _Shape(NamedTuple):
    """The properties of a query that its SQL depends on."""

    space: str
    by: str = ""
    equal: int = 0
    """The number of columns that are compared for equality."""
    start: int = 0
    stop: int = 0
    reverse: bool = False
    limited: bool = False
    bodies: bool = True
    one_of: bool = False
    """Whether the next column is any of an array."""
    keys: bool = False
    """Whether the parameters are only arrays, one for each column of the key."""
    hints: tuple[str, ...] = ()
    """Further conditions, with a question mark for each text."""

    @property
    def bound(self) -> int:
        """The number of parameters."""
        if self.keys:
            return len(_TABLES[self.space].key)
        hinted = sum(each.count("?") for each in self.hints)
        return self.equal + self.start + self.stop + self.limited + self.one_of + hinted


def build_statement(schema: str, query: Query) -> Statement:
    """Build the SQL of a query, and its parameters."""
    shape, bound = _shape(query)
    return _single_sql(schema, shape), bound


def build_combined_statement(schema: str, queries: Sequence[Query]) -> Statement:
    """Build one statement for several queries, and its parameters."""
    shapes, bounds = zip(*map(_shape, queries), strict=True)
    return _combined_sql(schema, shapes), [each for bound in bounds for each in bound]


def build_count(schema: str, scan: Scan) -> Statement:
    """Build the statement that counts the rows of a scan, and its parameters."""
    shape, bound = _shape(scan)
    return f"SELECT count(*) FROM ({_select(schema, shape, '1', 1)}) AS found", bound  # noqa: S608 - quoted names


def read_rows(query: Query, found: _Found) -> list[Row]:
    """Read the rows of a query that was a statement of its own."""
    return _READERS[query.space.name](found)


def split_rows(queries: Sequence[Query], found: _Found) -> list[list[Row]]:
    """Read the rows of each query of a combined statement."""
    parts: list[list[tuple[Any, ...]]] = [[] for _ in queries]
    for values in found:
        parts[values[0]].append(values)
    sorters = _sorters(tuple([query.space.name for query in queries]))
    return [
        _READERS[query.space.name]([sort(values) for values in part])
        for query, part, sort in zip(queries, parts, sorters, strict=True)
    ]


def _shape(query: Query) -> tuple[_Shape, list[BinaryValue]]:
    space = query.space
    if not isinstance(query, Get):
        bound = _bound((*query.prefix, *query.start, *query.stop))
        hints, texts = hint_conditions(space, query.hints, CONTAINS) if query.hints else ((), ())
        shape = _Shape(
            space.name,
            query.by,
            len(query.prefix),
            len(query.start),
            len(query.stop),
            query.reverse,
            query.limit is not None,
            query.bodies,
            hints=tuple(hints),
        )
        return shape, [*bound, *([] if query.limit is None else [bind(query.limit)]), *_bound(texts)]
    keys, kinds = query.keys, list(space.key.values())
    first = keys[0][:-1]
    if len(keys) == 1:
        return _Shape(space.name, equal=len(kinds)), _bound(keys[0])
    # Most keys differ in their last column only; then one index scan finds them.
    if all(key[:-1] == first for key in keys):
        last = column_array(kinds[-1], (key[-1] for key in keys))
        return _Shape(space.name, equal=len(first), one_of=True), [*_bound(first), last]
    columns = zip(*dict.fromkeys(keys), strict=True)
    return _Shape(space.name, keys=True), [column_array(*column) for column in zip(kinds, columns, strict=True)]


def _bound(values: Iterable[Scalar]) -> list[BinaryValue]:
    return [bind(each) for each in values]


# SQL --------------------------------------------------------------------------------------------------------------


@lru_cache(1024)
def _single_sql(schema: str, shape: _Shape) -> str:
    return _select(schema, shape, ", ".join(_columns(shape)), 1)


@lru_cache(1024)
def _combined_sql(schema: str, shapes: tuple[_Shape, ...]) -> str:
    widths = _widths([shape.space for shape in shapes])
    parts = []
    first = 1
    for number, shape in enumerate(shapes):
        by_position = dict(zip(_positions(_TABLES[shape.space], widths), _columns(shape), strict=True))
        columns = [str(number)]
        position = 1
        for kind, width in zip(("text", "bigint", "bytea"), widths, strict=True):
            for _ in range(width):
                columns.append(by_position.get(position, f"NULL::{kind}"))
                position += 1
        parts.append(f"({_select(schema, shape, ', '.join(columns), first)})")
        first += shape.bound
    return " UNION ALL ".join(parts)


def _select(schema: str, shape: _Shape, columns: str, first: int) -> str:
    """Build a SELECT whose parameters are numbered from `first`: equal values, start and stop, a limit, an array,
    and the texts of hints."""
    space = _TABLES[shape.space]
    select = f"SELECT {columns} FROM {quote_name(schema)}.{space.name}"  # noqa: S608 - quoted names
    if shape.keys:
        arrays = ", ".join(f"${at}::{_CASTS[kind]}" for at, kind in enumerate(space.key.values(), first))
        # With several arrays, unnest is always PostgreSQL's own, and cannot be qualified.
        return f"{select} WHERE ({', '.join(space.key)}) IN (SELECT * FROM unnest({arrays}))"  # noqa: S608
    names = space.order(shape.by)
    rest = names[shape.equal :]
    parts = [f"{name} = ${at}" for at, name in enumerate(names[: shape.equal], first)]
    at = first + shape.equal
    parts += _compare(rest[: shape.start], ">=", at) + _compare(rest[: shape.stop], "<", at + shape.start)
    if shape.one_of:
        parts.append(f"{rest[0]} = ANY(${at}::{_CASTS[space.key[rest[0]]]})")
    if shape.by == TIME and space is STEPS:
        parts.append(THREAD_STEP)
    places = count(at + shape.start + shape.stop + shape.limited)
    parts += [re.sub(r"\?", lambda _: f"${next(places)}", each) for each in shape.hints]
    where = f" WHERE {' AND '.join(parts)}" if parts else ""
    ordering = ", ".join(f"{name} DESC" if shape.reverse else name for name in rest or names)
    limit = f" LIMIT ${at + shape.start + shape.stop}" if shape.limited else ""
    return f"{select}{where} ORDER BY {ordering}{limit}"


def _columns(shape: _Shape) -> list[str]:
    columns = [_column(name, kind) for name, kind in _TABLES[shape.space].all_columns.items()]
    return [*columns, "body" if shape.bodies else "''::bytea"]


def _column(name: str, kind: type) -> str:
    if kind is WordList:
        return f"pg_catalog.array_to_string(pg_catalog.tsvector_to_array({name}), ' ')"
    return f"{name}::text" if kind is JsonText else name


def _compare(names: Sequence[str], operator: str, first: int) -> list[str]:
    if not names:
        return []
    bound = ", ".join(f"${first + at}" for at in range(len(names)))
    return [f"({', '.join(names)}) {operator} ({bound})"]


# Rows -------------------------------------------------------------------------------------------------------------


def _types(space: Table) -> list[int]:
    """The type of each column and of the body: 0 for text, 1 for a number, 2 for bytes."""
    return [1 if kind is int else 2 if kind is bytes else 0 for kind in (*space.all_columns.values(), bytes)]


def _widths(names: Iterable[str]) -> tuple[int, int, int]:
    """How many columns of each type are needed for the rows of all these tables."""
    types = [_types(_TABLES[name]) for name in names]
    text, number, data = (max(each.count(kind) for each in types) for kind in range(3))
    return text, number, data


def _positions(space: Table, widths: tuple[int, int, int]) -> list[int]:
    """The positions of the columns of a table among those, after the number of the query."""
    at = [1, 1 + widths[0], 1 + widths[0] + widths[1]]
    positions = []
    for kind in _types(space):
        positions.append(at[kind])
        at[kind] += 1
    return positions


@lru_cache(256)
def _sorters(names: tuple[str, ...]) -> list[Callable[[tuple[Any, ...]], tuple[Any, ...]]]:
    """Functions that take the columns of each table out of the row of a combined statement."""
    widths = _widths(names)
    return [itemgetter(*_positions(_TABLES[name], widths)) for name in names]


def _reader(space: Table) -> Callable[[_Found], list[Row]]:
    width = len(space.key)
    texts = [position for position, kind in enumerate(space.all_columns.values()) if kind in (str, WordList)]

    def read(found: _Found) -> list[Row]:
        rows = []
        for values in found:
            for position in texts:
                if "\1" in values[position]:
                    values = _unescape_texts(values, texts)
                    break
            rows.append(Row(values[:width], values[width:-1], values[-1]))
        return rows

    return read


def _unescape_texts(values: tuple[Any, ...], texts: Sequence[int]) -> tuple[Any, ...]:
    plain = list(values)
    for position in texts:
        plain[position] = unescape(plain[position])
    return tuple(plain)


_READERS = {space.name: _reader(space) for space in TABLES}


_LONGEST = 2046
"""The most bytes that a lexeme may have."""

PLANNER_SETTINGS: Statement = (
    "SELECT pg_catalog.set_config('enable_bitmapscan', 'on', true), "
    "pg_catalog.set_config('plan_cache_mode', 'force_custom_plan', true)",
    (),
)
"""Runs before the search, in its transaction: the settings of the session suit all other statements."""


def cannot_match(match: WordMatch) -> bool:
    """Whether a word is longer than any that can be stored."""
    return any(len(escape(word).encode()) > _LONGEST for word in (*match.words, *match.prefixes))


def build_search(schema: str, match: WordMatch) -> Statement:
    """Build the statement that finds a page of matches.

    Words are the lexemes of a `tsvector`, unchanged. Its index is faster for rare words, the index by time for common
    ones; the planner knows how common words are. With row-level security only the index by time is used: PostgreSQL may
    not search other columns before it has checked whose the rows are.
    """
    bound = [bind(match.tenant)]
    where = ["tenant = $1"]
    if match.line is not None:
        bound.append(bind(match.line))
        where.append(f"line = ${len(bound)}")
    lexemes = [_lexeme(word) for word in match.words] + [f"{_lexeme(prefix)}:*" for prefix in match.prefixes if prefix]
    if lexemes:
        # Quoted already; the cast does not normalize words.
        bound.append(bind(" & ".join(lexemes)))
        where.append(f"words @@ ${len(bound)}::text::tsquery")
    if match.after is not None:
        bound += map(bind, json.loads(match.after))
        last = len(bound)
        where.append(f"(time, line, branch, seq) < (${last - 3}, ${last - 2}, ${last - 1}, ${last})")
    bound.append(bind(match.limit + 1))
    sql = (
        f"SELECT time, line, branch, seq FROM {quote_name(schema)}.words"  # noqa: S608 - quoted names
        f" WHERE {' AND '.join(where)} ORDER BY time DESC, line DESC, branch DESC, seq DESC LIMIT ${len(bound)}"
    )
    return sql, bound


def read_matches(match: WordMatch, rows: Sequence[tuple[Any, ...]]) -> WordMatches:
    """Read a page of matches from the rows of the statement."""
    found = [(time, unescape(line), branch, seq) for time, line, branch, seq in rows]
    page = found[: match.limit]
    following = json.dumps(page[-1]) if len(found) > match.limit else None
    return WordMatches([(match.tenant, *key) for _, *key in page], following)


def _lexeme(word: str) -> str:
    doubled = word.replace("\\", "\\\\").replace("'", "''")
    return f"'{doubled}'"
