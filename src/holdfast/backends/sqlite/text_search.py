"""The index of words in a SQLite file: `words_index`, a table of FTS5 that refers to the rows of `words` by number.

It is made when the first row of `words` is written, and changed in the same transactions as these rows. FTS5 gets words
in a form that it does not split; it takes small and capital letters of ASCII for the same. The names of tenant and line
are words of their own there, so that it is FTS5 that tells rows of one line from those of others.
"""

from __future__ import annotations

import contextlib
import string
from collections.abc import Iterator
from typing import Any

import apsw

from holdfast.backends.interface import Create, Delete, Ensure, Put, Row, WordMatch, WordMatches
from holdfast.backends.sqlite.schema import NUMBER, STATEMENTS
from holdfast.backends.tables import WORDS, Key

_TOKENIZER = "ascii tokenchars '" + string.punctuation.replace("'", "''") + "'"
_MAKE = (
    "CREATE VIRTUAL TABLE IF NOT EXISTS words_index USING fts5(words, content='', contentless_delete=1, detail=none,"
    f""" prefix='1 2 3', tokenize="{_TOKENIZER.replace('"', '""')}")"""
)
_DROP = "DROP TABLE IF EXISTS words_index"
_INSERT = "INSERT INTO words_index (rowid, words) VALUES (?, ?)"
_UPDATE = "UPDATE words_index SET words = ? WHERE rowid = ?"
_MERGE = "INSERT INTO words_index (words_index, rank) VALUES ('merge', ?)"
# Once so many of a hundred rows are gone, FTS5 writes a part of the index anew, in the middle of what removes them. A
# large removal takes three times as long then, and all writers wait for it. So that is left to `merge`.
_MERGE_GONE = "INSERT INTO words_index (words_index, rank) VALUES ('deletemerge', ?)"
_NEVER, _SOON = 0, 10
_LOOK = "SELECT 1 FROM words_index WHERE rowid = 0"
_NUMBER = f"SELECT {NUMBER} FROM words WHERE {' AND '.join(f'{name} = ?' for name in WORDS.key)}"  # noqa: S608 - our own
_DELETE_ONE = "DELETE FROM words_index WHERE rowid = ?"
_DELETE = [
    f"DELETE FROM words_index WHERE rowid IN (SELECT {NUMBER} FROM words WHERE"  # noqa: S608 - our own names
    f" {' AND '.join(f'{name} = ?' for name in list(WORDS.key)[:width])})"
    for width in range(1, len(WORDS.key))
]
# Joined in this order: the index gives numbers, from the last on, and each is then looked up.
_MATCH = f"""
SELECT w.{NUMBER}, {", ".join(f"w.{name}" for name in WORDS.key)}
FROM words_index CROSS JOIN words w ON w.{NUMBER} = words_index.rowid
WHERE words_index MATCH ? AND words_index.rowid < ? ORDER BY words_index.rowid DESC LIMIT ?
"""  # noqa: S608 - our own names
# The + has SQLite read rows from the last on, in place of sorting all of a tenant's.
_ALL = f"""
SELECT {NUMBER}, {", ".join(WORDS.key)} FROM words
WHERE +tenant = ? AND {NUMBER} < ? ORDER BY {NUMBER} DESC LIMIT ?
"""  # noqa: S608 - our own names

_TENANT, _LINE = "\ue100", "\ue101"
"""What the words start with that are names."""
_PLAIN = {code: 0xE000 + code for code in (*range(0x21), 0x7F)} | dict.fromkeys(map(ord, (_TENANT, _LINE)), 0xE102)
"""What stands for characters that FTS5 takes for the ends of words, and for those that names start with."""

_LAST = 1 << 62


def change_words(cursor: apsw.Cursor, made: Create | Ensure | Put | Delete) -> bool:
    """Make a change of the space `WORDS`, and of the index. False if its condition does not hold."""
    statements = STATEMENTS[WORDS.name]
    if isinstance(made, Delete):
        _forget(cursor, made.prefix)
        cursor.execute(statements.delete[len(made.prefix)], made.prefix)
        return True
    key, columns, body = made.row
    if isinstance(made, Put):
        number = cursor.execute(_NUMBER, key).get
        if number is not None:
            cursor.execute(statements.put, (*key, *columns, body))
            _indexed(cursor, _UPDATE, (_document(made.row), number))
            return True
    cursor.execute(statements.insert, (*key, *columns, body))
    if cursor.connection.changes() == 0:
        return isinstance(made, Ensure)
    _indexed(cursor, _INSERT, (cursor.connection.last_insert_rowid(), _document(made.row)))
    return True


def find_words(cursor: apsw.Cursor, match: WordMatch) -> WordMatches:
    """A page of what is found, the last written first."""
    found: list[tuple[Any, ...]]
    before = _LAST if match.after is None else int(match.after)
    terms = [_quoted(_encoded(word)) for word in match.words]
    terms += (_quoted(_encoded(prefix)) + " *" for prefix in match.prefixes if prefix)
    terms += () if match.line is None else (_quoted(_LINE + _encoded(match.line)),)
    if terms and match.tenant:
        terms.append(_quoted(_TENANT + _encoded(match.tenant)))
    sql, first = (_MATCH, " ".join(terms)) if terms else (_ALL, match.tenant)
    found = []
    with _if_there():
        found = cursor.execute(sql, (first, before, match.limit)).fetchall()
    keys: list[Key] = [row[1:] for row in found if row[1] == match.tenant and match.line in (None, row[2])]
    return WordMatches(keys, str(found[-1][0]) if len(found) == match.limit else None)


def merge(cursor: apsw.Cursor, pages: int) -> bool:
    """Have the index let go of some of what was removed from it; whether there may be more."""
    done = 0
    with _if_there():
        cursor.execute(_MERGE_GONE, (_SOON,))
        before = cursor.connection.total_changes()
        cursor.execute(_MERGE, (pages,))
        done = cursor.connection.total_changes() - before
        cursor.execute(_MERGE_GONE, (_NEVER,))
    return done > 1


def look_anew(cursor: apsw.Cursor) -> None:
    """Have FTS5 see how the index is now. It remembers that, and where the index is checked does not ask whether others
    changed it since: what they removed would count as damage."""
    with _if_there():
        cursor.execute(_LOOK).fetchall()


def _forget(cursor: apsw.Cursor, prefix: Key) -> None:
    if not prefix:
        cursor.execute(_DROP)
        return
    with _if_there():
        if len(prefix) < len(WORDS.key):
            cursor.execute(_DELETE[len(prefix) - 1], prefix)
        elif (number := cursor.execute(_NUMBER, prefix).get) is not None:
            # Not as the others: what may remove several has FTS5 write all that it has not written yet.
            cursor.execute(_DELETE_ONE, (number,))


def _indexed(cursor: apsw.Cursor, sql: str, bound: tuple[Any, ...]) -> None:
    made = False
    with _if_there():
        cursor.execute(sql, bound)
        made = True
    if not made:
        cursor.execute(_MAKE)
        cursor.execute(_MERGE_GONE, (_NEVER,))
        cursor.execute(sql, bound)


@contextlib.contextmanager
def _if_there() -> Iterator[None]:
    """Does nothing where there is no index yet; or no table of words, in an older file that is only looked at."""
    try:
        yield
    except apsw.SQLError as error:
        if str(error) not in ("no such table: words_index", "no such table: words"):
            raise


def _document(row: Row) -> str:
    """What FTS5 is given for a row."""
    tenant, line = str(row.key[0]), str(row.key[1])
    names = [_TENANT + _encoded(tenant), _LINE + _encoded(line)] if tenant else [_LINE + _encoded(line)]
    return " ".join((*map(_encoded, str(row.columns[-1]).split(" ")), *names))


def _encoded(word: str) -> str:
    """A word that FTS5 does not split."""
    return word if word.isalnum() else word.translate(_PLAIN)


def _quoted(word: str) -> str:
    return '"' + word.replace('"', '""') + '"'
