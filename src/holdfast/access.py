"""Identities, their rights, and the audit: `store.access`, `store.as_identity` and `store.audit`."""

from __future__ import annotations

from holdfast.security import (
    AuditArchive,
    AuditCheck,
    AuditExport,
    AuditFinding,
    AuditRecord,
    AuditReport,
    Identity,
    Policy,
    Right,
    Rights,
    Rule,
    check_audit,
)
from holdfast.state import AsyncStoreAccess, Grant, StoreAccess, Token, Until, Who
from holdfast.store import AsyncAudit, AsyncIdentityView, Audit, IdentityView

__all__ = [
    "AsyncAudit",
    "AsyncIdentityView",
    "AsyncStoreAccess",
    "Audit",
    "AuditArchive",
    "AuditCheck",
    "AuditExport",
    "AuditFinding",
    "AuditRecord",
    "AuditReport",
    "Grant",
    "Identity",
    "IdentityView",
    "Policy",
    "Right",
    "Rights",
    "Rule",
    "StoreAccess",
    "Token",
    "Until",
    "Who",
    "check_audit",
]
