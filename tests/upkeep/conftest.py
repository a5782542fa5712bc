"""Fixtures for tests of upkeep."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engine.lines import KINDS, Backends


@pytest.fixture(params=KINDS)
def fresh(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Backends]:
    """Opens as many backends as a test wants, and closes them in the end."""
    backends = Backends(request.param, tmp_path)
    yield backends
    backends.close()
