"""The tests that `tools/matrix.py` runs on every store and composition, beside those of servers' faults."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings
from msgspec.structs import asdict

import holdfast
from holdfast.backends.conformance.suite import SyncConformance
from holdfast.backends.runtime.drivers import run
from holdfast.testing import Stores
from tests.engine.test_engine_kills import rounds
from tests.interfaces.langgraph.test_conformance import TESTS, report_on
from tests.servers.places import COMPOSED, EMULATED, KINDS, REMOTE, place
from tests.servers.rigs import rig

# Random histories on every store take long; each store's own tests follow more of them.
settings.register_profile("matrix", settings(deadline=None, derandomize=True, max_examples=25))
settings.load_profile("matrix")

ALL = pytest.mark.parametrize("which", [*KINDS, *EMULATED, *COMPOSED])

STEPS = 5
TIMES = 6


@ALL
class TestConformance(SyncConformance):
    """The suite for backends. That both drivers work is no matter of the store."""

    @pytest.fixture
    def stores(self, which: str, tmp_path: Path) -> Stores:
        return Stores(place(which, tmp_path))


@ALL
def test_capabilities(which: str, tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    backend = run(Stores(place(which, tmp_path)).open())
    record_property("capabilities", json.dumps(asdict(backend.capabilities)))
    run(backend.close())


@ALL
def test_langgraph(which: str, tmp_path: Path) -> None:
    results = asyncio.run(report_on(which, tmp_path)).results
    assert {name: result.tests_passed for name, result in results.items()} == TESTS


@ALL
def test_clients_are_killed(which: str, tmp_path: Path) -> None:
    if which == "memory":
        pytest.skip("keeps nothing")
    rounds(place(which, tmp_path), 2, 5)


@pytest.mark.parametrize("which", [*REMOTE, *EMULATED])
def test_round_trips(which: str, record_property: Callable[[str, object], None]) -> None:
    """How often a client has to wait for the server to save a small step of a thread that it knows."""
    with rig(which) as place, holdfast.open(place.fresh()) as store:
        store.thread("t").put({"messages": ["0"]})
        store.thread("t").put({"messages": ["0", "1"]})
        fewest = 10**6
        for start in range(0, TIMES * STEPS, STEPS):  # now and then something else is to be done, too
            before = place.proxy.round_trips
            for number in range(start, start + STEPS):
                store.thread("t").put({"messages": [str(n) for n in range(number)]})
            fewest = min(fewest, place.proxy.round_trips - before)
        record_property("round trips", round(fewest / STEPS, 1))
