"""Fixtures for tests of agents."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.agents.kills import Killer


@pytest.fixture(scope="module")
def killer() -> Iterator[Killer]:
    """Has scenes played by processes that are killed."""
    with Killer() as started:
        yield started
