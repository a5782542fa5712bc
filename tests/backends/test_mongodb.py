"""Stores in MongoDB keep the promises of a backend."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import pytest
from pymongo import MongoClient, WriteConcern

from holdfast.backends.conformance.suite import ShortConformance, SyncConformance
from holdfast.testing import Stores
from tests.servers import mongodb


class TestMongoDB(ShortConformance):
    histories = 5  # each takes half a second

    @pytest.fixture
    def stores(self, request: pytest.FixtureRequest) -> Iterator[Stores]:
        url = _database()
        yield Stores(url)
        if "killed" in request.node.name:
            _database.cache_clear()  # what died in a transaction keeps its rows locked for a while
        else:
            _empty(url)


@pytest.mark.nightly
class TestMongoDBInFull(SyncConformance):
    stores = TestMongoDB.stores


@cache
def _database() -> str:
    """A database for many tests: making one takes longer than a test."""
    return mongodb()


def _empty(url: str) -> None:
    with MongoClient[dict[str, object]](url) as client:
        database = client.get_default_database(write_concern=WriteConcern("majority"))
        for name in database.list_collection_names(filter={"type": "collection"}):  # writing to a view is refused
            if name not in ("holdfast", "system.views"):
                database[name].delete_many({})
