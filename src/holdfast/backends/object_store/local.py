"""A store in a directory of files, which several processes on one machine or on a shared file system may use.

`file:agents` is a directory in the current one, `file:///var/lib/agents` one anywhere.

Options, as arguments or in the URL's query:

- `grace`: for how many seconds what was folded or deleted stays on the disk, 60 by default. Processes whose clocks
  differ by more than half of it must not share a store.
- `read_only`: look at a store that is there, and change nothing; also where this user may not write.
- `timeout`: for how many seconds to go on trying while the disk is full or another writer is in the way, 30 by default.
"""

from __future__ import annotations

import asyncio
import errno
import os
import secrets
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from io import FileIO
from pathlib import Path
from typing import Any, TypeVar

from holdfast.backends.async_backend import TIMEOUT, ServerInterrupted
from holdfast.backends.fsutil import flush_folder, path_exists
from holdfast.backends.object_store import object_names
from holdfast.backends.object_store.backend import ObjectStoreBackend
from holdfast.backends.object_store.object_storage import ObjectInfo, ObjectStorage
from holdfast.backends.urls import parse_bool, parse_duration, redacted_url, split_options, url_to_path
from holdfast.errors import ConfigError, DeniedError, NotFoundError, UnavailableError

T = TypeVar("T")

GRACE = 60.0
_KNOWN = {"grace": GRACE, "timeout": TIMEOUT, "read_only": False}
_TEMPORARY = "new"
_PASSING = {errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.EINTR}
_THREADS = 8
_TRIES = 10
_KNOWN_FOLDERS = 10_000


class FileBackend(ObjectStoreBackend):
    """`file:///var/lib/agents`: a store of files."""

    schemes = ("file",)
    takes_read_only = True

    def __init__(self, url: str, folder: Path, timeout: float, grace: float, read_only: bool = False) -> None:
        super().__init__(url, timeout, grace)
        self._folder = folder
        self._read_only = read_only

    @classmethod
    async def open(cls, url: str, **options: Any) -> FileBackend:
        """Open a directory, and make it if it is not there. The module says which options there are."""
        rest, given = split_options(url, _KNOWN, options)
        path = url_to_path(rest)
        if path is None or not rest.startswith("file:") or "?" in rest or "#" in rest:
            raise ConfigError(
                "this names no directory",
                where=redacted_url(url),
                hint="Open file:agents for a directory here, or file:///var/lib/agents for one anywhere",
            )
        timeout = parse_duration(url, "timeout", given.get("timeout", TIMEOUT), 0.001)
        grace = parse_duration(url, "grace", given.get("grace", GRACE), 10)
        read_only = parse_bool(url, "read_only", given.get("read_only", False))
        folder = path.absolute()
        if read_only and not path_exists(folder / object_names.FORMAT, str(folder)):
            raise NotFoundError(
                "there is no store here",
                where=str(folder),
                hint="Check the path; a store is made when it is opened for writing",
                code="no-store",
            )
        store = cls(redacted_url(rest), folder, timeout, grace, read_only)
        await store.start()
        return store

    def _blobs(self) -> ObjectStorage:
        return DirectoryStorage(self._folder, self._read_only)


class DirectoryStorage(ObjectStorage):
    """Objects as files. A file appears under its name only when all of it is on the disk.

    That the name is on the disk too, whoever created it sees to before he says so. Whoever reads what others go by,
    a birth, a fold or a decision, sees to it as well: else he might write what survives a power cut that it does not.
    """

    def __init__(self, root: Path, read_only: bool = False) -> None:
        self._root = root
        self._read_only = read_only
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="holdfast-files")
        self._broken = ""
        self._flushed: dict[Path, int] = {}
        """Folders whose way from the root is on the disk, and the inode that each has."""
        try:
            if not read_only:
                self._have_folder(root / _TEMPORARY)
        except OSError as error:
            raise _config(root, error) from error

    async def create(self, name: str, data: bytes) -> bool:
        self._check_writing()
        return await self._blocking(lambda: self._create(name, data))

    async def put(self, name: str, data: bytes) -> None:
        self._check_writing()
        await self._blocking(lambda: self._put(name, data))

    async def get(self, name: str, start: int = 0, length: int | None = None) -> bytes | None:
        return await self._blocking(lambda: self._get(name, start, length))

    async def listed(self, prefix: str) -> list[ObjectInfo]:
        return await self._blocking(lambda: self._list(prefix))

    async def folders(self, prefix: str) -> list[str]:
        return await self._blocking(lambda: self._folders(prefix))

    async def delete(self, names: Sequence[str]) -> None:
        self._check_writing()
        await self._blocking(lambda: self._delete(names))

    async def sweep(self, before: float) -> None:
        self._check_writing()
        await self._blocking(lambda: self._sweep(before))

    async def close(self) -> None:
        self._threads.shutdown()

    def _check_writing(self) -> None:
        if self._read_only:
            raise DeniedError(
                "this store is open for reading only",
                where=str(self._root),
                hint="Open it without read_only to write",
            )

    async def _blocking(self, function: Callable[[], T]) -> T:
        try:
            if self._broken:
                raise OSError(errno.EIO, self._broken)
            return await asyncio.get_running_loop().run_in_executor(self._threads, function)
        except OSError as error:
            if error.errno in _PASSING:
                raise ServerInterrupted(str(error)) from error
            if error.errno != errno.EIO:
                raise _config(self._root, error) from error
            # What a failed flush left on the disk is not known, and flushing again would not tell.
            self._broken = self._broken or str(error.strerror)
            raise UnavailableError(
                f"the disk failed: {error}", where=str(self._root), hint="Look at the disk, and open the store anew"
            ) from error

    def _create(self, name: str, data: bytes) -> bool:
        temporary = self._write(data)
        target = self._root / name
        try:
            for _ in range(_TRIES):
                try:
                    self._have_folder(target.parent)
                    os.link(temporary, target)
                except FileExistsError:
                    return False
                except FileNotFoundError:
                    continue  # somebody has just removed the folder, since nothing was in it
                self._flush_created(target.parent)
                return True
            raise OSError(errno.EAGAIN, "the folder is removed again and again", str(target.parent))
        finally:
            temporary.unlink(missing_ok=True)  # after a long pause, another may have swept it

    def _flush_created(self, folder: Path) -> None:
        """Flush a folder in which something was created: that is there now, whatever hinders."""
        try:
            flush_folder(folder)
        except OSError as error:
            raise OSError(errno.EIO, f"{error.strerror}, while a folder was flushed", str(folder)) from error

    def _put(self, name: str, data: bytes) -> None:
        temporary = self._write(data)
        target = self._root / name
        try:
            temporary.replace(target)
        except FileNotFoundError:
            temporary.unlink()  # the folder is gone, and what was to be replaced
        else:
            flush_folder(target.parent)

    def _write(self, data: bytes) -> Path:
        temporary = self._root / _TEMPORARY / secrets.token_hex(16)
        flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | getattr(os, "O_BINARY", 0)
        file = os.open(temporary, flags, 0o666)
        try:
            try:
                rest = memoryview(data)
                while rest:
                    rest = rest[os.write(file, rest) :]
                os.fsync(file)
            finally:
                os.close(file)
        except BaseException:
            temporary.unlink()
            raise
        return temporary

    def _get(self, name: str, start: int, length: int | None) -> bytes | None:
        path = self._root / name
        try:
            with path.open("rb", buffering=0) as file:
                file.seek(start)
                data = file.read() if length is None else _read(file, length)
            relied_on = name.startswith(object_names.TRANSACTIONS) or path.parent.name == "fold" or path.name == "birth"
            if relied_on and not self._read_only:
                self._have_folder(path.parent)
                flush_folder(path.parent)
        except (FileNotFoundError, NotADirectoryError):
            return None
        return data

    def _list(self, prefix: str) -> list[ObjectInfo]:
        found: list[ObjectInfo] = []
        waiting = [prefix]
        while waiting:
            folder = waiting.pop()
            for entry in _entries(self._root / folder):
                name = f"{folder}/{entry.name}" if folder else entry.name
                try:
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(name)
                    else:
                        status = entry.stat(follow_symlinks=False)
                        found.append(ObjectInfo(name, status.st_size, status.st_mtime))
                except FileNotFoundError:
                    continue  # gone meanwhile
        return found

    def _folders(self, prefix: str) -> list[str]:
        found = (entry for entry in _entries(self._root / prefix) if entry.is_dir(follow_symlinks=False))
        return [entry.name for entry in found if next(iter(_entries(Path(entry.path))), None) is not None]

    def _delete(self, names: Sequence[str]) -> None:
        folders: set[Path] = set()
        for name in names:
            path = self._root / name
            path.unlink(missing_ok=True)
            folders.add(path.parent)
        for folder in folders:
            try:
                flush_folder(folder)
            except FileNotFoundError:
                continue  # another has removed it
            self._remove_empty(folder)

    def _remove_empty(self, folder: Path) -> None:
        """Remove a folder if nothing is in it, and then the one that it is in."""
        while folder != self._root:
            try:
                folder.rmdir()
            except OSError as error:
                if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT, errno.EBUSY, errno.EACCES):
                    return
                raise
            folder = folder.parent

    def _sweep(self, before: float) -> None:
        for entry in _entries(self._root / _TEMPORARY):
            try:
                if entry.stat().st_mtime < before:
                    Path(entry.path).unlink()
            except FileNotFoundError:
                continue  # its writer has done with it

    def _have_folder(self, folder: Path) -> None:
        """Have a folder, and the way to it on the disk; also where another process has made it and not flushed yet."""
        try:
            if self._flushed.get(folder) == folder.stat().st_ino:
                return
        except FileNotFoundError:
            pass  # it is made below
        if folder != self._root:
            self._have_folder(folder.parent)
            folder.mkdir(exist_ok=True)
        else:
            folder.mkdir(parents=True, exist_ok=True)
        flush_folder(folder.parent)
        if len(self._flushed) > _KNOWN_FOLDERS:
            self._flushed.clear()
        self._flushed[folder] = folder.stat().st_ino


def _read(file: FileIO, length: int) -> bytes:
    data = file.read(length)
    while len(data) < length and (more := file.read(length - len(data))):
        data += more
    return data


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except (FileNotFoundError, NotADirectoryError):
        return []


def _config(root: Path, error: OSError) -> ConfigError:
    return ConfigError(
        f"the directory cannot be used: {error}",
        where=str(root),
        hint="It has to be on a file system with hard links, and this user has to be allowed to write there",
    )
