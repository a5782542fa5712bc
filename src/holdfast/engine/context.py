"""What all parts of the engine stand on."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from holdfast.backends.interface import Backend
from holdfast.codec import Codec, default_codec
from holdfast.engine.cache import MemoryCache

CACHE_BYTES = 64 << 20
"""How many bytes of memory a store's cache takes, unless told otherwise."""

FOLD_EVERY = 32
"""How many steps there are from one folded state to the next."""


@dataclass(frozen=True)
class EngineContext:
    """A store, what is remembered of it, how values are packed, and the clock."""

    backend: Backend
    cache: MemoryCache = field(default_factory=lambda: MemoryCache(CACHE_BYTES))
    codec: Codec = default_codec
    clock: Callable[[], int] = time.time_ns
    fold_every: int = FOLD_EVERY
    project: bool = False
    """Whether readable rows are written beside the log."""

    @property
    def max_bytes(self) -> int:
        """How many bytes a record may hold."""
        return self.codec.limits.max_bytes
