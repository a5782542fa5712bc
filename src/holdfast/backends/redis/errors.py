"""What Redis and its client say, in the errors of Holdfast."""

from __future__ import annotations

import ssl

from redis import exceptions

from holdfast.backends.async_backend import ServerInterrupted, ServerUnreachable
from holdfast.errors import ConfigError, DeniedError, TransientError, UnavailableError

_PASSES = ("BUSY", "MASTERDOWN", "NOREPLICAS", "UNBLOCKED", "NOTREADY", "FAILOVER", "REDIRECT")
"""What a server answers that cannot serve for a while, besides those that have classes of their own."""

_PASSING = (
    exceptions.ReadOnlyError,
    exceptions.TryAgainError,
    exceptions.ClusterDownError,
    exceptions.AskError,  # and MOVED
    exceptions.BusyLoadingError,
)


def says_lost(error: exceptions.RedisError) -> bool:
    """A script did not find the store."""
    return str(error).startswith("LOST ")


def lost(where: str) -> UnavailableError:
    """The server does not have the store that was opened."""
    return UnavailableError(
        "the server lost the store's data: it was restarted without them, emptied, or replaced",
        where=where,
        hint="Restore a backup, or open the store anew to begin an empty one; and turn on appendonly",
    )


def connecting(error: Exception, where: str) -> Exception:
    """What is raised when a connection could not be made."""
    if isinstance(error, exceptions.AuthenticationError | exceptions.AuthorizationError):
        return ConfigError(f"the server refuses the password: {error}", where=where, hint="Look at the URL")
    if isinstance(error.__context__, ssl.SSLCertVerificationError):
        return ConfigError(
            f"the server's certificate is refused: {error}", where=where, hint="Name its authority with ssl_ca_certs"
        )
    if isinstance(error, exceptions.ResponseError) and not isinstance(error, _PASSING):
        return ConfigError(f"the server refuses the connection: {error}", where=where, hint="Look at the URL")
    if isinstance(error, OSError | exceptions.TimeoutError) or isinstance(error.__context__, OSError):
        return ServerUnreachable(str(error) or "no answer came in time")
    return ServerInterrupted(str(error))


def answered(error: exceptions.RedisError, where: str) -> Exception:
    """What is raised when the server answers with an error. Nothing was made, unless it is `UnavailableError`."""
    text = str(error)
    if says_lost(error):
        return lost(where)
    if isinstance(error, _PASSING) or text.startswith(_PASSES):
        return ServerInterrupted(text)
    if isinstance(error, exceptions.OutOfMemoryError) or "OOM " in text:
        return TransientError(
            f"the server has no memory left: {text}",
            where=where,
            hint="Raise maxmemory, or delete or prune threads: that is still possible",
        )
    if text.startswith("MISCONF"):
        return TransientError(
            f"the server cannot write to its disk: {text}", where=where, hint="Look at its disk and log"
        )
    if isinstance(error, exceptions.NoPermissionError):
        return DeniedError(
            f"the user may not do this: {text}",
            where=where,
            hint="Allow it all commands on keys that start with the prefix in braces",
        )
    return UnavailableError(
        f"the server answered with an error: {text}", where=where, hint="Check the store; what was saved may be there"
    )
