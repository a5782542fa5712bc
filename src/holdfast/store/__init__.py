"""The store as programs use it: opening one, threads and their checkpoints, identities.

All public names can be imported from here.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.backends.runtime.drivers import arun as arun
    from holdfast.backends.runtime.drivers import make_both as make_both
    from holdfast.backends.runtime.drivers import run as run
    from holdfast.engine.copy.between_stores import CopyProgress as CopyProgress
    from holdfast.engine.namespaces import LineKind as LineKind
    from holdfast.engine.namespaces import line_kind as line_kind
    from holdfast.engine.namespaces import short_name as short_name
    from holdfast.engine.namespaces import split_name as split_name
    from holdfast.engine.namespaces import thread_name as thread_name
    from holdfast.engine.pages import Page as Page
    from holdfast.engine.projection.rendering import RenderedMessage as RenderedMessage
    from holdfast.engine.projection.rendering import messages as messages
    from holdfast.engine.projection.rows import is_hidden as is_hidden
    from holdfast.engine.types import BranchInfo as BranchInfo
    from holdfast.engine.types import Checkpoint as Checkpoint
    from holdfast.engine.types import StoreStats as StoreStats
    from holdfast.engine.types import ThreadInfo as ThreadInfo
    from holdfast.store.auto_checkpoint import AsyncAutoCheckpointer as AsyncAutoCheckpointer
    from holdfast.store.auto_checkpoint import AsyncCheckpointableMixin as AsyncCheckpointableMixin
    from holdfast.store.auto_checkpoint import AutoCheckpointer as AutoCheckpointer
    from holdfast.store.auto_checkpoint import CheckpointableMixin as CheckpointableMixin
    from holdfast.store.auto_checkpoint import EveryStep as EveryStep
    from holdfast.store.auto_checkpoint import Interval as Interval
    from holdfast.store.auto_checkpoint import OnChange as OnChange
    from holdfast.store.auto_checkpoint import OnEvent as OnEvent
    from holdfast.store.checkpoint_store import CheckpointStore as CheckpointStore
    from holdfast.store.checkpoint_store import FromParent as FromParent
    from holdfast.store.checkpoint_store import PendingWrite as PendingWrite
    from holdfast.store.checkpoint_store import SavedCheckpoint as SavedCheckpoint
    from holdfast.store.checkpointer import AsyncCheckpointer as AsyncCheckpointer
    from holdfast.store.checkpointer import Checkpointer as Checkpointer
    from holdfast.store.checkpointer import CheckpointTuple as CheckpointTuple
    from holdfast.store.doctor import examine as examine
    from holdfast.store.existing import open_existing as open_existing
    from holdfast.store.identity_view import AsyncIdentityView as AsyncIdentityView
    from holdfast.store.identity_view import IdentityView as IdentityView
    from holdfast.store.lazy_state import LazyState as LazyState
    from holdfast.store.log_reader import LogEntry as LogEntry
    from holdfast.store.log_reader import LogReader as LogReader
    from holdfast.store.log_reader import branch_names as branch_names
    from holdfast.store.log_reader import short_ids as short_ids
    from holdfast.store.opener import aopen as aopen
    from holdfast.store.opener import open as open  # noqa: A004 - reads as holdfast.open  # noqa: A004 - reads as store.open
    from holdfast.store.store import AsyncStore as AsyncStore
    from holdfast.store.store import Store as Store
    from holdfast.store.store import StoreOperations as StoreOperations
    from holdfast.store.thread import AsyncThread as AsyncThread
    from holdfast.store.thread import Thread as Thread

_EXPORTS = {
    "AsyncAutoCheckpointer": "holdfast.store.auto_checkpoint",
    "AsyncCheckpointableMixin": "holdfast.store.auto_checkpoint",
    "AsyncCheckpointer": "holdfast.store.checkpointer",
    "AsyncIdentityView": "holdfast.store.identity_view",
    "AsyncStore": "holdfast.store.store",
    "AsyncThread": "holdfast.store.thread",
    "AutoCheckpointer": "holdfast.store.auto_checkpoint",
    "BranchInfo": "holdfast.engine.types",
    "Checkpoint": "holdfast.engine.types",
    "CheckpointStore": "holdfast.store.checkpoint_store",
    "CheckpointTuple": "holdfast.store.checkpointer",
    "CheckpointableMixin": "holdfast.store.auto_checkpoint",
    "Checkpointer": "holdfast.store.checkpointer",
    "CopyProgress": "holdfast.engine.copy.between_stores",
    "EveryStep": "holdfast.store.auto_checkpoint",
    "FromParent": "holdfast.store.checkpoint_store",
    "IdentityView": "holdfast.store.identity_view",
    "Interval": "holdfast.store.auto_checkpoint",
    "LazyState": "holdfast.store.lazy_state",
    "LineKind": "holdfast.engine.namespaces",
    "LogEntry": "holdfast.store.log_reader",
    "LogReader": "holdfast.store.log_reader",
    "OnChange": "holdfast.store.auto_checkpoint",
    "OnEvent": "holdfast.store.auto_checkpoint",
    "Page": "holdfast.engine.pages",
    "PendingWrite": "holdfast.store.checkpoint_store",
    "RenderedMessage": "holdfast.engine.projection.rendering",
    "SavedCheckpoint": "holdfast.store.checkpoint_store",
    "Store": "holdfast.store.store",
    "StoreOperations": "holdfast.store.store",
    "StoreStats": "holdfast.engine.types",
    "Thread": "holdfast.store.thread",
    "ThreadInfo": "holdfast.engine.types",
    "aopen": "holdfast.store.opener",
    "arun": "holdfast.backends.runtime.drivers",
    "branch_names": "holdfast.store.log_reader",
    "examine": "holdfast.store.doctor",
    "is_hidden": "holdfast.engine.projection.rows",
    "line_kind": "holdfast.engine.namespaces",
    "make_both": "holdfast.backends.runtime.drivers",
    "messages": "holdfast.engine.projection.rendering",
    "open": "holdfast.store.opener",
    "open_existing": "holdfast.store.existing",
    "run": "holdfast.backends.runtime.drivers",
    "short_ids": "holdfast.store.log_reader",
    "short_name": "holdfast.engine.namespaces",
    "split_name": "holdfast.engine.namespaces",
    "thread_name": "holdfast.engine.namespaces",
}

__all__ = [*_EXPORTS]  # noqa: PLE0604 - strings all of them

if not TYPE_CHECKING:  # a type checker is to see the names above, and no others
    from holdfast._lazy import exports

    __getattr__ = exports(__name__, _EXPORTS)


def __dir__() -> list[str]:
    return sorted(__all__)
