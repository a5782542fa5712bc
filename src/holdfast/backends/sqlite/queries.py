"""Runs queries on a connection to a SQLite file, and checks what a damaged page could change in the answer."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import apsw

from holdfast.backends.interface import Get, Query, Row, Scan
from holdfast.backends.sqlite import errors
from holdfast.backends.sqlite.schema import HEAD, LATEST, STATEMENTS, add_hints
from holdfast.backends.tables import STEPS

_CACHE_MISSES = apsw.SQLITE_DBSTATUS_CACHE_MISS

_MAX_LINES = 10_000

_agreed: weakref.WeakKeyDictionary[apsw.Connection, tuple[int, set[tuple[Any, ...]]]] = weakref.WeakKeyDictionary()
"""How many pages each connection has read, and about which lines it found since that the indexes of steps agree."""


def read_rows(cursor: apsw.Cursor, queries: Sequence[Query]) -> list[list[Row]]:
    """Return the rows of each query, as of one moment."""
    if len(queries) == 1 and (isinstance(queries[0], Scan) or len(queries[0].keys) == 1):
        rows = _run_query(cursor, queries[0])
        if rows is not None:
            return [rows]
        # The indexes disagree. Outside of a transaction, a commit between the two reads is enough for that.
    cursor.execute("BEGIN")
    answers = []
    for query in queries:
        rows = _run_query(cursor, query)
        if rows is None:
            raise errors.damaged("the indexes of steps do not agree on the last one", cursor.connection.filename)
        answers.append(rows)
    cursor.execute("COMMIT")
    return answers


def count_rows(cursor: apsw.Cursor, scans: Sequence[Scan]) -> list[int]:
    """Return the number of rows of each scan by key."""
    counts = []
    for scan in scans:
        sql = STATEMENTS[scan.space.name].count(len(scan.prefix), len(scan.start), len(scan.stop))
        rows: list[tuple[Any, ...]] = cursor.execute(sql, (*scan.prefix, *scan.start, *scan.stop)).fetchall()
        counts.append(int(rows[0][0]))
    return counts


def _run_query(cursor: apsw.Cursor, query: Query) -> list[Row] | None:
    """Return the rows of a query. None if it asks for the last step, and the indexes of steps disagree about it."""
    statements = STATEMENTS[query.space.name]
    if isinstance(query, Get):
        cursor.executemany(statements.get, dict.fromkeys(query.keys))
    else:
        _, prefix, start, stop, reverse, limit, by, bodies, _, hints = query
        sql = statements.scan(by, len(prefix), len(start), len(stop), reverse, bodies)
        texts: list[str] = []
        if hints:
            sql, texts = add_hints(query.space, sql, hints)
        cursor.execute(sql, (*prefix, *start, *stop, *texts, -1 if limit is None else limit))
    width = len(query.space.key)
    rows: list[tuple[Any, ...]] = cursor.fetchall()
    kinds = statements.kinds
    for row in rows:
        if tuple(map(type, row)) != kinds:
            raise errors.damaged(f"a row of {query.space.name} has values of other types", cursor.connection.filename)
    if (
        query.space is STEPS
        and isinstance(query, Scan)
        and query.reverse
        and query.limit == 1
        and not _is_last(cursor, query, rows)
    ):
        return None
    return [Row(row[:width], row[width:-1], row[-1]) for row in rows]


def _is_last(cursor: apsw.Cursor, query: Scan, rows: Sequence[tuple[Any, ...]]) -> bool:
    """Return whether the last step, by id or on a branch, is also the last one according to the other index of `steps`.

    A damaged index could otherwise hide it, and an older one would pass for it. As long as no pages are read from the
    file, what the indexes say about a line does not change."""
    connection = cursor.connection
    pages, lines = _agreed.get(connection, (-1, set()))
    if query.start or query.stop or (pages == connection.status(_CACHE_MISSES)[0] and query.prefix in lines):
        return True
    if len(query.prefix) == 2 and query.by:
        *_, branch, _, latest = rows[0][: len(STEPS.key) + 1] if rows else (0, 0, "")
        heads = cursor.execute(HEAD, (*query.prefix, branch)).fetchall()
        agree = all(id <= latest for (id,) in heads)
    elif len(query.prefix) == 3 and not query.by:
        steps = cursor.execute(LATEST, query.prefix[:2]).fetchall()
        agree = all(branch != query.prefix[2] or (rows and seq <= rows[0][3]) for branch, seq in steps)
    else:
        return True
    if agree:
        pages_now = connection.status(_CACHE_MISSES)[0]
        if pages != pages_now or len(lines) >= _MAX_LINES:
            lines = set()
        lines.add(query.prefix)
        _agreed[connection] = pages_now, lines
    return agree
