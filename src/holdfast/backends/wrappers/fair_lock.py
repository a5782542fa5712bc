"""A lock that a forked child has anew."""

from __future__ import annotations

import threading

from holdfast.backends.runtime.fork_safety import renew_after_fork


class WrapperLock:
    """`with turns.lock:` one at a time."""

    def __init__(self) -> None:
        self.renew_locks()
        renew_after_fork(self)

    def renew_locks(self) -> None:
        """For a forked child, which has none of the threads that may have held it."""
        self.lock = threading.Lock()
