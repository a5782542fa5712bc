"""The objects of a repository: files in a directory, or objects in a bucket."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from holdfast.backends.object_store.object_storage import PAGE, ObjectInfo, ObjectStorage
from holdfast.backends.object_store.request_storage import RequestStorage
from holdfast.backends.runtime.loop_thread import LoopThread
from holdfast.backends.urls import redacted_url, split_options, url_to_path
from holdfast.errors import ConfigError, CorruptError, InvalidError, UnsupportedError
from holdfast.maintenance.backup.format import COPIES, KEYS, PACKS, REPOSITORY, copy_name, is_copied

T = TypeVar("T")

_BUCKETS = ("s3", "gs", "az")
_TIMEOUT = 60.0
_KEY = re.compile(f"({COPIES}/)?{KEYS}/[0-9a-f]{{16}}")


class RepositoryStorage(RequestStorage):
    """The objects of a repository. Only what is damaged is ever overwritten. One that is stored twice exists as long as
    one of the two does."""

    def __init__(self, storage: ObjectStorage, where: str, timeout: float) -> None:
        super().__init__(storage, "the repository", where, timeout, LoopThread("holdfast-backup"))
        self.where = where

    async def create(self, name: str, data: bytes) -> bool:
        """Store an object durably, twice if its kind is; False if the name is in use."""
        if is_copied(name) and await self.get(copy_name(name)) not in (None, data):
            return False
        created = await super().create(name, data)
        if created and is_copied(name):
            await super().create(copy_name(name), data)
        return created

    async def read(self, name: str, decode: Callable[[bytes], T]) -> T | None:
        """Decode an object, or its copy, if it is missing or damaged; None if neither exists. Raises the error of
        `decode` if neither can be read."""
        problem: CorruptError | UnsupportedError | None = None
        for each in (name, copy_name(name)) if is_copied(name) else (name,):
            data = await self.get(each)
            try:
                if data is not None:
                    return decode(data)
            except (CorruptError, UnsupportedError) as error:
                problem = problem or error
        if problem is not None:
            raise problem
        return None

    async def complete(self, name: str) -> None:
        """Store an object twice of which there is only one: whoever stored it was interrupted."""
        for place, other in ((copy_name(name), name), (name, copy_name(name))):
            if await self.get(place, 0, 1) is None:
                data = await self.get(other)
                if data is not None:
                    await super().create(place, data)

    async def replace(self, name: str, data: bytes) -> None:
        """Replace an object that is damaged, or create it. Only repairs do that."""
        await self.put(name, data)  # which creates no folder
        await super().create(name, data)

    async def list_objects(self, prefix: str) -> list[ObjectInfo]:
        """List all objects in a folder and its subfolders, by name."""
        found = await super().list_objects(prefix)
        if is_copied(prefix):
            found += _originals(await super().list_objects(copy_name(prefix)))
        return _by_name(found)

    async def list_page(self, prefix: str, after: str = "") -> list[ObjectInfo]:
        """List the first objects in a folder, by name, that follow a name: up to `PAGE` of them."""
        found = await super().list_page(prefix, after)
        if is_copied(prefix):
            copies = await super().list_page(copy_name(prefix), copy_name(after))
            found = _by_name([*found, *_originals(copies)])[:PAGE]
        return found

    async def exists(self, name: str) -> bool:
        """Return whether there is an object of this name."""
        return await super().exists(name) or (is_copied(name) and await super().exists(copy_name(name)))

    async def is_empty(self) -> bool:
        """Return whether there is no object at all, except keys of a repository that somebody began to create."""
        return all(_KEY.fullmatch(info.name) for info in await self.list_page(""))

    async def delete(self, names: Sequence[str]) -> None:
        """Delete objects, and their copies. Missing ones are no error."""
        copied = [copy_name(name) for name in names if is_copied(name) or name.startswith(f"{PACKS}/")]
        await super().delete([*names, *copied])


def _originals(copies: Sequence[ObjectInfo]) -> list[ObjectInfo]:
    """Return copies under the names of the objects that they are of."""
    return [info._replace(name=info.name.removeprefix(f"{COPIES}/")) for info in copies]


def _by_name(found: Sequence[ObjectInfo]) -> list[ObjectInfo]:
    """Return objects in the order of their names, of two of the same name the first."""
    by_name = {info.name: info for info in reversed(found)}
    return [by_name[name] for name in sorted(by_name)]


def foreign_place(where: str) -> ConfigError:
    """Return the error to raise where something else is than a repository."""
    return ConfigError(
        "the location is not a backup repository, and is not empty",
        where=where,
        hint="Name a repository, or an empty or new directory or prefix",
        code="foreign-directory",
    )


def open_storage(
    target: str | os.PathLike[str], options: Mapping[str, Any], *, create: bool = False
) -> RepositoryStorage:
    """Open the directory or bucket that a path or a URL names. A directory is created only with `create`."""
    value: Any = target
    text: Any = os.fspath(value) if isinstance(value, str | os.PathLike) else ""
    if not isinstance(text, str) or not text or "\0" in text:
        raise InvalidError(f"{target!r} is neither a path nor a URL", hint="/srv/backups, or s3://bucket/backups")
    scheme, mark, _ = text.partition("://")
    if mark and scheme in _BUCKETS:
        from holdfast.backends.registry import backend_for

        backend_for(text)  # its error says what to install
        from holdfast.backends.object_store.cloud import Bucket

        bucket, where, timeout = Bucket.at(text, options)
        return RepositoryStorage(bucket, where.rstrip("/"), max(timeout, _TIMEOUT))
    return _open_directory(text, options, create=create)


def _open_directory(text: str, options: Mapping[str, Any], *, create: bool) -> RepositoryStorage:
    from holdfast.backends.object_store.local import DirectoryStorage

    if options:
        split_options("file:", {}, options)  # refuses them
    is_file_url = text.startswith("file:")
    path = url_to_path(text) if is_file_url else Path(text)
    if path is None or (is_file_url and "?" in text) or (not is_file_url and "://" in text):
        raise ConfigError(
            "a repository of backups must be a directory or a bucket",
            where=redacted_url(text),
            hint="Name a directory, file:///srv/backups, or s3://bucket/…, gs://bucket/…, az://container/…",
        )
    folder = path.absolute()
    if folder.is_file():
        raise foreign_place(str(folder))
    has_mark = any((folder / name).is_file() for name in (REPOSITORY, copy_name(REPOSITORY)))
    if (
        create
        and not has_mark
        and folder.is_dir()
        and any(each.name not in ("new", KEYS, COPIES) for each in folder.iterdir())
    ):
        raise foreign_place(str(folder))
    # A copy of a repository may lack the directory of new files, which is empty.
    is_complete = (folder / "new").is_dir() or (has_mark and os.access(folder, os.W_OK))
    read_only = not create and not is_complete
    return RepositoryStorage(DirectoryStorage(folder, read_only), str(folder), _TIMEOUT)
