"""The context that all parts of the engine share."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from msgspec import Struct, field
from msgspec.structs import force_setattr

from holdfast.backends.distribution import BATCHES, Distribution
from holdfast.backends.interface import Backend, Batch
from holdfast.backends.runtime.memory_cache import MemoryCache
from holdfast.backends.runtime.metric_families import GROUP_BATCHES
from holdfast.backends.runtime.metrics import MetricsRegistry, Sample
from holdfast.codec import Codec, default_codec
from holdfast.engine.checked_rows import CHECKSUMS, CheckedBackend, RowCodec, UncheckedBackend

if TYPE_CHECKING:
    from holdfast.backends.runtime.heartbeat import BeatThread
    from holdfast.engine.quotas import QuotaLimiter

Apply: TypeAlias = Callable[[Batch], Awaitable[int | None]]
"""Applies a batch, as `Backend.apply` does: returns the index of a condition that does not hold, or None. It may store
more in the same batch, such as a record of the change."""

CACHE_BYTES = 64 << 20
"""The default size of a store's cache, in bytes."""

FOLD_EVERY = 32
"""The default number of steps from one folded state to the next."""


class EngineContext(Struct, frozen=True, eq=False, dict=True):
    """The backend of a store, its cache, the codec, and the clock."""

    backend: Backend
    """The store with checked rows: any backend that is passed is put inside of a `CheckedBackend`."""
    cache: MemoryCache = field(default_factory=lambda: MemoryCache(CACHE_BYTES))
    codec: Codec = default_codec
    clock: Callable[[], int] = time.time_ns
    fold_every: int = FOLD_EVERY
    project: bool | Literal["follow"] = False
    """Whether readable rows are written beside the log: in the batch of a save, or within a second (`follow`)."""
    rows: RowCodec = CHECKSUMS
    """How rows are stored; that of the backend, if it is a `CheckedBackend`."""
    metrics: MetricsRegistry = field(default_factory=MetricsRegistry)
    """The measurements of the store in this process; those of the backend, if it is a `CheckedBackend`."""
    noticed: dict[str, Any] = field(default_factory=dict)
    """By tenant, how far the search for credentials got in this process, where that is not stored."""

    def __post_init__(self) -> None:
        if isinstance(self.backend, CheckedBackend):
            force_setattr(self, "metrics", self.backend.metrics)
        else:
            self.metrics.add_collector(partial(_collect, self.cache, self.backend))
            force_setattr(self, "backend", CheckedBackend(self.backend, self.rows, self.metrics))
        assert isinstance(self.backend, CheckedBackend)  # noqa: S101 - see above
        force_setattr(self, "rows", self.backend.rows)

    @cached_property
    def stored(self) -> Backend:
        """The store with its rows as they are, also damaged ones. Only to read: what writes uses `backend`."""
        assert isinstance(self.backend, CheckedBackend)  # noqa: S101 - see above
        return self.backend.inner

    @cached_property
    def unchecked(self) -> Backend:
        """The store for reading columns alone, which are not checked."""
        return UncheckedBackend(self.stored, self.rows) if self.rows.hides_columns else self.stored

    def is_same_store(self, other: EngineContext) -> bool:
        """Return whether another context is of the same store: the same one, or one of another handle with its URL."""
        url = self.backend.url
        return other is self or (url == other.backend.url and not url.startswith("memory:"))

    @property
    def max_bytes(self) -> int:
        """The largest number of bytes of a record."""
        return self.codec.max_bytes

    @cached_property
    def lags(self) -> bool:
        """Whether the store has a replica that may answer reads."""
        return self.backend.capabilities.lags

    @cached_property
    def quotas(self) -> QuotaLimiter:
        """Limits what tenants store."""
        from holdfast.engine.quotas import QuotaLimiter

        return QuotaLimiter(self.backend)

    @cached_property
    def heartbeats(self) -> BeatThread:
        """Extends the leases of sync callers."""
        from holdfast.backends.runtime.heartbeat import BeatThread

        return BeatThread()

    def apply(self, batch: Batch) -> Awaitable[int | None]:
        """Apply a batch that adds to what a tenant stores. `QuotaError` if that exceeds its quota.

        Other changes, such as those of maintenance, are applied by the backend directly.
        """
        return self.quotas.apply(batch)


def _collect(cache: MemoryCache, backend: Backend) -> Iterator[Sample]:
    """Return the metrics of a cache and of a backend's commits."""
    yield Sample("cache_hits_total", (), cache.hits)
    yield Sample("cache_misses_total", (), cache.misses)
    yield Sample("cache_bytes", (), cache.size)
    yield Sample("cache_limit_bytes", (), cache.max_bytes)
    groups = Distribution(BATCHES)
    for each in backend.group_sizes():
        groups.merge(each)
    yield Sample(GROUP_BATCHES, (), groups)
