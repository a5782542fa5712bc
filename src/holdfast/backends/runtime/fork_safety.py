"""Locks that a forked child gets anew: it has none of the threads that may have held them."""

from __future__ import annotations

import os
from typing import Protocol
from weakref import WeakSet


class HasLocks(Protocol):
    """Something with locks of its own."""

    def renew_locks(self) -> None:
        """Replace them by new ones."""
        ...


_owners: WeakSet[HasLocks] = WeakSet()


def renew_after_fork(owner: HasLocks) -> None:
    """Have an object's locks renewed in every forked child, for as long as the object lives."""
    _owners.add(owner)


def _renew() -> None:
    for owner in list(_owners):
        owner.renew_locks()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)
