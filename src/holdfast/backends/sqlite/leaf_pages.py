"""Reads the rows of a SQLite file from its pages, without the trees above them.

If an interior page of a table is damaged, SQLite finds none of the pages below it, though they are intact. A row that
carries a checksum needs no tree: the checksum tells to which table it belongs. Entries of indexes have none, but they
name rows, and so also those that are lost. Free pages are left out: they may hold rows that were deleted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import apsw

_TABLE_LEAF, _INDEX_LEAF, _INDEX_INTERIOR = 13, 10, 2
_TREE_PAGES = (1, 5)
"""The types in the map of pages of those that are part of a tree."""

_INTEGERS = {1: 1, 2: 2, 3: 3, 4: 4, 5: 6, 6: 8}


class PageReader:
    """The pages of a file. Through SQLite's own VFS: to open and close the file would release SQLite's locks on it."""

    def __init__(self, path: str, size: int) -> None:
        self._file = apsw.VFSFile("", path, [apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_MAIN_DB, 0])
        self._size = size
        self._count = self._file.xFileSize() // size
        self._header = self._file.xRead(100, 0)

    def close(self) -> None:
        """Close the file."""
        self._file.xClose()

    def records(self) -> Iterator[tuple[Any, ...]]:
        """Yield the values of all entries of tables and indexes that can be read."""
        is_used = self._used_pages()
        for number in range(1, self._count + 1):
            if is_used(number):
                yield from self._entries(number)

    def _page(self, number: int) -> bytes:
        return self._file.xRead(self._size, (number - 1) * self._size) if 0 < number <= self._count else b""

    def _used_pages(self) -> Callable[[int], bool]:
        """Return whether a page is part of a tree: by the map of pages, or else by the list of free ones."""
        if int.from_bytes(self._header[52:56], "big"):
            width = self._size // 5 + 1

            def is_in_tree(number: int) -> bool:
                first = (number - 2) // width * width + 2
                at = (number - first - 1) * 5
                return number == 1 or (number != first and self._page(first)[at : at + 1] in map(_byte, _TREE_PAGES))

            return is_in_tree
        free: set[int] = set()
        trunk = int.from_bytes(self._header[32:36], "big")
        while trunk and trunk not in free and (page := self._page(trunk)):
            count = min(int.from_bytes(page[4:8], "big"), self._size // 4 - 2)
            free |= {trunk, *(int.from_bytes(page[at : at + 4], "big") for at in range(8, 8 + 4 * count, 4))}
            trunk = int.from_bytes(page[:4], "big")
        return lambda number: number not in free

    def _entries(self, number: int) -> Iterator[tuple[Any, ...]]:
        page = self._page(number)
        start = 100 if number == 1 else 0
        kind = page[start] if page else 0
        if kind not in (_TABLE_LEAF, _INDEX_LEAF, _INDEX_INTERIOR):
            return
        cells = start + (12 if kind == _INDEX_INTERIOR else 8)
        for cell in range(int.from_bytes(page[start + 3 : start + 5], "big")):
            try:
                at = int.from_bytes(page[cells + 2 * cell : cells + 2 * cell + 2], "big")
                yield self._entry(page, at + (4 if kind == _INDEX_INTERIOR else 0), is_table=kind == _TABLE_LEAF)
            except (IndexError, ValueError):
                continue  # damaged

    def _entry(self, page: bytes, at: int, *, is_table: bool) -> tuple[Any, ...]:
        length, at = _number(page, at)
        if is_table:
            _, at = _number(page, at)
        most = self._size - 35 if is_table else (self._size - 12) * 64 // 255 - 23
        if length <= most:
            return _values(page[at : at + length])
        least = (self._size - 12) * 32 // 255 - 23
        local = least + (length - least) % (self._size - 4)
        local = local if local <= most else least
        payload, following = page[at : at + local], int.from_bytes(page[at + local : at + local + 4], "big")
        parts, size = [payload], local
        while size < length and (more := self._page(following)):
            parts.append(more[4 : 4 + length - size])
            size += len(parts[-1])
            following = int.from_bytes(more[:4], "big")
        return _values(b"".join(parts))


def _byte(number: int) -> bytes:
    return bytes([number])


def _number(data: bytes, at: int) -> tuple[int, int]:
    """Return a number of variable length, and where it ends."""
    value = 0
    for width in range(8):
        byte = data[at + width]
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            return value, at + width + 1
    return value << 8 | data[at + 8], at + 9


def _values(payload: bytes) -> tuple[Any, ...]:
    """Return the values of an entry. `ValueError` if it is cut off."""
    end, at = _number(payload, 0)
    kinds = []
    while at < end:
        kind, at = _number(payload, at)
        kinds.append(kind)
    values: list[Any] = []
    for kind in kinds:
        width = _INTEGERS.get(kind, (kind - 12) // 2 if kind >= 12 else 8 if kind == 7 else 0)
        data = payload[at : at + width]
        if len(data) < width:
            raise ValueError(kind)
        at += width
        if kind in _INTEGERS:
            values.append(int.from_bytes(data, "big", signed=True))
        elif kind >= 12:
            values.append(data.decode() if kind % 2 else data)
        else:
            values.append({8: 0, 9: 1}.get(kind))
    return tuple(values)
