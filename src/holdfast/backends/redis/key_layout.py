"""How rows lie in Redis: which keys there are, what they are called, and what is in them.

A key of a row is written as words, each ended by `+`. Words sort as what they stand for, so that the order of names is
the order of keys, and people can read them: text is itself, with `,` and two hex digits for each character up to the
comma; bytes are hex; a number has a letter before it that says how many digits there are (`b17`). Below zero, where
only few numbers are, digits are counted down: -1 is `-z8`.

With the prefix `holdfast`, and for the steps of the line `chat-1` of the tenant `acme`:

- `{holdfast}:steps:acme+chat-1+` is a hash of the rows: `a0+b17+` is step 17 of branch 0. A row is one line with its
  columns, and then its body. The line starts with the words of columns that have an index; the others are JSON. A row
  without columns is its body alone.
- `{holdfast}:steps.keys:acme+chat-1+` is a sorted set of these names: Redis orders them where the scores are equal.
- `{holdfast}:steps.by-id:acme+chat-1+` is the like for an index: the words of its columns, then the name of the row.
- `{holdfast}:steps` is a sorted set of the parts that there are: `acme+chat-1+`.

So a line goes by removing a few keys, and the sets of short lines are kept by Redis in very little room. All keys have
one hash tag, and so lie on one node of a cluster.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

import msgspec

from holdfast.backends.interface import Change, Create, Delete, Ensure, Expect, Get, Put, Query, Row, Scan
from holdfast.backends.tables import TABLES, Key, Scalar, Table
from holdfast.errors import CorruptError

Argument = bytes | str | int

_END = b"+"
_NEXT = b","
"""Follows `_END`: what starts with some words comes before the same bytes with this as the last."""

_SPECIAL = re.compile(rb"[\x00-,]")
_ESCAPE = re.compile(rb",(..)", re.DOTALL)
_NINES = bytes.maketrans(b"0123456789", b"9876543210")

_JSON = msgspec.json.Encoder()
_COLUMNS = msgspec.json.Decoder(list[str | int])


# Words ------------------------------------------------------------------------------------------------------------


def words(values: Iterable[Scalar]) -> bytes:
    """A key, or a part of one, as words."""
    return b"".join([_word(value) for value in values])


def _word(value: Scalar) -> bytes:
    if isinstance(value, int):
        digits = b"%d" % abs(value)
        if value >= 0:
            return b"%c%b+" % (96 + len(digits), digits)
        return b"-%c%b+" % (123 - len(digits), digits.translate(_NINES))
    return value.hex().encode() + _END if isinstance(value, bytes) else _text(value)


@lru_cache(1024)
def _text(value: str) -> bytes:
    return _SPECIAL.sub(lambda found: b",%02x" % found[0][0], value.encode()) + _END


def read_words(kinds: Sequence[type], data: bytes) -> Key:
    """The values that some words stand for, given their types."""
    parts = data.split(_END)
    if len(parts) != len(kinds) + 1 or parts[-1]:
        raise ValueError(f"{len(kinds)} words are not in {data!r}")
    return tuple([_value(kind, part) for kind, part in zip(kinds, parts, strict=False)])


def _value(kind: type, word: bytes) -> Scalar:
    if kind is int:
        return int(word[1:]) if word[:1] != b"-" else -int(word[2:].translate(_NINES))
    if kind is bytes:
        return bytes.fromhex(word.decode("ascii"))
    if _NEXT in word:
        word = _ESCAPE.sub(lambda found: bytes([int(found[1], 16)]), word)
    return word.decode()


def _after(start: bytes) -> bytes:
    """An upper bound, not included, of all that starts with some words; as ZRANGEBYLEX has it."""
    return b"(" + start[:-1] + _NEXT if start else b"+"


# Rows -------------------------------------------------------------------------------------------------------------


class KeyIndex(NamedTuple):
    """A further order of a space, and its columns within a part. It starts with the columns that make the parts."""

    name: str
    columns: tuple[str, ...]


class KeyLayout:
    """How the rows of one space are written."""

    def __init__(self, number: int, space: Table) -> None:
        self.number = number
        self.space = space
        self.width = min(2, len(space.key) - 1)
        self.indexes = [KeyIndex(name, columns[self.width :]) for name, columns in space.indexes.items()]
        names = list(space.all_columns)
        indexed = [column for index in self.indexes for column in index.columns]
        self._kinds = list(space.key.values())
        self._words = [names.index(column) for column in indexed]
        self._word_kinds = [space.all_columns[column] for column in indexed]
        self._plain = [place for place, name in enumerate(space.columns) if name not in indexed]
        self._hex = [place for place, kind in enumerate(space.columns.values()) if kind is bytes]

    def split(self, key: Key) -> tuple[bytes, bytes]:
        """The part that a key is in, and its name there."""
        return words(key[: self.width]), words(key[self.width :])

    def header(self, key: Key, columns: tuple[Scalar, ...]) -> bytes:
        """The columns as a line of text, which is the same whenever they are."""
        values: list[Scalar] = list(columns)
        for place in self._hex:
            value = values[place]
            values[place] = value.hex() if isinstance(value, bytes) else value
        line = _JSON.encode([values[place] for place in self._plain])
        if not self._words:
            return line
        every = key + columns
        return words([every[place] for place in self._words]) + line

    def value(self, row: Row) -> bytes:
        """A row as it is stored under its key."""
        if not self.space.columns:
            return row.body
        return b"%b\n%b" % (self.header(row.key, row.columns), row.body)

    def row(self, key: Key, value: bytes) -> Row:
        """The row that was stored under a key."""
        if not self.space.columns:
            return Row(key, (), value)
        line, _, body = value.partition(b"\n")
        columns: list[Scalar] = [0] * len(self.space.columns)
        if self._words:
            *parts, line = line.split(_END, len(self._words))
            for place, kind, part in zip(self._words, self._word_kinds, parts, strict=True):
                if place >= len(key):
                    columns[place - len(key)] = _value(kind, part)
        for place, found in zip(self._plain, _COLUMNS.decode(line), strict=True):
            columns[place] = found
        for place in self._hex:
            columns[place] = bytes.fromhex(str(columns[place]))
        return Row(key, tuple(columns), body)

    def rows(self, start: Key, names: bytes, lengths: bytes, values: bytes) -> list[Row]:
        """Rows whose keys start so, from the names that follow and what is stored under them."""
        try:
            kinds = self._kinds[len(start) :]
            keys = [start + read_words(kinds, name) for name in names.split(b" ")] if names else []
            if not lengths:
                return [Row(key) for key in keys]
            rows, at = [], 0
            for key, length in zip(keys, map(int, lengths.split()), strict=True):
                if length < 0:
                    raise ValueError("it is listed and not there")
                rows.append(self.row(key, values[at : at + length]))
                at += length
            return rows
        except (ValueError, TypeError, IndexError, msgspec.DecodeError) as error:
            raise CorruptError(
                f"a row of {self.space.name} is not what was written: {error}",
                where=words(start).decode(errors="replace"),
                hint="Check the store; something else may have written to its keys",
            ) from error


KEY_LAYOUTS = {space: KeyLayout(number, space) for number, space in enumerate(TABLES, 1)}
"""For each space, how its rows are written."""


# Changes and queries, as the scripts take them --------------------------------------------------------------------

_WRITES = {Create: b"C", Ensure: b"U", Put: b"P"}


def change(what: Change) -> list[Argument]:
    """A change: what is to be done in which space; the part; the name; the value."""
    shape = KEY_LAYOUTS[what.space]
    if isinstance(what, Delete):
        part, name = shape.split(what.prefix)
        if len(what.prefix) == len(what.space.key):
            code = b"X"
        elif name:
            code = b"F"
        else:
            code = b"D" if len(what.prefix) == shape.width else b"A"
        return [b"%b%d" % (code, shape.number), part, name, b""]
    if isinstance(what, Expect):
        part, name = shape.split(what.key)
        if what.columns is None:
            return [b"N%d" % shape.number, part, name, b""]
        header = shape.header(what.key, what.columns) if what.space.columns else b""
        return [b"E%d" % shape.number, part, name, header]
    part, name = shape.split(what.row.key)
    return [b"%b%d" % (_WRITES[type(what)], shape.number), part, name, shape.value(what.row)]


def query(what: Query) -> list[Argument]:
    """A query: how it is to be answered, in which space, and the rest as the script takes it."""
    return _get(what) if isinstance(what, Get) else _scan(what)


def found(what: Query, names: bytes, lengths: bytes, values: bytes) -> list[Row]:
    """The rows that a query found, from what the script returned."""
    shape = KEY_LAYOUTS[what.space]
    start: Key = ()
    if isinstance(what, Scan) and len(what.prefix) >= shape.width:
        start = what.prefix[: shape.width]
    return shape.rows(start, names, lengths, values)


def _get(what: Get) -> list[Argument]:
    shape = KEY_LAYOUTS[what.space]
    parts: dict[bytes, dict[bytes, None]] = {}
    for key in what.keys:
        part, name = shape.split(key)
        parts.setdefault(part, {})[name] = None
    arguments: list[Argument] = ["G", shape.number, len(parts)]
    for part, names in parts.items():
        arguments += [part, len(names), *names]
    return arguments


def _scan(what: Scan) -> list[Argument]:
    shape = KEY_LAYOUTS[what.space]
    number = 1 + list(what.space.indexes).index(what.by) if what.by else 0
    width = shape.width
    prefix, low, high = what.prefix, what.prefix + what.start, what.prefix + what.stop
    limit = -1 if what.limit is None else what.limit
    common: list[Argument] = [shape.number, number, int(what.bodies), int(what.reverse), limit]
    if len(prefix) >= width:
        least = words(low[width:])
        most = b"(" + words(high[width:]) if what.stop else _after(words(prefix[width:]))
        return ["S", *common, words(prefix[:width]), b"[" + least if least else b"-", most]
    # In several parts: which ones, and the bounds from which each part's own are found.
    first = words(low[:width])
    if not what.stop:
        last = _after(words(prefix))
    elif len(high) > width:
        last = _after(words(high[:width]))
    else:
        last = b"(" + words(high)
    return ["M", *common, b"[" + first if first else b"-", last, words(low), words(high) if what.stop else b""]
