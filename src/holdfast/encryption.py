"""Encryption at rest: `holdfast.open(url, encryption=Encryption(FileKeys("holdfast.key")))`."""

from __future__ import annotations

from holdfast.maintenance.keys.reencryption import ReencryptReport
from holdfast.maintenance.keys.rotation import KeyCheck, KeyInfo
from holdfast.security.encryption.aws_kms import AwsKms
from holdfast.security.encryption.provider import (
    EnvironmentKeys,
    FileKeys,
    KeyProvider,
    KeyringKeys,
    LocalKeys,
    generate_key,
)
from holdfast.security.encryption.settings import Clear, Encryption, Mode
from holdfast.store.keys import AsyncKeys, Keys

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
    "ReencryptReport",
    "generate_key",
]
