"""Encoding the objects of a repository, which are encrypted where it has a key.

A seal covers the id of the repository and the kind and name of the object: nobody can put one in the place of another.
Blocks of packs are found by digests, which are in objects that are sealed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from holdfast.codec.compression import Compression, compress
from holdfast.errors import CorruptError
from holdfast.maintenance.backup.format import (
    KINDS,
    compress_block,
    decode_value,
    decompress_block,
    open_object,
    seal_object,
)

if TYPE_CHECKING:
    from holdfast.security.encryption.cipher import Cipher

T = TypeVar("T")

_BLOCK = b"block"
_OPEN = {kind.mark for kind in KINDS.values() if not kind.is_sealed}


class ObjectCodec:
    """Encodes and decodes the objects of one repository."""

    def __init__(self, repository: str, cipher: Cipher | None = None) -> None:
        self._repository = repository
        self._cipher = cipher

    @property
    def is_encrypted(self) -> bool:
        """Whether objects are encrypted."""
        return self._cipher is not None

    def encode(self, kind: bytes, name: str, value: Any) -> bytes:
        """Return an object with a packed value."""
        content = compress(msgspec.msgpack.encode(value), Compression.ZSTD)[1]
        return seal_object(kind, self._seal(content, kind, name), name)

    def decode(self, kind: bytes, name: str, data: bytes, type: type[T], where: str) -> T:
        """Return the value in an object. `CorruptError` if it is not what was written; with the code `tampered` if
        somebody changed it who does not have the key."""
        content = self._unseal(open_object(kind, data, where, name), kind, name, where)
        return decode_value(decompress_block(content, where), type, where)

    def encode_block(self, data: bytes, level: int) -> bytes:
        """Return a block as it is stored."""
        return self._seal(compress_block(data, level), _BLOCK, "")

    def decode_block(self, data: bytes, where: str) -> bytes:
        """Return the unpacked bytes of a block."""
        return decompress_block(self._unseal(data, _BLOCK, "", where), where)

    def _seal(self, content: bytes, kind: bytes, name: str) -> bytes:
        if self._cipher is None or kind in _OPEN:
            return content
        return self._cipher.seal(content, self._associated(kind, name))

    def _unseal(self, content: bytes, kind: bytes, name: str, where: str) -> bytes:
        if self._cipher is None or kind in _OPEN:
            return content
        try:
            return self._cipher.unseal(content, self._associated(kind, name))
        except CorruptError:
            raise CorruptError(
                "an object of the repository was changed by somebody who does not have its key",
                where=where,
                hint="This is no accident. Run `holdfast backup freeze`, then `holdfast backup verify`",
                code="tampered",
            ) from None

    def _associated(self, kind: bytes, name: str) -> bytes:
        return msgspec.msgpack.encode(("holdfast backup 2", self._repository, kind, name))
