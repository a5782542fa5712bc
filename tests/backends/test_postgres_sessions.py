"""10,000 asyncio sessions on one server through a pool of 20: nothing fails, and nobody is left behind."""

from __future__ import annotations

import asyncio

import pytest

from benchmarks.sessions import run_sessions
from tests.backends.postgres_databases import emptied


@pytest.mark.nightly
@pytest.mark.time_limit(900)
def test_ten_thousand_sessions_share_a_small_pool() -> None:
    found = asyncio.run(run_sessions(emptied(), 10_000, 20, 3))
    assert found.failures == 0, found.problem
    assert found.behind <= 2, "who waits longest comes first"
    assert found.memory < 200, "kilobytes for each session"


def test_sessions_share_a_smaller_pool() -> None:
    found = asyncio.run(run_sessions(emptied(), 60, 3, 3))
    assert (found.failures, found.sessions * found.turns) == (0, 180)
    assert found.behind <= 2
