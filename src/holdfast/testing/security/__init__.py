"""The security kit: hostile input, and permission probes, that run against any store and a program's own setup.

`SecuritySuite` has all of it as tests for pytest. Each part is a function, too, that raises `AssertionError` if an
attack succeeds. Use them on stores that are for tests: they write to them.
"""

from __future__ import annotations

from holdfast.testing.security.archives import (
    altered_bytes,
    check_backups,
    check_exports,
    check_snapshots,
    forged_exports,
)
from holdfast.testing.security.filters import (
    HOSTILE_FILTERS,
    HOSTILE_QUERIES,
    check_filters,
    check_queries,
)
from holdfast.testing.security.isolation import check_isolation
from holdfast.testing.security.names import HOSTILE_KEYS, HOSTILE_NAMES
from holdfast.testing.security.payloads import (
    Canary,
    forged_values,
    hostile_bodies,
    hostile_values,
)
from holdfast.testing.security.sealed_rows import check_sealed_rows
from holdfast.testing.security.stored_rows import check_forged_values, check_stored_rows, check_values
from holdfast.testing.security.suite import SecuritySuite, check_keys

__all__ = [
    "HOSTILE_FILTERS",
    "HOSTILE_KEYS",
    "HOSTILE_NAMES",
    "HOSTILE_QUERIES",
    "Canary",
    "SecuritySuite",
    "altered_bytes",
    "check_backups",
    "check_exports",
    "check_filters",
    "check_forged_values",
    "check_isolation",
    "check_keys",
    "check_queries",
    "check_sealed_rows",
    "check_snapshots",
    "check_stored_rows",
    "check_values",
    "forged_exports",
    "forged_values",
    "hostile_bodies",
    "hostile_values",
]
