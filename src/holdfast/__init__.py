"""Durable, versioned, verifiable state for AI agents."""

from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from holdfast.agents import AgentBuilder as AgentBuilder
    from holdfast.agents import AsyncPersistentAgent as AsyncPersistentAgent
    from holdfast.agents import Machine as Machine
    from holdfast.agents import PersistentAgent as PersistentAgent
    from holdfast.agents import persistent as persistent
    from holdfast.codec import Codec as Codec
    from holdfast.codec import Limits as Limits
    from holdfast.codec import OpaqueValue as OpaqueValue
    from holdfast.codec import Registry as Registry
    from holdfast.codec.registry import allow as allow
    from holdfast.codec.registry import register as register
    from holdfast.engine.model.missing import MISSING as MISSING
    from holdfast.engine.trace_context import bound as bound
    from holdfast.engine.trace_context import correlation as correlation
    from holdfast.engine.types import Checkpoint as Checkpoint
    from holdfast.engine.types import ThreadInfo as ThreadInfo
    from holdfast.errors import ConfigError as ConfigError
    from holdfast.errors import ConflictError as ConflictError
    from holdfast.errors import CorruptError as CorruptError
    from holdfast.errors import DeniedError as DeniedError
    from holdfast.errors import HandlerError as HandlerError
    from holdfast.errors import HoldfastError as HoldfastError
    from holdfast.errors import InvalidError as InvalidError
    from holdfast.errors import NotFoundError as NotFoundError
    from holdfast.errors import OutcomeUnknownError as OutcomeUnknownError
    from holdfast.errors import RequestTimeoutError as RequestTimeoutError
    from holdfast.errors import TransientError as TransientError
    from holdfast.errors import UnavailableError as UnavailableError
    from holdfast.errors import UnsupportedError as UnsupportedError
    from holdfast.errors import VetoError as VetoError
    from holdfast.history.merge import UNRESOLVED as UNRESOLVED
    from holdfast.history.merge import MergeConflict as MergeConflict
    from holdfast.maintenance.explain.explanations import explain as explain
    from holdfast.maintenance.jobs.api import AsyncJobs as AsyncJobs
    from holdfast.maintenance.jobs.api import Jobs as Jobs
    from holdfast.maintenance.jobs.runner import AsyncJobRunner as AsyncJobRunner
    from holdfast.maintenance.jobs.runner import JobRunner as JobRunner
    from holdfast.maintenance.retention import Retention as Retention
    from holdfast.security.access.identity import Identity as Identity
    from holdfast.security.access.policy import Policy as Policy
    from holdfast.security.audit.export import check_audit as check_audit
    from holdfast.store.auto_checkpoint import AsyncAutoCheckpointer as AsyncAutoCheckpointer
    from holdfast.store.auto_checkpoint import AsyncCheckpointableMixin as AsyncCheckpointableMixin
    from holdfast.store.auto_checkpoint import AutoCheckpointer as AutoCheckpointer
    from holdfast.store.auto_checkpoint import CheckpointableMixin as CheckpointableMixin
    from holdfast.store.auto_checkpoint import EveryStep as EveryStep
    from holdfast.store.auto_checkpoint import Interval as Interval
    from holdfast.store.auto_checkpoint import OnChange as OnChange
    from holdfast.store.auto_checkpoint import OnEvent as OnEvent
    from holdfast.store.checkpointer import AsyncCheckpointer as AsyncCheckpointer
    from holdfast.store.checkpointer import Checkpointer as Checkpointer
    from holdfast.store.doctor import doctor as doctor
    from holdfast.store.opener import aopen as aopen
    from holdfast.store.opener import open as open  # noqa: A004 - reads as holdfast.open
    from holdfast.store.store import AsyncStore as AsyncStore
    from holdfast.store.store import Store as Store


_EXPORTS = {
    "AgentBuilder": "holdfast.agents",
    "AsyncAutoCheckpointer": "holdfast.store.auto_checkpoint",
    "AsyncCheckpointableMixin": "holdfast.store.auto_checkpoint",
    "AsyncCheckpointer": "holdfast.store.checkpointer",
    "AsyncJobRunner": "holdfast.maintenance.jobs.runner",
    "AsyncJobs": "holdfast.maintenance.jobs.api",
    "AsyncPersistentAgent": "holdfast.agents",
    "AsyncStore": "holdfast.store.store",
    "AutoCheckpointer": "holdfast.store.auto_checkpoint",
    "Checkpoint": "holdfast.engine.types",
    "CheckpointableMixin": "holdfast.store.auto_checkpoint",
    "Checkpointer": "holdfast.store.checkpointer",
    "Codec": "holdfast.codec",
    "ConfigError": "holdfast.errors",
    "ConflictError": "holdfast.errors",
    "CorruptError": "holdfast.errors",
    "DeniedError": "holdfast.errors",
    "EveryStep": "holdfast.store.auto_checkpoint",
    "HandlerError": "holdfast.errors",
    "HoldfastError": "holdfast.errors",
    "Identity": "holdfast.security.access.identity",
    "Interval": "holdfast.store.auto_checkpoint",
    "InvalidError": "holdfast.errors",
    "JobRunner": "holdfast.maintenance.jobs.runner",
    "Jobs": "holdfast.maintenance.jobs.api",
    "Limits": "holdfast.codec",
    "MISSING": "holdfast.engine.model.missing",
    "Machine": "holdfast.agents",
    "MergeConflict": "holdfast.history.merge",
    "NotFoundError": "holdfast.errors",
    "OnChange": "holdfast.store.auto_checkpoint",
    "OnEvent": "holdfast.store.auto_checkpoint",
    "OpaqueValue": "holdfast.codec",
    "OutcomeUnknownError": "holdfast.errors",
    "PersistentAgent": "holdfast.agents",
    "Policy": "holdfast.security.access.policy",
    "Registry": "holdfast.codec",
    "RequestTimeoutError": "holdfast.errors",
    "Retention": "holdfast.maintenance.retention",
    "Store": "holdfast.store.store",
    "ThreadInfo": "holdfast.engine.types",
    "TransientError": "holdfast.errors",
    "UNRESOLVED": "holdfast.history.merge",
    "UnavailableError": "holdfast.errors",
    "UnsupportedError": "holdfast.errors",
    "VetoError": "holdfast.errors",
    "aopen": "holdfast.store.opener",
    "bound": "holdfast.engine.trace_context",
    "check_audit": "holdfast.security.audit.export",
    "correlation": "holdfast.engine.trace_context",
    "doctor": "holdfast.store.doctor",
    "explain": "holdfast.maintenance.explain.explanations",
    "open": "holdfast.store.opener",
    "persistent": "holdfast.agents",
    "allow": "holdfast.codec.registry",
    "register": "holdfast.codec.registry",
}

__all__ = ["__version__", *_EXPORTS]  # noqa: PLE0604 - strings all of them

if not TYPE_CHECKING:  # a type checker is to see the names above, and no others
    from holdfast._lazy import exports

    __getattr__ = exports(__name__, _EXPORTS)


def __dir__() -> list[str]:
    return sorted(__all__)
