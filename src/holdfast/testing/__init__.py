"""Test suites for backends, migrations and security, to be run in your own project."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.backends.conformance.kit import Stores as Stores
    from holdfast.backends.conformance.suite import BackendConformance as BackendConformance
    from holdfast.testing.conversations import ConversationSuite as ConversationSuite
    from holdfast.testing.migrations import MigrationSuite as MigrationSuite
    from holdfast.testing.security.suite import SecuritySuite as SecuritySuite

_MODULES = {
    "holdfast.backends.conformance.kit": ("Stores",),
    "holdfast.backends.conformance.suite": ("BackendConformance",),
    "holdfast.testing.conversations": ("ConversationSuite",),
    "holdfast.testing.migrations": ("MigrationSuite",),
    "holdfast.testing.security.suite": ("SecuritySuite",),
}

if not TYPE_CHECKING:  # a type checker is to see the names above, and no others
    from holdfast._lazy import exports

    __all__, __getattr__, __dir__ = exports(__name__, _MODULES)
