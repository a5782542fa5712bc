"""Durable, versioned, verifiable state for AI agents."""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.codec import Codec as Codec
    from holdfast.codec import Inert as Inert
    from holdfast.codec import Limits as Limits
    from holdfast.codec import Registry as Registry
    from holdfast.codec.registry import default_registry

    register = default_registry.register
    allow: Callable[..., Any] = default_registry.allow

__all__ = ["Codec", "Inert", "Limits", "Registry", "__version__", "allow", "register"]


def __getattr__(name: str) -> Any:
    # Loaded on first use, so that importing the package costs next to nothing.
    if name in ("allow", "register"):
        from holdfast.codec.registry import default_registry

        return getattr(default_registry, name)
    if name in __all__:
        from holdfast import codec

        return getattr(codec, name)
    raise AttributeError(f"module 'holdfast' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
