"""The PostgreSQL backend: the suite for all backends, directly and through a pooler."""

from __future__ import annotations

import pytest

from holdfast.testing.conformance import Stores, SyncConformance
from tests.backends.postgres_databases import emptied, emptied_pooled


class TestConformance(SyncConformance):
    histories = 20

    @pytest.fixture
    def stores(self) -> Stores:
        return Stores(emptied())


@pytest.mark.no_cover  # the parts are measured where they are tested by themselves
class TestThroughPgBouncer(SyncConformance):
    histories = 20

    @pytest.fixture
    def stores(self) -> Stores:
        return Stores(emptied_pooled())
