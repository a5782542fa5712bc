"""A SQLite file whose beginning is damaged, made readable in a copy.

Without its header and the list of its tables, nothing of a file can be read, though all rows may be there. Both are the
same in every file that this release makes: so they are taken from a new one. Whatever is then read has to be sound by
itself.
"""

from __future__ import annotations

import shutil
from pathlib import Path

_HEADER = 100
_PAGE_SIZE = slice(16, 18)
_PAGES = slice(28, 32)
_FREE = slice(32, 40)
_INTERIOR = 5


def with_beginning(path: Path, new: Path, copy: Path, *, tables: bool) -> bool:
    """Copy a file and its log, and give the copy the header of a new one; with `tables`, its list of tables too. False
    if nothing is left to be read."""
    fresh = new.read_bytes()
    size = int.from_bytes(fresh[_PAGE_SIZE], "big")
    shutil.copyfile(path, copy)
    log = Path(f"{path}-wal")
    if log.exists():
        shutil.copyfile(log, f"{copy}-wal")
    pages = -(-copy.stat().st_size // size)
    if pages < 2:
        return False
    lists = _list_of_tables(fresh, size) if tables else []
    pages = max(pages, *lists) if lists else pages
    with copy.open("r+b") as file:
        file.truncate(pages * size)
        header = bytearray(fresh[:_HEADER])
        header[_PAGES] = pages.to_bytes(4, "big")
        header[_FREE] = bytes(8)
        for number in lists:
            file.seek((number - 1) * size)
            file.write(fresh[(number - 1) * size : number * size])
        file.seek(0)
        file.write(header)
    return True


def _list_of_tables(data: bytes, size: int, number: int = 1) -> list[int]:
    """The pages of the tree that has the list of tables."""
    page = data[(number - 1) * size : number * size]
    start = _HEADER if number == 1 else 0
    found = [number]
    if page[start] == _INTERIOR:
        count = int.from_bytes(page[start + 3 : start + 5], "big")
        cells = [int.from_bytes(page[at : at + 2], "big") for at in range(start + 12, start + 12 + 2 * count, 2)]
        for at in (start + 8, *cells):
            found += _list_of_tables(data, size, int.from_bytes(page[at : at + 4], "big"))
    return found
