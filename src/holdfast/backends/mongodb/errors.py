"""Translates the errors of MongoDB and of its driver."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from bson.errors import InvalidDocument
from dns.exception import DNSException
from pymongo.errors import (
    BulkWriteError,
    ConfigurationError,
    ConnectionFailure,
    DocumentTooLarge,
    InvalidName,
    OperationFailure,
    PyMongoError,
)

from holdfast.backends.async_backend import ServerInterrupted, ServerUnreachable
from holdfast.backends.connection_errors import login_error
from holdfast.errors import ConfigError, DeniedError, InvalidError, TooLargeError, UnavailableError


class SessionsUnsupported(ServerInterrupted):
    """A connection to a member that was not yet in a replica set: it never supports sessions."""


DUPLICATE = 11000
WRITE_CONFLICT = 112
OVERFLOW = 388
"""The code of a transaction that does not fit into the server's cache."""

_TEMPORARY = frozenset(
    {
        6, 7, 24, 43, 46, 50, 64, 75, 79, 89, 91, 112, 117, 133, 134, 189, 202, 225, 237, 239, 244, 246, 251, 262, 267,
        290, 317, 365, 9001, 10058, 10107, 11600, 11601, 11602, 13388, 13435, 13436,
    }
)  # fmt: skip
"""Codes of temporary errors: elections, shutdowns, lost connections, locks, time limits, snapshots that are too old or
not ready, aborted transactions."""

_WRONG_LOGIN = frozenset({18, 8000})
_NOT_ALLOWED = frozenset({13})
TOO_LARGE = frozenset({10334, 17280, 17419, 17420})
TIME_IS_OVER = frozenset({50})


_APPENDED = re.compile(r", full error:|, Timeout:| \(configured timeouts")


def error_codes(error: PyMongoError) -> set[int]:
    """Return the server's error codes."""
    codes = {error.code} if isinstance(error, OperationFailure) else set()
    if isinstance(error, BulkWriteError):
        codes |= {each.get("code") for each in (error.details or {}).get("writeErrors", ())}
    return {code for code in codes if code is not None}


def translate(error: PyMongoError | InvalidDocument, where: str) -> Exception:
    """Return the error to raise for an error of the driver: `ServerInterrupted` if it is temporary."""
    if isinstance(error, DocumentTooLarge | InvalidDocument):
        return TooLargeError(f"MongoDB cannot store this: {error}", where=where, hint="Save less in one step")
    if "Sessions are not supported" in str(error):
        return SessionsUnsupported(_message(error))
    if isinstance(error.__context__, DNSException):  # of a mongodb+srv:// URL
        return ServerUnreachable(str(error))
    if isinstance(error, ConfigurationError | InvalidName):
        return ConfigError(f"the MongoDB URL is invalid: {error}", where=where, hint="Correct the URL")
    codes = error_codes(error)
    if codes & _WRONG_LOGIN:
        return login_error(_message(error), where, "Check user, password and authSource in the URL")
    if codes & _NOT_ALLOWED:
        return DeniedError(
            f"the database user lacks permission: {_message(error)}",
            where=where,
            hint="Give it the role readWrite on the database",
        )
    if codes & {OVERFLOW, *TOO_LARGE}:
        return TooLargeError(f"MongoDB cannot store this: {_message(error)}", where=where, hint="Save less in one step")
    temporary = isinstance(error, ConnectionFailure) or codes & _TEMPORARY
    if temporary or any(map(error.has_error_label, ("TransientTransactionError", "RetryableWriteError"))):
        return ServerInterrupted(_message(error))
    return UnavailableError(f"MongoDB refused: {_message(error)}", where=where, hint="Nothing was done")


@contextmanager
def translate_errors(where: str) -> Iterator[None]:
    """Translate errors of the driver that the block raises."""
    try:
        yield
    except (PyMongoError, InvalidDocument) as error:
        raise translate(error, where) from error
    except (UnicodeEncodeError, OverflowError) as error:
        raise InvalidError(f"MongoDB cannot search for this: {error}", where=where) from error


def _message(error: PyMongoError) -> str:
    """The message, without the settings and the reply of the server that the driver appends."""
    if isinstance(error, BulkWriteError):
        messages = [str(each.get("errmsg")) for each in (error.details or {}).get("writeErrors", ())]
        return "; ".join(messages) or str(error)
    return _APPENDED.split(str(error), maxsplit=1)[0]
