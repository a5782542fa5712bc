"""The format of objects: a header, a description, and bodies one after another.

The header has a digest of the description, which has a checksum of every body. So damage is detected on every read,
of the whole object or of a range.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Iterable
from typing import Any, NamedTuple, TypeVar

import msgspec

from holdfast.backends.interface import Batch, Delete, Expect
from holdfast.backends.tables import TABLES, Table, plain_text
from holdfast.byte_reader import ByteReader, packed_form
from holdfast.errors import CorruptError, UnsupportedError

VERSION = 1

ENTRY, FOLD, DECISION, LAYOUT = b"E", b"F", b"D", b"L"

HEADER = struct.Struct(">4scBII32s")
"""Magic, kind, version, bytes of the description as stored and as packed (equal if not compressed), digest."""

_MAGIC = b"HFob"
_SMALL = 512
_MAX_DESCRIPTION = 1 << 30
_OBJECT = "an object"
_HINT = "Restore it from a backup or a mirror"

TABLES_BY_NAME = {space.name: space for space in TABLES}

S = TypeVar("S", bound=msgspec.Struct)


class BodyLocation(NamedTuple):
    """The location of a body: in the fold of an epoch, or in an entry of its log."""

    epoch: int
    entry: int
    offset: int
    length: int
    check: int


_LOCATION = struct.Struct(">QhQQI")


def pack_location(location: tuple[int, int, int, int, int]) -> bytes:
    return _LOCATION.pack(*location)


def unpack_location(data: bytes) -> BodyLocation:
    reader = ByteReader(data, "the location of a body")
    location = BodyLocation(*reader.fields(_LOCATION))
    reader.end()
    return location


class WrittenRow(NamedTuple):
    """A row in an entry, its key without tenant and line. The bodies are in the same order."""

    space: str
    key: tuple[Any, ...]
    columns: tuple[Any, ...]
    length: int
    check: int


class DeletedRows(NamedTuple):
    """The prefix of rows that an entry deletes, before it writes."""

    space: str
    prefix: tuple[Any, ...]


class LogEntry(msgspec.Struct, array_like=True):
    """An entry of a log."""

    names: tuple[str, str]
    token: str
    """The token of its epoch."""
    id: bytes
    previous: bytes
    """The id of the entry before it in its epoch; empty if it is the first."""
    transaction: str
    """The transaction that it is part of; empty if it is part of none."""
    last: bool
    """Whether the epoch ends here, for a thorough fold."""
    stub: bool
    """Whether its content is in a fold. Only for the first object of a generation."""
    deleted: list[DeletedRows]
    written: list[WrittenRow]


class IndexedRow(NamedTuple):
    """A row in the index of a fold."""

    space: str
    key: tuple[Any, ...]
    columns: tuple[Any, ...]
    epoch: int
    entry: int
    offset: int
    length: int
    check: int


class Tombstone(NamedTuple):
    """The prefix of rows that were deleted in an epoch, and may be in the index of an older fold."""

    epoch: int
    space: str
    prefix: tuple[Any, ...]


class BodyObject(NamedTuple):
    """An object with indexed bodies: where they start, and their size.

    `base` is 0 for the fold itself in its own index; its header has it.
    """

    epoch: int
    entry: int
    token: str
    base: int
    size: int


class FoldRef(NamedTuple):
    """An older fold whose index is still valid; it covers the epochs from `first` to `epoch`."""

    level: int
    first: int
    epoch: int
    token: str
    base: int


class Garbage(NamedTuple):
    """Objects that are not needed since `time`, by their names in the shard's folder."""

    time: float
    names: list[str]


class FoldObject(msgspec.Struct, array_like=True):
    """The result of an epoch, and the token of the next."""

    names: tuple[str, str]
    token: str
    next_token: str
    id: bytes
    time: float
    removed: bool
    """Whether the generation of the shard ends here."""
    count: int
    """The number of valid entries of the generation."""
    entries: list[bytes]
    """The ids of the epoch's entries."""
    level: int
    first: int
    refs: list[FoldRef]
    garbage: list[Garbage]
    decided_transactions: list[Garbage]
    """Transactions of this and the last folds, whose decisions are still needed for a while."""
    body_objects: list[BodyObject]
    tombstones: list[Tombstone]
    rows: list[IndexedRow]


class Decision(msgspec.Struct, array_like=True):
    """Whether a transaction is committed. The salt identifies who decided it."""

    id: str
    committed: bool
    salt: bytes


class StoreMarker(msgspec.Struct, array_like=True):
    """The object that marks a bucket or directory as a store."""

    version: int


def encode(kind: bytes, what: msgspec.Struct, bodies: Iterable[bytes] = ()) -> bytes:
    """Encode an object."""
    packed = msgspec.msgpack.encode(what, enc_hook=plain_text)
    stored = packed
    if len(packed) > _SMALL:
        smaller = zlib.compress(packed, 3)
        if len(smaller) < len(packed):
            stored = smaller
    header = HEADER.pack(_MAGIC, kind, VERSION, len(stored), len(packed), hashlib.sha256(stored).digest())
    return b"".join((header, stored, *bodies))


def check_values(batch: Batch) -> None:
    """Raise a built-in error if a batch has a name or a number that cannot be encoded."""
    for change in batch:
        match change:
            case Delete(_, prefix):
                values: tuple[object, ...] = prefix
            case Expect(_, key, columns):
                values = (key, columns)
            case _:
                values = (change.row.key, change.row.columns)
        msgspec.msgpack.encode(values, enc_hook=plain_text)


def bodies_start(data: bytes, name: str) -> int:
    """Return where the bodies of an object start, from its first bytes."""
    return HEADER.size + int(_header(data, name)[3])


def decode(kind: bytes, struct_type: type[S], data: bytes, name: str) -> S:
    """Decode the description of an object. `name` is for the error."""
    _, found, version, stored_size, packed_size, digest = _header(data, name)
    if version != VERSION:
        raise UnsupportedError(
            f"an object has the unknown format version {version}",
            where=name,
            hint="Read it with a newer release of Holdfast",
        )
    stored = data[HEADER.size : HEADER.size + stored_size]
    if found != kind or len(stored) != stored_size or hashlib.sha256(stored).digest() != digest:
        raise damaged_error(name)
    try:
        packed = stored if packed_size == stored_size else _decompress(stored, packed_size)
    except zlib.error as error:
        raise damaged_error(name) from error
    return ByteReader(packed, _OBJECT, name, _HINT).packed(packed_form(struct_type))


def decode_intact(kind: bytes, struct_type: type[S], data: bytes | None, name: str) -> S | None:
    """Decode the description of an object; None if it is missing, damaged, or of another release."""
    try:
        return None if data is None else decode(kind, struct_type, data, name)
    except (CorruptError, UnsupportedError):
        return None


def checksum(body: bytes) -> int:
    """Return the checksum of a body."""
    return zlib.crc32(body)


def find_table(name: str, where: str) -> Table:
    """Return a table by its name."""
    space = TABLES_BY_NAME.get(name)
    if space is None:
        raise UnsupportedError(f"the table {name!r} is unknown", where=where, hint="Use a newer release of Holdfast")
    return space


def damaged_error(name: str) -> CorruptError:
    """Return the error for a damaged object."""
    return CorruptError(f"{_OBJECT} differs from what was written", where=name, hint=_HINT)


def missing_error(name: str) -> CorruptError:
    """Return the error for a missing object."""
    return CorruptError(f"{_OBJECT} is missing", where=name, hint=_HINT)


def order_error(name: str) -> CorruptError:
    """Return the error for an entry that does not follow the one before it."""
    return CorruptError(
        "a log entry does not follow the entry before it, which was lost and replaced",
        where=name,
        hint="Repair the store",
    )


def _header(data: bytes, name: str) -> tuple[Any, ...]:
    reader = ByteReader(data, _OBJECT, name, _HINT)
    fields = reader.fields(HEADER)
    if fields[0] != _MAGIC:
        raise damaged_error(name)
    return fields


def _decompress(stored: bytes, size: int) -> bytes:
    if size > _MAX_DESCRIPTION:
        raise zlib.error("too large")
    return zlib.decompressobj().decompress(stored, size)
