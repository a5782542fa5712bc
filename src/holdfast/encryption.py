"""Encryption at rest: `holdfast.open(url, encryption=Encryption(FileKeys("holdfast.key")))`."""

from __future__ import annotations

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

__all__ = [
    "AwsKms",
    "Clear",
    "Encryption",
    "EnvironmentKeys",
    "FileKeys",
    "KeyProvider",
    "KeyringKeys",
    "LocalKeys",
    "Mode",
    "generate_key",
]
