"""Fixtures for tests of state: a clock, and a store in memory that has it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from holdfast import Store
from holdfast.backends.memory import MemoryBackend
from tests.state.kit import Clock, store_on


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(clock: Clock) -> Iterator[Store]:
    with store_on(MemoryBackend(), clock) as opened:
        yield opened
