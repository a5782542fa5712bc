"""Encryption at rest: `holdfast.open(url, encryption=Encryption(FileKeys("holdfast.key")))`."""

from __future__ import annotations

from holdfast.maintenance import KeyCheck, KeyInfo, ReencryptReport
from holdfast.security import (
    AwsKms,
    Clear,
    Encryption,
    EnvironmentKeys,
    FileKeys,
    KeyProvider,
    KeyringKeys,
    LocalKeys,
    Mode,
    PassphraseKeys,
    generate_key,
)
from holdfast.store import AsyncKeys, Keys

__all__ = [
    "AsyncKeys",
    "AwsKms",
    "Clear",
    "Encryption",
    "EnvironmentKeys",
    "FileKeys",
    "KeyCheck",
    "KeyInfo",
    "KeyProvider",
    "KeyringKeys",
    "Keys",
    "LocalKeys",
    "Mode",
    "PassphraseKeys",
    "ReencryptReport",
    "generate_key",
]
