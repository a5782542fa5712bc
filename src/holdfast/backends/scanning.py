"""Reading rows in pages; and reading around those that the store itself cannot read.

A damaged page or file makes a scan raise `Corrupt`, and says not which rows are lost. Keys are ordered, so what can
be read is found by halving: a stretch of keys that reads is taken, one that does not is cut in two, until what is left
is a *hole*: from the first key that cannot be asked for, up to the next that can.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from math import prod
from typing import NamedTuple, Protocol

from holdfast.backends.port import Query, Row, Scan
from holdfast.backends.spaces import Key, Scalar, Space
from holdfast.errors import Corrupt

_PAGE = 256
_PAGE_BYTES = 4 << 20
"""How many rows are read at a time, and about how many bytes of bodies."""

_FEW = 8
"""How many rows are read at first: nobody knows how large they are."""

_FINE = 20
"""A stretch that is shorter than the usual one between two rows by so many bits is taken to have no more than one."""

_COARSE = 90
"""The same, as long as nothing is known of how far rows are apart."""

_PROBES = 8
"""Where none of so many places can be asked for, nothing is taken to be readable."""


class Hole(NamedTuple):
    """Keys that cannot be read: from `start` on, up to and without `stop`. Both follow a prefix; an empty stop is the
    end of it."""

    space: Space
    start: Key
    stop: Key
    error: str


class Reader(Protocol):
    """Whatever answers queries as a backend does."""

    async def read(self, queries: Sequence[Query]) -> list[list[Row]]:
        """See `Backend.read`."""
        ...


async def rows(backend: Reader, space: Space, prefix: Key, *, bodies: bool = True, by: str = "") -> AsyncIterator[Row]:
    """The rows under a prefix, read in pages."""
    places = _Places(space, len(prefix), by)
    page = _FEW if bodies else _PAGE
    start: Key = ()
    while True:
        limit = page + bool(start)
        (found,) = await backend.read([Scan(space, prefix, start=start, limit=limit, by=by, bodies=bodies)])
        for row in found[1:] if start else found:  # a page starts with the row that the one before it ended with
            yield row
        if len(found) < limit:
            return
        start = places.rest(found[-1])
        if bodies:
            page = _next_page(page, found)


async def sturdy_rows(
    backend: Reader,
    space: Space,
    prefix: Key,
    holes: list[Hole],
    *,
    bodies: bool = True,
    by: str = "",
    exact: bool = False,
) -> AsyncIterator[Row]:
    """The same, as far as rows can be read; what cannot is added to `holes`. These start where the last row that reads
    ends, about; with `exact`, at the very key that does not."""
    places = _Places(space, len(prefix), by)
    around = _Around(backend, Scan(space, prefix, by=by, bodies=bodies), places, holes, exact=exact)
    before: Key | None = None
    last: Key | None = None
    try:
        async for row in rows(backend, space, prefix, bodies=bodies, by=by):
            yield row
            before, last = last, places.rest(row)
        return
    except Corrupt:
        start = 0
        for known in (before, last):
            if known is not None:
                around.met(places.number(known))
                start = places.number(known) + 1
    async for row in around.rows(start):
        # Long names are told apart by their beginnings only: some rows may be met again.
        if last is None or places.rest(row) > last:
            yield row
            last = places.rest(row)


def _next_page(page: int, found: Sequence[Row]) -> int:
    size = sum(len(row.body) for row in found)
    return min(2 * page, _PAGE) if size < _PAGE_BYTES // 2 else max(1, page * _PAGE_BYTES // (2 * size))


class _Around:
    """Reads what can be read of a scan."""

    def __init__(self, backend: Reader, scan: Scan, places: _Places, holes: list[Hole], *, exact: bool = False) -> None:
        self._backend = backend
        self._scan = scan
        self._places = places
        self._holes = holes
        self._exact = exact
        self._error = ""
        self._last: int | None = None
        self._gap = places.top
        self._unit = 1 if exact or not places.digests else places.top >> _COARSE

    async def rows(self, low: int) -> AsyncIterator[Row]:
        """What can be read from a place on."""
        places, top = self._places, self._places.top
        low = places.next(low)
        while low < top:
            if not await self._is_anything(low, top):
                self._hole(low, top)
                return
            # Go as far as it reads: in longer strides while it does, in ever shorter ones when it does not.
            stride = min(64 * self._gap, top - low)
            while stride >= self._unit and low < top:
                high = min(places.next(low + stride), top)
                found = await self._read(low, high)
                if found is None:
                    stride //= 2
                    continue
                for row in found:
                    self.met(places.number(places.rest(row)))
                    yield row
                if len(found) < _PAGE:
                    low, stride = high, 2 * stride
                else:
                    low = places.next(places.number(places.rest(found[-1])) + 1)
            if low < top:
                after = await self._end(low, top)
                self._hole(low, after)
                low = after

    def met(self, number: int) -> None:
        """How far rows are apart tells how closely to look for where one cannot be read."""
        if self._last is not None:
            self._gap = max(1, number - self._last)
            self._unit = 1 if self._exact else max(1, self._gap >> _FINE)
        self._last = number

    async def _read(self, low: int, high: int) -> list[Row] | None:
        start, stop = self._places.key(low), self._places.key(high) if high < self._places.top else ()
        try:
            (found,) = await self._backend.read([self._scan._replace(start=start, stop=stop, limit=_PAGE)])
        except Corrupt as error:
            self._error = str(error)
            return None
        return found

    async def _is_readable(self, number: int) -> bool:
        """Whether one can ask for a single key."""
        low = self._places.next(number)
        return low >= self._places.top or await self._read(low, self._places.next(low + 1)) is not None

    async def _is_anything(self, low: int, top: int) -> bool:
        length = top - low
        spots = [low + length * number // _PROBES for number in range(_PROBES)]
        for spot in [*spots, low + length - 1]:
            if await self._is_readable(spot):
                return True
        return False

    async def _end(self, low: int, top: int) -> int:
        """Where one can go on, after a place where one cannot."""
        bad, stride = low, self._unit
        while bad + stride < top and not await self._is_readable(bad + stride):
            bad, stride = bad + stride, 2 * stride
        good = min(bad + stride, top)
        while good - bad > self._unit:
            middle = (bad + good) // 2
            if await self._is_readable(middle):
                good = middle
            else:
                bad = middle
        return min(self._places.next(good), top)

    def _hole(self, low: int, high: int) -> None:
        stop = self._places.key(high) if high < self._places.top else ()
        last = self._holes[-1] if self._holes else None
        start = self._places.key(low)
        if last is not None and last.space is self._scan.space and last.stop == start:
            self._holes[-1] = last._replace(stop=stop)
        else:
            self._holes.append(Hole(self._scan.space, start, stop, self._error))


_BASES: dict[type, int] = {str: 0x110000 - 0x800 + 1, bytes: 257, int: (1 << 64) + 1}
"""How many values a character, a byte and a number have; 0 stands for the end, or for none."""

_WIDTHS: dict[type, int] = {str: 48, bytes: 40, int: 1}
"""How many of them of a column count."""


class _Places:
    """Keys, after a prefix, as numbers in the same order."""

    def __init__(self, space: Space, width: int, by: str) -> None:
        names = list(dict.fromkeys((*space.order(by), *space.key)))
        self._names = names[width:]
        self._space = space
        self._types = [space.all_columns[name] for name in self._names]
        self._bases: list[int] = []
        for kind in self._types:
            self._bases += [_BASES[kind]] * _WIDTHS[kind]
        self.top = prod(self._bases)
        self.digests = bool(self._types) and self._types[-1] is bytes
        """Whether keys end with a digest: these lie far apart."""

    def rest(self, row: Row) -> Key:
        """What follows the prefix, of a row."""
        values = dict(zip(self._space.all_columns, (*row.key, *row.columns), strict=True))
        return tuple(values[name] for name in self._names)

    def number(self, key: Key) -> int:
        """Where a key is."""
        digits: list[int] = []
        for value, kind in zip(key, self._types, strict=False):
            digits += _digits(value, _WIDTHS[kind])
        number = 0
        for place, base in enumerate(self._bases):
            number = number * base + (digits[place] if place < len(digits) else 0)
        return number

    def next(self, number: int) -> int:
        """The place of the first key at or after a place: not every place has one."""
        return self.number(self.key(number)) if number < self.top else self.top

    def key(self, number: int) -> Key:
        """The key at a place, or the next after it."""
        digits = []
        for base in reversed(self._bases):
            number, digit = divmod(number, base)
            digits.append(digit)
        digits.reverse()
        values: list[Scalar] = []
        at = 0
        for kind in self._types:
            width = _WIDTHS[kind]
            part, at = digits[at : at + width], at + width
            if kind is int:
                if not part[0]:
                    return tuple(values)
                values.append(part[0] - 1 - (1 << 63))
                continue
            value, exact = _value(kind, part)
            values.append(value)
            if not exact:
                return tuple(values)
        return tuple(values)


def _digits(value: Scalar, width: int) -> list[int]:
    if isinstance(value, int):
        return [value + (1 << 63) + 1]
    codes = [ord(one) for one in value] if isinstance(value, str) else list(value)
    digits = [code - 0x800 if code >= 0xE000 and isinstance(value, str) else code for code in codes[:width]]
    return [*(digit + 1 for digit in digits), *[0] * (width - len(digits))]


def _value(kind: type, digits: list[int]) -> tuple[Scalar, bool]:
    """The value of a column; and whether it is just that, or the next one that there is."""
    end = digits.index(0) if 0 in digits else len(digits)
    exact = not any(digits[end:])
    codes = [digit - 1 for digit in digits[:end]] + ([] if exact else [0])
    if kind is bytes:
        return bytes(codes), exact
    return "".join(chr(code + 0x800 if code >= 0xD800 else code) for code in codes), exact
