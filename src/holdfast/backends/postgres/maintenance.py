"""How large a schema is, what is wrong with it, and giving room back: by PostgreSQL's own means."""

from __future__ import annotations

from collections.abc import Sequence

import psycopg

from holdfast.backends.postgres.binary_values import BinaryValue, value
from holdfast.backends.postgres.connection import PostgresConnection
from holdfast.backends.postgres.schema import quoted, tables

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


async def size(link: PostgresConnection, schema: str) -> int:
    """How many bytes the tables take, with their indexes."""
    ((found,),) = await link.ask(_SIZE, [value(schema)])
    return int(found)


async def check(link: PostgresConnection, schema: str) -> list[str]:
    """Read everything; look for indexes that are not whole; and have amcheck look, where it is installed for us."""
    name = quoted(schema)
    wrong = [
        f"the index {index} is not whole: rebuild it with REINDEX"
        for index, _, whole in await link.ask(_INDEXES, [value(schema)])
        if not whole
    ]
    for table in tables():
        # A digest needs every byte.
        sql = f"SELECT count(sha256(body)) FROM {name}.{table}"  # noqa: S608 - our own names
        wrong += [f"the table {table} is damaged: {said}" for said in await _damage(link, sql)]
    for (extension,) in await link.ask(_AMCHECK):
        wrong += await _amcheck(link, schema, extension)
    ((failures,),) = await link.ask(_CHECKSUMS)
    if failures:
        wrong.append(f"the server found {failures} pages of this database with a wrong checksum: see its log")
    return wrong


async def tidy(link: PostgresConnection, schema: str) -> None:
    """Forget processes that are long gone, and have room that was freed used again."""
    name = quoted(schema)
    await link.run(f"DELETE FROM {name}.clients WHERE time < now() - interval '1 day'")  # noqa: S608
    # Of tables that are not ours to vacuum, the server says so, and goes on.
    await link.run(f"VACUUM (SKIP_LOCKED) {', '.join(f'{name}.{table}' for table in tables(clients=True))}")


async def _amcheck(link: PostgresConnection, schema: str, extension: str) -> list[str]:
    wrong = []
    for index, oid, _ in await link.ask(_INDEXES, [value(schema)]):
        sql = f"SELECT {extension}.bt_index_check($1::bigint::oid)"
        wrong += [f"the index {index} is damaged: {said}" for said in await _damage(link, sql, [value(oid)])]
    for table in tables(clients=True):
        sql = f"SELECT blkno, msg FROM {extension}.verify_heapam(to_regclass($1::text))"  # noqa: S608 - a quoted name
        for block, said in await link.ask(sql, [value(f"{quoted(schema)}.{table}")]):
            wrong.append(f"the table {table} is damaged in block {block}: {said}")
    return wrong


async def _damage(link: PostgresConnection, sql: str, bound: Sequence[BinaryValue] = ()) -> list[str]:
    """What the server says when it comes upon damage."""
    try:
        await link.ask(sql, bound)
    except (psycopg.errors.DataCorrupted, psycopg.errors.IndexCorrupted) as error:
        return [str(error.diag.message_primary)]
    return []
