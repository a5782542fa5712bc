"""The store in memory keeps the promises of a backend."""

from __future__ import annotations

import pytest

from holdfast.testing import BackendConformance, Stores
from tests.support.nightly import by_day


class TestMemory(BackendConformance):
    watched = by_day(BackendConformance.watched, 20)
    lacks = frozenset({"durable", "shared", "times"})

    @pytest.fixture
    def stores(self) -> Stores:
        return Stores("memory://")
