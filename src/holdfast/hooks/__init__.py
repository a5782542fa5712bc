"""Hooks: functions that are called before and after changes, to refuse, change or follow them."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.errors import VetoError as VetoError
    from holdfast.hooks.api import AsyncHooks as AsyncHooks
    from holdfast.hooks.api import Hooks as Hooks
    from holdfast.hooks.builtin import Audit as Audit
    from holdfast.hooks.builtin import InvalidateCache as InvalidateCache
    from holdfast.hooks.builtin import Metrics as Metrics
    from holdfast.hooks.builtin import Validate as Validate
    from holdfast.hooks.context import Call as Call
    from holdfast.hooks.context import Changed as Changed
    from holdfast.hooks.context import Execution as Execution
    from holdfast.hooks.context import HookInfo as HookInfo
    from holdfast.hooks.points import POINTS as POINTS

_BUILTIN = ("Audit", "InvalidateCache", "Metrics", "Validate")
_CALLS = ("Call", "Changed", "Execution", "HookInfo")
_FACE = ("AsyncHooks", "Hooks")

__all__ = [*_BUILTIN, *_CALLS, *_FACE, "POINTS", "VetoError"]  # noqa: PLE0604 - strings all of them


def __getattr__(name: str) -> Any:
    # Loaded on first use: sessions and artifacts have points for hooks, and most stores have no hook.
    found: Any = None
    if name in _BUILTIN:
        from holdfast.hooks import builtin as found
    elif name in _CALLS:
        from holdfast.hooks import context as found
    elif name in _FACE:
        from holdfast.hooks import api as found
    elif name == "POINTS":
        from holdfast.hooks import points as found
    elif name == "VetoError":
        from holdfast import errors as found
    if found is None:
        raise AttributeError(f"module 'holdfast.hooks' has no attribute {name!r}")
    return getattr(found, name)


def __dir__() -> list[str]:
    return sorted(__all__)
