"""Keys of digests and tokens, from the environment or a file."""

from __future__ import annotations

import base64
import binascii
import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Protocol

from holdfast.errors import ConfigError

VARIABLE: Final = "HOLDFAST_SENSITIVE_KEYS"

MIN_BYTES: Final = 32
"""The length of a key at least."""

_HINT = "A key is 32 random bytes in base64: openssl rand -base64 32"


class KeySource(Protocol):
    """Provides the keys that digests and tokens are made with."""

    def keys(self) -> Sequence[bytes]:
        """Return the keys, of 32 bytes at least. New digests and tokens are made with the first; tokens that were made
        with the others can still be revealed."""


class EnvironmentKeys:
    """Keys in a variable of the environment: in base64, separated by commas, the current one first."""

    def __init__(self, variable: str = VARIABLE) -> None:
        self._variable = variable

    def keys(self) -> Sequence[bytes]:
        """Return the keys."""
        text = os.environ.get(self._variable, "")
        if not text:
            raise _error(f"the variable {self._variable} has no key")
        return _parse(text.split(","), f"variable {self._variable}")


class FileKeys:
    """Keys in a file that only its owner can read: in base64, one a line, the current one first."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)

    def keys(self) -> Sequence[bytes]:
        """Return the keys."""
        try:
            mode = self._path.stat().st_mode
            text = self._path.read_text("ascii")
        except (OSError, UnicodeDecodeError) as error:
            raise _error(f"the file of keys cannot be read: {type(error).__name__}", str(self._path)) from error
        if os.name == "posix" and mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise ConfigError(
                "others than its owner have rights to the file of keys",
                where=str(self._path),
                hint=f"chmod 600 {self._path}",
                code="sensitive-key",
            )
        return _parse(text.split(), str(self._path))


def check_keys(keys: Sequence[bytes], where: str = "") -> tuple[bytes, ...]:
    """Return keys, if there is one and all are long enough."""
    if not keys or any(type(key) is not bytes or len(key) < MIN_BYTES for key in keys):
        raise _error(f"a key has at least {MIN_BYTES} bytes", where)
    return tuple(keys)


def _parse(texts: Sequence[str], where: str) -> tuple[bytes, ...]:
    try:
        return check_keys([base64.b64decode(text.strip(), validate=True) for text in texts if text.strip()], where)
    except binascii.Error:
        raise _error("a key is not base64", where) from None


def _error(what: str, where: str = "") -> ConfigError:
    return ConfigError(what, where=where, hint=_HINT, code="sensitive-key")
