"""Locks that a forked child gets anew: it has none of the threads that may hold them."""

from __future__ import annotations

import os
import threading
from typing import Protocol
from weakref import WeakSet


class LockOwner(Protocol):
    """Has locks of its own."""

    def reinit_locks(self) -> None:
        """Replace the locks by new ones, in a forked child."""
        ...


_owners: WeakSet[LockOwner] = WeakSet()


def reinit_after_fork(owner: LockOwner) -> None:
    """Call an object's `reinit_locks` in every forked child, for as long as the object lives."""
    _owners.add(owner)


class ForkSafeLock:
    """A lock that is free in a forked child."""

    def __init__(self) -> None:
        self.reinit_locks()
        reinit_after_fork(self)

    def reinit_locks(self) -> None:
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def _reinit() -> None:
    for owner in list(_owners):
        owner.reinit_locks()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reinit)
