"""A server that can be killed, a proxy in front of it that can cut, and a store that is used through both."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import holdfast
from tests import servers
from tests.servers.object_server import ObjectServer
from tests.servers.places import EMULATED, with_options
from tests.servers.processes import Server
from tests.servers.proxy import Proxy


class Rig:
    """One kind of store with all that can go wrong on the way to it."""

    def __init__(self, kind: str, server: Server, proxy: Proxy, front: Server) -> None:
        self.kind = kind
        self.server = server
        """What keeps the data."""
        self.front = front
        """What clients talk to: the server, or a pooler."""
        self.proxy = proxy
        if kind == "mongodb":
            proxy.uncounted = (b"hello", b"endSessions")

    def fresh(self) -> str:
        """The URL of a fresh place, through the proxy."""
        assert isinstance(
            self.front,
            (servers.PostgresServer, servers.PgBouncerServer, servers.MongoServer, servers.RedisServer, ObjectServer),
        )
        url = self.front.fresh()
        if isinstance(self.front, ObjectServer):
            endpoint = self.front.options["endpoint"].replace(f":{self.front.port}", f":{self.proxy.port}")
            return with_options(url, {**self.front.options, "endpoint": endpoint})
        # A client that knows of the replica set would go to its members, past the proxy.
        return url.replace(f":{self.front.port}/", f":{self.proxy.port}/").replace(
            "replicaSet=rs0", "directConnection=true"
        )

    def kill(self) -> None:
        """Kill the server in the middle of what it does.

        Azurite may save first, since it would lose what it acknowledged; until it is dead, no answer gets through.
        """
        if not isinstance(self.server, servers.AzuriteServer):
            self.server.kill()
            return
        self.proxy.stall()
        self.server.save()
        self.server.kill()
        self.proxy.cut()
        self.proxy.flow()

    def commits(self, store: holdfast.Store) -> list[bytes]:
        """What is in each message with which a client asks for a commit, and in no other."""
        return commit_markers(self.kind, store)


def commit_markers(kind: str, store: holdfast.Store) -> list[bytes]:
    """What is in each message with which a store asks for a commit, and in no other."""
    if kind in ("s3", *EMULATED):
        return [b"PUT /"]
    client: str = vars(store._engine.context.stored)["_client_id"]
    return [client.encode(), *([b"commitTransaction"] if kind == "mongodb" else [])]


@contextmanager
def rig(kind: str) -> Iterator[Rig]:
    """Everything for one kind of store, on servers of its own."""
    with ExitStack() as stack:
        server: Server
        match kind:
            case "postgres" | "pgbouncer":
                server = servers.postgres_server()
            case "mongodb":
                server = servers.mongodb_server()
            case "redis":
                server = servers.redis_server()
            case "azure":
                server = servers.azure_server()
            case "gcs":
                server = servers.gcs_server()
            case _:
                server = servers.s3_server()
        front = stack.enter_context(server)
        if kind == "pgbouncer":
            assert isinstance(server, servers.PostgresServer)
            front = stack.enter_context(servers.pgbouncer_server(server))
        yield Rig(kind, server, stack.enter_context(Proxy(front.port)), front)
