"""Real servers for tests: started when first asked for, once for each test process, and stopped with it.

`postgres()`, `pgbouncer()`, `mongodb()`, `redis()`, `s3()`, `moto()`, `azure()` and `gcs()` give a fresh, empty place
on a server that the tests of a process share. `postgres_server()` and the like give a server of one's own, to kill,
pause and restart; use them in a `with`. A variable such as HOLDFAST_TEST_POSTGRES_URL names a server to use in place of
the shared one.

Where a server cannot be had, the test is skipped with the reason; where CI is set, it fails.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import pytest

from tests.servers import given, npm
from tests.servers.azurite import AzuriteServer
from tests.servers.gcs import GcsServer
from tests.servers.mongod import MongoReplicaSet, MongoServer
from tests.servers.pooler import PgBouncerServer
from tests.servers.postgresql import PostgresServer, PostgresStandby
from tests.servers.processes import Missing, stop_all
from tests.servers.s3 import MotoServer, SeaweedServer
from tests.servers.valkey import RedisServer

__all__ = [
    "MISSING",
    "AzuriteServer",
    "GcsServer",
    "MongoReplicaSet",
    "MongoServer",
    "MotoServer",
    "PgBouncerServer",
    "PostgresServer",
    "PostgresStandby",
    "RedisServer",
    "SeaweedServer",
    "azure",
    "azure_server",
    "gcs",
    "gcs_server",
    "javascript",
    "mongodb",
    "mongodb_replica_set",
    "mongodb_server",
    "moto",
    "moto_server",
    "pgbouncer",
    "pgbouncer_server",
    "postgres",
    "postgres_server",
    "postgres_standby",
    "redis",
    "redis_server",
    "s3",
    "s3_server",
    "stop",
]

S = TypeVar("S")

MISSING = "SERVER MISSING"
"""How the reason starts with which a test is skipped for want of a server."""


def postgres() -> str:
    """A fresh PostgreSQL database."""
    own = given.url("POSTGRES")
    return given.database(own) if own else _had("PostgreSQL", _postgres).fresh()


def pgbouncer() -> str:
    """A fresh PostgreSQL database, through a PgBouncer in transaction mode."""
    own = given.url("PGBOUNCER")
    return given.database(own) if own else _had("PgBouncer", _pgbouncer).fresh()


def mongodb() -> str:
    """A fresh MongoDB database, in a replica set of one node."""
    own = given.url("MONGODB")
    return given.mongo_database(own) if own else _had("MongoDB", _mongodb).fresh()


def redis() -> str:
    """A fresh place in a Valkey server that flushes each write."""
    own = given.url("REDIS")
    return given.prefix(own) if own else _had("Valkey", _redis).fresh()


def s3() -> tuple[str, dict[str, Any]]:
    """A fresh place in SeaweedFS, and the options to open it with."""
    own = given.url("S3")
    if own:
        return given.bucket(own), {}
    server = _had("SeaweedFS", _s3)
    return server.fresh(), server.options


def moto() -> tuple[str, dict[str, Any]]:
    """A fresh place in the emulator moto, and the options to open it with."""
    server = _had("moto", _moto)
    return server.fresh(), server.options


def azure() -> tuple[str, dict[str, Any]]:
    """A fresh place in Azurite, and the options to open it with."""
    own = given.url("AZURE")
    if own:
        return given.bucket(own), {}
    server = _had("Azurite", _azure)
    return server.fresh(), server.options


def gcs() -> tuple[str, dict[str, Any]]:
    """A fresh place in an emulation of Google Cloud Storage, and the options to open it with."""
    own = given.url("GCS")
    if own:
        return given.bucket(own), {}
    server = _had("Google Cloud Storage", _gcs)
    return server.fresh(), server.options


def postgres_server(identity: bytes | None = None) -> PostgresServer:
    """A PostgreSQL server of one's own; with a certificate and its key, one with TLS."""
    return _had("PostgreSQL", lambda: PostgresServer(identity).start())


def postgres_standby(primary: PostgresServer) -> PostgresStandby:
    """A streaming replica of a PostgreSQL server."""
    return _had("PostgreSQL", lambda: PostgresStandby(primary).start())


def pgbouncer_server(behind: PostgresServer | None = None) -> PgBouncerServer:
    """A PgBouncer of one's own; in front of the shared server, unless told otherwise."""
    return _had("PgBouncer", lambda: PgBouncerServer(behind or _postgres()).start())


def mongodb_server(identity: bytes | None = None) -> MongoServer:
    """A MongoDB server of one's own; with a certificate and its key, one with TLS."""
    return _had("MongoDB", lambda: MongoServer(identity).start())


def mongodb_replica_set() -> MongoReplicaSet:
    """A MongoDB replica set of one's own, of three nodes."""
    return _had("MongoDB", MongoReplicaSet)


def redis_server(identity: bytes | None = None, /, **settings: str) -> RedisServer:
    """A Valkey server of one's own, with other settings; with a certificate and its key, a Redis server with TLS."""
    return _had("Valkey", lambda: RedisServer(identity, **settings).start())


def s3_server(identity: bytes | None = None) -> SeaweedServer:
    """A SeaweedFS server of one's own; with a certificate and its key, one with TLS."""
    return _had("SeaweedFS", lambda: SeaweedServer(identity).start())


def moto_server() -> MotoServer:
    """A moto server of one's own."""
    return _had("moto", lambda: MotoServer().start())


def azure_server() -> AzuriteServer:
    """An Azurite of one's own."""
    return _had("Azurite", lambda: AzuriteServer().start())


def gcs_server() -> GcsServer:
    """An emulation of Google Cloud Storage of one's own."""
    return _had("Google Cloud Storage", lambda: GcsServer().start())


def stop() -> None:
    """Remove what was made on servers that were given, and stop all others."""
    given.clean()
    stop_all()
    for shared in (_postgres, _pgbouncer, _mongodb, _redis, _s3, _moto, _azure, _gcs):
        shared.cache_clear()


def javascript(*, installs: bool) -> Path:
    """Where LangGraph's packages for JavaScript are installed; by day only if they are already."""
    lock, folder = npm.ROOT / "requirements" / "langgraph-js", npm.ROOT / "build" / "langgraph-js"
    if installs:
        return _had("LangGraph's clients in JavaScript", lambda: npm.install(lock, folder))
    found = npm.place(lock, folder)
    if shutil.which("node") is None or not found.exists():
        pytest.skip(f"{MISSING}: LangGraph's clients in JavaScript: `make nightly` installs them, with Node")
    return found


def _had(name: str, start: Callable[[], S]) -> S:
    try:
        return start()
    except Missing as missing:
        reason = f"{MISSING}: {name}: {missing}"
    if os.environ.get("CI"):
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


@cache
def _postgres() -> PostgresServer:
    return PostgresServer().start()


@cache
def _pgbouncer() -> PgBouncerServer:
    return PgBouncerServer(_postgres()).start()


@cache
def _mongodb() -> MongoServer:
    return MongoServer().start()


@cache
def _redis() -> RedisServer:
    return RedisServer().start()


@cache
def _s3() -> SeaweedServer:
    return SeaweedServer().start()


@cache
def _moto() -> MotoServer:
    return MotoServer().start()


@cache
def _azure() -> AzuriteServer:
    return AzuriteServer().start()


@cache
def _gcs() -> GcsServer:
    return GcsServer().start()
