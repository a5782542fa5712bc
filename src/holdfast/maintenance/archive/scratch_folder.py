"""A temporary folder with data. What a process left that was killed, the next one removes."""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

with suppress(ImportError):  # on Windows
    import fcntl

_PREFIX = "holdfast-scratch-"
_LOCK = "lock"


class ScratchFolder:
    """A folder that only this user can read, locked as long as the process lives."""

    path: Path

    def __init__(self) -> None:
        _remove_leftovers()
        while True:
            self.path = Path(tempfile.mkdtemp(prefix=_PREFIX))
            self._lock = os.open(self.path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            # Another process may just take it for one that was left.
            if _acquire(self._lock) and (self.path / _LOCK).exists():
                return
            os.close(self._lock)

    def remove(self) -> None:
        """Remove the folder and all that is in it."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def _remove_leftovers() -> None:
    """Remove the folders of processes of this user that were killed."""
    if os.name == "nt":
        return
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with suppress(OSError):
            if folder.is_symlink() or folder.stat().st_uid != os.geteuid():
                continue
            lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                if _acquire(lock):
                    shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)


def _acquire(lock: int) -> bool:
    """Lock a file. Returns False if another process has it."""
    if os.name == "nt":
        return True
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
