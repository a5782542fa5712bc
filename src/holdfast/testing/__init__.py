"""Test tools: for authors of backends, the conformance suite that every backend of Holdfast passes; for authors of
schemas, `MigrationSuite` and what it is made of; for authors of key providers, `KeyProviderSuite`.

The extra `holdfast[testing]` brings what it needs: pytest and hypothesis.
"""

from __future__ import annotations

from holdfast.backends.conformance.suite import (
    BackendConformance,
    Driven,
    ShortConformance,
    Stores,
    SyncConformance,
)
from holdfast.testing.key_providers import KeyProviderSuite
from holdfast.testing.migrations import (
    MigrationEdge,
    MigrationSuite,
    check_golden,
    check_round_trip,
    check_round_trips,
    example_state,
    migration_edges,
    seconds_per_state,
    write_golden,
)
from holdfast.testing.schema_values import values_of

__all__ = [
    "BackendConformance",
    "Driven",
    "KeyProviderSuite",
    "MigrationEdge",
    "MigrationSuite",
    "ShortConformance",
    "Stores",
    "SyncConformance",
    "check_golden",
    "check_round_trip",
    "check_round_trips",
    "example_state",
    "migration_edges",
    "seconds_per_state",
    "values_of",
    "write_golden",
]
