"""A least-recently-used cache with a limit in bytes."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import Any

from holdfast.backends.runtime.fork_safety import reinit_after_fork


class MemoryCache:
    """Caches values by key, each with a weight in bytes; the least recently used are dropped first.

    All of it can be read again from the store. Keys name immutable things (a commit, a node, a large value), so an
    entry is never out of date.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.size: int = 0
        self.hits: int = 0
        self.misses: int = 0
        self._entries: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()
        self.reinit_locks()
        reinit_after_fork(self)

    def reinit_locks(self) -> None:
        """Replace the lock in a forked child."""
        # Reentrant: a signal handler may run in the middle of anything.
        self._lock = threading.RLock()

    def get(self, key: Hashable) -> Any:
        """Return the value of a key, or None."""
        # Without the lock, which would cost more than the rest: each step is one for the interpreter.
        entry = self._entries.get(key)
        if entry is None:
            self.misses += 1
            return None
        self.hits += 1
        try:  # noqa: SIM105 - a context manager would cost more
            self._entries.move_to_end(key)
        except KeyError:
            pass  # another thread has just dropped it
        return entry[0]

    def put(self, key: Hashable, value: Any, weight: int) -> None:
        """Store a value, and replace the one that the key had."""
        with self._lock:
            old = self._entries.pop(key, None)
            if old is not None:
                self.size -= old[1]
            if weight > self.max_bytes:
                return
            self._entries[key] = (value, weight)
            self.size += weight
            while self.size > self.max_bytes:
                _, (_, freed) = self._entries.popitem(last=False)
                self.size -= freed

    def drop(self, key: Hashable) -> None:
        """Drop one entry."""
        self.take(key)

    def take(self, key: Hashable) -> Any:
        """Drop one entry, and return its value, or None: no other caller gets it."""
        with self._lock:
            old = self._entries.pop(key, None)
            if old is None:
                return None
            self.size -= old[1]
            return old[0]

    def demote(self, key: Hashable) -> Any:
        """Make an entry the next one to drop. Returns its value, or None."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                return None
            self._entries.move_to_end(key, last=False)
            return entry[0]

    def drop_all(self, *owners: Hashable) -> None:
        """Drop all entries whose key has one of these as its first or second part."""
        prefixes = set(owners)
        if not prefixes:
            return
        with self._lock:
            for key in [key for key in self._entries if isinstance(key, tuple) and not prefixes.isdisjoint(key[:2])]:
                self.drop(key)

    def clear(self) -> None:
        """Drop all entries."""
        with self._lock:
            self._entries.clear()
            self.size = 0
