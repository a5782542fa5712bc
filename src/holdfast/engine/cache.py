"""A cache bounded by bytes: what was used last stays."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import Any

from holdfast.backends.runtime.fork_safety import renew_after_fork


class MemoryCache:
    """Values by key, each with a weight in bytes; the least recently used go first.

    Everything kept here can be read again from the store. Keys name immutable things (a commit, a node, a large value),
    so an entry is never out of date.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.held = 0
        self.hits = 0
        self.misses = 0
        self._entries: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()
        self.renew_locks()
        renew_after_fork(self)

    def renew_locks(self) -> None:
        """For a forked child."""
        # Reentrant: a signal handler may run in the middle of anything.
        self._lock = threading.RLock()

    def get(self, key: Hashable) -> Any:
        """The value, or None."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                self.misses += 1
                return None
            self.hits += 1
            self._entries.move_to_end(key)
            return entry[0]

    def put(self, key: Hashable, value: Any, weight: int) -> None:
        """Keep a value, in place of what the key had."""
        with self._lock:
            old = self._entries.pop(key, None)
            if old is not None:
                self.held -= old[1]
            if weight > self.max_bytes:
                return
            self._entries[key] = (value, weight)
            self.held += weight
            while self.held > self.max_bytes:
                _, (_, freed) = self._entries.popitem(last=False)
                self.held -= freed

    def drop(self, key: Hashable) -> None:
        """Forget one entry."""
        with self._lock:
            old = self._entries.pop(key, None)
            if old is not None:
                self.held -= old[1]

    def demote(self, key: Hashable) -> Any:
        """Let this be the next to go. Returns the value, or None."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                return None
            self._entries.move_to_end(key, last=False)
            return entry[0]

    def forget(self, *owners: Hashable) -> None:
        """Forget all entries whose key starts with one of these, or has it in the second place."""
        gone = set(owners)
        if not gone:
            return
        with self._lock:
            for key in [key for key in self._entries if isinstance(key, tuple) and not gone.isdisjoint(key[:2])]:
                self.drop(key)

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._entries.clear()
            self.held = 0
