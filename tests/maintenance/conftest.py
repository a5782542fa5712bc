"""Fixtures for tests of upkeep: those of the engine."""

from tests.engine.conftest import fresh

__all__ = ["fresh"]
