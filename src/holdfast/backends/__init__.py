"""Stores of rows: the interface that a backend implements, and what one can be built of."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.backends.async_backend import ServerBackend as ServerBackend
    from holdfast.backends.feed import RecentLines as RecentLines
    from holdfast.backends.interface import Backend as Backend
    from holdfast.backends.interface import BlockingCall as BlockingCall
    from holdfast.backends.interface import Capabilities as Capabilities
    from holdfast.backends.interface import Change as Change
    from holdfast.backends.interface import Changes as Changes
    from holdfast.backends.interface import Create as Create
    from holdfast.backends.interface import Delete as Delete
    from holdfast.backends.interface import Ensure as Ensure
    from holdfast.backends.interface import Expect as Expect
    from holdfast.backends.interface import Get as Get
    from holdfast.backends.interface import Put as Put
    from holdfast.backends.interface import Row as Row
    from holdfast.backends.interface import Scan as Scan
    from holdfast.backends.memory import MemoryBackend as MemoryBackend
    from holdfast.backends.runtime.drivers import run as run
    from holdfast.backends.runtime.group_commit import CommitQueue as CommitQueue
    from holdfast.backends.tables import TABLES as TABLES

_MODULES = {
    "holdfast.backends.async_backend": ("ServerBackend",),
    "holdfast.backends.feed": ("RecentLines",),
    "holdfast.backends.interface": (
        "Backend",
        "BlockingCall",
        "Capabilities",
        "Change",
        "Changes",
        "Create",
        "Delete",
        "Ensure",
        "Expect",
        "Get",
        "Put",
        "Row",
        "Scan",
    ),
    "holdfast.backends.memory": ("MemoryBackend",),
    "holdfast.backends.runtime.drivers": ("run",),
    "holdfast.backends.runtime.group_commit": ("CommitQueue",),
    "holdfast.backends.tables": ("TABLES",),
}

if not TYPE_CHECKING:  # a type checker is to see the names above, and no others
    from holdfast._lazy import exports

    __all__, __getattr__, __dir__ = exports(__name__, _MODULES)
