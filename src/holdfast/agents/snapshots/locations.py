"""Locations of snapshots: the interface, and files."""

from __future__ import annotations

import errno
import os
import secrets
import stat
from abc import ABC, abstractmethod
from pathlib import Path
from typing import NamedTuple

from holdfast.backends.fsutil import flush_folder
from holdfast.backends.interface import BlockingCall
from holdfast.errors import (
    ConfigError,
    DeniedError,
    HoldfastError,
    SnapshotCorruptError,
    SnapshotExistsError,
    SnapshotInvalidError,
    SnapshotNotFoundError,
    UnavailableError,
)

SUFFIX = ".hfsnap"


class FolderEntry(NamedTuple):
    """A snapshot in a listing. `modified` is in seconds since 1970."""

    name: str
    size: int
    modified: float
    problem: str = ""


class Location(ABC):
    """The location of a snapshot. `where` is its name for errors, without secrets."""

    where: str

    @abstractmethod
    async def read(self, most: int) -> bytes:
        """Return the first `most` bytes, or all if there are fewer. Raises `SnapshotNotFoundError`."""

    @abstractmethod
    async def write(self, data: bytes, *, overwrite: bool) -> None:
        """Write these bytes durably, all of them or none. Raises `SnapshotExistsError`."""

    @abstractmethod
    async def exists(self) -> bool:
        """Return whether something exists at the location."""

    @abstractmethod
    async def delete(self) -> None:
        """Delete the snapshot. Raises `SnapshotNotFoundError`."""


class Folder(ABC):
    """A container of snapshots: a directory, or a prefix in a bucket."""

    @abstractmethod
    async def entries(self) -> list[FolderEntry]:
        """Return the entries directly in it whose names have the suffix of snapshots, sorted."""

    @abstractmethod
    def location(self, name: str) -> Location:
        """Return the location of an entry."""

    @abstractmethod
    def where(self, name: str) -> str:
        """Return the name of an entry for errors."""


class FileLocation(Location):
    """A file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.where = str(path)

    async def read(self, most: int) -> bytes:
        call: BlockingCall[bytes] = BlockingCall(lambda: self._read(most))
        return await call

    async def write(self, data: bytes, *, overwrite: bool) -> None:
        call: BlockingCall[None] = BlockingCall(lambda: self._write(data, overwrite))
        await call

    async def exists(self) -> bool:
        call: BlockingCall[bool] = BlockingCall(self._exists)
        return await call

    async def delete(self) -> None:
        call: BlockingCall[None] = BlockingCall(self._delete)
        await call

    def _read(self, most: int) -> bytes:
        try:
            # Do not wait forever for something that is no file, such as a pipe without a writer.
            file = os.open(self._path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
            try:
                if not stat.S_ISREG(os.fstat(file).st_mode):
                    raise SnapshotCorruptError("this is no file", where=self.where)
                parts, left = [], most
                while left > 0 and (part := os.read(file, min(left, 1 << 24))):
                    parts.append(part)
                    left -= len(part)
                return b"".join(parts)
            finally:
                os.close(file)
        except OSError as error:
            raise self._build_error(error, "read") from error

    def _exists(self) -> bool:
        try:
            return stat.S_ISREG(self._path.stat().st_mode)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:
            raise self._build_error(error, "looked for") from error

    def _write(self, data: bytes, overwrite: bool) -> None:
        new = self._path.with_name(f".{self._path.name}.{secrets.token_hex(4)}.part")
        try:
            try:
                with new.open("xb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
                if overwrite:
                    new.replace(self._path)
                else:
                    _claim_name(new, self._path)
                flush_folder(self._path.parent)
            finally:
                new.unlink(missing_ok=True)
        except OSError as error:
            raise self._build_error(error, "written") from error

    def _delete(self) -> None:
        try:
            if not stat.S_ISREG(self._path.lstat().st_mode):
                raise SnapshotInvalidError(
                    "this is a link or a directory, and no file",
                    where=self.where,
                    hint="Name the snapshot itself",
                )
            self._path.unlink()
            flush_folder(self._path.parent)
        except OSError as error:
            raise self._build_error(error, "deleted") from error

    def _build_error(self, error: OSError, operation: str) -> HoldfastError:
        if isinstance(error, FileExistsError):
            return SnapshotExistsError("there is a file of this name", where=self.where, hint=EXISTS_HINT)
        if isinstance(error, (FileNotFoundError, NotADirectoryError)):
            if operation == "written":
                return ConfigError("there is no such directory", where=str(self._path.parent), hint="Make it first")
            return SnapshotNotFoundError(
                "there is no snapshot", where=self.where, hint="List the snapshots to see which exist"
            )
        what = f"the file cannot be {operation}: {error.strerror or error}"
        if isinstance(error, PermissionError):
            return DeniedError(what, where=self.where)
        if isinstance(error, IsADirectoryError) or error.errno in (errno.ENAMETOOLONG, errno.ELOOP):
            return SnapshotInvalidError(what, where=self.where)
        return UnavailableError(what, where=self.where, hint="Check the disk, and try again", code="write-failed")


EXISTS_HINT = "Use another name, or overwrite it: overwrite=True"


def _claim_name(new: Path, target: Path) -> None:
    """Give a file its name, if that is not in use."""
    try:
        os.link(new, target)
    except FileExistsError:
        raise
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.EMLINK, errno.ENOSYS):
            raise
        # A file system without links. The reserved name is an empty file for a moment, and nobody else gets the name.
        os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
        new.replace(target)


class FileFolder(Folder):
    """A directory."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def entries(self) -> list[FolderEntry]:
        call: BlockingCall[list[FolderEntry]] = BlockingCall(self._entries)
        return await call

    def location(self, name: str) -> Location:
        return FileLocation(self._path / name)

    def where(self, name: str) -> str:
        return str(self._path / name)

    def _entries(self) -> list[FolderEntry]:
        snapshots = []
        try:
            with os.scandir(self._path) as entries:
                for entry in entries:
                    if not entry.name.endswith(SUFFIX) or entry.name == SUFFIX:
                        continue
                    try:
                        status = entry.stat(follow_symlinks=False)
                    except FileNotFoundError:
                        continue  # deleted in the meantime
                    problem = "" if stat.S_ISREG(status.st_mode) else "this is a link or a directory, and no file"
                    snapshots.append(FolderEntry(entry.name, status.st_size, status.st_mtime, problem))
        except (FileNotFoundError, NotADirectoryError) as error:
            raise SnapshotNotFoundError("there is no such directory", where=str(self._path)) from error
        except OSError as error:
            raise DeniedError(f"the directory cannot be read: {error.strerror}", where=str(self._path)) from error
        return sorted(snapshots)
