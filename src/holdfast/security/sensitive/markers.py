"""Markers: the texts that replace sensitive data.

- `[redacted:email:1f0c22ab.c5…e1.90…]` has a keyed digest: equal values have equal digests.
- `[token:email:1f0c22ab.Zm9….90…]` has the value, encrypted with AES-SIV (RFC 5297): equal values of one thread or
  scope have equal tokens, and whoever has the key and the name of the thread can reveal it.
- `[sealed:email:…]` is a token under a key of its own.

The name of the key follows the format. The last part proves that the marker was made with the key: other text that
looks like a marker is searched as any text is.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Literal, Protocol, TypeAlias

from holdfast._hints import install
from holdfast.errors import ConfigError
from holdfast.security.sensitive.formats import BETWEEN

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESSIV


# Keys -----------------------------------------------------------------------------------------------------------------
#
# Keys of digests and tokens. The providers of local master keys, such as `FileKeys`, are sources of them, too.

VARIABLE: Final = "HOLDFAST_REDACTION_KEYS"

TO_PROTECT: Final = "HOLDFAST_REDACTION=redact"
TO_REDACT: Final = "holdfast redaction redact"
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
            hint="`holdfast encryption-keys add` prints one",
            code="redaction-key",
        )
    return tuple(keys)


Kind: TypeAlias = Literal["redacted", "token", "sealed"]

_MARKER: Final = re.compile(
    r"\[(redacted|token|sealed):([a-z0-9-]{1,40}):([0-9a-f]{8})\.([A-Za-z0-9_-]{16,}+)\.([0-9a-f]{12})\]"
)
_DIGEST, _CHECK = 10, 6
"""The number of bytes of a digest, and of the proof."""


class _Key:
    """A key, and those that are derived from it."""

    def __init__(self, key: bytes) -> None:
        self.id = _derive(key, "id")[:4].hex()
        self.digest = _derive(key, "digest")
        self.check = _derive(key, "check")
        self.token = _derive(key, "token")


def _derive(key: bytes, purpose: str) -> bytes:
    return hmac.digest(key, f"holdfast sensitive {purpose}".encode(), hashlib.sha512)


class Markers:
    """Makes markers of one tenant, recognises them, and reveals tokens."""

    def __init__(self, source: KeySource, tenant: str, kind: Kind = "token") -> None:
        self._keys = {key.id: key for key in map(_Key, check_keys(source.keys()))}
        self._current = next(iter(self._keys.values()))
        self._tenant = tenant
        self._kind = kind
        """Of its tokens."""

    def redact(self, value: str, format_: str) -> str:
        """Return a marker with a keyed digest of a value."""
        key = self._current
        digest = hmac.digest(key.digest, _join(self._tenant, value), hashlib.sha256)[:_DIGEST].hex()
        return self._marker("redacted", format_, key, digest)

    def tokenise(self, value: str, format_: str, domain: str) -> str:
        """Return a marker from which a value can be revealed, for one thread or scope."""
        key = self._current
        sealed = _siv(key.token).encrypt(_encode(value), self._context(domain, format_))
        return self._marker(self._kind, format_, key, base64.urlsafe_b64encode(sealed).decode().rstrip("="))

    def _marker(self, kind: str, format_: str, key: _Key, payload: str) -> str:
        start = f"{kind}:{format_}:{key.id}.{payload}"
        return f"[{start}.{self._proof(key, start)}]"

    def _proof(self, key: _Key, start: str) -> str:
        return hmac.digest(key.check, _join(self._tenant, start), hashlib.sha256)[:_CHECK].hex()

    def _context(self, domain: str, format_: str) -> list[bytes]:
        return [_encode(self._tenant), _encode(domain), format_.encode(), self._kind.encode()]

    def is_genuine(self, match: re.Match[str], /) -> bool:
        """Whether text that looks like a marker was made with a key."""
        key = self._keys.get(match[3])
        if key is None:
            return False
        return hmac.compare_digest(self._proof(key, f"{match[1]}:{match[2]}:{match[3]}.{match[4]}"), match[5])

    def reveal(self, text: str, domain: str) -> tuple[str, list[str], int]:
        """Return a text with the tokens of a thread or scope replaced by what they stand for, the formats of these, and
        how many tokens were left: of other threads, or of keys that are not there."""
        formats: list[str] = []
        left = 0

        def replace(match: re.Match[str]) -> str:
            nonlocal left
            if match[1] != self._kind:
                return match[0]
            value = self._open(match, domain) if self.is_genuine(match) else None
            if value is None:
                left += 1
                return match[0]
            formats.append(match[2])
            return value

        return _MARKER.sub(replace, text), formats, left

    def _open(self, match: re.Match[str], domain: str) -> str | None:
        from cryptography.exceptions import InvalidTag

        payload = match[4] + "=" * (-len(match[4]) % 4)
        try:
            sealed = base64.urlsafe_b64decode(payload)
            return (
                _siv(self._keys[match[3]].token)
                .decrypt(sealed, self._context(domain, match[2]))
                .decode("utf-8", "surrogatepass")
            )
        except (InvalidTag, ValueError):
            return None


def has_marker(text: str) -> bool:
    """Whether text may contain markers."""
    return "[token:" in text or "[redacted:" in text or "[sealed:" in text


class MarkerCheck(Protocol):
    """Says whether text that looks like a marker is one."""

    def is_genuine(self, match: re.Match[str], /) -> bool:
        """Whether it is one."""


class _AnyMarker:
    """Takes all that looks like a marker for one, where there is no key."""

    def is_genuine(self, match: re.Match[str], /) -> bool:  # noqa: ARG002
        return True


ANY_MARKER: Final[Sequence[MarkerCheck]] = (_AnyMarker(),)


def mask_markers(text: str, known: Sequence[MarkerCheck]) -> str:
    """Return a text of the same length, without its markers."""

    def mask(match: re.Match[str]) -> str:
        return BETWEEN * len(match[0]) if any(each.is_genuine(match) for each in known) else match[0]

    return _MARKER.sub(mask, text) if known and has_marker(text) else text


def _join(*parts: str) -> bytes:
    return b"\0".join(map(_encode, parts))


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _siv(key: bytes) -> AESSIV:
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESSIV
    except ImportError as missing:
        raise ConfigError(
            "tokens need cryptography, which is not installed",
            hint=install("encryption"),
            code="not-installed",
        ) from missing
    return AESSIV(key)
