"""A store in a schema of a PostgreSQL database."""

from holdfast._lazy import missing_extra

try:
    from holdfast.backends.postgres.backend import PostgresBackend
    from holdfast.backends.postgres.setup import setup, setup_sql
except ImportError as error:
    raise missing_extra("postgres", error) from error

__all__ = ["PostgresBackend", "setup", "setup_sql"]
