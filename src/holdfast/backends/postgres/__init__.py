"""A store in a schema of a PostgreSQL database."""

from holdfast.backends.postgres.backend import PostgresBackend
from holdfast.backends.postgres.setup import setup, setup_sql

__all__ = ["PostgresBackend", "setup", "setup_sql"]
