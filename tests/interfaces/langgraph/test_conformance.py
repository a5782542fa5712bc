"""LangGraph's own suite for savers, all of it."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.conformance.initializer import RegisteredCheckpointer
from langgraph.checkpoint.conformance.report import CapabilityReport
from langgraph.checkpoint.conformance.validate import validate

from tests.interfaces.langgraph.savers import HOLDFAST, OTHERS, holdfast_saver
from tests.support.nightly import mostly_nightly

TESTS = {
    "put": 17,
    "put_writes": 10,
    "get_tuple": 10,
    "list": 16,
    "delete_thread": 5,
    "delete_for_runs": 7,
    "copy_thread": 8,
    "prune": 8,
}
"""How many tests the suite has of each kind, so that none goes missing."""


async def report_on(kind: str, folder: Path) -> CapabilityReport:
    numbers = itertools.count()

    async def fresh() -> AsyncGenerator[BaseCheckpointSaver[Any], None]:
        place = folder / str(next(numbers))
        place.mkdir()
        async with holdfast_saver(kind, place) as saver:
            yield saver

    return await validate(RegisteredCheckpointer(name=kind, factory=fresh))


@pytest.mark.parametrize("kind", mostly_nightly([*HOLDFAST, *OTHERS], daily=(*HOLDFAST, "postgres")))
def test_conformance(kind: str, tmp_path: Path) -> None:
    results = asyncio.run(report_on(kind, tmp_path)).results
    assert [failure for result in results.values() for failure in result.failures] == []
    assert [name for name, result in results.items() if not result.detected] == []
    assert {name: result.tests_passed for name, result in results.items()} == TESTS
    assert sum(result.tests_failed + result.tests_skipped for result in results.values()) == 0
