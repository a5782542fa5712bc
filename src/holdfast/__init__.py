"""Durable, versioned, verifiable state for AI agents."""

from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from holdfast import access as access
    from holdfast import agents as agents
    from holdfast import codec as codec
    from holdfast import errors as errors
    from holdfast import history as history
    from holdfast import hooks as hooks
    from holdfast import jobs as jobs
    from holdfast import maintenance as maintenance
    from holdfast import schemas as schemas
    from holdfast import snapshots as snapshots
    from holdfast import state as state
    from holdfast import store as store
    from holdfast.agents import AsyncPersistentAgent as AsyncPersistentAgent
    from holdfast.agents import PersistentAgent as PersistentAgent
    from holdfast.agents import persistent as persistent
    from holdfast.codec.registry import allow as allow
    from holdfast.codec.registry import register as register
    from holdfast.engine.model.missing import MISSING as MISSING
    from holdfast.engine.pages import Page as Page
    from holdfast.engine.trace_context import bound as bound
    from holdfast.engine.trace_context import correlation as correlation
    from holdfast.engine.types import Checkpoint as Checkpoint
    from holdfast.engine.types import ThreadInfo as ThreadInfo
    from holdfast.errors import ConflictError as ConflictError
    from holdfast.errors import HoldfastError as HoldfastError
    from holdfast.errors import InvalidError as InvalidError
    from holdfast.errors import NotFoundError as NotFoundError
    from holdfast.maintenance.explain.explanations import explain as explain
    from holdfast.maintenance.retention import Retention as Retention
    from holdfast.store.checkpointer import AsyncCheckpointer as AsyncCheckpointer
    from holdfast.store.checkpointer import Checkpointer as Checkpointer
    from holdfast.store.doctor import doctor as doctor
    from holdfast.store.opener import aopen as aopen
    from holdfast.store.opener import open as open  # noqa: A004 - reads as holdfast.open
    from holdfast.store.store import AsyncStore as AsyncStore
    from holdfast.store.store import Store as Store
    from holdfast.store.thread import AsyncThread as AsyncThread
    from holdfast.store.thread import Thread as Thread

_MODULES = {
    "holdfast.agents": ("AsyncPersistentAgent", "PersistentAgent", "persistent"),
    "holdfast.codec.registry": ("allow", "register"),
    "holdfast.engine.model.missing": ("MISSING",),
    "holdfast.engine.pages": ("Page",),
    "holdfast.engine.trace_context": ("bound", "correlation"),
    "holdfast.engine.types": ("Checkpoint", "ThreadInfo"),
    "holdfast.errors": ("ConflictError", "HoldfastError", "InvalidError", "NotFoundError"),
    "holdfast.maintenance.explain.explanations": ("explain",),
    "holdfast.maintenance.retention": ("Retention",),
    "holdfast.store.checkpointer": ("AsyncCheckpointer", "Checkpointer"),
    "holdfast.store.doctor": ("doctor",),
    "holdfast.store.opener": ("aopen", "open"),
    "holdfast.store.store": ("AsyncStore", "Store"),
    "holdfast.store.thread": ("AsyncThread", "Thread"),
}
_SUBMODULES = (
    "access",
    "agents",
    "codec",
    "errors",
    "history",
    "hooks",
    "jobs",
    "maintenance",
    "schemas",
    "snapshots",
    "state",
    "store",
)

if not TYPE_CHECKING:  # a type checker is to see the names above, and no others
    from holdfast._lazy import exports

    __all__, __getattr__, __dir__ = exports(__name__, _MODULES, _SUBMODULES, ("__version__",))
