"""From the name of a composition to its class, loaded only when it is asked for."""

from __future__ import annotations

from holdfast.backends.interface import Backend


def composition(kind: str) -> type[Backend]:
    """The backend for a scheme of `holdfast.backends.wrappers.composite_urls.COMPOSITIONS`."""
    match kind:
        case "retry":
            from holdfast.backends.wrappers.retry import Retry

            return Retry
        case "readonly":
            from holdfast.backends.wrappers.readonly import ReadOnly

            return ReadOnly
        case "metrics":
            from holdfast.backends.wrappers.metrics import Metrics

            return Metrics
        case "cache":
            from holdfast.backends.wrappers.cache import Cache

            return Cache
        case "tiers":
            from holdfast.backends.wrappers.tiering import Tiers

            return Tiers
        case "behind":
            from holdfast.backends.wrappers.replication import Behind

            return Behind
        case _:
            from holdfast.backends.wrappers.mirror import Mirror

            return Mirror
