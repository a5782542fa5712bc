"""Files and directories."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import IO, Final, Literal

from holdfast.errors import DeniedError, NotFoundError

PRIVATE: Final = 0o600
"""The permissions of files that hold states: only their owner reads them."""


def path_exists(path: Path, where: str) -> bool:
    """Return whether there is a file or directory. Raises `DeniedError` if this user may not know."""
    try:
        return path.exists()
    except OSError as error:
        raise DeniedError(
            f"this user may not access the path of the store: {error.strerror}",
            where=where,
            hint="Grant this user read and execute permission on the parent directories",
        ) from error


def no_store_error(where: str) -> NotFoundError:
    """Return the error for a store that does not exist, and is only to be read."""
    hint = "Check the path; a store is created when it is opened for writing"
    return NotFoundError("there is no store here", where=where, hint=hint, code="no-store")


def read_only_error(where: str, hint: str = "Open it without read_only to write") -> DeniedError:
    """Return the error for a change of a store that is open for reading only."""
    return DeniedError("this store is open for reading only", where=where, hint=hint)


def open_private(path: Path, mode: Literal["wb", "xb"]) -> IO[bytes]:
    """Open a file to write it, which only its owner can read, whatever the umask: for data that is not encrypted."""
    if os.name == "nt":
        return path.open(mode)
    file: IO[bytes] = open(path, mode, opener=_open_private)  # noqa: SIM115 - the caller closes it
    os.fchmod(file.fileno(), PRIVATE)  # it may have been left by an earlier attempt
    return file


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, PRIVATE)


def create_empty(path: Path, mode: int) -> None:
    """Create a file with these permissions, whatever the umask, if there is none. It is never opened: to close a file
    gives up the locks that other threads have on it. Where that is not possible, nothing happens."""
    try:
        os.mknod(path, mode | stat.S_IFREG)
        if mode != PRIVATE:
            path.chmod(mode)
    except (OSError, AttributeError):
        return


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
