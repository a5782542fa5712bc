"""The salt of a line, and digests under it.

Ids and digests of what a line contains are stored in the clear, so that rows can be found by them. Without a salt, they
would confirm a guess of the content. So every line has a random salt, which is stored where the content is, and with
which all of them are computed. Copies of a line keep it, and with it all ids and hashes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

SALT_SIZE = 16

NO_SALT = bytes(SALT_SIZE)
"""For what is computed in memory and never stored."""


def digest(salt: bytes, data: bytes) -> bytes:
    """Return the digest of content under the salt of its line."""
    return digest_parts(salt, (data,))


def digest_parts(salt: bytes, parts: Sequence[bytes]) -> bytes:
    """Return the digest of content that is in several parts."""
    hashed = hashlib.sha256(salt)
    for part in parts:
        hashed.update(part)
    return hashed.digest()
