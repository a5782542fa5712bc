"""The envelope around every stored record.

It has the version of the format, the compression, the protection, the id of the key, and the version of the
application's schema. A checksum, or the tag of an authenticated cipher, covers the header, the body and the *context*:
where the record belongs. A record that was damaged, truncated, or moved to another tenant, line or name does not open.

Layout, big-endian; see `docs/format.md`::

    2  magic "HF"          1  length of the key id
    1  format version      1  length of the schema version
    1  codec               4  size of the content, uncompressed
    1  compression         …  key id, schema version
    1  protection          …  checksum (16 bytes, unless sealed), body
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping
from enum import IntEnum
from typing import NamedTuple, Protocol

from msgspec.msgpack import encode

from holdfast.codec.compression import Compression, compress, decompress
from holdfast.errors import CorruptError, DeniedError, InvalidError, TooLargeError, UnsupportedError

FORMAT_VERSION = 1

_MAGIC = b"HF"
_HEADER = struct.Struct(">2sBBBBBBI")
_CHECKSUM_SIZE = 16


class BodyKind(IntEnum):
    """The kind of content: raw bytes or a packed value."""

    RAW = 0
    PACKED = 1


class Protection(IntEnum):
    """How a record is protected against changes."""

    CHECKSUM = 0
    SEALED = 1


class RecordContext(NamedTuple):
    """Where a record belongs. It is covered by the checksum, but not stored in the record.

    `name` must stay the same when a line is rewritten or copied: an id or a digest, not a position.
    """

    tenant: str
    line: str
    kind: str
    name: bytes

    def encode(self) -> bytes:
        """Encode the context. Different contexts have different bytes."""
        how = "utf-8", "surrogatepass"
        return encode((self.tenant.encode(*how), self.line.encode(*how), self.kind.encode(*how), self.name))

    def __str__(self) -> str:
        name = self.name.decode("ascii", "replace") if self.name.isascii() else self.name.hex()
        return f"{self.kind} {name} of line {self.line!r}, tenant {self.tenant!r}"


class Sealer(Protocol):
    """An authenticated cipher under one key."""

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


class OpenedRecord(NamedTuple):
    """The content of a record, and what its header says about it."""

    content: bytes
    codec: BodyKind
    schema: str
    key_id: bytes


def wrap(
    content: bytes,
    context: RecordContext,
    *,
    codec: BodyKind = BodyKind.PACKED,
    schema: str = "",
    compression: Compression | None = None,
    sealer: Sealer | None = None,
) -> bytes:
    """Put content into an envelope: compressed if that makes it smaller, sealed if there is a sealer."""
    if len(content) >= 1 << 32:
        raise TooLargeError(f"a record of {len(content)} bytes is over the limit of 4 GB", hint="Split it")
    key_id = b"" if sealer is None else sealer.key_id
    schema_bytes = schema.encode()
    if len(key_id) > 255 or len(schema_bytes) > 255 or (sealer is not None and not key_id):
        raise InvalidError("a key id must have 1 to 255 bytes, and a schema version at most 255")
    method, body = compress(content, compression)
    protection = Protection.CHECKSUM if sealer is None else Protection.SEALED
    header = _HEADER.pack(
        _MAGIC, FORMAT_VERSION, codec, method, protection, len(key_id), len(schema_bytes), len(content)
    )
    header += key_id + schema_bytes
    associated = header + context.encode()
    if sealer is not None:
        return header + sealer.seal(body, associated)
    return header + _checksum(associated, body) + body


def unwrap(
    record: bytes, context: RecordContext, *, keys: Mapping[bytes, Sealer] | None = None, max_bytes: int = 128 << 20
) -> OpenedRecord:
    """Open an envelope. Raises `CorruptError` if it is damaged or does not belong to this context."""
    where = str(context)
    try:
        magic, version, codec, method, protection, key_length, schema_length, size = _HEADER.unpack_from(record)
    except struct.error:
        raise CorruptError("a record is shorter than its header", where=where, hint=_HINT) from None
    if magic != _MAGIC:
        raise CorruptError("a record does not start with Holdfast's magic bytes", where=where, hint=_HINT)
    if version != FORMAT_VERSION:
        raise UnsupportedError(
            f"a record has format version {version}, and this release reads version {FORMAT_VERSION}",
            where=where,
            hint="Read it with a newer release of Holdfast",
        )
    start = _HEADER.size + key_length + schema_length
    header, body = record[:start], record[start:]
    key_id, schema_bytes = header[_HEADER.size : start - schema_length], header[start - schema_length :]
    associated = header + context.encode()
    if protection == Protection.CHECKSUM:
        checksum, body = body[:_CHECKSUM_SIZE], body[_CHECKSUM_SIZE:]
        if len(header) != start or checksum != _checksum(associated, body):
            raise CorruptError("a record was damaged: its checksum differs", where=where, hint=_HINT)
    elif protection == Protection.SEALED:
        body = _unseal(key_id, body, associated, keys or {}, where)
    else:
        raise UnsupportedError(
            f"a record is protected by method {protection}, which this release does not know",
            where=where,
            hint="Read it with a newer release of Holdfast",
        )
    content = decompress(method, body, size, max_bytes, where)
    if codec not in BodyKind.__members__.values():
        raise UnsupportedError(
            f"a record's content is of kind {codec}, which this release does not know",
            where=where,
            hint="Read it with a newer release of Holdfast",
        )
    return OpenedRecord(content, BodyKind(codec), schema_bytes.decode("utf-8", "replace"), key_id)


_HINT = "Repair it from a mirror or a backup"


def _unseal(key_id: bytes, body: bytes, associated: bytes, keys: Mapping[bytes, Sealer], where: str) -> bytes:
    sealer = keys.get(key_id)
    if sealer is None:
        raise DeniedError(
            f"a record is sealed with key {key_id.hex()}, which this store does not have",
            where=where,
            hint="Open the store with that key; if the key was destroyed, the data is erased",
        )
    return sealer.unseal(body, associated)


def _checksum(associated: bytes, body: bytes) -> bytes:
    # The length prevents bytes from moving between the two parts.
    return hashlib.sha256(len(associated).to_bytes(4, "big") + associated + body).digest()[:_CHECKSUM_SIZE]
