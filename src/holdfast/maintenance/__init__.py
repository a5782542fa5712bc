"""Operations on a whole store: prune, verify, repair, archive, scheduled jobs, the doctor."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.engine.integrity.findings import Finding as Finding
    from holdfast.maintenance.doctor.result import CheckResult as CheckResult
    from holdfast.maintenance.explain.explanations import explanations as explanations
    from holdfast.maintenance.orphans import OrphanReport as OrphanReport
    from holdfast.maintenance.pruner import PruneReport as PruneReport
    from holdfast.maintenance.pruner import ThreadPruneReport as ThreadPruneReport
    from holdfast.maintenance.repair.repairer import RepairReport as RepairReport
    from holdfast.maintenance.repair.store_files import salvage_file as salvage_file
    from holdfast.maintenance.retention import Retention as Retention
    from holdfast.maintenance.verify.heads import StoreHeads as StoreHeads
    from holdfast.maintenance.verify.verifier import VerifyReport as VerifyReport

_EXPORTS = {
    "CheckResult": "holdfast.maintenance.doctor.result",
    "Finding": "holdfast.engine.integrity.findings",
    "OrphanReport": "holdfast.maintenance.orphans",
    "PruneReport": "holdfast.maintenance.pruner",
    "RepairReport": "holdfast.maintenance.repair.repairer",
    "Retention": "holdfast.maintenance.retention",
    "StoreHeads": "holdfast.maintenance.verify.heads",
    "ThreadPruneReport": "holdfast.maintenance.pruner",
    "VerifyReport": "holdfast.maintenance.verify.verifier",
    "explanations": "holdfast.maintenance.explain.explanations",
    "salvage_file": "holdfast.maintenance.repair.store_files",
}

__all__ = [*_EXPORTS]  # noqa: PLE0604 - strings all of them

if not TYPE_CHECKING:  # a type checker is to see the names above, and no others
    from holdfast._lazy import exports

    __getattr__ = exports(__name__, _EXPORTS)


def __dir__() -> list[str]:
    return sorted(__all__)
