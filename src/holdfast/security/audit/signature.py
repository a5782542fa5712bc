"""Signatures with Ed25519, of certificates of erasure and of exports of the audit."""

from __future__ import annotations

from base64 import b64decode, b64encode
from typing import TYPE_CHECKING

from holdfast._lazy import missing_extra
from holdfast.errors import InvalidError

if TYPE_CHECKING:  # it needs an extra, and what was signed is read without it
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey


def sign(content: bytes, key: Ed25519PrivateKey) -> str:
    """Return the signature of a content, in base64."""
    return b64encode(key.sign(content)).decode()


def is_signed(content: bytes, signature: str, public_key: str) -> bool:
    """Return whether a content was signed with the key that this public key belongs to."""
    try:
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    except ImportError as error:  # pragma: no cover - the extra is installed where tests run
        raise missing_extra("encryption", error) from error
    try:
        key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(public_key))
        key.verify(b64decode(signature, validate=True), content)
    except (InvalidSignature, ValueError):
        return False
    return True


def public_key_of(key: Ed25519PrivateKey) -> str:
    """Return the public key that belongs to a key, in hex."""
    return key.public_key().public_bytes_raw().hex()


def parse_public_key(text: str) -> str:
    """Return a public key in hex. `InvalidError` if it is none."""
    plain = text.strip().lower()
    try:
        if len(bytes.fromhex(plain)) != 32:
            raise ValueError
    except ValueError:
        raise InvalidError(
            "a public key is 64 hex digits", where=ascii(text)[:80], hint="`holdfast erase key` prints it"
        ) from None
    return plain
