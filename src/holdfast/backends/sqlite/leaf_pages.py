"""Reads the rows of a SQLite file from its pages, without the trees above them.

If an interior page of a table is damaged, SQLite finds none of the pages below it, though they are intact. A row that
carries a checksum needs no tree: the checksum tells to which table it belongs. Entries of indexes have none, but they
name rows, and so also those that are lost. Free pages are left out: they may hold rows that were deleted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import apsw

from holdfast.byte_reader import ByteReader
from holdfast.errors import CorruptError

_TABLE_LEAF, _INDEX_LEAF, _INDEX_INTERIOR = b"\x0d", b"\x0a", b"\x02"
_TREE_PAGES = (b"\1", b"\5")
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
        if ByteReader(self._header, at=52).number(4):
            width = self._size // 5 + 1

            def is_in_tree(number: int) -> bool:
                first = (number - 2) // width * width + 2
                at = (number - first - 1) * 5
                return number == 1 or (number != first and self._page(first)[at : at + 1] in _TREE_PAGES)

            return is_in_tree
        free: set[int] = set()
        trunk = ByteReader(self._header, at=32).number(4)
        while trunk and trunk not in free and (page := self._page(trunk)):
            reader = ByteReader(page)
            following, count = reader.number(4), min(reader.number(4), reader.left // 4)
            free |= {trunk, *(reader.number(4) for _ in range(count))}
            trunk = following
        return lambda number: number not in free

    def _entries(self, number: int) -> Iterator[tuple[Any, ...]]:
        page = self._page(number)
        start = 100 if number == 1 else 0
        kind = page[start : start + 1]
        if kind not in (_TABLE_LEAF, _INDEX_LEAF, _INDEX_INTERIOR):
            return
        cells = ByteReader(page, at=start + 3)
        count = cells.number(2)
        cells.at = start + (12 if kind == _INDEX_INTERIOR else 8)
        for _ in range(min(count, cells.left // 2)):
            at = cells.number(2) + (4 if kind == _INDEX_INTERIOR else 0)
            with suppress(CorruptError):  # damaged
                yield self._entry(ByteReader(page, "a row", at=at), is_table=kind == _TABLE_LEAF)

    def _entry(self, reader: ByteReader, *, is_table: bool) -> tuple[Any, ...]:
        length = _number(reader)
        if is_table:
            _number(reader)
        most = self._size - 35 if is_table else (self._size - 12) * 64 // 255 - 23
        if length <= most:
            return _values(ByteReader(reader.take(length), reader.what))
        if length > self._count * self._size:
            raise reader.error("claims more bytes than the file has")
        least = (self._size - 12) * 32 // 255 - 23
        local = least + (length - least) % (self._size - 4)
        local = local if local <= most else least
        parts, following, size = [reader.take(local)], reader.number(4), local
        while size < length and (more := self._page(following)):
            page = ByteReader(more)
            following = page.number(4)
            parts.append(page.take(min(length - size, page.left)))
            size += len(parts[-1])
        return _values(ByteReader(b"".join(parts), reader.what))


def _number(reader: ByteReader) -> int:
    """Return a number of variable length."""
    value = 0
    for _ in range(8):
        byte = reader.byte()
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            return value
    return value << 8 | reader.byte()


def _values(reader: ByteReader) -> tuple[Any, ...]:
    """Return the values of an entry."""
    end = _number(reader)
    kinds = []
    while reader.at < end:
        kinds.append(_number(reader))
    values: list[Any] = []
    for kind in kinds:
        if kind in _INTEGERS:
            values.append(reader.number(_INTEGERS[kind], signed=True))
        elif kind >= 12:
            data = reader.take((kind - 12) // 2)
            values.append(reader.text(data) if kind % 2 else data)
        else:
            reader.take(8 if kind == 7 else 0)
            values.append({8: 0, 9: 1}.get(kind))
    return tuple(values)
