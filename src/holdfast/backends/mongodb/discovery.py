"""Finds out whether a MongoDB server can be reached, and why not.

The driver itself would try to connect until its selection of a server times out, whatever the reason.
"""

from __future__ import annotations

import asyncio
import struct

from bson import encode
from pymongo import AsyncMongoClient
from pymongo.errors import ConfigurationError
from pymongo.server_description import ServerDescription

from holdfast.backends.async_backend import ServerUnreachable
from holdfast.backends.connection_errors import (
    answers_without_tls,
    certificate_error,
    error_chain,
    plain_server_error,
    tls_server_error,
    uses_tls,
    was_connected,
)
from holdfast.backends.mongodb.row_mapping import Document
from holdfast.errors import ConfigError

_POLL_SECONDS = 0.02

_TLS_HINT = "Check tls and tlsCAFile in the URL"
_HANDSHAKE = "SSL handshake failed: "
"""How the driver's message starts if a connection was made and not encrypted."""
_CERTIFICATE = "CERTIFICATE_VERIFY_FAILED"

_OP_MSG = 2013


async def wait_for_server(client: AsyncMongoClient[Document], seconds: float, where: str) -> None:
    """Wait until a server answers. Raises at once if none can be reached, or none is in the replica set of the URL."""
    await client.aconnect()
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while True:
        servers = list(client.topology_description.server_descriptions().values())
        if not servers:  # the driver drops those that are in another set, or in none
            name = client.topology_description.replica_set_name
            raise _wrong_set_error(f"no server at this address is in the replica set {name!r}", where)
        if any(server.is_server_type_known for server in servers):
            return
        failed = [server for server in servers if server.error]
        if len(failed) == len(servers):
            for server in failed:
                await _check_error(server, where)
            raise ServerUnreachable("; ".join(map(_reason, failed)))
        if loop.time() >= deadline:
            names = ", ".join(":".join(map(str, server.address)) for server in servers)
            raise ServerUnreachable(f"{names}: no answer came in {seconds:g} s")
        await asyncio.sleep(_POLL_SECONDS)


async def _check_error(server: ServerDescription, where: str) -> None:
    """Raise if waiting does not help."""
    host, port = server.address
    assert server.error is not None  # noqa: S101 - checked before
    for error in error_chain(server.error):
        if isinstance(error, ConfigurationError):
            raise _wrong_set_error(str(error), where) from error
    if _CERTIFICATE in _reason(server):
        raise certificate_error(_reason(server), where, "Name the authority of its certificate with tlsCAFile")
    if port is None or not was_connected(server.error):
        return
    if _reason(server).startswith(_HANDSHAKE):
        if await answers_without_tls(host, port, _hello()):
            raise plain_server_error(where, _TLS_HINT)
    elif await uses_tls(host, port):
        raise tls_server_error(where, "Add tls=true to the URL")


def _wrong_set_error(what: str, where: str) -> ConfigError:
    return ConfigError(what, where=where, hint="Correct replicaSet in the URL: rs.status().set in mongosh is its name")


def _reason(server: ServerDescription) -> str:
    return str(server.error).partition(" (configured timeouts")[0]


def _hello() -> bytes:
    """The command `hello`, as a message of MongoDB's protocol."""
    body = struct.pack("<ib", 0, 0) + encode({"hello": 1, "$db": "admin"})
    return struct.pack("<iiii", 16 + len(body), 1, 0, _OP_MSG) + body
