"""PostgreSQL's errors as Holdfast's."""

from __future__ import annotations

import re

import psycopg

from holdfast.backends.async_backend import ServerInterrupted, ServerUnreachable
from holdfast.backends.postgres.apply_function import BAD_VALUE, OVERTAKEN, TOO_LARGE
from holdfast.errors import (
    ConfigError,
    CorruptError,
    DeniedError,
    HoldfastError,
    InvalidError,
    OutcomeUnknownError,
    TooLargeError,
    TransientError,
    UnavailableError,
)

PREPARED = ("26000", "42P05")
"""A prepared statement is not there, or there already: a pooler is between us and the server."""

READ_ONLY = "25006"
"""The server takes no changes: it became a standby."""

_TRY_AGAIN = ("40001", "40P01", "55P03", "53300", "57014", READ_ONLY, *PREPARED)
"""Nothing was done, and it may work in a moment: others were in the way, or too many are connected."""

_CUT_OFF = ("08", "57P")
"""The connection broke, or the server is shutting down: what was sent may have been done."""

# libpq gives no code where a connection could not be made. These are the server's words, PgBouncer's and Supabase's.
_LOGIN = re.compile(
    r"FATAL.*(authentication|password|pg_hba|role \"|database \"|no such (user|database)|Tenant or user"
    "|permission denied)"
)
_NOT_NOW = re.compile("too many|starting up|shutting down|in recovery")
_WRONG = re.compile(
    "definition of service|service file|certificate|does not support SSL|SSL required|no password supplied"
    r"|invalid (port|sslmode|connection option)"
)
_MISSING = ("3F000", "42P01", "42883", "42703", "42804")


def translate(error: psycopg.Error, where: str, schema: str, sent: bool = False) -> ServerInterrupted | HoldfastError:
    """The error to raise in place of the driver's. `sent` tells that it was a change, which may have arrived."""
    state = error.sqlstate
    said = _said(error)
    if state is None:
        if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
            return ServerInterrupted(said, sent=sent)
        return InvalidError(f"a value does not fit into its column: {said}", where=where)
    if state.startswith(_CUT_OFF) or state == "40003":
        return ServerInterrupted(said, sent=sent)
    if state in _TRY_AGAIN:
        return ServerInterrupted(said)
    return _final(state, said, where, schema)


def _final(state: str, said: str, where: str, schema: str) -> HoldfastError:
    """What trying again in a moment does not help with."""
    if state == OVERTAKEN:
        return OutcomeUnknownError(
            "a change came too late: this process had given it up", where=where, hint="See what was made, and go on"
        )
    if state == "53100":
        return TransientError(
            f"the server's disk is full: {said}",
            where=where,
            hint="Nothing of this was stored, and nothing stored before is lost; make room and try again",
        )
    if state.startswith("53") or state == "58030":
        return TransientError(
            f"the server lacks something: {said}", where=where, hint="Nothing was done; look at its log"
        )
    if state in ("XX001", "XX002"):
        return CorruptError(
            f"the database is damaged: {said}", where=where, hint="Restore it from a backup, or repair it"
        )
    if state == "42501":
        return denied(said, where, schema)
    if state.startswith("28") or state == "3D000":
        return ConfigError(
            f"the server does not let us in: {said}", where=where, hint="Check user, password and database"
        )
    if state in _MISSING:
        return ConfigError(
            f"the schema {schema!r} is not what Holdfast made: {said}",
            where=where,
            hint=f"Set it up with holdfast.backends.postgres.setup(url, schema={schema!r})",
        )
    if state.startswith("54"):
        return TooLargeError(f"something is larger than PostgreSQL takes: {said}", where=where)
    if state.startswith("22"):
        return InvalidError(f"a value does not fit into its column: {said}", where=where)
    return UnavailableError(f"PostgreSQL failed: {said} ({state})", where=where, hint="Look at the server's log")


def translate_connecting(
    error: psycopg.Error, where: str, schema: str, connected: bool = False
) -> ServerInterrupted | HoldfastError:
    """The error to raise where a connection could not be made. libpq gives no code then, only words."""
    if error.sqlstate is not None:
        return translate(error, where, schema)
    said = _said(error)
    if _LOGIN.search(said) and not _NOT_NOW.search(said):
        return ConfigError(
            f"the server does not let us in: {said}", where=where, hint="Check user, password and database"
        )
    if _WRONG.search(said) or isinstance(error, psycopg.ProgrammingError):
        return ConfigError(f"libpq cannot connect: {said}", where=where, hint="Check the URL and what it refers to")
    if not connected and isinstance(error, psycopg.OperationalError) and "FATAL" not in said:
        return ServerUnreachable(said)
    return translate(error, where, schema)


def refused(outcome: int, where: str) -> HoldfastError:
    """Why the database would not take a batch."""
    if outcome == TOO_LARGE:
        return TooLargeError(
            "the names in a key are together longer than PostgreSQL indexes, or a value is larger than it takes",
            where=where,
            hint="The names of tenant, thread and step may have about 2,500 bytes together",
        )
    if outcome == BAD_VALUE:
        return InvalidError("a value does not fit into its column", where=where)
    return DeniedError(
        "the database does not allow this change", where=where, hint="Its row-level security, or a grant"
    )


def bad_value(error: Exception, where: str) -> InvalidError:
    """The error for a value that cannot even be sent."""
    return InvalidError(f"a value does not fit into its column: {error}", where=where)


def denied(said: str, where: str, schema: str) -> DeniedError:
    """The error where a right is missing."""
    return DeniedError(
        f"the database does not allow this: {said}",
        where=where,
        hint=f"Its owner can grant it: holdfast.backends.postgres.setup_sql(schema={schema!r}, role=...) tells how",
    )


def _said(error: psycopg.Error) -> str:
    """What the server or the driver said, on one line."""
    return " ".join((error.diag.message_primary or str(error)).split()) or type(error).__name__
