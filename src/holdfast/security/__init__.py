"""Who acts, what they may, and what they did: the one place every path to scoped state passes."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.security.access.identity import Identity as Identity
    from holdfast.security.access.policy import Policy as Policy
    from holdfast.security.audit.export import check_audit as check_audit
    from holdfast.security.audit.query import AuditRecord as AuditRecord
    from holdfast.security.audit.verify import AuditFinding as AuditFinding

_EXPORTS = {
    "AuditFinding": "holdfast.security.audit.verify",
    "AuditRecord": "holdfast.security.audit.query",
    "Identity": "holdfast.security.access.identity",
    "Policy": "holdfast.security.access.policy",
    "check_audit": "holdfast.security.audit.export",
}

__all__ = [*_EXPORTS]  # noqa: PLE0604 - strings all of them

if not TYPE_CHECKING:  # a type checker is to see the names above, and no others
    from holdfast._lazy import exports

    __getattr__ = exports(__name__, _EXPORTS)


def __dir__() -> list[str]:
    return sorted(__all__)
