"""Stores of rows: the port, the registry of URL schemes, and one module for each kind of store."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.backends.interface import Backend as Backend
    from holdfast.backends.interface import BlockingCall as BlockingCall
    from holdfast.backends.interface import Capabilities as Capabilities
    from holdfast.backends.interface import Changes as Changes
    from holdfast.backends.interface import Create as Create
    from holdfast.backends.interface import Delete as Delete
    from holdfast.backends.interface import Ensure as Ensure
    from holdfast.backends.interface import Expect as Expect
    from holdfast.backends.interface import Get as Get
    from holdfast.backends.interface import Put as Put
    from holdfast.backends.interface import Row as Row
    from holdfast.backends.interface import Scan as Scan
    from holdfast.backends.interface import Suspension as Suspension
    from holdfast.backends.interface import WordMatch as WordMatch
    from holdfast.backends.interface import WordMatches as WordMatches
    from holdfast.backends.memory import MemoryBackend as MemoryBackend
    from holdfast.backends.registry import backend_for as backend_for
    from holdfast.backends.registry import schemes as schemes
    from holdfast.backends.runtime.group_commit import Commit as Commit
    from holdfast.backends.runtime.group_commit import CommitQueue as CommitQueue
    from holdfast.backends.runtime.group_commit import Outcome as Outcome
    from holdfast.backends.tables import JsonText as JsonText
    from holdfast.backends.tables import Table as Table
    from holdfast.backends.tables import WordList as WordList
    from holdfast.backends.tables import decode_key as decode_key
    from holdfast.backends.tables import encode_key as encode_key
    from holdfast.backends.urls import compose as compose
    from holdfast.backends.urls import redacted_url as redacted_url
    from holdfast.backends.wrappers import Wrapper as Wrapper

_MODULES = {
    "holdfast.backends.interface": (
        "Backend",
        "BlockingCall",
        "Capabilities",
        "Changes",
        "Create",
        "Delete",
        "Ensure",
        "Expect",
        "Get",
        "Put",
        "Row",
        "Scan",
        "Suspension",
        "WordMatch",
        "WordMatches",
    ),
    "holdfast.backends.memory": ("MemoryBackend",),
    "holdfast.backends.registry": ("backend_for", "schemes"),
    "holdfast.backends.runtime.group_commit": ("Commit", "CommitQueue", "Outcome"),
    "holdfast.backends.tables": ("JsonText", "Table", "WordList", "decode_key", "encode_key"),
    "holdfast.backends.urls": ("compose", "redacted_url"),
    "holdfast.backends.wrappers": ("Wrapper",),
}

if not TYPE_CHECKING:  # a type checker is to see the names above, and no others
    from holdfast._lazy import exports

    __all__, __getattr__, __dir__ = exports(__name__, _MODULES)
