"""Files and directories."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from holdfast.errors import DeniedError


def path_exists(path: Path, where: str) -> bool:
    """Return whether there is a file or directory. Raises `DeniedError` if this user may not know."""
    try:
        return path.exists()
    except OSError as error:
        raise DeniedError(
            f"this user may not look for the store: {error.strerror}",
            where=where,
            hint="Grant entering the directories above it, and reading there",
        ) from error


def flush_folder(folder: Path) -> None:
    """Make the names in a directory durable, where directories can be flushed."""
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # As EIO, whatever it was: the name exists, and would be taken for flushed by the next reader.
        raise OSError(errno.EIO, f"{error.strerror}, while a directory was flushed", str(folder)) from error
    finally:
        os.close(descriptor)
