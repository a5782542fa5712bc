"""The layout of rows in Redis: its keys, their names, and their values.

The key of a row is encoded as words, each ended by `+`. Words sort like their values, so that the order of names is the
order of keys, and people can read them: text is itself, with `,` and two hex digits for each character up to the comma;
bytes are hex; a number is preceded by a letter for how many digits it has (`b17`). The digits of a negative number are
complemented: -1 is `-z8`.

With the prefix `holdfast`, and for the steps of the line `chat-1` of the tenant `acme`:

- `{holdfast}:steps:acme+chat-1+` is a hash of the rows: `a0+b17+` is step 17 of branch 0. A row is one line with its
  columns, and then its body. The line starts with the words of columns that have an index; the others are JSON. A row
  without columns is its body alone.
- `{holdfast}:steps.keys:acme+chat-1+` is a sorted set of these names: Redis orders them where the scores are equal.
- `{holdfast}:steps.by-id:acme+chat-1+` is a sorted set for an index: the words of its columns, then the row's name.
- `{holdfast}:steps` is a sorted set of the parts: `acme+chat-1+`.
- `{holdfast}:changes` is a sorted set of the lines that changed last, by the number of the change.

So a line is deleted by removing a few keys, and Redis stores the sets of short lines compactly. All keys have one hash
tag, and so are on one node of a cluster.
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
"""Follows `_END`: an upper bound of what starts with some words is those with this as the last byte."""

_SPECIAL = re.compile(rb"[\x00-,]")
_ESCAPE = re.compile(rb",(..)", re.DOTALL)
_NINES = bytes.maketrans(b"0123456789", b"9876543210")

_JSON = msgspec.json.Encoder()
_COLUMNS = msgspec.json.Decoder(list[str | int])


# Words ------------------------------------------------------------------------------------------------------------


def encode_words(values: Iterable[Scalar]) -> bytes:
    """Encode a key, or a part of one, as words."""
    return b"".join([_encode_word(value) for value in values])


def _encode_word(value: Scalar) -> bytes:
    if isinstance(value, int):
        digits = b"%d" % abs(value)
        if value >= 0:
            return b"%c%b+" % (96 + len(digits), digits)
        return b"-%c%b+" % (123 - len(digits), digits.translate(_NINES))
    return value.hex().encode() + _END if isinstance(value, bytes) else _encode_text(value)


@lru_cache(1024)
def _encode_text(value: str) -> bytes:
    return _SPECIAL.sub(lambda match: b",%02x" % ord(match[0]), value.encode()) + _END


def decode_words(kinds: Sequence[type], data: bytes) -> Key:
    """Decode words into values of these types."""
    parts = data.split(_END)
    if len(parts) != len(kinds) + 1 or parts[-1]:
        raise ValueError(f"expected {len(kinds)} words in {data!r}")
    return tuple([_decode_word(kind, part) for kind, part in zip(kinds, parts, strict=False)])


def _decode_word(kind: type, word: bytes) -> Scalar:
    if kind is int:
        return int(word[1:]) if word[:1] != b"-" else -int(word[2:].translate(_NINES))
    if kind is bytes:
        return bytes.fromhex(word.decode("ascii"))
    if _NEXT in word:
        word = _ESCAPE.sub(lambda match: bytes([int(match[1], 16)]), word)
    return word.decode()


def _prefix_end(start: bytes) -> bytes:
    """The exclusive upper bound, for ZRANGEBYLEX, of all that starts with some words."""
    return b"(" + start[:-1] + _NEXT if start else b"+"


# Rows -------------------------------------------------------------------------------------------------------------


class KeyIndex(NamedTuple):
    """An index of a table, and its columns after those that name the part."""

    name: str
    columns: tuple[str, ...]


class KeyLayout:
    """The encoding of the rows of one table."""

    def __init__(self, number: int, space: Table) -> None:
        self.number = number
        self.space = space
        self.width: int = min(2, len(space.key) - 1)
        self.indexes: list[KeyIndex] = [
            KeyIndex(name, columns[self.width :]) for name, columns in space.indexes.items()
        ]
        names = list(space.all_columns)
        indexed = [column for index in self.indexes for column in index.columns]
        self._kinds = list(space.key.values())
        self._words = [names.index(column) for column in indexed]
        self._word_kinds = [space.all_columns[column] for column in indexed]
        self._plain = [position for position, name in enumerate(space.columns) if name not in indexed]
        self._hex = [position for position, kind in enumerate(space.columns.values()) if kind is bytes]

    def split(self, key: Key) -> tuple[bytes, bytes]:
        """Return the part that a key is in, and its name there."""
        return encode_words(key[: self.width]), encode_words(key[self.width :])

    def encode_header(self, key: Key, columns: tuple[Scalar, ...]) -> bytes:
        """Encode the columns as a line of text; equal columns have equal lines."""
        values: list[Scalar] = list(columns)
        for position in self._hex:
            value = values[position]
            values[position] = value.hex() if isinstance(value, bytes) else value
        line = _JSON.encode([values[position] for position in self._plain])
        if not self._words:
            return line
        every = key + columns
        return encode_words([every[position] for position in self._words]) + line

    def encode_row(self, row: Row) -> bytes:
        """Encode a row as the value of its key."""
        if not self.space.columns:
            return row.body
        return b"%b\n%b" % (self.encode_header(row.key, row.columns), row.body)

    def decode_row(self, key: Key, data: bytes) -> Row:
        """Decode the value of a key."""
        if not self.space.columns:
            return Row(key, (), data)
        line, _, body = data.partition(b"\n")
        columns: list[Scalar] = [0] * len(self.space.columns)
        if self._words:
            *parts, line = line.split(_END, len(self._words))
            for position, kind, part in zip(self._words, self._word_kinds, parts, strict=True):
                if position >= len(key):
                    columns[position - len(key)] = _decode_word(kind, part)
        for position, value in zip(self._plain, _COLUMNS.decode(line), strict=True):
            columns[position] = value
        for position in self._hex:
            columns[position] = bytes.fromhex(str(columns[position]))
        return Row(key, tuple(columns), body)

    def decode_rows(self, start: Key, names: bytes, lengths: bytes, values: bytes) -> list[Row]:
        """Decode rows whose keys start with `start`, from their names and values as `READ` returns them."""
        try:
            kinds = self._kinds[len(start) :]
            keys = [start + decode_words(kinds, name) for name in names.split(b" ")] if names else []
            if not lengths:
                return [Row(key) for key in keys]
            rows, at = [], 0
            for key, length in zip(keys, map(int, lengths.split()), strict=True):
                if length < 0:
                    raise ValueError("an indexed row is missing")
                rows.append(self.decode_row(key, values[at : at + length]))
                at += length
            return rows
        except (ValueError, TypeError, IndexError, msgspec.DecodeError) as error:
            raise CorruptError(
                f"a row of {self.space.name} is not what was written: {error}",
                where=encode_words(start).decode(errors="replace"),
                hint="Check the store; another program may have written to its keys",
            ) from error


KEY_LAYOUTS = {space: KeyLayout(number, space) for number, space in enumerate(TABLES, 1)}
"""The layout of each table."""


# The arguments of the scripts -------------------------------------------------------------------------------------

_WRITES = {Create: b"C", Ensure: b"U", Put: b"P"}


def encode_change(change: Change) -> list[Argument]:
    """Encode a change: its code and table, the part, the name, the value."""
    layout = KEY_LAYOUTS[change.space]
    if isinstance(change, Delete):
        part, name = layout.split(change.prefix)
        if len(change.prefix) == len(change.space.key):
            code = b"X"
        elif name:
            code = b"F"
        else:
            code = b"D" if len(change.prefix) == layout.width else b"A"
        return [b"%b%d" % (code, layout.number), part, name, b""]
    if isinstance(change, Expect):
        part, name = layout.split(change.key)
        if change.columns is None:
            return [b"N%d" % layout.number, part, name, b""]
        header = layout.encode_header(change.key, change.columns) if change.space.columns else b""
        return [b"E%d" % layout.number, part, name, header]
    part, name = layout.split(change.row.key)
    return [b"%b%d" % (_WRITES[type(change)], layout.number), part, name, layout.encode_row(change.row)]


def encode_query(query: Query) -> list[Argument]:
    """Encode a query: its kind, the table, and the rest."""
    return _encode_get(query) if isinstance(query, Get) else _encode_scan(query)


def decode_rows(query: Query, names: bytes, lengths: bytes, values: bytes) -> list[Row]:
    """Decode the rows of a query from the reply of the script."""
    layout = KEY_LAYOUTS[query.space]
    start: Key = ()
    if isinstance(query, Scan) and len(query.prefix) >= layout.width:
        start = query.prefix[: layout.width]
    return layout.decode_rows(start, names, lengths, values)


def _encode_get(query: Get) -> list[Argument]:
    layout = KEY_LAYOUTS[query.space]
    parts: dict[bytes, dict[bytes, None]] = {}
    for key in query.keys:
        part, name = layout.split(key)
        parts.setdefault(part, {})[name] = None
    arguments: list[Argument] = ["G", layout.number, len(parts)]
    for part, names in parts.items():
        arguments += [part, len(names), *names]
    return arguments


def _encode_scan(query: Scan) -> list[Argument]:
    layout = KEY_LAYOUTS[query.space]
    number = 1 + list(query.space.indexes).index(query.by) if query.by else 0
    width = layout.width
    prefix, low, high = query.prefix, query.prefix + query.start, query.prefix + query.stop
    limit = -1 if query.limit is None else query.limit
    common: list[Argument] = [layout.number, number, int(query.bodies), int(query.reverse), limit]
    if len(prefix) >= width:
        least = encode_words(low[width:])
        most = b"(" + encode_words(high[width:]) if query.stop else _prefix_end(encode_words(prefix[width:]))
        return ["S", *common, encode_words(prefix[:width]), b"[" + least if least else b"-", most]
    # In several parts: the bounds of the parts, and those of the rows.
    first = encode_words(low[:width])
    if not query.stop:
        last = _prefix_end(encode_words(prefix))
    elif len(high) > width:
        last = _prefix_end(encode_words(high[:width]))
    else:
        last = b"(" + encode_words(high)
    return [
        "M",
        *common,
        b"[" + first if first else b"-",
        last,
        encode_words(low),
        encode_words(high) if query.stop else b"",
    ]
