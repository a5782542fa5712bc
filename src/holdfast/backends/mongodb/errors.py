"""What MongoDB and its driver raise, as errors of this library."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from bson.errors import InvalidDocument
from pymongo.errors import (
    BulkWriteError,
    ConfigurationError,
    ConnectionFailure,
    DocumentTooLarge,
    InvalidName,
    OperationFailure,
    PyMongoError,
)

from holdfast.backends.async_backend import ServerInterrupted
from holdfast.errors import ConfigError, DeniedError, InvalidError, TooLargeError, UnavailableError


class Sessionless(ServerInterrupted):
    """A connection that has no sessions, and never will: it was made to a member that was in no replica set yet."""


DUPLICATE = 11000
WRITE_CONFLICT = 112
OVERFLOW = 388
"""A transaction does not fit into the server's cache."""

_PASSING = frozenset(
    {
        6, 7, 24, 43, 46, 50, 64, 75, 79, 89, 91, 112, 117, 133, 134, 189, 202, 225, 237, 239, 244, 246, 251, 262, 267,
        290, 317, 365, 9001, 10058, 10107, 11600, 11601, 11602, 13388, 13435, 13436,
    }
)  # fmt: skip
"""Codes of what may be otherwise when tried again: elections, shutdowns, lost connections, locks, time limits,
snapshots that are too old or not there yet, transactions that were given up."""

_WRONG_LOGIN = frozenset({18, 8000})
_NOT_ALLOWED = frozenset({13})
_TOO_LARGE = frozenset({OVERFLOW, 10334, 17280, 17419, 17420})


def codes_of(error: PyMongoError) -> set[int]:
    """The server's numbers for what is wrong."""
    codes = {error.code} if isinstance(error, OperationFailure) else set()
    if isinstance(error, BulkWriteError):
        codes |= {each.get("code") for each in (error.details or {}).get("writeErrors", ())}
    return {code for code in codes if code is not None}


def translated(error: PyMongoError | InvalidDocument, where: str) -> Exception:
    """What to raise for an error of the driver. `ServerInterrupted`, if it may pass."""
    if isinstance(error, DocumentTooLarge | InvalidDocument):
        return TooLargeError(f"MongoDB cannot hold this: {error}", where=where, hint="Save less in one step")
    if "Sessions are not supported" in str(error):
        return Sessionless(_said(error))
    if isinstance(error, ConfigurationError | InvalidName):
        return ConfigError(f"MongoDB cannot be used so: {error}", where=where, hint="Mend the URL")
    codes = codes_of(error)
    if codes & _WRONG_LOGIN:
        return ConfigError(
            f"MongoDB does not let this user in: {_said(error)}",
            where=where,
            hint="See that user, password and authSource in the URL are right",
        )
    if codes & _NOT_ALLOWED:
        return DeniedError(
            f"this user may not do that: {_said(error)}", where=where, hint="Give it the role readWrite on the database"
        )
    if codes & _TOO_LARGE:
        return TooLargeError(f"MongoDB cannot hold this: {_said(error)}", where=where, hint="Save less in one step")
    passing = isinstance(error, ConnectionFailure) or codes & _PASSING
    if passing or any(map(error.has_error_label, ("TransientTransactionError", "RetryableWriteError"))):
        return ServerInterrupted(_said(error))
    return UnavailableError(f"MongoDB refused: {_said(error)}", where=where, hint="Nothing was done")


@contextmanager
def errors_of(where: str) -> Iterator[None]:
    """Raise our errors in place of the driver's."""
    try:
        yield
    except (PyMongoError, InvalidDocument) as error:
        raise translated(error, where) from error
    except (UnicodeEncodeError, OverflowError) as error:
        raise InvalidError(f"MongoDB cannot look for this: {error}", where=where) from error


def _said(error: PyMongoError) -> str:
    """What the error says, without the whole answer of the server that the driver adds."""
    if isinstance(error, BulkWriteError):
        found = [str(each.get("errmsg")) for each in (error.details or {}).get("writeErrors", ())]
        return "; ".join(found) or str(error)
    return str(error).partition(", full error:")[0].partition(", Timeout:")[0]
