"""The store as programs use it: opening one, threads and their checkpoints, identities.

All public names can be imported from here.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.backends.distribution import Distribution as Distribution
    from holdfast.backends.runtime.drivers import arun as arun
    from holdfast.backends.runtime.drivers import make_both as make_both
    from holdfast.backends.runtime.drivers import run as run
    from holdfast.backends.runtime.metric_families import FAMILIES as FAMILIES
    from holdfast.backends.runtime.metric_families import Family as Family
    from holdfast.backends.runtime.metrics import Sample as Sample
    from holdfast.engine.copy.copy_report import CopyProgress as CopyProgress
    from holdfast.engine.copy.copy_report import CopyReport as CopyReport
    from holdfast.engine.namespaces import LineKind as LineKind
    from holdfast.engine.namespaces import LineKinds as LineKinds
    from holdfast.engine.namespaces import line_kind as line_kind
    from holdfast.engine.namespaces import short_name as short_name
    from holdfast.engine.namespaces import split_name as split_name
    from holdfast.engine.namespaces import thread_name as thread_name
    from holdfast.engine.pages import Items as Items
    from holdfast.engine.pages import Page as Page
    from holdfast.engine.paths import Path as Path
    from holdfast.engine.projection.rendering import RenderedMessage as RenderedMessage
    from holdfast.engine.projection.rendering import is_hidden as is_hidden
    from holdfast.engine.projection.rendering import messages as messages
    from holdfast.engine.state_reader import ValueOutline as ValueOutline
    from holdfast.engine.trace_context import bound as bound
    from holdfast.engine.trace_context import correlation as correlation
    from holdfast.engine.types import BranchInfo as BranchInfo
    from holdfast.engine.types import Checkpoint as Checkpoint
    from holdfast.engine.types import PendingWrite as PendingWrite
    from holdfast.engine.types import Revision as Revision
    from holdfast.engine.types import StoreStats as StoreStats
    from holdfast.engine.types import ThreadInfo as ThreadInfo
    from holdfast.maintenance.monitoring.alerts import Alert as Alert
    from holdfast.maintenance.monitoring.rules import RULES as RULES
    from holdfast.maintenance.monitoring.snapshot import MetricsSnapshot as MetricsSnapshot
    from holdfast.store.alerts import Alerts as Alerts
    from holdfast.store.alerts import AlertsOperations as AlertsOperations
    from holdfast.store.alerts import AsyncAlerts as AsyncAlerts
    from holdfast.store.audit import AsyncAudit as AsyncAudit
    from holdfast.store.audit import Audit as Audit
    from holdfast.store.audit import AuditOperations as AuditOperations
    from holdfast.store.auto_checkpoint import AsyncAutoCheckpointer as AsyncAutoCheckpointer
    from holdfast.store.auto_checkpoint import AsyncCheckpointableMixin as AsyncCheckpointableMixin
    from holdfast.store.auto_checkpoint import AutoCheckpointer as AutoCheckpointer
    from holdfast.store.auto_checkpoint import CheckpointableMixin as CheckpointableMixin
    from holdfast.store.auto_checkpoint import EveryStep as EveryStep
    from holdfast.store.auto_checkpoint import Interval as Interval
    from holdfast.store.auto_checkpoint import OnChange as OnChange
    from holdfast.store.auto_checkpoint import OnEvent as OnEvent
    from holdfast.store.auto_checkpoint import PolicyContext as PolicyContext
    from holdfast.store.auto_checkpoint import SavePolicy as SavePolicy
    from holdfast.store.backup_records import BackupChange as BackupChange
    from holdfast.store.backup_records import BackupInfo as BackupInfo
    from holdfast.store.backup_records import BackupLine as BackupLine
    from holdfast.store.backups import AsyncBackups as AsyncBackups
    from holdfast.store.backups import BackupOperations as BackupOperations
    from holdfast.store.backups import Backups as Backups
    from holdfast.store.call_values import ARGUMENTS as ARGUMENTS
    from holdfast.store.call_values import CallCodec as CallCodec
    from holdfast.store.checkpoint_fields import CheckpointFields as CheckpointFields
    from holdfast.store.checkpoint_fields import OnConflict as OnConflict
    from holdfast.store.checkpoint_store import CheckpointStore as CheckpointStore
    from holdfast.store.checkpointer import AsyncCheckpointer as AsyncCheckpointer
    from holdfast.store.checkpointer import BaseCheckpointer as BaseCheckpointer
    from holdfast.store.checkpointer import Checkpointer as Checkpointer
    from holdfast.store.checkpointer import CheckpointTuple as CheckpointTuple
    from holdfast.store.doctor import doctor as doctor
    from holdfast.store.doctor import examine as examine
    from holdfast.store.erasure import AsyncErasure as AsyncErasure
    from holdfast.store.erasure import AsyncIdentityErasure as AsyncIdentityErasure
    from holdfast.store.erasure import Erasure as Erasure
    from holdfast.store.erasure import ErasureOperations as ErasureOperations
    from holdfast.store.erasure import IdentityErasure as IdentityErasure
    from holdfast.store.graph_schemas import GraphSchemas as GraphSchemas
    from holdfast.store.graph_schemas import RenamedTask as RenamedTask
    from holdfast.store.graph_schemas import TaskPlace as TaskPlace
    from holdfast.store.identity_view import AsyncIdentityView as AsyncIdentityView
    from holdfast.store.identity_view import IdentityOperations as IdentityOperations
    from holdfast.store.identity_view import IdentityView as IdentityView
    from holdfast.store.keys import AsyncKeys as AsyncKeys
    from holdfast.store.keys import Keys as Keys
    from holdfast.store.keys import KeysOperations as KeysOperations
    from holdfast.store.lazy_state import AsyncLazyState as AsyncLazyState
    from holdfast.store.lazy_state import LazyState as LazyState
    from holdfast.store.log_reader import LogDetails as LogDetails
    from holdfast.store.log_reader import LogEntry as LogEntry
    from holdfast.store.log_reader import LogPage as LogPage
    from holdfast.store.log_reader import LogReader as LogReader
    from holdfast.store.log_reader import branch_names as branch_names
    from holdfast.store.log_reader import read_log_page as read_log_page
    from holdfast.store.log_reader import short_ids as short_ids
    from holdfast.store.maintenance import AsyncMaintenance as AsyncMaintenance
    from holdfast.store.maintenance import Maintenance as Maintenance
    from holdfast.store.maintenance import MaintenanceOperations as MaintenanceOperations
    from holdfast.store.metric_sources import MetricsSource as MetricsSource
    from holdfast.store.metric_sources import metrics_source as metrics_source
    from holdfast.store.opener import aopen as aopen
    from holdfast.store.opener import open as open  # noqa: A004 - reads as store.open
    from holdfast.store.opener import open_existing as open_existing
    from holdfast.store.saved_checkpoint import ChannelWrites as ChannelWrites
    from holdfast.store.saved_checkpoint import FromParent as FromParent
    from holdfast.store.saved_checkpoint import SavedCheckpoint as SavedCheckpoint
    from holdfast.store.schemas import AsyncSchemas as AsyncSchemas
    from holdfast.store.schemas import Schemas as Schemas
    from holdfast.store.schemas import SchemasOperations as SchemasOperations
    from holdfast.store.sensitive import AsyncIdentitySensitive as AsyncIdentitySensitive
    from holdfast.store.sensitive import AsyncSensitive as AsyncSensitive
    from holdfast.store.sensitive import IdentitySensitive as IdentitySensitive
    from holdfast.store.sensitive import RevealOperations as RevealOperations
    from holdfast.store.sensitive import Sensitive as Sensitive
    from holdfast.store.sensitive import SensitiveOperations as SensitiveOperations
    from holdfast.store.store import AsyncStore as AsyncStore
    from holdfast.store.store import Store as Store
    from holdfast.store.store import StoreOperations as StoreOperations
    from holdfast.store.store_rows import aopen_rows as aopen_rows
    from holdfast.store.thread import AsyncThread as AsyncThread
    from holdfast.store.thread import Thread as Thread
    from holdfast.store.thread import ThreadOperations as ThreadOperations
    from holdfast.store.thread_access import StoreChanges as StoreChanges
    from holdfast.store.timeline.api import AsyncTimeline as AsyncTimeline
    from holdfast.store.timeline.api import Timeline as Timeline
    from holdfast.store.timeline.api import TimelineOperations as TimelineOperations
    from holdfast.store.timeline.api import TimelinePage as TimelinePage
    from holdfast.store.timeline.causality import CausalNode as CausalNode
    from holdfast.store.timeline.event import TimelineEvent as TimelineEvent
    from holdfast.store.transaction import Transaction as Transaction

_MODULES = {
    "holdfast.backends.distribution": ("Distribution",),
    "holdfast.backends.runtime.drivers": ("arun", "make_both", "run"),
    "holdfast.backends.runtime.metric_families": ("FAMILIES", "Family"),
    "holdfast.backends.runtime.metrics": ("Sample",),
    "holdfast.engine.copy.copy_report": ("CopyProgress", "CopyReport"),
    "holdfast.engine.namespaces": ("LineKind", "LineKinds", "line_kind", "short_name", "split_name", "thread_name"),
    "holdfast.engine.pages": ("Items", "Page"),
    "holdfast.engine.paths": ("Path",),
    "holdfast.engine.projection.rendering": ("RenderedMessage", "is_hidden", "messages"),
    "holdfast.engine.state_reader": ("ValueOutline",),
    "holdfast.engine.trace_context": ("bound", "correlation"),
    "holdfast.engine.types": ("BranchInfo", "Checkpoint", "PendingWrite", "Revision", "StoreStats", "ThreadInfo"),
    "holdfast.maintenance.monitoring.alerts": ("Alert",),
    "holdfast.maintenance.monitoring.rules": ("RULES",),
    "holdfast.maintenance.monitoring.snapshot": ("MetricsSnapshot",),
    "holdfast.store.alerts": ("Alerts", "AlertsOperations", "AsyncAlerts"),
    "holdfast.store.audit": ("AsyncAudit", "Audit", "AuditOperations"),
    "holdfast.store.auto_checkpoint": (
        "AsyncAutoCheckpointer",
        "AsyncCheckpointableMixin",
        "AutoCheckpointer",
        "CheckpointableMixin",
        "EveryStep",
        "Interval",
        "OnChange",
        "OnEvent",
        "PolicyContext",
        "SavePolicy",
    ),
    "holdfast.store.backup_records": ("BackupChange", "BackupInfo", "BackupLine"),
    "holdfast.store.backups": (
        "AsyncBackups",
        "BackupOperations",
        "Backups",
    ),
    "holdfast.store.call_values": ("ARGUMENTS", "CallCodec"),
    "holdfast.store.checkpoint_fields": ("CheckpointFields", "OnConflict"),
    "holdfast.store.checkpoint_store": ("CheckpointStore",),
    "holdfast.store.checkpointer": ("AsyncCheckpointer", "BaseCheckpointer", "CheckpointTuple", "Checkpointer"),
    "holdfast.store.doctor": ("doctor", "examine"),
    "holdfast.store.erasure": (
        "AsyncErasure",
        "AsyncIdentityErasure",
        "Erasure",
        "ErasureOperations",
        "IdentityErasure",
    ),
    "holdfast.store.graph_schemas": ("GraphSchemas", "RenamedTask", "TaskPlace"),
    "holdfast.store.identity_view": ("AsyncIdentityView", "IdentityOperations", "IdentityView"),
    "holdfast.store.keys": ("AsyncKeys", "Keys", "KeysOperations"),
    "holdfast.store.lazy_state": ("AsyncLazyState", "LazyState"),
    "holdfast.store.log_reader": (
        *("LogDetails", "LogEntry", "LogPage", "LogReader"),
        *("branch_names", "read_log_page", "short_ids"),
    ),
    "holdfast.store.maintenance": ("AsyncMaintenance", "Maintenance", "MaintenanceOperations"),
    "holdfast.store.metric_sources": ("MetricsSource", "metrics_source"),
    "holdfast.store.opener": ("aopen", "open", "open_existing"),
    "holdfast.store.saved_checkpoint": ("ChannelWrites", "FromParent", "SavedCheckpoint"),
    "holdfast.store.schemas": ("AsyncSchemas", "Schemas", "SchemasOperations"),
    "holdfast.store.sensitive": (
        "AsyncIdentitySensitive",
        "AsyncSensitive",
        "IdentitySensitive",
        "RevealOperations",
        "Sensitive",
        "SensitiveOperations",
    ),
    "holdfast.store.store": ("AsyncStore", "Store", "StoreOperations"),
    "holdfast.store.store_rows": ("aopen_rows",),
    "holdfast.store.thread": ("AsyncThread", "Thread", "ThreadOperations"),
    "holdfast.store.thread_access": ("StoreChanges",),
    "holdfast.store.timeline.api": ("AsyncTimeline", "Timeline", "TimelineOperations", "TimelinePage"),
    "holdfast.store.timeline.causality": ("CausalNode",),
    "holdfast.store.timeline.event": ("TimelineEvent",),
    "holdfast.store.transaction": ("Transaction",),
}

if not TYPE_CHECKING:  # a type checker is to see the names above, and no others
    from holdfast._lazy import exports

    __all__, __getattr__, __dir__ = exports(__name__, _MODULES)
