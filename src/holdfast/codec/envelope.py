"""The envelope: the body of every stored row.

A *record* has the version of the format, the compression, the version of the application's schema, and the content. As
the body of a row it is *protected*: a checksum covers the record and its *context*, which is the table, the key and the
columns of the row. So a row that was damaged, truncated or moved anywhere does not open, whatever byte of it differs,
and whichever program wrote it. A row without content has an empty record. A *sealed* body has the columns and the whole
record inside of the seal: see `holdfast.engine.checked_rows`, which decides how rows are stored.

Layout, big-endian; see `docs/format.md`::

    2  magic "HF"          1  length of the key id
    1  format version      1  length of the schema version
    1  codec               4  size of the content, uncompressed
    1  compression         …  key id, schema version
    1  protection          …  body
                           16 checksum; if sealed, 4 CRC-32
"""

from __future__ import annotations

import hashlib
import struct
from enum import IntEnum
from functools import lru_cache
from typing import Protocol
from zlib import crc32

from msgspec.msgpack import encode

from holdfast._named_tuple import NamedTuple
from holdfast.byte_reader import ByteReader
from holdfast.codec.compression import Compression, compress, decompress, newer_release
from holdfast.errors import (
    CorruptError,
    DeniedError,
    HoldfastError,
    InvalidError,
    TooLargeError,
    UnsupportedError,
)

FORMAT_VERSION = 2

_MAGIC = b"HF"
_HEADER = struct.Struct(">2sBBBBBBI")
_PROTECTION = 5
"""The place of the byte that says how a record is protected."""
_CHECKSUM_SIZE = 16


class BodyKind(IntEnum):
    """The kind of content: raw bytes or a packed value."""

    RAW = 0
    PACKED = 1


_BODY_KINDS = {int(kind): kind for kind in BodyKind}


class Protection(IntEnum):
    """How a record is protected against changes."""

    CHECKSUM = 0
    SEALED = 1


_PREFIX = _MAGIC + bytes([FORMAT_VERSION])
_SEALED_PREFIX = _PREFIX + bytes([BodyKind.RAW, Compression.NONE, Protection.SEALED])
_EMPTY = _HEADER.pack(_MAGIC, FORMAT_VERSION, BodyKind.RAW, Compression.NONE, Protection.CHECKSUM, 0, 0, 0)
"""The record of a row without content."""

DAMAGED = b"damaged"
"""Stands for the record of a damaged row in a list of rows: `CorruptError` if it is opened or stored."""

_EMPTY_SIZE = len(_EMPTY) + _CHECKSUM_SIZE
_KEY_ENDS = {bytes([length]): _HEADER.size + length for length in range(256)}
"""Where the key id of a sealed body ends, by the byte of its length."""


class RecordContext(NamedTuple):
    """The row that a record is the body of. It is covered by the checksum, but not stored in the record."""

    table: str
    key: tuple[str | int | bytes, ...]
    columns: tuple[str | int | bytes, ...] = ()

    def encode(self) -> bytes:
        """Encode the context. Different contexts have different bytes."""
        try:
            return encode(self)
        except UnicodeEncodeError:
            raise InvalidError("a name or a column is not text: it has lone surrogates", where=ascii(self)) from None

    def __str__(self) -> str:
        parts = [part.hex() if isinstance(part, bytes) else repr(part) for part in self.key]
        return f"row ({', '.join(parts)}) of {self.table}"


class Sealer(Protocol):
    """An authenticated cipher under one key, and a keyed digest."""

    @property
    def key_id(self) -> bytes:
        """The key's name in the envelope: not secret, 1 to 255 bytes."""
        ...

    def seal(self, content: bytes, associated: bytes) -> bytes:
        """Encrypt. The result includes the nonce, if there is one."""
        ...

    def unseal(self, sealed: bytes, associated: bytes) -> bytes:
        """Decrypt, or raise `CorruptError` if anything was altered."""
        ...

    def digest(self, content: bytes) -> bytes:
        """Return a digest that nobody can compute without the key. It takes the place of text in columns."""
        ...


class SealerLookup(Protocol):
    """Keys by id: a mapping, for example."""

    def get(self, key_id: bytes, /) -> Sealer | None:
        """Return a key; None if it is not there."""
        ...


class OpenRecord(bytes):
    """A record that comes with its content, which was just compressed: nobody has to uncompress it again."""

    content: bytes


class OpenedRecord(NamedTuple):
    """The content of a record, and what its header says about it."""

    content: bytes
    codec: BodyKind
    schema: str


# Records


def wrap(
    content: bytes,
    *,
    codec: BodyKind = BodyKind.PACKED,
    schema: str = "",
    compression: Compression | None = None,
) -> bytes:
    """Return a record with some content: compressed if that makes it smaller."""
    if len(content) >= 1 << 32:
        raise TooLargeError(f"a record of {len(content)} bytes is over the limit of 4 GB", hint="Split it")
    schema_bytes = schema.encode()
    if len(schema_bytes) > 255:
        raise InvalidError("a schema version has at most 255 bytes", where=schema[:40])
    method, body = compress(content, compression)
    header = _HEADER.pack(
        _MAGIC, FORMAT_VERSION, codec, method, Protection.CHECKSUM, 0, len(schema_bytes), len(content)
    )
    return header + schema_bytes + body


def unwrap(record: bytes, *, max_bytes: int = 128 << 20, where: str = "") -> OpenedRecord:
    """Return the content of a record. `CorruptError` if it is none."""
    _, codec, method, _, start, schema_length, size = _parse(record, where)
    if type(record) is OpenRecord and size <= max_bytes:
        content = record.content
    else:
        content = decompress(method, record[start:], size, max_bytes, where)
    kind = _BODY_KINDS.get(codec)
    if kind is None:
        raise newer_release(f"a record's content is of kind {codec}, which this release does not know", where)
    return OpenedRecord(content, kind, record[start - schema_length : start].decode("utf-8", "replace"))


def _parse(record: bytes, where: str) -> tuple[int, int, int, int, int, int, int]:
    """Return version, codec, compression, protection, the end of the header, the length of the schema version, size."""
    if record == DAMAGED:
        raise damaged_error(where)
    reader = ByteReader(record, "a record", where, _HINT)
    magic, version, codec, method, protection, key_length, schema_length, size = reader.fields(_HEADER)
    if magic != _MAGIC:
        raise reader.error("does not start with Holdfast's magic bytes")
    if version != FORMAT_VERSION:
        what = f"a record has format version {version}, and this release reads version {FORMAT_VERSION}"
        raise newer_release(what, where)
    end = _HEADER.size + key_length + schema_length
    if len(record) < end:
        raise reader.error("is truncated")
    return version, codec, method, protection, end, schema_length, size


def unpack_body(body: bytes) -> bytes | None:
    """Return the body of a row without its checksum, and with its content uncompressed, to be compressed together with
    others. None if it is sealed, or of another release. It must have been checked."""
    if not _has_checksum(body):
        return None
    record = body[:-_CHECKSUM_SIZE]
    _, _, method, _, start, _, size = _parse(record, "")
    return record[:start] + decompress(method, record[start:], size, size)


def repack(unpacked: bytes, context: RecordContext) -> bytes:
    """Return the record of a row from what `unpack_body` returned: the same up to the version of the compressor."""
    try:
        _, _, method, _, start, _, size = _parse(unpacked, "")
    except HoldfastError as error:
        error.where = error.where or str(context)
        raise
    content = unpacked[start:]
    if len(content) != size:
        raise CorruptError("the size of a record differs from the size in its header", where=str(context), hint=_HINT)
    if method == Compression.NONE:
        return unpacked if unpacked != _EMPTY else b""
    record = OpenRecord(unpacked[:start] + compress(content, Compression(method))[1])
    record.content = content
    return record


# Protection


def protect(record: bytes, context: RecordContext) -> bytes:
    """Return the body of a row: a record, or an empty one, with a checksum."""
    record = record or _EMPTY
    if record == DAMAGED:
        raise damaged_error(str(context))
    return record + _checksum(record, context.encode())


def expose(body: bytes, context: RecordContext) -> bytes:
    """Return the record in the body of a row, nothing for an empty one. `CorruptError` if a byte of the row differs."""
    if _has_checksum(body):
        record = _check(body, context)
        return record if record != _EMPTY else b""
    where = str(context)
    try:
        _, _, _, protection, start, schema_length, _ = _parse(body, str(context))
    except UnsupportedError:
        _check(body, context)  # from a newer release; otherwise a damaged byte says so
        raise
    if protection == Protection.CHECKSUM:
        raise CorruptError("a row was damaged: it is shorter than its checksum", where=where, hint=_HINT)
    if protection != Protection.SEALED or start - schema_length == _HEADER.size:
        _check(body, context)
        raise newer_release(f"a row is protected by method {protection}, which this release does not know", where)
    raise missing_key(body[_HEADER.size : start - schema_length], where)


def seal(content: bytes, associated: bytes, sealer: Sealer) -> bytes:
    """Return a sealed body. Its header says nothing of the content; the seal covers it and the associated bytes."""
    header, crc = _sealed_header(sealer.key_id)
    sealed = sealer.seal(content, header + associated)
    return b"".join((header, sealed, crc32(sealed, crc).to_bytes(4, "big")))


@lru_cache(maxsize=1024)
def _sealed_header(key_id: bytes) -> tuple[bytes, int]:
    """Return the header of bodies that are sealed with a key, and its CRC."""
    if not 0 < len(key_id) < 256:
        raise InvalidError("a key id has 1 to 255 bytes")
    header = b"%b%c\0\0\0\0\0%b" % (_SEALED_PREFIX, len(key_id), key_id)
    return header, crc32(header)


def unseal(body: bytes, associated: bytes, keys: SealerLookup, context: RecordContext) -> bytes:
    """Return the content of a sealed body. `CorruptError` if a byte of it or of the associated ones differs: with the
    code `tampered` if no accident did that, since the CRC, which anybody can compute, is right."""
    if not body.startswith(_SEALED_PREFIX):
        _parse(body, str(context))  # raises if it is of a newer release
        raise tampered_error("a row is not encrypted", str(context))
    key_id = sealed_key_id(body)
    end = _HEADER.size + len(key_id)
    header, sealed = body[:end], body[end:-4]
    if len(body) < end + 4 or crc32(sealed, crc32(header)).to_bytes(4, "big") != body[-4:]:
        raise damaged_error(str(context))
    sealer = keys.get(key_id)
    if sealer is None:
        raise missing_key(key_id, str(context))
    try:
        return sealer.unseal(sealed, header + associated)
    except CorruptError:
        what = "the seal of a row is broken: it was changed, or moved here from elsewhere"
        raise tampered_error(what, str(context)) from None


def sealed_key_id(body: bytes) -> bytes:
    """Return the id of the key that a body is sealed with; empty if it is not sealed."""
    return body[_HEADER.size : _KEY_ENDS.get(body[6:7], 0)] if body.startswith(_SEALED_PREFIX) else b""


def damaged_error(where: str) -> CorruptError:
    """Return the error for a damaged row."""
    return CorruptError(_DIFFERS, where=where, hint=_HINT)


def tampered_error(what: str, where: str) -> CorruptError:
    """Return the error for a row that somebody changed."""
    return CorruptError(what, where=where, hint=_HINT, code="tampered")


def missing_key(key_id: bytes, where: str) -> DeniedError:
    """Return the error for a row whose key is not there."""
    return DeniedError(
        f"a record is encrypted with key {key_id.hex()[:16]}, which this store does not have",
        where=where,
        hint="Open the store with encryption=, and the key; if the key was destroyed, the data is erased",
        code="key-missing",
    )


def strip(body: bytes) -> bytes:
    """Return the record in the body of a row whose checksum may be wrong. For repairs: nothing in it can be trusted."""
    # The header is that of a record with a checksum, or a repair would store one that no release reads.
    record = b"%b%c%b" % (body[:_PROTECTION], Protection.CHECKSUM, body[_PROTECTION + 1 : -_CHECKSUM_SIZE])
    return record if record != _EMPTY else b""


_HINT = "Repair it from a mirror or a backup"
_DIFFERS = "a row was damaged: its checksum differs"


def _check(body: bytes, context: RecordContext) -> bytes:
    """Return a body without its checksum. `CorruptError` if that differs."""
    record = body[:-_CHECKSUM_SIZE]
    if body[-_CHECKSUM_SIZE:] != _checksum(record, context.encode()):
        raise damaged_error(str(context))
    return record


def _has_checksum(body: bytes) -> bool:
    """Return whether a body is a record of this release with a checksum."""
    return len(body) >= _EMPTY_SIZE and body.startswith(_PREFIX) and body[_PROTECTION : _PROTECTION + 1] == b"\0"


def _checksum(record: bytes, context: bytes) -> bytes:
    # The length prevents bytes from moving between the two parts.
    digest = hashlib.sha256(len(context).to_bytes(4, "big") + context)
    digest.update(record)
    return digest.digest()[:_CHECKSUM_SIZE]
