"""What is in an object: a header, a part that describes, and bodies one after another.

The header holds a digest of the describing part; that part holds a checksum of every body. So damage is found on every
read, whether of the whole object or of a piece.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Iterable
from typing import Any, NamedTuple, TypeVar

import msgspec

from holdfast.backends.interface import Batch, Delete, Expect
from holdfast.backends.tables import TABLES, Table
from holdfast.errors import CorruptError, UnsupportedError

VERSION = 1

ENTRY, FOLD, DECISION, LAYOUT = b"E", b"F", b"D", b"L"

HEADER = struct.Struct(">4scBII32s")
"""Magic, kind, version, bytes of the describing part as stored and as packed (equal if not compressed), digest."""

_MAGIC = b"HFob"
_SMALL = 512
_LARGEST = 1 << 30

BY_NAME = {space.name: space for space in TABLES}

S = TypeVar("S", bound=msgspec.Struct)


class BodyLocation(NamedTuple):
    """Where a body is: in the fold of an epoch, or in an entry of its log."""

    epoch: int
    entry: int
    offset: int
    length: int
    check: int


IN_FOLD = -1
"""In place of the number of an entry."""

_PLACE = struct.Struct(">QhQQI")


def pack_place(place: BodyLocation) -> bytes:
    """A place as bytes."""
    return _PLACE.pack(*place)


def unpack_place(data: bytes) -> BodyLocation:
    """A place from its bytes."""
    return BodyLocation(*_PLACE.unpack(data))


class WrittenRow(NamedTuple):
    """A row in an entry: the key is without tenant and line. Bodies follow one another in this order."""

    space: str
    key: tuple[Any, ...]
    columns: tuple[Any, ...]
    length: int
    check: int


class DeletedRows(NamedTuple):
    """Rows that an entry removes, before it writes."""

    space: str
    prefix: tuple[Any, ...]


class LogEntry(msgspec.Struct, array_like=True):
    """An entry of a log."""

    names: tuple[str, str]
    token: str
    """Of the epoch that it is in."""
    id: bytes
    transaction: str
    """It counts if this was decided so. Empty: it counts."""
    last: bool
    """The epoch ends here, for a thorough fold."""
    stub: bool
    """What it held is in a fold. Only of births."""
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
    """Rows that were removed in an epoch, and may be in the index of an older fold."""

    epoch: int
    space: str
    prefix: tuple[Any, ...]


class BodyObject(NamedTuple):
    """An object that has bodies which are indexed: how long it is up to its bodies, and how many bytes these have.

    Of the fold itself, `base` is 0 in its own index: its header tells.
    """

    epoch: int
    entry: int
    token: str
    base: int
    size: int


class FoldRef(NamedTuple):
    """An older fold whose index still counts; it covers the epochs from `first` to `epoch`."""

    level: int
    first: int
    epoch: int
    token: str
    base: int


class Garbage(NamedTuple):
    """Objects that nobody needs since some time, by their names in the shard's folder."""

    time: float
    names: list[str]


class FoldObject(msgspec.Struct, array_like=True):
    """What an epoch came to, and where the next one goes on."""

    names: tuple[str, str]
    token: str
    following: str
    id: bytes
    time: float
    removed: bool
    """This was the end of the shard's life."""
    count: int
    """How many entries counted, since the shard's birth."""
    entries: list[bytes]
    """The ids of the epoch's entries."""
    level: int
    first: int
    refs: list[FoldRef]
    doomed: list[Garbage]
    settled: list[Garbage]
    """Transactions that this and the last folds before it took in: what was decided of them is still needed a while."""
    holders: list[BodyObject]
    tombs: list[Tombstone]
    rows: list[IndexedRow]


class Decision(msgspec.Struct, array_like=True):
    """What became of a transaction. The salt tells who decided it."""

    id: str
    made: bool
    salt: bytes


class StoreMarker(msgspec.Struct, array_like=True):
    """Marks a place as a store of this kind."""

    version: int


def encode(kind: bytes, what: msgspec.Struct, bodies: Iterable[bytes] = ()) -> bytes:
    """The bytes of an object."""
    packed = msgspec.msgpack.encode(what, enc_hook=_plain)
    stored = packed
    if len(packed) > _SMALL:
        smaller = zlib.compress(packed, 3)
        if len(smaller) < len(packed):
            stored = smaller
    header = HEADER.pack(_MAGIC, kind, VERSION, len(stored), len(packed), hashlib.sha256(stored).digest())
    return b"".join((header, stored, *bodies))


def check_values(batch: Batch) -> None:
    """Raises one of Python's own errors for a batch with a name or a number that no object can hold."""
    for change in batch:
        match change:
            case Delete(_, prefix):
                held: tuple[object, ...] = prefix
            case Expect(_, key, columns):
                held = (key, columns)
            case _:
                held = (change.row.key, change.row.columns)
        msgspec.msgpack.encode(held, enc_hook=_plain)


def base_of(data: bytes, name: str) -> int:
    """Where the bodies of an object begin; its first bytes are enough."""
    return HEADER.size + int(_header(data, name)[3])


def decode(kind: bytes, struct_type: type[S], data: bytes, name: str) -> S:
    """What an object describes. `name` is for the error."""
    _, found, version, stored_size, packed_size, digest = _header(data, name)
    if version != VERSION:
        raise UnsupportedError(
            f"an object has version {version} of its format",
            where=name,
            hint="Read it with a newer release of Holdfast",
        )
    stored = data[HEADER.size : HEADER.size + stored_size]
    if found != kind or len(stored) != stored_size or hashlib.sha256(stored).digest() != digest:
        raise damaged(name)
    try:
        packed = stored if packed_size == stored_size else _decompress(stored, packed_size)
        return msgspec.msgpack.decode(packed, type=struct_type)
    except (msgspec.MsgspecError, zlib.error) as error:
        raise damaged(name) from error


def check_of(body: bytes) -> int:
    """The checksum of a body."""
    return zlib.crc32(body)


def space_of(name: str, where: str) -> Table:
    """A space by its name."""
    space = BY_NAME.get(name)
    if space is None:
        raise UnsupportedError(
            f"rows of a kind {name!r} are unknown", where=where, hint="Use a newer release of Holdfast"
        )
    return space


def damaged(name: str) -> CorruptError:
    """The error for an object that is not what was written."""
    return CorruptError("an object is not what was written", where=name, hint="Restore it from a backup or a mirror")


def missing(name: str) -> CorruptError:
    """The error for an object that has to be there and is not."""
    return CorruptError("an object is missing", where=name, hint="Restore it from a backup or a mirror")


def _header(data: bytes, name: str) -> tuple[Any, ...]:
    if len(data) < HEADER.size or data[:4] != _MAGIC:
        raise damaged(name)
    return HEADER.unpack_from(data)


def _decompress(stored: bytes, size: int) -> bytes:
    if size > _LARGEST:
        raise zlib.error("too large")
    return zlib.decompressobj().decompress(stored, size)


def _plain(value: object) -> object:
    """Text of a kind of its own is stored as text."""
    if isinstance(value, str):
        return str(value)
    raise NotImplementedError(type(value))
