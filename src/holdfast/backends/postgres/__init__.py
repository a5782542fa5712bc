"""A store in a schema of a PostgreSQL database."""

from holdfast._lazy import missing_extra

try:
    from holdfast.backends.postgres.backend import PostgresBackend as PostgresBackend
    from holdfast.backends.postgres.setup import setup
except ImportError as error:
    raise missing_extra("postgres", error) from error

__all__ = ["setup"]
