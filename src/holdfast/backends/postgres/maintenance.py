"""Measures, checks and vacuums a schema, by PostgreSQL's own means.

The table `changes` of a schema, from which `Backend.changes` answers.

Each transaction inserts a row for each line that it changes, with its own number. A token is a snapshot of PostgreSQL:
which transactions were visible. The next answer has those that were not, in whatever order they commit.

A row without a line is a gap: any line may have changed. With `trimmed`, it stands for the rows up to its number, which
were deleted.

The token also names the table, the timeline of the server, and when it was started. These change when the store is
restored from a backup, or from a copy of the server's files, and when a standby takes over that did not have all
transactions: numbers of lost transactions are used again.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol, TypeAlias, TypeVar

import psycopg

from holdfast.backends.feed import build_token, foreign_token, parse_token
from holdfast.backends.interface import Changes
from holdfast.backends.postgres.binary_values import BinaryValue, bind, unescape
from holdfast.backends.postgres.connection import PostgresConnection, ResultRows, Statement
from holdfast.backends.postgres.schema import CHANGES, quote_name, table_names

T = TypeVar("T")


class RunStatement(Protocol):
    """Runs a statement, and returns its rows."""

    async def __call__(self, sql: str, bound: Sequence[BinaryValue] = (), /) -> ResultRows: ...


Work: TypeAlias = Callable[[PostgresConnection, str, RunStatement], Coroutine[Any, Any, T]]
"""A piece of maintenance: of a schema, by a connection; the function runs statements about rows."""

# All names are qualified, and arguments have exactly the types of the functions: a function that somebody else put into
# the path, or beside those of amcheck, is not called.

_TABLES = """FROM pg_catalog.pg_class c
JOIN pg_catalog.pg_namespace s ON s.oid = c.relnamespace AND s.nspname = $1::text AND c.relkind = 'r'"""
_SIZE = f"SELECT coalesce(pg_catalog.sum(pg_catalog.pg_total_relation_size(c.oid::regclass)), 0)::bigint {_TABLES}"

_INDEXES = f"""
SELECT i.indexrelid::regclass::text, i.indexrelid::bigint, i.indisvalid AND i.indisready, a.amname = 'btree'
{_TABLES} JOIN pg_catalog.pg_index i ON i.indrelid = c.oid
JOIN pg_catalog.pg_class x ON x.oid = i.indexrelid JOIN pg_catalog.pg_am a ON a.oid = x.relam ORDER BY 1
"""

_AMCHECK = """
SELECT a.name FROM pg_catalog.pg_extension e
JOIN pg_catalog.pg_namespace s ON s.oid = e.extnamespace, pg_catalog.quote_ident(s.nspname::text) a (name)
WHERE e.extname = 'amcheck' AND pg_catalog.has_function_privilege(
  pg_catalog.to_regprocedure(a.name || '.verify_heapam(regclass,boolean,boolean,text,bigint,bigint)')::oid, 'EXECUTE')
"""
_CHECK_HEAP = "verify_heapam(pg_catalog.to_regclass($1::text), false, false, 'none'::text, NULL::bigint, NULL::bigint)"

_FILES = f"SELECT c.relname::text, pg_catalog.pg_relation_filenode(c.oid::regclass)::bigint {_TABLES}"

_PURGE_ATTEMPTS, _PURGE_WAIT = 20, 0.25

_CHECKSUMS = """
SELECT coalesce(checksum_failures, 0) FROM pg_catalog.pg_stat_database WHERE datname = pg_catalog.current_database()
"""


async def size(connection: PostgresConnection, schema: str, _: RunStatement) -> int:
    """Return how many bytes the tables take, with their indexes."""
    ((total,),) = await connection.query(_SIZE, [bind(schema)])
    return int(total)


async def check(connection: PostgresConnection, schema: str, query: RunStatement) -> list[str]:
    """Read all rows, find invalid indexes, and run amcheck where it is installed and allowed. Returns the findings.

    `query` runs a statement for the tenant, where row-level security would hide all rows otherwise.
    """
    name = quote_name(schema)
    findings = [
        f"the index {index} is invalid: rebuild it with REINDEX"
        for index, _, valid, _ in await connection.query(_INDEXES, [bind(schema)])
        if not valid
    ]
    for table in table_names():
        # A digest reads every byte.
        sql = f"SELECT pg_catalog.count(pg_catalog.sha256(body)) FROM {name}.{table}"  # noqa: S608 - quoted names
        findings += [f"the table {table} is damaged: {message}" for message in await _damage(connection, query, sql)]
    for (extension,) in await connection.query(_AMCHECK):
        findings += await _amcheck(connection, schema, extension)
    ((failures,),) = await connection.query(_CHECKSUMS)
    if failures:
        findings.append(f"the server found {failures} pages of this database with a wrong checksum: see its log")
    return findings


async def tidy(connection: PostgresConnection, schema: str, query: RunStatement) -> None:
    """Delete the records of processes that ended long ago and the names of deleted lines, and vacuum the tables."""
    name = quote_name(schema)
    await query(f"DELETE FROM {name}.clients WHERE time < pg_catalog.now() - interval '1 day'")  # noqa: S608
    await query(forget_deleted_sql(schema))
    # Of tables that this user may not vacuum, the server only warns.
    await connection.run(f"VACUUM (SKIP_LOCKED) {', '.join(f'{name}.{table}' for table in table_names(clients=True))}")


async def purge(connection: PostgresConnection, schema: str, query: RunStatement) -> list[str]:
    """Rewrite the tables, so that nothing is left of dead rows. Returns where they may still be.

    A table that somebody uses is tried again: nobody waits for it. That it was rewritten shows in its file.
    """
    await tidy(connection, schema, query)
    left, name = set(table_names(clients=True)), quote_name(schema)
    for attempt in range(_PURGE_ATTEMPTS):
        if attempt:
            await asyncio.sleep(_PURGE_WAIT)
        before: dict[str, int] = dict(await connection.query(_FILES, [bind(schema)]))
        for table in sorted(left):
            await connection.run(f"VACUUM (FULL, SKIP_LOCKED) {name}.{table}")
        after: dict[str, int] = dict(await connection.query(_FILES, [bind(schema)]))
        left = {table for table in left if before.get(table) == after.get(table)}
        if not left:
            break
    dead = [f"dead rows of the tables {', '.join(sorted(left))}, which could not be rewritten"] if left else []
    return [*dead, "the write-ahead log of the server and its archive, its replicas and backups"]


async def _amcheck(connection: PostgresConnection, schema: str, extension: str) -> list[str]:
    findings = []
    for index, oid, _, is_btree in await connection.query(_INDEXES, [bind(schema)]):
        if not is_btree:
            continue  # amcheck knows no others
        sql = f"SELECT {extension}.bt_index_check($1::bigint::oid::regclass)"
        findings += [
            f"the index {index} is damaged: {message}"
            for message in await _damage(connection, connection.query, sql, [bind(oid)])
        ]
    for table in table_names(clients=True):
        sql = f"SELECT blkno, msg FROM {extension}.{_CHECK_HEAP}"  # noqa: S608 - a quoted name
        for block, message in await connection.query(sql, [bind(f"{quote_name(schema)}.{table}")]):
            findings.append(f"the table {table} is damaged in block {block}: {message}")
    return findings


async def _damage(
    connection: PostgresConnection, query: RunStatement, sql: str, bound: Sequence[BinaryValue] = ()
) -> list[str]:
    """Run a statement, and return the server's message if it finds damage."""
    try:
        await query(sql, bound)
    except (psycopg.errors.DataCorrupted, psycopg.errors.IndexCorrupted) as error:
        if not connection.idle:
            await connection.run("ROLLBACK")
        return [str(error.diag.message_primary)]
    return []


_KIND = "postgresql"
_SNAPSHOT = re.compile(r"[1-9]\d{0,18}:[1-9]\d{0,18}:(\d{1,19}(,\d{1,19})*)?")
_NOW = "1:1:"

_SINCE = """
SELECT pg_catalog.pg_current_snapshot()::text,
  (SELECT timeline_id FROM pg_catalog.pg_control_checkpoint()) || '-' || pg_catalog.to_regclass($2::text)::oid || '-'
    || (extract(epoch FROM pg_catalog.pg_postmaster_start_time()) * 1000000)::bigint,
  pg_catalog.pg_snapshot_xmax($1::text::pg_snapshot) <= pg_catalog.pg_snapshot_xmax(pg_catalog.pg_current_snapshot()),
  c.xid IS NOT NULL, c.tenant, c.line
FROM (SELECT 1) AS one LEFT JOIN {table} c
  ON $1::text <> '{now}' AND c.xid >= pg_catalog.pg_snapshot_xmin($1::text::pg_snapshot)
  AND (c.trimmed OR NOT pg_catalog.pg_visible_in_snapshot(c.xid, $1::text::pg_snapshot))
"""

_FORGET_DELETED = """
WITH gone AS (
  DELETE FROM {schema}.changes c
  WHERE c.line IS NOT NULL AND c.xid < pg_catalog.pg_snapshot_xmin(pg_catalog.pg_current_snapshot())
    AND NOT EXISTS (SELECT FROM {schema}.lines l WHERE l.tenant = c.tenant AND l.line = c.line)
  RETURNING c.xid, c.tenant
)
INSERT INTO {schema}.changes (xid, tenant, line, trimmed)
  SELECT pg_catalog.max(g.xid), g.tenant, NULL, true FROM gone g GROUP BY g.tenant
"""


def parse_since(since: str | None, where: str) -> tuple[str, str]:
    """Return the snapshot of a token, and the place that it is from."""
    if since is None:
        return _NOW, ""
    place, snapshot = parse_token(since, _KIND, 2, where)
    if not _SNAPSHOT.fullmatch(snapshot):
        raise foreign_token(since, where)
    return snapshot, place


def build_query(schema: str, snapshot: str) -> Statement:
    """Build the statement that finds the changes since a snapshot."""
    table = f"{quote_name(schema)}.{CHANGES}"
    return _SINCE.format(table=table, now=_NOW), [bind(snapshot), bind(table)]


def read_changes(snapshot: str, place: str, rows: ResultRows) -> Changes:
    """Read the changes from the rows of the statement."""
    now, here, is_past, *_ = rows[0]
    token = build_token(_KIND, here, now)
    found = [(tenant, line) for *_, exists, tenant, line in rows if exists]
    lines = {(unescape(tenant), unescape(line)) for tenant, line in found if line is not None}
    known = snapshot == _NOW or (place == here and is_past and all(line is not None for _, line in found))
    return Changes(list(lines), token, complete=known)


def forget_deleted_sql(schema: str) -> str:
    """Return the statement that removes the names of lines that do not exist any more."""
    return _FORGET_DELETED.format(schema=quote_name(schema))
