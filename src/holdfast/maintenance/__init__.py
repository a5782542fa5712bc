"""Operations on a whole store: prune, verify, repair, archive, scheduled jobs, the doctor."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.engine.integrity.findings import Finding as Finding
    from holdfast.engine.integrity.findings import FindingCode as FindingCode
    from holdfast.engine.integrity.findings import Severity as Severity
    from holdfast.engine.integrity.findings import VerifyLevel as VerifyLevel
    from holdfast.engine.quotas import Quota as Quota
    from holdfast.engine.quotas import QuotaReport as QuotaReport
    from holdfast.engine.quotas import QuotaUsage as QuotaUsage
    from holdfast.engine.text_index.indexer import IndexReport as IndexReport
    from holdfast.maintenance.archive.export import ExportReport as ExportReport
    from holdfast.maintenance.archive.import_ import ArchiveEntry as ArchiveEntry
    from holdfast.maintenance.archive.import_ import ImportReport as ImportReport
    from holdfast.maintenance.archive.subject_export import SubjectExportReport as SubjectExportReport
    from holdfast.maintenance.backup.checker import BackupFinding as BackupFinding
    from holdfast.maintenance.backup.checker import RepositoryReport as RepositoryReport
    from holdfast.maintenance.backup.drill import DrillReport as DrillReport
    from holdfast.maintenance.backup.follower import FollowStatus as FollowStatus
    from holdfast.maintenance.backup.pruner import BackupPruneReport as BackupPruneReport
    from holdfast.maintenance.backup.pruner import BackupVerdict as BackupVerdict
    from holdfast.maintenance.backup.repository import OpenLock as OpenLock
    from holdfast.maintenance.backup.repository import UnreadableBackup as UnreadableBackup
    from holdfast.maintenance.backup.repository_key import RepositoryKeyInfo as RepositoryKeyInfo
    from holdfast.maintenance.backup.repository_repairer import BackupRepairReport as BackupRepairReport
    from holdfast.maintenance.backup.repository_repairer import LostData as LostData
    from holdfast.maintenance.backup.restore_report import CoveredSpan as CoveredSpan
    from holdfast.maintenance.backup.restore_report import RestoreAction as RestoreAction
    from holdfast.maintenance.backup.restore_report import RestoredLine as RestoredLine
    from holdfast.maintenance.backup.restore_report import RestoreReport as RestoreReport
    from holdfast.maintenance.doctor.result import CheckLevel as CheckLevel
    from holdfast.maintenance.doctor.result import CheckResult as CheckResult
    from holdfast.maintenance.erasure.eraser import ErasureReport as ErasureReport
    from holdfast.maintenance.erasure.redaction import RedactionReport as RedactionReport
    from holdfast.maintenance.explain.explanations import Explanation as Explanation
    from holdfast.maintenance.explain.explanations import explain as explain
    from holdfast.maintenance.explain.explanations import explanations as explanations
    from holdfast.maintenance.keys.records import KeyCheck as KeyCheck
    from holdfast.maintenance.keys.records import KeyInfo as KeyInfo
    from holdfast.maintenance.keys.reencryption import ReencryptReport as ReencryptReport
    from holdfast.maintenance.migration.bulk import MigrationReport as MigrationReport
    from holdfast.maintenance.migration.heads import UnfitState as UnfitState
    from holdfast.maintenance.migration.plan import MigrationPlan as MigrationPlan
    from holdfast.maintenance.migration.plan import MigrationSample as MigrationSample
    from holdfast.maintenance.migration.plan import SchemaStatus as SchemaStatus
    from holdfast.maintenance.orphans import OrphanReport as OrphanReport
    from holdfast.maintenance.orphans import OrphanRows as OrphanRows
    from holdfast.maintenance.pins import HoldInfo as HoldInfo
    from holdfast.maintenance.pins import PinInfo as PinInfo
    from holdfast.maintenance.pruner import PruneReport as PruneReport
    from holdfast.maintenance.pruner import ThreadPruneReport as ThreadPruneReport
    from holdfast.maintenance.repair.attempt import LostCheckpoint as LostCheckpoint
    from holdfast.maintenance.repair.attempt import ThreadRepairReport as ThreadRepairReport
    from holdfast.maintenance.repair.quarantine import QuarantinedRow as QuarantinedRow
    from holdfast.maintenance.repair.repairer import RepairReport as RepairReport
    from holdfast.maintenance.repair.store_files import FileRepairReport as FileRepairReport
    from holdfast.maintenance.repair.store_files import salvage_file as salvage_file
    from holdfast.maintenance.retention import Retention as Retention
    from holdfast.maintenance.retention import RetentionRules as RetentionRules
    from holdfast.maintenance.stale_lines import StaleLine as StaleLine
    from holdfast.maintenance.stale_lines import StaleReport as StaleReport
    from holdfast.maintenance.verify.heads import BranchHead as BranchHead
    from holdfast.maintenance.verify.heads import StoreHeads as StoreHeads
    from holdfast.maintenance.verify.heads import ThreadHead as ThreadHead
    from holdfast.maintenance.verify.verifier import VerifyReport as VerifyReport

_MODULES = {
    "holdfast.engine.integrity.findings": ("Finding", "FindingCode", "Severity", "VerifyLevel"),
    "holdfast.engine.quotas": ("Quota", "QuotaReport", "QuotaUsage"),
    "holdfast.engine.text_index.indexer": ("IndexReport",),
    "holdfast.maintenance.archive.export": ("ExportReport",),
    "holdfast.maintenance.archive.import_": ("ArchiveEntry", "ImportReport"),
    "holdfast.maintenance.backup.checker": ("BackupFinding", "RepositoryReport"),
    "holdfast.maintenance.backup.drill": ("DrillReport",),
    "holdfast.maintenance.backup.follower": ("FollowStatus",),
    "holdfast.maintenance.backup.pruner": ("BackupPruneReport", "BackupVerdict"),
    "holdfast.maintenance.backup.repository": ("OpenLock", "UnreadableBackup"),
    "holdfast.maintenance.backup.repository_key": ("RepositoryKeyInfo",),
    "holdfast.maintenance.backup.repository_repairer": ("BackupRepairReport", "LostData"),
    "holdfast.maintenance.backup.restore_report": ("CoveredSpan", "RestoreAction", "RestoredLine", "RestoreReport"),
    "holdfast.maintenance.doctor.result": ("CheckLevel", "CheckResult"),
    "holdfast.maintenance.erasure.eraser": ("ErasureReport",),
    "holdfast.maintenance.erasure.redaction": ("RedactionReport",),
    "holdfast.maintenance.archive.subject_export": ("SubjectExportReport",),
    "holdfast.maintenance.explain.explanations": ("Explanation", "explain", "explanations"),
    "holdfast.maintenance.keys.reencryption": ("ReencryptReport",),
    "holdfast.maintenance.keys.records": ("KeyCheck", "KeyInfo"),
    "holdfast.maintenance.migration.bulk": ("MigrationReport",),
    "holdfast.maintenance.migration.heads": ("UnfitState",),
    "holdfast.maintenance.migration.plan": ("MigrationPlan", "MigrationSample", "SchemaStatus"),
    "holdfast.maintenance.orphans": ("OrphanReport", "OrphanRows"),
    "holdfast.maintenance.pins": ("HoldInfo", "PinInfo"),
    "holdfast.maintenance.pruner": ("PruneReport", "ThreadPruneReport"),
    "holdfast.maintenance.repair.quarantine": ("QuarantinedRow",),
    "holdfast.maintenance.repair.repairer": ("RepairReport",),
    "holdfast.maintenance.repair.attempt": ("LostCheckpoint", "ThreadRepairReport"),
    "holdfast.maintenance.repair.store_files": ("FileRepairReport", "salvage_file"),
    "holdfast.maintenance.retention": ("Retention", "RetentionRules"),
    "holdfast.maintenance.stale_lines": ("StaleLine", "StaleReport"),
    "holdfast.maintenance.verify.heads": ("BranchHead", "StoreHeads", "ThreadHead"),
    "holdfast.maintenance.verify.verifier": ("VerifyReport",),
}

if not TYPE_CHECKING:  # a type checker is to see the names above, and no others
    from holdfast._lazy import exports

    __all__, __getattr__, __dir__ = exports(__name__, _MODULES)
