"""Certificates of erasure: signed with Ed25519, and checked with the public key alone.

A certificate is a JSON document. The signature covers all of it but itself, as JSON with sorted keys and no blanks. It
does not name the person: it has a digest of the name under a random salt, so that whoever knows the name can check
that the certificate is about them.
"""

from __future__ import annotations

import hmac
import json
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final
from unicodedata import normalize

import msgspec
from msgspec.structs import asdict, replace

from holdfast._fields import Hidden
from holdfast._structs import convert
from holdfast.errors import CorruptError
from holdfast.security.audit.erasure_ledger import digest_subject
from holdfast.security.audit.signature import is_signed, parse_public_key, public_key_of, sign

if TYPE_CHECKING:  # it needs an extra, and certificates are listed without it
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

FORMAT: Final = "holdfast-erasure 1"
_CODE = "certificate-invalid"
_HINT = "Ask whoever issued it for the original"
_MAX_TEXT = 1 << 22


class Certificate(msgspec.Struct, frozen=True):
    """Proof of an erasure: what was erased, and what could not be reached. Times are ISO 8601, in UTC."""

    id: str
    store: Hidden[str]
    tenant: Hidden[str]
    subject_salt: Hidden[str]
    """Random, in hex: with it, `subject_digest` is a digest of the name of the subject."""
    subject_digest: Hidden[str]
    started: Hidden[str]
    finished: str
    erased: Mapping[str, int]
    """How much was erased, by kind: threads, agents, scopes, sessions, artifacts, messages and so on."""
    rewritten: Mapping[str, int] = {}
    """From how many lines that others share, by kind, the data was removed."""
    keys_destroyed: Hidden[int] = 0
    steps_removed: Hidden[int] = 0
    """How many steps were removed, with what was erased or from lines that others share."""
    retained: Hidden[tuple[str, ...]] = ()
    """What was kept on purpose, such as records of the audit without their content."""
    unreachable: tuple[str, ...] = ()
    """Where copies may still be that Holdfast cannot reach."""
    public_key: Hidden[str] = ""
    """The key that checks the signature, in hex."""
    signature: Hidden[str] = ""

    def is_about(self, subject: str) -> bool:
        """Return whether the certificate is about a person, by the name that the store had for them."""
        digest = digest_subject(bytes.fromhex(self.subject_salt), normalize("NFC", subject))
        return hmac.compare_digest(digest.hex(), self.subject_digest)

    def to_json(self) -> str:
        """Return the certificate as a JSON document."""
        return json.dumps({"format": FORMAT, **asdict(self)}, indent=2, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str | bytes) -> Certificate:
        """Read a certificate. `CorruptError` if it is none. It is not checked: `check` does that."""
        try:
            found = json.loads(text) if len(text) <= _MAX_TEXT else None
            if not isinstance(found, dict) or found.pop("format", None) != FORMAT or found.keys() != _FIELDS:
                raise ValueError
            bytes.fromhex(found["subject_salt"])
            return convert(found, cls)
        except (ValueError, TypeError, RecursionError, msgspec.MsgspecError):
            raise CorruptError("this is not a certificate of erasure", hint=_HINT, code=_CODE) from None

    def sign(self, key: Ed25519PrivateKey) -> Certificate:
        """Return the certificate, signed."""
        unsigned = replace(self, public_key=public_key_of(key), signature="")
        return replace(unsigned, signature=sign(_signed_bytes(unsigned), key))

    def check(self, public_key: str | None = None) -> None:
        """Check the signature. `CorruptError` if it is not right, or made with another key than this one.

        Without `public_key`, that of the certificate is used: then anybody may have signed it.
        """
        expected = parse_public_key(self.public_key if public_key is None else public_key)
        if expected != self.public_key:
            raise CorruptError(
                f"the certificate was signed with another key, {self.public_key[:16]}…", hint=_HINT, code=_CODE
            )
        if not is_signed(_signed_bytes(self), self.signature, expected):
            raise CorruptError("the certificate was altered, or not signed", hint=_HINT, code=_CODE)


_FIELDS = set(Certificate.__struct_fields__)


def new_salt() -> bytes:
    """Return a random salt for the digest of a subject."""
    return os.urandom(16)


def _signed_bytes(certificate: Certificate) -> bytes:
    content = {"format": FORMAT, **asdict(certificate)}
    del content["signature"]
    return json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()
