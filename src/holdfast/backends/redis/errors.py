"""Translates the errors of Redis and of its client."""

from __future__ import annotations

import ssl

from redis import exceptions

from holdfast.backends.async_backend import ServerInterrupted, ServerUnreachable
from holdfast.errors import ConfigError, DeniedError, TransientError, UnavailableError

_TEMPORARY_REPLIES = ("BUSY", "MASTERDOWN", "NOREPLICAS", "UNBLOCKED", "NOTREADY", "FAILOVER", "REDIRECT")
"""The replies of a server that is temporarily unable to serve, besides those with a class of their own."""

_TEMPORARY_ERRORS = (
    exceptions.ReadOnlyError,
    exceptions.TryAgainError,
    exceptions.ClusterDownError,
    exceptions.AskError,  # and MOVED
    exceptions.BusyLoadingError,
)


def is_data_lost(error: exceptions.RedisError) -> bool:
    """Whether a script did not find the store."""
    return str(error).startswith("LOST ")


def data_lost_error(where: str) -> UnavailableError:
    """Return the error for a server that no longer has the store."""
    return UnavailableError(
        "the server lost the store's data: it was restarted without it, emptied, or replaced",
        where=where,
        hint="Restore a backup, or open the store again to start an empty one; and turn on appendonly",
    )


def translate_connect_error(error: Exception, where: str) -> Exception:
    """Return the error to raise if a new connection failed."""
    if isinstance(error, exceptions.AuthenticationError | exceptions.AuthorizationError):
        return ConfigError(f"the server refuses the password: {error}", where=where, hint="Check the URL")
    if isinstance(error.__context__, ssl.SSLCertVerificationError):
        return ConfigError(
            f"the server's certificate is refused: {error}", where=where, hint="Name its authority with ssl_ca_certs"
        )
    if isinstance(error, exceptions.ResponseError) and not isinstance(error, _TEMPORARY_ERRORS):
        return ConfigError(f"the server refuses the connection: {error}", where=where, hint="Check the URL")
    cause = error if isinstance(error, OSError) else error.__context__
    if isinstance(cause, OSError) and not isinstance(cause, TimeoutError):
        return ServerUnreachable(str(error))
    return ServerInterrupted(str(error) or "no answer came in time")


def translate_reply(error: exceptions.RedisError, where: str) -> Exception:
    """Return the error for an error reply. Nothing was changed, unless it is `UnavailableError`."""
    text = str(error)
    if is_data_lost(error):
        return data_lost_error(where)
    if isinstance(error, _TEMPORARY_ERRORS) or text.startswith(_TEMPORARY_REPLIES):
        return ServerInterrupted(text)
    if isinstance(error, exceptions.OutOfMemoryError) or "OOM " in text:
        return TransientError(
            f"the server has no memory left: {text}",
            where=where,
            hint="Raise maxmemory, or delete or prune threads: that is still possible",
        )
    if text.startswith("MISCONF"):
        return TransientError(
            f"the server cannot write to its disk: {text}", where=where, hint="Check its disk and log"
        )
    if isinstance(error, exceptions.NoPermissionError):
        return DeniedError(
            f"the user may not do this: {text}",
            where=where,
            hint="Allow it all commands on keys that start with the prefix in braces",
        )
    return UnavailableError(
        f"the server replied with an error: {text}", where=where, hint="Check the store; what was saved may be there"
    )
