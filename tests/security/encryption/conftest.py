"""Encrypted stores."""

from __future__ import annotations

import pytest

from holdfast.encryption import Encryption, LocalKeys


@pytest.fixture
def encryption() -> Encryption:
    return Encryption(LocalKeys(b"m" * 32))
