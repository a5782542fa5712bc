"""The bytes of a snapshot: three members of gzip, which `zcat` shows as lines of JSON.

The header and the seal are *stored*: there is one way only to write them, so that they are checked by writing them
again. The seal has the SHA-256 of every byte before it. So whatever byte of a file is changed, cut off or added, it
shows, also where gzip and JSON would not mind: a time in a header of gzip, bits that fill up a byte, blanks.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from holdfast.agents.snapshots.header import PayloadInfo, SnapshotHeader, decode, encode
from holdfast.errors import SnapshotCorruptError, SnapshotTooLargeError

LIMIT = 256 << 20
"""How many bytes the content may have, unless the caller says otherwise."""

MAX_HEADER = 0xFFFF
"""What fits into one stored block."""

# No name, no time, no flags, an unknown system: the same content is the same file, wherever it is written.
_START = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"
_BLOCK = struct.Struct("<BHH")
_END = struct.Struct("<II")

HEAD_BYTES = len(_START) + _BLOCK.size + MAX_HEADER + _END.size
"""How many bytes from the start hold the header, at most."""

_LEVEL = 6
_CHUNK = 1 << 20
_MAX_RATIO = 200
_SMALL = 16 << 20
"""Up to here content may be of any ratio: a kilobyte that unpacks to this is no harm."""


HeaderOf: TypeAlias = Callable[[PayloadInfo], SnapshotHeader]


class OpenedSnapshot(NamedTuple):
    """A snapshot that was read as a whole, and is what was written."""

    header: SnapshotHeader
    content: bytes


def build(content: bytes, make_header: HeaderOf) -> bytes:
    """A file of this content. `make_header` is called with what the header tells of it."""
    packed = _deflated(content, _LEVEL)
    if len(content) > _SMALL and len(content) > _MAX_RATIO * len(packed):
        packed = _deflated(content, 0)  # what nobody would read for fear that it is a bomb is not packed as one
    member = _START + packed + _END.pack(zlib.crc32(content), len(content) & 0xFFFFFFFF)
    about = PayloadInfo(len(content), len(member), hashlib.sha256(content).hexdigest())
    line = encode(make_header(about))
    if len(line) > MAX_HEADER:
        raise SnapshotTooLargeError(
            f"the header would have {len(line):,} bytes, and has room for {MAX_HEADER:,}",
            hint="Give a shorter description, or split the agent: its tools and classes are named there",
        )
    body = _stored(line) + member
    return body + _seal(body)


def read_header(data: bytes, where: str) -> tuple[SnapshotHeader, int]:
    """The header of a file of which at least the first `HEAD_BYTES` are given, and how many bytes it takes."""
    if not data.startswith(_START[:3]):
        raise SnapshotCorruptError("this is no snapshot", where=where, hint="Snapshots are files that end in .hfsnap")
    first = len(_START) + _BLOCK.size
    size = _BLOCK.unpack_from(data, len(_START))[1] if len(data) >= first else 0
    line = data[first : first + size]
    end = first + size + _END.size
    if not line.endswith(b"\n") or _stored(line) != data[:end]:
        raise SnapshotCorruptError("the header is damaged, or this is no snapshot", where=where)
    return decode(line, where), end


def most_bytes(limit: int) -> int:
    """How many bytes a file has at most, if its content is within the limit."""
    return limit + limit // 1000 + 2 * HEAD_BYTES


def size_of(header: SnapshotHeader) -> int:
    """How many bytes the file of a header has."""
    return len(_stored(encode(header))) + header.content.packed + len(_seal(b""))


def open_file(data: bytes, limit: int, where: str) -> OpenedSnapshot:
    """All of a file, checked: every byte of it is what was written. Raises `SnapshotCorruptError`,
    `SnapshotTooLargeError`."""
    if len(data) > most_bytes(limit):
        raise SnapshotTooLargeError(f"the snapshot is larger than {limit:,} bytes can be", where=where, hint=_MORE)
    header, start = read_header(data, where)
    end = len(data) - len(_seal(b""))
    if end < start or data[end:] != _seal(data[:end]):
        raise SnapshotCorruptError(
            "the file is not what was written: its seal does not fit", where=where, hint="Take another copy of it"
        )
    told = header.content
    if told.packed != end - start:
        raise SnapshotCorruptError("the header lies about how large the packed content is", where=where)
    if told.bytes > limit:
        raise SnapshotTooLargeError(
            f"the content has {told.bytes:,} bytes, and {limit:,} are the limit", where=where, hint=_MORE
        )
    if told.bytes > _SMALL and told.bytes > _MAX_RATIO * told.packed:
        raise SnapshotTooLargeError(
            f"{told.packed:,} bytes unpack to {told.bytes:,}: no snapshot of Holdfast's does that", where=where
        )
    content = _inflated(data[start:end], told.bytes, where)
    if hashlib.sha256(content).hexdigest() != told.sha256:
        raise SnapshotCorruptError("the content is not that of which the header has the digest", where=where)
    return OpenedSnapshot(header, content)


_MORE = "Give `limit` to read more, if you know where it comes from"


def _inflated(member: bytes, size: int, where: str) -> bytes:
    """The content of a member, which has exactly so many bytes. Never holds more than these."""
    if not member.startswith(_START):
        raise SnapshotCorruptError("the content is not packed as Holdfast packs it", where=where)
    unpacking = zlib.decompressobj(-zlib.MAX_WBITS)
    content = bytearray()
    rest = member[len(_START) :]
    try:
        while not unpacking.eof:
            chunk = unpacking.decompress(rest, min(_CHUNK, size + 1 - len(content)))
            content += chunk
            rest = unpacking.unconsumed_tail
            if len(content) > size:
                raise SnapshotCorruptError("the content is larger than the header says", where=where)
            if not chunk and not rest and not unpacking.eof:
                raise SnapshotCorruptError("the content is cut off", where=where)
    except zlib.error as error:
        raise SnapshotCorruptError(f"the content cannot be unpacked: {error}", where=where) from error
    if len(content) != size:
        raise SnapshotCorruptError("the content is smaller than the header says", where=where)
    if unpacking.unused_data != _END.pack(zlib.crc32(content), len(content) & 0xFFFFFFFF):
        raise SnapshotCorruptError("the content is not what was packed", where=where)
    return bytes(content)


def _stored(line: bytes) -> bytes:
    """A member that holds a line as it is."""
    size = len(line)
    return _START + _BLOCK.pack(1, size, size ^ 0xFFFF) + line + _END.pack(zlib.crc32(line), size)


def _seal(body: bytes) -> bytes:
    return _stored(b'{"seal":"sha256:%s"}\n' % hashlib.sha256(body).hexdigest().encode())


def _deflated(content: bytes, level: int) -> bytes:
    packing = zlib.compressobj(level, zlib.DEFLATED, -zlib.MAX_WBITS)
    return packing.compress(content) + packing.flush()
