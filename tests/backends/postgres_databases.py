"""Databases for the tests of the PostgreSQL backend: made once for a test process, and emptied for each test."""

from __future__ import annotations

from functools import cache

import psycopg

from holdfast.backends.postgres import setup
from holdfast.backends.postgres.schema import quote_name, table_names
from tests import servers


def empty(direct: str, schema: str) -> None:
    """Remove all rows of a schema, and the room they took."""
    names = [f"{quote_name(schema)}.{name}" for name in table_names(clients=True)]
    sql = "".join(f"IF EXISTS (SELECT FROM {name}) THEN TRUNCATE {name}; END IF; " for name in names)
    with psycopg.connect(direct, autocommit=True, prepare_threshold=None) as connection:
        connection.execute(f"DO $$ BEGIN {sql}END $$".encode())


def emptied(schema: str = "holdfast") -> str:
    """The URL of a database whose schema is set up and empty."""
    url = _shared(schema)
    empty(url, schema)
    return url


def emptied_pooled() -> str:
    """The same, through PgBouncer."""
    url = _shared_pooled()
    empty(url, "holdfast")
    return url


@cache
def _shared(schema: str) -> str:
    url = servers.postgres()
    setup(url, schema)
    return url


@cache
def _shared_pooled() -> str:
    url = servers.pgbouncer()
    setup(url)
    return url
