"""From the name of a composition to its class, loaded only when it is asked for."""

from __future__ import annotations

from holdfast.backends.interface import Backend


def composition(kind: str) -> type[Backend]:
    """The backend for a scheme of `holdfast.backends.wrappers.composite_urls.COMPOSITIONS`."""
    match kind:
        case "retry":
            from holdfast.backends.wrappers.retry import RetryBackend

            return RetryBackend
        case "readonly":
            from holdfast.backends.wrappers.readonly import ReadOnlyBackend

            return ReadOnlyBackend
        case "metrics":
            from holdfast.backends.wrappers.metrics import MetricsBackend

            return MetricsBackend
        case "cache":
            from holdfast.backends.wrappers.cache import CacheBackend

            return CacheBackend
        case "tiers":
            from holdfast.backends.wrappers.tiering import TieredBackend

            return TieredBackend
        case "behind":
            from holdfast.backends.wrappers.replication import WriteBehindBackend

            return WriteBehindBackend
        case _:
            from holdfast.backends.wrappers.mirror import MirrorBackend

            return MirrorBackend
