"""Encryption at rest: `holdfast.open(url, encryption=Encryption("file:holdfast.key"))`."""

from __future__ import annotations

from holdfast.security.encryption.provider import KeyProvider, LocalKeys, generate_key
from holdfast.security.encryption.settings import Encryption

__all__ = ["Encryption", "KeyProvider", "LocalKeys", "generate_key"]
