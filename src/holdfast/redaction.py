"""Redaction of credentials and personal data: detectors for `store.redaction`."""

from __future__ import annotations

from holdfast.security.sensitive.detector import PresidioRecognizer, find

__all__ = ["PresidioRecognizer", "find"]
