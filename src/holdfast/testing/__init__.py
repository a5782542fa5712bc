"""Test tools for authors of backends: the conformance suite that every backend of Holdfast passes.

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

__all__ = ["BackendConformance", "Driven", "ShortConformance", "Stores", "SyncConformance"]
