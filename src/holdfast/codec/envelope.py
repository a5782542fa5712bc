"""The envelope around every stored record.

It says which release of the format wrote the record, how the content is compressed and protected, under which key,
and which version of the application's schema the state has. A checksum, or the tag of an authenticated cipher, covers
the header, the body and the *context*: where the record belongs. A record that was damaged, cut, or moved to another
tenant, line or name does not open.

Layout, big-endian; `docs/format.md` explains it::

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
    """What the body is, once opened."""

    RAW = 0
    PACKED = 1


class Protection(IntEnum):
    """What shows that a record is as it was written."""

    CHECKSUM = 0
    SEALED = 1


class RecordContext(NamedTuple):
    """Where a record belongs. Not stored in it, yet protected with it.

    `name` is what stays the same when a line is rewritten or moved: an id or a digest, not a place in the line.
    """

    tenant: str
    line: str
    kind: str
    name: bytes

    def encode(self) -> bytes:
        """Bytes that no two different contexts share."""
        how = "utf-8", "surrogatepass"
        return encode((self.tenant.encode(*how), self.line.encode(*how), self.kind.encode(*how), self.name))

    def __str__(self) -> str:
        name = self.name.decode("ascii", "replace") if self.name.isascii() else self.name.hex()
        return f"{self.kind} {name} of line {self.line!r}, tenant {self.tenant!r}"


class Sealer(Protocol):
    """An authenticated cipher under one key."""

    @property
    def key_id(self) -> bytes:
        """Names the key in the envelope; not secret, at most 255 bytes, not empty."""
        ...

    def seal(self, content: bytes, associated: bytes) -> bytes:
        """Encrypt. A nonce that opening needs is the sealer's to add."""
        ...

    def unseal(self, sealed: bytes, associated: bytes) -> bytes:
        """Decrypt, or raise `CorruptError` if anything was altered."""
        ...


class OpenedRecord(NamedTuple):
    """An opened record."""

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
    """The content in an envelope, compressed if it pays, and sealed if there is a key."""
    if len(content) >= 1 << 32:
        raise TooLargeError(
            f"a record holds at most 4 GB, and this one {len(content)} bytes", hint="Split it into pieces"
        )
    key_id = b"" if sealer is None else sealer.key_id
    schema_bytes = schema.encode()
    if len(key_id) > 255 or len(schema_bytes) > 255 or (sealer is not None and not key_id):
        raise InvalidError("a key id and a schema version have at most 255 bytes, and a key id at least one")
    how, body = compress(content, compression)
    protection = Protection.CHECKSUM if sealer is None else Protection.SEALED
    header = _HEADER.pack(_MAGIC, FORMAT_VERSION, codec, how, protection, len(key_id), len(schema_bytes), len(content))
    header += key_id + schema_bytes
    associated = header + context.encode()
    if sealer is not None:
        return header + sealer.seal(body, associated)
    return header + _checksum(associated, body) + body


def unwrap(
    record: bytes, context: RecordContext, *, keys: Mapping[bytes, Sealer] | None = None, max_bytes: int = 128 << 20
) -> OpenedRecord:
    """The content of an envelope, if it is whole, unaltered and where it belongs."""
    where = str(context)
    try:
        magic, version, codec, how, protection, key_length, schema_length, size = _HEADER.unpack_from(record)
    except struct.error:
        raise CorruptError("a record is shorter than its header", where=where, hint=_HINT) from None
    if magic != _MAGIC:
        raise CorruptError("a record does not start with Holdfast's mark", where=where, hint=_HINT)
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
            raise CorruptError("a record is not what was written: its checksum differs", where=where, hint=_HINT)
    elif protection == Protection.SEALED:
        body = _unseal(key_id, body, associated, keys or {}, where)
    else:
        raise UnsupportedError(
            f"a record is protected in way {protection}, unknown here",
            where=where,
            hint="Read it with a newer release of Holdfast",
        )
    content = decompress(how, body, size, max_bytes, where)
    if codec not in BodyKind.__members__.values():
        raise UnsupportedError(
            f"a record's content is of kind {codec}, unknown here",
            where=where,
            hint="Read it with a newer release of Holdfast",
        )
    return OpenedRecord(content, BodyKind(codec), schema_bytes.decode("utf-8", "replace"), key_id)


_HINT = "Repair it from a mirror or a backup"


def _unseal(key_id: bytes, body: bytes, associated: bytes, keys: Mapping[bytes, Sealer], where: str) -> bytes:
    sealer = keys.get(key_id)
    if sealer is None:
        raise DeniedError(
            f"a record is sealed under key {key_id.hex()}, which is not at hand",
            where=where,
            hint="Give the store the key, if it still exists; what was erased by destroying its key stays erased",
        )
    return sealer.unseal(body, associated)


def _checksum(associated: bytes, body: bytes) -> bytes:
    # The length keeps bytes from moving between the two parts.
    return hashlib.sha256(len(associated).to_bytes(4, "big") + associated + body).digest()[:_CHECKSUM_SIZE]
