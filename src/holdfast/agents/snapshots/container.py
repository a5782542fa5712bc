"""The file format of a snapshot: three members of gzip, which `zcat` prints as lines of JSON. The second, the content,
may be compressed otherwise, as the header says.

The header and the seal are *stored*: there is only one way to write them, so that they are checked by writing them
again. The seal has the SHA-256 of all bytes before it. So every byte that is changed, cut off or added is detected,
also where gzip and JSON ignore it: a time in a header of gzip, padding bits, white space.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

from holdfast.agents.snapshots.header import COMPRESSIONS, Compression, PayloadInfo, SnapshotHeader, decode, encode
from holdfast.byte_reader import ByteReader
from holdfast.codec import compression as record_compression
from holdfast.errors import CorruptError, SnapshotCorruptError, SnapshotInvalidError, SnapshotTooLargeError

LIMIT = 256 << 20
"""The default limit of the content in bytes."""

MAX_HEADER = 0xFFFF
"""The size of one stored block."""

# No name, no time, no flags, an unknown system: the same content gives the same file everywhere.
_START = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"
_BLOCK = struct.Struct("<BHH")
_END = struct.Struct("<II")

HEAD_BYTES = len(_START) + _BLOCK.size + MAX_HEADER + _END.size
"""The maximum size of the member of the header."""

_LEVEL = 6
_CHUNK = 1 << 20
_MAX_RATIO = 200
_SMALL = 16 << 20
"""Content up to this size may have any compression ratio: it does no harm."""

BuildHeader: TypeAlias = Callable[[PayloadInfo], SnapshotHeader]


class OpenedSnapshot(NamedTuple):
    """A snapshot that was read completely and checked."""

    header: SnapshotHeader
    content: bytes


def check_compression(compression: Any) -> None:
    """Raise `SnapshotInvalidError` if there is no such compression."""
    if compression not in COMPRESSIONS:
        raise SnapshotInvalidError(
            f"the compression {str(compression)[:40]!r} is unknown", hint=f"Use one of {', '.join(COMPRESSIONS)}"
        )


def build(content: bytes, build_header: BuildHeader, compression: Compression = "gzip") -> bytes:
    """Build a file of this content. `build_header` is called with the info of the payload."""
    member = _pack(content, compression, _LEVEL)
    if len(content) > _SMALL and len(content) > _MAX_RATIO * len(member):  # readers refuse it as a decompression bomb
        compression = "gzip" if compression == "gzip" else "none"
        member = _pack(content, compression, 0)
    payload = PayloadInfo(len(content), len(member), hashlib.sha256(content).hexdigest(), compression)
    line = encode(build_header(payload))
    if len(line) > MAX_HEADER:
        raise SnapshotTooLargeError(
            f"the header would have {len(line):,} bytes, and the limit is {MAX_HEADER:,}",
            hint="Give a shorter description, or split the agent: its tools and classes are named there",
        )
    body = _store(line) + member
    return body + _seal(body)


def read_header(data: bytes, where: str) -> tuple[SnapshotHeader, int]:
    """Return the header of a file, from at least its first `HEAD_BYTES`, and the size of its member."""
    if not data.startswith(_START[:3]):
        raise SnapshotCorruptError(
            "this is not a snapshot", where=where, hint="Snapshots are files that end in .hfsnap"
        )
    reader = ByteReader(data, at=len(_START))
    try:
        line = reader.take(reader.fields(_BLOCK)[1])
        reader.take(_END.size)
    except CorruptError:
        line = b""
    if not line.endswith(b"\n") or _store(line) != data[: reader.at]:
        raise SnapshotCorruptError("the header is damaged, or this is not a snapshot", where=where)
    return decode(line, where), reader.at


def max_bytes(limit: int) -> int:
    """Return the maximum size of a file whose content is within the limit."""
    return limit + limit // 1000 + 2 * HEAD_BYTES


def size_of(header: SnapshotHeader) -> int:
    """Return the size of the file of a header."""
    return len(_store(encode(header))) + header.content.packed + len(_seal(b""))


def open_file(data: bytes, limit: int, where: str) -> OpenedSnapshot:
    """Read a file, and check that every byte of it is as it was written. Raises `SnapshotCorruptError` or
    `SnapshotTooLargeError`."""
    if len(data) > max_bytes(limit):
        raise SnapshotTooLargeError(
            f"the snapshot is larger than the limit of {limit:,} bytes allows", where=where, hint=_LIMIT_HINT
        )
    header, start = read_header(data, where)
    end = len(data) - len(_seal(b""))
    if end < start or data[end:] != _seal(data[:end]):
        raise SnapshotCorruptError(
            "the file was altered: its seal does not match its content", where=where, hint="Take another copy of it"
        )
    payload = header.content
    if payload.packed != end - start:
        raise SnapshotCorruptError("the size of the packed content is not the one in the header", where=where)
    if payload.bytes > limit:
        raise SnapshotTooLargeError(
            f"the content has {payload.bytes:,} bytes, and the limit is {limit:,}", where=where, hint=_LIMIT_HINT
        )
    if payload.bytes > _SMALL and payload.bytes > _MAX_RATIO * payload.packed:
        raise SnapshotTooLargeError(
            f"{payload.packed:,} bytes unpack to {payload.bytes:,}: no snapshot of Holdfast is compressed that much",
            where=where,
        )
    content = _unpack(data[start:end], payload, where)
    if hashlib.sha256(content).hexdigest() != payload.sha256:
        raise SnapshotCorruptError("the digest of the content is not the one in the header", where=where)
    return OpenedSnapshot(header, content)


_LIMIT_HINT = "Give `limit` to read more, if you know where it comes from"


def _pack(content: bytes, compression: Compression, level: int) -> bytes:
    if compression == "gzip":
        return _START + _deflate(content, level) + _END.pack(zlib.crc32(content), len(content) & 0xFFFFFFFF)
    return record_compression.compress(content, _METHODS[compression])[1]


def _unpack(member: bytes, payload: PayloadInfo, where: str) -> bytes:
    if payload.compression == "gzip":
        return _inflate(member, payload.bytes, where)
    method = _METHODS[payload.compression]
    try:
        return record_compression.decompress(method, member, payload.bytes, payload.bytes, where)
    except CorruptError as error:
        raise SnapshotCorruptError("the content cannot be unpacked", where=where) from error


_METHODS = {"zstd": record_compression.Compression.ZSTD, "none": record_compression.Compression.NONE}
"""How content is compressed that is no member of gzip."""


def _inflate(member: bytes, size: int, where: str) -> bytes:
    """Return the content of a member, which must have exactly this size. Never has more in memory."""
    if not member.startswith(_START):
        raise SnapshotCorruptError("the content is packed in a form that Holdfast never writes", where=where)
    decompressor = zlib.decompressobj(-zlib.MAX_WBITS)
    content = bytearray()
    rest = member[len(_START) :]
    try:
        while not decompressor.eof:
            chunk = decompressor.decompress(rest, min(_CHUNK, size + 1 - len(content)))
            content += chunk
            rest = decompressor.unconsumed_tail
            if len(content) > size:
                raise SnapshotCorruptError("the content is larger than the header says", where=where)
            if not chunk and not rest and not decompressor.eof:
                raise SnapshotCorruptError("the content is truncated", where=where)
    except zlib.error as error:
        raise SnapshotCorruptError(f"the content cannot be unpacked: {error}", where=where) from error
    if len(content) != size:
        raise SnapshotCorruptError("the content is smaller than the header says", where=where)
    if decompressor.unused_data != _END.pack(zlib.crc32(content), len(content) & 0xFFFFFFFF):
        raise SnapshotCorruptError("the unpacked content differs from what was packed", where=where)
    return bytes(content)


def _store(line: bytes) -> bytes:
    """Return a member with an uncompressed line."""
    size = len(line)
    return _START + _BLOCK.pack(1, size, size ^ 0xFFFF) + line + _END.pack(zlib.crc32(line), size)


def _seal(body: bytes) -> bytes:
    return _store(b'{"seal":"sha256:%s"}\n' % hashlib.sha256(body).hexdigest().encode())


def _deflate(content: bytes, level: int) -> bytes:
    compressor = zlib.compressobj(level, zlib.DEFLATED, -zlib.MAX_WBITS)
    return compressor.compress(content) + compressor.flush()
