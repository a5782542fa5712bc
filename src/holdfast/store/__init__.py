"""The store as programs use it: opening one, threads and their checkpoints, identities."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.engine.copy.between_stores import CopyProgress as CopyProgress
    from holdfast.engine.namespaces import LineKind as LineKind
    from holdfast.engine.namespaces import line_kind as line_kind
    from holdfast.engine.namespaces import short_name as short_name
    from holdfast.engine.projection.rendering import RenderedMessage as RenderedMessage
    from holdfast.engine.projection.rendering import messages as messages
    from holdfast.engine.projection.rows import is_hidden as is_hidden
    from holdfast.engine.time_parsing import parse_age as parse_age
    from holdfast.engine.time_parsing import parse_moment as parse_moment
    from holdfast.engine.types import BranchInfo as BranchInfo
    from holdfast.engine.types import Checkpoint as Checkpoint
    from holdfast.engine.types import StoreStats as StoreStats
    from holdfast.engine.types import ThreadInfo as ThreadInfo
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
    from holdfast.store.opener import open as open  # noqa: A004 - reads as holdfast.open
    from holdfast.store.store import AsyncStore as AsyncStore
    from holdfast.store.store import Store as Store
    from holdfast.store.thread import AsyncThread as AsyncThread
    from holdfast.store.thread import Thread as Thread

_EXPORTS = {
    "AsyncIdentityView": "holdfast.store.identity_view",
    "AsyncStore": "holdfast.store.store",
    "AsyncThread": "holdfast.store.thread",
    "BranchInfo": "holdfast.engine.types",
    "Checkpoint": "holdfast.engine.types",
    "CopyProgress": "holdfast.engine.copy.between_stores",
    "IdentityView": "holdfast.store.identity_view",
    "LazyState": "holdfast.store.lazy_state",
    "LineKind": "holdfast.engine.namespaces",
    "LogEntry": "holdfast.store.log_reader",
    "LogReader": "holdfast.store.log_reader",
    "RenderedMessage": "holdfast.engine.projection.rendering",
    "Store": "holdfast.store.store",
    "StoreStats": "holdfast.engine.types",
    "Thread": "holdfast.store.thread",
    "ThreadInfo": "holdfast.engine.types",
    "aopen": "holdfast.store.opener",
    "branch_names": "holdfast.store.log_reader",
    "examine": "holdfast.store.doctor",
    "is_hidden": "holdfast.engine.projection.rows",
    "line_kind": "holdfast.engine.namespaces",
    "messages": "holdfast.engine.projection.rendering",
    "open": "holdfast.store.opener",
    "open_existing": "holdfast.store.existing",
    "parse_age": "holdfast.engine.time_parsing",
    "parse_moment": "holdfast.engine.time_parsing",
    "short_ids": "holdfast.store.log_reader",
    "short_name": "holdfast.engine.namespaces",
}

__all__ = [*_EXPORTS]  # noqa: PLE0604 - strings all of them

if not TYPE_CHECKING:  # a type checker is to see the names above, and no others
    from holdfast._lazy import exports

    __getattr__ = exports(__name__, _EXPORTS)


def __dir__() -> list[str]:
    return sorted(__all__)
