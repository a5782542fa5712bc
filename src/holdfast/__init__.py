"""Durable, versioned, verifiable state for AI agents."""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.agents import AgentBuilder as AgentBuilder
    from holdfast.agents import AsyncPersistentAgent as AsyncPersistentAgent
    from holdfast.agents import Machine as Machine
    from holdfast.agents import PersistentAgent as PersistentAgent
    from holdfast.agents import persistent as persistent
    from holdfast.codec import Codec as Codec
    from holdfast.codec import Limits as Limits
    from holdfast.codec import OpaqueValue as OpaqueValue
    from holdfast.codec import Registry as Registry
    from holdfast.codec.registry import default_registry
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
    from holdfast.maintenance.jobs.jobs import AsyncJobs as AsyncJobs
    from holdfast.maintenance.jobs.jobs import Jobs as Jobs
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

    register = default_registry.register
    allow: Callable[..., Any] = default_registry.allow

_AGENTS = ("AgentBuilder", "AsyncPersistentAgent", "Machine", "PersistentAgent", "persistent")
_AUTOSAVE = (
    "AsyncAutoCheckpointer",
    "AsyncCheckpointableMixin",
    "AutoCheckpointer",
    "CheckpointableMixin",
    "EveryStep",
    "Interval",
    "OnChange",
    "OnEvent",
)
_CHECKPOINTER = ("AsyncCheckpointer", "Checkpointer")
_CHECKPOINTS = ("Checkpoint", "ThreadInfo")
_ERRORS = (
    "ConfigError",
    "ConflictError",
    "CorruptError",
    "DeniedError",
    "HandlerError",
    "HoldfastError",
    "InvalidError",
    "NotFoundError",
    "TransientError",
    "RequestTimeoutError",
    "UnavailableError",
    "OutcomeUnknownError",
    "UnsupportedError",
    "VetoError",
)
_CODEC = ("Codec", "OpaqueValue", "Limits", "Registry")
_DOCTOR = ("doctor",)
_EXPLANATIONS = ("explain",)
_JOBS = ("AsyncJobs", "Jobs")
_IDENTITY = ("Identity",)
_MERGING = ("UNRESOLVED", "MergeConflict")
_MISSING = ("MISSING",)
_OPENING = ("aopen", "open")
_POLICY = ("Policy",)
_PROOF = ("check_audit",)
_REGISTRY = ("allow", "register")
_RETENTION = ("Retention",)
_RUNNER = ("AsyncJobRunner", "JobRunner")
_STORE = ("AsyncStore", "Store")
_TRACING = ("bound", "correlation")

__all__ = [  # noqa: PLE0604 - strings all of them
    *_AGENTS,
    *_AUTOSAVE,
    *_CHECKPOINTER,
    *_CHECKPOINTS,
    *_CODEC,
    *_DOCTOR,
    *_ERRORS,
    *_EXPLANATIONS,
    *_JOBS,
    *_IDENTITY,
    *_MERGING,
    *_MISSING,
    *_OPENING,
    *_POLICY,
    *_PROOF,
    *_REGISTRY,
    *_RETENTION,
    *_RUNNER,
    *_STORE,
    *_TRACING,
    "__version__",
]


def __getattr__(name: str) -> Any:
    # Loaded on first use, so that importing the package costs next to nothing.
    found: Any = None
    if name in _AGENTS:
        from holdfast import agents as found
    elif name in _AUTOSAVE:
        from holdfast.store import auto_checkpoint as found
    elif name in _CHECKPOINTER:
        from holdfast.store import checkpointer as found
    elif name in _CHECKPOINTS:
        from holdfast.engine import types as found
    elif name in _CODEC:
        from holdfast import codec as found
    elif name in _ERRORS:
        from holdfast import errors as found
    elif name in _DOCTOR:
        from holdfast.store import doctor as found
    elif name in _EXPLANATIONS:
        from holdfast.maintenance.explain import explanations as found
    elif name in _JOBS:
        from holdfast.maintenance.jobs import jobs as found
    elif name in _IDENTITY:
        from holdfast.security.access import identity as found
    elif name in _POLICY:
        from holdfast.security.access import policy as found
    elif name in _PROOF:
        from holdfast.security.audit import export as found
    elif name in _MERGING:
        from holdfast.history import merge as found
    elif name in _MISSING:
        from holdfast.engine.model import missing as found
    elif name in _OPENING:
        from holdfast.store import opener as found
    elif name in _REGISTRY:
        from holdfast.codec.registry import default_registry as found
    elif name in _RETENTION:
        from holdfast.maintenance import retention as found
    elif name in _RUNNER:
        from holdfast.maintenance.jobs import runner as found
    elif name in _STORE:
        from holdfast.store import store as found
    elif name in _TRACING:
        from holdfast.engine import trace_context as found
    if found is None:
        raise AttributeError(f"module 'holdfast' has no attribute {name!r}")
    return getattr(found, name)


def __dir__() -> list[str]:
    return sorted(__all__)
