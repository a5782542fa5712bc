"""The stored part of recorded calls: all, all but sensitive data, or digests. Hooks use the same words."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from holdfast.codec import Codec
from holdfast.recording.comparison import plain

if TYPE_CHECKING:
    from holdfast.engine.protection import Protection

_SALT = 8


def digest_call(call: list[Any]) -> list[Any]:
    """Return a call with a digest of its input and result, with a salt of its own: equal ones do not look equal."""
    kind, name, start, end, *rest = call
    salt = os.urandom(_SALT)
    digest = hashlib.blake2b(repr(plain(rest)).encode(), digest_size=16, salt=salt).hexdigest()
    return [kind, name, start, end, f"blake2b:{salt.hex()}:{digest}", None]


def pack_recording(
    codec: Codec, record: Mapping[str, Any], redact: Callable[[bytes], bytes], protection: Protection | None
) -> bytes:
    """Pack the record of a task: without what looks sensitive, if its mode is `redacted`, and always without what the
    policies of the store do not let in, after which it is `redacted`, too."""
    mode = record.get("mode", "full")
    packed = codec.pack(dict(record))
    found = redact(packed) if mode == "redacted" else packed
    if protection is not None:
        found = protection.redact(found)
    if found == packed or mode != "full":
        return found
    return codec.pack({**codec.unpack(found), "mode": "redacted"})
