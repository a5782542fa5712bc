"""A store in a directory of files, which several processes on one machine or on a shared file system may use.

`file:agents` is a directory in the current one, `file:///var/lib/agents` one anywhere.

Options, as arguments or in the URL's query:

- `grace`: for how many seconds folded and deleted objects stay on the disk, 60 by default. Processes whose clocks
  differ by more than half of it must not share a store.
- `file_mode`: the permissions of files, 600 by default: only this user reads them. Who may read a file may enter its
  directory.
- `read_only`: open an existing store without changing anything, even if this user may not write.
- `timeout`: for how many seconds to retry while others write the same thread, or too many files are open; 30 by
  default. A full disk is reported at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import itertools
import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from io import FileIO
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from holdfast.backends.async_backend import TIMEOUT, ServerInterrupted
from holdfast.backends.fsutil import PRIVATE, flush_folder, no_store_error, path_exists, read_only_error
from holdfast.backends.object_store import object_names
from holdfast.backends.object_store.backend import ObjectStoreBackend
from holdfast.backends.object_store.object_storage import PAGE, ObjectInfo, ObjectStorage
from holdfast.backends.urls import parse_bool, parse_duration, parse_mode, redacted_url, split_options, url_to_path
from holdfast.errors import (
    ConfigError,
    TransientError,
    UnavailableError,
)

T = TypeVar("T")

GRACE = 60.0
_OPTIONS = {"grace": GRACE, "timeout": TIMEOUT, "read_only": False, "file_mode": PRIVATE}
_TEMPORARY_FOLDER = "new"
_TEMPORARY_ERRORS = {errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.EINTR}
_FULL = {errno.ENOSPC, errno.EDQUOT}
_THREADS = 8
_ATTEMPTS = 10
_CACHED_FOLDERS = 10_000


class FileBackend(ObjectStoreBackend):
    """`file:///var/lib/agents`: a store of files."""

    schemes: ClassVar[tuple[str, ...]] = ("file",)
    takes_read_only = True
    medium = "the directory"

    def __init__(
        self, url: str, folder: Path, timeout: float, grace: float, read_only: bool = False, file_mode: int = PRIVATE
    ) -> None:
        super().__init__(url, timeout, grace)
        self._file_mode = file_mode
        self._folder = folder
        self._read_only = read_only

    @classmethod
    async def open(cls, url: str, **options: Any) -> FileBackend:
        """Open a directory, and create it if it does not exist. The module documents the options."""
        rest, chosen = split_options(url, _OPTIONS, options)
        path = url_to_path(rest)
        if path is None or not rest.startswith("file:") or "?" in rest or "#" in rest:
            raise ConfigError(
                "this is not the URL of a directory",
                where=redacted_url(url),
                hint="Open file:agents for a directory here, or file:///var/lib/agents for one anywhere",
            )
        timeout = parse_duration(url, "timeout", chosen.get("timeout", TIMEOUT), 0.001)
        grace = parse_duration(url, "grace", chosen.get("grace", GRACE), 10)
        read_only = parse_bool(url, "read_only", chosen.get("read_only", False))
        file_mode = parse_mode(url, "file_mode", chosen.get("file_mode", PRIVATE))
        folder = path.absolute()
        if read_only and not path_exists(folder / object_names.FORMAT, str(folder)):
            raise no_store_error(str(folder))
        store = cls(redacted_url(rest), folder, timeout, grace, read_only, file_mode)
        await store.start()
        return store

    def _open_storage(self) -> ObjectStorage:
        return DirectoryStorage(self._folder, self._read_only, file_mode=self._file_mode)


class DirectoryStorage(ObjectStorage):
    """Objects as files. A file appears under its name only when all of it is on the disk.

    The creator flushes the name, too, before it reports success. A process that reads the first object of a generation,
    a fold or a decision flushes its name as well: else it might write something that survives a power cut when that
    does not.
    """

    def __init__(self, root: Path, read_only: bool = False, *, file_mode: int = PRIVATE) -> None:
        """Files are created with `file_mode`, and folders such that who may read the files may enter them."""
        self._file_mode = file_mode
        self._folder_mode = file_mode | (file_mode & 0o444) >> 2
        self._root = root
        self._read_only = read_only
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="holdfast-files")
        self._unflushed: set[Path] = set()
        """Folders that could not be flushed."""
        self._flushed: dict[Path, int] = {}
        """Folders that are flushed with all their parents, and their inodes."""
        try:
            if not read_only:
                self._ensure_folder(root / _TEMPORARY_FOLDER)
        except OSError as error:
            raise _directory_error(root, error) from error

    async def create(self, name: str, data: bytes) -> bool:
        self._check_writable()
        return await self._blocking(lambda: self._create(name, data))

    async def refuses_existing(self, name: str, data: bytes) -> bool:  # noqa: ARG002 - no need to try
        """Return True: the system never links a file over another."""
        return True

    async def put(self, name: str, data: bytes) -> None:
        self._check_writable()
        await self._blocking(lambda: self._put(name, data))

    async def get(self, name: str, start: int = 0, length: int | None = None) -> bytes | None:
        return await self._blocking(lambda: self._get(name, start, length))

    async def list_objects(self, prefix: str) -> list[ObjectInfo]:
        return await self._blocking(lambda: list(self._walk(prefix)))

    async def list_page(self, prefix: str, after: str = "") -> list[ObjectInfo]:
        return await self._blocking(lambda: list(itertools.islice(self._walk(prefix, after), PAGE)))

    async def list_folders(self, prefix: str) -> list[str]:
        return await self._blocking(lambda: self._folders(prefix))

    async def delete(self, names: Sequence[str]) -> None:
        self._check_writable()
        await self._blocking(lambda: self._delete(names))

    async def delete_temporary(self, before: float) -> None:
        self._check_writable()
        await self._blocking(lambda: self._delete_temporary(before))

    async def close(self) -> None:
        self._threads.shutdown()

    def _check_writable(self) -> None:
        if self._read_only:
            raise read_only_error(str(self._root))

    async def _blocking(self, function: Callable[[], T]) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, lambda: self._call(function))
        except OSError as error:
            if error.errno in _FULL:
                raise TransientError(
                    f"the disk is full: {error.strerror}",
                    where=str(self._root),
                    hint="Nothing of this batch was stored, and nothing stored before is lost; free some space and try "
                    "again",
                    code="disk-full",
                ) from error
            if error.errno in _TEMPORARY_ERRORS:
                raise ServerInterrupted(str(error)) from error
            if error.errno not in (errno.EIO, errno.EFBIG):
                raise _directory_error(self._root, error) from error
            raise UnavailableError(
                f"the disk failed: {error}",
                where=str(self._root),
                hint="Check the disk. The store works again as soon as it can be written",
                code="write-failed",
            ) from error

    def _call(self, function: Callable[[], T]) -> T:
        """Call a function, after all that could not be flushed before has been."""
        for folder in list(self._unflushed):
            # Another flush alone would not help: the system may take for written what it has failed to write.
            probe = folder / secrets.token_hex(16)
            try:
                probe.mkdir()
                probe.rmdir()
                self._flush(folder)
            except FileNotFoundError:
                self._unflushed.discard(folder)  # another process has removed it
        return function()

    def _flush(self, folder: Path) -> None:
        """Make the names in a folder durable. After a failure, nothing else is done until that succeeds."""
        try:
            flush_folder(folder)
        except FileNotFoundError:
            raise
        except OSError:
            self._unflushed.add(folder)
            raise
        self._unflushed.discard(folder)

    def _create(self, name: str, data: bytes) -> bool:
        temporary = self._write(data)
        target = self._root / name
        try:
            for _ in range(_ATTEMPTS):
                try:
                    self._ensure_folder(target.parent)
                    os.link(temporary, target)
                except FileExistsError:
                    return False
                except FileNotFoundError:
                    continue  # another process has just removed the empty folder
                self._flush_created(target.parent)
                return True
            raise OSError(errno.EAGAIN, "the folder is removed again and again", str(target.parent))
        finally:
            temporary.unlink(missing_ok=True)  # after a long pause, another process may have deleted it

    def _flush_created(self, folder: Path) -> None:
        """Flush a folder in which a file was created. To create it again would not help, since the file exists."""
        try:
            self._flush(folder)
        except OSError as error:
            raise OSError(errno.EIO, f"{error.strerror}, while a folder was flushed", str(folder)) from error

    def _put(self, name: str, data: bytes) -> None:
        temporary = self._write(data)
        target = self._root / name
        try:
            temporary.replace(target)
        except FileNotFoundError:
            temporary.unlink()  # the folder does not exist any more, nor the file to replace
        else:
            self._flush(target.parent)

    def _write(self, data: bytes) -> Path:
        temporary = self._root / _TEMPORARY_FOLDER / secrets.token_hex(16)
        flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | getattr(os, "O_BINARY", 0)
        file = os.open(temporary, flags, self._file_mode)
        try:
            try:
                if self._file_mode != PRIVATE:
                    os.fchmod(file, self._file_mode)  # whatever the umask
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
            must_be_durable = (
                name.startswith(object_names.TRANSACTIONS) or path.parent.name == "fold" or path.name == "birth"
            )
            if must_be_durable and not self._read_only:
                self._ensure_folder(path.parent)
                self._flush(path.parent)
        except (FileNotFoundError, NotADirectoryError):
            return None
        return data

    def _walk(self, prefix: str, after: str = "") -> Iterator[ObjectInfo]:
        """List the files in a folder and its subfolders, in the order of their names, that follow a name."""
        start = f"{prefix}/" if prefix else ""
        found = [(f"{start}{entry.name}", entry) for entry in _entries(self._root / prefix)]
        folders = {name: entry.is_dir(follow_symlinks=False) for name, entry in found}
        for name, entry in sorted(found, key=lambda one: f"{one[0]}/" if folders[one[0]] else one[0]):
            if folders[name]:
                if f"{name}/" > after or after.startswith(f"{name}/"):
                    yield from self._walk(name, after)
            elif name > after:
                try:
                    status = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue  # deleted by another process
                yield ObjectInfo(name, status.st_size, status.st_mtime)

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
                self._flush(folder)
            except FileNotFoundError:
                continue  # removed by another process
            self._remove_empty(folder)

    def _remove_empty(self, folder: Path) -> None:
        """Remove a folder if it is empty, and then its parents."""
        while folder != self._root:
            try:
                folder.rmdir()
            except OSError as error:
                if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT, errno.EBUSY, errno.EACCES):
                    return
                raise
            folder = folder.parent

    def _delete_temporary(self, before: float) -> None:
        for entry in _entries(self._root / _TEMPORARY_FOLDER):
            try:
                if entry.stat().st_mtime < before:
                    Path(entry.path).unlink()
            except FileNotFoundError:
                continue  # its writer has finished

    def _ensure_folder(self, folder: Path) -> None:
        """Create a folder, and flush its parents, also if another process created it and has not flushed it yet."""
        try:
            if self._flushed.get(folder) == folder.stat().st_ino:
                return
        except FileNotFoundError:
            pass  # it is created below
        if folder != self._root:
            self._ensure_folder(folder.parent)
        else:
            folder.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            folder.mkdir(self._folder_mode)
            if self._file_mode != PRIVATE:
                folder.chmod(folder.stat().st_mode | self._folder_mode)  # whatever the umask
        self._flush(folder.parent)
        if len(self._flushed) > _CACHED_FOLDERS:
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


def _directory_error(root: Path, error: OSError) -> ConfigError:
    return ConfigError(
        f"the directory cannot be used: {error}",
        where=str(root),
        hint="It must be on a file system with hard links, and this user must be allowed to write there",
    )
