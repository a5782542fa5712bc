"""Every composition passes the suite for all backends, over stores that are durable and shared."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.backends.wrap.urls import compose
from holdfast.engine.drivers import run
from holdfast.testing.conformance import Stores, SyncConformance
from holdfast.testing.conformance.histories import Histories
from holdfast.testing.conformance.kit import Drive
from holdfast.testing.conformance.lifetime import Lifetime
from holdfast.testing.conformance.writes import Writes
from tests.wrap.pairs import Restless, sqlite


class InShort(Histories, Writes, Lifetime):
    """What may differ where the parts of a composition pass the whole suite by themselves."""

    histories = 20

    @pytest.fixture
    def drive(self) -> Drive:
        return run


class TestCache(SyncConformance):
    histories = 20

    @pytest.fixture
    def stores(self, tmp_path: Path) -> Stores:
        return Stores(compose("cache", store=sqlite(tmp_path)))


@pytest.mark.no_cover  # the parts are measured where they are tested by themselves
class TestNested(InShort):
    @pytest.fixture
    def stores(self, tmp_path: Path) -> Stores:
        inner = compose("retry", store=sqlite(tmp_path), attempts=3)
        return Stores(compose("metrics", store=compose("cache", store=inner, max_age="0.5")))


@pytest.mark.torture
class TestNestedWhole(SyncConformance):
    stores = TestNested.stores


class TestBehind(SyncConformance):
    histories = 20

    @pytest.fixture
    def stores(self, tmp_path: Path) -> Stores:
        return Stores(compose("behind", local=sqlite(tmp_path), remote=sqlite(tmp_path, "copy")))


class TestMirror(SyncConformance):
    histories = 20

    @pytest.fixture
    def stores(self, tmp_path: Path) -> Stores:
        return Stores(compose("mirror", local=sqlite(tmp_path), remote=sqlite(tmp_path, "copy"), patience=30))


class TestTiers(SyncConformance):
    histories = 20

    @pytest.fixture
    def stores(self, tmp_path: Path) -> Stores:
        url = compose("tiers", hot=sqlite(tmp_path), cold=sqlite(tmp_path, "cold"), after=0, keep=0)
        return Stores(url, kind=Restless)


@pytest.mark.no_cover  # the parts are measured where they are tested by themselves
class TestTiersInMemory(InShort):
    @pytest.fixture
    def stores(self) -> Stores:
        url = compose("tiers", hot="memory://", cold="memory://", after=0, keep=0, bring_back=False)
        return Stores(url, kind=Restless)


@pytest.mark.torture
class TestTiersInMemoryWhole(SyncConformance):
    stores = TestTiersInMemory.stores
