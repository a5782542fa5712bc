"""Folders on a disk."""

from __future__ import annotations

import errno
import os
from pathlib import Path


def flush_folder(folder: Path) -> None:
    """Have the names in a folder durable, where folders can be flushed."""
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Whatever it says: the name is there, and would be taken for flushed when it is met again.
        raise OSError(errno.EIO, f"{error.strerror}, while a folder was flushed", str(folder)) from error
    finally:
        os.close(descriptor)
