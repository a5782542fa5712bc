"""The index of words in a SQLite file: `words_index`, a table of FTS5 that refers to the rows of `words` by number.

It is created with the first row of `words`, and changed in the same transactions as these rows. Words are encoded so
that FTS5 does not split them; it ignores the case of ASCII letters. The names of tenant and line are words of their own
in the index, so that FTS5 itself selects the rows of a line.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import apsw

from holdfast.backends.interface import Create, Delete, Ensure, Put, Row, WordMatch, WordMatches
from holdfast.backends.sqlite.schema import NUMBER, STATEMENTS
from holdfast.backends.tables import WORDS, Key

_PUNCTUATION = "".join(each for each in map(chr, range(0x21, 0x7F)) if not each.isalnum())
_TOKENIZER = "ascii tokenchars '" + _PUNCTUATION.replace("'", "''") + "'"
_CREATE = (
    "CREATE VIRTUAL TABLE IF NOT EXISTS words_index USING fts5(words, content='', contentless_delete=1, detail=none,"
    f""" prefix='1 2 3', tokenize="{_TOKENIZER.replace('"', '""')}")"""
)
_DROP = "DROP TABLE IF EXISTS words_index"
_FIRST = "SELECT 1 FROM words LIMIT 1"
_OPTIMIZE = "INSERT INTO words_index (words_index) VALUES ('optimize')"
_INSERT = "INSERT INTO words_index (rowid, words) VALUES (?, ?)"
_UPDATE = "UPDATE words_index SET words = ? WHERE rowid = ?"
_MERGE = "INSERT INTO words_index (words_index, rank) VALUES ('merge', ?)"
# Once so many percent of the rows are removed, FTS5 rewrites a part of the index, during the removal. A large removal
# takes three times as long then, and all writers wait for it. So that is left to `merge_index`.
_SET_DELETE_MERGE = "INSERT INTO words_index (words_index, rank) VALUES ('deletemerge', ?)"
_NEVER, _SOON = 0, 10
_REFRESH = "SELECT 1 FROM words_index WHERE rowid = 0"
_NUMBER = f"SELECT {NUMBER} FROM words WHERE {' AND '.join(f'{name} = ?' for name in WORDS.key)}"  # noqa: S608 - our own
_DELETE_ONE = "DELETE FROM words_index WHERE rowid = ?"
_DELETE = [
    f"DELETE FROM words_index WHERE rowid IN (SELECT {NUMBER} FROM words WHERE"  # noqa: S608 - our own names
    f" {' AND '.join(f'{name} = ?' for name in list(WORDS.key)[:width])})"
    for width in range(1, len(WORDS.key))
]
# Joined in this order: the index returns numbers, the last first, and each is then looked up.
_MATCH = f"""
SELECT w.{NUMBER}, {", ".join(f"w.{name}" for name in WORDS.key)}
FROM words_index CROSS JOIN words w ON w.{NUMBER} = words_index.rowid
WHERE words_index MATCH ? AND words_index.rowid < ? ORDER BY words_index.rowid DESC LIMIT ?
"""  # noqa: S608 - our own names
# The + makes SQLite read rows backwards, instead of sorting all of a tenant.
_ALL = f"""
SELECT {NUMBER}, {", ".join(WORDS.key)} FROM words
WHERE +tenant = ? AND {NUMBER} < ? ORDER BY {NUMBER} DESC LIMIT ?
"""  # noqa: S608 - our own names

_TENANT, _LINE = "\ue100", "\ue101"
"""The prefixes of words that are names."""
_ESCAPES = {code: 0xE000 + code for code in (*range(0x21), 0x7F)} | dict.fromkeys(map(ord, (_TENANT, _LINE)), 0xE102)
"""Replacements of characters at which FTS5 splits words, and of the prefixes of names."""

_MAX_NUMBER = 1 << 62


def change_words(cursor: apsw.Cursor, change: Create | Ensure | Put | Delete) -> bool:
    """Change the table `WORDS`, and the index. Returns False if the condition does not hold."""
    statements = STATEMENTS[WORDS.name]
    if isinstance(change, Delete):
        _delete_from_index(cursor, change.prefix)
        cursor.execute(statements.delete[len(change.prefix)], change.prefix)
        return True
    key, columns, body = change.row
    if isinstance(change, Put):
        number = cursor.execute(_NUMBER, key).get
        if number is not None:
            cursor.execute(statements.put, (*key, *columns, body))
            _write_index(cursor, _UPDATE, (_document(change.row), number))
            return True
    cursor.execute(statements.insert, (*key, *columns, body))
    if cursor.connection.changes() == 0:
        return isinstance(change, Ensure)
    _write_index(cursor, _INSERT, (cursor.connection.last_insert_rowid(), _document(change.row)))
    return True


def find_words(cursor: apsw.Cursor, match: WordMatch) -> WordMatches:
    """Return a page of results, the latest first."""
    found: list[tuple[Any, ...]]
    before = _MAX_NUMBER if match.after is None else int(match.after)
    terms = [_quote(_encode(word)) for word in match.words]
    terms += (_quote(_encode(prefix)) + " *" for prefix in match.prefixes if prefix)
    terms += () if match.line is None else (_quote(_LINE + _encode(match.line)),)
    if terms and match.tenant:
        terms.append(_quote(_TENANT + _encode(match.tenant)))
    sql, first = (_MATCH, " ".join(terms)) if terms else (_ALL, match.tenant)
    found = []
    with _ignore_missing():
        found = cursor.execute(sql, (first, before, match.limit)).fetchall()
    keys: list[Key] = [row[1:] for row in found if row[1] == match.tenant and match.line in (None, row[2])]
    return WordMatches(keys, str(found[-1][0]) if len(found) == match.limit else None)


def purge_index(cursor: apsw.Cursor) -> None:
    """Remove all deleted entries from the index; the index, if there are no others."""
    with _ignore_missing():
        if cursor.execute(_FIRST).get is None:
            cursor.execute(_DROP)
        else:
            cursor.execute(_OPTIMIZE)


def merge_index(cursor: apsw.Cursor, pages: int) -> bool:
    """Remove some deleted entries from the index. Returns whether there may be more."""
    done = 0
    with _ignore_missing():
        cursor.execute(_SET_DELETE_MERGE, (_SOON,))
        before = cursor.connection.total_changes()
        cursor.execute(_MERGE, (pages,))
        done = cursor.connection.total_changes() - before
        cursor.execute(_SET_DELETE_MERGE, (_NEVER,))
    return done > 1


def refresh_index(cursor: apsw.Cursor) -> None:
    """Make FTS5 read the current state of the index. Its check uses the cached state, and would report what others
    removed since as damage."""
    with _ignore_missing():
        cursor.execute(_REFRESH).fetchall()


def _delete_from_index(cursor: apsw.Cursor, prefix: Key) -> None:
    if not prefix:
        cursor.execute(_DROP)
        return
    with _ignore_missing():
        if len(prefix) < len(WORDS.key):
            cursor.execute(_DELETE[len(prefix) - 1], prefix)
        elif (number := cursor.execute(_NUMBER, prefix).get) is not None:
            # Unlike the others: a statement that may remove several rows makes FTS5 write all pending changes.
            cursor.execute(_DELETE_ONE, (number,))


def _write_index(cursor: apsw.Cursor, sql: str, bound: tuple[Any, ...]) -> None:
    written = False
    with _ignore_missing():
        cursor.execute(sql, bound)
        written = True
    if not written:
        cursor.execute(_CREATE)
        cursor.execute(_SET_DELETE_MERGE, (_NEVER,))
        cursor.execute(sql, bound)


@contextlib.contextmanager
def _ignore_missing() -> Iterator[None]:
    """Ignore that there is no index yet."""
    try:
        yield
    except apsw.SQLError as error:
        if str(error) != "no such table: words_index":
            raise


def _document(row: Row) -> str:
    """Return the text of a row for FTS5."""
    tenant, line = str(row.key[0]), str(row.key[1])
    names = [_TENANT + _encode(tenant), _LINE + _encode(line)] if tenant else [_LINE + _encode(line)]
    return " ".join((*map(_encode, str(row.columns[-1]).split(" ")), *names))


def _encode(word: str) -> str:
    """Encode a word so that FTS5 does not split it."""
    return word if word.isalnum() else word.translate(_ESCAPES)


def _quote(word: str) -> str:
    return '"' + word.replace('"', '""') + '"'
