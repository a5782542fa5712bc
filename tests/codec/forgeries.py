"""Checks of forged records."""

from __future__ import annotations

import time
import tracemalloc

import pytest

from holdfast.codec import Codec
from holdfast.errors import CorruptError


def check_refused_cheaply(codec: Codec, data: bytes) -> None:
    """Check that a forged record is refused, in little time and without much memory."""
    started = time.process_time()
    tracemalloc.start()
    try:
        with pytest.raises(CorruptError):
            codec.unpack(data)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    assert time.process_time() - started < 2
