"""Values that hooks and replays record, without sensitive data."""

from __future__ import annotations


def redact(packed: bytes) -> bytes:
    """Return packed values that were recorded, without what looks like a credential or personal data."""
    from holdfast.security.sensitive.packed_values import redact_values  # its formats take long to compile

    return redact_values(packed)
