"""Compositions of stores on a network pass the suite for all backends too. It takes long: there are servers to ask."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.backends.urls import compose
from holdfast.testing import BackendConformance, Stores
from tests import servers
from tests.backends.wrappers.pairs import Restless, sqlite

pytestmark = pytest.mark.nightly


class TestBehindPostgreSQL(BackendConformance):
    @pytest.fixture
    def stores(self, tmp_path: Path) -> Stores:
        return Stores(compose("write-behind", local=sqlite(tmp_path), remote=servers.postgres()))


class TestMirrorOnMongoDB(BackendConformance):
    @pytest.fixture
    def stores(self, tmp_path: Path) -> Stores:
        return Stores(compose("mirror", local=sqlite(tmp_path), remote=servers.mongodb(), patience=30))


class TestCacheBeforePostgreSQL(BackendConformance):
    @pytest.fixture
    def stores(self) -> Stores:
        return Stores(compose("cache", store=servers.postgres(), in_=servers.redis()))


class TestTiersOnRedisAndFiles(BackendConformance):
    @pytest.fixture
    def stores(self, tmp_path: Path) -> Stores:
        url = compose("tiered", hot=servers.redis(), cold=f"file://{tmp_path}/cold", after=0, keep=0)
        return Stores(url, kind=Restless)
