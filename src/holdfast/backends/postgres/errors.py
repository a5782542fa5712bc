"""Translates the errors of PostgreSQL."""

from __future__ import annotations

import re

import psycopg

from holdfast.backends.async_backend import ServerInterrupted, ServerUnreachable
from holdfast.backends.connection_errors import certificate_error, login_error
from holdfast.backends.postgres.apply_function import BAD_VALUE, OVERTAKEN_STATE, TOO_LARGE
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

PREPARED_STATES = ("26000", "42P05")
"""A prepared statement does not exist, or exists already: there is a pooler before the server."""

READ_ONLY_STATE = "25006"
"""The server takes no changes: it became a standby."""

_RETRYABLE = ("40001", "40P01", "55P03", "53300", "57014", READ_ONLY_STATE, *PREPARED_STATES)
"""Nothing was done, and it may work in a moment: a conflict with others, or too many connections."""

_DISCONNECTED = ("08", "57P")
"""The connection broke, or the server is shutting down: what was sent may have been done."""

# libpq gives no code if it cannot connect. These are the messages of the server, of PgBouncer and of Supabase.
_LOGIN = re.compile(
    r"FATAL.*(authentication|password|pg_hba|role \"|no such user|Tenant or user|permission denied)"
    "|no password supplied"
)
_NO_DATABASE = re.compile(r"FATAL.*(database \"|no such database)")
_TEMPORARY = re.compile("too many|starting up|shutting down|in recovery")
_TLS = re.compile("certificate|does not support SSL|SSL (is )?required|SSL error: (?!unexpected eof)")
_TLS_HINT = "Check sslmode and sslrootcert in the URL, and pg_hba.conf on the server"
_UNVERIFIED = "certificate verify failed"
"""libpq does not say why: its authority is not trusted, or it has expired."""
_AUTHORITY_HINT = "Name the authority of its certificate with sslrootcert; if that is right, renew the certificate"
_UNENCRYPTED = "no encryption"
_MISCONFIGURED = re.compile(r"definition of service|service file|invalid (port|sslmode|connection option)")
_WRONG_SCHEMA = ("3F000", "42P01", "42883", "42703", "42804")


def translate(error: psycopg.Error, where: str, schema: str, sent: bool = False) -> ServerInterrupted | HoldfastError:
    """Return the error to raise in place of the driver's. `sent`: it was a change, which may have arrived."""
    state = error.sqlstate
    message = _message(error)
    if state is None:
        if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
            return ServerInterrupted(message, sent=sent)
        return InvalidError(f"a value does not fit into its column: {message}", where=where)
    if state.startswith(_DISCONNECTED) or state == "40003":
        return ServerInterrupted(message, sent=sent)
    if state in _RETRYABLE:
        return ServerInterrupted(message)
    return _translate_final(state, message, where, schema)


def _translate_final(state: str, message: str, where: str, schema: str) -> HoldfastError:
    """Return the error for a state that a retry does not help with."""
    if state == OVERTAKEN_STATE:
        return OutcomeUnknownError(
            "a change arrived after this process had given up on it",
            where=where,
            hint="Check what was saved, and resume",
        )
    if state == "53100":
        return TransientError(
            f"the server's disk is full: {message}",
            where=where,
            hint="Nothing of this was stored, and nothing stored before is lost; free some space and try again",
        )
    if state.startswith("53") or state == "58030":
        return TransientError(
            f"the server lacks resources: {message}", where=where, hint="Nothing was done; check its log"
        )
    if state in ("XX001", "XX002"):
        return CorruptError(
            f"the database is damaged: {message}", where=where, hint="Restore it from a backup, or repair it"
        )
    if state == "42501":
        return denied_error(message, where, schema)
    if state.startswith("28"):
        return _login_error(message, where)
    if state == "3D000":
        return _no_database_error(message, where)
    if state in _WRONG_SCHEMA:
        return ConfigError(
            f"the schema {schema!r} is not what Holdfast created: {message}",
            where=where,
            hint=f"Set it up with holdfast.backends.postgres.setup(url, schema={schema!r})",
        )
    if state.startswith("54"):
        return TooLargeError(f"a value exceeds a size limit of PostgreSQL: {message}", where=where)
    if state.startswith("22"):
        return InvalidError(f"a value does not fit into its column: {message}", where=where)
    return UnavailableError(f"PostgreSQL failed: {message} ({state})", where=where, hint="Check the server's log")


def translate_connect_error(
    error: psycopg.Error, where: str, schema: str, connected: bool = False
) -> ServerInterrupted | HoldfastError:
    """Return the error to raise if a new connection failed. libpq gives no code then, only a message."""
    if error.sqlstate is not None:
        return translate(error, where, schema)
    message = _message(error)
    if _TEMPORARY.search(message):
        return ServerInterrupted(message)
    if _TLS.search(message):
        return certificate_error(message, where, _AUTHORITY_HINT if _UNVERIFIED in message else _TLS_HINT)
    if _LOGIN.search(message):
        return _login_error(message, where)
    if _NO_DATABASE.search(message):
        return _no_database_error(message, where)
    if _MISCONFIGURED.search(message) or isinstance(error, psycopg.ProgrammingError):
        return ConfigError(f"libpq cannot connect: {message}", where=where, hint="Check the URL and what it refers to")
    if isinstance(error, psycopg.OperationalError) and not connected and "FATAL" not in message:
        return ServerUnreachable(message)
    return translate(error, where, schema)


def rejection_error(outcome: int, where: str) -> HoldfastError:
    """Return the error for a batch that the database rejected."""
    if outcome == TOO_LARGE:
        return TooLargeError(
            "the names in a key are too long for an index of PostgreSQL, or a value is too large for it",
            where=where,
            hint="Keep the names of tenant, thread and step below about 2,500 bytes in total",
        )
    if outcome == BAD_VALUE:
        return InvalidError("a value does not fit into its column", where=where)
    return DeniedError(
        "the database does not allow this change", where=where, hint="Check its row-level security and grants"
    )


def bad_value_error(error: Exception, where: str) -> InvalidError:
    """Return the error for a value that cannot be sent."""
    return InvalidError(f"a value does not fit into its column: {error}", where=where)


def denied_error(message: str, where: str, schema: str) -> DeniedError:
    """Return the error for a missing privilege."""
    return DeniedError(
        f"the database does not allow this: {message}",
        where=where,
        hint=f"Its owner can grant it: holdfast.backends.postgres.setup(schema={schema!r}, role=...) shows how",
    )


def _login_error(message: str, where: str) -> ConfigError:
    hint = "Check user, password and database"
    if _UNENCRYPTED in message:
        hint += "; if the server accepts encrypted connections only, set sslmode=require or verify-full"
    return login_error(message, where, hint)


def _no_database_error(message: str, where: str) -> ConfigError:
    return ConfigError(f"there is no such database: {message}", where=where, hint="Create it, or correct its name")


def _message(error: psycopg.Error) -> str:
    """The message of the server or the driver, on one line."""
    return " ".join((error.diag.message_primary or str(error)).split()) or type(error).__name__
