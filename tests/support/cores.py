"""The cores of the codec, to test each of them in one process, whichever of them it chose."""

from __future__ import annotations

from typing import Any

from holdfast.codec import Codec
from holdfast.codec.core import Core, NativeCore, PythonCore

try:
    from holdfast import _native
except ImportError:
    _native = None  # type: ignore[assignment]  # it is not built where there is no Rust

CORES: dict[str, Core] = {"python": PythonCore()}
if _native is not None:
    CORES["native"] = NativeCore(_native)


def codec_of(core: Core, **options: Any) -> Codec:
    """A codec with a certain core."""
    codec = Codec(**options)
    codec._core = core
    return codec


def counts() -> dict[str, tuple[int, int]]:
    """How often each function of the native core was called, and declined."""
    return {name: (calls, declined) for name, calls, declined in _native.counts()}
