"""Where tests and their servers keep temporary files."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

MEMORY = Path("/dev/shm")
_ENOUGH = 4 << 30
"""How many bytes have to be free in memory for the files to lie there."""


def temporary_root() -> Path:
    """The directory for temporary files: in memory where there is plenty, since stores and servers flush often.

    A process that is killed loses nothing there that it would not lose elsewhere. TMPDIR names another directory.
    """
    if "TMPDIR" in os.environ or not os.access(MEMORY, os.W_OK | os.X_OK):
        return Path(tempfile.gettempdir())
    free = os.statvfs(MEMORY)
    return MEMORY if free.f_bavail * free.f_frsize >= _ENOUGH else Path(tempfile.gettempdir())
