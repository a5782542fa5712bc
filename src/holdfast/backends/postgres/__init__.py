"""A store in a schema of a PostgreSQL database."""

from holdfast.backends.postgres.backend import Postgres
from holdfast.backends.postgres.setup import setup, setup_sql

__all__ = ["Postgres", "setup", "setup_sql"]
