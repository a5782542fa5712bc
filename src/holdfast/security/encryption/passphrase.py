"""A master key that is derived from a passphrase, for recovery: a person can write it down."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

from holdfast.errors import ConfigError, CorruptError
from holdfast.security.encryption.cipher import KEY_SIZE, Cipher
from holdfast.security.encryption.provider import (
    KeyProvider,
    associated_bytes,
    missing_master,
    read_private,
    wrong_key,
)

_ID = "passphrase"
_SALT = 16
_COST = 1 << 15
_MEMORY = 64 << 20
_SHORTEST = 12


class PassphraseKeys(KeyProvider):
    """A master key that is derived, by scrypt, from the first line of a file that only its owner can read."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)

    def __repr__(self) -> str:
        return f"PassphraseKeys({str(self._path)!r})"

    @property
    def key_id(self) -> str:
        return _ID

    def wrap(self, key: bytes, context: Mapping[str, str]) -> bytes:
        salt = os.urandom(_SALT)
        return salt + self._cipher(salt).seal(key, associated_bytes(context))

    def unwrap(self, wrapped: bytes, key_id: str, context: Mapping[str, str]) -> bytes:
        try:
            if key_id != _ID:
                raise CorruptError("another kind of key")
            return self._cipher(wrapped[:_SALT]).unseal(wrapped[_SALT:], associated_bytes(context))
        except CorruptError:
            raise wrong_key(key_id, ["another passphrase"], str(self)) from None

    def _cipher(self, salt: bytes) -> Cipher:
        lines = read_private(self._path, "utf-8", str(self)).splitlines()
        passphrase = lines[0].strip() if lines else ""
        if not passphrase:
            raise missing_master(str(self))
        if len(passphrase) < _SHORTEST:
            raise ConfigError(f"a passphrase has at least {_SHORTEST} characters", where=str(self))
        derived = hashlib.scrypt(passphrase.encode(), salt=salt, n=_COST, r=8, p=1, maxmem=_MEMORY, dklen=KEY_SIZE)
        return Cipher(derived)
