"""From the name of a composition to its class, loaded only when it is asked for."""

from __future__ import annotations

from holdfast.backends.port import Backend


def composition(kind: str) -> type[Backend]:
    """The backend for a scheme of `holdfast.backends.wrap.urls.COMPOSITIONS`."""
    match kind:
        case "retry":
            from holdfast.backends.wrap.retry import Retry

            return Retry
        case "readonly":
            from holdfast.backends.wrap.readonly import ReadOnly

            return ReadOnly
        case "metrics":
            from holdfast.backends.wrap.metrics import Metrics

            return Metrics
        case "cache":
            from holdfast.backends.wrap.cache import Cache

            return Cache
        case "tiers":
            from holdfast.backends.wrap.tiers import Tiers

            return Tiers
        case "behind":
            from holdfast.backends.wrap.replicate import Behind

            return Behind
        case _:
            from holdfast.backends.wrap.mirror import Mirror

            return Mirror
