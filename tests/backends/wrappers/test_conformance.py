"""Every composition passes the suite for backends, over stores that pass it: by day a part, by night all of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.backends.conformance.suite import SyncConformance, WrapperConformance
from holdfast.backends.urls import compose
from holdfast.testing import Stores
from tests.backends.wrappers.pairs import Restless, sqlite


class TestCache(WrapperConformance):
    lacks = frozenset({"fresh"})

    @pytest.fixture
    def stores(self, tmp_path: Path) -> Stores:
        return Stores(compose("cache", store=sqlite(tmp_path)))


@pytest.mark.nightly
class TestCacheInFull(SyncConformance):
    lacks = TestCache.lacks
    stores = TestCache.stores


@pytest.mark.nightly
@pytest.mark.no_cover  # the parts are measured where they are tested by themselves
class TestNested(WrapperConformance):
    lacks = frozenset({"fresh"})

    @pytest.fixture
    def stores(self, tmp_path: Path) -> Stores:
        inner = compose("retry", store=sqlite(tmp_path), attempts=3)
        return Stores(compose("retry", store=compose("cache", store=inner, max_age="0.5")))


@pytest.mark.nightly
@pytest.mark.no_cover
class TestNestedInFull(SyncConformance):
    lacks = TestNested.lacks
    stores = TestNested.stores


@pytest.mark.nightly  # by day, a mirror is the same pair that waits for the copy; test_behind has what differs
class TestBehind(WrapperConformance):
    @pytest.fixture
    def stores(self, tmp_path: Path) -> Stores:
        return Stores(compose("write-behind", local=sqlite(tmp_path), remote=sqlite(tmp_path, "copy")))


@pytest.mark.nightly
class TestBehindInFull(SyncConformance):
    stores = TestBehind.stores


class TestMirror(WrapperConformance):
    @pytest.fixture
    def stores(self, tmp_path: Path) -> Stores:
        return Stores(compose("mirror", local=sqlite(tmp_path), remote=sqlite(tmp_path, "copy"), patience=30))


@pytest.mark.nightly
class TestMirrorInFull(SyncConformance):
    stores = TestMirror.stores


class TestTiers(WrapperConformance):
    @pytest.fixture
    def stores(self, tmp_path: Path) -> Stores:
        url = compose("tiered", hot=sqlite(tmp_path), cold=sqlite(tmp_path, "cold"), after=0, keep=0)
        return Stores(url, kind=Restless)


@pytest.mark.nightly
class TestTiersInFull(SyncConformance):
    stores = TestTiers.stores


@pytest.mark.nightly
@pytest.mark.no_cover  # the parts are measured where they are tested by themselves
class TestTiersInMemory(WrapperConformance):
    lacks = frozenset({"durable", "shared", "times"})

    @pytest.fixture
    def stores(self) -> Stores:
        url = compose("tiered", hot="memory://", cold="memory://", after=0, keep=0, bring_back=False)
        return Stores(url, kind=Restless)


@pytest.mark.nightly
@pytest.mark.no_cover
class TestTiersInMemoryInFull(SyncConformance):
    lacks = TestTiersInMemory.lacks
    stores = TestTiersInMemory.stores
