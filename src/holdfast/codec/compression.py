"""Compression of stored bytes, one record at a time."""

from __future__ import annotations

import sys
import zlib
from enum import IntEnum

from holdfast.errors import CorruptError, TooLargeError, UnsupportedError

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd


class Compression(IntEnum):
    """How a body is compressed. Part of the storage format."""

    NONE = 0
    ZSTD = 1
    GZIP = 2
    """For files that other tools should be able to open."""


_SMALL = 128
"""Below this many bytes a compressed frame gains nothing worth its time."""

_WINDOW_LOG_MAX = 27
"""A frame may ask for this much memory to be read, 128 MB, and no more."""


def compress(data: bytes, how: Compression | None = None) -> tuple[Compression, bytes]:
    """The data, compressed if it pays; or in just this way, if one is named."""
    if how is None:
        if len(data) < _SMALL:
            return Compression.NONE, data
        body = zstd.compress(data, 3)
        return (Compression.ZSTD, body) if len(body) < len(data) else (Compression.NONE, data)
    if how is Compression.ZSTD:
        return how, zstd.compress(data, 3)
    if how is Compression.GZIP:
        import gzip  # hardly ever asked for

        return how, gzip.compress(data, 6, mtime=0)
    return how, data


def decompress(how: int, body: bytes, size: int, max_bytes: int, where: str = "") -> bytes:
    """What was compressed, which must be exactly `size` bytes. Never makes more than that."""
    if size > max_bytes:
        raise TooLargeError(
            f"a record claims to hold {size} bytes, over the limit of {max_bytes}",
            where=where,
            hint="Raise Limits.max_bytes if you trust where it comes from",
        )
    if how == Compression.NONE:
        data, whole = body, True
    elif how == Compression.ZSTD:
        data, whole = _decompress_zstd(body, size)
    elif how == Compression.GZIP:
        data, whole = _decompress_gzip(body, size)
    else:
        raise UnsupportedError(
            f"a record is compressed in way {how}, unknown here",
            where=where,
            hint="Read it with a newer release of Holdfast",
        )
    if not whole or len(data) != size:
        raise CorruptError(f"a record does not decompress to the {size} bytes it claims", where=where)
    return data


def _decompress_zstd(body: bytes, size: int) -> tuple[bytes, bool]:
    stream = zstd.ZstdDecompressor(options={zstd.DecompressionParameter.window_log_max: _WINDOW_LOG_MAX})
    try:
        # One byte more than claimed shows a frame that holds more, without making all of it.
        data = stream.decompress(body, max_length=size + 1)
    except zstd.ZstdError:
        return b"", False
    return data, stream.eof and not stream.unused_data


def _decompress_gzip(body: bytes, size: int) -> tuple[bytes, bool]:
    stream = zlib.decompressobj(wbits=31)
    try:
        data = stream.decompress(body, max_length=size + 1)
    except zlib.error:
        return b"", False
    return data, stream.eof and not stream.unused_data
