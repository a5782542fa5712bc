"""Locations of snapshots: an object in a storage, such as a file in a directory, by its path or URL; or a file
object."""

from __future__ import annotations

import errno
import functools
import io
import os
import secrets
import stat
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple, TypeAlias, TypeVar
from urllib.parse import unquote

from holdfast.backends.fsutil import PRIVATE, flush_folder, open_private
from holdfast.backends.interface import BlockingCall
from holdfast.backends.object_store.object_storage import ObjectInfo, ObjectStorage
from holdfast.backends.object_store.request_storage import RequestStorage
from holdfast.backends.urls import redacted_url, split_options, url_to_path
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

T = TypeVar("T")

SUFFIX = ".hfsnap"


async def _blocking(function: Callable[[], T]) -> T:
    call: BlockingCall[T] = BlockingCall(function)
    return await call


class SnapshotStorage(ObjectStorage):
    """A storage of objects for sync callers and asyncio."""

    @abstractmethod
    def where(self, name: str) -> str:
        """Return the path or URL of an object for errors, without secrets."""


class Location(NamedTuple):
    """The location of a snapshot: a storage, and a name in it."""

    storage: SnapshotStorage
    name: str

    @property
    def where(self) -> str:
        """The path or URL for errors."""
        return self.storage.where(self.name)

    async def read(self, most: int) -> bytes:
        """Return the first `most` bytes, or all if there are fewer. Raises `SnapshotNotFoundError`."""
        data = await self.storage.get(self.name, 0, most)
        if data is None:
            raise self._missing_error()
        return data

    async def write(self, data: bytes, *, overwrite: bool) -> None:
        """Write these bytes durably, all of them or none. Raises `SnapshotExistsError`."""
        if overwrite:
            await self.storage.put(self.name, data)
        elif not await self.storage.create(self.name, data):
            hint = "Use another name, or overwrite it: overwrite=True"
            raise SnapshotExistsError("this name is in use", where=self.where, hint=hint)

    async def exists(self) -> bool:
        """Return whether there is a snapshot, or another file."""
        return await self.storage.exists(self.name)

    async def delete(self) -> None:
        """Delete the snapshot. Raises `SnapshotNotFoundError`."""
        if not await self.exists():
            raise self._missing_error()
        await self.storage.delete([self.name])

    def _missing_error(self) -> SnapshotNotFoundError:
        hint = "List the snapshots to see which exist"
        return SnapshotNotFoundError("there is no snapshot at this path", where=self.where, hint=hint)


class FileObject:
    """The location that is a binary file object of the caller, or bytes: one snapshot, from the current position on. A
    position that can be set is, after a read, where it was before."""

    def __init__(self, file: Any) -> None:
        self._file = file
        name = getattr(file, "name", "")
        self.where: str = name if isinstance(name, str) and name else "file object"

    async def read(self, most: int) -> bytes:
        """Return the first `most` bytes, or all if there are fewer."""
        return await _blocking(lambda: self._guarded("read", lambda: self._read(most)))

    async def write(self, data: bytes, *, overwrite: bool) -> None:  # noqa: ARG002 - nothing is there
        """Write these bytes."""
        await BlockingCall(lambda: self._guarded("written", lambda: self._write(data)))

    async def exists(self) -> bool:
        """Raise `SnapshotInvalidError`: only a name can be in use."""
        raise SnapshotInvalidError("a file object has no path to check for", where=self.where)

    async def delete(self) -> None:
        """Raise `SnapshotInvalidError`."""
        await self.exists()

    def _write(self, data: bytes) -> None:
        left = memoryview(data)
        while left:  # a file without a buffer may take a part
            taken = self._file.write(left)
            left = left[len(left) if taken is None else taken :]
        if hasattr(self._file, "flush"):
            self._file.flush()

    def _read(self, most: int) -> bytes:
        file = self._file
        position = file.tell() if hasattr(file, "seekable") and file.seekable() else None
        parts, size = [], 0
        while size != most and (part := file.read(most - size)):
            parts.append(part)
            size += len(part)
        if position is not None:
            file.seek(position)
        return b"".join(parts)

    def _guarded(self, operation: str, work: Callable[[], T]) -> T:
        try:
            return work()
        except OSError as error:
            raise _file_error(error, Path(self.where), operation) from error
        except (TypeError, ValueError, AttributeError) as error:  # of a text, or a closed file
            raise SnapshotInvalidError(
                f"the file object cannot be {operation}: {error}",
                where=self.where,
                hint="Open it in binary mode: 'rb', 'wb'",
            ) from error


class PlainDirectory(SnapshotStorage):
    """The files of a directory that is not a store's: it must exist, and gets nothing but the files themselves."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def where(self, name: str) -> str:
        return str(self._path / name)

    async def create(self, name: str, data: bytes) -> bool:
        return await _blocking(lambda: self._write(self._path / name, data, overwrite=False))

    async def put(self, name: str, data: bytes) -> None:
        await BlockingCall(lambda: self._write(self._path / name, data, overwrite=True))

    async def get(self, name: str, start: int = 0, length: int | None = None) -> bytes | None:
        return await _blocking(lambda: self._read(self._path / name, start, length))

    async def exists(self, name: str) -> bool:
        return await _blocking(lambda: self._exists(self._path / name))

    async def list_objects(self, prefix: str) -> list[ObjectInfo]:
        return await _blocking(lambda: self._list(self._path / prefix))

    async def delete(self, names: Sequence[str]) -> None:
        for path in map(self._path.joinpath, names):
            await BlockingCall(functools.partial(self._delete, path))

    def _read(self, path: Path, start: int, length: int | None) -> bytes | None:
        try:
            # Do not wait forever for something that is no file, such as a pipe without a writer.
            file = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
            try:
                status = os.fstat(file)
                if not stat.S_ISREG(status.st_mode):
                    raise SnapshotCorruptError("this is not a file", where=str(path))
                with open(file, "rb", closefd=False) as opened:
                    opened.seek(start)
                    left = max(0, status.st_size - start)
                    return opened.read(left if length is None else min(length, left))
            finally:
                os.close(file)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise _file_error(error, path, "read") from error

    def _exists(self, path: Path) -> bool:
        try:
            return stat.S_ISREG(path.stat().st_mode)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:
            raise _file_error(error, path, "looked for") from error

    def _write(self, path: Path, data: bytes, *, overwrite: bool) -> bool:
        """Write a file. Returns False if the name is in use, and the file is not to be overwritten."""
        new = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
        try:
            try:
                with open_private(new, "xb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
                if overwrite:
                    new.replace(path)
                else:
                    _claim_name(new, path)
                flush_folder(path.parent)
            finally:
                new.unlink(missing_ok=True)
        except FileExistsError:
            return False
        except (FileNotFoundError, NotADirectoryError) as error:
            raise ConfigError("there is no such directory", where=str(path.parent), hint="Create it first") from error
        except OSError as error:
            raise _file_error(error, path, "written") from error
        return True

    def _delete(self, path: Path) -> None:
        try:
            if not stat.S_ISREG(path.lstat().st_mode):
                raise SnapshotInvalidError(_NO_FILE, where=str(path), hint="Name the snapshot itself")
            path.unlink()
            flush_folder(path.parent)
        except FileNotFoundError:
            return  # deleted in the meantime
        except OSError as error:
            raise _file_error(error, path, "deleted") from error

    def _list(self, path: Path) -> list[ObjectInfo]:
        files = []
        try:
            with os.scandir(path) as entries:
                for entry in entries:
                    try:
                        status = entry.stat(follow_symlinks=False)
                    except FileNotFoundError:
                        continue  # deleted in the meantime
                    problem = "" if stat.S_ISREG(status.st_mode) else _NO_FILE
                    files.append(ObjectInfo(entry.name, status.st_size, status.st_mtime, problem))
        except (FileNotFoundError, NotADirectoryError) as error:
            raise SnapshotNotFoundError("there is no such directory", where=str(path)) from error
        except OSError as error:
            raise DeniedError(f"the directory cannot be read: {error.strerror}", where=str(path)) from error
        return files


_NO_FILE = "this is a link or a directory, not a file"


def _claim_name(new: Path, path: Path) -> None:
    """Give a file its name, if that is not in use."""
    try:
        os.link(new, path)
    except FileExistsError:
        raise
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.EMLINK, errno.ENOSYS):
            raise
        # A file system without links. The reserved name is an empty file for a moment, and nobody else gets the name.
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, PRIVATE))
        new.replace(path)


def _file_error(error: OSError, path: Path, operation: str) -> HoldfastError:
    what = f"the file cannot be {operation}: {error.strerror or error}"
    if isinstance(error, PermissionError):
        return DeniedError(what, where=str(path))
    if isinstance(error, IsADirectoryError) or error.errno in (errno.ENAMETOOLONG, errno.ELOOP):
        return SnapshotInvalidError(what, where=str(path))
    return UnavailableError(what, where=str(path), hint="Check the disk, and try again", code="write-failed")


Target: TypeAlias = "str | os.PathLike[str]"
"""A path, or a URL: `file:///srv/agent.hfsnap`, `s3://bucket/agent.hfsnap`, `gs://…`, `az://…`."""

FileTarget: TypeAlias = "Target | IO[bytes]"
"""A path, a URL, or a binary file object to write to."""

FileSource: TypeAlias = "Target | IO[bytes] | bytes | bytearray | memoryview"
"""A path, a URL, a binary file object to read from, or the bytes of a snapshot."""

_BUCKETS = ("s3", "gs", "az")


def locate(target: FileSource, options: Mapping[str, Any], *, require_suffix: bool = False) -> Location | FileObject:
    """Return the location that a path or URL names, or that a file object, or bytes to read, are."""
    if isinstance(target, bytes | bytearray | memoryview) and not require_suffix:
        target = io.BytesIO(target)
    if not isinstance(target, str | os.PathLike) and (hasattr(target, "read") or hasattr(target, "write")):
        split_options("file:", {}, options)  # refuses them
        return FileObject(target)
    text = _text(target)
    scheme = _scheme(text) if isinstance(target, str) else ""
    last = text.partition("?")[0] if scheme else text
    if require_suffix and (not last.endswith(SUFFIX) or last.endswith(f"/{SUFFIX}") or last == SUFFIX):
        raise SnapshotInvalidError(
            f"the name of a snapshot must end in {SUFFIX}", where=redacted_url(text), hint=f"For example agent{SUFFIX}"
        )
    if scheme in _BUCKETS:
        url, name = _split(text)
        return Location(_open_bucket(url, options), name)
    path = _path(text, scheme, options)
    return Location(PlainDirectory(path.parent), path.name)


def locate_folder(target: Target, options: Mapping[str, Any]) -> SnapshotStorage:
    """Return the directory, or the prefix in a bucket, that a path or URL names."""
    text = _text(target)
    scheme = _scheme(text) if isinstance(target, str) else ""
    if scheme in _BUCKETS:
        return _open_bucket(text, options)
    return PlainDirectory(_path(text, scheme, options))


def _open_bucket(url: str, options: Mapping[str, Any]) -> SnapshotStorage:
    from holdfast.backends.registry import backend_for

    backend_for(url)  # its error says what to install
    return SnapshotBucket(url, options)


def _split(url: str) -> tuple[str, str]:
    """Return the URL of the prefix of an object, and the object's name there."""
    check_url(url)
    address, mark, query = url.partition("?")
    folder, _, name = address.rpartition("/")
    if not name or folder.endswith(":/"):
        raise SnapshotInvalidError(
            "the URL does not name an object", where=redacted_url(url), hint="s3://bucket/agent.hfsnap"
        )
    return f"{folder}{mark}{query}", unquote(name)


def _text(target: object) -> str:
    value: Any = target
    text = os.fspath(value) if isinstance(value, str | os.PathLike) else None
    if not isinstance(text, str) or not text:
        raise SnapshotInvalidError(f"{target!r} is neither a path nor a URL", hint=f"agent{SUFFIX}, or s3://bucket/…")
    if "\0" in text:
        raise SnapshotInvalidError("the name contains a NUL character", where=repr(text)[:100])
    return text


def _scheme(text: str) -> str:
    scheme, colon, _ = text.partition("://")
    if text.startswith("file:"):
        return "file"
    if not colon or "/" in scheme:
        return ""
    if scheme not in _BUCKETS:
        raise ConfigError(
            f"snapshots cannot be stored at {scheme}://",
            where=redacted_url(text),
            hint="Name a file, or s3://bucket/…, gs://bucket/…, az://container/…",
        )
    return scheme


def _path(text: str, scheme: str, options: Mapping[str, Any]) -> Path:
    split_options("file:", {}, options)  # refuses them
    if not scheme:
        return Path(text)
    path = url_to_path(text)
    if path is None or "?" in text:
        raise ConfigError(
            "the URL does not name a file",
            where=redacted_url(text),
            hint=f"file:agent{SUFFIX} is a file here, file:///srv/agent{SUFFIX} one anywhere",
        )
    if "\0" in str(path):
        raise SnapshotInvalidError("the name contains a NUL character", where=repr(text)[:100])
    return path


def check_url(url: str) -> None:
    """Refuse the URL of a bucket with a name that others may read differently."""
    check_name(unquote(url.partition("?")[0].partition("://")[2].rstrip("/")), redacted_url(url))


def check_name(path: str, where: str) -> None:
    """Refuse names that others may read differently: `..` of a gateway to files, control characters in a log."""
    if any(part in ("", ".", "..") for part in path.split("/")) or not path.isprintable():
        raise SnapshotInvalidError(
            "a name in a bucket has no empty parts, no `.` or `..`, and no control characters",
            where=where if path.isprintable() else repr(where),
        )


class SnapshotBucket(RequestStorage, SnapshotStorage):
    """A prefix in a bucket."""

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        check_url(url)
        from holdfast.backends.object_store.cloud import Bucket

        bucket, where, timeout = Bucket.at(url, options)
        self._where = where.rstrip("/")
        super().__init__(bucket, "the service", self._where, timeout)

    def where(self, name: str) -> str:
        return f"{self._where}/{name}"

    async def get(self, name: str, start: int = 0, length: int | None = None) -> bytes | None:
        check_name(name, self.where(name))
        return await super().get(name, start, length)
