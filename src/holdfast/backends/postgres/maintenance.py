"""Measures, checks and vacuums a schema, by PostgreSQL's own means."""

from __future__ import annotations

from collections.abc import Sequence

import psycopg

from holdfast.backends.postgres.binary_values import BinaryValue, bind
from holdfast.backends.postgres.connection import PostgresConnection
from holdfast.backends.postgres.schema import quote_name, table_names

_TABLES = "FROM pg_class c JOIN pg_namespace s ON s.oid = c.relnamespace AND s.nspname = $1::text AND c.relkind = 'r'"
_SIZE = f"SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint {_TABLES}"

_INDEXES = f"""
SELECT x.indexrelid::regclass::text, x.indexrelid::bigint, i.indisvalid AND i.indisready
{_TABLES} JOIN pg_index i ON i.indrelid = c.oid JOIN pg_stat_all_indexes x ON x.indexrelid = i.indexrelid ORDER BY 1
"""

_AMCHECK = """
SELECT quote_ident(s.nspname) FROM pg_proc p JOIN pg_namespace s ON s.oid = p.pronamespace
WHERE p.proname = 'verify_heapam' AND has_function_privilege(p.oid, 'EXECUTE')
"""

_CHECKSUMS = "SELECT coalesce(checksum_failures, 0) FROM pg_stat_database WHERE datname = current_database()"


async def size(connection: PostgresConnection, schema: str) -> int:
    """Return how many bytes the tables take, with their indexes."""
    ((total,),) = await connection.query(_SIZE, [bind(schema)])
    return int(total)


async def check(connection: PostgresConnection, schema: str) -> list[str]:
    """Read all rows, find invalid indexes, and run amcheck where it is installed and allowed. Returns the findings."""
    name = quote_name(schema)
    findings = [
        f"the index {index} is invalid: rebuild it with REINDEX"
        for index, _, valid in await connection.query(_INDEXES, [bind(schema)])
        if not valid
    ]
    for table in table_names():
        # A digest reads every byte.
        sql = f"SELECT count(sha256(body)) FROM {name}.{table}"  # noqa: S608 - quoted names
        findings += [f"the table {table} is damaged: {message}" for message in await _damage(connection, sql)]
    for (extension,) in await connection.query(_AMCHECK):
        findings += await _amcheck(connection, schema, extension)
    ((failures,),) = await connection.query(_CHECKSUMS)
    if failures:
        findings.append(f"the server found {failures} pages of this database with a wrong checksum: see its log")
    return findings


async def tidy(connection: PostgresConnection, schema: str) -> None:
    """Delete the records of processes that ended long ago, and vacuum the tables."""
    name = quote_name(schema)
    await connection.run(f"DELETE FROM {name}.clients WHERE time < now() - interval '1 day'")  # noqa: S608
    # Of tables that this user may not vacuum, the server only warns.
    await connection.run(f"VACUUM (SKIP_LOCKED) {', '.join(f'{name}.{table}' for table in table_names(clients=True))}")


async def _amcheck(connection: PostgresConnection, schema: str, extension: str) -> list[str]:
    findings = []
    for index, oid, _ in await connection.query(_INDEXES, [bind(schema)]):
        sql = f"SELECT {extension}.bt_index_check($1::bigint::oid)"
        findings += [
            f"the index {index} is damaged: {message}" for message in await _damage(connection, sql, [bind(oid)])
        ]
    for table in table_names(clients=True):
        sql = f"SELECT blkno, msg FROM {extension}.verify_heapam(to_regclass($1::text))"  # noqa: S608 - a quoted name
        for block, message in await connection.query(sql, [bind(f"{quote_name(schema)}.{table}")]):
            findings.append(f"the table {table} is damaged in block {block}: {message}")
    return findings


async def _damage(connection: PostgresConnection, sql: str, bound: Sequence[BinaryValue] = ()) -> list[str]:
    """Run a statement, and return the server's message if it finds damage."""
    try:
        await connection.query(sql, bound)
    except (psycopg.errors.DataCorrupted, psycopg.errors.IndexCorrupted) as error:
        return [str(error.diag.message_primary)]
    return []
