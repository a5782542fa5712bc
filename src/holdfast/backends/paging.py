"""Scans in pages; and scans that skip rows which the store itself cannot read.

A damaged page or file makes a scan raise `CorruptError`, without telling which rows are lost. Keys are ordered, and a
scan can start after any of them. So a damaged scan reads as far as it can; probes ever farther keys until one can be
read; and reads backwards from there. The range between is a *hole*. If only bodies cannot be read, the keys can.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from itertools import chain
from typing import Protocol

from holdfast._named_tuple import NamedTuple
from holdfast.backends.interface import Get, Query, Row, Scan
from holdfast.backends.tables import Key, Scalar, Table
from holdfast.errors import CorruptError, UnsupportedError

_PAGE = 256
_PAGE_BYTES = 4 << 20
"""The rows of a page, and about how many bytes of bodies."""

_FIRST_PAGE = 8
"""The rows of the first page: their size is not known yet."""

_KEY_PAGE = 16
"""How many rows are read by their keys at a time."""

_NEAR_NUMBERS = 64
"""How many numbers are probed one by one after an unreadable one: more than a page has rows."""

_MAX_POWER = 40
"""The power of two up to which farther numbers are probed."""

_PROBES = 64
"""At how many distances of names and digests to probe, each a multiple of the one before."""

_EVEN_PROBES = 16
"""And at how many even distances."""


UNREADABLE = (CorruptError, UnsupportedError)
"""The errors of a store that cannot read rows: they are damaged, or of an unknown format."""


class UnreadableRange(NamedTuple):
    """A hole: keys from `start` to `stop`, which is excluded. Both follow a prefix; an empty stop is its end."""

    space: Table
    start: Key
    stop: Key
    error: str


class RowReader(Protocol):
    """Answers queries as a backend does."""

    async def read(self, queries: Sequence[Query]) -> list[list[Row]]:
        """See `Backend.read`."""
        ...


async def scan_rows(
    backend: RowReader,
    space: Table,
    prefix: Key,
    start: Key = (),
    stop: Key = (),
    *,
    bodies: bool = True,
    by: str = "",
) -> AsyncIterator[Row]:
    """Yield the rows under a prefix, or those of them between two bounds, read in pages."""
    order = _KeyOrder(space, len(prefix), by)
    page = _FIRST_PAGE if bodies else _PAGE
    while True:
        (found,) = await backend.read([Scan(space, prefix, start, stop, limit=page, by=by, bodies=bodies)])
        for row in found:
            yield row
        if len(found) < page or not order.kinds:
            return
        start = order.after(found[-1])
        page = next_page(page, found)


async def scan_readable_rows(
    backend: RowReader,
    space: Table,
    prefix: Key,
    holes: list[UnreadableRange],
    start: Key = (),
    *,
    bodies: bool = True,
) -> AsyncIterator[Row]:
    """Yield the readable rows under a prefix, from a bound on. Unreadable ranges are added to `holes`, before the
    rows after them."""
    scan = _DamagedScan(backend, Scan(space, prefix, bodies=bodies), holes)
    page = _FIRST_PAGE if bodies else _PAGE
    while True:
        try:
            found = await scan.read(start, page)
        except UNREADABLE as error:
            if not scan.order.kinds:
                scan.add_hole((), None, str(error))
                return
            if page > 1:
                page = max(page // 4, 1)
                continue
            keys = await scan.read_keys(start) if bodies else []
            if keys:
                for row in await scan.read_by_key(keys):
                    yield row
                start = scan.order.after(keys[-1])
                continue
            readable = await scan.find_readable(start)
            scan.add_hole(start, readable, str(error))
            if readable is None:
                return
            start = readable
            continue
        for row in found:
            yield row
        if len(found) < page or not scan.order.kinds:
            return
        start = scan.order.after(found[-1])
        page = next_page(page, found)


def next_page(page: int, found: Sequence[Row]) -> int:
    """Return how many rows to read next: more of small ones, fewer of large ones."""
    size = sum(len(row.body) for row in found)
    return min(2 * page, _PAGE) if size < _PAGE_BYTES // 2 else max(1, page * _PAGE_BYTES // (2 * size))


class _DamagedScan:
    """Reads what can be read of a scan. Keys are without its prefix."""

    def __init__(self, backend: RowReader, scan: Scan, holes: list[UnreadableRange]) -> None:
        self._backend = backend
        self._scan = scan
        self._holes = holes
        self.order = _KeyOrder(scan.space, len(scan.prefix))

    async def read(self, start: Key, limit: int) -> list[Row]:
        (found,) = await self._backend.read([self._scan._replace(start=start, limit=limit)])
        return found

    async def read_keys(self, start: Key) -> list[Row]:
        """Return rows from a key on without their bodies; none if these cannot be read either."""
        for limit in (_KEY_PAGE, 1):
            try:
                (found,) = await self._backend.read([self._scan._replace(start=start, limit=limit, bodies=False)])
            except UNREADABLE:
                continue
            return found
        return []

    async def read_by_key(self, listed: Sequence[Row]) -> list[Row]:
        """Return rows with their bodies. Unreadable ones are holes."""
        try:
            (found,) = await self._backend.read([Get(self._scan.space, [row.key for row in listed])])
        except UNREADABLE as error:
            if len(listed) == 1:
                self.add_hole(self.order.suffix(listed[0]), self.order.after(listed[0]), str(error))
                return []
            half = len(listed) // 2
            return [*await self.read_by_key(listed[:half]), *await self.read_by_key(listed[half:])]
        return sorted(found, key=self.order.suffix)

    async def find_readable(self, start: Key) -> Key | None:
        """Return the first readable key after an unreadable one; None if there is none."""
        before, found = start, list[Row]()
        for probe in self.order.probes(start):
            try:
                found = await self.read(probe, 1)
                break
            except UNREADABLE:
                before = probe
        # The keys between the last two probes are read backwards.
        first = await self._read_back(before, self.order.suffix(found[0]) if found else ())
        return following(start) if first == start else first

    async def _read_back(self, start: Key, stop: Key) -> Key | None:
        """Return the first readable key after an unreadable one, reading backwards from a readable one."""
        first, page = stop or None, 1
        while True:
            scan = self._scan._replace(start=start, stop=first or (), reverse=True, limit=page, bodies=False)
            try:
                (found,) = await self._backend.read([scan])
            except UNREADABLE:
                if page == 1:
                    return first
                page = 1
                continue
            if found:
                first = self.order.suffix(found[-1])
            if len(found) < page:
                return first
            page = min(2 * page, _PAGE)

    def add_hole(self, start: Key, stop: Key | None, error: str) -> None:
        last = self._holes[-1] if self._holes else None
        if last is not None and last.space is self._scan.space and last.stop == start:
            self._holes[-1] = last._replace(stop=stop or ())
        else:
            self._holes.append(UnreadableRange(self._scan.space, start, stop or (), error))


class _KeyOrder:
    """The columns of an order after a prefix."""

    def __init__(self, space: Table, width: int, by: str = "") -> None:
        self._space = space
        self._names = space.order(by)[width:]
        self.kinds = [space.all_columns[name] for name in self._names]

    def suffix(self, row: Row) -> Key:
        """Return the key of a row without the prefix."""
        values = dict(zip(self._space.all_columns, (*row.key, *row.columns), strict=True))
        return tuple(values[name] for name in self._names)

    def after(self, row: Row) -> Key:
        """Return the next possible key after a row."""
        return following(self.suffix(row))

    def probes(self, start: Key) -> Iterator[Key]:
        """Yield ever farther keys: in the last column, then in the one before that, and so on."""
        last = whole = self._complete(start)
        for column in reversed(range(len(whole))):
            probes: Iterator[Key] = ((*whole[:column], value) for value in _probe_values(whole[column]))
            if column + 1 < len(whole):
                # The next value, such as another branch, may be damaged in its first rows only.
                first = self._complete(next(probes))
                probes = chain(((*first[:-1], value) for value in (first[-1], *_probe_values(first[-1]))), probes)
            for probe in probes:
                if probe > last:
                    yield probe
                    last = probe

    def _complete(self, start: Key) -> Key:
        """Return the first key with this start."""
        return (*start, *(kind() for kind in self.kinds[len(start) :]))


def _probe_values(value: Scalar) -> Iterator[Scalar]:
    """Yield ever farther values of a column."""
    yield from following((value,))
    if isinstance(value, int):
        yield from (value + distance for distance in range(2, _NEAR_NUMBERS))
        yield from (value + (1 << power) for power in range(_NEAR_NUMBERS.bit_length() - 1, _MAX_POWER))
        return
    base, width = _BASES[type(value)], _WIDTHS[type(value)]
    low = _number(value, base, width)
    length = base**width - low
    distances = {1 << length.bit_length() * probe // _PROBES for probe in range(_PROBES)}
    distances |= {length * probe // _EVEN_PROBES for probe in range(1, _EVEN_PROBES)}
    for distance in sorted(distances):
        if distance < length:
            yield _value(low + distance, base, width)


def following(key: Key) -> Key:
    """Return the next key after one."""
    *before, last = key
    if isinstance(last, int):
        return (*before, last + 1)
    return (*before, last + "\0") if isinstance(last, str) else (*before, last + b"\0")


# Names and digests as numbers: their first characters or bytes, as digits; 0 stands for the end.

_BASES: dict[type, int] = {str: 0x110000 - 0x800 + 1, bytes: 257}
_WIDTHS: dict[type, int] = {str: 48, bytes: 40}
_GAP = 0xD800
"""The first code point that is no character."""


def _number(value: str | bytes, base: int, width: int) -> int:
    codes = [ord(one) for one in value] if isinstance(value, str) else list(value)
    number = 0
    for place in range(width):
        code = codes[place] if place < len(codes) else -1
        number = number * base + (code - 0x800 if code > _GAP and base == _BASES[str] else code) + 1
    return number


def _value(number: int, base: int, width: int) -> Scalar:
    """Return the text or bytes of a number, or similar ones: nothing follows the end."""
    digits = []
    for _ in range(width):
        number, digit = divmod(number, base)
        digits.append(digit)
    digits.reverse()
    codes = [digit - 1 for digit in digits[: digits.index(0) if 0 in digits else width]]
    if base == _BASES[bytes]:
        return bytes(codes)
    return "".join(chr(code + 0x800 if code >= _GAP else code) for code in codes)
