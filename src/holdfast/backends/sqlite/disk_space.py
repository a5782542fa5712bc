"""A reserve of disk space, for changes that free space.

SQLite needs space to delete, too: for the log, and for the pages of the log that were not in the file before. A store
that has filled its disk to the last byte could neither prune nor delete anything. So batches that only add are refused
a little earlier, and the log is written back before there is too little space for that.

The reserve can only be kept from this store: another program may fill the disk.
"""

from __future__ import annotations

import os

import apsw

from holdfast.backends.interface import Batch, Create, Delete
from holdfast.backends.tables import STEPS

_RESERVE = 64 << 20
_SHARE = 8
"""The size of the reserve; at most this part of the disk."""

_MAX_PAGES = 1_000
"""After how many pages that were written the space is checked again, at the latest."""


class DiskSpace:
    """The space on the disk of a file."""

    def __init__(self, path: str) -> None:
        self._log = f"{path}-wal"
        self._folder = os.path.dirname(path)  # noqa: PTH120 - called for every store that is opened
        self._reserve = 0
        self.is_low = False
        """Whether there is only the reserve."""

    def for_log(self) -> int:
        """Return how many bytes there are besides the reserve, if the log is written back; negative if too few."""
        return self._free() - self._reserve - self._log_size()

    def is_log_large(self) -> bool:
        """Return whether the log should be truncated. A smaller one stays, and its space is a part of the reserve."""
        return self._log_size() > self._reserve

    def check(self, connection: apsw.Connection) -> int:
        """Determine whether there is only the reserve. Returns after how many pages to check again.

        Free pages of the file are space, too.
        """
        size = int(connection.pragma("page_size"))
        spare = self.for_log()
        if spare < 0:
            spare = self._free() + connection.pragma("freelist_count") * size - self._reserve
        self.is_low = spare < 0
        return max(1, min(_MAX_PAGES, spare // (4 * size)))

    def vacuum_pages(self, page_size: int, most: int) -> int:
        """Return how many pages to vacuum at a time, such that there is space for that in the log."""
        return max(1, min(most, (self._free() + self._log_size()) // (4 * page_size)))

    def _log_size(self) -> int:
        try:
            return os.stat(self._log).st_size  # noqa: PTH116 - as above
        except OSError:
            return 0

    def _free(self) -> int:
        import shutil  # not for readers: it loads several compressors

        try:
            usage = shutil.disk_usage(self._folder)
        except OSError:
            return 1 << 62  # a VFS with names of its own
        self._reserve = min(_RESERVE, usage.total // _SHARE)
        return usage.free


def only_adds(batch: Batch) -> bool:
    """Return whether a batch appends steps, and removes nothing."""
    return any(isinstance(change, Create) and change.space is STEPS for change in batch) and not any(
        isinstance(change, Delete) for change in batch
    )
