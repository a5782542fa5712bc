"""Compression of single records."""

from __future__ import annotations

import sys
import zlib
from enum import IntEnum
from typing import Any

from holdfast.codec.dictionary import dictionary
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
    ZSTD_DICTIONARY_1 = 3
    """With the first dictionary."""


_SMALL = 128
"""Fewer bytes are not worth compressing."""

_LARGE = 1 << 16
"""More bytes are compressed without a dictionary, which would help little, and at a higher level."""

_CHUNK = 1 << 20
"""More bytes are compressed one part after the other: at once, the compressor reserves as many again for the result."""

_WINDOW_LOG_MAX = 27
"""Limits the memory that reading a frame may take to 128 MB."""


def compress(data: bytes, method: Compression | None = None) -> tuple[Compression, bytes]:
    """Compress data if that makes it smaller, or by the given method in any case."""
    if method is None:
        if len(data) < _SMALL:
            return Compression.NONE, data
        method = Compression.ZSTD if len(data) > _LARGE else Compression.ZSTD_DICTIONARY_1
        body = compress(data, method)[1]
        return (method, body) if len(body) < len(data) else (Compression.NONE, data)
    if method is Compression.ZSTD_DICTIONARY_1:
        return method, _compress_small(data)
    if method is Compression.ZSTD:
        return method, zstd.compress(data, 3) if len(data) <= _CHUNK else _compress_in_chunks(data)
    if method is Compression.GZIP:
        import gzip  # rarely used

        return method, gzip.compress(data, 6, mtime=0)
    return method, data


_idle: list[zstd.ZstdCompressor] = []
"""Compressors with the dictionary that no thread is using: to create one takes longer than to compress a step."""


def _compress_small(data: bytes) -> bytes:
    try:
        compressor = _idle.pop()
    except IndexError:
        compressor = zstd.ZstdCompressor(1, zstd_dict=dictionary().as_digested_dict)
    body = compressor.compress(data, zstd.ZstdCompressor.FLUSH_FRAME)
    _idle.append(compressor)  # not if it was interrupted: it would go on with the same frame
    return body


def _compress_in_chunks(data: bytes) -> bytes:
    compressor = zstd.ZstdCompressor(3)
    compressor.set_pledged_input_size(len(data))  # for the frame's header, and to choose parameters
    view = memoryview(data)
    parts = [compressor.compress(view[start : start + _CHUNK]) for start in range(0, len(data), _CHUNK)]
    return b"".join((*parts, compressor.flush()))


def decompress(method: int, body: bytes, size: int, max_bytes: int, where: str = "") -> bytes:
    """Decompress exactly `size` bytes, and never more."""
    if size > max_bytes:
        raise TooLargeError(
            f"a record claims to hold {size} bytes, over the limit of {max_bytes}",
            where=where,
            hint="Raise max_bytes of the codec if you trust its source",
        )
    data = body
    if method != Compression.NONE:
        stream = _decompressor(method, where)
        try:
            # One byte more than claimed detects a frame that holds more, without decompressing all of it.
            data = stream.decompress(body, max_length=size + 1)
        except (zstd.ZstdError, zlib.error):
            data = b""
        if not stream.eof or stream.unused_data:
            raise _wrong_size(size, where)
    if len(data) != size:
        raise _wrong_size(size, where)
    return data


def _decompressor(method: int, where: str) -> Any:
    if method == Compression.GZIP:
        return zlib.decompressobj(wbits=31)
    if method not in (Compression.ZSTD, Compression.ZSTD_DICTIONARY_1):
        raise newer_release(f"a record is compressed by method {method}, which this release does not know", where)
    by = dictionary() if method == Compression.ZSTD_DICTIONARY_1 else None
    return zstd.ZstdDecompressor(by, options={zstd.DecompressionParameter.window_log_max: _WINDOW_LOG_MAX})


def _wrong_size(size: int, where: str) -> CorruptError:
    return CorruptError(f"a record does not decompress to the {size} bytes it claims", where=where)


def newer_release(what: str, where: str) -> UnsupportedError:
    """Return the error for what only a newer release can read."""
    return UnsupportedError(what, where=where, hint="Read it with a newer release of Holdfast")
