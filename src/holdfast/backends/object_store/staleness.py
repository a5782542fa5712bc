"""What a process knows may be out of date beyond repair: then a shard is read anew."""

from __future__ import annotations

from holdfast.backends.object_store.formats import missing
from holdfast.backends.object_store.object_storage import check_deadline

_MISSES = 3


class ViewOutdated(Exception):
    """What is known of a shard can no longer be brought up to date: it has to be read anew."""


class ObjectMissing(ViewOutdated):
    """An object is not there, though it is needed as far as is known."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


class StaleReadLimit:
    """Bears that what is known is out of date, but not that an object is missing again and again."""

    def __init__(self) -> None:
        self._missed = 0

    def bear(self, stale: ViewOutdated) -> None:
        """Raises `CorruptError` where an object is missing for good."""
        check_deadline()
        if isinstance(stale, ObjectMissing):
            self._missed += 1
            if self._missed == _MISSES:
                raise missing(stale.name) from stale


class CreatedTooLate(ViewOutdated):
    """Something was created, but so late that the name may have been freed before."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name
