"""Servers that the user names in the environment: a fresh place on them for each test, removed at the end."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Callable
from urllib.parse import urlsplit

import pymongo
import redis

from holdfast.backends.object_store.cloud import Bucket
from tests.servers.postgresql import create_database, drop_database

_leftovers: list[Callable[[], object]] = []


def url(kind: str) -> str | None:
    """The server to use, if one is named."""
    return os.environ.get(f"HOLDFAST_TEST_{kind}_URL") or None


def clean() -> None:
    """Remove what was made."""
    while _leftovers:
        _leftovers.pop()()


def database(server: str) -> str:
    """A new PostgreSQL database beside the one that a URL names."""
    name = _name()
    create_database(server, name)
    _leftovers.append(lambda: drop_database(server, name))
    return urlsplit(server)._replace(path=f"/{name}").geturl()


def mongo_database(server: str) -> str:
    """A MongoDB database that is not there yet."""
    name = _name()

    def drop() -> None:
        with pymongo.MongoClient[dict[str, object]](server) as client:
            client.drop_database(name)

    _leftovers.append(drop)
    return urlsplit(server)._replace(path=f"/{name}").geturl()


def prefix(server: str) -> str:
    """A place in Redis under a prefix of its own."""
    name = _name()

    def drop() -> None:
        with redis.Redis.from_url(server) as client:
            for key in client.scan_iter(f"*{name}*"):
                client.delete(key)

    _leftovers.append(drop)
    return f"{server}{'&' if '?' in server else '?'}prefix={name}"


def bucket(server: str) -> str:
    """A place under a bucket and prefix that a URL names; credentials come from the environment."""
    place = f"{server.rstrip('/')}/{_name()}"

    async def drop() -> None:
        storage, *_ = Bucket.at(place, {})
        await storage.delete([found.name for found in await storage.list_objects("")])

    _leftovers.append(lambda: asyncio.run(drop()))
    return place


def _name() -> str:
    return f"holdfast_test_{secrets.token_hex(6)}"
