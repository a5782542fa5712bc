"""Looking at every page of a SQLite file: also at free ones, which SQLite's own check does not read.

A damaged free page is no loss yet, but whoever is given it to write on will fail.
"""

from __future__ import annotations

import contextlib
import struct
import time
from collections.abc import Iterable
from pathlib import Path

import apsw

from holdfast.backends.sqlite.database_file import checksum_vfs

_LOOKS = 3
_PAUSE = 0.01
"""How often a page is looked at before it counts as damaged, and how long apart: it may be being written."""

_LOG_HEADER, _FRAME = 32, struct.Struct(">I20x")


def damaged_pages(path: str, size: int, count: int) -> list[int]:
    """The pages, counted from 1, that do not have the checksums that they should, by the size of a page and how many
    there are. Those that are in the log count as it has them."""
    # Through the VFS: to open and close the file itself would give up the locks that SQLite holds on it.
    file = apsw.VFSFile(checksum_vfs() or "", path, [apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_MAIN_DB, 0])
    try:
        damaged = _wrong(file, size, range(1, min(count, file.xFileSize() // size) + 1))
        for _ in range(_LOOKS - 1):
            damaged = [page for page in damaged if page not in _logged(path, size)]
            if damaged:
                time.sleep(_PAUSE)
                damaged = _wrong(file, size, damaged)
        return damaged
    finally:
        file.xClose()


def _wrong(file: apsw.VFSFile, size: int, pages: Iterable[int]) -> list[int]:
    found = []
    for page in pages:
        try:
            file.xRead(size, (page - 1) * size)
        except apsw.IOError:
            found.append(page)
    return found


def _logged(path: str, size: int) -> set[int]:
    """The pages that are in the log."""
    pages = set()
    with contextlib.suppress(FileNotFoundError), Path(f"{path}-wal").open("rb") as log:
        log.seek(_LOG_HEADER)
        while len(frame := log.read(_FRAME.size)) == _FRAME.size:
            pages.add(_FRAME.unpack(frame)[0])
            log.seek(size, 1)
    return pages
