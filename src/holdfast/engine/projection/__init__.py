"""Readable rows beside the log, for people and for queries in the database."""
