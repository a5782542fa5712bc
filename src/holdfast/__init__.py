"""Durable, versioned, verifiable state for AI agents."""

from typing import TYPE_CHECKING

try:  # written when the package is built or installed: see tools/version.py
    from holdfast._version import __version__ as __version__
except ModuleNotFoundError:  # a checkout that is not installed
    __version__ = "0.0.0"

if TYPE_CHECKING:
    from holdfast import access as access
    from holdfast import agents as agents
    from holdfast import backends as backends
    from holdfast import codec as codec
    from holdfast import encryption as encryption
    from holdfast import erasure as erasure
    from holdfast import errors as errors
    from holdfast import hooks as hooks
    from holdfast import jobs as jobs
    from holdfast import redaction as redaction
    from holdfast import replay as replay
    from holdfast import savers as savers
    from holdfast import schemas as schemas
    from holdfast import snapshots as snapshots
    from holdfast import state as state
    from holdfast._core import core as core
    from holdfast.agents.runs.steps import step as step
    from holdfast.agents.runs.steps import workflow as workflow
    from holdfast.codec.registry import allow as allow
    from holdfast.codec.registry import register as register
    from holdfast.engine.model.missing import MISSING as MISSING
    from holdfast.engine.pages import Page as Page
    from holdfast.engine.trace_context import bound as bound
    from holdfast.engine.trace_context import correlation as correlation
    from holdfast.engine.types import Checkpoint as Checkpoint
    from holdfast.maintenance.retention import Retention as Retention
    from holdfast.store.opener import aopen as aopen
    from holdfast.store.opener import open as open  # noqa: A004 - reads as holdfast.open
    from holdfast.store.store import AsyncStore as AsyncStore
    from holdfast.store.store import Store as Store
    from holdfast.store.thread import AsyncThread as AsyncThread
    from holdfast.store.thread import Thread as Thread

_MODULES = {
    "holdfast._core": ("core",),
    "holdfast.agents.runs.steps": ("step", "workflow"),
    "holdfast.codec.registry": ("allow", "register"),
    "holdfast.engine.model.missing": ("MISSING",),
    "holdfast.engine.pages": ("Page",),
    "holdfast.engine.trace_context": ("bound", "correlation"),
    "holdfast.engine.types": ("Checkpoint",),
    "holdfast.maintenance.retention": ("Retention",),
    "holdfast.store.opener": ("aopen", "open"),
    "holdfast.store.store": ("AsyncStore", "Store"),
    "holdfast.store.thread": ("AsyncThread", "Thread"),
}
_SUBMODULES = (
    "access",
    "agents",
    "backends",
    "codec",
    "encryption",
    "erasure",
    "errors",
    "hooks",
    "jobs",
    "redaction",
    "replay",
    "savers",
    "schemas",
    "snapshots",
    "state",
)

if not TYPE_CHECKING:  # a type checker is to see the names above, and no others
    from holdfast._lazy import exports

    __all__, __getattr__, __dir__ = exports(__name__, _MODULES, _SUBMODULES, ("__version__",))
