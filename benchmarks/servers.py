"""The servers that are measured, started when first asked for: with their defaults, and flushing what they acknowledge.

They are those of the tests. Where one cannot be had on this machine, `Missing` says why.
"""

from __future__ import annotations

import functools
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import apsw
import obstore
import psycopg
import pymongo
from redis import Redis

from benchmarks.proxy import Proxy
from tests.servers.mongod import MongoServer
from tests.servers.postgresql import PostgresServer
from tests.servers.processes import HOST, Missing
from tests.servers.s3 import SeaweedServer, object_store
from tests.servers.valkey import RedisServer

__all__ = [
    "LOCAL",
    "STORES",
    "Missing",
    "Place",
    "mongodb",
    "mongodb_cpu",
    "postgres",
    "postgres_cpu",
    "redis",
    "server_of",
]


class _Postgres(PostgresServer):
    """With as many buffers as a server that nobody set up has; the tests make do with fewer."""

    def command(self) -> list[str | Path]:
        return [*super().command(), "-c", "shared_buffers=128MB"]


@functools.cache
def postgres() -> PostgresServer:
    """PostgreSQL, which flushes its log at each commit."""
    server = _Postgres().start()
    with psycopg.connect(server.url) as connection:
        for setting in ("fsync", "synchronous_commit", "full_page_writes"):
            found = connection.execute("SELECT current_setting(%s)", (setting,)).fetchone()
            assert found == ("on",), f"{setting} is off, and nothing measured there would count"
    return server


def postgres_cpu() -> float | None:
    """Milliseconds of CPU that the server and its processes have used; None where no `/proc` says."""
    if not Path("/proc/self/stat").exists():
        return None
    main = (postgres().directory / "data" / "postmaster.pid").read_text().split()[0]
    ticks = 0
    for place in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = place.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it ended just now
        if place.parent.name == main:
            ticks += sum(map(int, fields[11:15]))  # with those of its processes that ended
        elif fields[1] == main:
            ticks += sum(map(int, fields[11:13]))
    return ticks * 1000 / os.sysconf("SC_CLK_TCK")


@functools.cache
def mongodb() -> MongoServer:
    """A replica set of one, whose default is to acknowledge what a majority has in its journal."""
    return MongoServer().start()


def mongodb_cpu() -> float:
    """Milliseconds of CPU that the server has used, as the server says."""
    with mongodb().client() as client:
        usage = client.admin.command("serverStatus")["extra_info"]
    return float(usage["user_time_us"] + usage["system_time_us"]) / 1000


@functools.cache
def redis() -> RedisServer:
    """Valkey, which flushes every write."""
    return RedisServer().start()


@functools.cache
def _s3() -> SeaweedServer:
    return SeaweedServer().start()


def server_of(kind: str) -> tuple[str, int]:
    """Where the server of a kind of store listens."""
    starting: dict[str, Callable[[], Any]] = {"postgresql": postgres, "mongodb": mongodb, "redis": redis, "s3": _s3}
    return HOST, starting[kind]().port


class Place(NamedTuple):
    """A place for a new store: how to open it, and how to ask the server, or the disk, what it holds."""

    url: str
    options: dict[str, Any]
    stored: Callable[[], int]
    """Bytes that the store has by now, as the server or the disk has it."""
    logged: Callable[[], int] | None = None
    """Bytes that the server has written to its log by now, where it says."""


@contextmanager
def _in_file(proxy: Proxy | None) -> Iterator[Place]:
    assert proxy is None
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as name:
        path = f"{name}/store.db"

        def stored() -> int:
            # With the same SQLite as the store: closing a file with another gives up this one's locks.
            connection = apsw.Connection(path, flags=apsw.SQLITE_OPEN_READONLY)
            try:
                pages, size = connection.pragma("page_count"), connection.pragma("page_size")
                assert isinstance(pages, int)
                assert isinstance(size, int)
                return pages * size
            finally:
                connection.close()

        yield Place(f"sqlite:///{path}", {}, stored)


@contextmanager
def _in_files(proxy: Proxy | None) -> Iterator[Place]:
    assert proxy is None
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as name:

        def stored() -> int:
            return sum(each.stat().st_size for each in Path(name).rglob("*") if each.is_file())

        yield Place(f"file://{name}/store", {}, stored)


@contextmanager
def _in_postgres(proxy: Proxy | None) -> Iterator[Place]:
    direct = postgres().fresh()
    url = direct if proxy is None else direct.replace(f":{postgres().port}/", f":{proxy.port}/")
    yield Place(url, {}, lambda: relations(direct), lambda: log_position(direct))


@contextmanager
def _in_mongodb(proxy: Proxy | None) -> Iterator[Place]:
    direct = mongodb().fresh()
    url = direct
    if proxy is not None:
        # Without its name: the client would go to the address by which the replica set knows its member.
        url = direct.replace(f":{mongodb().port}/", f":{proxy.port}/").replace(
            "replicaSet=rs0", "directConnection=true"
        )
    yield Place(url, {}, lambda: documents(direct).data)


@contextmanager
def _in_redis(proxy: Proxy | None) -> Iterator[Place]:
    direct = redis().fresh()
    url = direct if proxy is None else direct.replace(f":{redis().port}/", f":{proxy.port}/")

    def stored() -> int:
        with Redis(HOST, redis().port) as client:
            found: Any = client.info("persistence")
            return int(found["aof_current_size"])

    yield Place(url, {}, stored)


@contextmanager
def _in_s3(proxy: Proxy | None) -> Iterator[Place]:
    url, options = _s3().fresh(), _s3().options
    bucket = url.split("/")[2]
    direct = object_store(bucket, options)

    def stored() -> int:
        return sum(each["size"] for found in obstore.list(direct) for each in found)

    if proxy is not None:
        options = {**options, "endpoint": f"http://{HOST}:{proxy.port}"}
    yield Place(url, options, stored)


LOCAL = ("sqlite", "file")
"""Kinds of stores without a server."""

STORES = {
    "sqlite": _in_file,
    "file": _in_files,
    "postgresql": _in_postgres,
    "mongodb": _in_mongodb,
    "redis": _in_redis,
    "s3": _in_s3,
}
"""Each gives a new place, which may be used through a proxy if it is on a server."""


def relations(url: str) -> int:
    """Bytes of all tables of a database, with their indexes and what lies outside their rows, after a vacuum."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("VACUUM")
        connection.execute("CHECKPOINT")
        found = connection.execute(
            "SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint FROM pg_class c "
            "JOIN pg_namespace n ON n.oid = c.relnamespace "
            "WHERE c.relkind IN ('r', 'm') AND n.nspname NOT IN ('pg_catalog', 'information_schema')"
        ).fetchone()
        assert found is not None
        return int(found[0])


def log_position(url: str) -> int:
    """How many bytes of log PostgreSQL has written."""
    with psycopg.connect(url, autocommit=True) as connection:
        found = connection.execute("SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint").fetchone()
        assert found is not None
        return int(found[0])


class Documents(NamedTuple):
    """Bytes of a database of MongoDB."""

    data: int
    """As the documents are."""
    disk: int
    """Compressed, with the indexes."""


def documents(url: str) -> Documents:
    """The size of a database of MongoDB."""
    with pymongo.MongoClient[dict[str, Any]](url) as client:
        client.admin.command("fsync")
        found = client.get_default_database().command("dbStats")
        return Documents(int(found["dataSize"]), int(found["storageSize"] + found["indexSize"]))
