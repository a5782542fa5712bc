"""Reading rows in pages; and reading around those that the store itself cannot read.

A damaged page or file makes a scan raise `CorruptError`, and says not which rows are lost. Keys are ordered, and one
can ask for what follows any of them. So one goes as far as it reads; asks at ever farther places until something reads
again; and goes back from there. What lies between is a *hole*. Where only bodies cannot be read, the keys still tell
which.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from itertools import chain
from typing import NamedTuple, Protocol

from holdfast.backends.interface import Get, Query, Row, Scan
from holdfast.backends.tables import Key, Scalar, Table
from holdfast.errors import CorruptError, UnsupportedError

_PAGE = 256
_PAGE_BYTES = 4 << 20
"""How many rows are read at a time, and about how many bytes of bodies."""

_FEW = 8
"""How many rows are read at first: nobody knows how large they are."""

_KEYS = 16
"""How many rows are asked for by their keys at a time."""

_NEAR = 64
"""How many numbers are tried one by one, after one that cannot be read: more than a page has rows."""

_FAR = 40
"""Up to which power of two further numbers are tried."""

_SPOTS = 64
"""At how many distances of names and digests one asks, each so many times as far as the one before."""

_EVEN = 16
"""And at how many places at even distances."""


UNREADABLE = (CorruptError, UnsupportedError)
"""What a store raises where it cannot read its rows: they are damaged, or of a format that is not known here."""


class UnreadableRange(NamedTuple):
    """Keys that cannot be read: from `start` on, up to and without `stop`. Both follow a prefix; an empty stop is the
    end of it."""

    space: Table
    start: Key
    stop: Key
    error: str


class RowReader(Protocol):
    """Whatever answers queries as a backend does."""

    async def read(self, queries: Sequence[Query]) -> list[list[Row]]:
        """See `Backend.read`."""
        ...


async def rows(
    backend: RowReader, space: Table, prefix: Key, *, bodies: bool = True, by: str = ""
) -> AsyncIterator[Row]:
    """The rows under a prefix, read in pages."""
    places = _Places(space, len(prefix), by)
    page = _FEW if bodies else _PAGE
    start: Key = ()
    while True:
        (found,) = await backend.read([Scan(space, prefix, start=start, limit=page, by=by, bodies=bodies)])
        for row in found:
            yield row
        if len(found) < page or not places.kinds:
            return
        start = places.after(found[-1])
        page = next_page(page, found)


async def sturdy_rows(
    backend: RowReader, space: Table, prefix: Key, holes: list[UnreadableRange], *, bodies: bool = True
) -> AsyncIterator[Row]:
    """The same, as far as rows can be read; what cannot is added to `holes`, before the rows that follow it."""
    around = _Around(backend, Scan(space, prefix, bodies=bodies), holes)
    page = _FEW if bodies else _PAGE
    start: Key = ()
    while True:
        try:
            found = await around.read(start, page)
        except UNREADABLE as error:
            if not around.places.kinds:
                around.hole((), None, str(error))
                return
            if page > 1:
                page = max(page // 4, 1)
                continue
            listed = await around.listed(start) if bodies else []
            if listed:
                for row in await around.gotten(listed):
                    yield row
                start = around.places.after(listed[-1])
                continue
            beyond = await around.beyond(start)
            around.hole(start, beyond, str(error))
            if beyond is None:
                return
            start = beyond
            continue
        for row in found:
            yield row
        if len(found) < page or not around.places.kinds:
            return
        start = around.places.after(found[-1])
        page = next_page(page, found)


def next_page(page: int, found: Sequence[Row]) -> int:
    """Return how many rows to read next: more of small ones, fewer of large ones."""
    size = sum(len(row.body) for row in found)
    return min(2 * page, _PAGE) if size < _PAGE_BYTES // 2 else max(1, page * _PAGE_BYTES // (2 * size))


class _Around:
    """Reads what can be read of a scan. Keys are what follows its prefix."""

    def __init__(self, backend: RowReader, scan: Scan, holes: list[UnreadableRange]) -> None:
        self._backend = backend
        self._scan = scan
        self._holes = holes
        self.places = _Places(scan.space, len(scan.prefix))

    async def read(self, start: Key, limit: int) -> list[Row]:
        """The rows from a key on."""
        (found,) = await self._backend.read([self._scan._replace(start=start, limit=limit)])
        return found

    async def listed(self, start: Key) -> list[Row]:
        """The rows from a key on without their bodies, if they can be had so."""
        for limit in (_KEYS, 1):
            try:
                (found,) = await self._backend.read([self._scan._replace(start=start, limit=limit, bodies=False)])
            except UNREADABLE:
                continue
            return found
        return []

    async def gotten(self, listed: Sequence[Row]) -> list[Row]:
        """The rows with these keys. Those that cannot be read are holes."""
        try:
            (found,) = await self._backend.read([Get(self._scan.space, [row.key for row in listed])])
        except UNREADABLE as error:
            if len(listed) == 1:
                self.hole(self.places.rest(listed[0]), self.places.after(listed[0]), str(error))
                return []
            half = len(listed) // 2
            return [*await self.gotten(listed[:half]), *await self.gotten(listed[half:])]
        return sorted(found, key=self.places.rest)

    async def beyond(self, start: Key) -> Key | None:
        """The first key that reads again, after one from which one cannot read; None if none was found."""
        before, found = start, list[Row]()
        for spot in self.places.spots(start):
            try:
                found = await self.read(spot, 1)
                break
            except UNREADABLE:
                before = spot
        # What is between the last two places that were asked for, is found from behind.
        first = await self._back(before, self.places.rest(found[0]) if found else ())
        return following(start) if first == start else first

    async def _back(self, start: Key, stop: Key) -> Key | None:
        """The first key that reads, after one from which one cannot read, going back from one that does."""
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
                first = self.places.rest(found[-1])
            if len(found) < page:
                return first
            page = min(2 * page, _PAGE)

    def hole(self, start: Key, stop: Key | None, error: str) -> None:
        """One cannot read from here up to there."""
        last = self._holes[-1] if self._holes else None
        if last is not None and last.space is self._scan.space and last.stop == start:
            self._holes[-1] = last._replace(stop=stop or ())
        else:
            self._holes.append(UnreadableRange(self._scan.space, start, stop or (), error))


class _Places:
    """The keys of an order, after a prefix."""

    def __init__(self, space: Table, width: int, by: str = "") -> None:
        self._space = space
        self._names = space.order(by)[width:]
        self.kinds = [space.all_columns[name] for name in self._names]

    def rest(self, row: Row) -> Key:
        """What follows the prefix, of a row."""
        values = dict(zip(self._space.all_columns, (*row.key, *row.columns), strict=True))
        return tuple(values[name] for name in self._names)

    def after(self, row: Row) -> Key:
        """What comes next after a row: nothing can be between."""
        return following(self.rest(row))

    def spots(self, start: Key) -> Iterator[Key]:
        """Ever farther keys after one: in its last column, then in the one before that, and so on."""
        last = whole = self._whole(start)
        for column in reversed(range(len(whole))):
            spots: Iterator[Key] = ((*whole[:column], value) for value in _further(whole[column]))
            if column + 1 < len(whole):
                # What comes next there, such as another branch, may be damaged in its first rows only.
                first = self._whole(next(spots))
                spots = chain(((*first[:-1], value) for value in (first[-1], *_further(first[-1]))), spots)
            for spot in spots:
                if spot > last:
                    yield spot
                    last = spot

    def _whole(self, start: Key) -> Key:
        """The first key that starts so."""
        return (*start, *(kind() for kind in self.kinds[len(start) :]))


def _further(value: Scalar) -> Iterator[Scalar]:
    """Ever farther values of a column after one."""
    yield from following((value,))
    if isinstance(value, int):
        yield from (value + distance for distance in range(2, _NEAR))
        yield from (value + (1 << power) for power in range(_NEAR.bit_length() - 1, _FAR))
        return
    base, width = _BASES[type(value)], _WIDTHS[type(value)]
    low = _number(value, base, width)
    length = base**width - low
    distances = {1 << length.bit_length() * spot // _SPOTS for spot in range(_SPOTS)}
    distances |= {length * spot // _EVEN for spot in range(1, _EVEN)}
    for distance in sorted(distances):
        if distance < length:
            yield _value(low + distance, base, width)


def following(key: Key) -> Key:
    """What comes next after a key and all that start with it."""
    *before, last = key
    if isinstance(last, int):
        return (*before, last + 1)
    return (*before, last + "\0") if isinstance(last, str) else (*before, last + b"\0")


# Names and digests as numbers: their first characters or bytes, as digits; 0 stands for the end.

_BASES: dict[type, int] = {str: 0x110000 - 0x800 + 1, bytes: 257}
_WIDTHS: dict[type, int] = {str: 48, bytes: 40}
_GAP = 0xD800
"""Where the numbers begin that are no characters."""


def _number(value: str | bytes, base: int, width: int) -> int:
    codes = [ord(one) for one in value] if isinstance(value, str) else list(value)
    number = 0
    for place in range(width):
        code = codes[place] if place < len(codes) else -1
        number = number * base + (code - 0x800 if code > _GAP and base == _BASES[str] else code) + 1
    return number


def _value(number: int, base: int, width: int) -> Scalar:
    """What is at a number, or about there: nothing goes on after the end."""
    digits = []
    for _ in range(width):
        number, digit = divmod(number, base)
        digits.append(digit)
    digits.reverse()
    codes = [digit - 1 for digit in digits[: digits.index(0) if 0 in digits else width]]
    if base == _BASES[bytes]:
        return bytes(codes)
    return "".join(chr(code + 0x800 if code >= _GAP else code) for code in codes)
