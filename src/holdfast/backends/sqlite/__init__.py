"""A store in one SQLite file, which any tool for SQLite can read."""

from holdfast.backends.sqlite.backend import SQLite

__all__ = ["SQLite"]
