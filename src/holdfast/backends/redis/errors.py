"""Translates the errors of Redis and of its client."""

from __future__ import annotations

import ssl

from redis import exceptions

from holdfast.backends.async_backend import ServerInterrupted, ServerUnreachable
from holdfast.backends.connection_errors import certificate_error, login_error, plain_server_error
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

PLAIN_HINT = "Open redis:// in place of rediss://"
_NO_TLS = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG")
"""The reasons of the TLS library if something else than TLS was received."""


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
        return login_error(str(error), where)
    cause = error if isinstance(error, OSError) else error.__context__
    if isinstance(cause, ssl.SSLCertVerificationError):
        return certificate_error(str(cause), where, "Name the authority of its certificate with ssl_ca_certs")
    if isinstance(cause, ssl.SSLError) and cause.reason in _NO_TLS:
        return plain_server_error(where, PLAIN_HINT)
    if isinstance(error, _TEMPORARY_ERRORS):
        return ServerInterrupted(str(error))
    if isinstance(error, exceptions.ResponseError):
        return ConfigError(f"the server refuses the connection: {error}", where=where, hint="Check the URL")
    return ServerUnreachable(str(error) or "no answer came in time")


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
