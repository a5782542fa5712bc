"""An SQLite VFS whose disk is full, or fails to read, write or flush, when told to.

It may sit on another VFS, such as a `Recorder`'s: then what a failed flush did not flush is lost in a power cut.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

import apsw

from tests.support.sqlite.vfs import Name, path_of, system_vfs

if TYPE_CHECKING:
    from typing_extensions import Buffer

Operation: TypeAlias = Literal["open", "read", "write", "truncate", "sync", "delete"]

_numbers = itertools.count()


@dataclass(frozen=True)
class DiskFault:
    """What goes wrong with the n-th operation of a kind (the first is 1), and with as many after it as `times` says.

    Only operations on files whose names end so are meant, and counted by name ending.
    """

    on: Operation
    nth: int
    code: int
    times: int = 1
    ending: str = ""


def disk_full(nth: int, *, times: int = 1, ending: str = "") -> DiskFault:
    """No room for the n-th write."""
    return DiskFault("write", nth, apsw.SQLITE_FULL, times, ending)


def write_error(nth: int, *, times: int = 1, ending: str = "") -> DiskFault:
    """The n-th write fails."""
    return DiskFault("write", nth, apsw.SQLITE_IOERR_WRITE, times, ending)


def read_error(nth: int, *, times: int = 1, ending: str = "") -> DiskFault:
    """The n-th read fails."""
    return DiskFault("read", nth, apsw.SQLITE_IOERR_READ, times, ending)


def sync_error(nth: int, *, times: int = 1, ending: str = "") -> DiskFault:
    """The n-th flush fails."""
    return DiskFault("sync", nth, apsw.SQLITE_IOERR_FSYNC, times, ending)


class FaultyVFS(apsw.VFS):
    """Follows a plan of faults; open databases with the VFS named `name`, and `unregister` it in the end.

    `plan` may be changed at any time; `restart` begins counting anew. `struck` lists the faults that have happened.
    """

    def __init__(self, plan: Iterable[DiskFault] = (), base: str = "") -> None:
        self.name = f"holdfast-faulty-{next(_numbers)}"
        self.base = base or system_vfs()
        super().__init__(self.name, self.base)
        self.restart(plan)

    def restart(self, plan: Iterable[DiskFault]) -> None:
        """Follow another plan, counting from here."""
        self.plan = list(plan)
        self.struck: list[DiskFault] = []
        self._counts: Counter[DiskFault] = Counter()

    def strike(self, on: Operation, name: str) -> None:
        """Raise if an operation is meant to fail."""
        for fault in self.plan:
            if fault.on == on and name.endswith(fault.ending):
                self._counts[fault] += 1
                if fault.nth <= self._counts[fault] < fault.nth + fault.times:
                    self.struck.append(fault)
                    raise apsw.exception_for(fault.code)

    def xOpen(self, name: Name, flags: list[int]) -> apsw.VFSFile:
        self.strike("open", str(path_of(name) or ""))
        return _FaultyFile(self, name, flags)

    def xDelete(self, filename: str, syncdir: bool) -> None:
        self.strike("delete", filename)
        super().xDelete(filename, syncdir)


class _FaultyFile(apsw.VFSFile):
    def __init__(self, vfs: FaultyVFS, name: Name, flags: list[int]) -> None:
        super().__init__(vfs.base, name, flags)
        self._vfs = vfs
        self._name = str(path_of(name) or "")

    def xRead(self, amount: int, offset: int) -> bytes:
        self._vfs.strike("read", self._name)
        return super().xRead(amount, offset)

    def xWrite(self, data: Buffer, offset: int) -> None:
        self._vfs.strike("write", self._name)
        super().xWrite(data, offset)

    def xTruncate(self, newsize: int) -> None:
        self._vfs.strike("truncate", self._name)
        super().xTruncate(newsize)

    def xSync(self, flags: int) -> None:
        self._vfs.strike("sync", self._name)
        super().xSync(flags)
