"""The schema of a SQLite file, and the SQL for every query and change.

Only names from `holdfast.backends.tables` go into SQL; values are always bound. The SQL for a shape of query is built
once, so that SQLite's prepared statements are reused.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.backends.interface import ColumnHint
from holdfast.backends.tables import (
    CONVERSATION_HISTORY,
    EVENTS,
    NODES,
    OBJECTS,
    STATE_VALUES,
    STEPS,
    TABLES,
    TIME,
    WORDS,
    WRITES,
    JsonText,
    Scalar,
    Table,
    WordList,
    agent_view,
)
from holdfast.backends.time_index import FAILED, ORIGIN, RARE, THREAD_STEP, hint_conditions, stopped

VERSION = 1
"""The version of the layout. A new one cannot be used by older versions of Holdfast."""

APPLICATION_ID = 0x486F6C00 | VERSION
"""`Hol` and the version of the layout: marks a file as a store. `PRAGMA user_version` is left to the user's tools."""

_TYPES: dict[type, str] = {str: "TEXT", int: "INTEGER", bytes: "BLOB", JsonText: "TEXT", WordList: "TEXT"}

_PYTHON: dict[type, type] = {JsonText: str, WordList: str}

# Large rows in the tree of the key would make it deep and slow; small ones are found one step sooner in it.
WITH_ROWID = frozenset({STEPS, NODES, OBJECTS, WRITES, STATE_VALUES, CONVERSATION_HISTORY})

# A row that shrinks in place leaves its page partly empty for good, since SQLite merges pages only when rows are
# deleted. So the stub of a pruned or moved row is put at the end of the table, and whole pages become free.
_SHRINKING = frozenset({STEPS, NODES, OBJECTS})

NUMBER = "number"
"""A column of `words` by which its index refers to rows. Declared, so that nothing ever renumbers them."""

CHANGES = "changes"
"""The table of `holdfast.backends.sqlite.change_log`."""

_CHANGES = """CREATE TABLE changes (
  number INTEGER PRIMARY KEY,
  tenant TEXT,
  line TEXT,
  gap INTEGER
) STRICT"""

_VIEWS = """
CREATE VIEW threads AS
  SELECT l.tenant, l.line AS thread,
    strftime('%Y-%m-%dT%H:%M:%fZ', l.created / 1e9, 'unixepoch') AS created,
    (SELECT count(*) FROM steps s WHERE s.tenant = l.tenant AND s.line = l.line) - l.pruned AS steps,
    (SELECT count(*) + 1 FROM branches b WHERE b.tenant = l.tenant AND b.line = l.line) AS branches,
    (SELECT strftime('%Y-%m-%dT%H:%M:%fZ', max(s.time) / 1e9, 'unixepoch')
       FROM steps s WHERE s.tenant = l.tenant AND s.line = l.line) AS time
  FROM lines l WHERE l.line NOT LIKE '␞%';
CREATE VIEW log AS
  SELECT tenant, line AS thread, branch, seq, id, strftime('%Y-%m-%dT%H:%M:%fZ', time / 1e9, 'unixepoch') AS time,
    kind, metadata, length(body) AS bytes
  FROM steps WHERE id <> '';
"""

_CONTAINS = "instr({}, {})"

# By time, across lines; what is looked for among many events; threads that stopped. What is rare has its own index.
TIME_INDEXES = {
    name: f"CREATE INDEX {name} ON {definition}"
    for name, definition in {
        "steps_time": f"steps (tenant, time) WHERE {THREAD_STEP}",
        "steps_origin": f"steps (tenant, time) WHERE {_CONTAINS.format('metadata', ORIGIN)}",
        "events_time": "events (tenant, time, kind, action)",
        "events_correlation": "events (tenant, correlation, time) WHERE correlation <> ''",
        "events_actor": "events (tenant, actor, time) WHERE actor <> ''",
        "events_cause": "events (tenant, cause, time) WHERE cause <> ''",
        "events_rare": f"events (tenant, kind, time) WHERE {RARE}",
        "events_failed": f"events (tenant, time) WHERE {FAILED}",
        "refs_stopped": f"refs (tenant, line) WHERE {stopped(_CONTAINS)}",
    }.items()
}


def create_statements() -> list[str]:
    """Return the statements that create all tables and views."""
    tables = [statement for space in TABLES for statement in (_table(space), *_indexes(space))]
    return [*tables, _VIEWS, f"CREATE VIEW agent_states AS {agent_view()}", *TIME_INDEXES.values(), _CHANGES]


def _table(space: Table) -> str:
    columns = [f"{name} {_TYPES[kind]} NOT NULL" for name, kind in space.all_columns.items()]
    lines = [*columns, "body BLOB NOT NULL", f"PRIMARY KEY ({', '.join(space.key)})"]
    options = "STRICT" if space in WITH_ROWID else "STRICT, WITHOUT ROWID"
    if space is WORDS:
        lines = [f"{NUMBER} INTEGER PRIMARY KEY", *lines[:-1], f"UNIQUE ({', '.join(space.key)})"]
        options = "STRICT"
    return f"CREATE TABLE {space.name} (\n  " + ",\n  ".join(lines) + f"\n) {options}"


def _indexes(space: Table) -> list[str]:
    return [
        f"CREATE INDEX {space.name}_{index} ON {space.name} ({', '.join(space.order(index))})"
        for index in space.indexes
    ]


class TableStatements:
    """The SQL for one table."""

    def __init__(self, space: Table) -> None:
        # Names come from the declared tables, never from data.
        columns, key = ", ".join(space.all_columns), list(space.key)
        is_key = _equal(key)
        places = ", ".join("?" * (len(space.all_columns) + 1))
        insert = f"INSERT INTO {space.name} ({columns}, body) VALUES ({places})"  # noqa: S608
        values = ", ".join(f"{name} = excluded.{name}" for name in (*space.columns, "body"))
        self._space = space
        self.kinds: tuple[type, ...] = (*(_PYTHON.get(kind, kind) for kind in space.all_columns.values()), bytes)
        """The types of the values of a row that is not damaged."""
        self._scans: dict[tuple[str, int, int, int, bool, bool], str] = {}
        self.get: str = f"SELECT {columns}, body FROM {space.name} WHERE {is_key}"  # noqa: S608
        """Select a row by its key."""
        self.insert: str = f"{insert} ON CONFLICT DO NOTHING"
        """Store a row unless its key is taken."""
        self.put: str = f"{insert} ON CONFLICT ({', '.join(key)}) DO UPDATE SET {values}"
        """Store or replace a row."""
        if space in _SHRINKING:
            self.put = insert.replace("INSERT", "INSERT OR REPLACE", 1)
        self.delete: list[str] = [
            f"DELETE FROM {space.name} WHERE {_equal(key[:width])}"  # noqa: S608
            for width in range(len(key) + 1)
        ]
        """Remove rows by a prefix of so many columns."""
        self.expect: str = f"SELECT {', '.join(space.columns) or '1'} FROM {space.name} WHERE {is_key}"  # noqa: S608
        """Select the columns of a row by its key; 1 in a table without columns."""

    def expected(self, columns: tuple[Scalar, ...]) -> tuple[Scalar, ...]:
        """Return the result of `expect` for these columns."""
        return columns if self._space.columns else (1,)

    def scan(self, by: str, prefix: int, start: int, stop: int, reverse: bool, bodies: bool) -> str:
        """Return the SQL of a scan. Binds prefix, start and stop of so many columns, and a limit, negative for none."""
        shape = by, prefix, start, stop, reverse, bodies
        sql = self._scans.get(shape)
        if sql is None:
            sql = self._scans[shape] = _scan(self._space, *shape)
        return sql

    def count(self, prefix: int, start: int, stop: int) -> str:
        """Return the SQL that counts the rows of a scan by key. Binds as `scan`, without a limit."""
        where = _range(tuple(self._space.key), prefix, start, stop)
        return f"SELECT count(*) FROM {self._space.name} WHERE {where}"  # noqa: S608


def _range(names: tuple[str, ...], prefix: int, start: int, stop: int) -> str:
    rest = names[prefix:]
    return " AND ".join((_equal(names[:prefix]), *_compare(rest[:start], ">="), *_compare(rest[:stop], "<")))


def _scan(space: Table, by: str, prefix: int, start: int, stop: int, reverse: bool, bodies: bool) -> str:
    names = space.order(by)
    rest = names[prefix:]
    where = _range(names, prefix, start, stop)
    if by == TIME and space is STEPS:
        where = f"{where} AND {THREAD_STEP}"
    columns = ", ".join((*space.all_columns, "body" if bodies else "x''"))
    ordering = ", ".join(f"{name} DESC" if reverse else name for name in rest or names)
    return f"SELECT {columns} FROM {space.name} WHERE {where} ORDER BY {ordering} LIMIT ?"  # noqa: S608


def _equal(names: Sequence[str]) -> str:
    return " AND ".join(f"{name} = ?" for name in names) or "true"


def _compare(names: Sequence[str], operator: str) -> list[str]:
    return [f"({', '.join(names)}) {operator} ({', '.join('?' * len(names))})"] if names else []


def add_hints(space: Table, sql: str, hints: Sequence[ColumnHint]) -> tuple[str, list[str]]:
    """Return the SQL of a scan that leaves out what does not fit hints, and what it binds after the bounds."""
    conditions, texts = hint_conditions(space, hints, _CONTAINS)
    if not conditions:
        return sql, texts
    sql = sql.replace(" ORDER BY ", f" AND {' AND '.join(conditions)} ORDER BY ")
    if space is EVENTS and RARE not in conditions and {hint.column for hint in hints} <= {"kind", "action"}:
        sql = _by_index_alone(space, sql)
    return sql, texts


def _by_index_alone(space: Table, sql: str) -> str:
    """Return a scan that finds the keys of rows in the index of times: to look at each row takes ten times as long."""
    names = ", ".join(space.key)
    columns, _, rest = sql.partition(" FROM events ")
    condition, _, order = rest.partition(" ORDER BY ")
    ordering = order.removesuffix(" LIMIT ?")
    keys = f"SELECT {names} FROM events INDEXED BY events_time {condition} ORDER BY {order}"  # noqa: S608
    return f"{columns} FROM events WHERE ({names}) IN ({keys}) ORDER BY {ordering}"


HEAD = """
SELECT id FROM steps INDEXED BY sqlite_autoindex_steps_1 WHERE tenant = ? AND line = ? AND branch = ?
ORDER BY seq DESC LIMIT 1
"""
"""Selects the id of the last step of a branch, by the index of the key."""

LATEST = """
SELECT branch, seq FROM steps INDEXED BY steps_id WHERE tenant = ? AND line = ?
ORDER BY id DESC, revision DESC, branch DESC, seq DESC LIMIT 1
"""
"""Selects the latest step of a line, by the index of ids."""

STATEMENTS = {space.name: TableStatements(space) for space in TABLES}
"""By name: to look them up by table would take longer than some of them."""
