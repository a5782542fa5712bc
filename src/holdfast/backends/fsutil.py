"""Files and directories."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import IO, Final, Literal

from holdfast.errors import DeniedError

_PRIVATE: Final = 0o600


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


def open_private(path: Path, mode: Literal["wb", "xb"]) -> IO[bytes]:
    """Open a file to write it, which only its owner can read, whatever the umask: for data that is not encrypted."""
    if os.name == "nt":
        return path.open(mode)
    file: IO[bytes] = open(path, mode, opener=_open_private)  # noqa: SIM115 - the caller closes it
    os.fchmod(file.fileno(), _PRIVATE)  # it may have been left by an earlier attempt
    return file


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, _PRIVATE)


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
