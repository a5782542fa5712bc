"""Keys of files that are written from an encrypted store: each file has one of its own, which the master key encrypts.

So whoever has the master key can read the file, in this store, in another one, or in none. The parts of a file are
sealed with their numbers: none can be left out, repeated or taken from another file.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec.msgpack import encode

from holdfast.backends.interface import BlockingCall
from holdfast.engine.engine import Engine
from holdfast.errors import CorruptError, DeniedError

if TYPE_CHECKING:  # they need an extra, and most stores are not encrypted
    from holdfast.security.encryption.cipher import Cipher
    from holdfast.security.encryption.provider import KeyProvider


class FileKey(NamedTuple):
    """The key of a file, and how it is written in the file: encrypted, with the ids of both keys."""

    cipher: Cipher
    purpose: str
    wrapped: Mapping[str, str]

    def seal(self, content: bytes, number: int) -> str:
        """Return a part of the file, encrypted."""
        return b64encode(self.cipher.seal(content, self._associated(number))).decode()

    def unseal(self, text: Any, number: int, where: str) -> bytes:
        """Return the content of a part. `CorruptError` if it is not what was written there."""
        try:
            return self.cipher.unseal(b64decode(text, validate=True), self._associated(number))
        except (CorruptError, ValueError, TypeError):
            raise _altered(where) from None

    def _associated(self, number: int) -> bytes:
        return encode(("holdfast file 1", self.purpose, number))


def master_keys(engine: Engine) -> KeyProvider | None:
    """Return the provider of the master key of an encrypted store; None if it is not encrypted."""
    from holdfast.engine.sealed_rows import SealedRowCodec

    rows = engine.context.rows
    if not isinstance(rows, SealedRowCodec):
        return None
    from holdfast.security.encryption.encrypted_rows import EncryptedRows

    return rows.store_keys.memory.provider if isinstance(rows, EncryptedRows) else None


async def new_file_key(engine: Engine, purpose: str) -> FileKey | None:
    """Return a new key for a file; None if it may be in the clear, as the store is, or as it allows."""
    keys = master_keys(engine)
    if keys is None or engine.context.rows.may_be_clear("export"):
        return None
    from holdfast.security.encryption.cipher import Cipher, new_key

    key = new_key()
    wrap: BlockingCall[tuple[str, bytes]] = BlockingCall(lambda: (keys.key_id, keys.wrap(key, _context(purpose))))
    master, wrapped = await wrap
    cipher = Cipher(key)
    return FileKey(cipher, purpose, {"master": master, "id": cipher.key_id.hex(), "key": b64encode(wrapped).decode()})


def open_file_key(wrapped: Any, purpose: str, keys: KeyProvider | None, where: str) -> FileKey:
    """Return the key of a file, as it is written there. `DeniedError` without the master key, and with another one."""
    if keys is None:
        raise DeniedError(
            "the file is encrypted, and the master key of its store is needed to read it",
            where=where,
            hint="Give keys=, a provider of the key, or read it with a store that has it",
            code="key-missing",
        )
    from holdfast.security.encryption.cipher import KEY_SIZE, Cipher

    try:
        master, id, encrypted = str(wrapped["master"]), wrapped["id"], b64decode(wrapped["key"], validate=True)
    except (KeyError, TypeError, ValueError):
        raise _altered(where) from None
    key = keys.unwrap(encrypted, master, _context(purpose))
    if len(key) != KEY_SIZE or Cipher(key).key_id.hex() != id:
        raise _altered(where)
    return FileKey(Cipher(key), purpose, dict(wrapped))


def _context(purpose: str) -> dict[str, str]:
    return {"purpose": f"holdfast-file-{purpose}"}


def _altered(where: str) -> CorruptError:
    return CorruptError(
        "the encrypted file is not what was written", where=where, hint="Use another copy of it", code="tampered"
    )
