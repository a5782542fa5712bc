"""The tables of a SQLite file, made from the declared spaces, and the SQL for every query and change.

Only names from `holdfast.backends.tables` go into SQL; values are always bound. The text for a shape of query is made
once, so that SQLite's prepared statements are found again.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.backends.tables import (
    CONVERSATIONS,
    LATER,
    NODES,
    OBJECTS,
    STATE_VALUES,
    STEPS,
    TABLES,
    WORDS,
    WRITES,
    JsonText,
    Scalar,
    Table,
    WordList,
)

APPLICATION_ID = 0x486F6C64
"""`Hold`: how a file of ours is known."""

VERSION = 1
"""The layout, in `PRAGMA user_version`. Goes up when older versions of Holdfast could not use the file."""

_TYPES: dict[type, str] = {str: "TEXT", int: "INTEGER", bytes: "BLOB", JsonText: "TEXT", WordList: "TEXT"}

# Large rows in the tree of the key itself would make that tree deep and slow; small ones are found a step sooner in it.
_WITH_ROWID = frozenset({STEPS, NODES, OBJECTS, WRITES, STATE_VALUES, CONVERSATIONS})

# A row that is made smaller in its place leaves its page part empty for good, since SQLite merges pages only when rows
# are deleted. So what stands for a pruned or moved row is put at the end of the table, and whole pages become free.
_SHRINKING = frozenset({STEPS, NODES, OBJECTS})

NUMBER = "number"
"""A column of `words` by which its index names rows. Declared, so that nothing ever numbers them anew."""

_VIEWS = """
CREATE VIEW threads AS
  SELECT l.tenant, l.line AS thread,
    strftime('%Y-%m-%dT%H:%M:%fZ', l.created / 1e9, 'unixepoch') AS created,
    (SELECT count(*) FROM steps s WHERE s.tenant = l.tenant AND s.line = l.line) - l.pruned AS steps,
    (SELECT count(*) + 1 FROM branches b WHERE b.tenant = l.tenant AND b.line = l.line) AS branches,
    (SELECT strftime('%Y-%m-%dT%H:%M:%fZ', max(s.time) / 1e9, 'unixepoch')
       FROM steps s WHERE s.tenant = l.tenant AND s.line = l.line) AS last
  FROM lines l;
CREATE VIEW log AS
  SELECT tenant, line AS thread, branch, seq, id, strftime('%Y-%m-%dT%H:%M:%fZ', time / 1e9, 'unixepoch') AS time,
    kind, metadata, length(body) AS bytes
  FROM steps WHERE id <> '';
"""

_THREADS = """
CREATE VIEW threads AS
  SELECT l.tenant, l.line AS thread,
    strftime('%Y-%m-%dT%H:%M:%fZ', l.created / 1e9, 'unixepoch') AS created,
    (SELECT count(*) FROM steps s WHERE s.tenant = l.tenant AND s.line = l.line) - l.pruned AS steps,
    (SELECT count(*) + 1 FROM branches b WHERE b.tenant = l.tenant AND b.line = l.line) AS branches,
    (SELECT strftime('%Y-%m-%dT%H:%M:%fZ', max(s.time) / 1e9, 'unixepoch')
       FROM steps s WHERE s.tenant = l.tenant AND s.line = l.line) AS last
  FROM lines l WHERE l.line NOT LIKE '␞%'
"""
"""As it is since lines hold state, too."""


def schema() -> list[str]:
    """The statements that make an empty file one of ours, but for its version."""
    first = [space for space in TABLES if space not in LATER]
    return [statement for space in first for statement in (_table(space), *_indexes(space))] + [_VIEWS, *later()]


def later() -> list[str]:
    """The statements that give a file what the first ones were made without, and change nothing where it has that."""
    return [*(_table(space, "IF NOT EXISTS ") for space in LATER), "DROP VIEW IF EXISTS threads", _THREADS]


def _table(space: Table, unless: str = "") -> str:
    columns = [f"{name} {_TYPES[kind]} NOT NULL" for name, kind in space.all_columns.items()]
    lines = [*columns, "body BLOB NOT NULL", f"PRIMARY KEY ({', '.join(space.key)})"]
    options = "STRICT" if space in _WITH_ROWID else "STRICT, WITHOUT ROWID"
    if space is WORDS:
        lines = [f"{NUMBER} INTEGER PRIMARY KEY", *lines[:-1], f"UNIQUE ({', '.join(space.key)})"]
        options = "STRICT"
    return f"CREATE TABLE {unless}{space.name} (\n  " + ",\n  ".join(lines) + f"\n) {options}"


def _indexes(space: Table) -> list[str]:
    return [
        f"CREATE INDEX {space.name}_{index} ON {space.name} ({', '.join(space.order(index))})"
        for index in space.indexes
    ]


class TableStatements:
    """The SQL for one space."""

    def __init__(self, space: Table) -> None:
        # Names come from the spaces declared above, never from data.
        columns, key = ", ".join(space.all_columns), list(space.key)
        is_key = _equal(key)
        places = ", ".join("?" * (len(space.all_columns) + 1))
        insert = f"INSERT INTO {space.name} ({columns}, body) VALUES ({places})"  # noqa: S608
        values = ", ".join(f"{name} = excluded.{name}" for name in (*space.columns, "body"))
        self._space = space
        self._scans: dict[tuple[str, int, int, int, bool, bool], str] = {}
        self.get = f"SELECT {columns}, body FROM {space.name} WHERE {is_key}"  # noqa: S608
        """A row by its key."""
        self.insert = f"{insert} ON CONFLICT DO NOTHING"
        """Store a row unless its key is taken."""
        self.put = f"{insert} ON CONFLICT ({', '.join(key)}) DO UPDATE SET {values}"
        """Store a row in place of another."""
        if space in _SHRINKING:
            self.put = insert.replace("INSERT", "INSERT OR REPLACE", 1)
        self.delete = [
            f"DELETE FROM {space.name} WHERE {_equal(key[:width])}"  # noqa: S608
            for width in range(len(key) + 1)
        ]
        """Remove the rows whose key starts with so many columns."""
        self.expect = f"SELECT {', '.join(space.columns) or '1'} FROM {space.name} WHERE {is_key}"  # noqa: S608
        """The columns of a row by its key; in a space that has none, a 1."""

    def expected(self, columns: tuple[Scalar, ...]) -> tuple[Scalar, ...]:
        """What `expect` finds if a row has these columns."""
        return columns if self._space.columns else (1,)

    def scan(self, by: str, prefix: int, start: int, stop: int, reverse: bool, bodies: bool) -> str:
        """Rows in order. Binds the prefix, start and stop, of so many columns, and a limit, negative for none."""
        shape = by, prefix, start, stop, reverse, bodies
        sql = self._scans.get(shape)
        if sql is None:
            sql = self._scans[shape] = _scan(self._space, *shape)
        return sql


def _scan(space: Table, by: str, prefix: int, start: int, stop: int, reverse: bool, bodies: bool) -> str:
    names = space.order(by)
    rest = names[prefix:]
    where = " AND ".join((_equal(names[:prefix]), *_compare(rest[:start], ">="), *_compare(rest[:stop], "<")))
    columns = ", ".join((*space.all_columns, "body" if bodies else "x''"))
    ordering = ", ".join(f"{name} DESC" if reverse else name for name in rest or names)
    return f"SELECT {columns} FROM {space.name} WHERE {where} ORDER BY {ordering} LIMIT ?"  # noqa: S608


def _equal(names: Sequence[str]) -> str:
    return " AND ".join(f"{name} = ?" for name in names) or "true"


def _compare(names: Sequence[str], operator: str) -> list[str]:
    return [f"({', '.join(names)}) {operator} ({', '.join('?' * len(names))})"] if names else []


STATEMENTS = {space.name: TableStatements(space) for space in TABLES}
"""By the name of the space: to look them up by space would take longer than some of them."""
