"""Sensitive data: policies, keys and reports of `store.sensitive`, and the detector."""

from __future__ import annotations

from holdfast.security import (
    EnvironmentKeys,
    FileKeys,
    KeySource,
    PresidioRecognizer,
    Recognizer,
    SensitiveFinding,
    SensitivePolicy,
    SensitiveReport,
    SensitiveSpan,
    find,
)
from holdfast.store import AsyncSensitive, Sensitive

__all__ = [
    "AsyncSensitive",
    "EnvironmentKeys",
    "FileKeys",
    "KeySource",
    "PresidioRecognizer",
    "Recognizer",
    "Sensitive",
    "SensitiveFinding",
    "SensitivePolicy",
    "SensitiveReport",
    "SensitiveSpan",
    "find",
]
