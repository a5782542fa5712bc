"""Errors of connections to servers: the same error for the same cause, on every store.

- Nobody answers at the address, or its name does not resolve: `ServerUnreachable`, which becomes `UnavailableError`,
  `unreachable`.
- The server refuses the user or the password, or there is none: `ConfigError`, `login-refused`.
- One side uses TLS and the other does not, or a certificate is refused: `ConfigError`, `tls-failed`.
- The URL cannot be right, or what it names is not on the server: `ConfigError`.

A server that was reached and cannot serve now (it starts, or there is no primary) is waited for.
"""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
from collections.abc import Iterator

from holdfast.errors import ConfigError

_ATTEMPT_SECONDS = 10.0
"""The longest time that an attempt waits for an answer."""

_PROBE_SECONDS = 1.0

_OUTDATED = re.compile("has expired|is not yet valid")
_OTHER_HOST = re.compile("[Hh]ostname mismatch|IP address mismatch|does not match host name|is for another host")


def attempt_seconds(timeout: float) -> float:
    """Return how long an attempt to connect, or a request, waits for an answer: so that there is time for another."""
    return min(_ATTEMPT_SECONDS, timeout / 2)


def login_error(why: str, where: str, hint: str = "Check user and password") -> ConfigError:
    """Return the error for a server that refuses the login."""
    return ConfigError(f"the login was refused: {why}", where=where, hint=hint, code="login-refused")


def tls_error(why: str, where: str, hint: str) -> ConfigError:
    """Return the error for a connection on whose encryption the two sides do not agree."""
    return ConfigError(f"no encrypted connection could be made: {why}", where=where, hint=hint, code="tls-failed")


def certificate_error(why: str, where: str, authority_hint: str) -> ConfigError:
    """Return the error for a certificate that was refused. `authority_hint`: what to do if its authority is the reason.

    OpenSSL and libpq say in words what is wrong.
    """
    if _OUTDATED.search(why):
        return tls_error(why, where, "Renew the certificate of the server, and check the clocks of both machines")
    if _OTHER_HOST.search(why):
        return tls_error(why, where, "Name the host as the certificate does, or issue a certificate for this name")
    return tls_error(why, where, authority_hint)


def certificate_file_error(error: Exception, where: str, options: str) -> ConfigError:
    """Return the error for a file of certificates, named by one of these options, that cannot be used."""
    what = f"a file of certificates cannot be used: {error}"
    return ConfigError(
        what, where=where, hint=f"Check {options}: a file in PEM format that this process may read", code="tls-failed"
    )


def plain_server_error(where: str, hint: str) -> ConfigError:
    """Return the error for a server that does not use TLS, while the URL says so."""
    return tls_error("the server does not use TLS", where, hint)


def tls_server_error(where: str, hint: str) -> ConfigError:
    """Return the error for a server that uses TLS, while the URL does not say so."""
    return ConfigError("the server accepts encrypted connections only", where=where, hint=hint, code="tls-failed")


def error_chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error, and those that it came from."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def was_connected(error: BaseException) -> bool:
    """Return whether an error came after the connection was made, as far as errors in its chain say."""
    return not any(isinstance(each, ConnectionRefusedError | socket.gaierror) for each in error_chain(error))


async def uses_tls(host: str, port: int) -> bool:
    """Return whether a server answers to TLS: to explain why it closes a connection without."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # nothing is sent over this connection
    try:
        async with asyncio.timeout(_PROBE_SECONDS):
            _, writer = await asyncio.open_connection(host, port, ssl=context, server_hostname=host)
    except ssl.SSLError as error:
        return "ALERT" in (error.reason or "")  # such as that it wants a certificate
    except (OSError, TimeoutError):
        return False
    writer.transport.abort()
    return True


async def answers_without_tls(host: str, port: int, request: bytes) -> bool:
    """Return whether a server answers to a request without TLS: to explain why no encrypted connection is made."""
    try:
        async with asyncio.timeout(_PROBE_SECONDS):
            reader, writer = await asyncio.open_connection(host, port)
            try:
                writer.write(request)
                return bool(await reader.read(1))
            finally:
                writer.transport.abort()
    except (OSError, TimeoutError):
        return False
