"""The suite that tells whether a backend keeps the promises of `holdfast.backends.interface`.

A backend's test file says where its stores are, and inherits the tests::

    class TestSQLite(BackendConformance):
        @pytest.fixture
        def stores(self, tmp_path: Path) -> Stores:
            return Stores(f"sqlite:///{tmp_path}/store.db")

`BackendConformance` runs everything, through the sync driver and through asyncio. `SyncConformance` runs everything
through the sync driver. `ShortConformance` runs the part that finds most faults in the least time.

Tests of what a backend does not claim (`Capabilities.durable`, `shared`, `fresh`, `words`) are skipped.
"""

from __future__ import annotations

from holdfast.errors import ConfigError

try:
    import hypothesis  # noqa: F401 - to report early that it is missing
    import pytest  # noqa: F401
except ImportError as error:
    raise ConfigError(
        f"the conformance suite needs {error.name}", where=__name__, hint="Install holdfast[testing]"
    ) from error

from holdfast.backends.conformance.histories import Histories
from holdfast.backends.conformance.kit import Driven, Stores
from holdfast.backends.conformance.lifetime import Lifetime
from holdfast.backends.conformance.processes import Processes
from holdfast.backends.conformance.races import Races
from holdfast.backends.conformance.reads import Reads
from holdfast.backends.conformance.short import ShortConformance, SyncOnly
from holdfast.backends.conformance.values import Values
from holdfast.backends.conformance.words import WordsFound
from holdfast.backends.conformance.writes import Writes

__all__ = ["BackendConformance", "Driven", "ShortConformance", "Stores", "SyncConformance"]


class BackendConformance(Reads, Values, Writes, WordsFound, Races, Lifetime, Processes, Histories):
    """All tests, through both drivers. A subclass gives the fixture `stores`."""


class SyncConformance(SyncOnly, BackendConformance):
    """All tests, through the sync driver: for a backend whose way to wait is tested with both drivers elsewhere."""
