"""Rights of identities, and the audit outside of a store: `store.access`, `store.as_identity`, `store.audit`."""

from __future__ import annotations

from holdfast.security.access.policy import Policy
from holdfast.security.audit.export import check_audit

__all__ = ["Policy", "check_audit"]
