"""Fixtures for tests of upkeep: those of the engine, a clock, and a repository of backups."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engine.conftest import fresh, shared
from tests.maintenance.kit import Clock

__all__ = ["fresh", "shared"]


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    return tmp_path / "repository"
