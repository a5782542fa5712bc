"""Making the schema: when a store is first opened, or beforehand by somebody who may."""

from __future__ import annotations

from typing import NamedTuple

import psycopg

from holdfast.backends.postgres.apply_function import lock
from holdfast.backends.postgres.binary_values import value
from holdfast.backends.postgres.connection import PostgresConnection
from holdfast.backends.postgres.errors import translate_connecting
from holdfast.backends.postgres.options import SCHEMA, PostgresOptions, settings
from holdfast.backends.postgres.schema import VERSION, newest, quoted, statements
from holdfast.errors import ConfigError, HoldfastError, TransientError


class SchemaState(NamedTuple):
    """What is known of a schema."""

    durable: bool
    guarded: bool
    """Whether row-level security is on for us."""


def setup(url: str, schema: str = SCHEMA, *, rls: bool = False, role: str = "") -> None:
    """Make the schema, if it is not there: for those who may make it to run once, before others open stores in it.

    With `rls`, turn on row-level security: a store then sees the rows of the tenant that it is opened for, and no
    others. With a `role`, grant it what a store needs. May be run again, and later, to turn these on.
    """
    said = settings(url, {"schema": schema})
    try:
        with psycopg.connect(said.conninfo, autocommit=True, prepare_threshold=None) as connection:
            connection.execute(setup_sql(schema, rls=rls, role=role).encode())
    except psycopg.Error as error:
        translated = translate_connecting(error, said.url, schema)
        if isinstance(translated, HoldfastError):
            raise translated from error
        raise TransientError(
            f"the schema could not be made: {translated}", where=said.url, hint="Nothing was done. Try again"
        ) from error


def setup_sql(schema: str = SCHEMA, *, rls: bool = False, role: str = "") -> str:
    """What `setup` does, as SQL for those who run it themselves."""
    return f"BEGIN;\nSELECT pg_advisory_xact_lock({lock(schema)});\n{statements(schema, rls, role)}\nCOMMIT;\n"


async def look_or_set_up(link: PostgresConnection, said: PostgresOptions) -> SchemaState:
    """See that the schema is there and of this version, and make it if it is not."""
    if not link.look.set_up:
        await _set_up(link, said)
    name = quoted(said.schema)
    sql = f"SELECT max(version), row_security_active($1::text) FROM {name}.version"  # noqa: S608 - a quoted name
    ((version, guarded),) = await link.ask(sql, [value(f"{name}.lines")])
    if version is None or version > VERSION:
        raise ConfigError(
            f"the schema {said.schema!r} was made by a newer Holdfast",
            where=said.url,
            hint=f"Its layout is {version}, and this Holdfast knows {VERSION}: install a newer one",
        )
    return SchemaState(link.look.durable, guarded)


_THERE = """
SELECT to_regclass($1::text) IS NOT NULL, (SELECT relrowsecurity FROM pg_class WHERE oid = to_regclass($2::text))
"""


async def _set_up(link: PostgresConnection, said: PostgresOptions) -> None:
    try:
        # One after another: of ten processes that come first, one makes the tables, and the others find them.
        await link.run("BEGIN")
        await link.ask("SELECT pg_advisory_xact_lock($1)", [value(lock(said.schema))])
        names = newest(said.schema), f"{quoted(said.schema)}.lines"
        ((there, guarded),) = await link.ask(_THERE, [value(name) for name in names])
        if not there:
            # Where the schema was made by an older Holdfast, this adds what is new, guarded as the rest is.
            await link.run(statements(said.schema, rls=bool(guarded)))
        await link.run("COMMIT")
    except psycopg.errors.InsufficientPrivilege as error:
        raise ConfigError(
            f"the schema {said.schema!r} is not there, or lacks tables that are new in this Holdfast, and this user "
            f"may not make them: {error.diag.message_primary}",
            where=said.url,
            hint=f"Have its owner run holdfast.backends.postgres.setup(url, schema={said.schema!r}, role=...) once, "
            "or the SQL that setup_sql(...) gives",
        ) from error
