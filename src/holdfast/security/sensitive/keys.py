"""Keys of digests and tokens. The providers of local master keys, such as `FileKeys`, are sources of them, too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from holdfast.errors import ConfigError

VARIABLE: Final = "HOLDFAST_SENSITIVE_KEYS"

TO_PROTECT: Final = "HOLDFAST_SENSITIVE=redact"
TO_REDACT: Final = "holdfast sensitive redact"
"""The setting and the command that replace credentials in what is saved from now on, and in what is stored."""

MIN_BYTES: Final = 32
"""The length of a key at least."""


class KeySource(Protocol):
    """Provides the keys that digests and tokens are made with."""

    def keys(self) -> Sequence[bytes]:
        """Return the keys, of 32 bytes at least. New digests and tokens are made with the first; tokens that were made
        with the others can still be revealed."""


def check_keys(keys: Sequence[bytes], where: str = "") -> tuple[bytes, ...]:
    """Return keys, if there is one and all are long enough."""
    if not keys or any(type(key) is not bytes or len(key) < MIN_BYTES for key in keys):
        raise ConfigError(
            f"a key has at least {MIN_BYTES} bytes",
            where=where,
            hint="`holdfast keys add` prints one",
            code="sensitive-key",
        )
    return tuple(keys)
