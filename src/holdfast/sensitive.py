"""Sensitive data: policies, keys and reports of `store.sensitive`, and the detector."""

from __future__ import annotations

from holdfast.maintenance import RedactionReport
from holdfast.security import (
    CredentialReport,
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
    "CredentialReport",
    "EnvironmentKeys",
    "FileKeys",
    "KeySource",
    "PresidioRecognizer",
    "Recognizer",
    "RedactionReport",
    "Sensitive",
    "SensitiveFinding",
    "SensitivePolicy",
    "SensitiveReport",
    "SensitiveSpan",
    "find",
]
