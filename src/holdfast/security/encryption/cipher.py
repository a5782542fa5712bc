"""AES-256-GCM, with keys that name themselves.

The id of a key is derived from it by HKDF, and stored with everything that it encrypts: it *commits* to the key. A key
whose id is another one is never tried, so nobody can make a ciphertext that opens under two keys.

A key encrypts nothing itself. Each process draws 16 random bytes, and derives a key of its own from both: it is used
for 2^32 seals at most, as random nonces of 96 bits allow, and a new one is derived before. A forked child derives its
own, too. Nonces come from the operating system.
"""

from __future__ import annotations

import hashlib
import os
from functools import cached_property
from typing import Final

from holdfast._lazy import missing_extra
from holdfast.errors import CorruptError, InvalidError

try:
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand
except ImportError as error:  # pragma: no cover - the extra is installed where tests run
    raise missing_extra("encryption", error) from error

KEY_SIZE: Final = 32
_SALT_SIZE = 16
_NONCE_SIZE = 12
_OVERHEAD = _SALT_SIZE + _NONCE_SIZE + 16

MAX_SEALS = 1 << 31
"""How many seals a derived key makes: half of what nonces allow, since threads may count one seal for several."""

_MAX_CIPHERS = 256
"""How many derived keys are cached to open what other processes sealed."""


def derive(key: bytes, purpose: bytes) -> bytes:
    """Return a key for a purpose, from which nobody learns anything about the others."""
    return HKDFExpand(SHA256(), KEY_SIZE, b"holdfast " + purpose).derive(key)


def new_key() -> bytes:
    """Return a random key."""
    return os.urandom(KEY_SIZE)


_forks = 0
"""How many forks this process comes from."""


def _count_fork() -> None:
    global _forks
    _forks += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_count_fork)


class Cipher:
    """Seals and opens with one key. Safe for threads, and after a fork."""

    _random = staticmethod(os.urandom)

    def __init__(self, key: bytes) -> None:
        if len(key) != KEY_SIZE:
            raise InvalidError(f"a key has {KEY_SIZE} bytes, and this one {len(key)}")
        self.key_id: bytes = derive(key, b"key id 1")
        self._key = key
        self._sealing: tuple[bytes, AESGCM] | None = None
        self._left = 0
        self._forks = _forks
        self._ciphers: dict[bytes, AESGCM] = {}

    def __repr__(self) -> str:
        return f"Cipher({self.key_id.hex()[:16]})"

    def seal(self, content: bytes, associated: bytes) -> bytes:
        """Encrypt content, and bind it to associated bytes."""
        sealing = self._sealing
        if sealing is None or self._left <= 0 or self._forks != _forks:
            salt = self._random(_SALT_SIZE)
            sealing = self._sealing = salt, self._derived(salt)
            self._left, self._forks = MAX_SEALS, _forks
        self._left -= 1
        nonce = self._random(_NONCE_SIZE)
        return sealing[0] + nonce + sealing[1].encrypt(nonce, content, associated)

    def unseal(self, sealed: bytes, associated: bytes) -> bytes:
        """Decrypt, or raise `CorruptError` if anything was altered."""
        if len(sealed) < _OVERHEAD:
            raise CorruptError("an encrypted text is shorter than its tag", code="tampered")
        salt = sealed[:_SALT_SIZE]
        cipher = self._ciphers.get(salt) or self._derived(salt)
        body = sealed[_SALT_SIZE + _NONCE_SIZE :]
        try:
            return cipher.decrypt(sealed[_SALT_SIZE : _SALT_SIZE + _NONCE_SIZE], body, associated)
        except InvalidTag:
            raise CorruptError(
                "authentication failed: the data was altered or the key is wrong", code="tampered"
            ) from None

    def digest(self, content: bytes) -> bytes:
        """Return a digest that nobody can compute without the key: HMAC with SHA-256."""
        # `hmac.digest` sets up the key in each call, which takes longer than the rest.
        inner, outer = self._digest_states
        inner, outer = inner.copy(), outer.copy()
        inner.update(content)
        outer.update(inner.digest())
        return outer.digest()

    @cached_property
    def _digest_states(self) -> tuple[hashlib._Hash, hashlib._Hash]:
        """SHA-256 after the two blocks that HMAC makes of the key for digests, as RFC 2104 says."""
        key = derive(self._key, b"digest 1").ljust(hashlib.sha256().block_size, b"\0")
        return hashlib.sha256(bytes(each ^ 0x36 for each in key)), hashlib.sha256(bytes(each ^ 0x5C for each in key))

    def derive(self, purpose: bytes) -> bytes:
        """Return a key for a purpose."""
        return derive(self._key, purpose)

    def _derived(self, salt: bytes) -> AESGCM:
        if len(self._ciphers) >= _MAX_CIPHERS:
            self._ciphers.clear()
        cipher = self._ciphers[salt] = AESGCM(derive(self._key, b"seal 1" + salt))
        return cipher
