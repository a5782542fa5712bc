"""Creates the schema when a store is first opened, or beforehand by a user who may."""

from __future__ import annotations

from typing import NamedTuple

import psycopg

from holdfast.backends.postgres.apply_function import lock_id
from holdfast.backends.postgres.binary_values import bind
from holdfast.backends.postgres.connection import PostgresConnection
from holdfast.backends.postgres.errors import translate_connect_error
from holdfast.backends.postgres.options import SCHEMA, PostgresOptions, read_options
from holdfast.backends.postgres.schema import VERSION, newest_table, quote_name, schema_sql
from holdfast.errors import ConfigError, HoldfastError, TransientError


class SchemaState(NamedTuple):
    """The properties of a schema that a store needs to know."""

    durable: bool
    row_security: bool
    """Whether row-level security is on for the current user."""


def setup(url: str | None = None, schema: str = SCHEMA, *, rls: bool = False, role: str = "") -> str:
    """Create the schema if it does not exist, and return the SQL that does it; without a URL, only return it.

    A user who may create a schema runs this once, before others open stores in it. With `rls`, turn on row-level
    security: a store then sees only the rows of the tenant that it is opened for. With a `role`, grant that role what a
    store needs. May be run again later, to turn these on.
    """
    lock = f"SELECT pg_catalog.pg_advisory_xact_lock({lock_id(schema)});"
    sql = f"BEGIN;\n{lock}\n{schema_sql(schema, rls, role)}\nCOMMIT;\n"
    if url is None:
        return sql
    options = read_options(url, {"schema": schema})
    try:
        with psycopg.connect(options.conninfo, autocommit=True, prepare_threshold=None) as connection:
            connection.execute(sql.encode())
    except psycopg.Error as error:
        translated = translate_connect_error(error, options.url, schema)
        if isinstance(translated, HoldfastError):
            raise translated from error
        raise TransientError(
            f"the schema could not be created: {translated}", where=options.url, hint="Nothing was done. Try again"
        ) from error
    return sql


async def ensure_schema(connection: PostgresConnection, options: PostgresOptions) -> SchemaState:
    """Create the schema if it does not exist, and check its version."""
    if not connection.server.set_up:
        await _create_schema(connection, options)
    name = quote_name(options.schema)
    sql = f"SELECT pg_catalog.max(version), pg_catalog.row_security_active($1::text) FROM {name}.version"  # noqa: S608 - a quoted name
    ((version, row_security),) = await connection.query(sql, [bind(f"{name}.lines")])
    if version is None or version > VERSION:
        raise ConfigError(
            f"the schema {options.schema!r} was created by a newer Holdfast",
            where=options.url,
            hint=f"Its layout is {version}, and this Holdfast knows {VERSION}: install a newer one",
        )
    return SchemaState(connection.server.durable, row_security)


_EXISTS = "SELECT pg_catalog.to_regclass($1::text) IS NOT NULL"


async def _create_schema(connection: PostgresConnection, options: PostgresOptions) -> None:
    try:
        # Under a lock: of several processes that open the store at once, one creates the tables.
        await connection.run("BEGIN")
        await connection.query("SELECT pg_catalog.pg_advisory_xact_lock($1)", [bind(lock_id(options.schema))])
        ((exists,),) = await connection.query(_EXISTS, [bind(newest_table(options.schema))])
        if not exists:
            await connection.run(schema_sql(options.schema))
        await connection.run("COMMIT")
    except psycopg.errors.InsufficientPrivilege as error:
        raise ConfigError(
            f"the schema {options.schema!r} does not exist, and this user may not create it: "
            f"{error.diag.message_primary}",
            where=options.url,
            hint=f"Have its owner run holdfast.backends.postgres.setup(url, schema={options.schema!r}, role=...) once, "
            "or the SQL that setup_sql(...) returns",
        ) from error
