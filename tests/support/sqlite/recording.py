"""An SQLite VFS that passes everything on to the system, and logs what changes files."""

from __future__ import annotations

import itertools
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import apsw

from tests.support.sqlite.vfs import Name, path_of, system_vfs

if TYPE_CHECKING:
    from typing_extensions import Buffer

_numbers = itertools.count()
_JOURNALS = apsw.SQLITE_OPEN_WAL | apsw.SQLITE_OPEN_MAIN_JOURNAL | apsw.SQLITE_OPEN_SUPER_JOURNAL


class Existing(NamedTuple):
    """A file that was there before anything was logged."""

    file: int
    name: str
    content: bytes


class Create(NamedTuple):
    """A new file. Files are numbered, since names come back."""

    file: int
    name: str


class Write(NamedTuple):
    """Bytes at a place of a file."""

    file: int
    offset: int
    data: bytes


class Truncate(NamedTuple):
    """A new size for a file."""

    file: int
    size: int


class Sync(NamedTuple):
    """A file was flushed, and its directory too if that is said."""

    file: int
    directory: bool


class Delete(NamedTuple):
    """A name was removed, and the directory flushed if that is said."""

    name: str
    directory: bool


class Mark(NamedTuple):
    """Something that the workload wants to know the time of."""

    label: Any


Event: TypeAlias = Existing | Create | Write | Truncate | Sync | Delete | Mark


class Recorder:
    """Logs what reaches the files of a directory through the VFS named `vfs`, for as long as it is entered."""

    def __init__(self, directory: Path) -> None:
        self.log: list[Event] = []
        self.vfs = f"holdfast-recording-{next(_numbers)}"
        """The name of the VFS to open databases with."""
        self._directory = directory.resolve()
        self._stack = ExitStack()
        self._files: dict[str, int] = {}
        self._count = 0

    def __enter__(self) -> Recorder:
        with ExitStack() as stack:
            vfs = _RecordingVFS(self.vfs, self)
            stack.callback(vfs.unregister)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def mark(self, label: Any) -> None:
        """Note that something has happened by now: usually, that it was acknowledged."""
        self.log.append(Mark(label))

    def opened(self, path: Path, existed: bool) -> int | None:
        """The number of a file that was opened, or None if it is not in the directory."""
        name = self._name(path)
        if name is None:
            return None
        if name not in self._files or not existed:
            self._count += 1
            self._files[name] = self._count
            self.log.append(
                Existing(self._count, name, path.read_bytes()) if existed else Create(self._count, name),
            )
        return self._files[name]

    def deleted(self, path: Path, directory: bool) -> None:
        """Note that a name was removed."""
        name = self._name(path)
        if name is not None:
            self._files.pop(name, None)
            self.log.append(Delete(name, directory))

    def _name(self, path: Path) -> str | None:
        return path.name if path.parent.resolve() == self._directory else None


class _RecordingVFS(apsw.VFS):
    def __init__(self, name: str, recorder: Recorder) -> None:
        super().__init__(name, system_vfs())
        self._recorder = recorder

    def xOpen(self, name: Name, flags: list[int]) -> apsw.VFSFile:
        path = path_of(name)
        if path is None or flags[0] & apsw.SQLITE_OPEN_DELETEONCLOSE:
            return apsw.VFSFile(system_vfs(), name, flags)
        existed = path.exists()
        file = _RecordingFile(name, flags, self._recorder.log)
        file.number = self._recorder.opened(path, existed)
        return file

    def xDelete(self, filename: str, syncdir: bool) -> None:
        super().xDelete(filename, syncdir)
        self._recorder.deleted(Path(filename), syncdir)


class _RecordingFile(apsw.VFSFile):
    number: int | None = None

    def __init__(self, name: Name, flags: list[int], log: list[Event]) -> None:
        asked = flags[0]
        super().__init__(system_vfs(), name, flags)
        self._log = log
        # SQLite's own VFS flushes the directory along with the first flush of a log or journal that it may have made.
        self._new = bool(asked & apsw.SQLITE_OPEN_CREATE and asked & _JOURNALS)

    def xWrite(self, data: Buffer, offset: int) -> None:
        super().xWrite(data, offset)
        if self.number is not None:
            self._log.append(Write(self.number, offset, bytes(data)))

    def xTruncate(self, newsize: int) -> None:
        super().xTruncate(newsize)
        if self.number is not None:
            self._log.append(Truncate(self.number, newsize))

    def xSync(self, flags: int) -> None:
        super().xSync(flags)
        if self.number is not None:
            self._log.append(Sync(self.number, self._new))
            self._new = False
