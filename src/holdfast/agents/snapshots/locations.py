"""Where a snapshot lies: a file, or an object in a bucket."""

from __future__ import annotations

import errno
import os
import secrets
import stat
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import unquote

from holdfast.backends.fsutil import flush_folder
from holdfast.backends.interface import BlockingCall
from holdfast.backends.urls import split_options, without_password
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

Target: TypeAlias = "str | os.PathLike[str]"
"""A path, or a URL: `file:///agent.hfsnap`, `s3://bucket/agent.hfsnap`, `gs://…`, `az://…`."""

BUCKETS = ("s3", "gs", "az")


class FolderEntry(NamedTuple):
    """A name in a listing. `modified` is in seconds since 1970."""

    name: str
    size: int
    modified: float
    problem: str = ""


class Location(ABC):
    """Where a snapshot lies, or is to lie. `where` is how it may be shown."""

    where: str

    @abstractmethod
    async def read(self, most: int) -> bytes:
        """The first so many bytes, or all if there are fewer. Raises `SnapshotNotFoundError`."""

    @abstractmethod
    async def write(self, data: bytes, *, overwrite: bool) -> None:
        """Have these bytes there, durably, all of them or none. Raises `SnapshotExistsError`."""

    @abstractmethod
    async def exists(self) -> bool:
        """Whether there is anything."""

    @abstractmethod
    async def delete(self) -> None:
        """Remove it. Raises `SnapshotNotFoundError`."""


class Folder(ABC):
    """What snapshots lie in: a directory, or what has a prefix in a bucket."""

    @abstractmethod
    async def entries(self) -> list[FolderEntry]:
        """The names right in it that end as those of snapshots do, sorted."""

    @abstractmethod
    def place(self, name: str) -> Location:
        """One of them."""

    @abstractmethod
    def where(self, name: str) -> str:
        """How one of them may be shown."""


def place_of(target: Target, options: Mapping[str, Any], *, named: bool = False) -> Location:
    """The place that a path or URL names. `named` asks for a name that ends as those of snapshots do."""
    text = _text(target)
    scheme = _scheme(text) if isinstance(target, str) else ""
    last = text.partition("?")[0] if scheme else text
    if named and (not last.endswith(SUFFIX) or last.endswith(f"/{SUFFIX}") or last == SUFFIX):
        raise SnapshotInvalidError(
            f"the name of a snapshot ends in {SUFFIX}", where=without_password(text), hint=f"agent{SUFFIX}, for one"
        )
    if scheme in BUCKETS:
        from holdfast.agents.snapshots.buckets import ObjectLocation

        return ObjectLocation(text, options)
    return FileLocation(_path(text, scheme, options))


def folder_of(target: Target, options: Mapping[str, Any]) -> Folder:
    """The directory, or the prefix in a bucket, that a path or URL names."""
    text = _text(target)
    scheme = _scheme(text) if isinstance(target, str) else ""
    if scheme in BUCKETS:
        from holdfast.agents.snapshots.buckets import ObjectFolder

        return ObjectFolder(text, options)
    return FileFolder(_path(text, scheme, options))


def _text(target: Target) -> str:
    given: Any = target
    text = os.fspath(given) if isinstance(given, str | os.PathLike) else None
    if not isinstance(text, str) or not text:
        raise SnapshotInvalidError(f"{target!r} is neither a path nor a URL", hint=f"agent{SUFFIX}, or s3://bucket/…")
    if "\0" in text:
        raise SnapshotInvalidError("there is a NUL in the name", where=repr(text)[:100])
    return text


def _scheme(text: str) -> str:
    scheme, colon, _ = text.partition("://")
    if not colon or "/" in scheme:
        return ""
    if scheme != "file" and scheme not in BUCKETS:
        raise ConfigError(
            f"snapshots are not kept at {scheme}://",
            where=without_password(text),
            hint="Name a file, or s3://bucket/…, gs://bucket/…, az://container/…",
        )
    return scheme


def _path(text: str, scheme: str, options: Mapping[str, Any]) -> Path:
    rest, _ = split_options(text if scheme else f"file:///{text}", {}, options) if scheme or options else (text, {})
    if scheme:
        rest = unquote(rest.removeprefix("file:///"))
        if "://" in rest or "?" in rest or not rest:
            raise ConfigError(
                "this names no file",
                where=without_password(text),
                hint=f"file:///agent{SUFFIX} is a file here, file:////srv/agent{SUFFIX} one anywhere",
            )
        if "\0" in rest:
            raise SnapshotInvalidError("there is a NUL in the name", where=repr(text)[:100])
    return Path(rest)


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
            # Not to wait for ever at what is no file: a pipe without a writer.
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
            raise self._failed(error, "read") from error

    def _exists(self) -> bool:
        try:
            return stat.S_ISREG(self._path.stat().st_mode)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:
            raise self._failed(error, "looked for") from error

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
                    _take_name(new, self._path)
                flush_folder(self._path.parent)
            finally:
                new.unlink(missing_ok=True)
        except OSError as error:
            raise self._failed(error, "written") from error

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
            raise self._failed(error, "deleted") from error

    def _failed(self, error: OSError, done: str) -> HoldfastError:
        if isinstance(error, FileExistsError):
            return SnapshotExistsError("there is a file of this name", where=self.where, hint=TAKEN)
        if isinstance(error, (FileNotFoundError, NotADirectoryError)):
            if done == "written":
                return ConfigError("there is no such directory", where=str(self._path.parent), hint="Make it first")
            return SnapshotNotFoundError("there is no snapshot", where=self.where, hint="See what there is: list")
        what = f"the file cannot be {done}: {error.strerror or error}"
        if isinstance(error, PermissionError):
            return DeniedError(what, where=self.where)
        if isinstance(error, IsADirectoryError) or error.errno in (errno.ENAMETOOLONG, errno.ELOOP):
            return SnapshotInvalidError(what, where=self.where)
        return UnavailableError(what, where=self.where, hint="Look at the disk, and try again", code="write-failed")


TAKEN = "Take another name, or overwrite it: overwrite=True"


def _take_name(new: Path, target: Path) -> None:
    """Give a file its name, if that is free."""
    try:
        os.link(new, target)
    except FileExistsError:
        raise
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.EMLINK, errno.ENOSYS):
            raise
        # A file system without links. Reserving the name shows an empty file for a moment, and to nobody else the name.
        os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
        new.replace(target)


class FileFolder(Folder):
    """A directory."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def entries(self) -> list[FolderEntry]:
        call: BlockingCall[list[FolderEntry]] = BlockingCall(self._entries)
        return await call

    def place(self, name: str) -> Location:
        return FileLocation(self._path / name)

    def where(self, name: str) -> str:
        return str(self._path / name)

    def _entries(self) -> list[FolderEntry]:
        found = []
        try:
            with os.scandir(self._path) as entries:
                for entry in entries:
                    if not entry.name.endswith(SUFFIX) or entry.name == SUFFIX:
                        continue
                    try:
                        status = entry.stat(follow_symlinks=False)
                    except FileNotFoundError:
                        continue  # deleted meanwhile
                    problem = "" if stat.S_ISREG(status.st_mode) else "this is a link or a directory, and no file"
                    found.append(FolderEntry(entry.name, status.st_size, status.st_mtime, problem))
        except (FileNotFoundError, NotADirectoryError) as error:
            raise SnapshotNotFoundError("there is no such directory", where=str(self._path)) from error
        except OSError as error:
            raise DeniedError(f"the directory cannot be read: {error.strerror}", where=str(self._path)) from error
        return sorted(found)
