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
    import hypothesis  # noqa: F401 - to say early that it is missing
    import pytest
except ImportError as error:
    raise ConfigError(
        f"the conformance suite needs {error.name}", where=__name__, hint="Install holdfast[testing]"
    ) from error

_PARTS = ("histories", "lifetime", "processes", "races", "reads", "short", "values", "words", "writes")

# Before they are imported: so that a failing assertion shows its values, as in any test file.
pytest.register_assert_rewrite(*(f"{__package__}.{part}" for part in _PARTS))

from holdfast.backends.conformance.histories import Histories  # noqa: E402
from holdfast.backends.conformance.kit import Driven, Stores  # noqa: E402
from holdfast.backends.conformance.lifetime import Lifetime  # noqa: E402
from holdfast.backends.conformance.processes import Processes  # noqa: E402
from holdfast.backends.conformance.races import Races  # noqa: E402
from holdfast.backends.conformance.reads import Reads  # noqa: E402
from holdfast.backends.conformance.short import ShortConformance, SyncOnly  # noqa: E402
from holdfast.backends.conformance.values import Values  # noqa: E402
from holdfast.backends.conformance.words import WordsFound  # noqa: E402
from holdfast.backends.conformance.writes import Writes  # noqa: E402

__all__ = ["BackendConformance", "Driven", "ShortConformance", "Stores", "SyncConformance"]


class BackendConformance(Reads, Values, Writes, WordsFound, Races, Lifetime, Processes, Histories):
    """All tests, through both drivers. A subclass gives the fixture `stores`."""


class SyncConformance(SyncOnly, BackendConformance):
    """All tests, through the sync driver: for a backend whose way to wait is tested with both drivers elsewhere."""
