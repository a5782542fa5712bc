"""The PostgreSQL backend: the suite for all backends, directly and through a pooler."""

from __future__ import annotations

import pytest

from holdfast.backends.conformance.histories import Histories
from holdfast.backends.conformance.processes import Processes
from holdfast.backends.conformance.suite import SyncConformance, WrapperConformance
from holdfast.testing import BackendConformance, Stores
from tests.backends.daily_conformance import DailyConformance
from tests.backends.postgres_databases import emptied, emptied_pooled


class TestConformance(DailyConformance):
    @pytest.fixture
    def stores(self) -> Stores:
        return Stores(emptied())


@pytest.mark.nightly
@pytest.mark.no_cover
class TestConformanceInFull(BackendConformance):
    stores = TestConformance.stores


@pytest.mark.nightly
@pytest.mark.no_cover
class TestKilledOften(Processes):
    kills = 20
    stores = TestConformance.stores


@pytest.mark.nightly
@pytest.mark.no_cover
class TestManyHistories(Histories):
    stores = TestConformance.stores


@pytest.mark.nightly
@pytest.mark.no_cover  # the parts are measured where they are tested by themselves
class TestThroughPgBouncer(WrapperConformance):
    @pytest.fixture
    def stores(self) -> Stores:
        return Stores(emptied_pooled())


@pytest.mark.nightly
@pytest.mark.no_cover
class TestThroughPgBouncerInFull(SyncConformance):
    stores = TestThroughPgBouncer.stores
