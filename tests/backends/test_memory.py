"""The store in memory keeps the promises of a backend."""

from __future__ import annotations

import pytest

from holdfast.testing import BackendConformance, Stores


class TestMemory(BackendConformance):
    lacks = frozenset({"durable", "shared", "times"})

    @pytest.fixture
    def stores(self) -> Stores:
        return Stores("memory://")
