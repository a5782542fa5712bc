"""Redaction of recorded values, where no policy says how: what looks sensitive is replaced, and cannot be restored."""

from __future__ import annotations

from functools import lru_cache

from holdfast.security.sensitive.detector import Detector, parse_formats
from holdfast.security.sensitive.packed_values import replace_texts


@lru_cache(1)
def _detector() -> Detector:
    return Detector(parse_formats("all"))


def redact_values(packed: bytes) -> bytes:
    """Return a packed value without credentials and personal data."""
    return replace_texts(packed, (), "", lambda _, name, text: _redact(name, text))


def _redact(name: str, text: str) -> str:
    for start, end, format_ in reversed([each[:3] for each in _detector().find_in_field(name, text)]):
        text = f"{text[:start]}[redacted:{format_}]{text[end:]}"
    return text
