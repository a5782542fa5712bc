"""A store in one SQLite file, which any tool for SQLite can read."""

from holdfast.backends.sqlite.backend import SQLiteBackend

__all__ = ["SQLiteBackend"]
